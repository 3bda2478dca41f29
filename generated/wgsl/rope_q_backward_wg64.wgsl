// rope_q_backward_wg64
//
// Rotary embedding on interleaved pairs, backward, in place on dQ.
//
//   angle = position · base^(−2·pair/head_dim)    d_x0' = d_x0·cos + d_x1·sin    d_x1' = d_x1·cos − d_x0·sin
//
// One thread owns one pair: threads are numbered by position, head and pair over x and y of the dispatch; wg.z is the batch entry.
// params.yz holds base^(−2/head_dim) · 2⁶⁴, rounded, low word first. With it the angle is a 64-bit fraction of a turn, exact at
// any position. A host may leave it zero: then the angle is computed in f32, which is off by 1e-3 at position 10⁴.

const WG: u32 = 64u;

@group(0) @binding(0) var<storage, read_write> dQ: array<f32>;
@group(0) @binding(1) var<uniform> dims: vec4<u32>;  // seq_len:u32, heads:u32, head_dim:u32, pos_offset:u32
@group(0) @binding(2) var<uniform> params: vec4<u32>;  // rope_base:f32, ratio_low:u32, ratio_high:u32

// The high word of a product
fn multiply_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let middle = a1 * b0 + ((a0 * b0) >> 16u);
    let rest = a0 * b1 + (middle & 0xffffu);
    return a1 * b1 + (middle >> 16u) + (rest >> 16u);
}

// The high 64 bits of the 128-bit product of two 64-bit fractions, low word first; off by at most two units of 2⁻⁶⁴.
fn multiply_fractions(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let cross = a.x * b.y;
    let other = a.y * b.x;
    let product_low = a.y * b.y;
    var low = product_low + multiply_high(a.x, b.y);
    var high = multiply_high(a.y, b.y) + select(0u, 1u, low < product_low);
    let next = low + multiply_high(a.y, b.x);
    high += select(0u, 1u, next < low);
    low = next;
    // The carry out of the two lower cross terms.
    let carry = low + select(0u, 1u, cross + other < cross);
    high += select(0u, 1u, carry < low);
    return vec2<u32>(carry, high);
}

// (cos, sin) of a turn's signed fraction, turn / 2³².
fn cos_sin_of_turn(turn: u32) -> vec2<f32> {
    let quadrant = (turn + 0x20000000u) >> 30u;
    let offset = bitcast<i32>(turn - (quadrant << 30u));  // within an eighth of a turn of the quadrant's axis
    let x = f32(offset) * 1.4629180793e-09;
    let x2 = x * x;
    // Taylor's series on [−π/4, π/4]; what is left out is below 2⁻²⁸.
    let s = x + x * x2 * (-1.0 / 6.0 + x2 * (1.0 / 120.0 + x2 * (-1.0 / 5040.0 + x2 * (1.0 / 362880.0))));
    let c = 1.0 + x2 * (-0.5 + x2 * (1.0 / 24.0 + x2 * (-1.0 / 720.0 + x2 * (1.0 / 40320.0))));
    let swapped = select(vec2<f32>(c, s), vec2<f32>(-s, c), (quadrant & 1u) != 0u);
    return select(swapped, -swapped, (quadrant & 2u) != 0u);
}

@compute @workgroup_size(64, 1, 1)
fn rope_q_backward(@builtin(global_invocation_id) thread: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>) {
    let i = thread.x + thread.y * workgroups.x * WG;
    let seq_len = dims.x;
    let head_dim = dims.z;
    let pairs = head_dim / 2u;
    let pairs_per_position = dims.y * pairs;
    if (i >= seq_len * pairs_per_position) {
        return;
    }
    let position = i / pairs_per_position + dims.w;
    let pair = i % pairs;

    var rotation: vec2<f32>;
    if ((params.y | params.z) != 0u) {
        // base^(−2·pair/head_dim) / 2π by repeated squaring, from 1/2π as a 64-bit fraction
        var turns = vec2<u32>(2475754826u, 683565275u);
        var power = params.yz;
        for (var bits = pair; bits != 0u; bits = bits >> 1u) {
            if ((bits & 1u) != 0u) {
                turns = multiply_fractions(turns, power);
            }
            power = multiply_fractions(power, power);
        }
        // position · turns, whole turns dropped, rounded to 2⁻³²
        let low = turns.x * position;
        let high = turns.y * position + multiply_high(turns.x, position);
        rotation = cos_sin_of_turn(high + (low >> 31u));
    } else {
        let frequency = exp(-log(bitcast<f32>(params.x)) * f32(2u * pair) / f32(head_dim));
        let angle = f32(position) * frequency;
        rotation = vec2<f32>(cos(angle), sin(angle));
    }

    let at = (thread.z * seq_len * dims.y + i / pairs) * head_dim + 2u * pair;
    let d_x0 = dQ[at];
    let d_x1 = dQ[at + 1u];
    dQ[at] = d_x0 * rotation.x + d_x1 * rotation.y;
    dQ[at + 1u] = d_x1 * rotation.x - d_x0 * rotation.y;
}
