"""Rotary embedding, backward, on the caller's GPU buffer; ``arrays.rope_backward`` is the same on NumPy arrays."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ..errors import ArgumentError
from ..gpu.buffers import BufferLike, ranged
from ..gpu.device import Device
from ..kernels.rope import RopeKBackward, RopeQBackward
from ..problem.problem import MAX_HEAD_DIM
from ..rendering.kernel_text import rendered


def rope_ratio(base: float, head_dim: int) -> int:
    """base^(−2/head_dim) as a 64-bit fraction, rounded; 0 where it is not below 1 (the kernel then computes in f32)."""
    # Newton on x^(head_dim/2) = 1/base in exact arithmetic, from the float64 root.
    power, target = head_dim // 2, 1 / Fraction(base)
    x = Fraction(base ** (-1 / power))
    for _ in range(2):
        x -= (x**power - target) / (power * x ** (power - 1))
        x = Fraction(round(x * 2**120), 2**120)
    ratio = round(x * 2**64)
    return ratio if 0 < ratio < 2**64 else 0


def record_rope_backward(
    device: Device,
    encoder: Any,
    buffer: BufferLike,
    *,
    seq: int,
    heads: int,
    head_dim: int,
    base: float = 10000.0,
    offset: int = 0,
    batch: int = 1,
    tensor: Literal["q", "k"] = "q",
) -> None:
    """Records the inverse rotation of interleaved pairs, in place, into ``encoder``; nothing is submitted.

    A call with the buffer and the numbers of an earlier one makes nothing anew.

    ``buffer`` holds (batch, seq, heads, head_dim) float32, row-major: the gradient with respect to the rotated q or k.
    Position p of a sequence turns pair i by (p + ``offset``)·base^(−2i/head_dim) radians. ``tensor`` names the kernel:
    ``rope_q_backward`` or ``rope_k_backward``. Raises ``ArgumentError`` or ``GpuBufferError`` before anything is recorded.
    """
    base, offset = check_rope(head_dim, base, offset, seq)
    for name, value in (("seq", seq), ("heads", heads), ("batch", batch)):
        if not isinstance(value, int) or value < 1:
            raise ArgumentError(name, repr(value), "a positive integer")
    need = 4 * batch * seq * heads * head_dim
    if need // 4 >= 2**32:
        raise ArgumentError("buffer", f"{need // 4} elements", "fewer than 2³², which a 32-bit index reaches")
    found = ranged("d_x", buffer, need, device.profile.limits.min_storage_buffer_offset_alignment)
    wg = 256 if device.profile.limits.max_compute_invocations_per_workgroup >= 256 else 64
    family, count = (RopeQBackward, "heads") if tensor == "q" else (RopeKBackward, "kv_heads")
    variant = rendered(family(wg=wg))
    key = (variant.name, id(found.buffer), found.offset, batch, seq, heads, head_dim, base, offset)
    pipeline = device.pipeline(variant, unchecked=True)
    group = device.groups.get(key)
    if group is None:
        ratio = rope_ratio(base, head_dim)
        dims = device.uniform(np.array([seq, heads, head_dim, offset], np.uint32))
        words = np.array([np.float32(base).view(np.uint32), ratio & 0xFFFFFFFF, ratio >> 32, 0], np.uint32)
        bound = {0: (found.buffer, found.offset, need), 1: dims, 2: device.uniform(words)}
        group = device.groups.keep(key, device.bind_group(pipeline, bound), [found.buffer])
    counts = variant.dispatch({"seq_len": seq, count: heads, "half_head_dim": head_dim // 2, "batch": batch})
    with device.guard("recording rotary embedding"):
        compute_pass = encoder.begin_compute_pass(label=variant.name)
        compute_pass.set_pipeline(pipeline.raw)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(*counts)
        compute_pass.end()


def check_rope(head_dim: int, base: float, offset: int, seq: int) -> tuple[float, int]:
    """``base`` and ``offset`` as numbers, or ``ArgumentError``."""
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise ArgumentError("head_dim", head_dim, f"an even number from 2 to {MAX_HEAD_DIM}")
    try:
        number = float(base)
    except (TypeError, ValueError):
        raise ArgumentError("base", repr(base), "a positive number") from None
    if not math.isfinite(number) or number <= 0:
        raise ArgumentError("base", number, "a positive, finite number")
    if not isinstance(offset, (int, np.integer)) or isinstance(offset, bool) or offset < 0 or offset + seq > 2**32:
        raise ArgumentError("offset", repr(offset), "a whole number of positions, from 0 to 2³² − seq")
    return number, int(offset)
