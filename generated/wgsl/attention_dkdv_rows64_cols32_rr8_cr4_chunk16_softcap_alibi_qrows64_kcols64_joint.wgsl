// attention_dkdv_rows64_cols32_rr8_cr4_chunk16_softcap_alibi_qrows64_kcols64_joint
//
// dK and dV from a strip of P and dP.
//
//   dK_j = Σ_i dS_ij·Q_i    dV_j = Σ_i P_ij·dO_i    over the strip's queries, in every query head of the group
//
// One workgroup owns block wg.y of ROWS keys × block wg.z of COLS channels of one kv head, for one of the parts that the key's
// queries are split into (wg.x): head_parts of the group's heads, times query_parts of the strip's blocks of queries. It loops
// over those blocks that see one of its keys, CHUNK queries at a time.
// A thread holds 8 keys × 4 channels of both gradients: dk_<key>_<channels>, dv_<key>_<channels>.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 64u;  // keys
const COLS: u32 = 32u;  // channels
const ROW_VECS: u32 = ROWS / 4u;  // vec4 elements of a staged row of P or dS
const COL_VECS: u32 = COLS / 4u;  // and of Q or dO
const ROW_THREADS: u32 = 8u;  // threads that share a channel
const THREADS: u32 = 64u;
const CHUNK: u32 = 16u;  // queries
const DS_TILE: u32 = CHUNK * ROW_VECS;  // where in a chunk the rows of dS begin, after those of P
const DO_TILE: u32 = 2u * CHUNK * ROW_VECS;
const Q_TILE: u32 = CHUNK * (2u * ROW_VECS + COL_VECS);
const QUERY_ROWS: u32 = 64u;  // queries of a block
const KEY_COLS: u32 = 64u;  // keys of a block of scores
const KEY_VECS: u32 = KEY_COLS / 4u;
override HEAD_DIM: u32;  // channels, a multiple of 4
override V_HEAD_DIM: u32;  // channels, a multiple of 4

// Where a tensor's rows lie, in numbers of 4 bytes: the first one, and how far apart batch entries, positions and heads are
struct Rows {
    offset: u32,
    batch: u32,
    row: u32,
    head: u32,
}

struct Call {
    q: Rows,
    d_o: Rows,
    d_k: Rows,
    d_v: Rows,
    q_len: u32,
    kv_len: u32,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    slot_first: u32,
    row_first: u32,
    strip_rows: u32,
    strip_tiles: u32,
    strip_slots: u32,
    batch: u32,
    head_parts: u32,
    query_parts: u32,
    add_k: u32,
    add_v: u32,
    d_k_part: u32,
    d_v_part: u32,
    softcap: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> d_o: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> p_tiles: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> d_p_tiles: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> row_terms: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(6) var<storage, read_write> d_k: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> d_v: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> call: Call;

// Workgroup memory: 12288 bytes.
var<workgroup> tile: array<vec4<f32>, 768>;

fn are_finite(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
}

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
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

// dS_ij without its factors, P_ij·(dP_ij − D_i)·(1 − t_ij²), and zero where the query does not see the key, even if D is NaN.
fn d_s(t: vec4<f32>, p: vec4<f32>, d_p: vec4<f32>, delta: f32) -> vec4<f32> {
    return select(p * (d_p - delta) * ((1.0 - t) * (1.0 + t)), vec4<f32>(), t == vec4<f32>(UNSEEN));
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

fn q_start(batch: u32, head: u32) -> u32 {
    return (call.q.offset + batch * call.q.batch + head * call.q.head) / 4u;
}

fn read_q(start: u32, position: u32, channel: u32) -> vec4<f32> {
    let row = start + min(position, call.q_len - 1u) * (call.q.row / 4u);
    return q[row + min(channel, HEAD_DIM / 4u - 1u)];
}

fn d_o_start(batch: u32, head: u32) -> u32 {
    return (call.d_o.offset + batch * call.d_o.batch + head * call.d_o.head) / 4u;
}

fn read_d_o(start: u32, position: u32, channel: u32) -> vec4<f32> {
    let row = start + min(position, call.q_len - 1u) * (call.d_o.row / 4u);
    return d_o[row + min(channel, V_HEAD_DIM / 4u - 1u)];
}

fn d_k_row_at(part: u32, batch: u32, position: u32, head: u32) -> u32 {
    let first = call.d_k.offset + part * call.d_k_part + batch * call.d_k.batch;
    return (first + position * call.d_k.row + head * call.d_k.head) / 4u;
}

fn write_d_k(row: u32, channel: u32, x: vec4<f32>, add: bool) {
    if (channel >= HEAD_DIM / 4u) {
        return;
    }
    let at = row + channel;
    if (add) {
        d_k[at] = guard_result(d_k[at] + guard_result(x));
    } else {
        d_k[at] = guard_result(x);
    }
}

fn d_v_row_at(part: u32, batch: u32, position: u32, head: u32) -> u32 {
    let first = call.d_v.offset + part * call.d_v_part + batch * call.d_v.batch;
    return (first + position * call.d_v.row + head * call.d_v.head) / 4u;
}

fn write_d_v(row: u32, channel: u32, x: vec4<f32>, add: bool) {
    if (channel >= V_HEAD_DIM / 4u) {
        return;
    }
    let at = row + channel;
    if (add) {
        d_v[at] = guard_result(d_v[at] + guard_result(x));
    } else {
        d_v[at] = guard_result(x);
    }
}

@compute @workgroup_size(64, 1, 1)
fn attention_dkdv(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let group = call.heads / call.kv_heads;
    let parts = call.head_parts * call.query_parts;
    let part = workgroup.x % parts;
    let kv_slot = call.slot_first / group + workgroup.x / parts;
    let batch = kv_slot / call.kv_heads;
    let kv_head = kv_slot % call.kv_heads;
    let first_key = workgroup.y * ROWS;
    let first_channel = workgroup.z * COL_VECS;

    // This thread's keys are the fours row, row + ROW_THREADS, …, its channels the fours col, col + COL_THREADS, …
    let row = tid / 32u * 4u + tid % 32u / 16u * 2u + tid % 2u;
    let col = tid / 2u % 8u;

    // (h, block, chunk) runs over the part's heads of the group, their blocks that see one of the keys, and the blocks' chunks.
    let block_count = min(call.strip_rows, call.q_len - call.row_first + QUERY_ROWS - 1u) / QUERY_ROWS;
    let first_of_strip = call.row_first / QUERY_ROWS;
    let first_block = part % call.query_parts;
    var h = part / call.query_parts;
    var block = first_block;
    var chunk = 0u;  // its first query of the block
    var tile_at = 0u;  // where the block's scores of these keys begin
    var strip_row = 0u;  // the block's first row, over all the strip's slots
    var first_query = 0u;  // the block's first query
    var head = 0u;  // and the query head that it is of
    while (h < group) {
        let slot = batch * call.heads + kv_head * group + h;
        if (block >= block_count || slot < call.slot_first || slot >= call.slot_first + call.strip_slots) {
            h += call.head_parts;
            block = first_block;
            continue;
        }
        let hull = hull_of(batch, first_of_strip + block);
        if (i32(first_key) < hull.w && i32(first_key + ROWS) > hull.x) {
            let strip_slot = slot - call.slot_first;
            let before = first_tile(first_of_strip + block) + (first_key - base_of(hull)) / KEY_COLS;
            let scores_tile = strip_slot * call.strip_tiles + before;
            tile_at = scores_tile * (QUERY_ROWS * KEY_VECS) + first_key % KEY_COLS / 4u;
            strip_row = strip_slot * call.strip_rows + block * QUERY_ROWS;
            first_query = call.row_first + block * QUERY_ROWS;
            head = kv_head * group + h;
            break;
        }
        block += call.query_parts;
    }
    var more = h < group;
    if (!more && call.add_k != 0u && call.add_v != 0u) {
        return;  // there is nothing to add
    }

    // Each block's sums are added up: one chain of additions over all the queries would lose accuracy.
    var all_dk_0_0 = vec4<f32>();
    var all_dk_1_0 = vec4<f32>();
    var all_dk_2_0 = vec4<f32>();
    var all_dk_3_0 = vec4<f32>();
    var all_dk_4_0 = vec4<f32>();
    var all_dk_5_0 = vec4<f32>();
    var all_dk_6_0 = vec4<f32>();
    var all_dk_7_0 = vec4<f32>();
    var all_dv_0_0 = vec4<f32>();
    var all_dv_1_0 = vec4<f32>();
    var all_dv_2_0 = vec4<f32>();
    var all_dv_3_0 = vec4<f32>();
    var all_dv_4_0 = vec4<f32>();
    var all_dv_5_0 = vec4<f32>();
    var all_dv_6_0 = vec4<f32>();
    var all_dv_7_0 = vec4<f32>();
    if (more) {
        var next_p_0: vec4<f32>;
        var next_dp_0: vec4<f32>;
        var next_terms_0: vec4<f32>;
        var next_p_1: vec4<f32>;
        var next_dp_1: vec4<f32>;
        var next_terms_1: vec4<f32>;
        var next_p_2: vec4<f32>;
        var next_dp_2: vec4<f32>;
        var next_terms_2: vec4<f32>;
        var next_p_3: vec4<f32>;
        var next_dp_3: vec4<f32>;
        var next_terms_3: vec4<f32>;
        var next_factor_0: f32;
        var next_q_0: vec4<f32>;
        var next_do_0: vec4<f32>;
        var next_factor_1: f32;
        var next_q_1: vec4<f32>;
        var next_do_1: vec4<f32>;
        var stored_query = 0u;
        loop {
            var dk_0_0 = vec4<f32>();
            var dk_1_0 = vec4<f32>();
            var dk_2_0 = vec4<f32>();
            var dk_3_0 = vec4<f32>();
            var dk_4_0 = vec4<f32>();
            var dk_5_0 = vec4<f32>();
            var dk_6_0 = vec4<f32>();
            var dk_7_0 = vec4<f32>();
            var dv_0_0 = vec4<f32>();
            var dv_1_0 = vec4<f32>();
            var dv_2_0 = vec4<f32>();
            var dv_3_0 = vec4<f32>();
            var dv_4_0 = vec4<f32>();
            var dv_5_0 = vec4<f32>();
            var dv_6_0 = vec4<f32>();
            var dv_7_0 = vec4<f32>();
            for (var i = 0u; i < QUERY_ROWS / CHUNK; i++) {
                stored_query = first_query + chunk;
                {
                    let entry = tid;
                    next_p_0 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                    next_terms_0 = row_terms[strip_row + chunk + entry / ROW_VECS];
                }
                {
                    let entry = tid + THREADS;
                    next_p_1 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                    next_terms_1 = row_terms[strip_row + chunk + entry / ROW_VECS];
                }
                {
                    let entry = tid + 2u * THREADS;
                    next_p_2 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                    next_terms_2 = row_terms[strip_row + chunk + entry / ROW_VECS];
                }
                {
                    let entry = tid + 3u * THREADS;
                    next_p_3 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                    next_terms_3 = row_terms[strip_row + chunk + entry / ROW_VECS];
                }
                {
                    let entry = tid;
                    next_factor_0 = row_terms[strip_row + chunk + entry / COL_VECS].x;
                }
                {
                    let entry = tid + THREADS;
                    next_factor_1 = row_terms[strip_row + chunk + entry / COL_VECS].x;
                }
                {
                    let entry = tid;
                    next_dp_0 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                }
                {
                    let entry = tid + THREADS;
                    next_dp_1 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                }
                {
                    let entry = tid + 2u * THREADS;
                    next_dp_2 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                }
                {
                    let entry = tid + 3u * THREADS;
                    next_dp_3 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                }
                {
                    let entry = tid;
                    let query = first_query + chunk + entry / COL_VECS;
                    let channel = first_channel + entry % COL_VECS;
                    next_q_0 = read_q(q_start(batch, head), query, channel);
                }
                {
                    let entry = tid + THREADS;
                    let query = first_query + chunk + entry / COL_VECS;
                    let channel = first_channel + entry % COL_VECS;
                    next_q_1 = read_q(q_start(batch, head), query, channel);
                }
                {
                    let entry = tid;
                    let query = first_query + chunk + entry / COL_VECS;
                    let channel = first_channel + entry % COL_VECS;
                    next_do_0 = read_d_o(d_o_start(batch, head), query, channel);
                }
                {
                    let entry = tid + THREADS;
                    let query = first_query + chunk + entry / COL_VECS;
                    let channel = first_channel + entry % COL_VECS;
                    next_do_1 = read_d_o(d_o_start(batch, head), query, channel);
                }
                workgroupBarrier();  // the chunk before has been read
                {
                    let entry = tid;
                    let terms = next_terms_0;
                    let query = stored_query + entry / ROW_VECS;
                    let key = first_key + entry % ROW_VECS * 4u;
                    let distance = f32(i32(query + call.kv_len) - i32(call.q_len + key));
                    let p = capped_probabilities(next_p_0, terms.w * abs(distance - vec4<f32>(0.0, 1.0, 2.0, 3.0)), terms.z);
                    tile[entry] = p;
                    tile[DS_TILE + entry] = d_s(next_p_0, p, next_dp_0, terms.y);
                }
                {
                    let entry = tid + THREADS;
                    let terms = next_terms_1;
                    let query = stored_query + entry / ROW_VECS;
                    let key = first_key + entry % ROW_VECS * 4u;
                    let distance = f32(i32(query + call.kv_len) - i32(call.q_len + key));
                    let p = capped_probabilities(next_p_1, terms.w * abs(distance - vec4<f32>(0.0, 1.0, 2.0, 3.0)), terms.z);
                    tile[entry] = p;
                    tile[DS_TILE + entry] = d_s(next_p_1, p, next_dp_1, terms.y);
                }
                {
                    let entry = tid + 2u * THREADS;
                    let terms = next_terms_2;
                    let query = stored_query + entry / ROW_VECS;
                    let key = first_key + entry % ROW_VECS * 4u;
                    let distance = f32(i32(query + call.kv_len) - i32(call.q_len + key));
                    let p = capped_probabilities(next_p_2, terms.w * abs(distance - vec4<f32>(0.0, 1.0, 2.0, 3.0)), terms.z);
                    tile[entry] = p;
                    tile[DS_TILE + entry] = d_s(next_p_2, p, next_dp_2, terms.y);
                }
                {
                    let entry = tid + 3u * THREADS;
                    let terms = next_terms_3;
                    let query = stored_query + entry / ROW_VECS;
                    let key = first_key + entry % ROW_VECS * 4u;
                    let distance = f32(i32(query + call.kv_len) - i32(call.q_len + key));
                    let p = capped_probabilities(next_p_3, terms.w * abs(distance - vec4<f32>(0.0, 1.0, 2.0, 3.0)), terms.z);
                    tile[entry] = p;
                    tile[DS_TILE + entry] = d_s(next_p_3, p, next_dp_3, terms.y);
                }
                {
                    let entry = tid;
                    tile[DO_TILE + entry] = finite_or_zero(next_do_0) * next_factor_0;
                    tile[Q_TILE + entry] = finite_or_zero(next_q_0) * next_factor_0;
                }
                {
                    let entry = tid + THREADS;
                    tile[DO_TILE + entry] = finite_or_zero(next_do_1) * next_factor_1;
                    tile[Q_TILE + entry] = finite_or_zero(next_q_1) * next_factor_1;
                }
                workgroupBarrier();  // the chunk is complete
                // dV_j += P_ij·dO_i
                for (var k = 0u; k < CHUNK; k++) {
                    let b_0 = tile[DO_TILE + col + k * COL_VECS];
                    let a_0 = tile[row + k * ROW_VECS];
                    let a_1 = tile[row + ROW_THREADS + k * ROW_VECS];
                    dv_0_0 = fma(vec4<f32>(a_0.x), b_0, dv_0_0);
                    dv_1_0 = fma(vec4<f32>(a_0.y), b_0, dv_1_0);
                    dv_2_0 = fma(vec4<f32>(a_0.z), b_0, dv_2_0);
                    dv_3_0 = fma(vec4<f32>(a_0.w), b_0, dv_3_0);
                    dv_4_0 = fma(vec4<f32>(a_1.x), b_0, dv_4_0);
                    dv_5_0 = fma(vec4<f32>(a_1.y), b_0, dv_5_0);
                    dv_6_0 = fma(vec4<f32>(a_1.z), b_0, dv_6_0);
                    dv_7_0 = fma(vec4<f32>(a_1.w), b_0, dv_7_0);
                }

                // dK_j += dS_ij·Q_i
                for (var k = 0u; k < CHUNK; k++) {
                    let b_0 = tile[Q_TILE + col + k * COL_VECS];
                    let a_0 = tile[DS_TILE + row + k * ROW_VECS];
                    let a_1 = tile[DS_TILE + row + ROW_THREADS + k * ROW_VECS];
                    dk_0_0 = fma(vec4<f32>(a_0.x), b_0, dk_0_0);
                    dk_1_0 = fma(vec4<f32>(a_0.y), b_0, dk_1_0);
                    dk_2_0 = fma(vec4<f32>(a_0.z), b_0, dk_2_0);
                    dk_3_0 = fma(vec4<f32>(a_0.w), b_0, dk_3_0);
                    dk_4_0 = fma(vec4<f32>(a_1.x), b_0, dk_4_0);
                    dk_5_0 = fma(vec4<f32>(a_1.y), b_0, dk_5_0);
                    dk_6_0 = fma(vec4<f32>(a_1.z), b_0, dk_6_0);
                    dk_7_0 = fma(vec4<f32>(a_1.w), b_0, dk_7_0);
                }
                chunk += CHUNK;
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
                        let hull = hull_of(batch, first_of_strip + block);
                        if (i32(first_key) < hull.w && i32(first_key + ROWS) > hull.x) {
                            let strip_slot = slot - call.slot_first;
                            let before = first_tile(first_of_strip + block) + (first_key - base_of(hull)) / KEY_COLS;
                            let scores_tile = strip_slot * call.strip_tiles + before;
                            tile_at = scores_tile * (QUERY_ROWS * KEY_VECS) + first_key % KEY_COLS / 4u;
                            strip_row = strip_slot * call.strip_rows + block * QUERY_ROWS;
                            first_query = call.row_first + block * QUERY_ROWS;
                            head = kv_head * group + h;
                            break;
                        }
                        block += call.query_parts;
                    }
                    more = h < group;
                }
            }
            all_dk_0_0 += dk_0_0;
            all_dk_1_0 += dk_1_0;
            all_dk_2_0 += dk_2_0;
            all_dk_3_0 += dk_3_0;
            all_dk_4_0 += dk_4_0;
            all_dk_5_0 += dk_5_0;
            all_dk_6_0 += dk_6_0;
            all_dk_7_0 += dk_7_0;
            all_dv_0_0 += dv_0_0;
            all_dv_1_0 += dv_1_0;
            all_dv_2_0 += dv_2_0;
            all_dv_3_0 += dv_3_0;
            all_dv_4_0 += dv_4_0;
            all_dv_5_0 += dv_5_0;
            all_dv_6_0 += dv_6_0;
            all_dv_7_0 += dv_7_0;
            if (!more) {
                break;
            }
        }
    }

    {
        let key_0 = first_key + row * 4u;
        if (key_0 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_0, kv_head);
            write_d_k(start, first_channel + col, all_dk_0_0 * call.scale, call.add_k != 0u);
        }
        let key_1 = first_key + row * 4u + 1u;
        if (key_1 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_1, kv_head);
            write_d_k(start, first_channel + col, all_dk_1_0 * call.scale, call.add_k != 0u);
        }
        let key_2 = first_key + row * 4u + 2u;
        if (key_2 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_2, kv_head);
            write_d_k(start, first_channel + col, all_dk_2_0 * call.scale, call.add_k != 0u);
        }
        let key_3 = first_key + row * 4u + 3u;
        if (key_3 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_3, kv_head);
            write_d_k(start, first_channel + col, all_dk_3_0 * call.scale, call.add_k != 0u);
        }
        let key_4 = first_key + (row + ROW_THREADS) * 4u;
        if (key_4 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_4, kv_head);
            write_d_k(start, first_channel + col, all_dk_4_0 * call.scale, call.add_k != 0u);
        }
        let key_5 = first_key + (row + ROW_THREADS) * 4u + 1u;
        if (key_5 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_5, kv_head);
            write_d_k(start, first_channel + col, all_dk_5_0 * call.scale, call.add_k != 0u);
        }
        let key_6 = first_key + (row + ROW_THREADS) * 4u + 2u;
        if (key_6 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_6, kv_head);
            write_d_k(start, first_channel + col, all_dk_6_0 * call.scale, call.add_k != 0u);
        }
        let key_7 = first_key + (row + ROW_THREADS) * 4u + 3u;
        if (key_7 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_7, kv_head);
            write_d_k(start, first_channel + col, all_dk_7_0 * call.scale, call.add_k != 0u);
        }
    }
    {
        let key_0 = first_key + row * 4u;
        if (key_0 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_0, kv_head);
            write_d_v(start, first_channel + col, all_dv_0_0, call.add_v != 0u);
        }
        let key_1 = first_key + row * 4u + 1u;
        if (key_1 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_1, kv_head);
            write_d_v(start, first_channel + col, all_dv_1_0, call.add_v != 0u);
        }
        let key_2 = first_key + row * 4u + 2u;
        if (key_2 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_2, kv_head);
            write_d_v(start, first_channel + col, all_dv_2_0, call.add_v != 0u);
        }
        let key_3 = first_key + row * 4u + 3u;
        if (key_3 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_3, kv_head);
            write_d_v(start, first_channel + col, all_dv_3_0, call.add_v != 0u);
        }
        let key_4 = first_key + (row + ROW_THREADS) * 4u;
        if (key_4 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_4, kv_head);
            write_d_v(start, first_channel + col, all_dv_4_0, call.add_v != 0u);
        }
        let key_5 = first_key + (row + ROW_THREADS) * 4u + 1u;
        if (key_5 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_5, kv_head);
            write_d_v(start, first_channel + col, all_dv_5_0, call.add_v != 0u);
        }
        let key_6 = first_key + (row + ROW_THREADS) * 4u + 2u;
        if (key_6 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_6, kv_head);
            write_d_v(start, first_channel + col, all_dv_6_0, call.add_v != 0u);
        }
        let key_7 = first_key + (row + ROW_THREADS) * 4u + 3u;
        if (key_7 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_7, kv_head);
            write_d_v(start, first_channel + col, all_dv_7_0, call.add_v != 0u);
        }
    }
}
