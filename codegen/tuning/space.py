"""The tunable space: every choice of kernels that a device can run for a problem, the promising first.

It comes from the kernels themselves: each parameter's values, the rules, the footprint. The three matrix kernels of
``tiled`` are tuned one after another, since they meet only in the blocks of scores (rows × cols): ``scores`` first, each
with the gradients' kernels nearest to those at hand, then ``dkdv``, ``dq``, and how the work is split. ``distance`` orders
them: two choices are as far apart as their parameters' logarithms.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from ..algorithms.choice import ROLES, Choice
from ..algorithms.recipe import Recipe
from ..algorithms.tiled_layouts import TiledChoice
from ..errors import ArgumentError, VariantError
from ..kernels.variant import Variant
from ..problem.problem import Problem
from ..profile import DeviceProfile

Entry: TypeAlias = "Choice | TiledChoice | Recipe"
"""What a space of the caller's own may hold. A bare recipe can be timed, but no table can name it."""
Space: TypeAlias = "Iterable[Entry] | Callable[[Problem, DeviceProfile], Iterable[Entry]]"

STAGES = ("scores", "dkdv", "dq", "split")
"""The parts of a tiled choice, in the order in which they are tuned."""
SCORE_COLS = (16, 32, 64, 128, 256)
MOST_COLS = (16, 32, 48, 64, 80, 96, 128, 256)
"""Channels of a gradient's block at most; the even division of head_dim counts."""
MAX_ACCUMULATORS = 128
"""Numbers that a thread sums up in registers. 8 × 8 of two matrices is the most that was ever faster; beyond, they spill."""
MIN_WORK = 8
"""Products of a thread's register tile, at least: 2 × 2 loads as much as it multiplies."""
BUDGETS = tuple(1 << n for n in (24, 26, 28, 30))
PARTS = (64, 128, 256, 512, 1024, 2048, 4096)
SOFTWARE_PARTS = (4, 8, 16, 32, 64)
MOST_SCORES = 256
"""Of some thousands, in each stage; the next stage begins at what was the best."""
MATRICES = {"scores": 2, "dkdv": 2, "dq": 1}
"""Matrices whose register tiles a thread sums up at the same time: S and dP, d_k and d_v, d_q."""


def own(space: Space, problem: Problem, profile: DeviceProfile) -> list[Choice | Recipe]:
    """The caller's candidates for one problem. Raises ``ArgumentError`` for anything that is no candidate."""
    found: list[Choice | Recipe] = []
    for entry in space(problem, profile) if callable(space) else space:
        if isinstance(entry, (Choice, TiledChoice)):
            found.append(Choice.of(entry))
        elif isinstance(entry, Recipe):
            if entry.problem == problem:  # an iterable may hold recipes for several
                found.append(entry)
        else:
            raise ArgumentError("space", f"a {type(entry).__name__}", "Choice, TiledChoice or Recipe")
    return found


def stage(name: str, around: Choice, problem: Problem, profile: DeviceProfile) -> list[Choice]:
    """The choices that differ from ``around``, a tiled one, in one stage of ``STAGES``; the nearest first.

    Only what the device's limits and the registers allow is there; whether it fits in full says the recipe.
    """
    if name == "split":
        found = list(_splits(around, profile))
    elif name == "scores":
        found = list(_scores(around, problem, profile))
    else:
        index = list(ROLES["tiled"]).index(name)
        found = [
            _with(around, index, variant)
            for variant in variants(name, around.kernels[0], around.kernels[index], problem, profile)
        ]
    return sorted((choice for choice in dict.fromkeys(found) if choice != around), key=lambda choice: distance(choice, around))


def distance(a: Choice | Recipe, b: Choice | Recipe) -> float:
    """How far apart two choices are: the sum over their numbers of |log2| of the ratio, and 1 for anything else that differs.

    Infinite between algorithms, and for recipes.
    """
    if not isinstance(a, Choice) or not isinstance(b, Choice) or a.algorithm != b.algorithm:
        return math.inf
    sizes = (abs(math.log2(max(1, x) / max(1, y))) for x, y in ((a.budget, b.budget), (a.parts, b.parts)))
    return sum(sizes) / 2 + sum(_apart(x, y) for x, y in zip(a.kernels, b.kernels, strict=True))


def _apart(a: Variant, b: Variant) -> float:
    if a == b:
        return 0.0
    total = float(type(a) is not type(b))
    others = b.params
    for name, x in a.params.items():
        y = others.get(name, x)
        if isinstance(x, (bool, str)) or isinstance(y, (bool, str)):
            total += x != y
        elif name not in ("query_rows", "key_cols"):  # the scores kernel's own
            total += abs(math.log2(max(1, x) / max(1, y)))
    return total


def variants(role: str, scores: Variant, like: Variant, problem: Problem, profile: DeviceProfile) -> tuple[Variant, ...]:
    """Every variant for one role (of the class of ``like``, with its other terms) that fits these scores and the device."""
    return _variants(role, scores, like, max(problem.head_dim, problem.v_head_dim), profile)


@functools.lru_cache(maxsize=256)
def _variants(role: str, scores: Variant, like: Variant, dim: int, profile: DeviceProfile) -> tuple[Variant, ...]:
    fields = {field.name: field.metadata["values"] for field in dataclasses.fields(like)}
    tuned: dict[str, Iterable[Any]] = {name: values for name, values in fields.items() if values and _is_tunable(name, values)}
    meeting: Any = scores
    fixed = {} if role == "scores" else {"query_rows": meeting.rows, "key_cols": meeting.cols}
    found: dict[Variant, None] = {}
    for values in itertools.product(*tuned.values()):
        chosen = dict(zip(tuned, values, strict=True))
        if chosen["row_reg"] * chosen["col_reg"] < MIN_WORK:
            continue
        if MATRICES[role] * chosen["row_reg"] * chosen["col_reg"] > MAX_ACCUMULATORS:
            continue
        for cols in SCORE_COLS if role == "scores" else _columns(dim, chosen["col_reg"]):
            try:
                variant = replace(like, **{**chosen, **fixed, "cols": cols})
            except VariantError:  # a rule
                continue
            if not variant.shortfalls(profile):
                found[variant] = None
    return tuple(found)


def _is_tunable(name: str, values: tuple[Any, ...]) -> bool:
    """Numbers are, but not what the problem or another kernel decides."""
    return name not in ("query_rows", "key_cols") and not isinstance(values[0], (bool, str))


def _columns(dim: int, register: int) -> list[int]:
    """Channels of a block: divisions of ``dim`` in whole register tiles that leave less than a tile over."""
    found = set()
    for most in MOST_COLS:
        blocks = math.ceil(dim / most)
        cols = max(16, math.ceil(math.ceil(dim / blocks) / register) * register)
        if blocks == 1 or blocks * cols - dim < register:
            found.add(cols)
    return sorted(found)


def _scores(around: Choice, problem: Problem, profile: DeviceProfile) -> Iterator[Choice]:
    scores = around.kernels[0]
    every = variants("scores", scores, scores, problem, profile)
    for variant in sorted(every, key=lambda variant: _apart(variant, scores))[:MOST_SCORES]:
        choice = with_scores(around, variant, problem, profile)
        if choice is not None:
            yield choice


def with_scores(around: Choice, scores: Variant, problem: Problem, profile: DeviceProfile) -> Choice | None:
    """The choice with other scores, and the gradients' kernels that fit those and are nearest to the ones it has."""
    kernels = [scores]
    for role, like in list(around.by_role.items())[1:]:
        nearest = _nearest(role, _block(scores), like, max(problem.head_dim, problem.v_head_dim), profile)
        if nearest is None:
            return None
        kernels.append(nearest)
    return replace(around, kernels=tuple(kernels))


@functools.lru_cache(maxsize=1024)
def _nearest(role: str, scores: Variant, like: Variant, dim: int, profile: DeviceProfile) -> Variant | None:
    meeting: Any = scores
    try:
        same = replace(like, query_rows=meeting.rows, key_cols=meeting.cols)  # type: ignore[call-arg]
        if not same.shortfalls(profile):
            return same
    except VariantError:
        pass
    fitting = _variants(role, scores, like, dim, profile)
    return min(fitting, key=lambda variant: _apart(variant, like), default=None)


def _block(scores: Variant) -> Variant:
    """Scores of the same block, the same for all that write it: what the gradients' kernels can be looked up by."""
    for row_reg, col_reg in ((8, 4), (4, 4), (8, 8), (2, 4), (2, 2)):
        try:
            return replace(scores, row_reg=row_reg, col_reg=col_reg, chunk=8, span=1)  # type: ignore[call-arg]
        except VariantError:
            continue
    return scores


def _with(around: Choice, index: int, variant: Variant) -> Choice:
    kernels = list(around.kernels)
    kernels[index] = variant
    return replace(around, kernels=tuple(kernels))


def _splits(around: Choice, profile: DeviceProfile) -> Iterator[Choice]:
    limit = min(profile.limits.max_storage_buffer_binding_size, profile.limits.max_buffer_size)
    budgets = {min(budget, limit) for budget in (*BUDGETS, around.budget)}
    for parts in SOFTWARE_PARTS if profile.software else PARTS:
        yield replace(around, parts=parts)
    for budget in sorted(budgets, reverse=True):
        yield replace(around, budget=budget)


def workgroups(around: Choice, profile: DeviceProfile) -> list[Choice]:
    """The choices that differ from ``around``, one of the reference's algorithms, in the sizes of their workgroups."""
    found = []
    sizes = [next(f.metadata["values"] for f in dataclasses.fields(v) if f.name == "wg") for v in around.kernels]
    for chosen in itertools.product(*sizes):
        try:
            kernels = tuple(replace(v, wg=wg) for v, wg in zip(around.kernels, chosen, strict=True))  # type: ignore[call-arg]
        except VariantError:
            continue
        if kernels != around.kernels and not any(v.shortfalls(profile) for v in kernels):
            found.append(replace(around, kernels=kernels))
    return sorted(found, key=lambda choice: distance(choice, around))
