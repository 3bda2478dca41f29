"""Small problems on which every variant is executed once for each mask that it serves, and what is right for them.

A variant is reached through a recipe: the first of select's candidates in which it appears for a small problem. One recipe
reaches all its variants, so the runs are fewer than the variants. Rotary kernels stand alone and have a case of their own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from . import algorithms, catalog, reference
from .accuracy import Expected, expected
from .algorithms import Recipe
from .errors import ArgumentError
from .problem import Mask, Problem
from .reference import Array
from .select import CANDIDATES
from .variant import Variant

MASKS: dict[str, tuple[Mask, ...]] = {
    "full": (Mask.full(),),
    "causal": (Mask.causal(),),
    "documents": (Mask.documents(),),
    "window": (Mask.window(20, 3), Mask.window(None, 5)),
    "prefix": (Mask.prefix(37),),
    "documents_window": (Mask.documents() & Mask.window(20, 0),),
}
"""Masks that bring a mode out. A mode that is not here is looked for with all of them, and with documents to their end."""
MORE_MASKS = (Mask.documents(causal=False), Mask.prefix(37) & Mask.window(20, None))

NOT_TILES = ("head_dim", "v_head_dim", "max_seq")
PAST_A_TILE = 3
BATCH, HEADS, KV_HEADS = 2, 4, 2
RANGE_HEAD_DIM = 44
"""Of *at most* variants: a multiple of 4 that no tile is made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recipe to execute, or a rotary variant, and the (variant, mask mode) pairs that it proves."""

    name: str
    proves: tuple[tuple[str, str], ...]
    recipe: Recipe | None = None
    rope: Variant | None = None

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What is compiled for it, in order, each once."""
        if self.recipe is None:
            return (self.rope,) if self.rope is not None else ()
        return tuple(dict.fromkeys(self.recipe.variants))


def runs(names: Iterable[str]) -> tuple[tuple[Run, ...], dict[str, str]]:
    """Runs that reach each of these checked-in variants, for each mask it serves; and for those that none reaches, why."""
    found: list[Run] = []
    missing: dict[str, str] = {}
    proven: set[tuple[str, str]] = set()
    variants = catalog.checked_in()
    for name in names:
        variant = variants[name]
        if is_rope(variant):
            found.append(Run(name="rope", proves=((name, ""),), rope=variant))
            continue
        for mode in variant.serves.masks:
            if (name, mode) in proven:
                continue
            hit = next(_reaching(variant, mode), None)
            if hit is None:
                missing[name] = f"no recipe for a small problem uses it with the mask mode {mode}"
                continue
            recipe, of_mode = hit
            proves = tuple(
                (v.name, m)
                for v in dict.fromkeys(recipe.variants)
                for m in v.serves.masks
                if m == mode or (m in of_mode and v is not variant)
            )
            proven |= set(proves)
            found.append(Run(name=str(recipe.problem), proves=proves, recipe=recipe))
    return tuple(found), missing


def is_rope(variant: Variant) -> bool:
    """Whether it is a rotary kernel, which works in place on one tensor."""
    return any("rope_base:f32" in binding.words for binding in variant.bindings)


def _reaching(variant: Variant, mode: str) -> Iterator[tuple[Recipe, tuple[str, ...]]]:
    for problem in small_problems(variant, mode):
        fitting = [recipe for recipe in recipes(problem, str(variant.params.get("guard", "zero"))) if variant in recipe.variants]
        if fitting:
            known = catalog.checked_in()
            best = min(fitting, key=lambda recipe: sum(v.name not in known for v in recipe.variants))
            yield best, tuple(name for name, masks in MASKS.items() if problem.mask in masks)


@functools.cache
def recipes(problem: Problem, guard: str) -> tuple[Recipe, ...]:
    """Every candidate of every algorithm that takes the problem, whatever the device."""
    return tuple(
        recipe
        for name, candidates in CANDIDATES.items()
        if not algorithms.REFUSALS[name](problem)
        for recipe in candidates(problem, guard)
    )


def small_problems(variant: Variant, mode: str) -> Iterator[Problem]:
    """Problems with this mask mode and a head_dim that the variant serves, just longer than its largest tile."""
    serves = variant.serves
    tiles = [v for k, v in variant.params.items() if isinstance(v, int) and not isinstance(v, bool) and k not in NOT_TILES]
    length = max(tiles, default=64) + PAST_A_TILE
    if serves.max_seq is not None:
        length = min(length, serves.max_seq // BATCH)
    head_dim = max(serves.min_head_dim, min(serves.max_head_dim, RANGE_HEAD_DIM))
    masks = MASKS.get(mode) or (*(mask for group in MASKS.values() for mask in group), *MORE_MASKS)
    for mask in masks:
        # Fewer queries than keys, where the mask allows it: bottom-right alignment is then at work too.
        for q_len in (length,) if mask.documents_mode or mode in ("full", "causal") else (length - 30, length):
            for given in ("o", "none", "delta"):
                yield from _with_accumulation(
                    variant,
                    Problem(
                        batch=BATCH,
                        q_len=q_len,
                        kv_len=length,
                        heads=HEADS,
                        kv_heads=KV_HEADS,
                        head_dim=head_dim,
                        mask=mask,
                        given=given,  # type: ignore[arg-type]
                    ),
                )


def _with_accumulation(variant: Variant, problem: Problem) -> Iterator[Problem]:
    if variant.params.get("accumulate"):
        yield dataclasses.replace(problem, accumulate=True)
    yield problem


@functools.lru_cache(maxsize=32)
def inputs(problem: Problem) -> Mapping[str, Array]:
    """The caller's arrays for a problem, float32 and uint32, always the same: normal noise, documents of uneven lengths."""
    rng = np.random.default_rng(20)
    p = problem
    query, key = (p.batch, p.q_len, p.heads), (p.batch, p.kv_len, p.kv_heads)
    shapes = {
        "q": (*query, p.head_dim),
        "k": (*key, p.head_dim),
        "v": (*key, p.v_head_dim),
        "d_o": (*query, p.v_head_dim),
    }
    arrays: dict[str, Array] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    options = {"doc_start": doc_start(p)} if p.interval.doc_start else {}
    o, lse = reference.forward(p, arrays["q"], arrays["k"], arrays["v"], **options)  # type: ignore[arg-type]
    arrays |= {"o": o.astype(np.float32), "lse": lse.astype(np.float32), "delta": np.sum(o * arrays["d_o"], axis=3)}
    arrays["delta"] = arrays["delta"].astype(np.float32)
    return {**arrays, **options}


def doc_start(problem: Problem) -> Array:
    """(batch, q_len) uint32: documents of 1, 63, 1, 70, … positions, other ones in each batch entry."""
    starts = np.zeros((problem.batch, problem.q_len), np.uint32)
    for entry, row in enumerate(starts):
        at, lengths = 0, (1, 63, 1, 70, 5, 17 + entry, 128)
        for i in range(problem.q_len):
            row[at : at + lengths[i % len(lengths)]] = at
            at += lengths[i % len(lengths)]
            if at >= problem.q_len:
                break
    return starts


@functools.lru_cache(maxsize=32)
def right(problem: Problem) -> Expected:
    """The float64 gradients of ``inputs`` and their tolerances, by ``accuracy``."""
    given = inputs(problem)
    options = {"doc_start": given["doc_start"]} if "doc_start" in given else {}
    plain = dataclasses.replace(problem, accumulate=False)
    return expected(plain, given["q"], given["k"], given["v"], given["d_o"], **options)  # type: ignore[arg-type]


def rope_values(variant: Variant) -> dict[str, float | int]:
    """The sizes and uniform words of the rotary case, by the names that bindings and dispatch formulas use."""
    if not is_rope(variant):
        raise ArgumentError("variant", variant.name, "a rotary kernel")
    sizes = {"seq_len": 67, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": 44, "half_head_dim": 22, "batch": BATCH}
    return {**sizes, "pos_offset": 5, "rope_base": 10000.0}
