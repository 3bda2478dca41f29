// attention_reduce_wg128_vec4
//
// The sum of a gradient's parts, [part, batch, position, head, channel], in their order.
//
// A thread owns four elements; threads are numbered over x and y of the dispatch.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const WG: u32 = 128u;

struct Call {
    count: u32,
    parts: u32,
    add: u32,
}

@group(0) @binding(0) var<storage, read> parts_of: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> total: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> call: Call;

fn guard_result(x: vec4<f32>) -> vec4<f32> {
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), x, finite);
}

@compute @workgroup_size(128, 1, 1)
fn attention_reduce(@builtin(global_invocation_id) thread: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>) {
    let i = thread.x + thread.y * workgroups.x * WG;
    let count = call.count / 4u;
    if (i >= count) {
        return;
    }
    var sum = vec4<f32>();
    for (var part = 0u; part < call.parts; part++) {
        sum += parts_of[part * count + i];
    }
    let at = i;
    if (call.add != 0u) {
        total[at] = guard_result(total[at] + guard_result(sum));
    } else {
        total[at] = guard_result(sum);
    }
}
