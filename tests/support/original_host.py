"""A plain host, in wgpu-py alone, written against the contract of ``data/original.wgsl``, and that file made to run.

The host knows the file's group, binding numbers, uniforms and dispatch, and nothing of the package: it runs whatever text
has one of the five entry points. ``modules`` splits the file at its ``--- KERNEL`` lines and adds the helpers that it leaves out.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ORIGINAL = Path(__file__).parents[1] / "data" / "original.wgsl"

HELPERS = """
const WG: u32 = 256u;

var<workgroup> sh_reduce: array<f32, 256>;

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn nan_guard(x: f32) -> f32 {
    return select(0.0, x, is_finite(x));
}

fn wg_reduce_sum(tid: u32, x: f32) -> f32 {
    sh_reduce[tid] = x;
    workgroupBarrier();
    for (var stride = WG / 2u; stride > 0u; stride = stride / 2u) {
        if (tid < stride) {
            sh_reduce[tid] = sh_reduce[tid] + sh_reduce[tid + stride];
        }
        workgroupBarrier();
    }
    let total = sh_reduce[0];
    workgroupBarrier();
    return total;
}

fn flat_id(gid: vec3<u32>, nwg: vec3<u32>) -> u32 {
    return gid.x + gid.y * nwg.x * WG;
}
"""

READ, WRITE, UNIFORM = "read-only-storage", "storage", "uniform"
ATTENTION = {0: READ, 1: READ, 2: READ, 3: READ, 4: READ, 5: WRITE, 6: WRITE, 7: WRITE, 8: UNIFORM, 9: UNIFORM, 10: READ}
DKDV = {0: READ, 1: READ, 2: READ, 3: READ, 4: WRITE, 5: WRITE, 6: UNIFORM}
ROPE = {0: WRITE, 1: UNIFORM, 2: UNIFORM}
CONTRACT: dict[str, dict[int, str]] = {
    "attention_backward": ATTENTION,
    "attention_backward_short": ATTENTION,
    "attention_backward_short_dKdV": DKDV,
    "rope_q_backward": ROPE,
    "rope_k_backward": ROPE,
}
"""What each entry point's bindings are in the file."""


@functools.cache
def modules() -> dict[str, str]:
    """The file's five modules by entry point."""
    head, *kernels = ORIGINAL.read_text(encoding="utf-8").split("// --- KERNEL: ")
    texts = {}
    for kernel in kernels:
        name, _, body = kernel.partition(" ---\n")
        texts[name] = f"{head}{HELPERS}\n{body}"
    return texts


@functools.cache
def gpu() -> Any:
    """A device that a host of the file would ask for: its defaults, and nine storage buffers."""
    import wgpu

    adapters = wgpu.gpu.enumerate_adapters_sync()
    software = [a for a in adapters if a.info["adapter_type"] == "CPU" and "llvmpipe" in a.info["device"]]
    adapter = (software or adapters)[0]
    return adapter.request_device_sync(required_limits={"max-storage-buffers-per-shader-stage": 9})


class Host:
    """One of the file's entry points, compiled from ``wgsl``."""

    def __init__(self, entry_point: str, wgsl: str) -> None:
        device = gpu()
        self.contract = CONTRACT[entry_point]
        self.layout = device.create_bind_group_layout(
            entries=[{"binding": n, "visibility": 4, "buffer": {"type": kind}} for n, kind in self.contract.items()]
        )
        self.pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[self.layout]),
            compute={"module": device.create_shader_module(code=wgsl), "entry_point": entry_point},
        )

    def __call__(
        self, arrays: Mapping[int, Array], dims: tuple[int, int, int, int], params: float | None, workgroups: tuple[int, int]
    ) -> dict[int, Array]:
        """Binds the arrays by number and the uniforms, dispatches, and returns what the writable buffers hold."""
        device = gpu()
        uniforms = {n: struct.pack("<4I", *dims) for n, kind in self.contract.items() if kind == UNIFORM}
        if params is not None:
            uniforms[max(uniforms)] = struct.pack("<4f", params, 0, 0, 0)
        buffers = {}
        for number, kind in self.contract.items():
            data = uniforms[number] if kind == UNIFORM else np.ascontiguousarray(arrays[number]).tobytes()
            usage = 64 if kind == UNIFORM else 128 | 4
            buffers[number] = device.create_buffer_with_data(data=data, usage=usage)
        group = device.create_bind_group(
            layout=self.layout,
            entries=[
                {"binding": n, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                for n, buffer in buffers.items()
            ],
        )
        encoder = device.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        compute_pass.set_pipeline(self.pipeline)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(*workgroups, 1)
        compute_pass.end()
        device.queue.submit([encoder.finish()])
        return {
            n: np.frombuffer(device.queue.read_buffer(buffers[n]), np.float32).reshape(arrays[n].shape)
            for n, kind in self.contract.items()
            if kind == WRITE
        }


def attention_arrays(x: Mapping[str, Array], d_q: Array, second: Array, third: Array) -> dict[int, Array]:
    """The buffers of the first two kernels; ``second`` and ``third`` are dK and dV, or the scratch P and dS."""
    inputs = (x["q"], x["k"], x["v"], x["d_o"], x["lse"])
    return {**dict(enumerate(inputs)), 5: d_q, 6: second, 7: third, 10: x["doc_start"]}


def streaming(host: Host, x: Mapping[str, Array], scale: float, before: Mapping[str, Array]) -> dict[str, Array]:
    """``attention_backward`` on (seq, heads, head_dim) arrays; ``before`` is what dQ, dK and dV hold, to be added to."""
    seq, heads, head_dim = x["q"].shape
    arrays = attention_arrays(x, before["d_q"], before["d_k"], before["d_v"])
    found = host(arrays, (seq, heads, x["k"].shape[1], head_dim), scale, (seq, heads))
    return {"d_q": found[5], "d_k": found[6], "d_v": found[7]}


def short(main: Host, dkdv: Host, x: Mapping[str, Array], scale: float, before: float = 0.0) -> dict[str, Array]:
    """The short pair; every buffer that it writes, the scratch included, holds ``before`` first."""
    seq, heads, head_dim = x["q"].shape
    kv_heads = x["k"].shape[1]
    scratch = np.full((seq, heads, seq), before, np.float32)
    dims = (seq, heads, kv_heads, head_dim)
    arrays = attention_arrays(x, np.full(x["q"].shape, before, np.float32), scratch, scratch)
    first = main(arrays, dims, scale, (seq, heads))
    filled = np.full(x["k"].shape, before, np.float32)
    arrays = {0: x["q"], 1: x["d_o"], 2: first[6], 3: first[7], 4: filled, 5: filled}
    second = dkdv(arrays, dims, None, (seq, kv_heads))
    return {"d_q": first[5], "d_k": second[4], "d_v": second[5], "p": first[6], "d_s": first[7]}


def rope(host: Host, x: Array, base: float, offset: int, threads: int) -> Array:
    """A RoPE kernel in place on (seq, heads, head_dim): a flat index over workgroups of so many threads."""
    seq, heads, head_dim = x.shape
    count = -(-seq * heads * (head_dim // 2) // threads)
    return host({0: x}, (seq, heads, head_dim, offset), base, (-(-count // 2), 2))[0]
