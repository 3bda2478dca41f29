"""What an algorithm is: kernels that together give what a problem asks for, and all that the package knows about them.

One object of a class derived from ``Algorithm`` answers every question that selection, tuning, validation and the tools
ask; ``algorithms/__init__.py`` lists the objects.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ..errors import ArgumentError, VariantError
from ..kernels.variant import Variant
from ..problem.problem import Problem
from ..profile import DeviceProfile
from .recipe import Recipe

if TYPE_CHECKING:
    from .choice import Choice

Neighbours: TypeAlias = "Callable[[Choice, Problem, DeviceProfile], Iterable[Choice]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of a choice that is tuned by itself.

    ``neighbours`` gives the choices that differ from one in this part, the nearest first: what the device's limits allow,
    though a recipe may still refuse. ``weight`` is the stage's share of the time, beside the other stages'.
    """

    name: str
    weight: int
    neighbours: Neighbours


class Algorithm(ABC):
    """Base of the algorithms. An object has no state, and two of one class are the same."""

    name: ClassVar[str]
    roles: ClassVar[Mapping[str, type[Variant]]]
    """The kernels that are chosen, by what they do in it, and the family that each belongs to or derives from."""
    computes: ClassVar[tuple[str, ...]] = ("backward",)
    """Of ``Problem.computes``, what it serves."""
    numbers: ClassVar[Mapping[str, int]] = {}
    """What is chosen beside the kernels, by name, with the defaults; whole numbers of at least 1."""
    chained: ClassVar[bool] = False
    """Whether a gradient is a chain of additions, one term at a time, whose error grows with the number of terms."""
    tuned_up_to: ClassVar[int | None] = None
    """Positions up to which tuning tries it beside another algorithm; None is whatever the length."""

    def refusal(self, problem: Problem) -> str:
        """Why it cannot serve a problem on any device; empty where it can."""
        if problem.computes not in self.computes:
            return f"{self.name} computes {' and '.join(self.computes)}, not {problem.computes}"
        return self._refusal(problem)

    @abstractmethod
    def _refusal(self, problem: Problem) -> str:
        """As ``refusal``, for a problem of what it computes."""

    @abstractmethod
    def candidates(self, problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Choice]:
        """Choices for a problem that ``refusal`` lets pass, the best first, whatever the device's limits."""

    @abstractmethod
    def suited(self, choice: Choice, problem: Problem, guard: str) -> Choice:
        """As ``Choice.suited``, for a problem that ``refusal`` lets pass and whose head_dim the kernels serve."""

    @abstractmethod
    def recipe(self, choice: Choice, problem: Problem, profile: DeviceProfile) -> Recipe:
        """The steps for a problem that the choice suits, scratch within what the device binds."""

    @abstractmethod
    def checked_in(self) -> Iterator[Variant]:
        """Its variants in ``generated/``."""

    def check(self, choice: Choice) -> None:  # noqa: B027  most have nothing to check
        """Raises ``VariantError`` where kernels of the right families do not fit each other."""

    def layout_of(self, choice: Choice) -> dict[str, Any]:
        """How ``of_layout`` makes the kernels of a choice again, as plain data; empty where no layout has them."""
        return {}

    def of_layout(self, layout: str, **dims: Any) -> Choice:
        """The choice that ``layout_of`` described. Raises ``VariantError`` where there is no such layout, or for these dims."""
        raise VariantError(self.name, f"it has no layout {layout!r}")

    def for_any_problem(self, choice: Choice) -> Choice:
        """The same choice by the texts that leave head dims to the pipeline, where there are such."""
        return choice

    def stages(self) -> tuple[Stage, ...]:
        """The parts that are tuned, one after another."""
        return (Stage(name="workgroup", weight=2, neighbours=_neighbours),)


ALGORITHMS: dict[str, Algorithm] = {}
"""Every algorithm by its name, in the order of preference: what should be the fastest first."""


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of this name. Raises ``ArgumentError``."""
    if name not in ALGORITHMS:
        raise ArgumentError("algorithm", repr(name), f"one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def tunable(family: type[Variant] | Variant) -> dict[str, tuple[Any, ...]]:
    """The parameters that a tuner tries, with their values: those that list values and are not dictated from elsewhere."""
    fields = dataclasses.fields(family)
    return {field.name: field.metadata["values"] for field in fields if field.metadata["values"] and field.metadata["tuned"]}


def _neighbours(around: Choice, problem: Problem, profile: DeviceProfile) -> list[Choice]:
    """Every choice that differs from ``around`` in the tunable parameters of its kernels."""
    found: dict[Choice, None] = {}
    for kernels in itertools.product(*(_variants(variant, profile) for variant in around.kernels)):
        try:
            found[replace(around, kernels=kernels)] = None
        except VariantError:  # kernels that do not fit each other
            continue
    found.pop(around, None)
    return sorted(found, key=around.distance)


def _variants(like: Variant, profile: DeviceProfile) -> list[Variant]:
    values = tunable(like)
    found = []
    for chosen in itertools.product(*values.values()):
        try:
            variant = replace(like, **dict(zip(values, chosen, strict=True)))
        except VariantError:  # a rule
            continue
        if not variant.shortfalls(profile):
            found.append(variant)
    return found
