"""What goes into the kernels' uniforms: 32-bit words by the names that bindings give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..problem.problem import Problem
from ..problem.strides import Strides
from .variant import Binding


def uniform_values(problem: Problem) -> dict[str, float | int]:
    """What the words of a kernel's uniforms are called, and their values for a problem; terms that a mask lacks never bind."""
    mask, never = problem.interval, 1 << 30
    return {
        **problem.sizes,
        "lo_shift": -never if mask.lo_shift is None else mask.lo_shift,
        "hi_shift": never if mask.hi_shift is None else mask.hi_shift,
        "prefix": never if mask.prefix is None else mask.prefix,
        "prefix_shift": mask.prefix_shift,
        **{word: value for name in problem.shapes for word, value in stride_values(name, problem.strides_of(name)).items()},
    }


def stride_values(role: str, strides: Strides, part: int = 0) -> dict[str, int]:
    """The words that place a tensor, by the names that ``tiled_rows.stride_words`` gives them; ``part`` is from part to part."""
    numbers = {"offset": strides.offset, "batch": strides.batch, "row": strides.row, "head": strides.head, "part": part}
    return {f"{role}_{name}": number for name, number in numbers.items()}


def pack_words(binding: Binding, values: Mapping[str, float | int]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A uniform's 32-bit words, as its binding names them."""
    words = np.zeros(len(binding.words), np.uint32)
    for i, word in enumerate(binding.words):
        name, kind = word.split(":")
        dtype = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}[kind]
        words[i] = np.array(values[name], dtype).view(np.uint32)
    return words
