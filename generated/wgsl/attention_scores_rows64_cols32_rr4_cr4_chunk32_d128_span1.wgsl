// attention_scores_rows64_cols32_rr4_cr4_chunk32_d128_span1: P and dP of a strip of queries, and the sums of their rows.
//
//   S_ij = scale·Q_i·K_j
//   P_ij = exp(S_ij − LSE_i), 0 where query i does not see key j    dP_ij = dO_i·V_j    Σ_j P_ij    Σ_j P_ij·dP_ij
//
// One workgroup owns a block of 64 queries (wg.y) of one slot (wg.z), and loops over 1 block of 32 keys (wg.x) of those that its queries' hull meets.
// A thread holds 4 queries × 4 keys: p_<row>_<col>, acc_<row>_<col>. head_dim passes by 32 at a time.
// scores is [slot of the strip, row of the strip, key from the hull's first block on], (P, dP) of two keys to a vec4.

const ROWS: u32 = 64u;
const COLS: u32 = 32u;
const SPAN: u32 = 1u;
const THREADS: u32 = 128u;
const COL_THREADS: u32 = 8u;
const CHUNK: u32 = 8u;  // vec4 elements of head_dim at a time
const ROW_STRIDE: u32 = 9u;  // one vec4 of padding keeps the columns in different banks
const COL_TILE: u32 = 576u;  // where the keys' rows begin in tile
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
    spans: u32,
    batch: u32,
    q_offset: u32,
    q_batch: u32,
    q_row: u32,
    q_head: u32,
    k_offset: u32,
    k_batch: u32,
    k_row: u32,
    k_head: u32,
    v_offset: u32,
    v_batch: u32,
    v_row: u32,
    v_head: u32,
    d_o_offset: u32,
    d_o_batch: u32,
    d_o_row: u32,
    d_o_head: u32,
    lse_offset: u32,
    lse_batch: u32,
    lse_row: u32,
    lse_head: u32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> d_o: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(6) var<storage, read_write> scores: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> row_sums: array<vec2<f32>>;
@group(0) @binding(8) var<uniform> call: Call;

// Workgroup memory: 13824 = 13824 bytes.
var<workgroup> tile: array<vec4<f32>, 864>;

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// exp(score − lse); a score that is not finite, or a probability that is not, counts as nothing. (& and not &&: some drivers
// take minutes to compile many short-circuits.)
fn probability(score: f32, lse: f32) -> f32 {
    let p = exp(score - lse);
    return select(0.0, p, is_finite(score) & is_finite(p));
}

// The block's even keys are staged before its odd ones: a thread then holds pairs of neighbours, and stores four numbers at once.
fn key_of(slot: u32) -> u32 {
    return slot % 16u * 2u + slot / 16u;
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

fn q_start(batch: u32, head: u32) -> u32 {
    return (call.q_offset + batch * call.q_batch + head * call.q_head) / 4u;
}

fn read_q(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len) {
        return vec4<f32>();
    }
    return q[start + position * (call.q_row / 4u) + channel];
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

fn v_start(batch: u32, head: u32) -> u32 {
    return (call.v_offset + batch * call.v_batch + head * call.v_head) / 4u;
}

fn read_v(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.kv_len) {
        return vec4<f32>();
    }
    return v[start + position * (call.v_row / 4u) + channel];
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

@compute @workgroup_size(128, 1, 1)
fn attention_scores(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let slot = call.slot_first + workgroup.z;
    let batch = slot / call.heads;
    let head = slot % call.heads;
    let kv_head = head / (call.heads / call.kv_heads);
    let first_query = call.row_first + workgroup.y * ROWS;
    if (first_query >= call.q_len) {
        return;
    }
    let hull = hull_of(batch, first_query / ROWS);
    let row = tid / COL_THREADS * 4u;  // this thread's first row of the block
    let col = tid % COL_THREADS;  // its columns are the pairs of keys col, col + COL_THREADS, …: the even keys first, then the odd
    let strip_row = workgroup.z * call.strip_rows + workgroup.y * ROWS + row;
    let q_first = q_start(batch, head);
    let k_first = k_start(batch, kv_head);
    let v_first = v_start(batch, kv_head);
    let d_o_first = d_o_start(batch, head);

    let query_0 = min(first_query + row + 0u, call.q_len - 1u);
    let lse_0 = lse[call.lse_offset + batch * call.lse_batch + query_0 * call.lse_row + head * call.lse_head];
    var sum_0 = vec2<f32>();
    let query_1 = min(first_query + row + 1u, call.q_len - 1u);
    let lse_1 = lse[call.lse_offset + batch * call.lse_batch + query_1 * call.lse_row + head * call.lse_head];
    var sum_1 = vec2<f32>();
    let query_2 = min(first_query + row + 2u, call.q_len - 1u);
    let lse_2 = lse[call.lse_offset + batch * call.lse_batch + query_2 * call.lse_row + head * call.lse_head];
    var sum_2 = vec2<f32>();
    let query_3 = min(first_query + row + 3u, call.q_len - 1u);
    let lse_3 = lse[call.lse_offset + batch * call.lse_batch + query_3 * call.lse_row + head * call.lse_head];
    var sum_3 = vec2<f32>();
    var acc_0_0: f32;
    var acc_0_1: f32;
    var acc_0_2: f32;
    var acc_0_3: f32;
    var acc_1_0: f32;
    var acc_1_1: f32;
    var acc_1_2: f32;
    var acc_1_3: f32;
    var acc_2_0: f32;
    var acc_2_1: f32;
    var acc_2_2: f32;
    var acc_2_3: f32;
    var acc_3_0: f32;
    var acc_3_1: f32;
    var acc_3_2: f32;
    var acc_3_3: f32;

    // The blocks of this span that the hull meets
    let base = base_of(hull);
    let begin = base + workgroup.x * SPAN * COLS;
    let end = min(begin + SPAN * COLS, u32(hull.w));
    if (hull.x >= hull.w || begin >= end) {
        return;
    }
    for (var first_key = begin; first_key < end; first_key += COLS) {
        // S_ij = Q_i·K_j
        acc_0_0 = 0.0;
        acc_0_1 = 0.0;
        acc_0_2 = 0.0;
        acc_0_3 = 0.0;
        acc_1_0 = 0.0;
        acc_1_1 = 0.0;
        acc_1_2 = 0.0;
        acc_1_3 = 0.0;
        acc_2_0 = 0.0;
        acc_2_1 = 0.0;
        acc_2_2 = 0.0;
        acc_2_3 = 0.0;
        acc_3_0 = 0.0;
        acc_3_1 = 0.0;
        acc_3_2 = 0.0;
        acc_3_3 = 0.0;
        for (var channel = 0u; channel < HEAD_DIM; channel += CHUNK) {
            workgroupBarrier();  // the chunk before has been read
            {
                let entry = tid + 0u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_q(q_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }
            {
                let entry = tid + 128u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_q(q_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }
            {
                let entry = tid + 256u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_q(q_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }
            {
                let entry = tid + 384u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_q(q_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }

            {
                let entry = tid + 0u;
                tile[COL_TILE + entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_k(k_first, first_key + key_of(entry / CHUNK), channel + entry % CHUNK);
            }
            {
                let entry = tid + 128u;
                tile[COL_TILE + entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_k(k_first, first_key + key_of(entry / CHUNK), channel + entry % CHUNK);
            }

            workgroupBarrier();  // the chunk is complete
            for (var c = 0u; c < CHUNK; c++) {
                let b_0 = tile[COL_TILE + (col + 0u * COL_THREADS) * ROW_STRIDE + c];
                let b_1 = tile[COL_TILE + (col + 1u * COL_THREADS) * ROW_STRIDE + c];
                let b_2 = tile[COL_TILE + (col + 2u * COL_THREADS) * ROW_STRIDE + c];
                let b_3 = tile[COL_TILE + (col + 3u * COL_THREADS) * ROW_STRIDE + c];
                let a_0 = tile[(row + 0u) * ROW_STRIDE + c];
                acc_0_0 = fma(a_0.x, b_0.x, fma(a_0.y, b_0.y, fma(a_0.z, b_0.z, fma(a_0.w, b_0.w, acc_0_0))));
                acc_0_1 = fma(a_0.x, b_1.x, fma(a_0.y, b_1.y, fma(a_0.z, b_1.z, fma(a_0.w, b_1.w, acc_0_1))));
                acc_0_2 = fma(a_0.x, b_2.x, fma(a_0.y, b_2.y, fma(a_0.z, b_2.z, fma(a_0.w, b_2.w, acc_0_2))));
                acc_0_3 = fma(a_0.x, b_3.x, fma(a_0.y, b_3.y, fma(a_0.z, b_3.z, fma(a_0.w, b_3.w, acc_0_3))));
                let a_1 = tile[(row + 1u) * ROW_STRIDE + c];
                acc_1_0 = fma(a_1.x, b_0.x, fma(a_1.y, b_0.y, fma(a_1.z, b_0.z, fma(a_1.w, b_0.w, acc_1_0))));
                acc_1_1 = fma(a_1.x, b_1.x, fma(a_1.y, b_1.y, fma(a_1.z, b_1.z, fma(a_1.w, b_1.w, acc_1_1))));
                acc_1_2 = fma(a_1.x, b_2.x, fma(a_1.y, b_2.y, fma(a_1.z, b_2.z, fma(a_1.w, b_2.w, acc_1_2))));
                acc_1_3 = fma(a_1.x, b_3.x, fma(a_1.y, b_3.y, fma(a_1.z, b_3.z, fma(a_1.w, b_3.w, acc_1_3))));
                let a_2 = tile[(row + 2u) * ROW_STRIDE + c];
                acc_2_0 = fma(a_2.x, b_0.x, fma(a_2.y, b_0.y, fma(a_2.z, b_0.z, fma(a_2.w, b_0.w, acc_2_0))));
                acc_2_1 = fma(a_2.x, b_1.x, fma(a_2.y, b_1.y, fma(a_2.z, b_1.z, fma(a_2.w, b_1.w, acc_2_1))));
                acc_2_2 = fma(a_2.x, b_2.x, fma(a_2.y, b_2.y, fma(a_2.z, b_2.z, fma(a_2.w, b_2.w, acc_2_2))));
                acc_2_3 = fma(a_2.x, b_3.x, fma(a_2.y, b_3.y, fma(a_2.z, b_3.z, fma(a_2.w, b_3.w, acc_2_3))));
                let a_3 = tile[(row + 3u) * ROW_STRIDE + c];
                acc_3_0 = fma(a_3.x, b_0.x, fma(a_3.y, b_0.y, fma(a_3.z, b_0.z, fma(a_3.w, b_0.w, acc_3_0))));
                acc_3_1 = fma(a_3.x, b_1.x, fma(a_3.y, b_1.y, fma(a_3.z, b_1.z, fma(a_3.w, b_1.w, acc_3_1))));
                acc_3_2 = fma(a_3.x, b_2.x, fma(a_3.y, b_2.y, fma(a_3.z, b_2.z, fma(a_3.w, b_2.w, acc_3_2))));
                acc_3_3 = fma(a_3.x, b_3.x, fma(a_3.y, b_3.y, fma(a_3.z, b_3.z, fma(a_3.w, b_3.w, acc_3_3))));
            }
        }

        // P_ij = exp(S_ij − LSE_i)
        var p_0_0 = probability(acc_0_0 * call.scale, lse_0);
        var p_0_1 = probability(acc_0_1 * call.scale, lse_0);
        var p_0_2 = probability(acc_0_2 * call.scale, lse_0);
        var p_0_3 = probability(acc_0_3 * call.scale, lse_0);
        var p_1_0 = probability(acc_1_0 * call.scale, lse_1);
        var p_1_1 = probability(acc_1_1 * call.scale, lse_1);
        var p_1_2 = probability(acc_1_2 * call.scale, lse_1);
        var p_1_3 = probability(acc_1_3 * call.scale, lse_1);
        var p_2_0 = probability(acc_2_0 * call.scale, lse_2);
        var p_2_1 = probability(acc_2_1 * call.scale, lse_2);
        var p_2_2 = probability(acc_2_2 * call.scale, lse_2);
        var p_2_3 = probability(acc_2_3 * call.scale, lse_2);
        var p_3_0 = probability(acc_3_0 * call.scale, lse_3);
        var p_3_1 = probability(acc_3_1 * call.scale, lse_3);
        var p_3_2 = probability(acc_3_2 * call.scale, lse_3);
        var p_3_3 = probability(acc_3_3 * call.scale, lse_3);

        // dP_ij = dO_i·V_j
        acc_0_0 = 0.0;
        acc_0_1 = 0.0;
        acc_0_2 = 0.0;
        acc_0_3 = 0.0;
        acc_1_0 = 0.0;
        acc_1_1 = 0.0;
        acc_1_2 = 0.0;
        acc_1_3 = 0.0;
        acc_2_0 = 0.0;
        acc_2_1 = 0.0;
        acc_2_2 = 0.0;
        acc_2_3 = 0.0;
        acc_3_0 = 0.0;
        acc_3_1 = 0.0;
        acc_3_2 = 0.0;
        acc_3_3 = 0.0;
        for (var channel = 0u; channel < V_HEAD_DIM; channel += CHUNK) {
            workgroupBarrier();  // the chunk before has been read
            {
                let entry = tid + 0u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_d_o(d_o_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }
            {
                let entry = tid + 128u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_d_o(d_o_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }
            {
                let entry = tid + 256u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_d_o(d_o_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }
            {
                let entry = tid + 384u;
                tile[entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_d_o(d_o_first, first_query + entry / CHUNK, channel + entry % CHUNK);
            }

            {
                let entry = tid + 0u;
                tile[COL_TILE + entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_v(v_first, first_key + key_of(entry / CHUNK), channel + entry % CHUNK);
            }
            {
                let entry = tid + 128u;
                tile[COL_TILE + entry / CHUNK * ROW_STRIDE + entry % CHUNK] = read_v(v_first, first_key + key_of(entry / CHUNK), channel + entry % CHUNK);
            }

            workgroupBarrier();  // the chunk is complete
            for (var c = 0u; c < CHUNK; c++) {
                let b_0 = tile[COL_TILE + (col + 0u * COL_THREADS) * ROW_STRIDE + c];
                let b_1 = tile[COL_TILE + (col + 1u * COL_THREADS) * ROW_STRIDE + c];
                let b_2 = tile[COL_TILE + (col + 2u * COL_THREADS) * ROW_STRIDE + c];
                let b_3 = tile[COL_TILE + (col + 3u * COL_THREADS) * ROW_STRIDE + c];
                let a_0 = tile[(row + 0u) * ROW_STRIDE + c];
                acc_0_0 = fma(a_0.x, b_0.x, fma(a_0.y, b_0.y, fma(a_0.z, b_0.z, fma(a_0.w, b_0.w, acc_0_0))));
                acc_0_1 = fma(a_0.x, b_1.x, fma(a_0.y, b_1.y, fma(a_0.z, b_1.z, fma(a_0.w, b_1.w, acc_0_1))));
                acc_0_2 = fma(a_0.x, b_2.x, fma(a_0.y, b_2.y, fma(a_0.z, b_2.z, fma(a_0.w, b_2.w, acc_0_2))));
                acc_0_3 = fma(a_0.x, b_3.x, fma(a_0.y, b_3.y, fma(a_0.z, b_3.z, fma(a_0.w, b_3.w, acc_0_3))));
                let a_1 = tile[(row + 1u) * ROW_STRIDE + c];
                acc_1_0 = fma(a_1.x, b_0.x, fma(a_1.y, b_0.y, fma(a_1.z, b_0.z, fma(a_1.w, b_0.w, acc_1_0))));
                acc_1_1 = fma(a_1.x, b_1.x, fma(a_1.y, b_1.y, fma(a_1.z, b_1.z, fma(a_1.w, b_1.w, acc_1_1))));
                acc_1_2 = fma(a_1.x, b_2.x, fma(a_1.y, b_2.y, fma(a_1.z, b_2.z, fma(a_1.w, b_2.w, acc_1_2))));
                acc_1_3 = fma(a_1.x, b_3.x, fma(a_1.y, b_3.y, fma(a_1.z, b_3.z, fma(a_1.w, b_3.w, acc_1_3))));
                let a_2 = tile[(row + 2u) * ROW_STRIDE + c];
                acc_2_0 = fma(a_2.x, b_0.x, fma(a_2.y, b_0.y, fma(a_2.z, b_0.z, fma(a_2.w, b_0.w, acc_2_0))));
                acc_2_1 = fma(a_2.x, b_1.x, fma(a_2.y, b_1.y, fma(a_2.z, b_1.z, fma(a_2.w, b_1.w, acc_2_1))));
                acc_2_2 = fma(a_2.x, b_2.x, fma(a_2.y, b_2.y, fma(a_2.z, b_2.z, fma(a_2.w, b_2.w, acc_2_2))));
                acc_2_3 = fma(a_2.x, b_3.x, fma(a_2.y, b_3.y, fma(a_2.z, b_3.z, fma(a_2.w, b_3.w, acc_2_3))));
                let a_3 = tile[(row + 3u) * ROW_STRIDE + c];
                acc_3_0 = fma(a_3.x, b_0.x, fma(a_3.y, b_0.y, fma(a_3.z, b_0.z, fma(a_3.w, b_0.w, acc_3_0))));
                acc_3_1 = fma(a_3.x, b_1.x, fma(a_3.y, b_1.y, fma(a_3.z, b_1.z, fma(a_3.w, b_1.w, acc_3_1))));
                acc_3_2 = fma(a_3.x, b_2.x, fma(a_3.y, b_2.y, fma(a_3.z, b_2.z, fma(a_3.w, b_2.w, acc_3_2))));
                acc_3_3 = fma(a_3.x, b_3.x, fma(a_3.y, b_3.y, fma(a_3.z, b_3.z, fma(a_3.w, b_3.w, acc_3_3))));
            }
        }

        // A block that is wholly visible needs no comparison.
        if (i32(first_key) < hull.y || i32(first_key + COLS) > hull.z) {
            {
                let position = first_query + row + 0u;
                let seen = select(vec2<i32>(), intervals[batch * call.q_len + query_0], position < call.q_len);
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_0_0 = select(0.0, p_0_0, visible);
                    acc_0_0 = select(0.0, acc_0_0, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_0_1 = select(0.0, p_0_1, visible);
                    acc_0_1 = select(0.0, acc_0_1, visible);
                }
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_0_2 = select(0.0, p_0_2, visible);
                    acc_0_2 = select(0.0, acc_0_2, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_0_3 = select(0.0, p_0_3, visible);
                    acc_0_3 = select(0.0, acc_0_3, visible);
                }
            }
            {
                let position = first_query + row + 1u;
                let seen = select(vec2<i32>(), intervals[batch * call.q_len + query_1], position < call.q_len);
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_1_0 = select(0.0, p_1_0, visible);
                    acc_1_0 = select(0.0, acc_1_0, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_1_1 = select(0.0, p_1_1, visible);
                    acc_1_1 = select(0.0, acc_1_1, visible);
                }
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_1_2 = select(0.0, p_1_2, visible);
                    acc_1_2 = select(0.0, acc_1_2, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_1_3 = select(0.0, p_1_3, visible);
                    acc_1_3 = select(0.0, acc_1_3, visible);
                }
            }
            {
                let position = first_query + row + 2u;
                let seen = select(vec2<i32>(), intervals[batch * call.q_len + query_2], position < call.q_len);
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_2_0 = select(0.0, p_2_0, visible);
                    acc_2_0 = select(0.0, acc_2_0, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_2_1 = select(0.0, p_2_1, visible);
                    acc_2_1 = select(0.0, acc_2_1, visible);
                }
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_2_2 = select(0.0, p_2_2, visible);
                    acc_2_2 = select(0.0, acc_2_2, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_2_3 = select(0.0, p_2_3, visible);
                    acc_2_3 = select(0.0, acc_2_3, visible);
                }
            }
            {
                let position = first_query + row + 3u;
                let seen = select(vec2<i32>(), intervals[batch * call.q_len + query_3], position < call.q_len);
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_3_0 = select(0.0, p_3_0, visible);
                    acc_3_0 = select(0.0, acc_3_0, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 0u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_3_1 = select(0.0, p_3_1, visible);
                    acc_3_1 = select(0.0, acc_3_1, visible);
                }
                {
                    let key = i32(first_key + (col + 0u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_3_2 = select(0.0, p_3_2, visible);
                    acc_3_2 = select(0.0, acc_3_2, visible);
                }
                {
                    let key = i32(first_key + (col + 1u * COL_THREADS) * 2u + 1u);
                    let visible = (key >= seen.x) & (key < seen.y);
                    p_3_3 = select(0.0, p_3_3, visible);
                    acc_3_3 = select(0.0, acc_3_3, visible);
                }
            }
        }
        {
            let at = ((strip_row + 0u) * call.key_stride + first_key - base) / 2u + col;
            scores[at + 0u * COL_THREADS] = vec4<f32>(p_0_0, acc_0_0, p_0_2, acc_0_2);
            scores[at + 1u * COL_THREADS] = vec4<f32>(p_0_1, acc_0_1, p_0_3, acc_0_3);
            sum_0 = vec2<f32>(sum_0.x + p_0_0, fma(p_0_0, acc_0_0, sum_0.y));
            sum_0 = vec2<f32>(sum_0.x + p_0_1, fma(p_0_1, acc_0_1, sum_0.y));
            sum_0 = vec2<f32>(sum_0.x + p_0_2, fma(p_0_2, acc_0_2, sum_0.y));
            sum_0 = vec2<f32>(sum_0.x + p_0_3, fma(p_0_3, acc_0_3, sum_0.y));
        }
        {
            let at = ((strip_row + 1u) * call.key_stride + first_key - base) / 2u + col;
            scores[at + 0u * COL_THREADS] = vec4<f32>(p_1_0, acc_1_0, p_1_2, acc_1_2);
            scores[at + 1u * COL_THREADS] = vec4<f32>(p_1_1, acc_1_1, p_1_3, acc_1_3);
            sum_1 = vec2<f32>(sum_1.x + p_1_0, fma(p_1_0, acc_1_0, sum_1.y));
            sum_1 = vec2<f32>(sum_1.x + p_1_1, fma(p_1_1, acc_1_1, sum_1.y));
            sum_1 = vec2<f32>(sum_1.x + p_1_2, fma(p_1_2, acc_1_2, sum_1.y));
            sum_1 = vec2<f32>(sum_1.x + p_1_3, fma(p_1_3, acc_1_3, sum_1.y));
        }
        {
            let at = ((strip_row + 2u) * call.key_stride + first_key - base) / 2u + col;
            scores[at + 0u * COL_THREADS] = vec4<f32>(p_2_0, acc_2_0, p_2_2, acc_2_2);
            scores[at + 1u * COL_THREADS] = vec4<f32>(p_2_1, acc_2_1, p_2_3, acc_2_3);
            sum_2 = vec2<f32>(sum_2.x + p_2_0, fma(p_2_0, acc_2_0, sum_2.y));
            sum_2 = vec2<f32>(sum_2.x + p_2_1, fma(p_2_1, acc_2_1, sum_2.y));
            sum_2 = vec2<f32>(sum_2.x + p_2_2, fma(p_2_2, acc_2_2, sum_2.y));
            sum_2 = vec2<f32>(sum_2.x + p_2_3, fma(p_2_3, acc_2_3, sum_2.y));
        }
        {
            let at = ((strip_row + 3u) * call.key_stride + first_key - base) / 2u + col;
            scores[at + 0u * COL_THREADS] = vec4<f32>(p_3_0, acc_3_0, p_3_2, acc_3_2);
            scores[at + 1u * COL_THREADS] = vec4<f32>(p_3_1, acc_3_1, p_3_3, acc_3_3);
            sum_3 = vec2<f32>(sum_3.x + p_3_0, fma(p_3_0, acc_3_0, sum_3.y));
            sum_3 = vec2<f32>(sum_3.x + p_3_1, fma(p_3_1, acc_3_1, sum_3.y));
            sum_3 = vec2<f32>(sum_3.x + p_3_2, fma(p_3_2, acc_3_2, sum_3.y));
            sum_3 = vec2<f32>(sum_3.x + p_3_3, fma(p_3_3, acc_3_3, sum_3.y));
        }
    }

    // The rows' sums over this span: two rows to a vec4, one column of them for each thread of a row. Equal terms are rounded
    // alike, so in one chain of additions Σ P and Σ P·dP would be off by more than their terms are.
    workgroupBarrier();  // the last chunk has been read
    tile[(row / 2u + 0u) * COL_THREADS + col] = vec4<f32>(sum_0, sum_1);
    tile[(row / 2u + 1u) * COL_THREADS + col] = vec4<f32>(sum_2, sum_3);
    workgroupBarrier();  // every thread's sums are there
    for (var pair = tid; pair < ROWS / 2u; pair += THREADS) {
        var total = vec4<f32>();
        for (var i = pair * COL_THREADS; i < (pair + 1u) * COL_THREADS; i += 8u) {
            total += ((tile[i] + tile[i + 1u]) + (tile[i + 2u] + tile[i + 3u])) + ((tile[i + 4u] + tile[i + 5u]) + (tile[i + 6u] + tile[i + 7u]));
        }
        let at = (workgroup.z * call.strip_rows + workgroup.y * ROWS + pair * 2u) * call.spans + workgroup.x;
        row_sums[at] = total.xy;
        row_sums[at + call.spans] = total.zw;
    }
}
