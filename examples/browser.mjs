// One generated kernel in a browser, from generated/index.mjs alone. Serve the repository's root and open
// examples/browser.html:  python -m http.server --bind 127.0.0.1 8000
import { dispatch, load } from "../generated/index.mjs";

const [seq, heads, kvHeads, headDim, scale] = [96, 4, 2, 64, 0.125];

// A kernel that gives all three gradients by itself; it adds to d_k and d_v, which begin as zeros.
const variant = await load("attention_backward_wg256_d64_causal");

/** Uniform noise between −1 and 1, the same every time. */
function noise(count, seed) {
  let state = seed;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  });
}

/** lse and the gradients in float64, row by row: P = softmax, dS = P ∘ (dP − Σ P ∘ dP), and the products. */
function reference({ q, k, v, d_o }) {
  const dot = (a, i, b, j) => {
    let sum = 0;
    for (let c = 0; c < headDim; c++) sum += a[i * headDim + c] * b[j * headDim + c];
    return sum;
  };
  const add = (to, i, factor, from, j) => {
    for (let c = 0; c < headDim; c++) to[i * headDim + c] += factor * from[j * headDim + c];
  };
  const [lse, d_q] = [new Float64Array(seq * heads), new Float64Array(q.length)];
  const [d_k, d_v] = [new Float64Array(k.length), new Float64Array(v.length)];
  for (let i = 0; i < seq; i++) {
    for (let h = 0; h < heads; h++) {
      const row = i * heads + h;
      const keys = Array.from({ length: i + 1 }, (_, j) => j * kvHeads + Math.floor((h * kvHeads) / heads));
      const scores = keys.map((key) => scale * dot(q, row, k, key));
      lse[row] = Math.log(scores.reduce((sum, score) => sum + Math.exp(score), 0));
      const p = scores.map((score) => Math.exp(score - lse[row]));
      const dP = keys.map((key) => dot(d_o, row, v, key));
      const delta = p.reduce((sum, weight, j) => sum + weight * dP[j], 0);
      keys.forEach((key, j) => {
        const dS = scale * p[j] * (dP[j] - delta);
        add(d_q, row, dS, k, key);
        add(d_k, key, dS, q, row);
        add(d_v, key, p[j], d_o, row);
      });
    }
  }
  return { lse, d_q, d_k, d_v };
}

/** A uniform's bytes from the words that its binding names. */
function packed(words, values) {
  const view = new DataView(new ArrayBuffer(16 * Math.ceil(words.length / 4)));
  words.forEach(({ name, type }, i) => {
    const set = { u32: view.setUint32, i32: view.setInt32, f32: view.setFloat32 }[type];
    set.call(view, 4 * i, values[name], true);
  });
  return new Uint8Array(view.buffer);
}

async function run(device, arrays, values) {
  const types = { read: "read-only-storage", read_write: "storage", uniform: "uniform" };
  const layout = device.createBindGroupLayout({
    entries: variant.bindings.map(({ binding, access }) => ({
      binding,
      visibility: GPUShaderStage.COMPUTE,
      buffer: { type: types[access] },
    })),
  });
  const pipeline = await device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
    compute: { module: device.createShaderModule({ code: variant.wgsl }), entryPoint: variant.entry_point },
  });

  const buffers = {};
  for (const { role, access, words } of variant.bindings) {
    const data = access === "uniform" ? packed(words, values) : arrays[role];
    const kind = access === "uniform" ? GPUBufferUsage.UNIFORM : GPUBufferUsage.STORAGE;
    const usage = kind | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    buffers[role] = device.createBuffer({ size: data.byteLength, usage });
    device.queue.writeBuffer(buffers[role], 0, data);
  }
  const entries = variant.bindings.map(({ binding, role }) => ({ binding, resource: { buffer: buffers[role] } }));

  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
  pass.dispatchWorkgroups(...dispatch(variant, values));
  pass.end();

  const read = {};
  for (const name of ["d_q", "d_k", "d_v"]) {
    const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ;
    read[name] = device.createBuffer({ size: buffers[name].size, usage });
    encoder.copyBufferToBuffer(buffers[name], 0, read[name], 0, buffers[name].size);
  }
  device.queue.submit([encoder.finish()]);
  const found = {};
  for (const [name, buffer] of Object.entries(read)) {
    await buffer.mapAsync(GPUMapMode.READ);
    found[name] = new Float32Array(buffer.getMappedRange());
  }
  return found;
}

async function main() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return ["This browser has no WebGPU adapter."];
  const device = await adapter.requestDevice();

  const [query, key] = [seq * heads * headDim, seq * kvHeads * headDim];
  const inputs = { q: noise(query, 1), k: noise(key, 2), v: noise(key, 3), d_o: noise(query, 4) };
  const { lse, ...right } = reference(inputs);
  const empty = { d_q: new Float32Array(query), d_k: new Float32Array(key), d_v: new Float32Array(key) };
  const sizes = { batch: 1, q_len: seq, heads, kv_heads: kvHeads, head_dim: headDim };
  const found = await run(device, { ...inputs, ...empty, lse: Float32Array.from(lse) }, { ...sizes, scale });

  const lines = [`${variant.name} on ${adapter.info.description || adapter.info.vendor || "this adapter"}`];
  for (const [name, exact] of Object.entries(right)) {
    const largest = exact.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    const error = exact.reduce((most, x, i) => Math.max(most, Math.abs(found[name][i] - x) || 0), 0) / largest;
    const written = found[name].every(Number.isFinite) && found[name].some((x) => x !== 0);
    lines.push(`${name}: largest error ${error.toExponential(1)} of the largest number, ${written && error < 1e-5 ? "right" : "WRONG"}`);
  }
  return lines;
}

document.getElementById("result").textContent = (await main().catch((error) => [`${error}`])).join("\n");
