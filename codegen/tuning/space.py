"""What tuning tries: the caller's own candidates, or those of an algorithm's stages (``Algorithm.stages``), nearest first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from ..algorithms.choice import Choice
from ..algorithms.recipe import Recipe
from ..errors import ArgumentError
from ..problem.problem import Problem
from ..profile import DeviceProfile

Entry: TypeAlias = "Choice | Recipe"
"""What a space of the caller's own may hold. A bare recipe can be timed, but no table can name it."""
Space: TypeAlias = "Iterable[Entry] | Callable[[Problem, DeviceProfile], Iterable[Entry]]"


def entries(space: Space, problem: Problem, profile: DeviceProfile) -> list[Entry]:
    """The caller's candidates for one problem. Raises ``ArgumentError`` for anything that is no candidate."""
    found: list[Entry] = []
    for entry in space(problem, profile) if callable(space) else space:
        if isinstance(entry, Choice):
            found.append(entry)
        elif isinstance(entry, Recipe):
            if entry.problem == problem:  # an iterable may hold recipes for several
                found.append(entry)
        else:
            raise ArgumentError("space", f"a {type(entry).__name__}", "Choice or Recipe")
    return found


def distance(a: Entry, b: Entry) -> float:
    """``Choice.distance``; infinite for recipes."""
    return a.distance(b) if isinstance(a, Choice) and isinstance(b, Choice) else math.inf
