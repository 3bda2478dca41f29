// attention_dq_rows64_cols128_rr8_cr4_chunk16_d128_qrows64_kcols32: dQ from a strip of P and dP.
//
//   dQ_i = Σ_j dS_ij·K_j    over the keys that the block's queries see
//
// One workgroup owns 64 queries (wg.y, the last first: under a causal mask they see most) × 128 channels (wg.z) of one slot,
// for one of the key_parts that the blocks of 32 keys are split into (wg.x), and loops over the keys, 16 at a time. A thread holds 8 queries × 4 channels: dq_<query>_<channels>.

const ROWS: u32 = 64u;
const THREADS: u32 = 256u;
const COL_THREADS: u32 = 32u;
const CHUNK: u32 = 16u;
const ROW_STRIDE: u32 = 5u;  // vec4 elements of a staged row of dS; one of padding, against bank conflicts
const QUERY_ROWS: u32 = 64u;
const KEY_COLS: u32 = 32u;  // keys of a block of scores
// vec4 elements of a row
const HEAD_DIM: u32 = 32u;
const V_HEAD_DIM: u32 = 32u;

struct Call {
    q_len: u32,
    kv_len: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    v_head_dim: u32,
    scale: f32,
    slot_first: u32,
    row_first: u32,
    strip_rows: u32,
    key_stride: u32,
    batch: u32,
    key_parts: u32,
    add_q: u32,
    k_offset: u32,
    k_batch: u32,
    k_row: u32,
    k_head: u32,
    d_q_offset: u32,
    d_q_batch: u32,
    d_q_row: u32,
    d_q_head: u32,
    d_q_part: u32,
}

@group(0) @binding(0) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> row_terms: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(4) var<storage, read_write> d_q: array<vec4<f32>>;
@group(0) @binding(5) var<uniform> call: Call;

// Workgroup memory: 5120 + 8192 = 13312 bytes.
var<workgroup> ds_tile: array<vec4<f32>, 320>;
var<workgroup> k_tile: array<vec4<f32>, 512>;

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

// dS_ij = scale·P_ij·(dP_ij − D_i). Where P and dP are both zero nothing is seen, and a D that is NaN must not get in.
fn d_s(p: vec4<f32>, d_p: vec4<f32>, delta: f32) -> vec4<f32> {
    let seen = ((bitcast<vec4<u32>>(p) | bitcast<vec4<u32>>(d_p)) & vec4<u32>(0x7fffffffu)) != vec4<u32>();
    return select(vec4<f32>(), call.scale * p * (d_p - delta), seen);
}

fn finite_or_zero(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

// The hull of a block of queries: least lo, greatest lo, least hi, greatest hi.
fn hull_of(batch: u32, block: u32) -> vec4<i32> {
    let at = call.batch * call.q_len + 2u * (batch * ((call.q_len + 63u) / 64u) + block);
    return vec4<i32>(intervals[at], intervals[at + 1u]);
}

// The key that a block's scores begin with; they are stored from there on.
fn base_of(hull: vec4<i32>) -> u32 {
    return u32(hull.x) / 32u * 32u;
}

fn k_start(batch: u32, head: u32) -> u32 {
    return (call.k_offset + batch * call.k_batch + head * call.k_head) / 4u;
}

fn read_k(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.kv_len) {
        return vec4<f32>();
    }
    return k[start + position * (call.k_row / 4u) + channel];
}

fn d_q_row_at(part: u32, batch: u32, position: u32, head: u32) -> u32 {
    let at = call.d_q_offset + part * call.d_q_part + batch * call.d_q_batch + position * call.d_q_row + head * call.d_q_head;
    return at / 4u;
}

fn write_d_q(row: u32, channel: u32, x: vec4<f32>, add: bool) {
    let at = row + channel;
    if (add) {
        d_q[at] = guard_result(d_q[at] + guard_result(x));
    } else {
        d_q[at] = guard_result(x);
    }
}

@compute @workgroup_size(256, 1, 1)
fn attention_dq(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
) {
    let part = workgroup.x % call.key_parts;
    let strip_slot = workgroup.x / call.key_parts;
    let slot = call.slot_first + strip_slot;
    let batch = slot / call.heads;
    let head = slot % call.heads;
    let kv_head = head / (call.heads / call.kv_heads);
    let first_row = (workgroups.y - 1u - workgroup.y) * ROWS;  // of the strip
    let first_query = call.row_first + first_row;
    if (first_query >= call.q_len) {
        return;
    }
    let first_channel = workgroup.z * 32u;
    let row = tid / COL_THREADS * 8u;  // this thread's first query of the block
    let col = tid % COL_THREADS;  // its channels are the vec4 col, col + COL_THREADS, …
    let hull = hull_of(batch, first_query / QUERY_ROWS);
    let k_first = k_start(batch, kv_head);

    var dq_0_0 = vec4<f32>();
    var dq_1_0 = vec4<f32>();
    var dq_2_0 = vec4<f32>();
    var dq_3_0 = vec4<f32>();
    var dq_4_0 = vec4<f32>();
    var dq_5_0 = vec4<f32>();
    var dq_6_0 = vec4<f32>();
    var dq_7_0 = vec4<f32>();

    // The blocks of scores that the hull meets, each written whole; a part of them
    let base = base_of(hull);
    let seen = hull.x < hull.w;
    let first_block = select(0u, base / KEY_COLS, seen);
    let blocks = select(0u, (u32(hull.w) + KEY_COLS - 1u) / KEY_COLS - first_block, seen);
    let begin = (first_block + blocks * part / call.key_parts) * KEY_COLS;
    let end = (first_block + blocks * (part + 1u) / call.key_parts) * KEY_COLS;
    for (var key = begin; key < end; key += CHUNK) {
        let whole = i32(key) >= hull.y && i32(key + CHUNK) <= hull.z;
        workgroupBarrier();  // the chunk before has been read
        {
            let entry = tid + 0u;
            let strip_row = strip_slot * call.strip_rows + first_row + entry / 4u;
            let terms = row_terms[strip_row];
            let source = (strip_row * call.key_stride + key - base) / 2u + entry % 4u * 2u;
            let pairs = array(scores[source], scores[source + 1u]);  // (P, dP) of four keys
            let p = vec4<f32>(pairs[0].xz, pairs[1].xz) * terms.x;
            let ds = d_s(p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);

            ds_tile[entry / 4u * ROW_STRIDE + entry % 4u] = ds;
        }
        {
            let entry = tid + 0u;
            let position = key + entry / 32u;
            let k_row = read_k(k_first, position, first_channel + entry % 32u);
            if (whole) {
                k_tile[entry] = k_row;
            } else {
                k_tile[entry] = finite_or_zero(k_row);
            }
        }
        {
            let entry = tid + 256u;
            let position = key + entry / 32u;
            let k_row = read_k(k_first, position, first_channel + entry % 32u);
            if (whole) {
                k_tile[entry] = k_row;
            } else {
                k_tile[entry] = finite_or_zero(k_row);
            }
        }
        workgroupBarrier();  // the chunk is complete
        // dQ_i += dS_ij·K_j, four keys at a time
        for (var j = 0u; j < 4u; j++) {
            let b_0_0 = k_tile[(j * 4u + 0u) * 32u + col + 0u * COL_THREADS];
            let b_1_0 = k_tile[(j * 4u + 1u) * 32u + col + 0u * COL_THREADS];
            let b_2_0 = k_tile[(j * 4u + 2u) * 32u + col + 0u * COL_THREADS];
            let b_3_0 = k_tile[(j * 4u + 3u) * 32u + col + 0u * COL_THREADS];
            let a_0 = ds_tile[(row + 0u) * ROW_STRIDE + j];
            dq_0_0 = fma(vec4<f32>(a_0.x), b_0_0, dq_0_0);
            dq_0_0 = fma(vec4<f32>(a_0.y), b_1_0, dq_0_0);
            dq_0_0 = fma(vec4<f32>(a_0.z), b_2_0, dq_0_0);
            dq_0_0 = fma(vec4<f32>(a_0.w), b_3_0, dq_0_0);
            let a_1 = ds_tile[(row + 1u) * ROW_STRIDE + j];
            dq_1_0 = fma(vec4<f32>(a_1.x), b_0_0, dq_1_0);
            dq_1_0 = fma(vec4<f32>(a_1.y), b_1_0, dq_1_0);
            dq_1_0 = fma(vec4<f32>(a_1.z), b_2_0, dq_1_0);
            dq_1_0 = fma(vec4<f32>(a_1.w), b_3_0, dq_1_0);
            let a_2 = ds_tile[(row + 2u) * ROW_STRIDE + j];
            dq_2_0 = fma(vec4<f32>(a_2.x), b_0_0, dq_2_0);
            dq_2_0 = fma(vec4<f32>(a_2.y), b_1_0, dq_2_0);
            dq_2_0 = fma(vec4<f32>(a_2.z), b_2_0, dq_2_0);
            dq_2_0 = fma(vec4<f32>(a_2.w), b_3_0, dq_2_0);
            let a_3 = ds_tile[(row + 3u) * ROW_STRIDE + j];
            dq_3_0 = fma(vec4<f32>(a_3.x), b_0_0, dq_3_0);
            dq_3_0 = fma(vec4<f32>(a_3.y), b_1_0, dq_3_0);
            dq_3_0 = fma(vec4<f32>(a_3.z), b_2_0, dq_3_0);
            dq_3_0 = fma(vec4<f32>(a_3.w), b_3_0, dq_3_0);
            let a_4 = ds_tile[(row + 4u) * ROW_STRIDE + j];
            dq_4_0 = fma(vec4<f32>(a_4.x), b_0_0, dq_4_0);
            dq_4_0 = fma(vec4<f32>(a_4.y), b_1_0, dq_4_0);
            dq_4_0 = fma(vec4<f32>(a_4.z), b_2_0, dq_4_0);
            dq_4_0 = fma(vec4<f32>(a_4.w), b_3_0, dq_4_0);
            let a_5 = ds_tile[(row + 5u) * ROW_STRIDE + j];
            dq_5_0 = fma(vec4<f32>(a_5.x), b_0_0, dq_5_0);
            dq_5_0 = fma(vec4<f32>(a_5.y), b_1_0, dq_5_0);
            dq_5_0 = fma(vec4<f32>(a_5.z), b_2_0, dq_5_0);
            dq_5_0 = fma(vec4<f32>(a_5.w), b_3_0, dq_5_0);
            let a_6 = ds_tile[(row + 6u) * ROW_STRIDE + j];
            dq_6_0 = fma(vec4<f32>(a_6.x), b_0_0, dq_6_0);
            dq_6_0 = fma(vec4<f32>(a_6.y), b_1_0, dq_6_0);
            dq_6_0 = fma(vec4<f32>(a_6.z), b_2_0, dq_6_0);
            dq_6_0 = fma(vec4<f32>(a_6.w), b_3_0, dq_6_0);
            let a_7 = ds_tile[(row + 7u) * ROW_STRIDE + j];
            dq_7_0 = fma(vec4<f32>(a_7.x), b_0_0, dq_7_0);
            dq_7_0 = fma(vec4<f32>(a_7.y), b_1_0, dq_7_0);
            dq_7_0 = fma(vec4<f32>(a_7.z), b_2_0, dq_7_0);
            dq_7_0 = fma(vec4<f32>(a_7.w), b_3_0, dq_7_0);
        }
    }

    {
        let query = first_query + row + 0u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_0_0, call.add_q != 0u);
        }
    }
    {
        let query = first_query + row + 1u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_1_0, call.add_q != 0u);
        }
    }
    {
        let query = first_query + row + 2u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_2_0, call.add_q != 0u);
        }
    }
    {
        let query = first_query + row + 3u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_3_0, call.add_q != 0u);
        }
    }
    {
        let query = first_query + row + 4u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_4_0, call.add_q != 0u);
        }
    }
    {
        let query = first_query + row + 5u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_5_0, call.add_q != 0u);
        }
    }
    {
        let query = first_query + row + 6u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_6_0, call.add_q != 0u);
        }
    }
    {
        let query = first_query + row + 7u;
        if (query < call.q_len) {
            let target_row = d_q_row_at(part, batch, query, head);
            write_d_q(target_row, first_channel + col + 0u * COL_THREADS, dq_7_0, call.add_q != 0u);
        }
    }
}
