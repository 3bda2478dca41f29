"""What goes into the kernels' uniforms: a call's numbers, and 32-bit words by the names that bindings give them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..problem.problem import Problem
from ..problem.strides import Strides
from .facts import Binding

DTYPES = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a call gives beside buffers; ``softcap`` counts only where the problem has one."""

    scale: float
    softcap: float


def resolve_numbers(problem: Problem, scale: float | None, softcap: float | None) -> Numbers:
    """The call's numbers with their defaults; raises ``ArgumentError`` unless they are finite, and the softcap the problem's."""
    if (softcap is not None) != problem.softcap:
        want = "a bound above 0, since the problem has softcap=True" if problem.softcap else "None: the problem has no softcap"
        raise ArgumentError("softcap", repr(softcap), want)
    cap = 1.0 if softcap is None else finite("softcap", softcap)
    if cap <= 0:
        raise ArgumentError("softcap", cap, "a number above 0")
    return Numbers(scale=1.0 / math.sqrt(problem.head_dim) if scale is None else finite("scale", scale), softcap=cap)


def finite(name: str, value: float) -> float:
    """The number as a float; raises ``ArgumentError`` unless it is one and finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentError(name, repr(value), "a number") from None
    if not math.isfinite(number):
        raise ArgumentError(name, number, "a finite number")
    return number


def uniform_values(problem: Problem) -> dict[str, float | int]:
    """What the words of a kernel's uniforms are called, and their values for a problem."""
    return {
        **problem.sizes,
        **problem.interval.words,
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
        words[i] = np.array(values[word.name], DTYPES[word.type]).view(np.uint32)
    return words
