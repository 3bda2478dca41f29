"""Problem + Device → Plan: the ordered dispatches with their bindings, recorded into the caller's encoder or pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..algorithms.recipe import Recipe
from ..errors import ArgumentError, UnservedProblemError
from ..gpu.buffers import BufferLike
from ..gpu.caches import Pool
from ..gpu.device import Device, default_device
from ..kernels.variant import Variant
from ..problem.problem import Problem
from ..problem.scalars import resolve_numbers
from ..rendering.kernel_text import may_run_unchecked, rendered
from ..selection.ranking import Selection, select
from ..selection.table_files import default_table
from ..selection.tables import Table
from .program import BoundStep, Program
from .scratch import ScratchLike


class Plan(Program):
    """What runs for one problem on one device: pipelines, workgroup counts, bind groups, and scratch.

    Made by ``plan``. Safe from several threads, each with an encoder of its own. Nothing is submitted or read back. The
    first call with some buffers and numbers makes what it needs (bind groups, uniforms, scratch) and keeps it, without
    keeping the buffers alive: what belongs to a buffer goes when the buffer does. Later calls with the same make nothing.

    Scratch is given with the call, or is the device's: one buffer of a name for all the plans that ``plan`` made, as large
    as the largest needs. Sharing is right on a device's one queue, where recordings run one after another, as long as the
    steps of one plan are not recorded in between those of another. ``device.release()`` and ``device.close()`` drop it.
    """

    def __init__(self, recipe: Recipe, device: Device, selection: Selection | None = None, pool: Pool | None = None) -> None:
        """``selection`` says where the recipe comes from; ``pool`` is where scratch comes from, by default the plan's own."""
        if not isinstance(recipe.problem, Problem):
            raise ArgumentError("recipe", f"one for a {type(recipe.problem).__name__}", "one for a Problem")
        super().__init__(recipe, device, pool)
        self.selection = selection
        self.problem = recipe.problem

    def explain(self) -> str:
        """What was chosen, what was refused and why, with numbers; without a selection only what was given."""
        return self.selection.explain() if self.selection else self.recipe.label

    def record(
        self,
        encoder: Any,
        buffers: Mapping[str, BufferLike],
        scale: float | None = None,
        *,
        softcap: float | None = None,
        scratch: ScratchLike | None = None,
    ) -> None:
        """Records the backward pass into ``encoder`` (a GPUCommandEncoder), in one compute pass; nothing is submitted.

        ``buffers`` maps the names in ``Plan.buffers`` to GPU buffers with the storage usage, or to (buffer, offset, size)
        in bytes: float32, laid out as ``Problem`` and its ``strides`` say; doc_start is uint32. Inputs may share a buffer, and
        so may gradients, but not with inputs. Gradients that are cleared first need the copy-destination usage too, and
        buffers that are copied first (``first``) only the copy-source usage. ``scale`` defaults to head_dim ** −0.5;
        ``softcap`` is the bound c, for a problem that has one.
        ``scratch`` gives storage buffers for scratch, of any contents, that nothing else uses meanwhile: a mapping by the
        names in ``Plan.scratch``, or a list as ``Plan.scratch_bytes`` has them; without it the scratch is the device's.

        Raises ``GpuBufferError`` or ``ArgumentError`` before anything is recorded.
        """
        self.record_call(encoder, buffers, resolve_numbers(self.problem, scale, softcap), scratch)

    def record_pass(
        self,
        compute_pass: Any,
        buffers: Mapping[str, BufferLike],
        scale: float | None = None,
        *,
        softcap: float | None = None,
        scratch: ScratchLike | None = None,
    ) -> None:
        """As ``record``, into a compute pass of the caller's (a GPUComputePassEncoder), which is left open.

        Raises ``ArgumentError`` where something comes before the pass (``first``): a pass can neither clear nor copy.
        """
        self.record_call_pass(compute_pass, buffers, resolve_numbers(self.problem, scale, softcap), scratch)

    def bind(
        self,
        buffers: Mapping[str, BufferLike],
        scale: float | None = None,
        *,
        softcap: float | None = None,
        scratch: ScratchLike | None = None,
    ) -> tuple[BoundStep, ...]:
        """The dispatches of ``record`` with these buffers bound, for recording them apart or again and again.

        What comes before the first of them is ``record_first``'s. Arguments and errors are those of ``record``.
        """
        return self.bound(buffers, resolve_numbers(self.problem, scale, softcap), scratch)


def plan(
    problem: Problem,
    device: Device | None = None,
    *,
    algorithm: str | None = None,
    guard: str = "zero",
    tuning: Table | None = None,
) -> Plan:
    """The best recipe for a problem on a device, compiled; for a problem that was asked for lately, the same plan again.

    ``device`` defaults to the process's shared one; ``algorithm``, ``guard`` and ``tuning`` are as for ``select``.
    Raises ``UnservedProblemError`` with the reasons where nothing serves the problem.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError("problem", f"a {type(problem).__name__}", "a Problem")
    device = device or default_device()
    device.check("planning")
    table = default_table() if tuning is None else tuning
    key = (problem, algorithm, guard, table)
    found: Plan | None = device.plans.get(key)
    if found is None:
        selection, recipe = _chosen(device, *key)
        found = device.plans.keep(key, Plan(recipe, device, selection, device.pool))
    return found


def prepare(
    problems: Iterable[Problem],
    device: Device | None = None,
    *,
    algorithm: str | None = None,
    guard: str = "zero",
    tuning: Table | None = None,
    threads: int = 0,
) -> list[Plan]:
    """Plans for several problems, compiled ahead and side by side; returns when all are ready. Nothing runs on the GPU.

    Arguments and errors are those of ``plan``; ``threads`` is how many compile at once with wgpu (0: as the machine has
    cores, 8 at most; Dawn decides by itself). A driver may still finish its own compilation at the first dispatch.
    """
    wanted = list(problems)
    device = device or default_device()
    table = default_table() if tuning is None else tuning
    variants: dict[Variant, None] = {}
    for problem in wanted:
        if not isinstance(problem, Problem):
            raise ArgumentError("problems", f"a {type(problem).__name__}", "Problems")
        variants.update(dict.fromkeys(_chosen(device, problem, algorithm, guard, table)[1].variants))
    device.prepare([(rendered(variant), may_run_unchecked(variant)) for variant in variants], threads)
    return [plan(problem, device, algorithm=algorithm, guard=guard, tuning=table) for problem in wanted]


def _chosen(device: Device, problem: Problem, algorithm: str | None, guard: str, table: Table) -> tuple[Selection, Recipe]:
    selection = select(problem, device.profile, algorithm=algorithm, guard=guard, tuning=table)
    if selection.best is None:
        raise UnservedProblemError(problem, device.profile.name, selection.refusals)
    return selection, selection.best
