"""Rotary embedding, backward, on the caller's GPU buffer; ``arrays.rope_backward`` is the same on NumPy arrays."""

from __future__ import annotations

from typing import Any, Literal

from ..algorithms import rope
from ..gpu.buffers import BufferLike
from ..gpu.device import Device
from ..problem.rotation import ROPE_BASE, Rotation, resolve_angles
from .program import Program


def rope_program(rotation: Rotation, device: Device, tensor: str = "q") -> Program:
    """What rotates back the gradient of q or of k on a device; for a rotation that was asked for lately, the same again."""
    key = rotation, tensor
    found: Program | None = device.plans.get(key)
    if found is None:
        recipe = rope.rotate(rotation, rope.suited(tensor, device.profile))
        found = device.plans.keep(key, Program(recipe, device))
    return found


def record_rope_backward(
    device: Device,
    encoder: Any,
    buffer: BufferLike,
    *,
    seq: int,
    heads: int,
    head_dim: int,
    base: float = ROPE_BASE,
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
    rotation = Rotation(batch=batch, seq=seq, heads=heads, head_dim=head_dim)
    angles = resolve_angles(rotation, base, offset)
    rope_program(rotation, device, tensor).record_call(encoder, {"d_x": buffer}, angles)
