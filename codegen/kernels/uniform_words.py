"""What goes into the kernels' uniforms: 32-bit words by the names that bindings give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..problem.problem import Problem
from ..problem.strides import Strides
from .facts import Binding

DTYPES = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}


def uniform_values(problem: Problem) -> dict[str, float | int]:
    """What the words of a kernel's uniforms are called, and their values for a problem."""
    return {
        **problem.sizes,
        **problem.interval.words,
        **{word: value for name in problem.shapes for word, value in stride_values(name, problem.strides_of(name)).items()},
    }


def stride_values(role: str, strides: Strides, part: int = 0) -> dict[str, int]:
    """The words that place a tensor, as ``tiled_reductions.stride_words`` names them; ``part`` is from part to part."""
    numbers = {"offset": strides.offset, "batch": strides.batch, "row": strides.row, "head": strides.head, "part": part}
    return {f"{role}_{name}": number for name, number in numbers.items()}


def pack_words(binding: Binding, values: Mapping[str, float | int]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A uniform's 32-bit words, as its binding names them."""
    words = np.zeros(len(binding.words), np.uint32)
    for i, word in enumerate(binding.words):
        words[i] = np.array(values[word.name], DTYPES[word.type]).view(np.uint32)
    return words
