// attention_rows_wg64_o_softcap
//
// The terms of each row of a strip: the factor of its P, and its D.
//
//   factor_i = 1 / Σ_j P_ij where only rounding keeps the sum from 1, else 1
//   D_i = factor_i·Σ_j P_ij·dP_ij where the factor corrects rounding, else dO_i·O_i
//
// The first D has the same rounding error as P and dP, which cancels in dP − D.
//
// A thread owns one row: workgroup wg.x of slot wg.y. The spans are added in their order.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const WG: u32 = 64u;
const ROUNDING: f32 = 0.0009765625;  // no Σ P is as far from 1 by rounding alone
const SCORE_ROUNDING: f32 = 9.5367431640625e-07;  // what rounding does to a score, relative to its size

// Where a tensor's rows lie, in numbers of 4 bytes: the first one, and how far apart batch entries, positions and heads are
struct Rows {
    offset: u32,
    batch: u32,
    row: u32,
    head: u32,
}

struct Call {
    o: Rows,
    d_o: Rows,
    lse: Rows,
    q_len: u32,
    heads: u32,
    v_head_dim: u32,
    slot_first: u32,
    row_first: u32,
    strip_rows: u32,
    spans: u32,
    batch: u32,
    query_rows: u32,
    key_cols: u32,
    span_keys: u32,
}

@group(0) @binding(0) var<storage, read> row_sums: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(2) var<storage, read_write> row_terms: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> call: Call;
@group(0) @binding(4) var<storage, read> o: array<f32>;
@group(0) @binding(5) var<storage, read> d_o: array<f32>;
@group(0) @binding(6) var<storage, read> lse: array<f32>;

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn o_start(batch: u32, head: u32) -> u32 {
    return call.o.offset + batch * call.o.batch + head * call.o.head;
}

fn d_o_start(batch: u32, head: u32) -> u32 {
    return call.d_o.offset + batch * call.d_o.batch + head * call.d_o.head;
}

// The hull of a block of queries: least lo, greatest lo, least hi, greatest hi.
fn hull_of(batch: u32, block: u32) -> vec4<i32> {
    let at = call.batch * call.q_len + 2u * (batch * ((call.q_len + call.query_rows - 1u) / call.query_rows) + block);
    return vec4<i32>(intervals[at], intervals[at + 1u]);
}

// The first key of a block's scores: the hull's, rounded down to a block of keys.
fn base_of(hull: vec4<i32>) -> u32 {
    return u32(hull.x) / call.key_cols * call.key_cols;
}

@compute @workgroup_size(64, 1, 1)
fn attention_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let strip_row = workgroup.x * WG + tid;
    let query = call.row_first + strip_row;
    if (strip_row >= call.strip_rows) {
        return;
    }
    let at = workgroup.y * call.strip_rows + strip_row;
    if (query >= call.q_len) {  // the scores there are zero, and no stale NaN may multiply them
        row_terms[at] = vec4<f32>(1.0, 0.0, 0.0, 0.0);
        return;
    }
    let slot = call.slot_first + workgroup.y;
    let batch = slot / call.heads;
    let head = slot % call.heads;
    let hull = hull_of(batch, query / call.query_rows);

    var sum = vec2<f32>();
    if (hull.x < hull.w) {
        // call.query_rows queries and call.key_cols keys make a block of scores; row_sums holds one sum for call.span_keys keys.
        let spans = (u32(hull.w) - base_of(hull) + call.span_keys - 1u) / call.span_keys;
        for (var span = 0u; span < spans; span++) {
            sum += row_sums[at * call.spans + span];
        }
    }
    let row_lse = lse[call.lse.offset + batch * call.lse.batch + query * call.lse.row + head * call.lse.head];

    // Recomputed scores and the lse differ by rounding, so that Σ P is 1 + ε with one ε for the whole row, and division by Σ P
    // cancels it in dP − D. This corrects rounding only: an lse that covers more keys than these (a sink, keys held elsewhere)
    // has a Σ P below 1, and stays as it is.
    // Keys held elsewhere may weigh next to nothing. As o is given, and right for them too, Σ P is corrected by no more
    // than scores of the lse's size can be off by; those of a real training step are off by up to a third of this.
    let limit = min(ROUNDING, SCORE_ROUNDING * (16.0 + abs(row_lse)));
    let rounding = is_finite(sum.x) & (abs(sum.x - 1.0) <= limit);
    let sum_p = select(1.0, sum.x, rounding);
    let slope = 0.0;
    var row_delta = sum.y / sum_p;
    if (!rounding) {
        let o_row = o_start(batch, head) + query * call.o.row;
        let d_o_row = d_o_start(batch, head) + query * call.d_o.row;
        var terms = vec4<f32>();
        var c = 0u;
        for (; c + 16u <= call.v_head_dim; c += 16u) {  // written out, so that many reads are on their way at a time
            terms.x = fma(d_o[d_o_row + c], o[o_row + c], terms.x);
            terms.y = fma(d_o[d_o_row + c + 1u], o[o_row + c + 1u], terms.y);
            terms.z = fma(d_o[d_o_row + c + 2u], o[o_row + c + 2u], terms.z);
            terms.w = fma(d_o[d_o_row + c + 3u], o[o_row + c + 3u], terms.w);
            terms.x = fma(d_o[d_o_row + c + 4u], o[o_row + c + 4u], terms.x);
            terms.y = fma(d_o[d_o_row + c + 5u], o[o_row + c + 5u], terms.y);
            terms.z = fma(d_o[d_o_row + c + 6u], o[o_row + c + 6u], terms.z);
            terms.w = fma(d_o[d_o_row + c + 7u], o[o_row + c + 7u], terms.w);
            terms.x = fma(d_o[d_o_row + c + 8u], o[o_row + c + 8u], terms.x);
            terms.y = fma(d_o[d_o_row + c + 9u], o[o_row + c + 9u], terms.y);
            terms.z = fma(d_o[d_o_row + c + 10u], o[o_row + c + 10u], terms.z);
            terms.w = fma(d_o[d_o_row + c + 11u], o[o_row + c + 11u], terms.w);
            terms.x = fma(d_o[d_o_row + c + 12u], o[o_row + c + 12u], terms.x);
            terms.y = fma(d_o[d_o_row + c + 13u], o[o_row + c + 13u], terms.y);
            terms.z = fma(d_o[d_o_row + c + 14u], o[o_row + c + 14u], terms.z);
            terms.w = fma(d_o[d_o_row + c + 15u], o[o_row + c + 15u], terms.w);
        }
        for (; c < call.v_head_dim; c++) {
            terms[c % 4u] = fma(d_o[d_o_row + c], o[o_row + c], terms[c % 4u]);
        }
        row_delta = (terms.x + terms.y) + (terms.z + terms.w);
    }
    row_terms[at] = vec4<f32>(1.0 / sum_p, row_delta, row_lse, slope);
}
