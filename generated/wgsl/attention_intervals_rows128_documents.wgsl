// attention_intervals_rows128_documents
//
// The keys [lo, hi) that each query sees, the hull of each block of ROWS queries, and where the block's tiles begin.
//
//   lo_i = max(0, i + lo_shift, doc_start_i)
//   hi_i = min(kv_len, i + hi_shift, max(prefix, i + prefix_shift))
//
// One workgroup owns block wg.x of batch entry wg.z, a thread for each query. The buffer holds the intervals,
// [batch, query], then the hulls, [batch, block]: (least lo, greatest lo), (least hi, greatest hi), then for each block the number
// of tiles of call.key_cols keys that the blocks before it have room for.
// An empty interval is (2³⁰, 0): it widens no hull, and no block that holds one counts as wholly visible.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const ROWS: u32 = 128u;

struct Call {
    q_len: u32,
    kv_len: u32,
    key_cols: u32,
    lo_shift: i32,
    hi_shift: i32,
    prefix: i32,
    prefix_shift: i32,
}

@group(0) @binding(0) var<uniform> call: Call;
@group(0) @binding(1) var<storage, read_write> intervals: array<vec2<i32>>;
@group(0) @binding(2) var<storage, read> doc_start: array<u32>;

// Workgroup memory: 2048 + 512 = 2560 bytes.
var<workgroup> hull_tile: array<vec4<i32>, 128>;
var<workgroup> before_tile: array<u32, 128>;

// Tiles that a block's scores may take: those that its queries' keys meet, whatever the documents and kv_lengths are.
fn room(block: u32) -> u32 {
    let first = i32(block * ROWS);
    let last = i32(min(block * ROWS + ROWS, call.q_len)) - 1;
    let lo = max(0, first + call.lo_shift);
    let hi = min(min(i32(call.kv_len), last + call.hi_shift), max(call.prefix, last + call.prefix_shift));
    return select(0u, (u32(hi) + call.key_cols - 1u) / call.key_cols - u32(lo) / call.key_cols, lo < hi);
}

@compute @workgroup_size(128, 1, 1)
fn attention_intervals(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
) {
    let batch = workgroup.z;
    let query = workgroup.x * ROWS + tid;
    let i = i32(query);
    let key_count = i32(call.kv_len);

    var interval = vec2<i32>(1 << 30u, 0);
    if (query < call.q_len) {
        let lo = max(max(0, i + call.lo_shift), i32(doc_start[batch * call.q_len + query]));
        let end = key_count;
        let hi = min(min(end, i + call.hi_shift), max(call.prefix, i + call.prefix_shift));
        if (lo < hi) {
            interval = vec2<i32>(lo, hi);
        }
        intervals[batch * call.q_len + query] = interval;
    }

    var before = 0u;
    for (var block = tid; block < workgroup.x; block += ROWS) {
        before += room(block);
    }

    // The block's hull, and the tiles before it: half of the threads take in what the other half has, then half of those, …
    hull_tile[tid] = vec4<i32>(interval.xx, interval.yy);
    before_tile[tid] = before;
    workgroupBarrier();  // every query's interval is there
    for (var stride = ROWS / 2u; stride > 0u; stride = stride / 2u) {
        if (tid < stride) {
            let a = hull_tile[tid];
            let b = hull_tile[tid + stride];
            hull_tile[tid] = vec4<i32>(min(a.x, b.x), max(a.y, b.y), min(a.z, b.z), max(a.w, b.w));
            before_tile[tid] += before_tile[tid + stride];
        }
        workgroupBarrier();  // this level is complete before the next reads it
    }
    if (tid == 0u) {
        let at = workgroups.z * call.q_len + 2u * (batch * workgroups.x + workgroup.x);
        intervals[at] = hull_tile[0].xy;
        intervals[at + 1u] = hull_tile[0].zw;
        if (batch == 0u) {
            intervals[workgroups.z * (call.q_len + 2u * workgroups.x) + workgroup.x] = vec2<i32>(i32(before_tile[0]), 0);
        }
    }
}
