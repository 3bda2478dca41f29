"""Masks in NumPy: the interval of keys that each query sees, and the checks of the arrays that masks read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from .checks import integers
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
    counts = key_counts(kv_lengths, kv_len, batch)
    limit = np.full((batch, 1), kv_len) if counts is None else counts[:, None]
    lo = np.zeros((batch, q_len), np.int64)
    hi = np.broadcast_to(limit, lo.shape)
    if interval.lo_shift is not None:
        lo = np.maximum(lo, i + interval.lo_shift)
    if interval.hi_shift is not None:
        hi = np.minimum(hi, i + interval.hi_shift)
    if interval.prefix is not None:
        hi = np.minimum(hi, np.maximum(interval.prefix, i + interval.prefix_shift))
    starts = document_starts(interval, doc_start, q_len, batch)
    if starts is not None:
        lo = np.maximum(lo, starts)
        if interval.doc_end:
            hi = np.minimum(hi, np.stack([np.searchsorted(row, row, side="right") for row in starts]))
    lo = np.minimum(lo, limit)
    return lo, np.maximum(lo, hi)


def document_starts(
    interval: Interval, doc_start: npt.ArrayLike | None, q_len: int, batch: int, *, past: bool = True
) -> Array | None:
    """``doc_start`` as (batch, q_len) int64 from (q_len,) or (batch, q_len); None where the mask has no documents.

    ``past`` says whether a document may start past its query, which then sees nothing. Raises as ``key_intervals`` does.
    """
    if not (interval.doc_start or interval.doc_end):
        return None
    if doc_start is None:
        raise ArgumentError("doc_start", "nothing", "each query's first position of its document, for a mask with documents")
    array = integers("doc_start", doc_start, (q_len,), (batch, q_len))
    starts = np.broadcast_to(array, (batch, q_len))
    wrong = np.argwhere((starts < 0) | (False if past else starts > np.arange(q_len)))
    if len(wrong):
        b, i = (int(x) for x in wrong[0])
        want = "0 or more" if past else f"0 to {i}, the position itself"
        raise ArgumentError("doc_start", f"{starts[b, i]} at batch entry {b}, position {i}", want)
    if interval.doc_end and (np.diff(starts, axis=1) < 0).any():
        raise ArgumentError("doc_start", "values that decrease", "non-decreasing ones for documents(causal=False)")
    return starts


def key_counts(kv_lengths: npt.ArrayLike | None, kv_len: int, batch: int) -> Array | None:
    """``kv_lengths`` as (batch,) int64, or None. Raises as ``key_intervals`` does."""
    if kv_lengths is None:
        return None
    return integers("kv_lengths", kv_lengths, (batch,), least=0, most=kv_len)
