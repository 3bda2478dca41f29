// attention_pack_wg128_vec4
//
// Q, dO, K and V of a strip's slots, turned into packed tiles: [slot, tile of TILE_ROWS positions, channel, position of the tile].
//
// A thread turns 4 positions × 4 channels: threads wg.x of slot wg.y, or of a kv slot, in Q, dO, K or V (wg.z). Positions and
// channels past the ends are zeros.
// What slots, strips, spans, hulls and parts are, and the whole algorithm: templates/tiled/README.md

const WG: u32 = 128u;
const TILE_ROWS: u32 = 128u;
const TILE_VECS: u32 = TILE_ROWS / 4u;

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
    k: Rows,
    v: Rows,
    q_len: u32,
    kv_len: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    v_head_dim: u32,
    slot_first: u32,
    strip_slots: u32,
    strip_kv_slots: u32,
    channels: u32,
    v_channels: u32,
    d_o_tiles: u32,
    v_tiles: u32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> d_o: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> query_tiles: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> key_tiles: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> call: Call;

fn q_start(batch: u32, head: u32) -> u32 {
    return (call.q.offset + batch * call.q.batch + head * call.q.head) / 4u;
}

fn read_q(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len || channel >= call.head_dim / 4u) {
        return vec4<f32>();
    }
    return q[start + position * (call.q.row / 4u) + channel];
}

fn d_o_start(batch: u32, head: u32) -> u32 {
    return (call.d_o.offset + batch * call.d_o.batch + head * call.d_o.head) / 4u;
}

fn read_d_o(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.q_len || channel >= call.v_head_dim / 4u) {
        return vec4<f32>();
    }
    return d_o[start + position * (call.d_o.row / 4u) + channel];
}

fn k_start(batch: u32, head: u32) -> u32 {
    return (call.k.offset + batch * call.k.batch + head * call.k.head) / 4u;
}

fn read_k(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.kv_len || channel >= call.head_dim / 4u) {
        return vec4<f32>();
    }
    return k[start + position * (call.k.row / 4u) + channel];
}

fn v_start(batch: u32, head: u32) -> u32 {
    return (call.v.offset + batch * call.v.batch + head * call.v.head) / 4u;
}

fn read_v(start: u32, position: u32, channel: u32) -> vec4<f32> {
    if (position >= call.kv_len || channel >= call.v_head_dim / 4u) {
        return vec4<f32>();
    }
    return v[start + position * (call.v.row / 4u) + channel];
}

@compute @workgroup_size(128, 1, 1)
fn attention_pack(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let of_keys = workgroup.z >= 2u;
    let heads = select(call.heads, call.kv_heads, of_keys);
    let slot = select(call.slot_first, call.slot_first / (call.heads / call.kv_heads), of_keys) + workgroup.y;
    let tiles = (select(call.q_len, call.kv_len, of_keys) + TILE_ROWS - 1u) / TILE_ROWS;
    let channels = select(call.channels, call.v_channels, workgroup.z % 2u == 1u);

    // Threads beside each other: 8 fours of positions, then the next four channels. So reads and writes both meet whole lines.
    let vecs = channels / 4u;
    let entry = workgroup.x * WG + tid;
    let tile = entry / (TILE_VECS * vecs);
    let channel = entry / 8u % vecs;
    let four = entry / (8u * vecs) % (TILE_VECS / 8u) * 8u + entry % 8u;
    if (workgroup.y >= select(call.strip_slots, call.strip_kv_slots, of_keys) || tile >= tiles) {
        return;
    }
    let batch = slot / heads;
    let head = slot % heads;
    let position = tile * TILE_ROWS + four * 4u;
    var rows: array<vec4<f32>, 4>;
    switch workgroup.z {
        case 0u: {
            let start = q_start(batch, head);
            rows[0] = read_q(start, position, channel);
            rows[1] = read_q(start, position + 1u, channel);
            rows[2] = read_q(start, position + 2u, channel);
            rows[3] = read_q(start, position + 3u, channel);
        }
        case 1u: {
            let start = d_o_start(batch, head);
            rows[0] = read_d_o(start, position, channel);
            rows[1] = read_d_o(start, position + 1u, channel);
            rows[2] = read_d_o(start, position + 2u, channel);
            rows[3] = read_d_o(start, position + 3u, channel);
        }
        case 2u: {
            let start = k_start(batch, head);
            rows[0] = read_k(start, position, channel);
            rows[1] = read_k(start, position + 1u, channel);
            rows[2] = read_k(start, position + 2u, channel);
            rows[3] = read_k(start, position + 3u, channel);
        }
        default: {
            let start = v_start(batch, head);
            rows[0] = read_v(start, position, channel);
            rows[1] = read_v(start, position + 1u, channel);
            rows[2] = read_v(start, position + 2u, channel);
            rows[3] = read_v(start, position + 3u, channel);
        }
    }
    let at = ((workgroup.y * tiles + tile) * channels + channel * 4u) * TILE_VECS + four;
    for (var c = 0u; c < 4u; c++) {
        let turned = vec4<f32>(rows[0][c], rows[1][c], rows[2][c], rows[3][c]);
        if (of_keys) {
            key_tiles[select(0u, call.v_tiles, workgroup.z == 3u) + at + c * TILE_VECS] = turned;
        } else {
            query_tiles[select(0u, call.d_o_tiles, workgroup.z == 1u) + at + c * TILE_VECS] = turned;
        }
    }
}
