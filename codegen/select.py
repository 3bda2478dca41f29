"""(Problem, DeviceProfile) → ranked candidates, and refusals with their reasons. Pure: no device is touched, nothing is rendered.

The candidates of an algorithm are the checked-in variants that serve the problem and, where the head_dim has none of its
own, one with that head_dim as a constant, which is rendered on demand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import algorithms, catalog, tiled_recipe, tiles
from .errors import ArgumentError
from .kernels import SEG_UNIFORM_POSITIONS, AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from .problem import MAX_HEAD_DIM, Problem
from .profile import DeviceProfile
from .recipe import Recipe

MAX_REFUSALS = 6
"""Refused variants that are named for one algorithm; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was chosen for a problem on a device (``candidates``, the best first), and what was refused and why."""

    problem: Problem
    profile: DeviceProfile
    candidates: tuple[Recipe, ...]
    refusals: tuple[str, ...]

    @property
    def best(self) -> Recipe | None:
        return self.candidates[0] if self.candidates else None

    def explain(self) -> str:
        """What was chosen, its cost in memory, what came second, and what was refused and why."""
        lines = [f"{self.problem}", f"on {self.profile.name}"]
        for rank, recipe in enumerate(self.candidates[:3]):
            names = " + ".join(variant.name for variant in recipe.variants)
            scratch = sum(recipe.scratch.values())
            lines.append(f"{'chosen' if rank == 0 else 'next'}: {recipe.algorithm}: {names}")
            for v in recipe.variants if rank == 0 else ():
                steps = [step for step in recipe.steps if step.variant == v]
                x, y, z = steps[0].workgroups(self.problem)
                times = f"{len(steps)} times " if len(steps) > 1 else ""
                lines.append(
                    f"  {v.kernel}: {times}{x} × {y} × {z} workgroups of {v.workgroup_size} threads, "
                    f"{v.workgroup_bytes} bytes of workgroup memory (of {self.profile.limits.max_compute_workgroup_storage_size})"
                )
            lines.append(f"  scratch: {scratch / 2**20:.1f} MiB" if scratch else "  scratch: none")
        if len(self.candidates) > 3:
            lines.append(f"and {len(self.candidates) - 3} more that would do")
        lines += [f"refused: {reason}" for reason in self.refusals]
        return "\n".join(lines)


def select(problem: Problem, profile: DeviceProfile, *, algorithm: str | None = None, guard: str = "zero") -> Selection:
    """Ranks every recipe that serves ``problem`` on a device of this profile.

    ``algorithm`` keeps one algorithm only; ``guard`` is what becomes of non-finite numbers (``"zero"`` or ``"propagate"``).
    An empty ``candidates`` is not an error here; ``Plan`` makes it one. Raises ``ArgumentError`` for unknown names.
    """
    if algorithm is not None and algorithm not in algorithms.REFUSALS:
        raise ArgumentError("algorithm", repr(algorithm), f"one of {', '.join(algorithms.REFUSALS)}")
    if guard not in ("zero", "propagate"):
        raise ArgumentError("guard", repr(guard), "'zero' or 'propagate'")
    return _select(problem, profile, algorithm, guard)


@functools.lru_cache(maxsize=1024)
def _select(problem: Problem, profile: DeviceProfile, algorithm: str | None, guard: str) -> Selection:
    candidates: list[Recipe] = []
    refusals: list[str] = []
    for name in [algorithm] if algorithm else ORDER:
        reason = algorithms.REFUSALS[name](problem)
        if reason:
            refusals.append(reason)
            continue
        refused: dict[str, None] = {}
        fitting = []
        for recipe in CANDIDATES[name](problem, profile, guard):
            reasons = recipe.refusals(profile)
            if reasons:
                refused.update(dict.fromkeys(reasons))
            else:
                fitting.append(recipe)
        if not fitting and not refused:
            refused[f"{name} has no variant for these lengths"] = None
        candidates += fitting
        refusals += list(refused)[:MAX_REFUSALS]
        if len(refused) > MAX_REFUSALS:
            refusals.append(f"and {len(refused) - MAX_REFUSALS} more of {name}")
    return Selection(problem=problem, profile=profile, candidates=tuple(candidates), refusals=tuple(refusals))


ORDER = ("tiled", "short", "streaming")
"""The algorithms, the one that should be fastest first: so measured on an H200 and on llvmpipe at every length tried."""

LARGE_GRID = 4096
"""From so many blocks of 128 queries × 128 keys on, the largest blocks are the fastest; below, small ones fill the device."""


def _tiled(problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Recipe]:
    grid = problem.batch * problem.heads * -(-problem.q_len // 128) * -(-problem.kv_len // 128)
    names = ("48k", "32k", "16k") if grid >= LARGE_GRID and not profile.software else ("16k", "32k", "48k")
    limit = min(profile.limits.max_storage_buffer_binding_size, profile.limits.max_buffer_size)
    terms: dict[str, Any] = {"guard": guard, "softcap": problem.softcap, "alibi": problem.alibi}
    for at_most in (False, True):
        for name in names if not at_most else ("16k",):
            if at_most:
                chosen = tiles.choice(tiles.LAYOUTS[name], MAX_HEAD_DIM, at_most=True, **terms)
            else:
                chosen = tiles.choice(tiles.LAYOUTS[name], problem.head_dim, problem.v_head_dim, **terms)
            budget = min(chosen.budget, limit)
            parts = SOFTWARE_PARTS if profile.software else chosen.parts
            yield tiled_recipe.tiled(problem, replace(chosen, budget=budget, parts=parts))


SOFTWARE_PARTS = 16
"""Workgroups that keep a processor's cores busy."""


def _bounds(problem: Problem) -> tuple[tuple[int, bool], ...]:
    """Head_dim bounds in the order they are tried: the constant (checked in or not), then *at most*."""
    return ((problem.head_dim, False), *((d, at_most) for d, at_most in catalog.BOUNDS if at_most and d >= problem.head_dim))


def _seg(mask: str) -> tuple[bool, ...]:
    return (False, True) if mask.startswith("documents") else (False,)


def _positions(problem: Problem) -> int:
    return problem.batch * problem.q_len


def _streaming(problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Recipe]:
    for mask in algorithms.mask_modes(problem):
        for head_dim, at_most in _bounds(problem):
            for wg in (256, catalog.COMPAT_WG):
                for seg_uniform in _seg(mask):
                    v = AttentionBackward(
                        wg=wg, head_dim=head_dim, at_most=at_most, mask=mask, guard=guard, seg_uniform=seg_uniform
                    )
                    if v.serves.max_seq is None or _positions(problem) <= v.serves.max_seq:
                        yield algorithms.streaming(problem, v)


def _short(problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Recipe]:
    masks = [mask for mask in algorithms.mask_modes(problem) if mask in ("full", "causal", "documents")]
    max_seqs = [length for length in catalog.MAX_SEQS if length >= problem.kv_len]
    for mask in masks:
        for head_dim, at_most in _bounds(problem):
            for max_seq in max_seqs:
                for wg in (256, catalog.COMPAT_WG):
                    for seg_uniform in _seg(mask):
                        main = AttentionBackwardShort(
                            wg=wg,
                            max_seq=max_seq,
                            head_dim=head_dim,
                            at_most=at_most,
                            mask=mask,
                            guard=guard,
                            accumulate="d_q" in problem.accumulate,
                            seg_uniform=seg_uniform,
                        )
                        dkdv = AttentionBackwardShortDkdv(
                            wg=wg,
                            head_dim=head_dim,
                            at_most=at_most,
                            mask="full" if mask == "full" else "causal",
                            guard=guard,
                            accumulate="d_k" in problem.accumulate,
                        )
                        if not seg_uniform or _positions(problem) <= SEG_UNIFORM_POSITIONS:
                            yield algorithms.short(problem, main, dkdv)


CANDIDATES: dict[str, Callable[[Problem, DeviceProfile, str], Iterable[Recipe]]] = {
    "tiled": _tiled,
    "short": _short,
    "streaming": _streaming,
}
