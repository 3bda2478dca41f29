"""What of a choice of ``tiled`` is tuned, in stages: the three matrix kernels one after another, then how work is divided.

The kernels meet only in the blocks of scores (rows × cols). So ``scores`` comes first, each candidate with the gradients'
kernels nearest to those at hand, then ``dkdv``, ``dq``, and ``split``. What is tried comes from the kernels themselves: each
parameter's values, the rules, the footprint.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import VariantError
from ..kernels.variant import Variant
from ..problem.problem import Problem
from ..profile import DeviceProfile
from .algorithm import Stage, tunable
from .choice import Choice, apart

SCORE_COLS = (32, 64, 128)
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


def variants(role: str, scores: Variant, like: Variant, problem: Problem, profile: DeviceProfile) -> tuple[Variant, ...]:
    """Every variant for one role (of the class of ``like``, with its other terms) that fits these scores and the device."""
    return _variants(role, scores, like, max(problem.head_dim, problem.v_head_dim), profile)


@functools.lru_cache(maxsize=256)
def _variants(role: str, scores: Variant, like: Variant, dim: int, profile: DeviceProfile) -> tuple[Variant, ...]:
    values = tunable(like)
    meeting: Any = scores
    fixed = {} if role == "scores" else {"query_rows": meeting.rows, "key_cols": meeting.cols}
    found: dict[Variant, None] = {}
    for tried in itertools.product(*values.values()):
        chosen = dict(zip(values, tried, strict=True))
        if not MIN_WORK <= chosen["row_reg"] * chosen["col_reg"] <= MAX_ACCUMULATORS // MATRICES[role]:
            continue
        if chosen["written_out"] and (profile.software or not chosen["pipeline"]):
            continue  # large texts, which a software driver is slow to compile; without a pipeline they gain nothing
        for cols in SCORE_COLS if role == "scores" else _columns(dim, chosen["col_reg"]):
            try:
                variant = replace(like, **{**chosen, **fixed, "cols": cols})
            except VariantError:  # a rule
                continue
            if not variant.shortfalls(profile):
                found[variant] = None
    return tuple(found)


def _columns(dim: int, register: int) -> list[int]:
    """Channels of a block: divisions of ``dim`` in whole register tiles that leave less than a tile over."""
    found = set()
    for most in MOST_COLS:
        blocks = math.ceil(dim / most)
        cols = max(16, math.ceil(math.ceil(dim / blocks) / register) * register)
        if blocks == 1 or blocks * cols - dim < register:
            found.add(cols)
    return sorted(found)


def _nearest_first(found: Iterable[Choice], around: Choice) -> list[Choice]:
    return sorted((choice for choice in dict.fromkeys(found) if choice != around), key=around.distance)


def _scores(around: Choice, problem: Problem, profile: DeviceProfile) -> list[Choice]:
    scores = around.by_role["scores"]
    every = variants("scores", scores, scores, problem, profile)
    nearest = sorted(every, key=lambda variant: apart(variant, scores))[:MOST_SCORES]
    found = (with_scores(around, variant, problem, profile) for variant in nearest)
    return _nearest_first((choice for choice in found if choice is not None), around)


def with_scores(around: Choice, scores: Variant, problem: Problem, profile: DeviceProfile) -> Choice | None:
    """The choice with other scores, and the gradients' kernels that fit those and are nearest to the ones it has."""
    kernels = {"scores": scores}
    for role, like in list(around.by_role.items())[1:]:
        nearest = _nearest(role, _block(scores), like, max(problem.head_dim, problem.v_head_dim), profile)
        if nearest is None:
            return None
        kernels[role] = nearest
    return around.replaced(**kernels)


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
    return min(fitting, key=lambda variant: apart(variant, like), default=None)


def _block(scores: Variant) -> Variant:
    """Scores of the same block, the same for all that write it: what the gradients' kernels can be looked up by."""
    for row_reg, col_reg in ((8, 4), (4, 4), (8, 8)):
        try:
            same: dict[str, Any] = {"row_reg": row_reg, "col_reg": col_reg, "chunk": 8, "span": 1, "pipeline": ""}
            return replace(scores, **same, written_out=False)  # type: ignore[call-arg]
        except VariantError:
            continue
    return scores


def _gradient(role: str, around: Choice, problem: Problem, profile: DeviceProfile) -> list[Choice]:
    """The choices with another kernel for one gradient."""
    kernels = around.by_role
    found = variants(role, kernels["scores"], kernels[role], problem, profile)
    return _nearest_first((around.replaced(**{role: variant}) for variant in found), around)


def _split(around: Choice, problem: Problem, profile: DeviceProfile) -> list[Choice]:
    """The choices with other numbers."""
    return _nearest_first(_splits(around, profile), around)


def _splits(around: Choice, profile: DeviceProfile) -> Iterator[Choice]:
    limit = profile.limits.binding_bytes
    for parts in SOFTWARE_PARTS if profile.software else PARTS:
        yield around.replaced(parts=parts)
    for budget in sorted({min(budget, limit) for budget in (*BUDGETS, around.number("budget"))}, reverse=True):
        yield around.replaced(budget=budget)


STAGES = (
    Stage(name="scores", weight=5, neighbours=_scores),
    Stage(name="dkdv", weight=4, neighbours=functools.partial(_gradient, "dkdv")),
    Stage(name="dq", weight=3, neighbours=functools.partial(_gradient, "dq")),
    Stage(name="split", weight=2, neighbours=_split),
)
