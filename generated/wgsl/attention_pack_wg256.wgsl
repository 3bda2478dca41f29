// attention_pack_wg256
//
// Rows of one tensor, turned into tiles: [batch·heads, tile of TILE_ROWS positions, channel, position of the tile].
//
// A thread turns 4 positions × 4 channels: threads wg.x of head wg.y. Positions and channels past the ends are zeros.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const WG: u32 = 256u;
const TILE_ROWS: u32 = 128u;

// Where a tensor's rows lie, in numbers of 4 bytes: the first one, and how far apart batch entries, positions and heads are
struct Rows {
    offset: u32,
    batch: u32,
    row: u32,
    head: u32,
}

struct Call {
    source: Rows,
    source_length: u32,
    source_heads: u32,
    source_dim: u32,
    padded: u32,
    first_tile: u32,
}

@group(0) @binding(0) var<storage, read> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> tiles: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> call: Call;

fn source_start(batch: u32, head: u32) -> u32 {
    return call.source.offset + batch * call.source.batch + head * call.source.head;
}

fn read_source(start: u32, position: u32, channel: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if (position < call.source_length) {
        for (var i = 0u; i < 4u && channel * 4u + i < call.source_dim; i++) {
            x[i] = source[start + position * call.source.row + channel * 4u + i];
        }
    }
    return x;
}

@compute @workgroup_size(256, 1, 1)
fn attention_pack(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    // Threads beside each other: 8 fours of positions, then the next four channels. So reads and writes both meet whole lines.
    let vecs = call.padded / 4u;  // fours of channels
    let entry = workgroup.x * WG + tid;
    let tile = entry / (TILE_ROWS / 4u * vecs);
    let channel = entry / 8u % vecs;
    let four = entry / (8u * vecs) % (TILE_ROWS / 32u) * 8u + entry % 8u;
    let tiles_of_slot = (call.source_length + TILE_ROWS - 1u) / TILE_ROWS;
    if (tile >= tiles_of_slot) {
        return;
    }
    let position = tile * TILE_ROWS + four * 4u;
    let start = source_start(workgroup.y / call.source_heads, workgroup.y % call.source_heads);
    let a = read_source(start, position, channel);
    let b = read_source(start, position + 1u, channel);
    let c = read_source(start, position + 2u, channel);
    let d = read_source(start, position + 3u, channel);
    let at = call.first_tile + ((workgroup.y * tiles_of_slot + tile) * call.padded + channel * 4u) * (TILE_ROWS / 4u) + four;
    tiles[at] = vec4<f32>(a.x, b.x, c.x, d.x);
    tiles[at + TILE_ROWS / 4u] = vec4<f32>(a.y, b.y, c.y, d.y);
    tiles[at + 2u * (TILE_ROWS / 4u)] = vec4<f32>(a.z, b.z, c.z, d.z);
    tiles[at + 3u * (TILE_ROWS / 4u)] = vec4<f32>(a.w, b.w, c.w, d.w);
}
