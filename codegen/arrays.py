"""The NumPy face: arrays in, arrays out. Converts, checks, uploads, runs a plan and reads back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ArgumentError
from .gpu.device import Device, default_device
from .planning.execute import run_plan
from .planning.plans import plan
from .planning.rope import rope_program
from .problem.checks import floats
from .problem.intervals import document_starts, key_counts
from .problem.mask import Mask
from .problem.problem import Problem
from .problem.rotation import ROPE_BASE, Rotation, resolve_angles
from .problem.scalars import Numbers, resolve_numbers
from .reference import attention as reference

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """d_q, d_k, d_v: float32 arrays, shaped as q, k, v."""

    d_q: F32
    d_k: F32
    d_v: F32


def attention_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    d_o: ArrayLike,
    lse: ArrayLike,
    *,
    mask: Mask,
    o: ArrayLike | None = None,
    delta: ArrayLike | None = None,
    scale: float | None = None,
    doc_start: ArrayLike | None = None,
    kv_lengths: ArrayLike | None = None,
    device: Device | None = None,
    check_lse: bool = False,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    algorithm: str | None = None,
    guard: str = "zero",
) -> Gradients:
    """The gradients of attention with respect to q, k and v.

    q and d_o are (q_len, heads, head_dim), k and v (kv_len, kv_heads, head_dim), or all with a batch axis in front; heads is
    a multiple of kv_heads, and d_o and v may have a head_dim of their own. ``lse`` is (…, q_len, heads), the natural
    logarithm of Σ exp(scale·q·k) over the visible keys, +inf for a query that sees none; FlashAttention and PyTorch hand it
    out as (batch, heads, seq): move the axis. Arrays are converted to float32 and to row-major order, float64, float16 and
    integers included; complex and other kinds are refused.

    ``o`` (shaped as d_o) or ``delta`` (shaped as lse: rowsum(d_o∘o)) saves work. ``scale`` defaults to head_dim ** −0.5.
    ``doc_start`` is (seq,) or (batch, seq) integers for a documents mask: each query's first position of its document.
    ``kv_lengths`` is (batch,) integers: keys that count in each batch entry. ``softcap`` is c in S = c·tanh(scale·q·k / c), and
    ``alibi_slopes`` (heads,) the m in S − m·|i + kv_len − q_len − j|. ``check_lse`` makes sure, on the CPU and in
    time proportional to q_len·kv_len, that the lse belongs to these q, k, mask and scale; an lse that covers more keys (a
    sink, keys held elsewhere) is right without it. ``algorithm`` and ``guard`` are as for ``select``.

    Raises ``ArgumentError`` for wrong input, ``UnservedProblemError`` where no kernel serves it, ``DeviceError``.
    The formulas are those of FlashAttention-2 (Dao 2023, algorithm 2).
    """
    if not isinstance(mask, Mask):
        raise ArgumentError("mask", repr(mask), "a Mask, such as Mask.causal()")
    arrays: dict[str, NDArray[Any]] = {name: floats(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("d_o", d_o))}
    batched = arrays["q"].ndim == 4
    for name, array in arrays.items():
        if array.ndim not in (3, 4) or (array.ndim == 4) != batched:
            raise ArgumentError(
                name, f"shape {array.shape}", "(seq, heads, head_dim), or (batch, seq, heads, head_dim) for all"
            )
        if 0 in array.shape:
            raise ArgumentError(name, f"shape {array.shape}", "no empty axis")
        arrays[name] = array if batched else array[None]
    batch, q_len, heads, head_dim = arrays["q"].shape
    _, kv_len, kv_heads, _ = arrays["k"].shape
    v_head_dim = arrays["v"].shape[3]
    problem = Problem(
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        mask=mask,
        given="delta" if delta is not None else "o" if o is not None else "none",
        kv_lengths=kv_lengths is not None,
        softcap=softcap is not None,
        alibi=alibi_slopes is not None,
    )
    if o is not None:
        arrays["o"] = floats("o", o) if batched else floats("o", o)[None]
    for name, array in arrays.items():
        if array.shape != problem.shape_of(name):
            want = f"{problem.shape_of(name)}, as the other arrays have it (batch axis included)"
            raise ArgumentError(name, f"shape {array.shape}", want)
    arrays["lse"] = _rows("lse", lse, problem, batched)
    if delta is not None:
        arrays["delta"] = _rows("delta", delta, problem, batched)
    if doc_start is not None and not problem.interval.doc_start:
        raise ArgumentError("doc_start", "an array", f"none for the mask {problem.mask}; use Mask.documents()")
    starts = document_starts(problem.interval, doc_start, q_len, batch, past=False)
    if starts is not None:
        arrays["doc_start"] = starts.astype(np.uint32)
    lengths = key_counts(kv_lengths, kv_len, batch)
    if lengths is not None:
        arrays["kv_lengths"] = lengths.astype(np.uint32)
    numbers = resolve_numbers(problem, scale, softcap)
    if alibi_slopes is not None:
        arrays["alibi_slopes"] = slopes = floats("alibi_slopes", alibi_slopes)
        if slopes.shape != (heads,) or not np.isfinite(slopes).all():
            raise ArgumentError("alibi_slopes", f"shape {slopes.shape}", f"one finite slope for each head: ({heads},)")
    if check_lse:
        _check_lse(problem, arrays, numbers)
    device = device or default_device()
    chosen = plan(problem, device, algorithm=algorithm, guard=guard)
    found = run_plan(chosen, arrays, numbers)
    return Gradients(**{name: array if batched else array[0] for name, array in found.items()})


def rope_backward(d_x: ArrayLike, base: float = ROPE_BASE, offset: int = 0, *, device: Device | None = None) -> F32:
    """The gradient before rotary embedding from the gradient after it: the inverse rotation, pairs interleaved (2i, 2i + 1).

    ``d_x`` is (seq, heads, head_dim) or (batch, seq, heads, head_dim), converted to float32; position p turns pair i by
    (p + ``offset``)·base^(−2i/head_dim) radians, exact to 2⁻³² of a turn at any position. Returns a new float32 array.
    Raises ``ArgumentError``. The convention is RoFormer's (Su et al. 2021); base 10000 is its default.
    """
    array = floats("d_x", d_x)
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise ArgumentError("d_x", f"shape {array.shape}", "(seq, heads, head_dim) or (batch, seq, heads, head_dim)")
    shape = array.shape if array.ndim == 4 else (1, *array.shape)
    rotation = Rotation(batch=shape[0], seq=shape[1], heads=shape[2], head_dim=shape[3])
    angles = resolve_angles(rotation, base, offset)
    program = rope_program(rotation, device or default_device())
    return run_plan(program, {"d_x": array.reshape(shape)}, angles)["d_x"].reshape(array.shape)


def _rows(name: str, value: ArrayLike, problem: Problem, batched: bool) -> F32:
    array = floats(name, value)
    want = problem.shape_of(name) if batched else problem.shape_of(name)[1:]
    if array.shape != want:
        swapped = array.ndim == len(want) and array.shape == (*want[:-2], want[-1], want[-2])
        hint = "; this looks like (…, heads, seq), as FlashAttention and PyTorch hand it out: swap the last two axes"
        raise ArgumentError(name, f"shape {array.shape}", f"{want}, (…, seq, heads){hint if swapped else ''}")
    return array if batched else array[None]


def _check_lse(problem: Problem, arrays: Mapping[str, NDArray[Any]], numbers: Numbers) -> None:
    bad = reference.first_bad_row(
        problem,
        arrays["q"],
        arrays["k"],
        arrays["lse"],
        scale=numbers.scale,
        softcap=numbers.softcap if problem.softcap else None,
        doc_start=arrays.get("doc_start"),
        kv_lengths=arrays.get("kv_lengths"),
        alibi=arrays.get("alibi_slopes"),
    )
    if bad is not None:
        b, i, h = bad
        raise ArgumentError(
            "lse",
            f"Σ P off from 1 by more than 2⁻¹⁰, first at batch entry {b}, position {i}, head {h}",
            "the natural log-sum-exp of these q, k, mask and scale (not base 2; scaled; heads last); "
            "leave check_lse off for an lse that covers more keys, such as a sink",
        )
