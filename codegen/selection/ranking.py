"""(Problem, DeviceProfile, tuning table) → ranked candidates, and refusals with their reasons. Pure: no device is touched,
nothing is rendered; only where no table is given are the tables in force looked at.

A tuned choice for problems like this one goes first. The other candidates of an algorithm are the checked-in variants that
serve the problem, and ones with its head_dim as a constant of the text, rendered on demand; which goes first, the algorithm says.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..algorithms import ALGORITHMS
from ..algorithms.algorithm import Algorithm, algorithm_named
from ..algorithms.choice import Choice
from ..algorithms.recipe import Recipe
from ..errors import ArgumentError, VariantError
from ..problem.problem import Problem
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
    if algorithm is not None:
        algorithm_named(algorithm)
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
    for name, each in _algorithms(algorithm):
        if reason := each.refusal(problem):
            refusals.append(reason)
            continue
        refused: dict[str, None] = {}
        fitting = []
        for choice in each.candidates(problem, profile, guard):
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
    limit = profile.limits.binding_bytes
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
    for _, each in _algorithms(algorithm):
        if not each.refusal(problem) and not _too_large(problem, profile):
            for choice in each.candidates(problem, profile, guard):
                fits = choice not in found and not choice.shortfalls(profile)
                if fits and not choice.recipe(problem, profile).refusals(profile):
                    found.append(choice)
    return found


def _algorithms(name: str | None) -> list[tuple[str, Algorithm]]:
    """The algorithms in question, the one that should be the fastest first."""
    return list(ALGORITHMS.items()) if name is None else [(name, algorithm_named(name))]
