// attention_rows_wg64_rows128_kcols128_span512: for each row of a strip, the factor of its P, and its D.
//
//   factor_i = 1/Σ_j P_ij where that is 1 but for rounding, else 1    D_i = factor_i·Σ_j P_ij·dP_ij
//
// A thread owns one row: workgroup wg.x of slot wg.y. The spans are added up in their order.

const WG: u32 = 64u;
const SPAN_KEYS: u32 = 512u;
struct Call {
    q_len: u32,
    kv_len: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    v_head_dim: u32,
    slot_first: u32,
    row_first: u32,
    strip_rows: u32,
    key_stride: u32,
    spans: u32,
    batch: u32,
}

@group(0) @binding(0) var<storage, read> row_sums: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> intervals: array<vec2<i32>>;
@group(0) @binding(2) var<storage, read_write> row_terms: array<vec2<f32>>;
@group(0) @binding(3) var<uniform> call: Call;

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// The hull of a block of queries: least lo, greatest lo, least hi, greatest hi.
fn hull_of(batch: u32, block: u32) -> vec4<i32> {
    let at = call.batch * call.q_len + 2u * (batch * ((call.q_len + 127u) / 128u) + block);
    return vec4<i32>(intervals[at], intervals[at + 1u]);
}

// The key that a block's scores begin with; they are stored from there on.
fn base_of(hull: vec4<i32>) -> u32 {
    return u32(hull.x) / 128u * 128u;
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
        row_terms[at] = vec2<f32>(1.0, 0.0);
        return;
    }
    let slot = call.slot_first + workgroup.y;
    let batch = slot / call.heads;
    let head = slot % call.heads;
    let hull = hull_of(batch, query / 128u);

    var sum = vec2<f32>();
    if (hull.x < hull.w) {
        let spans = (u32(hull.w) - base_of(hull) + SPAN_KEYS - 1u) / SPAN_KEYS;
        for (var span = 0u; span < spans; span++) {
            sum += row_sums[at * call.spans + span];
        }
    }
    // Recomputed scores and the lse differ by rounding, so Σ P is 1 + ε with ε the same for the whole row, and dividing by it
    // cancels that in dP − D. Only rounding is corrected so: an lse that covers more keys than these (a sink, keys held
    // elsewhere) has Σ P below 1, and stays as it is.
    let limit = 0.0009765625;
    let rounding = is_finite(sum.x) & (abs(sum.x - 1.0) <= limit);
    let sum_p = select(1.0, sum.x, rounding);
    row_terms[at] = vec2<f32>(1.0 / sum_p, sum.y / sum_p);
}
