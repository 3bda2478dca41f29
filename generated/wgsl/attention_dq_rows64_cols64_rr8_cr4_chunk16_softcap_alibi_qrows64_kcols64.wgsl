// attention_dq_rows64_cols64_rr8_cr4_chunk16_softcap_alibi_qrows64_kcols64
//
// dQ from a strip of P and dP.
//
//   dQ_i = Σ_j dS_ij·K_j    over the keys that the block's queries see
//
// One workgroup owns a block of ROWS queries (wg.y, the last first: under a causal mask they see most) × block wg.z of COLS
// channels of one slot, for one of the key_parts that the blocks of KEY_COLS keys are split into (wg.x). It loops over the keys,
// CHUNK at a time. A thread holds 8 queries × 4 channels: dq_<query>_<channels>.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 64u;  // queries
const COLS: u32 = 64u;  // channels
const COL_VECS: u32 = COLS / 4u;  // vec4 elements of a staged row of K
const ROW_REG: u32 = 8u;
const COL_THREADS: u32 = 16u;  // threads that share a query
const THREADS: u32 = 128u;
const CHUNK: u32 = 16u;  // keys
const CHUNK_VECS: u32 = CHUNK / 4u;  // vec4 elements of a staged row of dS
const ROW_STRIDE: u32 = CHUNK_VECS + 1u;  // one vec4 of padding keeps the rows in different banks
const QUERY_ROWS: u32 = 64u;  // queries of a block of intervals
const KEY_COLS: u32 = 64u;  // keys of a block of scores
override HEAD_DIM: u32;  // channels, a multiple of 4

// Where a tensor's rows lie, in numbers of 4 bytes: the first one, and how far apart batch entries, positions and heads are
struct Rows {
    offset: u32,
    batch: u32,
    row: u32,
    head: u32,
}

struct Call {
    k: Rows,
    d_q: Rows,
    q_len: u32,
    kv_len: u32,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    slot_first: u32,
    row_first: u32,
    strip_rows: u32,
    key_stride: u32,
    batch: u32,
    key_parts: u32,
    add_q: u32,
    d_q_part: u32,
    softcap: f32,
}

@group(0) @binding(0) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> row_terms: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(4) var<storage, read_write> d_q: array<vec4<f32>>;
@group(0) @binding(5) var<uniform> call: Call;

// Workgroup memory: 5120 + 4096 = 9216 bytes.
var<workgroup> ds_tile: array<vec4<f32>, 320>;
var<workgroup> k_tile: array<vec4<f32>, 256>;

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// exp(score − lse), and zero where the score or the exponential is not finite. (& instead of &&, since some drivers take
// minutes to compile many short-circuits.)
fn probability(score: f32, lse: f32) -> f32 {
    let p = exp(score - lse);
    return select(0.0, p, is_finite(score) & is_finite(p));
}

const UNSEEN: f32 = 4.0;  // in place of t where the query does not see the key

fn capped_probability(t: f32, bias: f32, lse: f32) -> f32 {
    return select(probability(call.softcap * t - bias, lse), 0.0, t == UNSEEN);
}

// dS_ij = scale·P_ij·(dP_ij − D_i)·(1 − t_ij²), and zero where the query does not see the key, even if D is NaN.
fn d_s(t: vec4<f32>, p: vec4<f32>, d_p: vec4<f32>, delta: f32) -> vec4<f32> {
    return select(call.scale * p * (d_p - delta) * ((1.0 - t) * (1.0 + t)), vec4<f32>(), t == vec4<f32>(UNSEEN));
}

// For rows that may belong to pairs that are not seen: there P and dS are zero, and zero times NaN would spoil the sum.
fn finite_or_zero(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

// The hull of a block of queries: least lo, greatest lo, least hi, greatest hi.
fn hull_of(batch: u32, block: u32) -> vec4<i32> {
    let at = call.batch * call.q_len + 2u * (batch * ((call.q_len + QUERY_ROWS - 1u) / QUERY_ROWS) + block);
    return vec4<i32>(intervals[at], intervals[at + 1u]);
}

// The first key of a block's scores: the hull's, rounded down to a block of keys.
fn base_of(hull: vec4<i32>) -> u32 {
    return u32(hull.x) / KEY_COLS * KEY_COLS;
}

fn k_start(batch: u32, head: u32) -> u32 {
    return (call.k.offset + batch * call.k.batch + head * call.k.head) / 4u;
}

fn read_k(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.kv_len || channel >= HEAD_DIM / 4u) {
        return vec4<f32>();
    }
    return k[start + position * (call.k.row / 4u) + channel];
}

fn d_q_row_at(part: u32, batch: u32, position: u32, head: u32) -> u32 {
    let first = call.d_q.offset + part * call.d_q_part + batch * call.d_q.batch;
    return (first + position * call.d_q.row + head * call.d_q.head) / 4u;
}

fn write_d_q(row: u32, channel: u32, x: vec4<f32>, add: bool) {
    if (channel >= HEAD_DIM / 4u) {
        return;
    }
    let at = row + channel;
    if (add) {
        d_q[at] = guard_result(d_q[at] + guard_result(x));
    } else {
        d_q[at] = guard_result(x);
    }
}

@compute @workgroup_size(128, 1, 1)
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
    let block_row = (workgroups.y - 1u - workgroup.y) * ROWS;  // the block's first row of the strip
    let first_row = strip_slot * call.strip_rows + block_row;  // over all the strip's slots
    let first_query = call.row_first + block_row;
    if (first_query >= call.q_len) {
        return;
    }
    let first_channel = workgroup.z * COL_VECS;
    let row = tid / COL_THREADS * ROW_REG;  // this thread's first query of the block
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

    // This part of the blocks of scores that the hull meets. Each of them was written whole.
    let base = base_of(hull);
    let seen = hull.x < hull.w;
    let first_block = select(0u, base / KEY_COLS, seen);
    let blocks = select(0u, (u32(hull.w) + KEY_COLS - 1u) / KEY_COLS - first_block, seen);
    let begin = (first_block + blocks * part / call.key_parts) * KEY_COLS;
    let end = (first_block + blocks * (part + 1u) / call.key_parts) * KEY_COLS;
    for (var first_key = begin; first_key < end; first_key += CHUNK) {
        let whole = i32(first_key) >= hull.y && i32(first_key + CHUNK) <= hull.z;
        workgroupBarrier();  // the chunk before has been read
        {
            let entry = tid;
            let strip_row = first_row + entry / CHUNK_VECS;
            let terms = row_terms[strip_row];
            let source = (strip_row * call.key_stride + first_key - base) / 2u + entry % CHUNK_VECS * 2u;
            let pairs = array(scores[source], scores[source + 1u]);  // (t, dP) of four keys
            let query = first_query + entry / CHUNK_VECS;
            let key = first_key + entry % CHUNK_VECS * 4u;
            let t = vec4<f32>(pairs[0].xz, pairs[1].xz);
            let distance = f32(i32(query + call.kv_len) - i32(call.q_len + key));
            let bias = terms.w * abs(distance - vec4<f32>(0.0, 1.0, 2.0, 3.0));
            let p = terms.x * vec4<f32>(
                capped_probability(t.x, bias.x, terms.z),
                capped_probability(t.y, bias.y, terms.z),
                capped_probability(t.z, bias.z, terms.z),
                capped_probability(t.w, bias.w, terms.z),
            );
            let ds = d_s(t, p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);
            ds_tile[entry / CHUNK_VECS * ROW_STRIDE + entry % CHUNK_VECS] = ds;
        }
        {
            let entry = tid + THREADS;
            let strip_row = first_row + entry / CHUNK_VECS;
            let terms = row_terms[strip_row];
            let source = (strip_row * call.key_stride + first_key - base) / 2u + entry % CHUNK_VECS * 2u;
            let pairs = array(scores[source], scores[source + 1u]);  // (t, dP) of four keys
            let query = first_query + entry / CHUNK_VECS;
            let key = first_key + entry % CHUNK_VECS * 4u;
            let t = vec4<f32>(pairs[0].xz, pairs[1].xz);
            let distance = f32(i32(query + call.kv_len) - i32(call.q_len + key));
            let bias = terms.w * abs(distance - vec4<f32>(0.0, 1.0, 2.0, 3.0));
            let p = terms.x * vec4<f32>(
                capped_probability(t.x, bias.x, terms.z),
                capped_probability(t.y, bias.y, terms.z),
                capped_probability(t.z, bias.z, terms.z),
                capped_probability(t.w, bias.w, terms.z),
            );
            let ds = d_s(t, p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);
            ds_tile[entry / CHUNK_VECS * ROW_STRIDE + entry % CHUNK_VECS] = ds;
        }
        {
            let entry = tid;
            let k_row = read_k(k_first, first_key + entry / COL_VECS, first_channel + entry % COL_VECS);
            if (whole) {
                k_tile[entry] = k_row;
            } else {
                k_tile[entry] = finite_or_zero(k_row);
            }
        }
        {
            let entry = tid + THREADS;
            let k_row = read_k(k_first, first_key + entry / COL_VECS, first_channel + entry % COL_VECS);
            if (whole) {
                k_tile[entry] = k_row;
            } else {
                k_tile[entry] = finite_or_zero(k_row);
            }
        }
        workgroupBarrier();  // the chunk is complete

        // dQ_i += dS_ij·K_j, four keys at a time
        for (var j = 0u; j < CHUNK_VECS; j++) {
            let k_0_0 = k_tile[col + j * 4u * COL_VECS];
            let k_1_0 = k_tile[col + (j * 4u + 1u) * COL_VECS];
            let k_2_0 = k_tile[col + (j * 4u + 2u) * COL_VECS];
            let k_3_0 = k_tile[col + (j * 4u + 3u) * COL_VECS];
            let ds_0 = ds_tile[row * ROW_STRIDE + j];
            dq_0_0 = fma(vec4<f32>(ds_0.x), k_0_0, dq_0_0);
            dq_0_0 = fma(vec4<f32>(ds_0.y), k_1_0, dq_0_0);
            dq_0_0 = fma(vec4<f32>(ds_0.z), k_2_0, dq_0_0);
            dq_0_0 = fma(vec4<f32>(ds_0.w), k_3_0, dq_0_0);
            let ds_1 = ds_tile[(row + 1u) * ROW_STRIDE + j];
            dq_1_0 = fma(vec4<f32>(ds_1.x), k_0_0, dq_1_0);
            dq_1_0 = fma(vec4<f32>(ds_1.y), k_1_0, dq_1_0);
            dq_1_0 = fma(vec4<f32>(ds_1.z), k_2_0, dq_1_0);
            dq_1_0 = fma(vec4<f32>(ds_1.w), k_3_0, dq_1_0);
            let ds_2 = ds_tile[(row + 2u) * ROW_STRIDE + j];
            dq_2_0 = fma(vec4<f32>(ds_2.x), k_0_0, dq_2_0);
            dq_2_0 = fma(vec4<f32>(ds_2.y), k_1_0, dq_2_0);
            dq_2_0 = fma(vec4<f32>(ds_2.z), k_2_0, dq_2_0);
            dq_2_0 = fma(vec4<f32>(ds_2.w), k_3_0, dq_2_0);
            let ds_3 = ds_tile[(row + 3u) * ROW_STRIDE + j];
            dq_3_0 = fma(vec4<f32>(ds_3.x), k_0_0, dq_3_0);
            dq_3_0 = fma(vec4<f32>(ds_3.y), k_1_0, dq_3_0);
            dq_3_0 = fma(vec4<f32>(ds_3.z), k_2_0, dq_3_0);
            dq_3_0 = fma(vec4<f32>(ds_3.w), k_3_0, dq_3_0);
            let ds_4 = ds_tile[(row + 4u) * ROW_STRIDE + j];
            dq_4_0 = fma(vec4<f32>(ds_4.x), k_0_0, dq_4_0);
            dq_4_0 = fma(vec4<f32>(ds_4.y), k_1_0, dq_4_0);
            dq_4_0 = fma(vec4<f32>(ds_4.z), k_2_0, dq_4_0);
            dq_4_0 = fma(vec4<f32>(ds_4.w), k_3_0, dq_4_0);
            let ds_5 = ds_tile[(row + 5u) * ROW_STRIDE + j];
            dq_5_0 = fma(vec4<f32>(ds_5.x), k_0_0, dq_5_0);
            dq_5_0 = fma(vec4<f32>(ds_5.y), k_1_0, dq_5_0);
            dq_5_0 = fma(vec4<f32>(ds_5.z), k_2_0, dq_5_0);
            dq_5_0 = fma(vec4<f32>(ds_5.w), k_3_0, dq_5_0);
            let ds_6 = ds_tile[(row + 6u) * ROW_STRIDE + j];
            dq_6_0 = fma(vec4<f32>(ds_6.x), k_0_0, dq_6_0);
            dq_6_0 = fma(vec4<f32>(ds_6.y), k_1_0, dq_6_0);
            dq_6_0 = fma(vec4<f32>(ds_6.z), k_2_0, dq_6_0);
            dq_6_0 = fma(vec4<f32>(ds_6.w), k_3_0, dq_6_0);
            let ds_7 = ds_tile[(row + 7u) * ROW_STRIDE + j];
            dq_7_0 = fma(vec4<f32>(ds_7.x), k_0_0, dq_7_0);
            dq_7_0 = fma(vec4<f32>(ds_7.y), k_1_0, dq_7_0);
            dq_7_0 = fma(vec4<f32>(ds_7.z), k_2_0, dq_7_0);
            dq_7_0 = fma(vec4<f32>(ds_7.w), k_3_0, dq_7_0);
        }
    }

    let query_0 = first_query + row;
    if (query_0 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_0, head);
        write_d_q(d_q_row, first_channel + col, dq_0_0, call.add_q != 0u);
    }
    let query_1 = first_query + row + 1u;
    if (query_1 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_1, head);
        write_d_q(d_q_row, first_channel + col, dq_1_0, call.add_q != 0u);
    }
    let query_2 = first_query + row + 2u;
    if (query_2 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_2, head);
        write_d_q(d_q_row, first_channel + col, dq_2_0, call.add_q != 0u);
    }
    let query_3 = first_query + row + 3u;
    if (query_3 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_3, head);
        write_d_q(d_q_row, first_channel + col, dq_3_0, call.add_q != 0u);
    }
    let query_4 = first_query + row + 4u;
    if (query_4 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_4, head);
        write_d_q(d_q_row, first_channel + col, dq_4_0, call.add_q != 0u);
    }
    let query_5 = first_query + row + 5u;
    if (query_5 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_5, head);
        write_d_q(d_q_row, first_channel + col, dq_5_0, call.add_q != 0u);
    }
    let query_6 = first_query + row + 6u;
    if (query_6 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_6, head);
        write_d_q(d_q_row, first_channel + col, dq_6_0, call.add_q != 0u);
    }
    let query_7 = first_query + row + 7u;
    if (query_7 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_7, head);
        write_d_q(d_q_row, first_channel + col, dq_7_0, call.add_q != 0u);
    }
}
