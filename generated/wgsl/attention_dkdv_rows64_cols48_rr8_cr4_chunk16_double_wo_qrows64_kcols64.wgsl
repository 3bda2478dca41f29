// attention_dkdv_rows64_cols48_rr8_cr4_chunk16_double_wo_qrows64_kcols64
//
// dK and dV from a strip of P and dP.
//
//   dK_j = Σ_i dS_ij·Q_i    dV_j = Σ_i P_ij·dO_i    over the strip's queries, in every query head of the group
//
// One workgroup owns block wg.y of ROWS keys × block wg.z / 2 of COLS channels of one kv head, of dK (wg.z even) or dV (odd), for
// one of the parts that the key's queries are split into (wg.x): head_parts of the group's heads, times query_parts of the
// strip's blocks of queries. It loops over those blocks that see one of its keys, CHUNK queries at a time.
// A thread holds 8 keys × 4 channels: sum_<key>_<channels>.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 64u;  // keys
const COLS: u32 = 48u;  // channels
const ROW_VECS: u32 = ROWS / 4u;  // vec4 elements of a staged row of P or dS
const COL_VECS: u32 = COLS / 4u;  // and of Q or dO
const ROW_THREADS: u32 = 8u;  // threads that share a channel
const COL_THREADS: u32 = 12u;  // threads that share a key
const THREADS: u32 = 96u;
const CHUNK: u32 = 16u;  // queries
const COL_TILE: u32 = CHUNK * ROW_VECS;  // where in a chunk the rows of Q or dO begin
const CHUNK_VECS: u32 = CHUNK * (ROW_VECS + COL_VECS);
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
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> d_o: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> p_tiles: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> d_p_tiles: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> row_terms: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(6) var<storage, read_write> d_k: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> d_v: array<vec4<f32>>;
@group(0) @binding(8) var<uniform> call: Call;

// Workgroup memory: 14336 bytes.
var<workgroup> tile: array<vec4<f32>, 896>;

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

@compute @workgroup_size(96, 1, 1)
fn attention_dkdv(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let group = call.heads / call.kv_heads;
    let parts = call.head_parts * call.query_parts;
    let part = workgroup.x % parts;
    let kv_slot = call.slot_first / group + workgroup.x / parts;
    let batch = kv_slot / call.kv_heads;
    let kv_head = kv_slot % call.kv_heads;
    let first_key = workgroup.y * ROWS;
    let first_channel = workgroup.z / 2u * COL_VECS;
    let of_v = workgroup.z % 2u == 1u;

    // This thread's keys are the fours row, row + ROW_THREADS, …, its channels the fours col, col + COL_THREADS, …
    let row = tid / COL_THREADS;
    let col = tid % COL_THREADS;

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
    if (!more && select(call.add_k, call.add_v, of_v) != 0u) {
        return;  // there is nothing to add
    }

    // Each block's sums are added up: one chain of additions over all the queries would lose accuracy.
    var all_sum_0_0 = vec4<f32>();
    var all_sum_1_0 = vec4<f32>();
    var all_sum_2_0 = vec4<f32>();
    var all_sum_3_0 = vec4<f32>();
    var all_sum_4_0 = vec4<f32>();
    var all_sum_5_0 = vec4<f32>();
    var all_sum_6_0 = vec4<f32>();
    var all_sum_7_0 = vec4<f32>();
    if (more) {
        var next_p_0: vec4<f32>;
        var next_dp_0: vec4<f32>;
        var next_delta_0: f32;
        var next_p_1: vec4<f32>;
        var next_dp_1: vec4<f32>;
        var next_delta_1: f32;
        var next_p_2: vec4<f32>;
        var next_dp_2: vec4<f32>;
        var next_delta_2: f32;
        var next_factor_0: f32;
        var next_b_0: vec4<f32>;
        var next_factor_1: f32;
        var next_b_1: vec4<f32>;
        {
            let entry = tid;
            next_p_0 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
        }
        {
            let entry = tid + THREADS;
            next_p_1 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
        }
        if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
            let entry = tid + 2u * THREADS;
            next_p_2 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
        }
        {
            let entry = tid;
            next_factor_0 = row_terms[strip_row + chunk + entry / COL_VECS].x;
        }
        {
            let entry = tid + THREADS;
            next_factor_1 = row_terms[strip_row + chunk + entry / COL_VECS].x;
        }
        if (of_v) {
            {
                let entry = tid;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_0 = read_d_o(d_o_start(batch, head), query, channel);
            }
            {
                let entry = tid + THREADS;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_1 = read_d_o(d_o_start(batch, head), query, channel);
            }
        } else {
            {
                let entry = tid;
                next_dp_0 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                next_delta_0 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
            }
            {
                let entry = tid + THREADS;
                next_dp_1 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                next_delta_1 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
            }
            if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                let entry = tid + 2u * THREADS;
                next_dp_2 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                next_delta_2 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
            }
            {
                let entry = tid;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_0 = read_q(q_start(batch, head), query, channel);
            }
            {
                let entry = tid + THREADS;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_1 = read_q(q_start(batch, head), query, channel);
            }
        }
        var half = 0u;  // where in tile the chunk is that is multiplied next
        if (of_v) {
            {
                let entry = tid;
                tile[half + entry] = next_p_0;
            }
            {
                let entry = tid + THREADS;
                tile[half + entry] = next_p_1;
            }
            if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                let entry = tid + 2u * THREADS;
                tile[half + entry] = next_p_2;
            }
        } else {
            {
                let entry = tid;
                tile[half + entry] = d_s(next_p_0, next_dp_0, next_delta_0);
            }
            {
                let entry = tid + THREADS;
                tile[half + entry] = d_s(next_p_1, next_dp_1, next_delta_1);
            }
            if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                let entry = tid + 2u * THREADS;
                tile[half + entry] = d_s(next_p_2, next_dp_2, next_delta_2);
            }
        }
        {
            let entry = tid;
            tile[half + COL_TILE + entry] = finite_or_zero(next_b_0) * next_factor_0;
        }
        {
            let entry = tid + THREADS;
            tile[half + COL_TILE + entry] = finite_or_zero(next_b_1) * next_factor_1;
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
        {
            let entry = tid;
            next_p_0 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
        }
        {
            let entry = tid + THREADS;
            next_p_1 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
        }
        if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
            let entry = tid + 2u * THREADS;
            next_p_2 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
        }
        {
            let entry = tid;
            next_factor_0 = row_terms[strip_row + chunk + entry / COL_VECS].x;
        }
        {
            let entry = tid + THREADS;
            next_factor_1 = row_terms[strip_row + chunk + entry / COL_VECS].x;
        }
        if (of_v) {
            {
                let entry = tid;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_0 = read_d_o(d_o_start(batch, head), query, channel);
            }
            {
                let entry = tid + THREADS;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_1 = read_d_o(d_o_start(batch, head), query, channel);
            }
        } else {
            {
                let entry = tid;
                next_dp_0 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                next_delta_0 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
            }
            {
                let entry = tid + THREADS;
                next_dp_1 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                next_delta_1 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
            }
            if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                let entry = tid + 2u * THREADS;
                next_dp_2 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                next_delta_2 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
            }
            {
                let entry = tid;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_0 = read_q(q_start(batch, head), query, channel);
            }
            {
                let entry = tid + THREADS;
                let query = first_query + chunk + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                next_b_1 = read_q(q_start(batch, head), query, channel);
            }
        }
        loop {
            var sum_0_0 = vec4<f32>();
            var sum_1_0 = vec4<f32>();
            var sum_2_0 = vec4<f32>();
            var sum_3_0 = vec4<f32>();
            var sum_4_0 = vec4<f32>();
            var sum_5_0 = vec4<f32>();
            var sum_6_0 = vec4<f32>();
            var sum_7_0 = vec4<f32>();
            for (var i = 0u; i < QUERY_ROWS / CHUNK; i++) {
                let other = CHUNK_VECS - half;
                workgroupBarrier();  // one half holds a chunk, and the other has been read
                if (of_v) {
                    {
                        let entry = tid;
                        tile[other + entry] = next_p_0;
                    }
                    {
                        let entry = tid + THREADS;
                        tile[other + entry] = next_p_1;
                    }
                    if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                        let entry = tid + 2u * THREADS;
                        tile[other + entry] = next_p_2;
                    }
                } else {
                    {
                        let entry = tid;
                        tile[other + entry] = d_s(next_p_0, next_dp_0, next_delta_0);
                    }
                    {
                        let entry = tid + THREADS;
                        tile[other + entry] = d_s(next_p_1, next_dp_1, next_delta_1);
                    }
                    if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                        let entry = tid + 2u * THREADS;
                        tile[other + entry] = d_s(next_p_2, next_dp_2, next_delta_2);
                    }
                }
                {
                    let entry = tid;
                    tile[other + COL_TILE + entry] = finite_or_zero(next_b_0) * next_factor_0;
                }
                {
                    let entry = tid + THREADS;
                    tile[other + COL_TILE + entry] = finite_or_zero(next_b_1) * next_factor_1;
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
                {
                    let entry = tid;
                    next_p_0 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                }
                {
                    let entry = tid + THREADS;
                    next_p_1 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                }
                if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                    let entry = tid + 2u * THREADS;
                    next_p_2 = p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                }
                {
                    let entry = tid;
                    next_factor_0 = row_terms[strip_row + chunk + entry / COL_VECS].x;
                }
                {
                    let entry = tid + THREADS;
                    next_factor_1 = row_terms[strip_row + chunk + entry / COL_VECS].x;
                }
                if (of_v) {
                    {
                        let entry = tid;
                        let query = first_query + chunk + entry / COL_VECS;
                        let channel = first_channel + entry % COL_VECS;
                        next_b_0 = read_d_o(d_o_start(batch, head), query, channel);
                    }
                    {
                        let entry = tid + THREADS;
                        let query = first_query + chunk + entry / COL_VECS;
                        let channel = first_channel + entry % COL_VECS;
                        next_b_1 = read_d_o(d_o_start(batch, head), query, channel);
                    }
                } else {
                    {
                        let entry = tid;
                        next_dp_0 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                        next_delta_0 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
                    }
                    {
                        let entry = tid + THREADS;
                        next_dp_1 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                        next_delta_1 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
                    }
                    if (tid + 2u * THREADS < CHUNK * ROW_VECS) {
                        let entry = tid + 2u * THREADS;
                        next_dp_2 = d_p_tiles[tile_at + (chunk + entry / ROW_VECS) * KEY_VECS + entry % ROW_VECS];
                        next_delta_2 = row_terms[strip_row + chunk + entry / ROW_VECS].y;
                    }
                    {
                        let entry = tid;
                        let query = first_query + chunk + entry / COL_VECS;
                        let channel = first_channel + entry % COL_VECS;
                        next_b_0 = read_q(q_start(batch, head), query, channel);
                    }
                    {
                        let entry = tid + THREADS;
                        let query = first_query + chunk + entry / COL_VECS;
                        let channel = first_channel + entry % COL_VECS;
                        next_b_1 = read_q(q_start(batch, head), query, channel);
                    }
                }
                {
                    let b_0 = tile[half + COL_TILE + col];
                    let a_0 = tile[half + row];
                    let a_1 = tile[half + row + ROW_THREADS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + COL_VECS];
                    let a_0 = tile[half + row + ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 2u * COL_VECS];
                    let a_0 = tile[half + row + 2u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 2u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 3u * COL_VECS];
                    let a_0 = tile[half + row + 3u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 3u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 4u * COL_VECS];
                    let a_0 = tile[half + row + 4u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 4u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 5u * COL_VECS];
                    let a_0 = tile[half + row + 5u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 5u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 6u * COL_VECS];
                    let a_0 = tile[half + row + 6u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 6u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 7u * COL_VECS];
                    let a_0 = tile[half + row + 7u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 7u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 8u * COL_VECS];
                    let a_0 = tile[half + row + 8u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 8u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 9u * COL_VECS];
                    let a_0 = tile[half + row + 9u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 9u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 10u * COL_VECS];
                    let a_0 = tile[half + row + 10u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 10u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 11u * COL_VECS];
                    let a_0 = tile[half + row + 11u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 11u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 12u * COL_VECS];
                    let a_0 = tile[half + row + 12u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 12u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 13u * COL_VECS];
                    let a_0 = tile[half + row + 13u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 13u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 14u * COL_VECS];
                    let a_0 = tile[half + row + 14u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 14u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                {
                    let b_0 = tile[half + COL_TILE + col + 15u * COL_VECS];
                    let a_0 = tile[half + row + 15u * ROW_VECS];
                    let a_1 = tile[half + row + ROW_THREADS + 15u * ROW_VECS];
                    sum_0_0 = fma(vec4<f32>(a_0.x), b_0, sum_0_0);
                    sum_1_0 = fma(vec4<f32>(a_0.y), b_0, sum_1_0);
                    sum_2_0 = fma(vec4<f32>(a_0.z), b_0, sum_2_0);
                    sum_3_0 = fma(vec4<f32>(a_0.w), b_0, sum_3_0);
                    sum_4_0 = fma(vec4<f32>(a_1.x), b_0, sum_4_0);
                    sum_5_0 = fma(vec4<f32>(a_1.y), b_0, sum_5_0);
                    sum_6_0 = fma(vec4<f32>(a_1.z), b_0, sum_6_0);
                    sum_7_0 = fma(vec4<f32>(a_1.w), b_0, sum_7_0);
                }
                half = other;
            }
            all_sum_0_0 += sum_0_0;
            all_sum_1_0 += sum_1_0;
            all_sum_2_0 += sum_2_0;
            all_sum_3_0 += sum_3_0;
            all_sum_4_0 += sum_4_0;
            all_sum_5_0 += sum_5_0;
            all_sum_6_0 += sum_6_0;
            all_sum_7_0 += sum_7_0;
            if (!more) {
                break;
            }
        }
    }

    if (!of_v) {
        let key_0 = first_key + row * 4u;
        if (key_0 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_0, kv_head);
            write_d_k(start, first_channel + col, all_sum_0_0 * call.scale, call.add_k != 0u);
        }
        let key_1 = first_key + row * 4u + 1u;
        if (key_1 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_1, kv_head);
            write_d_k(start, first_channel + col, all_sum_1_0 * call.scale, call.add_k != 0u);
        }
        let key_2 = first_key + row * 4u + 2u;
        if (key_2 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_2, kv_head);
            write_d_k(start, first_channel + col, all_sum_2_0 * call.scale, call.add_k != 0u);
        }
        let key_3 = first_key + row * 4u + 3u;
        if (key_3 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_3, kv_head);
            write_d_k(start, first_channel + col, all_sum_3_0 * call.scale, call.add_k != 0u);
        }
        let key_4 = first_key + (row + ROW_THREADS) * 4u;
        if (key_4 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_4, kv_head);
            write_d_k(start, first_channel + col, all_sum_4_0 * call.scale, call.add_k != 0u);
        }
        let key_5 = first_key + (row + ROW_THREADS) * 4u + 1u;
        if (key_5 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_5, kv_head);
            write_d_k(start, first_channel + col, all_sum_5_0 * call.scale, call.add_k != 0u);
        }
        let key_6 = first_key + (row + ROW_THREADS) * 4u + 2u;
        if (key_6 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_6, kv_head);
            write_d_k(start, first_channel + col, all_sum_6_0 * call.scale, call.add_k != 0u);
        }
        let key_7 = first_key + (row + ROW_THREADS) * 4u + 3u;
        if (key_7 < call.kv_len) {
            let start = d_k_row_at(part, batch, key_7, kv_head);
            write_d_k(start, first_channel + col, all_sum_7_0 * call.scale, call.add_k != 0u);
        }
    }
    if (of_v) {
        let key_0 = first_key + row * 4u;
        if (key_0 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_0, kv_head);
            write_d_v(start, first_channel + col, all_sum_0_0, call.add_v != 0u);
        }
        let key_1 = first_key + row * 4u + 1u;
        if (key_1 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_1, kv_head);
            write_d_v(start, first_channel + col, all_sum_1_0, call.add_v != 0u);
        }
        let key_2 = first_key + row * 4u + 2u;
        if (key_2 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_2, kv_head);
            write_d_v(start, first_channel + col, all_sum_2_0, call.add_v != 0u);
        }
        let key_3 = first_key + row * 4u + 3u;
        if (key_3 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_3, kv_head);
            write_d_v(start, first_channel + col, all_sum_3_0, call.add_v != 0u);
        }
        let key_4 = first_key + (row + ROW_THREADS) * 4u;
        if (key_4 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_4, kv_head);
            write_d_v(start, first_channel + col, all_sum_4_0, call.add_v != 0u);
        }
        let key_5 = first_key + (row + ROW_THREADS) * 4u + 1u;
        if (key_5 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_5, kv_head);
            write_d_v(start, first_channel + col, all_sum_5_0, call.add_v != 0u);
        }
        let key_6 = first_key + (row + ROW_THREADS) * 4u + 2u;
        if (key_6 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_6, kv_head);
            write_d_v(start, first_channel + col, all_sum_6_0, call.add_v != 0u);
        }
        let key_7 = first_key + (row + ROW_THREADS) * 4u + 3u;
        if (key_7 < call.kv_len) {
            let start = d_v_row_at(part, batch, key_7, kv_head);
            write_d_v(start, first_channel + col, all_sum_7_0, call.add_v != 0u);
        }
    }
}
