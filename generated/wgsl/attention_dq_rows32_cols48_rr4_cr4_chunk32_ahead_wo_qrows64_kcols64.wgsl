// attention_dq_rows32_cols48_rr4_cr4_chunk32_ahead_wo_qrows64_kcols64
//
// dQ from a strip of P and dP.
//
//   dQ_i = Σ_j dS_ij·K_j    over the keys that the block's queries see
//
// One workgroup owns a block of ROWS queries (wg.y, the last first: under a causal mask they see most) × block wg.z of COLS
// channels of one slot, for one of the key_parts that the blocks of KEY_COLS keys are split into (wg.x). It loops over the keys,
// CHUNK at a time. A thread holds 4 queries × 4 channels: dq_<query>_<channels>.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 32u;  // queries
const COLS: u32 = 48u;  // channels
const COL_VECS: u32 = COLS / 4u;  // vec4 elements of a staged row of K
const ROW_THREADS: u32 = 8u;  // threads that share a channel
const COL_THREADS: u32 = 12u;  // threads that share a query
const THREADS: u32 = 96u;
const CHUNK: u32 = 32u;  // keys
const ROW_VECS: u32 = CHUNK / 4u;  // vec4 elements of a staged row of dS
const ROW_STRIDE: u32 = ROW_VECS + 1u;  // one vec4 of padding keeps the rows in different banks
const COL_TILE: u32 = ROWS * ROW_STRIDE;  // where in a chunk the rows of K begin
const QUERY_ROWS: u32 = 64u;  // queries of a block of scores
const KEY_COLS: u32 = 64u;  // and its keys
const KEY_VECS: u32 = KEY_COLS / 4u;
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
    strip_tiles: u32,
    batch: u32,
    key_parts: u32,
    add_q: u32,
    d_q_part: u32,
}

@group(0) @binding(0) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> p_tiles: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> d_p_tiles: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> row_terms: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> d_q: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> call: Call;

// Workgroup memory: 10752 bytes.
var<workgroup> tile: array<vec4<f32>, 672>;

fn are_finite(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
}

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

// dS_ij without its factors, P_ij·(dP_ij − D_i), and zero where the query does not see the key, even if D is NaN: P and dP are
// then both zero.
fn d_s(p: vec4<f32>, d_p: vec4<f32>, delta: f32) -> vec4<f32> {
    let seen = ((bitcast<vec4<u32>>(p) | bitcast<vec4<u32>>(d_p)) & vec4<u32>(0x7fffffffu)) != vec4<u32>();
    return select(vec4<f32>(), p * (d_p - delta), seen);
}

// For rows that may belong to pairs that are not seen: there P and dS are zero, and zero times NaN would spoil the sum.
fn finite_or_zero(x: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), x, are_finite(x));
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

// The tile that the scores of a block of queries begin with, in a slot of the strip.
fn first_tile(block: u32) -> u32 {
    let at = call.batch * (call.q_len + 2u * ((call.q_len + QUERY_ROWS - 1u) / QUERY_ROWS));
    return u32(intervals[at + block].x - intervals[at + call.row_first / QUERY_ROWS].x);
}

fn k_start(batch: u32, head: u32) -> u32 {
    return (call.k.offset + batch * call.k.batch + head * call.k.head) / 4u;
}

fn read_k(start: u32, position: u32, channel: u32) -> vec4<f32> {
    let row = start + min(position, call.kv_len - 1u) * (call.k.row / 4u);
    return k[row + min(channel, HEAD_DIM / 4u - 1u)];
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

@compute @workgroup_size(96, 1, 1)
fn attention_dq(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
) {
    let strip_slot = workgroup.x / call.key_parts;
    let part = workgroup.x % call.key_parts;
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
    let hull = hull_of(batch, first_query / QUERY_ROWS);
    let k_first = k_start(batch, kv_head);

    // This thread's queries are row, row + ROW_THREADS, …, its channels the fours col, col + COL_THREADS, …
    let row = tid / COL_THREADS;
    let col = tid % COL_THREADS;
    var dq_0_0 = vec4<f32>();
    var dq_1_0 = vec4<f32>();
    var dq_2_0 = vec4<f32>();
    var dq_3_0 = vec4<f32>();

    // This part of the blocks of scores that the hull meets. Each of them was written whole.
    let base = base_of(hull);
    let seen = hull.x < hull.w;
    let first_block = select(0u, base / KEY_COLS, seen);
    let blocks = select(0u, (u32(hull.w) + KEY_COLS - 1u) / KEY_COLS - first_block, seen);
    let begin = (first_block + blocks * part / call.key_parts) * KEY_COLS;
    let end = (first_block + blocks * (part + 1u) / call.key_parts) * KEY_COLS;
    if (begin < end) {
        let scores_tile = strip_slot * call.strip_tiles + first_tile(first_query / QUERY_ROWS) + (begin - base) / KEY_COLS;
        var tile_at = (scores_tile * QUERY_ROWS + first_query % QUERY_ROWS) * KEY_VECS;  // where the chunk's scores begin
        var next_key = begin;
        var stored_key = begin;
        var next_p_0: vec4<f32>;
        var next_dp_0: vec4<f32>;
        let delta_0 = row_terms[first_row + tid / ROW_VECS].y;
        var next_p_1: vec4<f32>;
        var next_dp_1: vec4<f32>;
        let delta_1 = row_terms[first_row + (tid + THREADS) / ROW_VECS].y;
        var next_p_2: vec4<f32>;
        var next_dp_2: vec4<f32>;
        let delta_2 = row_terms[first_row + min(tid + 2u * THREADS, ROWS * ROW_VECS - 1u) / ROW_VECS].y;
        var next_k_0: vec4<f32>;
        var next_k_1: vec4<f32>;
        var next_k_2: vec4<f32>;
        var next_k_3: vec4<f32>;
        stored_key = next_key;
        {
            let entry = tid;
            let source = tile_at + entry / ROW_VECS * KEY_VECS + entry % ROW_VECS;
            next_p_0 = p_tiles[source];
            next_dp_0 = d_p_tiles[source];
        }
        {
            let entry = tid + THREADS;
            let source = tile_at + entry / ROW_VECS * KEY_VECS + entry % ROW_VECS;
            next_p_1 = p_tiles[source];
            next_dp_1 = d_p_tiles[source];
        }
        if (tid + 2u * THREADS < ROWS * ROW_VECS) {
            let entry = tid + 2u * THREADS;
            let source = tile_at + entry / ROW_VECS * KEY_VECS + entry % ROW_VECS;
            next_p_2 = p_tiles[source];
            next_dp_2 = d_p_tiles[source];
        }
        {
            let entry = tid;
            next_k_0 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
        }
        {
            let entry = tid + THREADS;
            next_k_1 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
        }
        {
            let entry = tid + 2u * THREADS;
            next_k_2 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
        }
        {
            let entry = tid + 3u * THREADS;
            next_k_3 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
        }
        for (var key = begin; key < end; key += CHUNK) {
            workgroupBarrier();  // the chunk before has been read
            if (i32(stored_key) >= hull.y && i32(stored_key + CHUNK) <= hull.z) {  // every query sees every key of the chunk
                {
                    let entry = tid;
                    tile[entry / ROW_VECS * ROW_STRIDE + entry % ROW_VECS] = next_p_0 * (next_dp_0 - delta_0);
                }
                {
                    let entry = tid + THREADS;
                    tile[entry / ROW_VECS * ROW_STRIDE + entry % ROW_VECS] = next_p_1 * (next_dp_1 - delta_1);
                }
                if (tid + 2u * THREADS < ROWS * ROW_VECS) {
                    let entry = tid + 2u * THREADS;
                    tile[entry / ROW_VECS * ROW_STRIDE + entry % ROW_VECS] = next_p_2 * (next_dp_2 - delta_2);
                }
                {
                    let entry = tid;
                    tile[COL_TILE + entry] = next_k_0;
                }
                {
                    let entry = tid + THREADS;
                    tile[COL_TILE + entry] = next_k_1;
                }
                {
                    let entry = tid + 2u * THREADS;
                    tile[COL_TILE + entry] = next_k_2;
                }
                {
                    let entry = tid + 3u * THREADS;
                    tile[COL_TILE + entry] = next_k_3;
                }
            } else {
                {
                    let entry = tid;
                    tile[entry / ROW_VECS * ROW_STRIDE + entry % ROW_VECS] = d_s(next_p_0, next_dp_0, delta_0);
                }
                {
                    let entry = tid + THREADS;
                    tile[entry / ROW_VECS * ROW_STRIDE + entry % ROW_VECS] = d_s(next_p_1, next_dp_1, delta_1);
                }
                if (tid + 2u * THREADS < ROWS * ROW_VECS) {
                    let entry = tid + 2u * THREADS;
                    tile[entry / ROW_VECS * ROW_STRIDE + entry % ROW_VECS] = d_s(next_p_2, next_dp_2, delta_2);
                }
                {
                    let entry = tid;
                    tile[COL_TILE + entry] = finite_or_zero(next_k_0);
                }
                {
                    let entry = tid + THREADS;
                    tile[COL_TILE + entry] = finite_or_zero(next_k_1);
                }
                {
                    let entry = tid + 2u * THREADS;
                    tile[COL_TILE + entry] = finite_or_zero(next_k_2);
                }
                {
                    let entry = tid + 3u * THREADS;
                    tile[COL_TILE + entry] = finite_or_zero(next_k_3);
                }
            }
            if (next_key + CHUNK < end) {
                next_key += CHUNK;
                tile_at += select(ROW_VECS, QUERY_ROWS * KEY_VECS - KEY_VECS + ROW_VECS, next_key % KEY_COLS == 0u);
            }
            stored_key = next_key;
            {
                let entry = tid;
                let source = tile_at + entry / ROW_VECS * KEY_VECS + entry % ROW_VECS;
                next_p_0 = p_tiles[source];
                next_dp_0 = d_p_tiles[source];
            }
            {
                let entry = tid + THREADS;
                let source = tile_at + entry / ROW_VECS * KEY_VECS + entry % ROW_VECS;
                next_p_1 = p_tiles[source];
                next_dp_1 = d_p_tiles[source];
            }
            if (tid + 2u * THREADS < ROWS * ROW_VECS) {
                let entry = tid + 2u * THREADS;
                let source = tile_at + entry / ROW_VECS * KEY_VECS + entry % ROW_VECS;
                next_p_2 = p_tiles[source];
                next_dp_2 = d_p_tiles[source];
            }
            {
                let entry = tid;
                next_k_0 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
            }
            {
                let entry = tid + THREADS;
                next_k_1 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
            }
            {
                let entry = tid + 2u * THREADS;
                next_k_2 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
            }
            {
                let entry = tid + 3u * THREADS;
                next_k_3 = read_k(k_first, next_key + entry / COL_VECS, first_channel + entry % COL_VECS);
            }
            workgroupBarrier();  // the chunk is complete
            {
                let a_0 = tile[row * ROW_STRIDE];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE];
                {
                    let b_0 = tile[COL_TILE + col];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 2u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 3u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
            {
                let a_0 = tile[row * ROW_STRIDE + 1u];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE + 1u];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE + 1u];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE + 1u];
                {
                    let b_0 = tile[COL_TILE + col + 4u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 5u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 6u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 7u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
            {
                let a_0 = tile[row * ROW_STRIDE + 2u];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE + 2u];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE + 2u];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE + 2u];
                {
                    let b_0 = tile[COL_TILE + col + 8u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 9u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 10u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 11u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
            {
                let a_0 = tile[row * ROW_STRIDE + 3u];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE + 3u];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE + 3u];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE + 3u];
                {
                    let b_0 = tile[COL_TILE + col + 12u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 13u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 14u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 15u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
            {
                let a_0 = tile[row * ROW_STRIDE + 4u];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE + 4u];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE + 4u];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE + 4u];
                {
                    let b_0 = tile[COL_TILE + col + 16u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 17u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 18u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 19u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
            {
                let a_0 = tile[row * ROW_STRIDE + 5u];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE + 5u];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE + 5u];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE + 5u];
                {
                    let b_0 = tile[COL_TILE + col + 20u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 21u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 22u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 23u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
            {
                let a_0 = tile[row * ROW_STRIDE + 6u];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE + 6u];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE + 6u];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE + 6u];
                {
                    let b_0 = tile[COL_TILE + col + 24u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 25u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 26u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 27u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
            {
                let a_0 = tile[row * ROW_STRIDE + 7u];
                let a_1 = tile[(row + ROW_THREADS) * ROW_STRIDE + 7u];
                let a_2 = tile[(row + 2u * ROW_THREADS) * ROW_STRIDE + 7u];
                let a_3 = tile[(row + 3u * ROW_THREADS) * ROW_STRIDE + 7u];
                {
                    let b_0 = tile[COL_TILE + col + 28u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.x), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.x), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.x), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.x), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 29u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.y), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.y), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.y), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.y), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 30u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.z), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.z), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.z), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.z), b_0, dq_3_0);
                }
                {
                    let b_0 = tile[COL_TILE + col + 31u * COL_VECS];
                    dq_0_0 = fma(vec4<f32>(a_0.w), b_0, dq_0_0);
                    dq_1_0 = fma(vec4<f32>(a_1.w), b_0, dq_1_0);
                    dq_2_0 = fma(vec4<f32>(a_2.w), b_0, dq_2_0);
                    dq_3_0 = fma(vec4<f32>(a_3.w), b_0, dq_3_0);
                }
            }
        }
    }

    let query_0 = first_query + row;
    if (query_0 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_0, head);
        let factor = call.scale * row_terms[first_row + row].x;  // dS lacks it
        write_d_q(d_q_row, first_channel + col, dq_0_0 * factor, call.add_q != 0u);
    }
    let query_1 = first_query + row + ROW_THREADS;
    if (query_1 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_1, head);
        let factor = call.scale * row_terms[first_row + row + ROW_THREADS].x;  // dS lacks it
        write_d_q(d_q_row, first_channel + col, dq_1_0 * factor, call.add_q != 0u);
    }
    let query_2 = first_query + row + 2u * ROW_THREADS;
    if (query_2 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_2, head);
        let factor = call.scale * row_terms[first_row + row + 2u * ROW_THREADS].x;  // dS lacks it
        write_d_q(d_q_row, first_channel + col, dq_2_0 * factor, call.add_q != 0u);
    }
    let query_3 = first_query + row + 3u * ROW_THREADS;
    if (query_3 < call.q_len) {
        let d_q_row = d_q_row_at(part, batch, query_3, head);
        let factor = call.scale * row_terms[first_row + row + 3u * ROW_THREADS].x;  // dS lacks it
        write_d_q(d_q_row, first_channel + col, dq_3_0 * factor, call.add_q != 0u);
    }
}
