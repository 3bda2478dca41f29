"""A training step of one's own around the backward pass of attention: one device, one encoder, one compute pass.

    python examples/embed.py

The program owns the device, the buffers, the encoder and two kernels. In one pass, its first kernel scales the gradient
that comes from above (d_o), then the plan's kernels give d_q, d_k and d_v, and its second kernel updates a parameter, here
a bias that was added to every query: bias −= rate · Σ d_q. Nothing is submitted or read back but by the program itself.
The result is compared with NumPy in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu
import wgsl_attention as wa

SEQ, HEADS, KV_HEADS, HEAD_DIM = 200, 4, 2, 64
LOSS_SCALE, RATE = 0.25, 0.01

SCALE_D_O = """
@group(0) @binding(0) var<storage, read_write> d_o: array<f32>;
@group(0) @binding(1) var<uniform> factor: f32;

@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&d_o)) {
        d_o[id.x] *= factor;
    }
}
"""

UPDATE_BIAS = """
@group(0) @binding(0) var<storage, read> d_q: array<f32>;
@group(0) @binding(1) var<storage, read_write> bias: array<f32>;
@group(0) @binding(2) var<uniform> rate: f32;

// One thread for each of the bias's heads · head_dim numbers, which every position of d_q adds to.
@compute @workgroup_size(64)
fn update(@builtin(global_invocation_id) id: vec3<u32>) {
    let width = arrayLength(&bias);
    if (id.x < width) {
        var sum = 0.0;
        for (var i = id.x; i < arrayLength(&d_q); i += width) {
            sum += d_q[i];
        }
        bias[id.x] -= rate * sum;
    }
}
"""

STORAGE, UNIFORM = wgpu.BufferUsage.STORAGE, wgpu.BufferUsage.UNIFORM
COPY_SRC, COPY_DST = wgpu.BufferUsage.COPY_SRC, wgpu.BufferUsage.COPY_DST


def filled(raw: Any, array: np.ndarray[Any, Any], usage: int = STORAGE) -> Any:
    """A buffer with an array's numbers in it."""
    return raw.create_buffer_with_data(data=np.ascontiguousarray(array), usage=usage | COPY_SRC | COPY_DST)


def kernel(raw: Any, wgsl: str, *buffers: Any) -> tuple[Any, Any]:
    """One of the program's own kernels with its buffers: pipeline and bind group."""
    module = raw.create_shader_module(code=wgsl)
    pipeline = raw.create_compute_pipeline(layout="auto", compute={"module": module})
    entries = [{"binding": i, "resource": {"buffer": buffer}} for i, buffer in enumerate(buffers)]
    return pipeline, raw.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)


def inputs() -> dict[str, np.ndarray[Any, Any]]:
    """What a forward pass would have left behind. lse is log Σ exp(scale · q · k) over the keys that a query sees."""
    rng = np.random.default_rng(0)
    q, d_o = rng.standard_normal((2, SEQ, HEADS, HEAD_DIM), np.float32)
    k, v = rng.standard_normal((2, SEQ, KV_HEADS, HEAD_DIM), np.float32)
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k.repeat(HEADS // KV_HEADS, 1)) / np.sqrt(HEAD_DIM)
    scores[:, np.triu(np.ones((SEQ, SEQ), bool), 1)] = -np.inf
    lse = np.log(np.exp(scores).sum(axis=2)).T.astype(np.float32)
    return {"q": q, "k": k, "v": v, "d_o": d_o, "lse": lse, "bias": np.zeros((HEADS, HEAD_DIM), np.float32)}


def on_the_gpu(raw: Any, x: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """One step: d_q, d_k, d_v and the updated bias."""
    # The package works on the device as it is; close() would drop the package's caches, never the device.
    device = wa.Device.from_wgpu(raw)
    problem = wa.Problem(q_len=SEQ, kv_len=SEQ, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, mask=wa.Mask.causal())
    problem = problem.packed("q", "k", "v")  # as one fused projection leaves them: a row of all three at each position
    # Tiled and short clear nothing beforehand (plan.first is empty), so that they can go into a pass that is open already.
    plan = wa.plan(problem, device, algorithm="tiled")

    qkv = filled(raw, np.concatenate([x["q"], x["k"], x["v"]], axis=1))
    buffers = {"q": qkv, "k": qkv, "v": qkv, "d_o": filled(raw, x["d_o"]), "lse": filled(raw, x["lse"])}
    buffers["d_q"] = raw.create_buffer(size=plan.buffers["d_q"], usage=STORAGE | COPY_SRC)
    # Gradients may share a buffer: (buffer, offset, size) in bytes, at multiples of 256 on any device.
    size = -(-plan.buffers["d_k"] // 256) * 256
    arena = raw.create_buffer(size=size + plan.buffers["d_v"], usage=STORAGE | COPY_SRC)
    buffers["d_k"] = (arena, 0, plan.buffers["d_k"])
    buffers["d_v"] = (arena, size, plan.buffers["d_v"])
    # Scratch may be the program's too: as many buffers as scratch_bytes says, of any contents, free for others afterwards.
    scratch = [raw.create_buffer(size=size, usage=STORAGE) for size in plan.scratch_bytes]

    bias = filled(raw, x["bias"])
    factor, rate = (filled(raw, np.array([number], np.float32), UNIFORM) for number in (LOSS_SCALE, RATE))
    before, before_group = kernel(raw, SCALE_D_O, buffers["d_o"], factor)
    after, after_group = kernel(raw, UPDATE_BIAS, buffers["d_q"], bias, rate)

    encoder = raw.create_command_encoder()
    compute_pass = encoder.begin_compute_pass()
    compute_pass.set_pipeline(before)
    compute_pass.set_bind_group(0, before_group)
    compute_pass.dispatch_workgroups(-(-x["d_o"].size // 64))

    plan.record_pass(compute_pass, buffers, scratch=scratch)

    compute_pass.set_pipeline(after)
    compute_pass.set_bind_group(0, after_group)
    compute_pass.dispatch_workgroups(-(-x["bias"].size // 64))
    compute_pass.end()
    raw.queue.submit([encoder.finish()])

    def read(buffer: Any, like: np.ndarray[Any, Any], start: int = 0) -> np.ndarray[Any, Any]:
        return np.frombuffer(raw.queue.read_buffer(buffer, start, like.nbytes), np.float32).reshape(like.shape)

    found = {"d_q": read(buffers["d_q"], x["q"]), "bias": read(bias, x["bias"])}
    return found | {name: read(arena, x[name[2:]], buffers[name][1]) for name in ("d_k", "d_v")}


def in_numpy(x: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """The same in float64, from the formulas: P = softmax, dS = P ∘ (dP − rowsum(P ∘ dP)), and the products."""
    q, k, v, d_o = (x[name].astype(np.float64) for name in ("q", "k", "v", "d_o"))
    d_o = d_o * LOSS_SCALE
    group = HEADS // KV_HEADS
    k_all, v_all = k.repeat(group, 1), v.repeat(group, 1)
    scores = np.einsum("ihd,jhd->hij", q, k_all) / np.sqrt(HEAD_DIM)
    scores[:, np.triu(np.ones((SEQ, SEQ), bool), 1)] = -np.inf
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    d_p = np.einsum("ihd,jhd->hij", d_o, v_all)
    d_s = p * (d_p - (p * d_p).sum(axis=2, keepdims=True)) / np.sqrt(HEAD_DIM)
    d_q = np.einsum("hij,jhd->ihd", d_s, k_all)
    d_k = np.einsum("hij,ihd->jhd", d_s, q).reshape(SEQ, KV_HEADS, group, HEAD_DIM).sum(axis=2)
    d_v = np.einsum("hij,ihd->jhd", p, d_o).reshape(SEQ, KV_HEADS, group, HEAD_DIM).sum(axis=2)
    return {"d_q": d_q, "d_k": d_k, "d_v": d_v, "bias": x["bias"] - RATE * d_q.sum(axis=0)}


def main() -> None:
    raw = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
    print(f"on {raw.adapter.info['device']}, a device with WebGPU's default limits")
    x = inputs()
    found, right = on_the_gpu(raw, x), in_numpy(x)
    worst = 0.0
    for name in ("d_q", "d_k", "d_v", "bias"):
        error = np.abs(found[name] - right[name]).max() / np.abs(right[name]).max()
        worst = max(worst, error)
        print(f"{name:4}  largest error {error:.1e} of the largest number")
    if not worst < 1e-5:
        raise SystemExit("the numbers are wrong")


if __name__ == "__main__":
    main()
