"""What goes into the kernels' uniforms: 32-bit words, and their values by the names that bindings give them.

A tensor is placed by four words, ``q.offset``, ``q.batch``, ``q.row`` and ``q.head``, which WGSL reads as members of one struct:
``call.q.offset``. To a host they are words like all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .facts import Binding, Word, u32

DTYPES = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}
SIZES = u32("q_len", "kv_len", "heads", "kv_heads")
STRIP = u32("slot_first", "row_first", "strip_rows", "strip_tiles")


def stride_words(*names: str, parts: bool = False) -> tuple[Word, ...]:
    """Words that place these tensors; with ``parts`` they may be parts, one after another, ``<name>_part`` elements apart."""
    placed = u32(*(f"{name}.{number}" for name in names for number in ("offset", "batch", "row", "head")))
    return (*placed, *u32(*(f"{name}_part" for name in names if parts)))


def call(binding: int, *words: Word) -> Binding:
    """The uniform of a tiled kernel. Structs in it must begin at multiples of 16 bytes: the words of tensors come first."""
    placed = tuple(word for word in words if "." in word.name)
    others = tuple(word for word in words if "." not in word.name)
    return Binding(binding=binding, name="call", type="Call", access="uniform", role="call", words=(*placed, *others))


def pack_words(binding: Binding, values: Mapping[str, float | int]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A uniform's 32-bit words, as its binding names them."""
    words = np.zeros(len(binding.words), np.uint32)
    for i, word in enumerate(binding.words):
        words[i] = np.array(values[word.name], DTYPES[word.type]).view(np.uint32)
    return words
