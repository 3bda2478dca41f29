"""What a tuner chooses: an algorithm, a variant for each of its kernels, and how the work is divided. Plain data in and out.

A ``Choice`` is not tied to one problem, as a ``Recipe`` is: ``Choice.suited`` makes it fit a problem near the one that it was
made for, and ``Choice.recipe`` the recipe. Selection, the tunable space and tuning tables all speak of choices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ArgumentError, VariantError
from ..kernels.original import SEG_UNIFORM_POSITIONS, AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from ..kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from ..kernels.variant import Variant
from ..problem.problem import Problem
from ..profile import DeviceProfile
from . import original as algorithms
from . import tiled as tiled_recipe
from .recipe import Recipe
from .tiled_layouts import TiledChoice

ROLES: dict[str, dict[str, type[Variant]]] = {
    "tiled": {"scores": AttentionScores, "dkdv": AttentionDkdv, "dq": AttentionDq},
    "short": {"main": AttentionBackwardShort, "dkdv": AttentionBackwardShortDkdv},
    "streaming": {"main": AttentionBackward},
}
"""For each algorithm the kernels that are chosen, by what they do in it, and the family that each belongs to or derives from."""

_families: dict[str, type[Variant]] = {family.kernel: family for roles in ROLES.values() for family in roles.values()}
_own: list[type[Variant]] = []


def register_kernel(family: type[Variant]) -> None:
    """Makes a kernel of the caller's own known, so that tuning tables may name it.

    ``family`` derives from one that an algorithm uses (``AttentionDq``, …) and has a ``kernel`` name of its own. It does the
    same job, tensors with strides included, whose words are in ``call``; where its bindings leave those words out, it is
    refused for such tensors. May be called again with the same class. Raises ``ArgumentError``.
    """
    bases = [known for roles in ROLES.values() for known in roles.values()]
    if not (isinstance(family, type) and issubclass(family, tuple(bases))):
        raise ArgumentError("family", repr(family), f"a class that derives from {', '.join(base.__name__ for base in bases)}")
    known = _families.get(family.kernel, family)
    if known is not family:
        raise ArgumentError("family", f"the kernel name {family.kernel!r}, which {known.__name__} has", "a name of its own")
    if family not in (*bases, *_own):
        _own.append(family)
    _families[family.kernel] = family


def registered() -> tuple[type[Variant], ...]:
    """The kernels that ``register_kernel`` was given."""
    return tuple(_own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to serve problems: ``kernels`` has a variant for each of the algorithm's ``ROLES``, in their order.

    ``budget`` (bytes of a scratch buffer) and ``parts`` (workgroups at least) are those of ``TiledChoice``, and 0 for other
    algorithms. Raises ``VariantError`` where the kernels do not fit each other.
    """

    algorithm: str
    kernels: tuple[Variant, ...]
    budget: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        roles = ROLES.get(self.algorithm)
        if roles is None:
            raise VariantError("choice", f"algorithm is {self.algorithm!r}; want one of {', '.join(ROLES)}")
        if len(self.kernels) != len(roles):
            raise VariantError(self.algorithm, f"{len(self.kernels)} kernels; want {', '.join(roles)}")
        for (role, family), variant in zip(roles.items(), self.kernels, strict=True):
            if not isinstance(variant, family):
                raise VariantError(self.algorithm, f"{role} is a {type(variant).__name__}; want a {family.__name__}")
        if self.algorithm == "tiled":
            if self.budget < 1 or self.parts < 1:
                raise VariantError("tiled", f"a budget of {self.budget} and {self.parts} parts; want 1 or more")
            scores, dkdv, dq = self._tiled
            for role, v in (("dkdv", dkdv), ("dq", dq)):
                if (v.query_rows, v.key_cols) != (scores.rows, scores.cols):
                    raise VariantError(
                        "tiled",
                        f"{role} reads blocks of {v.query_rows} × {v.key_cols}, scores writes {scores.rows} × {scores.cols}",
                    )

    @classmethod
    def of(cls, chosen: Choice | TiledChoice) -> Choice:
        """A choice from a ``TiledChoice``; a choice itself."""
        if isinstance(chosen, Choice):
            return chosen
        kernels = (chosen.scores, chosen.dkdv, chosen.dq)
        return cls(algorithm="tiled", kernels=kernels, budget=chosen.budget, parts=chosen.parts)

    @property
    def _tiled(self) -> tuple[AttentionScores, AttentionDkdv, AttentionDq]:
        return self.kernels  # type: ignore[return-value]  # as __post_init__ has found

    @property
    def by_role(self) -> dict[str, Variant]:
        return dict(zip(ROLES[self.algorithm], self.kernels, strict=True))

    def suited(self, problem: Problem, guard: str = "zero") -> Choice:
        """The same choice with what a problem dictates: guard, accumulation. Raises ``VariantError`` where it cannot serve it.

        Tile sizes, workgroup sizes and the like stay as they are.
        """
        if reason := algorithms.REFUSALS[self.algorithm](problem):
            raise VariantError(self.algorithm, reason)
        for v in self.kernels:
            serves = v.serves
            if not serves.min_head_dim <= problem.head_dim <= serves.max_head_dim:
                raise VariantError(v.name, f"it is not for a head_dim of {problem.head_dim}")
        if self.algorithm == "tiled":
            return self._suited_tiled(problem, guard)
        main: Any = self.kernels[0]
        if main.mask not in algorithms.mask_modes(problem):
            raise VariantError(main.name, f"it does not have the mask {problem.mask}")
        longest = main.serves.max_seq
        if longest is not None and problem.kv_len > longest:
            raise VariantError(main.name, f"it takes {longest} positions, not {problem.kv_len}")
        if main.seg_uniform and problem.batch * problem.q_len > SEG_UNIFORM_POSITIONS:
            raise VariantError(main.name, f"it takes documents of {SEG_UNIFORM_POSITIONS} positions")
        if self.algorithm == "streaming":
            return replace(self, kernels=(replace(main, guard=guard),))
        dkdv: Any = self.kernels[1]
        main = replace(main, guard=guard, accumulate="d_q" in problem.accumulate)
        return replace(self, kernels=(main, replace(dkdv, guard=guard, accumulate="d_k" in problem.accumulate)))

    def _suited_tiled(self, problem: Problem, guard: str) -> Choice:
        v_dim = 0 if problem.v_head_dim == problem.head_dim else problem.v_head_dim
        kernels = []
        for v in self._tiled:
            alibi = problem.alibi if isinstance(v, AttentionScores) else problem.softcap and problem.alibi
            terms: dict[str, Any] = {"guard": guard, "softcap": problem.softcap, "alibi": alibi}
            if not v.at_most and v.v_head_dim != v_dim:
                raise VariantError(v.name, f"it is not for a v_head_dim of {problem.v_head_dim}")
            kernels.append(replace(v, **terms) if terms != {name: getattr(v, name) for name in terms} else v)
        return replace(self, kernels=tuple(kernels))

    def shortfalls(self, profile: DeviceProfile) -> tuple[str, ...]:
        """What the device lacks for the kernels, one line each. The recipe may ask for more still."""
        return tuple(f"{v.name}: {line}" for v in self.kernels for line in v.shortfalls(profile))

    def recipe(self, problem: Problem, profile: DeviceProfile) -> Recipe:
        """The recipe for a problem that it suits, its scratch within what the device binds."""
        kernels: Any = self.kernels
        if self.algorithm == "short":
            return algorithms.short(problem, *kernels)
        if self.algorithm == "streaming":
            return algorithms.streaming(problem, *kernels)
        scores, dkdv, dq = self._tiled
        limit = min(profile.limits.max_storage_buffer_binding_size, profile.limits.max_buffer_size)
        chosen = TiledChoice(scores=scores, dkdv=dkdv, dq=dq, budget=min(self.budget, limit), parts=self.parts)
        return tiled_recipe.tiled(problem, chosen)

    def as_json(self) -> dict[str, Any]:
        """Plain data: each kernel's name, its variant's name, and the parameters that are not at their defaults."""
        kernels = {role: _variant_json(variant) for role, variant in self.by_role.items()}
        rest = {"budget": self.budget, "parts": self.parts} if self.algorithm == "tiled" else {}
        return {"algorithm": self.algorithm, "kernels": kernels, **rest}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """The choice that ``as_json`` described. Raises ``VariantError`` where the package has no such variants (any more)."""
        try:
            algorithm, found = data["algorithm"], data["kernels"]
            roles = ROLES.get(algorithm, {})
            if set(found) != set(roles):
                raise VariantError("choice", f"{algorithm!r} with the kernels {', '.join(found)}")
            kernels = tuple(_variant(found[role]) for role in roles)
            budget, parts = int(data.get("budget", 0)), int(data.get("parts", 0))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, VariantError):
                raise
            raise VariantError("choice", f"it is incomplete: {error!r}") from None
        return cls(algorithm=algorithm, kernels=kernels, budget=budget, parts=parts)

    @property
    def params(self) -> dict[str, int | str | bool]:
        """Every parameter in one flat mapping, for tables and pictures: ``{"scores.rows": 64, …, "parts": 1024}``."""
        flat = {f"{role}.{name}": value for role, v in self.by_role.items() for name, value in v.params.items()}
        return {**flat, "budget": self.budget, "parts": self.parts} if self.algorithm == "tiled" else flat

    def __str__(self) -> str:
        """In a few words: ``tiled: scores 64×64 8×4 chunk 16, …``."""
        words = [f"{role} {_words(variant)}" for role, variant in self.by_role.items()]
        if self.algorithm == "tiled":
            words.append(f"{self.parts} parts, {self.budget / 2**20:g} MiB")
        return f"{self.algorithm}: {', '.join(words)}"


def _words(variant: Variant) -> str:
    v: Any = variant
    own = "" if type(v) in (family for roles in ROLES.values() for family in roles.values()) else f"{v.kernel} "
    bound = f" d≤{v.head_dim}" if v.at_most else ""
    if not hasattr(v, "row_reg"):
        longest = f" maxseq {v.max_seq}" if hasattr(v, "max_seq") else ""
        return f"{own}wg {v.wg}{longest}{bound}{' seg uniform' if getattr(v, 'seg_uniform', False) else ''}"
    span = f" span {v.span}" if getattr(v, "span", 1) > 1 else ""
    inherited = {field.name for family in ROLES["tiled"].values() for field in dataclasses.fields(family)}
    more = "".join(f" {name} {value}" for name, value in v.params.items() if name not in inherited)
    return f"{own}{v.rows}×{v.cols} {v.row_reg}×{v.col_reg} chunk {v.chunk}{span}{bound}{more}"


def _variant_json(variant: Variant) -> dict[str, Any]:
    fields = {field.name: field.default for field in dataclasses.fields(variant)}
    params = {name: value for name, value in variant.params.items() if value != fields[name]}
    return {"kernel": variant.kernel, "name": variant.name, "params": params}


def _variant(data: Mapping[str, Any]) -> Variant:
    kernel, name = data["kernel"], data["name"]
    family = _families.get(kernel)
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
