"""(Problem, DeviceProfile, tuning table) → ranked candidates, and refusals with their reasons. Pure: no device is touched,
nothing is rendered; only where no table is given are the tables in force looked at.

A tuned choice for problems like this one goes first. The other candidates of an algorithm are the checked-in variants that
serve the problem and, where the head_dim has none of its own, one with that head_dim as a constant, rendered on demand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..algorithms import original as algorithms
from ..algorithms import tiled_layouts as tiles
from ..algorithms.choice import Choice
from ..algorithms.recipe import Recipe
from ..errors import ArgumentError, VariantError
from ..kernels.original import SEG_UNIFORM_POSITIONS, AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from ..problem.problem import MAX_HEAD_DIM, Problem
from ..profile import DeviceProfile
from . import catalog
from . import tables as tuning
from .table_files import default_table
from .tables import Level, Row, Table

MAX_REFUSALS = 6
"""Refused variants that are named for one algorithm; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was chosen for a problem on a device (``candidates``, the best first), and what was refused and why.

    ``tuned`` says which measurement the first candidate comes from; empty where none does.
    """

    problem: Problem
    profile: DeviceProfile
    candidates: tuple[Recipe, ...]
    refusals: tuple[str, ...]
    tuned: str = ""

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
            if rank == 0 and self.tuned:
                lines.append(f"  {self.tuned}")
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


def select(
    problem: Problem, profile: DeviceProfile, *, algorithm: str | None = None, guard: str = "zero", tuning: Table | None = None
) -> Selection:
    """Ranks every recipe that serves ``problem`` on a device of this profile.

    ``algorithm`` keeps one algorithm only; ``guard`` is what becomes of non-finite numbers (``"zero"`` or ``"propagate"``).
    ``tuning`` is the table to go by: the user's and the package's where it is left out, ``tuning.EMPTY`` for none.
    An empty ``candidates`` is not an error here; ``Plan`` makes it one. Raises ``ArgumentError`` for unknown names.
    """
    if algorithm is not None and algorithm not in algorithms.REFUSALS:
        raise ArgumentError("algorithm", repr(algorithm), f"one of {', '.join(algorithms.REFUSALS)}")
    if guard not in ("zero", "propagate"):
        raise ArgumentError("guard", repr(guard), "'zero' or 'propagate'")
    return _select(problem, profile, algorithm, guard, default_table() if tuning is None else tuning)


@functools.lru_cache(maxsize=1024)
def _select(problem: Problem, profile: DeviceProfile, algorithm: str | None, guard: str, table: Table) -> Selection:
    if large := _too_large(problem, profile):
        return Selection(problem=problem, profile=profile, candidates=(), refusals=large)
    candidates: list[Recipe] = []
    refusals: list[str] = []
    tuned = ""
    found = _tuned(problem, profile, algorithm, guard, table, refusals)
    if found:
        candidates.append(found[0])
        tuned = found[1]
    for name in [algorithm] if algorithm else ORDER:
        reason = algorithms.REFUSALS[name](problem)
        if reason:
            refusals.append(reason)
            continue
        refused: dict[str, None] = {}
        fitting = []
        for choice in CANDIDATES[name](problem, profile, guard):
            reasons = choice.shortfalls(profile)
            recipe = None if reasons else choice.recipe(problem, profile)
            reasons = reasons if recipe is None else recipe.refusals(profile)
            if recipe is None or reasons:
                refused.update(dict.fromkeys(reasons))
            elif not found or recipe != found[0]:
                fitting.append(recipe)
        if not fitting and not refused and not found:
            refused[f"{name} has no variant for these lengths"] = None
        candidates += fitting
        refusals += list(refused)[:MAX_REFUSALS]
        if len(refused) > MAX_REFUSALS:
            refusals.append(f"and {len(refused) - MAX_REFUSALS} more of {name}")
    return Selection(problem=problem, profile=profile, candidates=tuple(candidates), refusals=tuple(refusals), tuned=tuned)


def _too_large(problem: Problem, profile: DeviceProfile) -> tuple[str, ...]:
    """The tensors that the device cannot bind whatever the algorithm; found before a recipe of a million steps is made."""
    limit = min(profile.limits.max_storage_buffer_binding_size, profile.limits.max_buffer_size)
    sizes = {name: problem.buffer_bytes[name] for name in (*problem.inputs, *problem.outputs)}
    return tuple(f"{name} takes {size} bytes, the device binds {limit}" for name, size in sizes.items() if size > limit)


def _tuned(
    problem: Problem, profile: DeviceProfile, algorithm: str | None, guard: str, table: Table, refusals: list[str]
) -> tuple[Recipe, str] | None:
    """The recipe of the first row that holds here, and what to say of it. Rows before it that do not are told to ``refusals``."""
    refusals += [f"tuning: {fault}" for fault in table.faults]
    for row, level in table.lookup(problem, profile):
        if algorithm is not None and row.choice.get("algorithm") != algorithm:
            continue
        try:
            choice = tuning.restore(row, problem, guard, checked_in=catalog.checked_in())
        except VariantError as error:
            refusals.append(f"tuned on {row.device or 'any device'} for {row.problem}: {error}")
            continue
        reasons = choice.shortfalls(profile)
        if not reasons:
            recipe = choice.recipe(problem, profile)
            reasons = recipe.refusals(profile)
            if not reasons:
                return recipe, _told(row, level, profile)
        refusals.append(f"tuned on {row.device or 'any device'} for {row.problem}: {reasons[0]}")
    return None


def _told(row: Row, level: Level, profile: DeviceProfile) -> str:
    """Where a tuned choice comes from, with what differs between then and now."""
    where = {"device": "", "default": ", for any device"}.get(level, f", the same {level}")
    told = f"tuned on {row.device or 'another device'}{where}: {1e3 * row.seconds:.3g} ms for {row.problem}"
    told += f", {1e3 * row.default_seconds:.3g} ms without tuning" if row.default_seconds else ""
    if row.runner_up_seconds:
        told += f", {1e3 * row.runner_up_seconds:.3g} ms the next"
    then = row.measured.get("driver")
    if level == "device" and then and then != profile.driver:
        told += f"; measured with the driver {then}, this is {profile.driver or 'unknown'}"
    return told


def choices(problem: Problem, profile: DeviceProfile, *, algorithm: str | None = None, guard: str = "zero") -> list[Choice]:
    """What ``select`` ranks without a tuning table, as choices that fit the device, in its order."""
    found: list[Choice] = []
    for name in [algorithm] if algorithm else ORDER:
        if not algorithms.REFUSALS[name](problem) and not _too_large(problem, profile):
            for choice in CANDIDATES[name](problem, profile, guard):
                fits = choice not in found and not choice.shortfalls(profile)
                if fits and not choice.recipe(problem, profile).refusals(profile):
                    found.append(choice)
    return found


ORDER = ("tiled", "short", "streaming")
"""The algorithms, the one that should be fastest first: so measured on an H200 and on llvmpipe at every length tried."""

SCRATCH_SHARE = 16
"""A scratch buffer takes at most so many times what the call's own arrays take, and is worth having up to ``MAX_SCRATCH``:
on an H200, 2 GiB instead of 1 GiB were worth 4 % at 8192 positions, and 512 MiB cost 8 %."""
MIN_SCRATCH, MAX_SCRATCH = 128 << 20, 2 << 30


def scratch_budget(problem: Problem) -> int:
    """Bytes that each scratch buffer of the tiled algorithm may take, as far as the device's limits allow."""
    own = sum(4 * math.prod(problem.shapes[name]) for name in ("q", "k", "v", "d_o", *problem.outputs))
    return min(MAX_SCRATCH, max(MIN_SCRATCH, SCRATCH_SHARE * own))


LARGE_GRID = 4096
"""From so many blocks of 128 queries × 128 keys on, the largest blocks are the fastest; below, small ones fill the device."""


def _tiled(problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Choice]:
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
            budget = min(scratch_budget(problem), limit)
            parts = SOFTWARE_PARTS if profile.software else chosen.parts
            yield Choice.of(replace(chosen, budget=budget, parts=parts))


SOFTWARE_PARTS = 16
"""Workgroups that keep a processor's cores busy."""


def _bounds(problem: Problem) -> tuple[tuple[int, bool], ...]:
    """Head_dim bounds in the order they are tried: the constant (checked in or not), then *at most*."""
    return ((problem.head_dim, False), *((d, at_most) for d, at_most in catalog.BOUNDS if at_most and d >= problem.head_dim))


def _seg(mask: str) -> tuple[bool, ...]:
    return (False, True) if mask.startswith("documents") else (False,)


def _positions(problem: Problem) -> int:
    return problem.batch * problem.q_len


def _streaming(problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Choice]:
    for mask in algorithms.mask_modes(problem):
        for head_dim, at_most in _bounds(problem):
            for wg in (256, catalog.COMPAT_WG):
                for seg_uniform in _seg(mask):
                    v = AttentionBackward(
                        wg=wg, head_dim=head_dim, at_most=at_most, mask=mask, guard=guard, seg_uniform=seg_uniform
                    )
                    if v.serves.max_seq is None or _positions(problem) <= v.serves.max_seq:
                        yield Choice(algorithm="streaming", kernels=(v,))


def _short(problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Choice]:
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
                            yield Choice(algorithm="short", kernels=(main, dkdv))


CANDIDATES: dict[str, Callable[[Problem, DeviceProfile, str], Iterable[Choice]]] = {
    "tiled": _tiled,
    "short": _short,
    "streaming": _streaming,
}
