"""Masks in NumPy: the interval of keys that each query sees, and the checks of the arrays that masks read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from .mask import Interval
from .problem import Problem

Array = npt.NDArray[Any]


def key_intervals(
    source: Problem | Interval,
    q_len: int = 1,
    kv_len: int = 1,
    doc_start: npt.ArrayLike | None = None,
    kv_lengths: npt.ArrayLike | None = None,
    batch: int = 1,
) -> tuple[Array, Array]:
    """lo and hi, (batch, q_len) int64: query i of an entry sees the keys lo ≤ j < hi, and hi = lo where it sees none.

    A ``Problem`` brings its own lengths and batch, which are then not looked at here. Raises ``ArgumentError`` for a
    ``doc_start`` or ``kv_lengths`` that is missing, of the wrong shape, not integer or out of range, and for a ``doc_start``
    that decreases where a document's end is asked for (``Mask.documents(causal=False)``); the causal form takes any.
    """
    interval = source
    if isinstance(source, Problem):
        interval, q_len, kv_len, batch = source.interval, source.q_len, source.kv_len, source.batch
        if source.kv_lengths is not (kv_lengths is not None):
            raise ArgumentError("kv_lengths", type(kv_lengths).__name__, f"an array exactly if the problem has it: {source}")
    assert isinstance(interval, Interval)
    i = np.arange(q_len)
    limit = np.full((batch, 1), kv_len)
    if kv_lengths is not None:
        limit = _integers("kv_lengths", kv_lengths, [(batch,)], kv_len).reshape(batch, 1)
    lo = np.zeros((batch, q_len), np.int64)
    hi = np.broadcast_to(limit, lo.shape)
    if interval.lo_shift is not None:
        lo = np.maximum(lo, i + interval.lo_shift)
    if interval.hi_shift is not None:
        hi = np.minimum(hi, i + interval.hi_shift)
    if interval.prefix is not None:
        hi = np.minimum(hi, np.maximum(interval.prefix, i + interval.prefix_shift))
    if interval.doc_start or interval.doc_end:
        if doc_start is None:
            raise ArgumentError(
                "doc_start", None, f"integers of shape ({q_len},) or ({batch}, {q_len}), as the mask has documents"
            )
        starts = np.broadcast_to(_integers("doc_start", doc_start, [(q_len,), (batch, q_len)], None), lo.shape)
        lo = np.maximum(lo, starts)
        if interval.doc_end:
            hi = np.minimum(hi, _document_ends(starts))
    lo = np.minimum(lo, limit)
    return lo, np.maximum(lo, hi)


def _document_ends(starts: Array) -> Array:
    if (np.diff(starts, axis=1) < 0).any():
        raise ArgumentError(
            "doc_start", "values that decrease", "values that never decrease, as documents(causal=False) needs ends"
        )
    return np.stack([np.searchsorted(row, row, side="right") for row in starts])


def _integers(name: str, value: npt.ArrayLike, shapes: list[tuple[int, ...]], most: int | None) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise ArgumentError(name, f"dtype {array.dtype}", "integers")
    if array.shape not in shapes:
        raise ArgumentError(name, f"shape {array.shape}", " or ".join(map(str, shapes)))
    array = array.astype(np.int64)
    if (array < 0).any() or (most is not None and (array > most).any()):
        raise ArgumentError(name, f"{array.min()} to {array.max()}", f"0 to {most}" if most is not None else "0 or more")
    return array
