"""The numbers that a call brings beside its arrays: their defaults, and the checks of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import ArgumentError
from .checks import finite
from .problem import Problem


class Numbers(NamedTuple):
    """``softcap`` counts only where the problem has one. A tuple, since every call looks its bind groups up by it."""

    scale: float
    softcap: float

    @property
    def words(self) -> Mapping[str, float | int]:
        """By the names of the kernels' uniform words."""
        return self._asdict()


def resolve_numbers(problem: Problem, scale: float | None, softcap: float | None) -> Numbers:
    """The call's numbers with their defaults; raises ``ArgumentError`` unless they are finite, and the softcap the problem's."""
    try:
        return _kept(problem.head_dim, problem.softcap, scale, softcap)
    except TypeError:  # a number without a hash, such as an array of one element
        return _resolved(problem.head_dim, problem.softcap, scale, softcap)


def default_scale(head_dim: int) -> float:
    return math.pow(head_dim, -0.5)


def _resolved(head_dim: int, has_softcap: bool, scale: float | None, softcap: float | None) -> Numbers:
    if (softcap is not None) != has_softcap:
        want = "a bound above 0, since the problem has softcap=True" if has_softcap else "None: the problem has no softcap"
        raise ArgumentError("softcap", repr(softcap), want)
    cap = 1.0 if softcap is None else finite("softcap", softcap)
    if cap <= 0:
        raise ArgumentError("softcap", cap, "a number above 0")
    return Numbers(scale=default_scale(head_dim) if scale is None else finite("scale", scale), softcap=cap)


_kept = functools.lru_cache(maxsize=256)(_resolved)
