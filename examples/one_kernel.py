"""One generated kernel in a plain wgpu program: its text and its facts are read, and nothing else of the package runs.

    python examples/one_kernel.py

``generated.load`` gives the WGSL with what a host has to know, as plain data: entry point, bindings in order with their
access and the 32-bit words of each uniform, and the workgroup counts as products of named sizes. A host in another
language reads the same from generated/manifest.json. Here the kernel is rope_q_backward, the inverse rotary embedding, in
place; the result is compared with NumPy in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu
from wgsl_attention import generated
from wgsl_attention.kernels.facts import Word

SEQ, HEADS, HEAD_DIM, BASE = 1000, 4, 64, 10000.0


def rotated_back(d_x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same in float64: pair (2i, 2i + 1) at position p turns by −p · base^(−2i / head_dim)."""
    angle = np.arange(SEQ)[:, None] * BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    pairs = d_x.astype(np.float64).reshape(SEQ, HEADS, HEAD_DIM // 2, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(-1j * angle)[:, None, :]
    return np.stack([turned.real, turned.imag], axis=-1).reshape(d_x.shape)


def packed(words: tuple[Word, ...], values: dict[str, float]) -> np.ndarray[Any, Any]:
    """A uniform's words, filled up to a vec4."""
    types = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}
    numbers = [np.array(values[word.name], types[word.type]).view(np.uint32) for word in words]
    return np.array([*numbers, *[0] * (-len(numbers) % 4)], np.uint32)


def main() -> None:
    variant = generated.load("rope_q_backward_wg256")
    for binding in variant.bindings:
        print(
            f"binding {binding.binding}: {binding.access:10} {binding.name:7} {binding.type:12} {' '.join(map(str, binding.words))}"
        )

    raw = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
    d_x = np.random.default_rng(0).standard_normal((SEQ, HEADS, HEAD_DIM), np.float32)

    # The uniforms' words by their names. The ratio is base^(−2 / head_dim) as a 64-bit fraction: with it the kernel keeps
    # angles exact at any position; two zeros would have it compute them in float32.
    ratio = round(BASE ** (-2 / HEAD_DIM) * 2**64)
    values = {"seq_len": SEQ, "heads": HEADS, "head_dim": HEAD_DIM, "pos_offset": 0}
    values |= {"rope_base": BASE, "ratio_low": ratio & 0xFFFFFFFF, "ratio_high": ratio >> 32}
    flags = wgpu.BufferUsage
    entries, types = [], {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
    for binding in variant.bindings:
        if binding.access == "uniform":
            buffer = raw.create_buffer_with_data(data=packed(binding.words, values), usage=flags.UNIFORM)
        else:
            buffer = data = raw.create_buffer_with_data(data=d_x, usage=flags.STORAGE | flags.COPY_SRC)
        entries.append({"binding": binding.binding, "resource": {"buffer": buffer}})
    layout = raw.create_bind_group_layout(
        entries=[
            {"binding": b.binding, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": types[b.access]}}
            for b in variant.bindings
        ]
    )
    pipeline = raw.create_compute_pipeline(
        layout=raw.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": raw.create_shader_module(code=variant.wgsl), "entry_point": variant.entry_point},
    )

    encoder = raw.create_command_encoder()
    compute_pass = encoder.begin_compute_pass()
    compute_pass.set_pipeline(pipeline)
    compute_pass.set_bind_group(0, raw.create_bind_group(layout=layout, entries=entries))
    counts = variant.dispatch({"batch": 1, "seq_len": SEQ, "heads": HEADS, "half_head_dim": HEAD_DIM // 2})
    compute_pass.dispatch_workgroups(*counts)
    compute_pass.end()
    raw.queue.submit([encoder.finish()])

    found = np.frombuffer(raw.queue.read_buffer(data), np.float32).reshape(d_x.shape)
    error = np.abs(found - rotated_back(d_x)).max()
    print(f"{counts} workgroups of {variant.workgroup_size[0]} threads; largest error {error:.1e}")
    if not error < 1e-6:
        raise SystemExit("the numbers are wrong")


if __name__ == "__main__":
    main()
