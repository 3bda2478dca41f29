// attention_reduce_wg128_strided
//
// The sum of a gradient's parts, [part, batch, position, head, channel], in their order.
//
// A thread owns one element; threads are numbered over x and y of the dispatch.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const WG: u32 = 128u;

// Where a tensor's rows lie, in numbers of 4 bytes: the first one, and how far apart batch entries, positions and heads are
struct Rows {
    offset: u32,
    batch: u32,
    row: u32,
    head: u32,
}

struct Call {
    total: Rows,
    count: u32,
    parts: u32,
    add: u32,
    total_dim: u32,
    total_heads: u32,
    total_length: u32,
}

@group(0) @binding(0) var<storage, read> parts_of: array<f32>;
@group(0) @binding(1) var<storage, read_write> total: array<f32>;
@group(0) @binding(2) var<uniform> call: Call;

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn guard_result(x: f32) -> f32 {
    return select(0.0, x, is_finite(x));
}

@compute @workgroup_size(128, 1, 1)
fn attention_reduce(@builtin(global_invocation_id) thread: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>) {
    let i = thread.x + thread.y * workgroups.x * WG;
    let count = call.count;
    if (i >= count) {
        return;
    }
    var sum = f32();
    for (var part = 0u; part < call.parts; part++) {
        sum += parts_of[part * count + i];
    }
    let first = i;  // its place in a tensor without gaps
    let row = first / call.total_dim;
    let batch = row / call.total_heads / call.total_length;
    let position = row / call.total_heads % call.total_length;
    let head = row % call.total_heads;
    let start = call.total.offset + batch * call.total.batch + position * call.total.row + head * call.total.head;
    let at = start + first % call.total_dim;
    if (call.add != 0u) {
        total[at] = guard_result(total[at] + guard_result(sum));
    } else {
        total[at] = guard_result(sum);
    }
}
