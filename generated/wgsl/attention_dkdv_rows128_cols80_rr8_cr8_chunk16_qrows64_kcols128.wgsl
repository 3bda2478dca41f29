// attention_dkdv_rows128_cols80_rr8_cr8_chunk16_qrows64_kcols128
//
// dK and dV from a strip of P and dP.
//
//   dK_j = Σ_i dS_ij·Q_i    dV_j = Σ_i P_ij·dO_i    over the strip's queries, in every query head of the group
//
// One workgroup owns block wg.y of ROWS keys × block wg.z of COLS channels of one kv head, for one of the parts that the key's
// queries are split into (wg.x): head_parts of the group's heads, times query_parts of the strip's blocks of queries. It loops
// over those blocks that see one of its keys, CHUNK queries at a time.
// A thread holds 8 keys × 8 channels of both gradients: dk_<key>_<channels>, dv_<key>_<channels>.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 128u;  // keys
const COLS: u32 = 80u;  // channels
const ROW_VECS: u32 = ROWS / 4u;  // vec4 elements of a staged row of P or dS
const COL_VECS: u32 = COLS / 4u;  // and of Q or dO
const ROW_REG: u32 = 8u;
const COL_THREADS: u32 = 10u;  // threads that share a key
const THREADS: u32 = 160u;
const CHUNK: u32 = 16u;  // queries
const QUERY_ROWS: u32 = 64u;  // queries of a block
const KEY_COLS: u32 = 128u;  // keys of a block of scores
const SUM_ROWS: u32 = 256u;  // queries in one chain of additions
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
    key_stride: u32,
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
@group(0) @binding(2) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> row_terms: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> d_k: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> d_v: array<vec4<f32>>;
@group(0) @binding(7) var<uniform> call: Call;

// Workgroup memory: 8192 + 8192 + 5120 + 5120 = 26624 bytes.
var<workgroup> p_tile: array<vec4<f32>, 512>;
var<workgroup> ds_tile: array<vec4<f32>, 512>;
var<workgroup> q_tile: array<vec4<f32>, 320>;
var<workgroup> do_tile: array<vec4<f32>, 320>;

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

// dS_ij = scale·P_ij·(dP_ij − D_i), and zero where the query does not see the key, even if D is NaN: P and dP are then both zero.
fn d_s(p: vec4<f32>, d_p: vec4<f32>, delta: f32) -> vec4<f32> {
    let seen = ((bitcast<vec4<u32>>(p) | bitcast<vec4<u32>>(d_p)) & vec4<u32>(0x7fffffffu)) != vec4<u32>();
    return select(vec4<f32>(), call.scale * p * (d_p - delta), seen);
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

fn q_start(batch: u32, head: u32) -> u32 {
    return (call.q.offset + batch * call.q.batch + head * call.q.head) / 4u;
}

fn read_q(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len || channel >= HEAD_DIM / 4u) {
        return vec4<f32>();
    }
    return q[start + position * (call.q.row / 4u) + channel];
}

fn d_o_start(batch: u32, head: u32) -> u32 {
    return (call.d_o.offset + batch * call.d_o.batch + head * call.d_o.head) / 4u;
}

fn read_d_o(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len || channel >= V_HEAD_DIM / 4u) {
        return vec4<f32>();
    }
    return d_o[start + position * (call.d_o.row / 4u) + channel];
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

@compute @workgroup_size(160, 1, 1)
fn attention_dkdv(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let group = call.heads / call.kv_heads;
    let parts = call.head_parts * call.query_parts;
    let part = workgroup.x % parts;
    let kv_slot = call.slot_first / group + workgroup.x / parts;
    let batch = kv_slot / call.kv_heads;
    let kv_head = kv_slot % call.kv_heads;
    let first_key = workgroup.y * ROWS;
    let first_channel = workgroup.z * COL_VECS;
    let row = tid / COL_THREADS * ROW_REG;  // this thread's first key of the block
    let col = tid % COL_THREADS;  // its channels are the vec4 col, col + COL_THREADS, …

    // (h, block, chunk) runs over the part's heads of the group, their blocks that see one of the keys, and the blocks' chunks.
    let block_count = min(call.strip_rows, call.q_len - call.row_first + QUERY_ROWS - 1u) / QUERY_ROWS;
    let first_block = part % call.query_parts;
    var h = part / call.query_parts;
    var block = first_block;
    var strip_slot = 0u;
    var first_col = 0u;  // where the first of the keys stands in the block's rows of scores
    var whole = false;  // whether every query of the block sees every one of the keys
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
        return;  // there is nothing to add
    }
    // A long sum goes in stretches of SUM_ROWS queries, each added to what is there: one chain of additions would lose accuracy.
    var added = false;
    var chunk = 0u;  // its first query of the block
    loop {
        var dk_0_0 = vec4<f32>();
        var dv_0_0 = vec4<f32>();
        var dk_0_1 = vec4<f32>();
        var dv_0_1 = vec4<f32>();
        var dk_1_0 = vec4<f32>();
        var dv_1_0 = vec4<f32>();
        var dk_1_1 = vec4<f32>();
        var dv_1_1 = vec4<f32>();
        var dk_2_0 = vec4<f32>();
        var dv_2_0 = vec4<f32>();
        var dk_2_1 = vec4<f32>();
        var dv_2_1 = vec4<f32>();
        var dk_3_0 = vec4<f32>();
        var dv_3_0 = vec4<f32>();
        var dk_3_1 = vec4<f32>();
        var dv_3_1 = vec4<f32>();
        var dk_4_0 = vec4<f32>();
        var dv_4_0 = vec4<f32>();
        var dk_4_1 = vec4<f32>();
        var dv_4_1 = vec4<f32>();
        var dk_5_0 = vec4<f32>();
        var dv_5_0 = vec4<f32>();
        var dk_5_1 = vec4<f32>();
        var dv_5_1 = vec4<f32>();
        var dk_6_0 = vec4<f32>();
        var dv_6_0 = vec4<f32>();
        var dk_6_1 = vec4<f32>();
        var dv_6_1 = vec4<f32>();
        var dk_7_0 = vec4<f32>();
        var dv_7_0 = vec4<f32>();
        var dk_7_1 = vec4<f32>();
        var dv_7_1 = vec4<f32>();
        var queries = 0u;
        while (h < group && queries < SUM_ROWS) {
            let chunk_row = block * QUERY_ROWS + chunk;  // the chunk's first row of the strip
            let first_row = strip_slot * call.strip_rows + chunk_row;  // over all the strip's slots
            let first_query = call.row_first + chunk_row;
            let q_first = q_start(batch, kv_head * group + h);
            let d_o_first = d_o_start(batch, kv_head * group + h);
            workgroupBarrier();  // the chunk before has been read
            {
                let entry = tid;
                let strip_row = first_row + entry / ROW_VECS;
                let terms = row_terms[strip_row];
                let source = (strip_row * call.key_stride + first_col) / 2u + entry % ROW_VECS * 2u;
                let pairs = array(scores[source], scores[source + 1u]);  // (P, dP) of four keys
                let p = vec4<f32>(pairs[0].xz, pairs[1].xz) * terms.x;
                let ds = d_s(p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);
                p_tile[entry] = p;
                ds_tile[entry] = ds;
            }
            {
                let entry = tid + THREADS;
                let strip_row = first_row + entry / ROW_VECS;
                let terms = row_terms[strip_row];
                let source = (strip_row * call.key_stride + first_col) / 2u + entry % ROW_VECS * 2u;
                let pairs = array(scores[source], scores[source + 1u]);  // (P, dP) of four keys
                let p = vec4<f32>(pairs[0].xz, pairs[1].xz) * terms.x;
                let ds = d_s(p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);
                p_tile[entry] = p;
                ds_tile[entry] = ds;
            }
            {
                let entry = tid + 2u * THREADS;
                let strip_row = first_row + entry / ROW_VECS;
                let terms = row_terms[strip_row];
                let source = (strip_row * call.key_stride + first_col) / 2u + entry % ROW_VECS * 2u;
                let pairs = array(scores[source], scores[source + 1u]);  // (P, dP) of four keys
                let p = vec4<f32>(pairs[0].xz, pairs[1].xz) * terms.x;
                let ds = d_s(p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);
                p_tile[entry] = p;
                ds_tile[entry] = ds;
            }
            if (tid + 3u * THREADS < CHUNK * ROW_VECS) {
                let entry = tid + 3u * THREADS;
                let strip_row = first_row + entry / ROW_VECS;
                let terms = row_terms[strip_row];
                let source = (strip_row * call.key_stride + first_col) / 2u + entry % ROW_VECS * 2u;
                let pairs = array(scores[source], scores[source + 1u]);  // (P, dP) of four keys
                let p = vec4<f32>(pairs[0].xz, pairs[1].xz) * terms.x;
                let ds = d_s(p, vec4<f32>(pairs[0].yw, pairs[1].yw), terms.y);
                p_tile[entry] = p;
                ds_tile[entry] = ds;
            }
            {
                let entry = tid;
                let query = first_query + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                let q_row = read_q(q_first, query, channel);
                let do_row = read_d_o(d_o_first, query, channel);
                if (whole) {
                    q_tile[entry] = q_row;
                    do_tile[entry] = do_row;
                } else {
                    q_tile[entry] = finite_or_zero(q_row);
                    do_tile[entry] = finite_or_zero(do_row);
                }
            }
            {
                let entry = tid + THREADS;
                let query = first_query + entry / COL_VECS;
                let channel = first_channel + entry % COL_VECS;
                let q_row = read_q(q_first, query, channel);
                let do_row = read_d_o(d_o_first, query, channel);
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
                let p_0 = p_tile[row / 4u + i * ROW_VECS];
                let p_1 = p_tile[row / 4u + 1u + i * ROW_VECS];
                let do_0 = do_tile[col + i * COL_VECS];
                let do_1 = do_tile[col + COL_THREADS + i * COL_VECS];
                dv_0_0 = fma(vec4<f32>(p_0.x), do_0, dv_0_0);
                dv_0_1 = fma(vec4<f32>(p_0.x), do_1, dv_0_1);
                dv_1_0 = fma(vec4<f32>(p_0.y), do_0, dv_1_0);
                dv_1_1 = fma(vec4<f32>(p_0.y), do_1, dv_1_1);
                dv_2_0 = fma(vec4<f32>(p_0.z), do_0, dv_2_0);
                dv_2_1 = fma(vec4<f32>(p_0.z), do_1, dv_2_1);
                dv_3_0 = fma(vec4<f32>(p_0.w), do_0, dv_3_0);
                dv_3_1 = fma(vec4<f32>(p_0.w), do_1, dv_3_1);
                dv_4_0 = fma(vec4<f32>(p_1.x), do_0, dv_4_0);
                dv_4_1 = fma(vec4<f32>(p_1.x), do_1, dv_4_1);
                dv_5_0 = fma(vec4<f32>(p_1.y), do_0, dv_5_0);
                dv_5_1 = fma(vec4<f32>(p_1.y), do_1, dv_5_1);
                dv_6_0 = fma(vec4<f32>(p_1.z), do_0, dv_6_0);
                dv_6_1 = fma(vec4<f32>(p_1.z), do_1, dv_6_1);
                dv_7_0 = fma(vec4<f32>(p_1.w), do_0, dv_7_0);
                dv_7_1 = fma(vec4<f32>(p_1.w), do_1, dv_7_1);

                // dK_j += dS_ij·Q_i
                let ds_0 = ds_tile[row / 4u + i * ROW_VECS];
                let ds_1 = ds_tile[row / 4u + 1u + i * ROW_VECS];
                let q_0 = q_tile[col + i * COL_VECS];
                let q_1 = q_tile[col + COL_THREADS + i * COL_VECS];
                dk_0_0 = fma(vec4<f32>(ds_0.x), q_0, dk_0_0);
                dk_0_1 = fma(vec4<f32>(ds_0.x), q_1, dk_0_1);
                dk_1_0 = fma(vec4<f32>(ds_0.y), q_0, dk_1_0);
                dk_1_1 = fma(vec4<f32>(ds_0.y), q_1, dk_1_1);
                dk_2_0 = fma(vec4<f32>(ds_0.z), q_0, dk_2_0);
                dk_2_1 = fma(vec4<f32>(ds_0.z), q_1, dk_2_1);
                dk_3_0 = fma(vec4<f32>(ds_0.w), q_0, dk_3_0);
                dk_3_1 = fma(vec4<f32>(ds_0.w), q_1, dk_3_1);
                dk_4_0 = fma(vec4<f32>(ds_1.x), q_0, dk_4_0);
                dk_4_1 = fma(vec4<f32>(ds_1.x), q_1, dk_4_1);
                dk_5_0 = fma(vec4<f32>(ds_1.y), q_0, dk_5_0);
                dk_5_1 = fma(vec4<f32>(ds_1.y), q_1, dk_5_1);
                dk_6_0 = fma(vec4<f32>(ds_1.z), q_0, dk_6_0);
                dk_6_1 = fma(vec4<f32>(ds_1.z), q_1, dk_6_1);
                dk_7_0 = fma(vec4<f32>(ds_1.w), q_0, dk_7_0);
                dk_7_1 = fma(vec4<f32>(ds_1.w), q_1, dk_7_1);
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

        // The sums of this stretch go where the gradients' rows lie.
        let key_0 = first_key + row;
        if (key_0 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_0, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_0, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_0_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_0_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_0_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_0_1, added || call.add_v != 0u);
        }
        let key_1 = first_key + row + 1u;
        if (key_1 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_1, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_1, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_1_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_1_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_1_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_1_1, added || call.add_v != 0u);
        }
        let key_2 = first_key + row + 2u;
        if (key_2 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_2, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_2, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_2_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_2_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_2_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_2_1, added || call.add_v != 0u);
        }
        let key_3 = first_key + row + 3u;
        if (key_3 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_3, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_3, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_3_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_3_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_3_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_3_1, added || call.add_v != 0u);
        }
        let key_4 = first_key + row + 4u;
        if (key_4 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_4, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_4, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_4_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_4_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_4_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_4_1, added || call.add_v != 0u);
        }
        let key_5 = first_key + row + 5u;
        if (key_5 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_5, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_5, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_5_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_5_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_5_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_5_1, added || call.add_v != 0u);
        }
        let key_6 = first_key + row + 6u;
        if (key_6 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_6, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_6, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_6_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_6_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_6_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_6_1, added || call.add_v != 0u);
        }
        let key_7 = first_key + row + 7u;
        if (key_7 < call.kv_len) {
            let d_k_row = d_k_row_at(part, batch, key_7, kv_head);
            let d_v_row = d_v_row_at(part, batch, key_7, kv_head);
            write_d_k(d_k_row, first_channel + col, dk_7_0, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col, dv_7_0, added || call.add_v != 0u);
            write_d_k(d_k_row, first_channel + col + COL_THREADS, dk_7_1, added || call.add_k != 0u);
            write_d_v(d_v_row, first_channel + col + COL_THREADS, dv_7_1, added || call.add_v != 0u);
        }
        if (h >= group) {
            break;
        }
        added = true;
    }
}
