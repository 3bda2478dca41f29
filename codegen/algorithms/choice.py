"""What a tuner chooses: an algorithm, a variant for each of its kernels, and its numbers. Plain data in and out.

A ``Choice`` is not tied to one problem, as a ``Recipe`` is: ``Choice.suited`` makes it fit a problem near the one that it was
made for, and ``Choice.recipe`` the recipe. Selection, tuning and tuning tables all speak of choices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ArgumentError, VariantError
from ..kernels import families
from ..kernels.variant import Variant
from ..problem.problem import Problem
from ..profile import DeviceProfile
from .algorithm import ALGORITHMS, Algorithm
from .recipe import Recipe


def register_kernel(family: type[Variant]) -> None:
    """Makes a kernel of the caller's own known, so that tuning tables may name it.

    ``family`` derives from one that an algorithm uses (``AttentionDq``, …) and has a ``kernel`` name of its own. It does the
    same job, tensors with strides included, whose words are in ``call``; where its bindings leave those words out, it is
    refused for such tensors. May be called again with the same class. Raises ``ArgumentError``.
    """
    bases = tuple(base for algorithm in ALGORITHMS.values() for base in algorithm.roles.values())
    if not (isinstance(family, type) and issubclass(family, bases)):
        raise ArgumentError("family", repr(family), f"a class that derives from {', '.join(base.__name__ for base in bases)}")
    families.add(family)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to serve problems: ``kernels`` has a variant for each of the algorithm's ``roles``, in their order.

    ``numbers`` are those that the algorithm names, by name; what is left out has the algorithm's default. Raises
    ``VariantError`` where the kernels do not fit each other.
    """

    algorithm: str
    kernels: tuple[Variant, ...]
    numbers: Mapping[str, int] | tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        algorithm = self.of
        if len(self.kernels) != len(algorithm.roles):
            raise VariantError(self.algorithm, f"{len(self.kernels)} kernels; want {', '.join(algorithm.roles)}")
        for (role, family), variant in zip(algorithm.roles.items(), self.kernels, strict=True):
            if not isinstance(variant, family):
                raise VariantError(self.algorithm, f"{role} is a {type(variant).__name__}; want a {family.__name__}")
        given = dict(self.numbers)
        if unknown := sorted(given.keys() - algorithm.numbers.keys()):
            raise VariantError(self.algorithm, f"it has no number {', '.join(unknown)}")
        numbers = {**algorithm.numbers, **given}
        for name, number in numbers.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise VariantError(self.algorithm, f"{name} is {number!r}; want a whole number of at least 1")
        object.__setattr__(self, "numbers", tuple(numbers.items()))
        algorithm.check(self)

    @property
    def of(self) -> Algorithm:
        """The algorithm itself."""
        found = ALGORITHMS.get(self.algorithm)
        if found is None:
            raise VariantError("choice", f"algorithm is {self.algorithm!r}; want one of {', '.join(ALGORITHMS)}")
        return found

    @property
    def by_role(self) -> dict[str, Variant]:
        return dict(zip(self.of.roles, self.kernels, strict=True))

    @property
    def by_name(self) -> dict[str, int]:
        """The numbers."""
        return dict(self.numbers)

    def number(self, name: str) -> int:
        """One of the numbers."""
        return self.by_name[name]

    def replaced(self, **changes: Variant | int) -> Choice:
        """The same choice with other kernels, by role, or other numbers, by name."""
        kernels = {role: changes.get(role, variant) for role, variant in self.by_role.items()}
        numbers = {name: changes.get(name, number) for name, number in self.by_name.items()}
        return replace(self, kernels=tuple(kernels.values()), numbers=numbers)  # type: ignore[arg-type]

    @property
    def identity(self) -> str:
        """What two choices share exactly if they are the same; ``str()`` is for people, and may leave something out."""
        numbers = (f"{name}{number}" for name, number in self.by_name.items())
        return " ".join((self.algorithm, *(variant.name for variant in self.kernels), *numbers))

    def suited(self, problem: Problem, guard: str = "zero") -> Choice:
        """The same choice with what a problem dictates: guard, accumulation. Raises ``VariantError`` where it cannot serve it.

        Tile sizes, workgroup sizes and the like stay as they are.
        """
        if reason := self.of.refusal(problem):
            raise VariantError(self.algorithm, reason)
        for v in self.kernels:
            serves = v.serves
            if not serves.min_head_dim <= problem.head_dim <= serves.max_head_dim:
                raise VariantError(v.name, f"it is not for a head_dim of {problem.head_dim}")
        return self.of.suited(self, problem, guard)

    def shortfalls(self, profile: DeviceProfile) -> tuple[str, ...]:
        """What the device lacks for the kernels, one line each. The recipe may ask for more still."""
        return tuple(f"{v.name}: {line}" for v in self.kernels for line in v.shortfalls(profile))

    def recipe(self, problem: Problem, profile: DeviceProfile) -> Recipe:
        """The recipe for a problem that it suits, its scratch within what the device binds."""
        return self.of.recipe(self, problem, profile)

    def distance(self, other: Choice) -> float:
        """How far apart two choices are: the sum over their numbers of |log2| of the ratio, and 1 for anything else that differs.

        Infinite between algorithms.
        """
        if self.algorithm != other.algorithm:
            return math.inf
        sizes = (abs(math.log2(x / other.number(name))) for name, x in self.by_name.items())
        return sum(sizes) / 2 + sum(apart(x, y) for x, y in zip(self.kernels, other.kernels, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Plain data: the algorithm, its numbers, and a layout's name with its head dims.

        Where no layout has the kernels: each kernel's name, its variant's name, and the parameters that are not at their
        defaults.
        """
        if layout := self.of.layout_of(self):
            return {"algorithm": self.algorithm, **layout, **self.by_name}
        kernels = {role: _variant_json(variant) for role, variant in self.by_role.items()}
        return {"algorithm": self.algorithm, "kernels": kernels, **self.by_name}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """The choice that ``as_json`` described. Raises ``VariantError`` where the package has no such variants (any more)."""
        try:
            name, found = data["algorithm"], data.get("kernels", {})
            algorithm = ALGORITHMS.get(name)
            if algorithm is None or ("layout" not in data and set(found) != set(algorithm.roles)):
                raise VariantError("choice", f"{name!r} with the kernels {', '.join(found)}")
            numbers = {number: int(data[number]) for number in algorithm.numbers if number in data}
            if "layout" in data:
                layout = {key: value for key, value in data.items() if key not in ("algorithm", *numbers)}
                return algorithm.of_layout(**layout).replaced(**numbers)
            kernels = tuple(_variant(found[role]) for role in algorithm.roles)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, VariantError):
                raise
            raise VariantError("choice", f"it is incomplete: {error!r}") from None
        return cls(algorithm=name, kernels=kernels, numbers=numbers)

    @property
    def params(self) -> dict[str, int | str | bool]:
        """Every parameter in one flat mapping, for tables and pictures: ``{"scores.rows": 64, …, "parts": 1024}``."""
        return {f"{role}.{name}": value for role, v in self.by_role.items() for name, value in v.params.items()} | self.by_name

    def __str__(self) -> str:
        """In a few words: ``tiled: scores 64×64 8×4 chunk 16, …``."""
        words = [f"{role} {_words(variant, self.of.roles[role])}" for role, variant in self.by_role.items()]
        words += [
            f"{number / 2**20:g} MiB" if name == "budget" else f"{number} {name}" for name, number in self.by_name.items()
        ]
        return f"{self.algorithm}: {', '.join(words)}"


def apart(a: Variant, b: Variant) -> float:
    """How far apart two variants are in what is tuned, and in sizes; see ``Choice.distance``."""
    if a == b:
        return 0.0
    total = float(type(a) is not type(b))
    others = b.params
    for field in dataclasses.fields(a):
        x = getattr(a, field.name)
        y = others.get(field.name, x)
        if isinstance(x, (bool, str)) or isinstance(y, (bool, str)):
            total += x != y
        elif not field.metadata["follows"]:
            total += abs(math.log2(max(1, x) / max(1, y)))
    return total


def _words(variant: Variant, family: type[Variant]) -> str:
    own = "" if type(variant) is family else f"{variant.kernel} "
    return f"{own}{variant.summary}"


def _variant_json(variant: Variant) -> dict[str, Any]:
    fields = {field.name: field.default for field in dataclasses.fields(variant)}
    params = {name: value for name, value in variant.params.items() if value != fields[name]}
    return {"kernel": variant.kernel, "name": variant.name, "params": params}


def _variant(data: Mapping[str, Any]) -> Variant:
    kernel, name = data["kernel"], data["name"]
    family = families.find(kernel)
    if family is None:
        raise VariantError(str(kernel), "no such kernel here; one of your own is made known by register_kernel")
    known = {field.name for field in dataclasses.fields(family)}
    if unknown := sorted(set(data["params"]) - known):
        raise VariantError(kernel, f"it has no parameter {', '.join(unknown)}")
    try:
        variant = family(**data["params"])
    except TypeError as error:  # a parameter that has come since, without a default
        raise VariantError(kernel, str(error)) from None
    if variant.name != name:
        raise VariantError(kernel, f"{name} is called {variant.name} now")
    return variant
