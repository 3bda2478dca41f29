// attention_dkdv_rows32_cols64_rr4_cr4_chunk8_d64_qrows64_kcols64: dK and dV from a strip of P and dP.
//
//   dK_j = Σ_i dS_ij·Q_i    dV_j = Σ_i P_ij·dO_i    over the strip's queries, in every query head of the group
//
// One workgroup owns 32 keys (wg.y) × 64 channels (wg.z) of one kv head, for one of the parts that its queries are split
// into (wg.x): head_parts of the group's heads, times query_parts of the blocks of 64 queries. It loops over those that
// see one of its keys, 8 queries at a time. A thread holds 4 keys × 4 channels of both gradients: dk_<key>_<channels>, dv_<key>_<channels>.

const ROWS: u32 = 32u;
const THREADS: u32 = 128u;
const COL_THREADS: u32 = 16u;
const CHUNK: u32 = 8u;
const QUERY_ROWS: u32 = 64u;
const SUM_ROWS: u32 = 256u;  // queries in one chain of additions
// vec4 elements of a row
const HEAD_DIM: u32 = 16u;
const V_HEAD_DIM: u32 = 16u;

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
    strip_slots: u32,
    batch: u32,
    head_parts: u32,
    query_parts: u32,
    add_k: u32,
    add_v: u32,
    q_offset: u32,
    q_batch: u32,
    q_row: u32,
    q_head: u32,
    d_o_offset: u32,
    d_o_batch: u32,
    d_o_row: u32,
    d_o_head: u32,
    d_k_offset: u32,
    d_k_batch: u32,
    d_k_row: u32,
    d_k_head: u32,
    d_k_part: u32,
    d_v_offset: u32,
    d_v_batch: u32,
    d_v_row: u32,
    d_v_head: u32,
    d_v_part: u32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> d_o: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> row_terms: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> d_k: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> d_v: array<vec4<f32>>;
@group(0) @binding(7) var<uniform> call: Call;

// Workgroup memory: 1024 + 1024 + 2048 + 2048 = 6144 bytes.
var<workgroup> p_tile: array<vec4<f32>, 64>;
var<workgroup> ds_tile: array<vec4<f32>, 64>;
var<workgroup> q_tile: array<vec4<f32>, 128>;
var<workgroup> do_tile: array<vec4<f32>, 128>;

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
    return u32(hull.x) / 64u * 64u;
}

fn q_start(batch: u32, head: u32) -> u32 {
    return (call.q_offset + batch * call.q_batch + head * call.q_head) / 4u;
}

fn read_q(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len) {
        return vec4<f32>();
    }
    return q[start + position * (call.q_row / 4u) + channel];
}

fn d_o_start(batch: u32, head: u32) -> u32 {
    return (call.d_o_offset + batch * call.d_o_batch + head * call.d_o_head) / 4u;
}

fn read_d_o(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len) {
        return vec4<f32>();
    }
    return d_o[start + position * (call.d_o_row / 4u) + channel];
}

fn d_k_row_at(part: u32, batch: u32, position: u32, head: u32) -> u32 {
    let at = call.d_k_offset + part * call.d_k_part + batch * call.d_k_batch + position * call.d_k_row + head * call.d_k_head;
    return at / 4u;
}

fn write_d_k(row: u32, channel: u32, x: vec4<f32>, add: bool) {
    let at = row + channel;
    if (add) {
        d_k[at] = guard_result(d_k[at] + guard_result(x));
    } else {
        d_k[at] = guard_result(x);
    }
}

fn d_v_row_at(part: u32, batch: u32, position: u32, head: u32) -> u32 {
    let at = call.d_v_offset + part * call.d_v_part + batch * call.d_v_batch + position * call.d_v_row + head * call.d_v_head;
    return at / 4u;
}

fn write_d_v(row: u32, channel: u32, x: vec4<f32>, add: bool) {
    let at = row + channel;
    if (add) {
        d_v[at] = guard_result(d_v[at] + guard_result(x));
    } else {
        d_v[at] = guard_result(x);
    }
}

@compute @workgroup_size(128, 1, 1)
fn attention_dkdv(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let group = call.heads / call.kv_heads;
    let parts = call.head_parts * call.query_parts;
    let part = workgroup.x % parts;
    let kv_slot = call.slot_first / group + workgroup.x / parts;
    let batch = kv_slot / call.kv_heads;
    let kv_head = kv_slot % call.kv_heads;
    let first_key = workgroup.y * ROWS;
    let first_channel = workgroup.z * 16u;
    let row = tid / COL_THREADS * 4u;  // this thread's first key of the block
    let col = tid % COL_THREADS;  // its channels are the vec4 col, col + COL_THREADS, …

    // (head of the group, block of queries, chunk of it) runs over what this part has and its keys can be seen from.
    let block_count = min(call.strip_rows, call.q_len - call.row_first + QUERY_ROWS - 1u) / QUERY_ROWS;
    let first_block = part % call.query_parts;
    var h = part / call.query_parts;
    var block = first_block;
    var chunk = 0u;
    var whole = false;
    var strip_slot = 0u;
    var first_col = 0u;  // of the block's scores
    while (h < group) {
        let slot = batch * call.heads + kv_head * group + h;
        if (block >= block_count || slot < call.slot_first || slot >= call.slot_first + call.strip_slots) {
            h += call.head_parts;
            block = first_block;
            continue;
        }
        let hull = hull_of(batch, call.row_first / QUERY_ROWS + block);
        if (i32(first_key) < hull.w && i32(first_key + ROWS) > hull.x) {
            strip_slot = slot - call.slot_first;
            first_col = first_key - base_of(hull);
            whole = i32(first_key) >= hull.y && i32(first_key + ROWS) <= hull.z;
            break;
        }
        block += call.query_parts;
    }

    if (h >= group && call.add_k != 0u && call.add_v != 0u) {
        return;
    }
    // A long sum goes in parts of SUM_ROWS queries, each added to what is there: one chain of additions would lose accuracy.
    var added = false;
    loop {
        var dk_0_0 = vec4<f32>();
        var dv_0_0 = vec4<f32>();
        var dk_1_0 = vec4<f32>();
        var dv_1_0 = vec4<f32>();
        var dk_2_0 = vec4<f32>();
        var dv_2_0 = vec4<f32>();
        var dk_3_0 = vec4<f32>();
        var dv_3_0 = vec4<f32>();
        var queries = 0u;
        while (h < group && queries < SUM_ROWS) {
            let first_row = block * QUERY_ROWS + chunk;  // of the strip
            let q_first = q_start(batch, kv_head * group + h);
            let d_o_first = d_o_start(batch, kv_head * group + h);
            workgroupBarrier();  // the chunk before has been read
            if (tid + 0u < 64u) {
                let entry = tid + 0u;
                let strip_row = strip_slot * call.strip_rows + first_row + entry / 8u;
                let terms = row_terms[strip_row];
                let source = (strip_row * call.key_stride + first_col) / 2u + entry % 8u * 2u;
                let pairs = array(scores[source], scores[source + 1u]);  // (P, dP) of four keys
            let p = vec4<f32>(pairs[0].xz, pairs[1].xz) * terms.x;
            let ds = d_s(p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);

                p_tile[entry] = p;
                ds_tile[entry] = ds;
            }
            {
                let entry = tid + 0u;
                let position = call.row_first + first_row + entry / 16u;
                let q_row = read_q(q_first, position, first_channel + entry % 16u);
                let do_row = read_d_o(d_o_first, position, first_channel + entry % 16u);
                if (whole) {
                    q_tile[entry] = q_row;
                    do_tile[entry] = do_row;
                } else {
                    q_tile[entry] = finite_or_zero(q_row);
                    do_tile[entry] = finite_or_zero(do_row);
                }
            }
            workgroupBarrier();  // the chunk is complete
            for (var i = 0u; i < CHUNK; i++) {
                // dV_j += P_ij·dO_i
                {
                    let a_0 = p_tile[i * 8u + row / 4u + 0u];
                    let b_0 = do_tile[i * 16u + col + 0u * COL_THREADS];
                    dv_0_0 = fma(vec4<f32>(a_0.x), b_0, dv_0_0);
                    dv_1_0 = fma(vec4<f32>(a_0.y), b_0, dv_1_0);
                    dv_2_0 = fma(vec4<f32>(a_0.z), b_0, dv_2_0);
                    dv_3_0 = fma(vec4<f32>(a_0.w), b_0, dv_3_0);
                }
                // dK_j += dS_ij·Q_i
                {
                    let a_0 = ds_tile[i * 8u + row / 4u + 0u];
                    let b_0 = q_tile[i * 16u + col + 0u * COL_THREADS];
                    dk_0_0 = fma(vec4<f32>(a_0.x), b_0, dk_0_0);
                    dk_1_0 = fma(vec4<f32>(a_0.y), b_0, dk_1_0);
                    dk_2_0 = fma(vec4<f32>(a_0.z), b_0, dk_2_0);
                    dk_3_0 = fma(vec4<f32>(a_0.w), b_0, dk_3_0);
                }
            }
            chunk += CHUNK;
            queries += CHUNK;
            if (chunk == QUERY_ROWS) {
                chunk = 0u;
                block += call.query_parts;
    while (h < group) {
        let slot = batch * call.heads + kv_head * group + h;
        if (block >= block_count || slot < call.slot_first || slot >= call.slot_first + call.strip_slots) {
            h += call.head_parts;
            block = first_block;
            continue;
        }
        let hull = hull_of(batch, call.row_first / QUERY_ROWS + block);
        if (i32(first_key) < hull.w && i32(first_key + ROWS) > hull.x) {
            strip_slot = slot - call.slot_first;
            first_col = first_key - base_of(hull);
            whole = i32(first_key) >= hull.y && i32(first_key + ROWS) <= hull.z;
            break;
        }
        block += call.query_parts;
    }
            }
        }
        {
            let key = first_key + row + 0u;
            if (key < call.kv_len) {
                let d_k_row = d_k_row_at(part, batch, key, kv_head);
                let d_v_row = d_v_row_at(part, batch, key, kv_head);
                write_d_k(d_k_row, first_channel + col + 0u * COL_THREADS, dk_0_0, added || call.add_k != 0u);
                write_d_v(d_v_row, first_channel + col + 0u * COL_THREADS, dv_0_0, added || call.add_v != 0u);
            }
        }
        {
            let key = first_key + row + 1u;
            if (key < call.kv_len) {
                let d_k_row = d_k_row_at(part, batch, key, kv_head);
                let d_v_row = d_v_row_at(part, batch, key, kv_head);
                write_d_k(d_k_row, first_channel + col + 0u * COL_THREADS, dk_1_0, added || call.add_k != 0u);
                write_d_v(d_v_row, first_channel + col + 0u * COL_THREADS, dv_1_0, added || call.add_v != 0u);
            }
        }
        {
            let key = first_key + row + 2u;
            if (key < call.kv_len) {
                let d_k_row = d_k_row_at(part, batch, key, kv_head);
                let d_v_row = d_v_row_at(part, batch, key, kv_head);
                write_d_k(d_k_row, first_channel + col + 0u * COL_THREADS, dk_2_0, added || call.add_k != 0u);
                write_d_v(d_v_row, first_channel + col + 0u * COL_THREADS, dv_2_0, added || call.add_v != 0u);
            }
        }
        {
            let key = first_key + row + 3u;
            if (key < call.kv_len) {
                let d_k_row = d_k_row_at(part, batch, key, kv_head);
                let d_v_row = d_v_row_at(part, batch, key, kv_head);
                write_d_k(d_k_row, first_channel + col + 0u * COL_THREADS, dk_3_0, added || call.add_k != 0u);
                write_d_v(d_v_row, first_channel + col + 0u * COL_THREADS, dv_3_0, added || call.add_v != 0u);
            }
        }
        if (h >= group) {
            break;
        }
        added = true;
    }
}
