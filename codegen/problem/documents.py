"""doc_start, which documents masks want, from the other forms in which packed sequences are described."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ArgumentError
from .checks import integers


def doc_start_from_lengths(lengths: ArrayLike) -> NDArray[np.uint32]:
    """(documents,) positive integers, the lengths of the packed documents in order → (sum of lengths,) uint32.

    Raises ``ArgumentError`` for anything else.
    """
    array = _listed("lengths", lengths)
    if (array < 1).any():
        raise ArgumentError("lengths", array.tolist(), "positive lengths")
    return np.repeat(np.cumsum(array) - array, array).astype(np.uint32)


def doc_start_from_cu_seqlens(cu_seqlens: ArrayLike) -> NDArray[np.uint32]:
    """(documents + 1,) integers from 0 upwards, as FlashAttention's ``cu_seqlens`` → (cu_seqlens[-1],) uint32.

    Raises ``ArgumentError`` for anything else.
    """
    array = _listed("cu_seqlens", cu_seqlens)
    if len(array) < 2 or array[0] != 0 or (np.diff(array) < 0).any():
        raise ArgumentError("cu_seqlens", array.tolist(), "0, then one end for each document, non-decreasing")
    lengths = np.diff(array)
    return doc_start_from_lengths(lengths[lengths > 0])


def doc_start_from_segment_ids(segment_ids: ArrayLike) -> NDArray[np.uint32]:
    """(seq,) or (batch, seq) integers that are equal within a document → uint32 of the same shape.

    A document is a run of equal ids; an id that comes back later is a new document. Raises ``ArgumentError``.
    """
    array = integers("segment_ids", segment_ids)
    if array.ndim not in (1, 2) or not array.size:
        raise ArgumentError("segment_ids", f"shape {array.shape}", "(seq,) or (batch, seq)")
    starts = np.ones(array.shape, bool)
    starts[..., 1:] = array[..., 1:] != array[..., :-1]
    positions = np.where(starts, np.arange(array.shape[-1]), 0)
    return np.maximum.accumulate(positions, axis=-1).astype(np.uint32)


def _listed(name: str, value: ArrayLike) -> NDArray[np.int64]:
    array = integers(name, value)
    if array.ndim != 1 or not array.size:
        raise ArgumentError(name, f"shape {array.shape}", "integers on one axis")
    return array
