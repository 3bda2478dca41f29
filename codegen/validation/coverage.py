"""Small problems on which every variant is executed once for each mask that it serves, and what is right for them.

A variant is reached through a recipe: the first of select's candidates in which it appears for a small problem. One recipe
reaches all its variants, so the runs are fewer than the variants. Rotary kernels stand alone and have a case of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..algorithms import ALGORITHMS, rope
from ..algorithms.choice import Choice
from ..algorithms.recipe import Recipe
from ..errors import VariantError
from ..kernels.rope import RopeBackward
from ..kernels.tiled_products import AttentionScores
from ..kernels.variant import Variant
from ..problem.mask import Mask
from ..problem.problem import Problem
from ..problem.rotation import ROPE_BASE, Angles, Rotation, resolve_angles
from ..profile import PROFILES
from ..reference.accuracy import Expected
from ..reference.attention import Array
from ..reference.samples import Sample, documents, random_sample
from ..selection import catalog
from ..selection.table_files import shipped

MASKS: dict[str, tuple[Mask, ...]] = {
    "full": (Mask.full(),),
    "causal": (Mask.causal(),),
    "documents": (Mask.documents(), Mask.documents(causal=False)),
    "window": (Mask.window(20, 3), Mask.window(None, 5)),
    "prefix": (Mask.prefix(37),),
    "documents_window": (Mask.documents() & Mask.window(20, 0),),
}
"""Masks that bring a mode out. A mode that is not here is looked for with all of them and with ``MORE_MASKS``."""
MORE_MASKS = (Mask.prefix(37) & Mask.window(20, None),)

GIVEN: tuple[Literal["o", "none", "delta"], ...] = ("o", "none", "delta")
LARGE = PROFILES["workgroup-48k"]
"""The device that recipes are made for: a GPU, so that small grids are split into parts as they are there."""
SOFTWARE_BYTES = 32768
NOT_TILES = ("head_dim", "v_head_dim", "max_seq")
PAST_A_TILE = 3
BRIEF = 64 + PAST_A_TILE
FEWER = 75
"""Queries, where they need not be as many as the keys."""
BATCH, HEADS, KV_HEADS = 2, 4, 2
Q_SIZE = 3.0
"""Scores spread as a trained model's do. With plain noise every query weighs its keys alike, and the streaming kernel, which
adds hundreds of equal terms to d_k and d_v one at a time, came to 1.24 of a tolerance that is made for shorter sums. With
sharper scores one row can outweigh its block, and where float32 NumPy happens to be exact in just that row the rule fails
kernels that are as good as NumPy: d_q came to 1.2 with 4.0. With this, 0.8 is the most that any kernel reached."""
RANGE_HEAD_DIM = 44
"""Of variants for many head dims: a multiple of 4 that no tile is made for."""

ROTATIONS = {
    role: Rotation(batch=BATCH, seq=67, heads=heads, head_dim=RANGE_HEAD_DIM)
    for role, heads in (("d_q", HEADS), ("d_k", KV_HEADS))
}
"""What the rotary kernels are executed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recipe to execute, and the (variant, mask mode) pairs that it proves: first, the one it is for."""

    name: str
    proves: tuple[tuple[str, str], ...]
    recipe: Recipe


def runs(names: Iterable[str], *, brief: bool = False) -> tuple[tuple[Run, ...], dict[str, str]]:
    """Runs that reach each of these checked-in variants, for each mask it serves; and for those that none reaches, why.

    Lengths are just past the variant's largest tile; ``brief`` keeps them to ``BRIEF``, for a driver that is slow.
    """
    found: list[Run] = []
    missing: dict[str, str] = {}
    proven: set[tuple[str, str]] = set()
    variants = catalog.checked_in()
    for name in names:
        variant = variants.get(name)
        if variant is None:
            missing[name] = "the catalogue no longer has it: wgsl-attention generate"
            continue
        if isinstance(variant, RopeBackward):
            found.append(Run(name="rope", proves=((name, ""),), recipe=rope.rotate(ROTATIONS[variant.role], variant)))
            continue
        for mode in variant.serves.masks:
            if (name, mode) in proven:
                continue
            hit = next(_reaching(variant, mode, brief), None)
            if hit is None:
                missing[name] = f"no recipe for a small problem uses it with the mask mode {mode}"
                continue
            recipe, of_mode = hit
            others = (
                (v.name, m) for v in recipe.variants for m in v.serves.masks if m == mode or (m in of_mode and v is not variant)
            )
            proves = tuple(dict.fromkeys(((name, mode), *others)))
            proven |= set(proves)
            found.append(Run(name=str(recipe.problem), proves=proves, recipe=recipe))
    return tuple(found), missing


def _reaching(variant: Variant, mode: str, brief: bool) -> Iterator[tuple[Recipe, tuple[str, ...]]]:
    for problem in small_problems(variant, mode, brief):
        fitting = [
            recipe for recipe in recipes(problem, str(variant.params.get("guard", "zero"))) if variant in recipe.variants
        ]
        if fitting:
            known, room = catalog.checked_in(), max(SOFTWARE_BYTES, variant.workgroup_bytes)
            best = min(
                fitting,
                key=lambda recipe: (
                    any(v.workgroup_bytes > room for v in recipe.variants),
                    sum(v.name not in known for v in recipe.variants),
                ),
            )
            yield best, tuple(name for name, masks in MASKS.items() if problem.mask in masks)


@functools.cache
def recipes(problem: Problem, guard: str) -> tuple[Recipe, ...]:
    """Every candidate of every algorithm that takes the problem, and every shipped tuned choice, whatever the device."""
    choices = [
        choice
        for algorithm in ALGORITHMS.values()
        if not algorithm.refusal(problem)
        for choice in algorithm.candidates(problem, LARGE, guard)
    ]
    for row in shipped().rows:
        with contextlib.suppress(VariantError):  # for another head_dim
            choices.append(Choice.from_json(row.choice).suited(problem, guard))
    return tuple(choice.recipe(problem, LARGE) for choice in (*map(_smaller, filter(_large, choices)), *choices))


def _large(choice: Choice) -> bool:
    scores = choice.kernels[0]
    return isinstance(scores, AttentionScores) and scores.workgroup_bytes > SOFTWARE_BYTES


def _smaller(choice: Choice) -> Choice:
    """With scores that a software driver has workgroup memory for, so that the other kernels run there too."""
    scores, *others = choice.kernels
    assert isinstance(scores, AttentionScores)
    return dataclasses.replace(choice, kernels=(dataclasses.replace(scores, chunk=16), *others))


def small_problems(variant: Variant, mode: str, brief: bool = False) -> Iterator[Problem]:
    """Problems with this mask mode and a head_dim that the variant serves, just longer than its largest tile."""
    serves = variant.serves
    tiles = [v for k, v in variant.params.items() if isinstance(v, int) and not isinstance(v, bool) and k not in NOT_TILES]
    length = max(tiles, default=64) + PAST_A_TILE
    if brief:
        length = min(length, BRIEF)
    if serves.max_seq is not None:
        length = min(length, serves.max_seq // BATCH)
    masks = MASKS.get(mode) or (*(mask for group in MASKS.values() for mask in group), *MORE_MASKS)
    below = (int(variant.params["cols"]) - 4,) if variant.constants else ()  # a head_dim that blocks of so many channels suit
    odd = (RANGE_HEAD_DIM - 1,) if variant.params.get("vectorised") is False else ()  # what is read number by number
    wanted = (*odd, RANGE_HEAD_DIM, *below, *sorted({row.key.head_dim for row in shipped().rows}))
    for head_dim in dict.fromkeys(max(serves.min_head_dim, min(serves.max_head_dim, wish)) for wish in wanted):
        own_v = int(variant.params.get("v_head_dim") or head_dim)
        for mask in masks:
            # Fewer queries than keys, where the mask allows it: bottom-right alignment is then at work too.
            square = mask.documents_mode or mode in ("full", "causal")
            for q_len, kv_lengths, v_head_dim, given in itertools.product(
                (length,) if square else (min(length - 20, FEWER), length),
                (False, True),
                dict.fromkeys((own_v, max(1, head_dim - 8))),
                GIVEN,
            ):
                problem = Problem(
                    batch=BATCH,
                    q_len=q_len,
                    kv_len=length,
                    heads=HEADS,
                    kv_heads=KV_HEADS,
                    head_dim=head_dim,
                    v_head_dim=v_head_dim,
                    mask=mask,
                    given=given,
                    kv_lengths=kv_lengths,
                    softcap=bool(variant.params.get("softcap")),
                    alibi=bool(variant.params.get("alibi")),
                )
                yield from _with_accumulation(variant, problem)


def _with_accumulation(variant: Variant, problem: Problem) -> Iterator[Problem]:
    if variant.params.get("strided"):
        problem = problem.packed("d_k", "d_v")
    if variant.params.get("accumulate"):
        yield dataclasses.replace(problem, accumulate=frozenset(problem.outputs))
    yield problem


@functools.lru_cache(maxsize=32)
def sample(problem: Problem) -> Sample:
    """All the arrays that a kernel can ask for, always the same: normal noise with a larger q, uneven documents and lengths."""
    p = problem
    starts = np.stack([documents(p.q_len, (1, 63, 1, 70, 5, 17 + entry, 128)) for entry in range(p.batch)])
    lengths = [p.kv_len - 5 - entry * (p.kv_len // 2) for entry in range(p.batch)]
    return random_sample(p, seed=20, q_size=Q_SIZE, doc_start=starts, kv_lengths=lengths).completed()


@functools.lru_cache(maxsize=32)
def right(problem: Problem) -> Expected:
    """The float64 gradients of ``sample`` and their tolerances, by ``accuracy``."""
    given = sample(problem)
    # delta is an input like the others, rounded as it is
    return given.expected(delta=given["delta"] if problem.given == "delta" else None)


def rotary(rotation: Rotation) -> tuple[Array, Angles]:
    """d_x and the numbers for a rotation, always the same."""
    d_x = np.random.default_rng(21).standard_normal(rotation.outputs["d_x"]).astype(np.float32)
    return d_x, resolve_angles(rotation, ROPE_BASE, 5)
