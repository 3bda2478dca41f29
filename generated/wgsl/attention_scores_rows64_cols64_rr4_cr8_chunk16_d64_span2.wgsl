// attention_scores_rows64_cols64_rr4_cr8_chunk16_d64_span2
//
// P and dP of a strip of queries, and the sums of their rows.
//
//   S_ij = scale·Q_i·K_j
//   P_ij = exp(S_ij − LSE_i), 0 where query i does not see key j    dP_ij = dO_i·V_j    Σ_j P_ij    Σ_j P_ij·dP_ij
//
// One workgroup owns block wg.y of ROWS queries in slot wg.z, and span wg.x of the keys in their hull: 2 blocks of COLS keys.
// A thread holds 4 queries × 8 keys: s_<row>_<col>, p_<row>_<col>, dp_<row>_<col>. A chunk of head_dim is staged at a time.
// scores is [slot of the strip, row of the strip, key from the hull's first block on], (P, dP) of two keys to a vec4.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 64u;
const COLS: u32 = 64u;
const ROW_REG: u32 = 4u;
const SPAN: u32 = 2u;
const THREADS: u32 = 128u;
const COL_THREADS: u32 = 8u;  // threads that share a row
const CHUNK: u32 = 4u;  // vec4 elements of head_dim
const ROW_STRIDE: u32 = CHUNK + 1u;  // one vec4 of padding keeps the columns in different banks
const COL_TILE: u32 = ROWS * ROW_STRIDE;  // where the keys' rows begin in tile
const HEAD_DIM: u32 = 16u;  // vec4 elements
const V_HEAD_DIM: u32 = 16u;  // vec4 elements

// Where a tensor's rows lie, in numbers of 4 bytes: the first one, and how far apart batch entries, positions and heads are
struct Rows {
    offset: u32,
    batch: u32,
    row: u32,
    head: u32,
}

struct Call {
    q: Rows,
    k: Rows,
    v: Rows,
    d_o: Rows,
    lse: Rows,
    q_len: u32,
    kv_len: u32,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    slot_first: u32,
    row_first: u32,
    strip_rows: u32,
    key_stride: u32,
    spans: u32,
    batch: u32,
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

// Workgroup memory: 10240 bytes.
var<workgroup> tile: array<vec4<f32>, 640>;

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// exp(score − lse), and zero where the score or the exponential is not finite. (& instead of &&, since some drivers take
// minutes to compile many short-circuits.)
fn probability(score: f32, lse: f32) -> f32 {
    let p = exp(score - lse);
    return select(0.0, p, is_finite(score) & is_finite(p));
}

// The hull of a block of queries: least lo, greatest lo, least hi, greatest hi.
fn hull_of(batch: u32, block: u32) -> vec4<i32> {
    let at = call.batch * call.q_len + 2u * (batch * ((call.q_len + ROWS - 1u) / ROWS) + block);
    return vec4<i32>(intervals[at], intervals[at + 1u]);
}

// The first key of a block's scores: the hull's, rounded down to a block of keys.
fn base_of(hull: vec4<i32>) -> u32 {
    return u32(hull.x) / COLS * COLS;
}

fn q_start(batch: u32, head: u32) -> u32 {
    return (call.q.offset + batch * call.q.batch + head * call.q.head) / 4u;
}

fn read_q(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len) {
        return vec4<f32>();
    }
    return q[start + position * (call.q.row / 4u) + channel];
}

fn k_start(batch: u32, head: u32) -> u32 {
    return (call.k.offset + batch * call.k.batch + head * call.k.head) / 4u;
}

fn read_k(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.kv_len) {
        return vec4<f32>();
    }
    return k[start + position * (call.k.row / 4u) + channel];
}

fn v_start(batch: u32, head: u32) -> u32 {
    return (call.v.offset + batch * call.v.batch + head * call.v.head) / 4u;
}

fn read_v(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.kv_len) {
        return vec4<f32>();
    }
    return v[start + position * (call.v.row / 4u) + channel];
}

fn d_o_start(batch: u32, head: u32) -> u32 {
    return (call.d_o.offset + batch * call.d_o.batch + head * call.d_o.head) / 4u;
}

fn read_d_o(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len) {
        return vec4<f32>();
    }
    return d_o[start + position * (call.d_o.row / 4u) + channel];
}

// The block's even keys are staged before its odd keys: a thread then holds pairs of neighbours, and stores four numbers at once.
fn key_of(row: u32) -> u32 {
    return row % (COLS / 2u) * 2u + row / (COLS / 2u);
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

    // The keys of this span that the hull meets
    let hull = hull_of(batch, first_query / ROWS);
    let base = base_of(hull);
    let begin = base + workgroup.x * SPAN * COLS;
    let end = min(begin + SPAN * COLS, u32(hull.w));
    if (hull.x >= hull.w || begin >= end) {
        return;
    }

    let row = tid / COL_THREADS * ROW_REG;  // this thread's first row of the block
    let col = tid % COL_THREADS;  // its columns are the pairs of keys col, col + COL_THREADS, …: the even keys first, then the odd
    let strip_row = workgroup.z * call.strip_rows + workgroup.y * ROWS + row;
    let q_first = q_start(batch, head);
    let k_first = k_start(batch, kv_head);
    let v_first = v_start(batch, kv_head);
    let d_o_first = d_o_start(batch, head);

    // This thread's rows: the lse, and Σ P and Σ P·dP over its columns
    let query_0 = min(first_query + row, call.q_len - 1u);
    let lse_0 = lse[call.lse.offset + batch * call.lse.batch + query_0 * call.lse.row + head * call.lse.head];
    var sum_0 = vec2<f32>();
    let query_1 = min(first_query + row + 1u, call.q_len - 1u);
    let lse_1 = lse[call.lse.offset + batch * call.lse.batch + query_1 * call.lse.row + head * call.lse.head];
    var sum_1 = vec2<f32>();
    let query_2 = min(first_query + row + 2u, call.q_len - 1u);
    let lse_2 = lse[call.lse.offset + batch * call.lse.batch + query_2 * call.lse.row + head * call.lse.head];
    var sum_2 = vec2<f32>();
    let query_3 = min(first_query + row + 3u, call.q_len - 1u);
    let lse_3 = lse[call.lse.offset + batch * call.lse.batch + query_3 * call.lse.row + head * call.lse.head];
    var sum_3 = vec2<f32>();

    for (var first_key = begin; first_key < end; first_key += COLS) {
        // S_ij = Q_i·K_j
        var s_0_0 = 0.0;
        var s_0_1 = 0.0;
        var s_0_2 = 0.0;
        var s_0_3 = 0.0;
        var s_0_4 = 0.0;
        var s_0_5 = 0.0;
        var s_0_6 = 0.0;
        var s_0_7 = 0.0;
        var s_1_0 = 0.0;
        var s_1_1 = 0.0;
        var s_1_2 = 0.0;
        var s_1_3 = 0.0;
        var s_1_4 = 0.0;
        var s_1_5 = 0.0;
        var s_1_6 = 0.0;
        var s_1_7 = 0.0;
        var s_2_0 = 0.0;
        var s_2_1 = 0.0;
        var s_2_2 = 0.0;
        var s_2_3 = 0.0;
        var s_2_4 = 0.0;
        var s_2_5 = 0.0;
        var s_2_6 = 0.0;
        var s_2_7 = 0.0;
        var s_3_0 = 0.0;
        var s_3_1 = 0.0;
        var s_3_2 = 0.0;
        var s_3_3 = 0.0;
        var s_3_4 = 0.0;
        var s_3_5 = 0.0;
        var s_3_6 = 0.0;
        var s_3_7 = 0.0;
        for (var channel = 0u; channel < HEAD_DIM; channel += CHUNK) {
            workgroupBarrier();  // the chunk before has been read
            {
                let entry = tid;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[row * ROW_STRIDE + c] = read_q(q_first, first_query + row, channel + c);
            }
            {
                let entry = tid + THREADS;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[row * ROW_STRIDE + c] = read_q(q_first, first_query + row, channel + c);
            }
            {
                let entry = tid;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[COL_TILE + row * ROW_STRIDE + c] = read_k(k_first, first_key + key_of(row), channel + c);
            }
            {
                let entry = tid + THREADS;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[COL_TILE + row * ROW_STRIDE + c] = read_k(k_first, first_key + key_of(row), channel + c);
            }
            workgroupBarrier();  // the chunk is complete
            for (var c = 0u; c < CHUNK; c++) {
                let b_0 = tile[COL_TILE + col * ROW_STRIDE + c];
                let b_1 = tile[COL_TILE + (col + COL_THREADS) * ROW_STRIDE + c];
                let b_2 = tile[COL_TILE + (col + 2u * COL_THREADS) * ROW_STRIDE + c];
                let b_3 = tile[COL_TILE + (col + 3u * COL_THREADS) * ROW_STRIDE + c];
                let b_4 = tile[COL_TILE + (col + 4u * COL_THREADS) * ROW_STRIDE + c];
                let b_5 = tile[COL_TILE + (col + 5u * COL_THREADS) * ROW_STRIDE + c];
                let b_6 = tile[COL_TILE + (col + 6u * COL_THREADS) * ROW_STRIDE + c];
                let b_7 = tile[COL_TILE + (col + 7u * COL_THREADS) * ROW_STRIDE + c];
                let a_0 = tile[row * ROW_STRIDE + c];
                s_0_0 = fma(a_0.x, b_0.x, fma(a_0.y, b_0.y, fma(a_0.z, b_0.z, fma(a_0.w, b_0.w, s_0_0))));
                s_0_1 = fma(a_0.x, b_1.x, fma(a_0.y, b_1.y, fma(a_0.z, b_1.z, fma(a_0.w, b_1.w, s_0_1))));
                s_0_2 = fma(a_0.x, b_2.x, fma(a_0.y, b_2.y, fma(a_0.z, b_2.z, fma(a_0.w, b_2.w, s_0_2))));
                s_0_3 = fma(a_0.x, b_3.x, fma(a_0.y, b_3.y, fma(a_0.z, b_3.z, fma(a_0.w, b_3.w, s_0_3))));
                s_0_4 = fma(a_0.x, b_4.x, fma(a_0.y, b_4.y, fma(a_0.z, b_4.z, fma(a_0.w, b_4.w, s_0_4))));
                s_0_5 = fma(a_0.x, b_5.x, fma(a_0.y, b_5.y, fma(a_0.z, b_5.z, fma(a_0.w, b_5.w, s_0_5))));
                s_0_6 = fma(a_0.x, b_6.x, fma(a_0.y, b_6.y, fma(a_0.z, b_6.z, fma(a_0.w, b_6.w, s_0_6))));
                s_0_7 = fma(a_0.x, b_7.x, fma(a_0.y, b_7.y, fma(a_0.z, b_7.z, fma(a_0.w, b_7.w, s_0_7))));
                let a_1 = tile[(row + 1u) * ROW_STRIDE + c];
                s_1_0 = fma(a_1.x, b_0.x, fma(a_1.y, b_0.y, fma(a_1.z, b_0.z, fma(a_1.w, b_0.w, s_1_0))));
                s_1_1 = fma(a_1.x, b_1.x, fma(a_1.y, b_1.y, fma(a_1.z, b_1.z, fma(a_1.w, b_1.w, s_1_1))));
                s_1_2 = fma(a_1.x, b_2.x, fma(a_1.y, b_2.y, fma(a_1.z, b_2.z, fma(a_1.w, b_2.w, s_1_2))));
                s_1_3 = fma(a_1.x, b_3.x, fma(a_1.y, b_3.y, fma(a_1.z, b_3.z, fma(a_1.w, b_3.w, s_1_3))));
                s_1_4 = fma(a_1.x, b_4.x, fma(a_1.y, b_4.y, fma(a_1.z, b_4.z, fma(a_1.w, b_4.w, s_1_4))));
                s_1_5 = fma(a_1.x, b_5.x, fma(a_1.y, b_5.y, fma(a_1.z, b_5.z, fma(a_1.w, b_5.w, s_1_5))));
                s_1_6 = fma(a_1.x, b_6.x, fma(a_1.y, b_6.y, fma(a_1.z, b_6.z, fma(a_1.w, b_6.w, s_1_6))));
                s_1_7 = fma(a_1.x, b_7.x, fma(a_1.y, b_7.y, fma(a_1.z, b_7.z, fma(a_1.w, b_7.w, s_1_7))));
                let a_2 = tile[(row + 2u) * ROW_STRIDE + c];
                s_2_0 = fma(a_2.x, b_0.x, fma(a_2.y, b_0.y, fma(a_2.z, b_0.z, fma(a_2.w, b_0.w, s_2_0))));
                s_2_1 = fma(a_2.x, b_1.x, fma(a_2.y, b_1.y, fma(a_2.z, b_1.z, fma(a_2.w, b_1.w, s_2_1))));
                s_2_2 = fma(a_2.x, b_2.x, fma(a_2.y, b_2.y, fma(a_2.z, b_2.z, fma(a_2.w, b_2.w, s_2_2))));
                s_2_3 = fma(a_2.x, b_3.x, fma(a_2.y, b_3.y, fma(a_2.z, b_3.z, fma(a_2.w, b_3.w, s_2_3))));
                s_2_4 = fma(a_2.x, b_4.x, fma(a_2.y, b_4.y, fma(a_2.z, b_4.z, fma(a_2.w, b_4.w, s_2_4))));
                s_2_5 = fma(a_2.x, b_5.x, fma(a_2.y, b_5.y, fma(a_2.z, b_5.z, fma(a_2.w, b_5.w, s_2_5))));
                s_2_6 = fma(a_2.x, b_6.x, fma(a_2.y, b_6.y, fma(a_2.z, b_6.z, fma(a_2.w, b_6.w, s_2_6))));
                s_2_7 = fma(a_2.x, b_7.x, fma(a_2.y, b_7.y, fma(a_2.z, b_7.z, fma(a_2.w, b_7.w, s_2_7))));
                let a_3 = tile[(row + 3u) * ROW_STRIDE + c];
                s_3_0 = fma(a_3.x, b_0.x, fma(a_3.y, b_0.y, fma(a_3.z, b_0.z, fma(a_3.w, b_0.w, s_3_0))));
                s_3_1 = fma(a_3.x, b_1.x, fma(a_3.y, b_1.y, fma(a_3.z, b_1.z, fma(a_3.w, b_1.w, s_3_1))));
                s_3_2 = fma(a_3.x, b_2.x, fma(a_3.y, b_2.y, fma(a_3.z, b_2.z, fma(a_3.w, b_2.w, s_3_2))));
                s_3_3 = fma(a_3.x, b_3.x, fma(a_3.y, b_3.y, fma(a_3.z, b_3.z, fma(a_3.w, b_3.w, s_3_3))));
                s_3_4 = fma(a_3.x, b_4.x, fma(a_3.y, b_4.y, fma(a_3.z, b_4.z, fma(a_3.w, b_4.w, s_3_4))));
                s_3_5 = fma(a_3.x, b_5.x, fma(a_3.y, b_5.y, fma(a_3.z, b_5.z, fma(a_3.w, b_5.w, s_3_5))));
                s_3_6 = fma(a_3.x, b_6.x, fma(a_3.y, b_6.y, fma(a_3.z, b_6.z, fma(a_3.w, b_6.w, s_3_6))));
                s_3_7 = fma(a_3.x, b_7.x, fma(a_3.y, b_7.y, fma(a_3.z, b_7.z, fma(a_3.w, b_7.w, s_3_7))));
            }
        }

        // P_ij = exp(S_ij − LSE_i)
        var p_0_0 = probability(s_0_0 * call.scale, lse_0);
        var p_0_1 = probability(s_0_1 * call.scale, lse_0);
        var p_0_2 = probability(s_0_2 * call.scale, lse_0);
        var p_0_3 = probability(s_0_3 * call.scale, lse_0);
        var p_0_4 = probability(s_0_4 * call.scale, lse_0);
        var p_0_5 = probability(s_0_5 * call.scale, lse_0);
        var p_0_6 = probability(s_0_6 * call.scale, lse_0);
        var p_0_7 = probability(s_0_7 * call.scale, lse_0);
        var p_1_0 = probability(s_1_0 * call.scale, lse_1);
        var p_1_1 = probability(s_1_1 * call.scale, lse_1);
        var p_1_2 = probability(s_1_2 * call.scale, lse_1);
        var p_1_3 = probability(s_1_3 * call.scale, lse_1);
        var p_1_4 = probability(s_1_4 * call.scale, lse_1);
        var p_1_5 = probability(s_1_5 * call.scale, lse_1);
        var p_1_6 = probability(s_1_6 * call.scale, lse_1);
        var p_1_7 = probability(s_1_7 * call.scale, lse_1);
        var p_2_0 = probability(s_2_0 * call.scale, lse_2);
        var p_2_1 = probability(s_2_1 * call.scale, lse_2);
        var p_2_2 = probability(s_2_2 * call.scale, lse_2);
        var p_2_3 = probability(s_2_3 * call.scale, lse_2);
        var p_2_4 = probability(s_2_4 * call.scale, lse_2);
        var p_2_5 = probability(s_2_5 * call.scale, lse_2);
        var p_2_6 = probability(s_2_6 * call.scale, lse_2);
        var p_2_7 = probability(s_2_7 * call.scale, lse_2);
        var p_3_0 = probability(s_3_0 * call.scale, lse_3);
        var p_3_1 = probability(s_3_1 * call.scale, lse_3);
        var p_3_2 = probability(s_3_2 * call.scale, lse_3);
        var p_3_3 = probability(s_3_3 * call.scale, lse_3);
        var p_3_4 = probability(s_3_4 * call.scale, lse_3);
        var p_3_5 = probability(s_3_5 * call.scale, lse_3);
        var p_3_6 = probability(s_3_6 * call.scale, lse_3);
        var p_3_7 = probability(s_3_7 * call.scale, lse_3);

        // dP_ij = dO_i·V_j
        var dp_0_0 = 0.0;
        var dp_0_1 = 0.0;
        var dp_0_2 = 0.0;
        var dp_0_3 = 0.0;
        var dp_0_4 = 0.0;
        var dp_0_5 = 0.0;
        var dp_0_6 = 0.0;
        var dp_0_7 = 0.0;
        var dp_1_0 = 0.0;
        var dp_1_1 = 0.0;
        var dp_1_2 = 0.0;
        var dp_1_3 = 0.0;
        var dp_1_4 = 0.0;
        var dp_1_5 = 0.0;
        var dp_1_6 = 0.0;
        var dp_1_7 = 0.0;
        var dp_2_0 = 0.0;
        var dp_2_1 = 0.0;
        var dp_2_2 = 0.0;
        var dp_2_3 = 0.0;
        var dp_2_4 = 0.0;
        var dp_2_5 = 0.0;
        var dp_2_6 = 0.0;
        var dp_2_7 = 0.0;
        var dp_3_0 = 0.0;
        var dp_3_1 = 0.0;
        var dp_3_2 = 0.0;
        var dp_3_3 = 0.0;
        var dp_3_4 = 0.0;
        var dp_3_5 = 0.0;
        var dp_3_6 = 0.0;
        var dp_3_7 = 0.0;
        for (var channel = 0u; channel < V_HEAD_DIM; channel += CHUNK) {
            workgroupBarrier();  // the chunk before has been read
            {
                let entry = tid;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[row * ROW_STRIDE + c] = read_d_o(d_o_first, first_query + row, channel + c);
            }
            {
                let entry = tid + THREADS;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[row * ROW_STRIDE + c] = read_d_o(d_o_first, first_query + row, channel + c);
            }
            {
                let entry = tid;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[COL_TILE + row * ROW_STRIDE + c] = read_v(v_first, first_key + key_of(row), channel + c);
            }
            {
                let entry = tid + THREADS;
                let row = entry / CHUNK;
                let c = entry % CHUNK;
                tile[COL_TILE + row * ROW_STRIDE + c] = read_v(v_first, first_key + key_of(row), channel + c);
            }
            workgroupBarrier();  // the chunk is complete
            for (var c = 0u; c < CHUNK; c++) {
                let b_0 = tile[COL_TILE + col * ROW_STRIDE + c];
                let b_1 = tile[COL_TILE + (col + COL_THREADS) * ROW_STRIDE + c];
                let b_2 = tile[COL_TILE + (col + 2u * COL_THREADS) * ROW_STRIDE + c];
                let b_3 = tile[COL_TILE + (col + 3u * COL_THREADS) * ROW_STRIDE + c];
                let b_4 = tile[COL_TILE + (col + 4u * COL_THREADS) * ROW_STRIDE + c];
                let b_5 = tile[COL_TILE + (col + 5u * COL_THREADS) * ROW_STRIDE + c];
                let b_6 = tile[COL_TILE + (col + 6u * COL_THREADS) * ROW_STRIDE + c];
                let b_7 = tile[COL_TILE + (col + 7u * COL_THREADS) * ROW_STRIDE + c];
                let a_0 = tile[row * ROW_STRIDE + c];
                dp_0_0 = fma(a_0.x, b_0.x, fma(a_0.y, b_0.y, fma(a_0.z, b_0.z, fma(a_0.w, b_0.w, dp_0_0))));
                dp_0_1 = fma(a_0.x, b_1.x, fma(a_0.y, b_1.y, fma(a_0.z, b_1.z, fma(a_0.w, b_1.w, dp_0_1))));
                dp_0_2 = fma(a_0.x, b_2.x, fma(a_0.y, b_2.y, fma(a_0.z, b_2.z, fma(a_0.w, b_2.w, dp_0_2))));
                dp_0_3 = fma(a_0.x, b_3.x, fma(a_0.y, b_3.y, fma(a_0.z, b_3.z, fma(a_0.w, b_3.w, dp_0_3))));
                dp_0_4 = fma(a_0.x, b_4.x, fma(a_0.y, b_4.y, fma(a_0.z, b_4.z, fma(a_0.w, b_4.w, dp_0_4))));
                dp_0_5 = fma(a_0.x, b_5.x, fma(a_0.y, b_5.y, fma(a_0.z, b_5.z, fma(a_0.w, b_5.w, dp_0_5))));
                dp_0_6 = fma(a_0.x, b_6.x, fma(a_0.y, b_6.y, fma(a_0.z, b_6.z, fma(a_0.w, b_6.w, dp_0_6))));
                dp_0_7 = fma(a_0.x, b_7.x, fma(a_0.y, b_7.y, fma(a_0.z, b_7.z, fma(a_0.w, b_7.w, dp_0_7))));
                let a_1 = tile[(row + 1u) * ROW_STRIDE + c];
                dp_1_0 = fma(a_1.x, b_0.x, fma(a_1.y, b_0.y, fma(a_1.z, b_0.z, fma(a_1.w, b_0.w, dp_1_0))));
                dp_1_1 = fma(a_1.x, b_1.x, fma(a_1.y, b_1.y, fma(a_1.z, b_1.z, fma(a_1.w, b_1.w, dp_1_1))));
                dp_1_2 = fma(a_1.x, b_2.x, fma(a_1.y, b_2.y, fma(a_1.z, b_2.z, fma(a_1.w, b_2.w, dp_1_2))));
                dp_1_3 = fma(a_1.x, b_3.x, fma(a_1.y, b_3.y, fma(a_1.z, b_3.z, fma(a_1.w, b_3.w, dp_1_3))));
                dp_1_4 = fma(a_1.x, b_4.x, fma(a_1.y, b_4.y, fma(a_1.z, b_4.z, fma(a_1.w, b_4.w, dp_1_4))));
                dp_1_5 = fma(a_1.x, b_5.x, fma(a_1.y, b_5.y, fma(a_1.z, b_5.z, fma(a_1.w, b_5.w, dp_1_5))));
                dp_1_6 = fma(a_1.x, b_6.x, fma(a_1.y, b_6.y, fma(a_1.z, b_6.z, fma(a_1.w, b_6.w, dp_1_6))));
                dp_1_7 = fma(a_1.x, b_7.x, fma(a_1.y, b_7.y, fma(a_1.z, b_7.z, fma(a_1.w, b_7.w, dp_1_7))));
                let a_2 = tile[(row + 2u) * ROW_STRIDE + c];
                dp_2_0 = fma(a_2.x, b_0.x, fma(a_2.y, b_0.y, fma(a_2.z, b_0.z, fma(a_2.w, b_0.w, dp_2_0))));
                dp_2_1 = fma(a_2.x, b_1.x, fma(a_2.y, b_1.y, fma(a_2.z, b_1.z, fma(a_2.w, b_1.w, dp_2_1))));
                dp_2_2 = fma(a_2.x, b_2.x, fma(a_2.y, b_2.y, fma(a_2.z, b_2.z, fma(a_2.w, b_2.w, dp_2_2))));
                dp_2_3 = fma(a_2.x, b_3.x, fma(a_2.y, b_3.y, fma(a_2.z, b_3.z, fma(a_2.w, b_3.w, dp_2_3))));
                dp_2_4 = fma(a_2.x, b_4.x, fma(a_2.y, b_4.y, fma(a_2.z, b_4.z, fma(a_2.w, b_4.w, dp_2_4))));
                dp_2_5 = fma(a_2.x, b_5.x, fma(a_2.y, b_5.y, fma(a_2.z, b_5.z, fma(a_2.w, b_5.w, dp_2_5))));
                dp_2_6 = fma(a_2.x, b_6.x, fma(a_2.y, b_6.y, fma(a_2.z, b_6.z, fma(a_2.w, b_6.w, dp_2_6))));
                dp_2_7 = fma(a_2.x, b_7.x, fma(a_2.y, b_7.y, fma(a_2.z, b_7.z, fma(a_2.w, b_7.w, dp_2_7))));
                let a_3 = tile[(row + 3u) * ROW_STRIDE + c];
                dp_3_0 = fma(a_3.x, b_0.x, fma(a_3.y, b_0.y, fma(a_3.z, b_0.z, fma(a_3.w, b_0.w, dp_3_0))));
                dp_3_1 = fma(a_3.x, b_1.x, fma(a_3.y, b_1.y, fma(a_3.z, b_1.z, fma(a_3.w, b_1.w, dp_3_1))));
                dp_3_2 = fma(a_3.x, b_2.x, fma(a_3.y, b_2.y, fma(a_3.z, b_2.z, fma(a_3.w, b_2.w, dp_3_2))));
                dp_3_3 = fma(a_3.x, b_3.x, fma(a_3.y, b_3.y, fma(a_3.z, b_3.z, fma(a_3.w, b_3.w, dp_3_3))));
                dp_3_4 = fma(a_3.x, b_4.x, fma(a_3.y, b_4.y, fma(a_3.z, b_4.z, fma(a_3.w, b_4.w, dp_3_4))));
                dp_3_5 = fma(a_3.x, b_5.x, fma(a_3.y, b_5.y, fma(a_3.z, b_5.z, fma(a_3.w, b_5.w, dp_3_5))));
                dp_3_6 = fma(a_3.x, b_6.x, fma(a_3.y, b_6.y, fma(a_3.z, b_6.z, fma(a_3.w, b_6.w, dp_3_6))));
                dp_3_7 = fma(a_3.x, b_7.x, fma(a_3.y, b_7.y, fma(a_3.z, b_7.z, fma(a_3.w, b_7.w, dp_3_7))));
            }
        }

        // A block that is wholly visible needs no comparison.
        if (i32(first_key) < hull.y || i32(first_key + COLS) > hull.z) {
            let key_0 = i32(first_key + col * 2u);
            let key_1 = i32(first_key + (col + COL_THREADS) * 2u);
            let key_2 = i32(first_key + (col + 2u * COL_THREADS) * 2u);
            let key_3 = i32(first_key + (col + 3u * COL_THREADS) * 2u);
            let key_4 = i32(first_key + col * 2u + 1u);
            let key_5 = i32(first_key + (col + COL_THREADS) * 2u + 1u);
            let key_6 = i32(first_key + (col + 2u * COL_THREADS) * 2u + 1u);
            let key_7 = i32(first_key + (col + 3u * COL_THREADS) * 2u + 1u);
            let seen_0 = select(vec2<i32>(), intervals[batch * call.q_len + query_0], first_query + row < call.q_len);
            let visible_0_0 = (key_0 >= seen_0.x) & (key_0 < seen_0.y);
            p_0_0 = select(0.0, p_0_0, visible_0_0);
            dp_0_0 = select(0.0, dp_0_0, visible_0_0);
            let visible_0_1 = (key_1 >= seen_0.x) & (key_1 < seen_0.y);
            p_0_1 = select(0.0, p_0_1, visible_0_1);
            dp_0_1 = select(0.0, dp_0_1, visible_0_1);
            let visible_0_2 = (key_2 >= seen_0.x) & (key_2 < seen_0.y);
            p_0_2 = select(0.0, p_0_2, visible_0_2);
            dp_0_2 = select(0.0, dp_0_2, visible_0_2);
            let visible_0_3 = (key_3 >= seen_0.x) & (key_3 < seen_0.y);
            p_0_3 = select(0.0, p_0_3, visible_0_3);
            dp_0_3 = select(0.0, dp_0_3, visible_0_3);
            let visible_0_4 = (key_4 >= seen_0.x) & (key_4 < seen_0.y);
            p_0_4 = select(0.0, p_0_4, visible_0_4);
            dp_0_4 = select(0.0, dp_0_4, visible_0_4);
            let visible_0_5 = (key_5 >= seen_0.x) & (key_5 < seen_0.y);
            p_0_5 = select(0.0, p_0_5, visible_0_5);
            dp_0_5 = select(0.0, dp_0_5, visible_0_5);
            let visible_0_6 = (key_6 >= seen_0.x) & (key_6 < seen_0.y);
            p_0_6 = select(0.0, p_0_6, visible_0_6);
            dp_0_6 = select(0.0, dp_0_6, visible_0_6);
            let visible_0_7 = (key_7 >= seen_0.x) & (key_7 < seen_0.y);
            p_0_7 = select(0.0, p_0_7, visible_0_7);
            dp_0_7 = select(0.0, dp_0_7, visible_0_7);
            let seen_1 = select(vec2<i32>(), intervals[batch * call.q_len + query_1], first_query + row + 1u < call.q_len);
            let visible_1_0 = (key_0 >= seen_1.x) & (key_0 < seen_1.y);
            p_1_0 = select(0.0, p_1_0, visible_1_0);
            dp_1_0 = select(0.0, dp_1_0, visible_1_0);
            let visible_1_1 = (key_1 >= seen_1.x) & (key_1 < seen_1.y);
            p_1_1 = select(0.0, p_1_1, visible_1_1);
            dp_1_1 = select(0.0, dp_1_1, visible_1_1);
            let visible_1_2 = (key_2 >= seen_1.x) & (key_2 < seen_1.y);
            p_1_2 = select(0.0, p_1_2, visible_1_2);
            dp_1_2 = select(0.0, dp_1_2, visible_1_2);
            let visible_1_3 = (key_3 >= seen_1.x) & (key_3 < seen_1.y);
            p_1_3 = select(0.0, p_1_3, visible_1_3);
            dp_1_3 = select(0.0, dp_1_3, visible_1_3);
            let visible_1_4 = (key_4 >= seen_1.x) & (key_4 < seen_1.y);
            p_1_4 = select(0.0, p_1_4, visible_1_4);
            dp_1_4 = select(0.0, dp_1_4, visible_1_4);
            let visible_1_5 = (key_5 >= seen_1.x) & (key_5 < seen_1.y);
            p_1_5 = select(0.0, p_1_5, visible_1_5);
            dp_1_5 = select(0.0, dp_1_5, visible_1_5);
            let visible_1_6 = (key_6 >= seen_1.x) & (key_6 < seen_1.y);
            p_1_6 = select(0.0, p_1_6, visible_1_6);
            dp_1_6 = select(0.0, dp_1_6, visible_1_6);
            let visible_1_7 = (key_7 >= seen_1.x) & (key_7 < seen_1.y);
            p_1_7 = select(0.0, p_1_7, visible_1_7);
            dp_1_7 = select(0.0, dp_1_7, visible_1_7);
            let seen_2 = select(vec2<i32>(), intervals[batch * call.q_len + query_2], first_query + row + 2u < call.q_len);
            let visible_2_0 = (key_0 >= seen_2.x) & (key_0 < seen_2.y);
            p_2_0 = select(0.0, p_2_0, visible_2_0);
            dp_2_0 = select(0.0, dp_2_0, visible_2_0);
            let visible_2_1 = (key_1 >= seen_2.x) & (key_1 < seen_2.y);
            p_2_1 = select(0.0, p_2_1, visible_2_1);
            dp_2_1 = select(0.0, dp_2_1, visible_2_1);
            let visible_2_2 = (key_2 >= seen_2.x) & (key_2 < seen_2.y);
            p_2_2 = select(0.0, p_2_2, visible_2_2);
            dp_2_2 = select(0.0, dp_2_2, visible_2_2);
            let visible_2_3 = (key_3 >= seen_2.x) & (key_3 < seen_2.y);
            p_2_3 = select(0.0, p_2_3, visible_2_3);
            dp_2_3 = select(0.0, dp_2_3, visible_2_3);
            let visible_2_4 = (key_4 >= seen_2.x) & (key_4 < seen_2.y);
            p_2_4 = select(0.0, p_2_4, visible_2_4);
            dp_2_4 = select(0.0, dp_2_4, visible_2_4);
            let visible_2_5 = (key_5 >= seen_2.x) & (key_5 < seen_2.y);
            p_2_5 = select(0.0, p_2_5, visible_2_5);
            dp_2_5 = select(0.0, dp_2_5, visible_2_5);
            let visible_2_6 = (key_6 >= seen_2.x) & (key_6 < seen_2.y);
            p_2_6 = select(0.0, p_2_6, visible_2_6);
            dp_2_6 = select(0.0, dp_2_6, visible_2_6);
            let visible_2_7 = (key_7 >= seen_2.x) & (key_7 < seen_2.y);
            p_2_7 = select(0.0, p_2_7, visible_2_7);
            dp_2_7 = select(0.0, dp_2_7, visible_2_7);
            let seen_3 = select(vec2<i32>(), intervals[batch * call.q_len + query_3], first_query + row + 3u < call.q_len);
            let visible_3_0 = (key_0 >= seen_3.x) & (key_0 < seen_3.y);
            p_3_0 = select(0.0, p_3_0, visible_3_0);
            dp_3_0 = select(0.0, dp_3_0, visible_3_0);
            let visible_3_1 = (key_1 >= seen_3.x) & (key_1 < seen_3.y);
            p_3_1 = select(0.0, p_3_1, visible_3_1);
            dp_3_1 = select(0.0, dp_3_1, visible_3_1);
            let visible_3_2 = (key_2 >= seen_3.x) & (key_2 < seen_3.y);
            p_3_2 = select(0.0, p_3_2, visible_3_2);
            dp_3_2 = select(0.0, dp_3_2, visible_3_2);
            let visible_3_3 = (key_3 >= seen_3.x) & (key_3 < seen_3.y);
            p_3_3 = select(0.0, p_3_3, visible_3_3);
            dp_3_3 = select(0.0, dp_3_3, visible_3_3);
            let visible_3_4 = (key_4 >= seen_3.x) & (key_4 < seen_3.y);
            p_3_4 = select(0.0, p_3_4, visible_3_4);
            dp_3_4 = select(0.0, dp_3_4, visible_3_4);
            let visible_3_5 = (key_5 >= seen_3.x) & (key_5 < seen_3.y);
            p_3_5 = select(0.0, p_3_5, visible_3_5);
            dp_3_5 = select(0.0, dp_3_5, visible_3_5);
            let visible_3_6 = (key_6 >= seen_3.x) & (key_6 < seen_3.y);
            p_3_6 = select(0.0, p_3_6, visible_3_6);
            dp_3_6 = select(0.0, dp_3_6, visible_3_6);
            let visible_3_7 = (key_7 >= seen_3.x) & (key_7 < seen_3.y);
            p_3_7 = select(0.0, p_3_7, visible_3_7);
            dp_3_7 = select(0.0, dp_3_7, visible_3_7);
        }
        let at_0 = (strip_row * call.key_stride + first_key - base) / 2u + col;
        scores[at_0] = vec4<f32>(p_0_0, dp_0_0, p_0_4, dp_0_4);
        scores[at_0 + COL_THREADS] = vec4<f32>(p_0_1, dp_0_1, p_0_5, dp_0_5);
        scores[at_0 + 2u * COL_THREADS] = vec4<f32>(p_0_2, dp_0_2, p_0_6, dp_0_6);
        scores[at_0 + 3u * COL_THREADS] = vec4<f32>(p_0_3, dp_0_3, p_0_7, dp_0_7);
        sum_0 = vec2<f32>(sum_0.x + p_0_0, fma(p_0_0, dp_0_0, sum_0.y));
        sum_0 = vec2<f32>(sum_0.x + p_0_1, fma(p_0_1, dp_0_1, sum_0.y));
        sum_0 = vec2<f32>(sum_0.x + p_0_2, fma(p_0_2, dp_0_2, sum_0.y));
        sum_0 = vec2<f32>(sum_0.x + p_0_3, fma(p_0_3, dp_0_3, sum_0.y));
        sum_0 = vec2<f32>(sum_0.x + p_0_4, fma(p_0_4, dp_0_4, sum_0.y));
        sum_0 = vec2<f32>(sum_0.x + p_0_5, fma(p_0_5, dp_0_5, sum_0.y));
        sum_0 = vec2<f32>(sum_0.x + p_0_6, fma(p_0_6, dp_0_6, sum_0.y));
        sum_0 = vec2<f32>(sum_0.x + p_0_7, fma(p_0_7, dp_0_7, sum_0.y));
        let at_1 = ((strip_row + 1u) * call.key_stride + first_key - base) / 2u + col;
        scores[at_1] = vec4<f32>(p_1_0, dp_1_0, p_1_4, dp_1_4);
        scores[at_1 + COL_THREADS] = vec4<f32>(p_1_1, dp_1_1, p_1_5, dp_1_5);
        scores[at_1 + 2u * COL_THREADS] = vec4<f32>(p_1_2, dp_1_2, p_1_6, dp_1_6);
        scores[at_1 + 3u * COL_THREADS] = vec4<f32>(p_1_3, dp_1_3, p_1_7, dp_1_7);
        sum_1 = vec2<f32>(sum_1.x + p_1_0, fma(p_1_0, dp_1_0, sum_1.y));
        sum_1 = vec2<f32>(sum_1.x + p_1_1, fma(p_1_1, dp_1_1, sum_1.y));
        sum_1 = vec2<f32>(sum_1.x + p_1_2, fma(p_1_2, dp_1_2, sum_1.y));
        sum_1 = vec2<f32>(sum_1.x + p_1_3, fma(p_1_3, dp_1_3, sum_1.y));
        sum_1 = vec2<f32>(sum_1.x + p_1_4, fma(p_1_4, dp_1_4, sum_1.y));
        sum_1 = vec2<f32>(sum_1.x + p_1_5, fma(p_1_5, dp_1_5, sum_1.y));
        sum_1 = vec2<f32>(sum_1.x + p_1_6, fma(p_1_6, dp_1_6, sum_1.y));
        sum_1 = vec2<f32>(sum_1.x + p_1_7, fma(p_1_7, dp_1_7, sum_1.y));
        let at_2 = ((strip_row + 2u) * call.key_stride + first_key - base) / 2u + col;
        scores[at_2] = vec4<f32>(p_2_0, dp_2_0, p_2_4, dp_2_4);
        scores[at_2 + COL_THREADS] = vec4<f32>(p_2_1, dp_2_1, p_2_5, dp_2_5);
        scores[at_2 + 2u * COL_THREADS] = vec4<f32>(p_2_2, dp_2_2, p_2_6, dp_2_6);
        scores[at_2 + 3u * COL_THREADS] = vec4<f32>(p_2_3, dp_2_3, p_2_7, dp_2_7);
        sum_2 = vec2<f32>(sum_2.x + p_2_0, fma(p_2_0, dp_2_0, sum_2.y));
        sum_2 = vec2<f32>(sum_2.x + p_2_1, fma(p_2_1, dp_2_1, sum_2.y));
        sum_2 = vec2<f32>(sum_2.x + p_2_2, fma(p_2_2, dp_2_2, sum_2.y));
        sum_2 = vec2<f32>(sum_2.x + p_2_3, fma(p_2_3, dp_2_3, sum_2.y));
        sum_2 = vec2<f32>(sum_2.x + p_2_4, fma(p_2_4, dp_2_4, sum_2.y));
        sum_2 = vec2<f32>(sum_2.x + p_2_5, fma(p_2_5, dp_2_5, sum_2.y));
        sum_2 = vec2<f32>(sum_2.x + p_2_6, fma(p_2_6, dp_2_6, sum_2.y));
        sum_2 = vec2<f32>(sum_2.x + p_2_7, fma(p_2_7, dp_2_7, sum_2.y));
        let at_3 = ((strip_row + 3u) * call.key_stride + first_key - base) / 2u + col;
        scores[at_3] = vec4<f32>(p_3_0, dp_3_0, p_3_4, dp_3_4);
        scores[at_3 + COL_THREADS] = vec4<f32>(p_3_1, dp_3_1, p_3_5, dp_3_5);
        scores[at_3 + 2u * COL_THREADS] = vec4<f32>(p_3_2, dp_3_2, p_3_6, dp_3_6);
        scores[at_3 + 3u * COL_THREADS] = vec4<f32>(p_3_3, dp_3_3, p_3_7, dp_3_7);
        sum_3 = vec2<f32>(sum_3.x + p_3_0, fma(p_3_0, dp_3_0, sum_3.y));
        sum_3 = vec2<f32>(sum_3.x + p_3_1, fma(p_3_1, dp_3_1, sum_3.y));
        sum_3 = vec2<f32>(sum_3.x + p_3_2, fma(p_3_2, dp_3_2, sum_3.y));
        sum_3 = vec2<f32>(sum_3.x + p_3_3, fma(p_3_3, dp_3_3, sum_3.y));
        sum_3 = vec2<f32>(sum_3.x + p_3_4, fma(p_3_4, dp_3_4, sum_3.y));
        sum_3 = vec2<f32>(sum_3.x + p_3_5, fma(p_3_5, dp_3_5, sum_3.y));
        sum_3 = vec2<f32>(sum_3.x + p_3_6, fma(p_3_6, dp_3_6, sum_3.y));
        sum_3 = vec2<f32>(sum_3.x + p_3_7, fma(p_3_7, dp_3_7, sum_3.y));
    }

    // The rows' sums over this span: a vec4 holds those of two rows, from one thread, and the threads that share the rows are
    // added pairwise. Similar terms are rounded alike, so that the error of one long chain of additions would grow with its length.
    workgroupBarrier();  // the last chunk has been read
    tile[row / 2u * COL_THREADS + col] = vec4<f32>(sum_0, sum_1);
    tile[(row / 2u + 1u) * COL_THREADS + col] = vec4<f32>(sum_2, sum_3);
    workgroupBarrier();  // every thread's sums are there
    for (var pair = tid; pair < ROWS / 2u; pair += THREADS) {
        let first = pair * COL_THREADS;
        let a = (tile[first] + tile[first + 1u]) + (tile[first + 2u] + tile[first + 3u]);
        let b = (tile[first + 4u] + tile[first + 5u]) + (tile[first + 6u] + tile[first + 7u]);
        let total = a + b;
        let at = (workgroup.z * call.strip_rows + workgroup.y * ROWS + pair * 2u) * call.spans + workgroup.x;
        row_sums[at] = total.xy;
        row_sums[at + call.spans] = total.zw;
    }
}
