// Tint without a driver: checks variants through the npm package webgpu, on Dawn's null backend, which has every feature.
//
//   node tint_worker.mjs FOLDER     FOLDER holds the package webgpu
//
// Answers each line of JSON on its standard input with one on its standard output, as worker.py does.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const { create } = await import(pathToFileURL(path.join(process.argv[2], "index.js")).href);
const gpu = create(["backend=null", "enable-dawn-features=allow_unsafe_apis"]);

const LAYOUT = { read: "read-only-storage", read_write: "storage", uniform: "uniform" };
const COMPUTE_STAGE = 4;
const FEATURES = ["shader-f16", "subgroups", "chromium-experimental-subgroup-matrix"];

async function open() {
  const adapter = await gpu.requestAdapter();
  if (!adapter) {
    return { ok: false, message: "Dawn's null backend gives no adapter" };
  }
  return { ok: true, device: "Tint on Dawn's null backend", driver: "" };
}

// A device with WebGPU's default limits, which are all that the null adapter has, and every feature that kernels use.
let device;
async function openDevice() {
  if (!device) {
    const adapter = await gpu.requestAdapter();
    device = await adapter.requestDevice({ requiredFeatures: FEATURES.filter((name) => adapter.features.has(name)) });
  }
  return device;
}

async function compile(variant) {
  const { name, wgsl, extensions } = variant;
  const device = await openDevice();
  // On the first line, so that line numbers stay those of the file.
  const code = extensions.map((extension) => `enable ${extension}; `).join("") + wgsl;
  const start = performance.now();
  const seconds = () => (performance.now() - start) / 1000;
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ label: name, code });
  const { messages } = await module.getCompilationInfo();
  const scope = await device.popErrorScope();
  const first = messages.find((message) => message.type === "error");
  if (first || scope) {
    return { ok: false, kind: "refused", message: first ? withLine(name, first, code) : `${name}: Tint: ${scope.message}` };
  }
  const lacking = shortfalls(variant, device);
  if (lacking.length || variant.module_only) {
    return { ok: true, kind: "module", message: lacking.join("; "), seconds: seconds() };
  }
  device.pushErrorScope("validation");
  device.createComputePipeline({
    layout: variant.layout ?? pipelineLayout(variant, device),
    compute: { module, entryPoint: variant.entry_point },
  });
  const error = await device.popErrorScope();
  if (error) {
    return { ok: false, kind: "refused", message: `${name}: Tint refuses the pipeline: ${error.message.split("\n")[0]}` };
  }
  return { ok: true, kind: "pipeline", limits: "webgpu-default", seconds: seconds() };
}

// Explicit: "auto" drops a binding that a variant declares and does not use.
function pipelineLayout({ bindings }, device) {
  const entries = bindings.map(({ binding, access }) => ({
    binding,
    visibility: COMPUTE_STAGE,
    buffer: { type: LAYOUT[access] },
  }));
  return device.createPipelineLayout({ bindGroupLayouts: [device.createBindGroupLayout({ entries })] });
}

function withLine(name, { lineNum, linePos, message }, code) {
  const line = code.split("\n")[lineNum - 1]?.trim();
  return `${name}: Tint refuses it: ${message}` + (line ? `\n  line ${lineNum}, column ${linePos}: ${line}` : "");
}

function shortfalls(variant, device) {
  const threads = variant.workgroup_size.reduce((product, size) => product * size, 1);
  const buffers = variant.bindings.filter(({ access }) => access !== "uniform").length;
  const needs = [
    ["bytes of workgroup memory", variant.workgroup_bytes, device.limits.maxComputeWorkgroupStorageSize],
    ["threads", threads, device.limits.maxComputeInvocationsPerWorkgroup],
    ["storage buffers", buffers, device.limits.maxStorageBuffersPerShaderStage],
  ];
  return needs.filter(([, need, have]) => need > have).map(([what, need, have]) => `needs ${need} ${what}, Dawn's null device has ${have}`);
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = request.op === "open" ? await open() : await compile(request.variant);
  } catch (error) {
    answer = { ok: false, kind: "error", message: `${error}` };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
// Dawn's objects are not torn down in an order that it likes.
process.exit(0);
