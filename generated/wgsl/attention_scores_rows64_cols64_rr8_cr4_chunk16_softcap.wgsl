// attention_scores_rows64_cols64_rr8_cr4_chunk16_softcap
//
// P and dP of a strip of queries, and the sums of their rows.
//
//   S_ij = softcap·tanh(scale·Q_i·K_j / softcap)
//   P_ij = exp(S_ij − LSE_i), 0 where query i does not see key j    dP_ij = dO_i·V_j    Σ_j P_ij    Σ_j P_ij·dP_ij
//
// One workgroup owns block wg.y of ROWS queries (the last first: under a causal mask they see most) in slot wg.z, and span wg.x of
// the keys in their hull: a block of COLS keys. A thread holds 8 queries × 4 keys:
// s_<query>_<keys>, p_<query>_<keys>, dp_<query>_<keys>. A chunk of channels is staged at a time, from packed tiles.
// p_tiles holds t, the score's tanh, in place of P. The kernels that read it make P of t; the reverse would not do, since P loses
// t's digits.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 64u;
const COLS: u32 = 64u;
const ROW_VECS: u32 = ROWS / 4u;  // vec4 elements of a staged channel of Q or dO
const COL_VECS: u32 = COLS / 4u;  // and of K or V
const THREADS: u32 = 128u;
const ROW_THREADS: u32 = 8u;  // threads that share a key
const COL_THREADS: u32 = 16u;  // threads that share a query
const CHUNK: u32 = 16u;  // channels
const COL_TILE: u32 = CHUNK * ROW_VECS;  // where in a chunk the keys' channels begin
const TILE_ROWS: u32 = 128u;  // positions of a packed tile
const TILE_VECS: u32 = TILE_ROWS / 4u;  // vec4 elements of one of its channels

// Where a tensor's rows lie, in numbers of 4 bytes: the first one, and how far apart batch entries, positions and heads are
struct Rows {
    offset: u32,
    batch: u32,
    row: u32,
    head: u32,
}

struct Call {
    lse: Rows,
    q_len: u32,
    kv_len: u32,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    slot_first: u32,
    row_first: u32,
    strip_rows: u32,
    strip_tiles: u32,
    spans: u32,
    batch: u32,
    channels: u32,
    v_channels: u32,
    d_o_tiles: u32,
    v_tiles: u32,
    softcap: f32,
}

@group(0) @binding(0) var<storage, read> query_tiles: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> key_tiles: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(4) var<storage, read_write> p_tiles: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> d_p_tiles: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> row_sums: array<vec2<f32>>;
@group(0) @binding(7) var<uniform> call: Call;

// Workgroup memory: 8192 bytes.
var<workgroup> tile: array<vec4<f32>, 512>;

fn are_finite(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
}

// exp(score − lse) of four keys, and zero where the score or the exponential is not finite.
fn probabilities(scores: vec4<f32>, lse: f32) -> vec4<f32> {
    let p = exp(scores - lse);
    return select(vec4<f32>(), p, are_finite(scores) & are_finite(p));
}

const UNSEEN: f32 = 4.0;  // in place of t where the query does not see the key

fn capped_probabilities(t: vec4<f32>, bias: vec4<f32>, lse: f32) -> vec4<f32> {
    return select(probabilities(call.softcap * t - bias, lse), vec4<f32>(), t == vec4<f32>(UNSEEN));
}

// tanh(s/softcap), by Taylor's series near 0 and by exp beyond: drivers' own tanh loses its digits near 0, and some give NaN for
// large numbers. What is not finite stays as it is.
fn capped(s: vec4<f32>) -> vec4<f32> {
    let x = clamp(s / call.softcap, vec4<f32>(-15.0), vec4<f32>(15.0));
    let x2 = x * x;
    let tail = x2 * (-17.0 / 315.0 + x2 * (62.0 / 2835.0 + x2 * (-1382.0 / 155925.0)));
    let series = x + x * x2 * (-1.0 / 3.0 + x2 * (2.0 / 15.0 + tail));
    let far = sign(x) * (1.0 - 2.0 / (exp(2.0 * abs(x)) + 1.0));
    return select(s, select(far, series, abs(x) < vec4<f32>(0.3)), are_finite(s));
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

// The tile that the scores of a block of queries begin with, in a slot of the strip.
fn first_tile(block: u32) -> u32 {
    let at = call.batch * (call.q_len + 2u * ((call.q_len + ROWS - 1u) / ROWS));
    return u32(intervals[at + block].x - intervals[at + call.row_first / ROWS].x);
}

// Packed tiles that so many positions take
fn tiles_of(length: u32) -> u32 {
    return (length + TILE_ROWS - 1u) / TILE_ROWS;
}

// Where the channels of a block of keys begin; `tile` is the first of its slot.
fn key_start(tile: u32, key: u32, channels: u32) -> u32 {
    return (tile + key / TILE_ROWS) * channels * TILE_VECS + key % TILE_ROWS / 4u;
}

// The keys that a query sees, none past the last query
fn seen_by(batch: u32, query: u32) -> vec2<i32> {
    if (query >= call.q_len) {
        return vec2<i32>();
    }
    return intervals[batch * call.q_len + query];
}

// Σ P and Σ P·dP over four keys
fn sums_of(p: vec4<f32>, dp: vec4<f32>) -> vec2<f32> {
    let product = p * dp;
    return vec2<f32>((p.x + p.y) + (p.z + p.w), (product.x + product.y) + (product.z + product.w));
}

@compute @workgroup_size(128, 1, 1)
fn attention_scores(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
) {
    let slot = call.slot_first + workgroup.z;
    let batch = slot / call.heads;
    let head = slot % call.heads;
    let group = call.heads / call.kv_heads;
    let block_row = (workgroups.y - 1u - workgroup.y) * ROWS;  // the block's first row of the strip
    let first_query = call.row_first + block_row;
    if (first_query >= call.q_len) {
        return;
    }

    // The keys of this span that the hull meets
    let hull = hull_of(batch, first_query / ROWS);
    let base = base_of(hull);
    let begin = base + workgroup.x * COLS;
    let end = u32(hull.w);
    if (hull.x >= hull.w || begin >= end) {
        return;
    }

    // This thread's queries are the fours row, row + ROW_THREADS, …, its keys the fours col, col + COL_THREADS, …
    let row = tid / 32u / (COL_THREADS / 8u) * 4u + tid % 32u / 16u * 2u + tid % 2u;
    let col = tid / 32u % (COL_THREADS / 8u) * 8u + tid / 2u % 8u;
    let out = workgroup.z * call.strip_tiles + first_tile(first_query / ROWS);

    // This thread's rows: the lse, and Σ P and Σ P·dP over its columns
    let query_0 = min(first_query + row * 4u, call.q_len - 1u);
    let lse_0 = lse[call.lse.offset + batch * call.lse.batch + query_0 * call.lse.row + head * call.lse.head];
    var sum_0 = vec2<f32>();
    let query_1 = min(first_query + row * 4u + 1u, call.q_len - 1u);
    let lse_1 = lse[call.lse.offset + batch * call.lse.batch + query_1 * call.lse.row + head * call.lse.head];
    var sum_1 = vec2<f32>();
    let query_2 = min(first_query + row * 4u + 2u, call.q_len - 1u);
    let lse_2 = lse[call.lse.offset + batch * call.lse.batch + query_2 * call.lse.row + head * call.lse.head];
    var sum_2 = vec2<f32>();
    let query_3 = min(first_query + row * 4u + 3u, call.q_len - 1u);
    let lse_3 = lse[call.lse.offset + batch * call.lse.batch + query_3 * call.lse.row + head * call.lse.head];
    var sum_3 = vec2<f32>();
    let query_4 = min(first_query + (row + ROW_THREADS) * 4u, call.q_len - 1u);
    let lse_4 = lse[call.lse.offset + batch * call.lse.batch + query_4 * call.lse.row + head * call.lse.head];
    var sum_4 = vec2<f32>();
    let query_5 = min(first_query + (row + ROW_THREADS) * 4u + 1u, call.q_len - 1u);
    let lse_5 = lse[call.lse.offset + batch * call.lse.batch + query_5 * call.lse.row + head * call.lse.head];
    var sum_5 = vec2<f32>();
    let query_6 = min(first_query + (row + ROW_THREADS) * 4u + 2u, call.q_len - 1u);
    let lse_6 = lse[call.lse.offset + batch * call.lse.batch + query_6 * call.lse.row + head * call.lse.head];
    var sum_6 = vec2<f32>();
    let query_7 = min(first_query + (row + ROW_THREADS) * 4u + 3u, call.q_len - 1u);
    let lse_7 = lse[call.lse.offset + batch * call.lse.batch + query_7 * call.lse.row + head * call.lse.head];
    var sum_7 = vec2<f32>();

    // Where the packed tiles of the block's queries and of the slot's keys begin
    let chunks = call.channels / CHUNK;
    let v_chunks = call.v_channels / CHUNK;
    let query_tile = (workgroup.z * tiles_of(call.q_len) + first_query / TILE_ROWS) * TILE_VECS;
    let query_four = first_query % TILE_ROWS / 4u;
    let q_first = query_tile * call.channels + query_four;
    let d_o_first = call.d_o_tiles + query_tile * call.v_channels + query_four;
    let key_tile = (slot / group - call.slot_first / group) * tiles_of(call.kv_len);
    var next_chunk = 0u;
    var query_at = q_first;
    var key_at = key_start(key_tile, begin, call.channels);
    var next_a_0: vec4<f32>;
    var next_a_1: vec4<f32>;
    var next_b_0: vec4<f32>;
    var next_b_1: vec4<f32>;
    let first_key = begin;
    {
        // S_ij = Q_i·K_j
        var s_0_0 = vec4<f32>();
        var s_1_0 = vec4<f32>();
        var s_2_0 = vec4<f32>();
        var s_3_0 = vec4<f32>();
        var s_4_0 = vec4<f32>();
        var s_5_0 = vec4<f32>();
        var s_6_0 = vec4<f32>();
        var s_7_0 = vec4<f32>();
        for (var i = 0u; i < chunks; i++) {
            {
                let entry = tid;
                next_a_0 = query_tiles[query_at + entry / ROW_VECS * TILE_VECS + entry % ROW_VECS];
            }
            {
                let entry = tid + THREADS;
                next_a_1 = query_tiles[query_at + entry / ROW_VECS * TILE_VECS + entry % ROW_VECS];
            }
            {
                let entry = tid;
                next_b_0 = key_tiles[key_at + entry / COL_VECS * TILE_VECS + entry % COL_VECS];
            }
            {
                let entry = tid + THREADS;
                next_b_1 = key_tiles[key_at + entry / COL_VECS * TILE_VECS + entry % COL_VECS];
            }
            workgroupBarrier();  // the chunk before has been read
            {
                let entry = tid;
                tile[entry] = next_a_0;
            }
            {
                let entry = tid + THREADS;
                tile[entry] = next_a_1;
            }
            {
                let entry = tid;
                tile[COL_TILE + entry] = next_b_0;
            }
            {
                let entry = tid + THREADS;
                tile[COL_TILE + entry] = next_b_1;
            }
            workgroupBarrier();  // the chunk is complete
            for (var k = 0u; k < CHUNK; k++) {
                let b_0 = tile[COL_TILE + col + k * COL_VECS];
                let a_0 = tile[row + k * ROW_VECS];
                let a_1 = tile[row + ROW_THREADS + k * ROW_VECS];
                s_0_0 = fma(vec4<f32>(a_0.x), b_0, s_0_0);
                s_1_0 = fma(vec4<f32>(a_0.y), b_0, s_1_0);
                s_2_0 = fma(vec4<f32>(a_0.z), b_0, s_2_0);
                s_3_0 = fma(vec4<f32>(a_0.w), b_0, s_3_0);
                s_4_0 = fma(vec4<f32>(a_1.x), b_0, s_4_0);
                s_5_0 = fma(vec4<f32>(a_1.y), b_0, s_5_0);
                s_6_0 = fma(vec4<f32>(a_1.z), b_0, s_6_0);
                s_7_0 = fma(vec4<f32>(a_1.w), b_0, s_7_0);
            }
            next_chunk += 1u;
            if (next_chunk == chunks) {
                query_at = d_o_first;
                key_at = call.v_tiles + key_start(key_tile, begin, call.v_channels);
            } else if (next_chunk < chunks + v_chunks) {
                query_at += CHUNK * TILE_VECS;
                key_at += CHUNK * TILE_VECS;
            }
        }

        // P_ij = exp(S_ij − LSE_i)
        let whole = i32(first_key) >= hull.y && i32(first_key + COLS) <= hull.z;  // every query sees every key
        let tile_first = (out + (first_key - base) / COLS) * (ROWS * COL_VECS) + col;
        var t_0_0 = capped(s_0_0 * call.scale);
        var p_0_0 = capped_probabilities(t_0_0, vec4<f32>(), lse_0);
        var t_1_0 = capped(s_1_0 * call.scale);
        var p_1_0 = capped_probabilities(t_1_0, vec4<f32>(), lse_1);
        var t_2_0 = capped(s_2_0 * call.scale);
        var p_2_0 = capped_probabilities(t_2_0, vec4<f32>(), lse_2);
        var t_3_0 = capped(s_3_0 * call.scale);
        var p_3_0 = capped_probabilities(t_3_0, vec4<f32>(), lse_3);
        var t_4_0 = capped(s_4_0 * call.scale);
        var p_4_0 = capped_probabilities(t_4_0, vec4<f32>(), lse_4);
        var t_5_0 = capped(s_5_0 * call.scale);
        var p_5_0 = capped_probabilities(t_5_0, vec4<f32>(), lse_5);
        var t_6_0 = capped(s_6_0 * call.scale);
        var p_6_0 = capped_probabilities(t_6_0, vec4<f32>(), lse_6);
        var t_7_0 = capped(s_7_0 * call.scale);
        var p_7_0 = capped_probabilities(t_7_0, vec4<f32>(), lse_7);
        if (!whole) {
            let keys_0 = i32(first_key + (col) * 4u) + vec4<i32>(0, 1, 2, 3);
            let seen_0 = seen_by(batch, first_query + row * 4u);
            let visible_0_0 = (keys_0 >= vec4<i32>(seen_0.x)) & (keys_0 < vec4<i32>(seen_0.y));
            p_0_0 = select(vec4<f32>(), p_0_0, visible_0_0);
            t_0_0 = select(vec4<f32>(UNSEEN), t_0_0, visible_0_0);
            let seen_1 = seen_by(batch, first_query + row * 4u + 1u);
            let visible_1_0 = (keys_0 >= vec4<i32>(seen_1.x)) & (keys_0 < vec4<i32>(seen_1.y));
            p_1_0 = select(vec4<f32>(), p_1_0, visible_1_0);
            t_1_0 = select(vec4<f32>(UNSEEN), t_1_0, visible_1_0);
            let seen_2 = seen_by(batch, first_query + row * 4u + 2u);
            let visible_2_0 = (keys_0 >= vec4<i32>(seen_2.x)) & (keys_0 < vec4<i32>(seen_2.y));
            p_2_0 = select(vec4<f32>(), p_2_0, visible_2_0);
            t_2_0 = select(vec4<f32>(UNSEEN), t_2_0, visible_2_0);
            let seen_3 = seen_by(batch, first_query + row * 4u + 3u);
            let visible_3_0 = (keys_0 >= vec4<i32>(seen_3.x)) & (keys_0 < vec4<i32>(seen_3.y));
            p_3_0 = select(vec4<f32>(), p_3_0, visible_3_0);
            t_3_0 = select(vec4<f32>(UNSEEN), t_3_0, visible_3_0);
            let seen_4 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u);
            let visible_4_0 = (keys_0 >= vec4<i32>(seen_4.x)) & (keys_0 < vec4<i32>(seen_4.y));
            p_4_0 = select(vec4<f32>(), p_4_0, visible_4_0);
            t_4_0 = select(vec4<f32>(UNSEEN), t_4_0, visible_4_0);
            let seen_5 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u + 1u);
            let visible_5_0 = (keys_0 >= vec4<i32>(seen_5.x)) & (keys_0 < vec4<i32>(seen_5.y));
            p_5_0 = select(vec4<f32>(), p_5_0, visible_5_0);
            t_5_0 = select(vec4<f32>(UNSEEN), t_5_0, visible_5_0);
            let seen_6 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u + 2u);
            let visible_6_0 = (keys_0 >= vec4<i32>(seen_6.x)) & (keys_0 < vec4<i32>(seen_6.y));
            p_6_0 = select(vec4<f32>(), p_6_0, visible_6_0);
            t_6_0 = select(vec4<f32>(UNSEEN), t_6_0, visible_6_0);
            let seen_7 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u + 3u);
            let visible_7_0 = (keys_0 >= vec4<i32>(seen_7.x)) & (keys_0 < vec4<i32>(seen_7.y));
            p_7_0 = select(vec4<f32>(), p_7_0, visible_7_0);
            t_7_0 = select(vec4<f32>(UNSEEN), t_7_0, visible_7_0);
        }
        p_tiles[tile_first + (row * 4u) * COL_VECS] = t_0_0;
        p_tiles[tile_first + (row * 4u + 1u) * COL_VECS] = t_1_0;
        p_tiles[tile_first + (row * 4u + 2u) * COL_VECS] = t_2_0;
        p_tiles[tile_first + (row * 4u + 3u) * COL_VECS] = t_3_0;
        p_tiles[tile_first + ((row + ROW_THREADS) * 4u) * COL_VECS] = t_4_0;
        p_tiles[tile_first + ((row + ROW_THREADS) * 4u + 1u) * COL_VECS] = t_5_0;
        p_tiles[tile_first + ((row + ROW_THREADS) * 4u + 2u) * COL_VECS] = t_6_0;
        p_tiles[tile_first + ((row + ROW_THREADS) * 4u + 3u) * COL_VECS] = t_7_0;

        // dP_ij = dO_i·V_j
        var dp_0_0 = vec4<f32>();
        var dp_1_0 = vec4<f32>();
        var dp_2_0 = vec4<f32>();
        var dp_3_0 = vec4<f32>();
        var dp_4_0 = vec4<f32>();
        var dp_5_0 = vec4<f32>();
        var dp_6_0 = vec4<f32>();
        var dp_7_0 = vec4<f32>();
        for (var i = 0u; i < v_chunks; i++) {
            {
                let entry = tid;
                next_a_0 = query_tiles[query_at + entry / ROW_VECS * TILE_VECS + entry % ROW_VECS];
            }
            {
                let entry = tid + THREADS;
                next_a_1 = query_tiles[query_at + entry / ROW_VECS * TILE_VECS + entry % ROW_VECS];
            }
            {
                let entry = tid;
                next_b_0 = key_tiles[key_at + entry / COL_VECS * TILE_VECS + entry % COL_VECS];
            }
            {
                let entry = tid + THREADS;
                next_b_1 = key_tiles[key_at + entry / COL_VECS * TILE_VECS + entry % COL_VECS];
            }
            workgroupBarrier();  // the chunk before has been read
            {
                let entry = tid;
                tile[entry] = next_a_0;
            }
            {
                let entry = tid + THREADS;
                tile[entry] = next_a_1;
            }
            {
                let entry = tid;
                tile[COL_TILE + entry] = next_b_0;
            }
            {
                let entry = tid + THREADS;
                tile[COL_TILE + entry] = next_b_1;
            }
            workgroupBarrier();  // the chunk is complete
            for (var k = 0u; k < CHUNK; k++) {
                let b_0 = tile[COL_TILE + col + k * COL_VECS];
                let a_0 = tile[row + k * ROW_VECS];
                let a_1 = tile[row + ROW_THREADS + k * ROW_VECS];
                dp_0_0 = fma(vec4<f32>(a_0.x), b_0, dp_0_0);
                dp_1_0 = fma(vec4<f32>(a_0.y), b_0, dp_1_0);
                dp_2_0 = fma(vec4<f32>(a_0.z), b_0, dp_2_0);
                dp_3_0 = fma(vec4<f32>(a_0.w), b_0, dp_3_0);
                dp_4_0 = fma(vec4<f32>(a_1.x), b_0, dp_4_0);
                dp_5_0 = fma(vec4<f32>(a_1.y), b_0, dp_5_0);
                dp_6_0 = fma(vec4<f32>(a_1.z), b_0, dp_6_0);
                dp_7_0 = fma(vec4<f32>(a_1.w), b_0, dp_7_0);
            }
            next_chunk += 1u;
            if (next_chunk == chunks) {
                query_at = d_o_first;
                key_at = call.v_tiles + key_start(key_tile, begin, call.v_channels);
            } else if (next_chunk < chunks + v_chunks) {
                query_at += CHUNK * TILE_VECS;
                key_at += CHUNK * TILE_VECS;
            }
        }
        if (!whole) {
            let keys_0 = i32(first_key + (col) * 4u) + vec4<i32>(0, 1, 2, 3);
            let seen_0 = seen_by(batch, first_query + row * 4u);
            let visible_0_0 = (keys_0 >= vec4<i32>(seen_0.x)) & (keys_0 < vec4<i32>(seen_0.y));
            dp_0_0 = select(vec4<f32>(), dp_0_0, visible_0_0);
            let seen_1 = seen_by(batch, first_query + row * 4u + 1u);
            let visible_1_0 = (keys_0 >= vec4<i32>(seen_1.x)) & (keys_0 < vec4<i32>(seen_1.y));
            dp_1_0 = select(vec4<f32>(), dp_1_0, visible_1_0);
            let seen_2 = seen_by(batch, first_query + row * 4u + 2u);
            let visible_2_0 = (keys_0 >= vec4<i32>(seen_2.x)) & (keys_0 < vec4<i32>(seen_2.y));
            dp_2_0 = select(vec4<f32>(), dp_2_0, visible_2_0);
            let seen_3 = seen_by(batch, first_query + row * 4u + 3u);
            let visible_3_0 = (keys_0 >= vec4<i32>(seen_3.x)) & (keys_0 < vec4<i32>(seen_3.y));
            dp_3_0 = select(vec4<f32>(), dp_3_0, visible_3_0);
            let seen_4 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u);
            let visible_4_0 = (keys_0 >= vec4<i32>(seen_4.x)) & (keys_0 < vec4<i32>(seen_4.y));
            dp_4_0 = select(vec4<f32>(), dp_4_0, visible_4_0);
            let seen_5 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u + 1u);
            let visible_5_0 = (keys_0 >= vec4<i32>(seen_5.x)) & (keys_0 < vec4<i32>(seen_5.y));
            dp_5_0 = select(vec4<f32>(), dp_5_0, visible_5_0);
            let seen_6 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u + 2u);
            let visible_6_0 = (keys_0 >= vec4<i32>(seen_6.x)) & (keys_0 < vec4<i32>(seen_6.y));
            dp_6_0 = select(vec4<f32>(), dp_6_0, visible_6_0);
            let seen_7 = seen_by(batch, first_query + (row + ROW_THREADS) * 4u + 3u);
            let visible_7_0 = (keys_0 >= vec4<i32>(seen_7.x)) & (keys_0 < vec4<i32>(seen_7.y));
            dp_7_0 = select(vec4<f32>(), dp_7_0, visible_7_0);
        }
        d_p_tiles[tile_first + (row * 4u) * COL_VECS] = dp_0_0;
        d_p_tiles[tile_first + (row * 4u + 1u) * COL_VECS] = dp_1_0;
        d_p_tiles[tile_first + (row * 4u + 2u) * COL_VECS] = dp_2_0;
        d_p_tiles[tile_first + (row * 4u + 3u) * COL_VECS] = dp_3_0;
        d_p_tiles[tile_first + ((row + ROW_THREADS) * 4u) * COL_VECS] = dp_4_0;
        d_p_tiles[tile_first + ((row + ROW_THREADS) * 4u + 1u) * COL_VECS] = dp_5_0;
        d_p_tiles[tile_first + ((row + ROW_THREADS) * 4u + 2u) * COL_VECS] = dp_6_0;
        d_p_tiles[tile_first + ((row + ROW_THREADS) * 4u + 3u) * COL_VECS] = dp_7_0;
        sum_0 += sums_of(p_0_0, dp_0_0);
        sum_1 += sums_of(p_1_0, dp_1_0);
        sum_2 += sums_of(p_2_0, dp_2_0);
        sum_3 += sums_of(p_3_0, dp_3_0);
        sum_4 += sums_of(p_4_0, dp_4_0);
        sum_5 += sums_of(p_5_0, dp_5_0);
        sum_6 += sums_of(p_6_0, dp_6_0);
        sum_7 += sums_of(p_7_0, dp_7_0);
    }

    // The rows' sums over this span: a vec4 holds those of two rows, from one thread, and the threads that share the rows are
    // added pairwise. Similar terms are rounded alike, so that the error of one long chain of additions would grow with its length.
    workgroupBarrier();  // the last chunk has been read
    tile[(row * 4u) / 2u * COL_THREADS + col] = vec4<f32>(sum_0, sum_1);
    tile[(row * 4u + 2u) / 2u * COL_THREADS + col] = vec4<f32>(sum_2, sum_3);
    tile[((row + ROW_THREADS) * 4u) / 2u * COL_THREADS + col] = vec4<f32>(sum_4, sum_5);
    tile[((row + ROW_THREADS) * 4u + 2u) / 2u * COL_THREADS + col] = vec4<f32>(sum_6, sum_7);
    workgroupBarrier();  // every thread's sums are there
    for (var pair = tid; pair < ROWS / 2u; pair += THREADS) {
        let first = pair * COL_THREADS;
        var total = vec4<f32>();
        for (var i = first; i < first + COL_THREADS; i += 8u) {
            let a = (tile[i] + tile[i + 1u]) + (tile[i + 2u] + tile[i + 3u]);
            let b = (tile[i + 4u] + tile[i + 5u]) + (tile[i + 6u] + tile[i + 7u]);
            total += a + b;
        }
        let at = (workgroup.z * call.strip_rows + block_row + pair * 2u) * call.spans + workgroup.x;
        row_sums[at] = total.xy;
        row_sums[at + call.spans] = total.zw;
    }
}
