// attention_backward_short_wg256_maxseq1024_d128_causal
//
// Attention, backward, for sequences up to MAX_SEQ: dQ, and P and dS for attention_backward_short_dKdV.
//
//   P_ij = exp(scale·Q_i·K_j − LSE_i) / Σ_j P_ij    dP_ij = dO_i·V_j    D_i = Σ_j P_ij·dP_ij
//   dS_ij = scale·P_ij·(dP_ij − D_i)                dQ_i = Σ_j dS_ij·K_j
//
// One workgroup owns query wg.x of head wg.y in batch entry wg.z; its rows of P and dP stay in workgroup memory.
// The scratch P_out, dS_out is [batch, query, head, key]; keys below the interval get zeros, keys past it are not written.

const WG: u32 = 256u;
const MAX_SEQ: u32 = 1024u;
const HEAD_DIM: u32 = 128u;
const CHANNELS: u32 = 32u;  // elements of a row
const_assert(HEAD_DIM >= 1u && HEAD_DIM <= 256u);
const_assert(MAX_SEQ >= 1u && MAX_SEQ <= 8192u);

@group(0) @binding(0) var<storage, read> Q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> K: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> V: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> dO: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> LSE: array<f32>;
@group(0) @binding(5) var<storage, read_write> dQ: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> P_out: array<f32>;
@group(0) @binding(7) var<storage, read_write> dS_out: array<f32>;
@group(0) @binding(8) var<uniform> dims: vec4<u32>;  // q_len:u32, heads:u32, kv_heads:u32, head_dim:u32
@group(0) @binding(9) var<uniform> params: vec4<u32>;  // scale:f32

// Workgroup memory: 512 + 512 + 4096 + 4096 + 4096 + 2048 = 15360 bytes.
var<workgroup> q_tile: array<vec4<f32>, 32>;
var<workgroup> do_tile: array<vec4<f32>, 32>;
var<workgroup> p_tile: array<f32, 1024>;
var<workgroup> dp_tile: array<f32, 1024>;
var<workgroup> partial_tile: array<vec4<f32>, 256>;
var<workgroup> sum_tile: array<vec2<f32>, 256>;

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// exp(score − lse), and zero where the score or the exponential is not finite. (& instead of &&, since some drivers take
// minutes to compile many short-circuits.)
fn probability(score: f32, lse: f32) -> f32 {
    let p = exp(score - lse);
    return select(0.0, p, is_finite(score) & is_finite(p));
}

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

fn sum_lanes(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

// The sum of x over the workgroup, in a fixed order; sum_tile is free again on return.
fn workgroup_sum(tid: u32, x: vec2<f32>) -> vec2<f32> {
    sum_tile[tid] = x;
    workgroupBarrier();  // every thread's term is there
    for (var stride = WG / 2u; stride > 0u; stride = stride / 2u) {
        if (tid < stride) {
            sum_tile[tid] = sum_tile[tid] + sum_tile[tid + stride];
        }
        workgroupBarrier();  // this level is complete before the next reads it
    }
    let total = sum_tile[0];
    workgroupBarrier();  // everyone has read the total before sum_tile is written again
    return total;
}

// Recomputed scores and the given lse differ by rounding, so that Σ P is 1 + ε with one ε for the whole row, and D = Σ P·dP
// carries it into the difference dP − D. Division by Σ P cancels it. This corrects rounding only: an lse that covers more
// keys than these (a sink, keys held elsewhere) has a Σ P well below 1, and stays as it is.
fn row_correction(sum_p: f32) -> f32 {
    let rounding = is_finite(sum_p) && abs(sum_p - 1.0) <= 0.0009765625;
    return select(1.0, 1.0 / sum_p, rounding);
}

fn key_hi(query: u32) -> u32 {
    return query + 1u;
}

@compute @workgroup_size(256, 1, 1)
fn attention_backward_short(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let query = workgroup.x;
    let head = workgroup.y;
    let batch = workgroup.z;
    let seq_len = dims.x;
    let heads = dims.y;
    let kv_heads = dims.z;
    // A length or a head_dim that this variant is not for: nothing is written.
    if (query >= seq_len || head >= heads || seq_len > MAX_SEQ || dims.w != HEAD_DIM) {
        return;
    }
    let channels = CHANNELS;
    let scale = bitcast<f32>(params.x);
    let kv_head = head / (heads / kv_heads);
    let row = (batch * seq_len + query) * heads + head;
    let q_row = row * channels;
    let kv_stride = kv_heads * channels;
    let kv_base = batch * seq_len * kv_stride + kv_head * channels;
    let lse = LSE[row];
    let lo = 0u;
    let hi = key_hi(query);

    for (var c = tid; c < channels; c += WG) {
        q_tile[c] = Q[q_row + c];
        do_tile[c] = dO[q_row + c];
    }
    workgroupBarrier();  // q_tile and do_tile are complete

    // P_ij, dP_ij, and their sums over j
    var sums = vec2<f32>();
    for (var key = lo + tid; key < hi; key += WG) {
        let kv_row = kv_base + key * kv_stride;
        var score = vec4<f32>();
        var d_p = vec4<f32>();
        for (var c = 0u; c < channels; c++) {
            score = fma(q_tile[c], K[kv_row + c], score);
            d_p = fma(do_tile[c], V[kv_row + c], d_p);
        }
        let p = probability(sum_lanes(score) * scale, lse);
        p_tile[key] = p;
        dp_tile[key] = sum_lanes(d_p);
        sums += vec2<f32>(p, p * sum_lanes(d_p));
    }
    let total = workgroup_sum(tid, sums);
    let correction = row_correction(total.x);
    let delta = total.y * correction;

    // dS_ij = scale·P_ij·(dP_ij − D_i); from here on dp_tile holds dS. A thread reads back only what it wrote.
    let scratch_row = row * seq_len;
    for (var key = lo + tid; key < hi; key += WG) {
        let p = p_tile[key] * correction;
        let d_s = scale * p * (dp_tile[key] - delta);
        dp_tile[key] = d_s;
        P_out[scratch_row + key] = p;
        dS_out[scratch_row + key] = d_s;
    }
    workgroupBarrier();  // dS is complete

    // dQ_i = Σ_j dS_ij·K_j: a thread owns one channel and every key_lanes-th key.
    let key_lanes = max(1u, WG / channels);
    let stride = min(WG, channels);
    let lane = tid / stride;
    if (lane < key_lanes) {
        for (var c = tid % stride; c < channels; c += stride) {
            var sum = vec4<f32>();
            for (var key = lo + lane; key < hi; key += key_lanes) {
                sum = fma(vec4<f32>(dp_tile[key]), K[kv_base + key * kv_stride + c], sum);
            }
            partial_tile[lane * channels + c] = sum;
        }
    }
    workgroupBarrier();  // partial_tile is complete

    for (var c = tid; c < channels; c += WG) {
        var sum = partial_tile[c];
        for (var i = 1u; i < key_lanes; i++) {
            sum += partial_tile[i * channels + c];
        }
        dQ[q_row + c] = guard_result(sum);
    }
}
