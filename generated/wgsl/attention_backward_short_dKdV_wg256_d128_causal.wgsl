// attention_backward_short_dKdV_wg256_d128_causal
//
// dK and dV from the P and dS that attention_backward_short left.
//
//   dK_j = Σ_i dS_ij·Q_i    dV_j = Σ_i P_ij·dO_i    over the queries i that see key j, in every query head of the group
//
// One workgroup owns key wg.x of kv head wg.y in batch entry wg.z.

const WG: u32 = 256u;
const HEAD_DIM: u32 = 128u;
const CHANNELS: u32 = 32u;  // elements of a row
const_assert(HEAD_DIM >= 1u && HEAD_DIM <= 256u);

@group(0) @binding(0) var<storage, read> Q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> dO: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> P_in: array<f32>;
@group(0) @binding(3) var<storage, read> dS_in: array<f32>;
@group(0) @binding(4) var<storage, read_write> dK: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> dV: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> dims: vec4<u32>;  // q_len:u32, heads:u32, kv_heads:u32, head_dim:u32

// Workgroup memory: 4096 + 4096 = 8192 bytes.
var<workgroup> dk_tile: array<vec4<f32>, 256>;
var<workgroup> dv_tile: array<vec4<f32>, 256>;

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

@compute @workgroup_size(256, 1, 1)
fn attention_backward_short_dKdV(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let key = workgroup.x;
    let kv_head = workgroup.y;
    let batch = workgroup.z;
    let seq_len = dims.x;
    let heads = dims.y;
    let kv_heads = dims.z;
    // A head_dim that this variant is not for: nothing is written.
    if (key >= seq_len || kv_head >= kv_heads || dims.w != HEAD_DIM) {
        return;
    }
    let channels = CHANNELS;
    let group = heads / kv_heads;
    let first_query = key;  // no query sees past itself; where a document ends before, the scratch holds zeros
    let terms = (seq_len - first_query) * group;

    // A thread owns one channel and every term_lanes-th (query, head of the group).
    let term_lanes = max(1u, WG / channels);
    let stride = min(WG, channels);
    let lane = tid / stride;
    if (lane < term_lanes) {
        for (var c = tid % stride; c < channels; c += stride) {
            var dk = vec4<f32>();
            var dv = vec4<f32>();
            for (var term = lane; term < terms; term += term_lanes) {
                let query = first_query + term / group;
                let row = (batch * seq_len + query) * heads + kv_head * group + term % group;
                let p = P_in[row * seq_len + key];
                let d_s = dS_in[row * seq_len + key];
                // Where the query does not see the key, zero times a NaN in the query's row would spoil the sum.
                if (((bitcast<u32>(p) | bitcast<u32>(d_s)) << 1u) != 0u) {
                    dk = fma(vec4<f32>(d_s), Q[row * channels + c], dk);
                    dv = fma(vec4<f32>(p), dO[row * channels + c], dv);
                }
            }
            dk_tile[lane * channels + c] = dk;
            dv_tile[lane * channels + c] = dv;
        }
    }
    workgroupBarrier();  // dk_tile and dv_tile are complete

    let kv_row = ((batch * seq_len + key) * kv_heads + kv_head) * channels;
    for (var c = tid; c < channels; c += WG) {
        var dk = dk_tile[c];
        var dv = dv_tile[c];
        for (var i = 1u; i < term_lanes; i++) {
            dk += dk_tile[i * channels + c];
            dv += dv_tile[i * channels + c];
        }
        dK[kv_row + c] = guard_result(dk);
        dV[kv_row + c] = guard_result(dv);
    }
}
