"""A recipe on a device, ready to be recorded: pipelines, bind groups, scratch and uniforms, made once and kept."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..algorithms.recipe import Recipe, Step
from ..errors import ArgumentError, GpuBufferError
from ..gpu.buffers import BufferLike, Range, all_ranged, identity
from ..gpu.caches import Bounded, Pool
from ..gpu.device import Device, Pipeline
from ..problem.task import Scalars
from ..rendering.kernel_text import may_run_unchecked, rendered
from .scratch import ScratchLike, layout
from .uniforms import Uniforms

MAX_BIND_GROUPS = 4096
"""Bind groups that a plan keeps: those of the buffers that it was called with last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStep:
    """One dispatch with its buffers: ``group`` is the bind group, ``workgroups`` the counts in x, y and z."""

    step: Step
    pipeline: Pipeline
    group: Any
    workgroups: tuple[int, int, int]

    def record(self, compute_pass: Any) -> None:
        """Into a compute pass, after any others that it depends on."""
        compute_pass.set_pipeline(self.pipeline.raw)
        compute_pass.set_bind_group(0, self.group)
        compute_pass.dispatch_workgroups(*self.workgroups)


class Program:
    """What is recorded for a recipe on a device, with a call's numbers once they are judged; a ``Plan`` is one.

    Safe from several threads, each with an encoder of its own. What the first call with some buffers and numbers makes is
    kept, without keeping the buffers alive: what belongs to a buffer goes when the buffer does.
    """

    def __init__(self, recipe: Recipe, device: Device, pool: Pool | None = None) -> None:
        """``pool`` is where scratch comes from; by default the program's own."""
        self.recipe = recipe
        self.device = device
        self._steps: list[tuple[Step, Pipeline, tuple[int, int, int]]] = []
        for step in recipe.steps:
            pipeline = device.pipeline(rendered(step.variant, recipe.problem), unchecked=may_run_unchecked(step.variant))
            self._steps.append((step, pipeline, step.workgroups(recipe.problem)))
        self._sizes = {name: size for name, size in recipe.buffer_bytes().items() if name not in recipe.scratch}
        limits = device.profile.limits
        self._alignment = limits.min_storage_buffer_offset_alignment
        self._layout = layout(recipe, self._alignment, limits.max_buffer_size)
        self._pool = pool or Pool(lambda size, name: device.zeros(size, label=name))
        self._owns_pool = pool is None
        self._uniforms = Uniforms(recipe, device)
        self._has_first = bool(recipe.cleared or self._uniforms.copied)
        self._bound: Bounded[Any, tuple[BoundStep, ...]] = Bounded(MAX_BIND_GROUPS // max(1, len(self._steps)))
        self._lock = threading.Lock()
        device.attach(self)

    @property
    def scratch(self) -> Mapping[str, int]:
        """Bytes of each scratch buffer."""
        return dict(self.recipe.scratch)

    @property
    def scratch_bytes(self) -> tuple[int, ...]:
        """Bytes of the fewest buffers that hold all scratch; more than one where a step reads some of it and writes some."""
        return self._layout.sizes

    @property
    def buffers(self) -> Mapping[str, int]:
        """The caller's buffers that ``record`` wants, and the bytes each must hold at least."""
        return dict(self._sizes)

    @property
    def first(self) -> tuple[str, ...]:
        """What ``record`` does before its pass, in words; empty where ``record_pass`` serves."""
        copies = (f"{name} is copied into a uniform buffer" for name in self._uniforms.copied)
        return (*(f"{name} is cleared" for name in self.recipe.cleared), *copies)

    def record_call(
        self, encoder: Any, buffers: Mapping[str, BufferLike], numbers: Scalars, scratch: ScratchLike | None = None
    ) -> None:
        """As ``Plan.record``."""
        steps = self.bound(buffers, numbers, scratch)
        device = self.device
        try:
            with device.turn:
                if self._has_first:
                    self._record_first(encoder, buffers)
                compute_pass = encoder.begin_compute_pass(label=self.recipe.algorithm)
                _dispatch(compute_pass, steps)
                compute_pass.end()
        except device.errors as error:
            device.fail("recording a plan", error)

    def record_call_pass(
        self, compute_pass: Any, buffers: Mapping[str, BufferLike], numbers: Scalars, scratch: ScratchLike | None = None
    ) -> None:
        """As ``Plan.record_pass``."""
        if self._has_first:
            want = "record() with a command encoder" + (", or a problem that accumulates" if self.recipe.cleared else "")
            raise ArgumentError("compute_pass", f"a pass, before which {'; '.join(self.first)}", want)
        steps = self.bound(buffers, numbers, scratch)
        device = self.device
        try:
            with device.turn:
                _dispatch(compute_pass, steps)
        except device.errors as error:
            device.fail("recording a plan", error)

    def bound(
        self, buffers: Mapping[str, BufferLike], numbers: Scalars, scratch: ScratchLike | None = None
    ) -> tuple[BoundStep, ...]:
        """As ``Plan.bind``."""
        self.device.check("binding a plan's buffers")
        # `identity`, written out for speed: this is what a call costs that was made before
        ids = [id(b) if b.__class__ is not tuple else (*map(id, b[:1]), *b[1:]) for b in buffers.values()]
        key = (numbers, None if scratch is None else identity(scratch), *buffers, *ids)
        try:
            steps = self._bound.get(key)
        except TypeError:  # an offset without a hash, which the checks refuse by name
            steps = None
        return self._bind(key, buffers, numbers, scratch) if steps is None else steps

    def record_first(self, encoder: Any, buffers: Mapping[str, BufferLike]) -> None:
        """Records what comes before the pass: the clears and copies that ``first`` names. Errors are those of ``record``."""
        self._check(buffers)
        with self.device.guard("recording a plan"):
            self._record_first(encoder, buffers)

    def release_bindings(self) -> None:
        """Drops the bind groups, and with them the plan's hold on scratch."""
        self._bound.clear()

    def release(self) -> None:
        """Drops bind groups, uniforms and scratch of the plan's own; the next call makes them anew."""
        self._bound.clear()
        self._uniforms.clear()
        if self._owns_pool:
            self._pool.clear()

    def _bind(
        self, key: Any, buffers: Mapping[str, BufferLike], numbers: Scalars, scratch: ScratchLike | None
    ) -> tuple[BoundStep, ...]:
        ranges = self._check(buffers)
        given = {} if scratch is None else self._layout.give(self.recipe.scratch, scratch, self._alignment)
        for name, one in given.items():
            for other, two in ranges.items():
                if one.buffer is two.buffer:
                    raise GpuBufferError(
                        name, f"the buffer of {other!r} too", "scratch apart from what the plan reads and writes"
                    )
        owners = [r.buffer for r in (*ranges.values(), *given.values())]
        with self._lock, self.device.guard("binding a plan's buffers"):
            if scratch is None:
                own = self._pool.take(self.recipe.scratch)
                given = {name: Range(own[name], 0, size) for name, size in self.recipe.scratch.items()}
            ranges = {
                **ranges,
                **given,
                **{n: Range(self._uniforms.array(n), 0, size) for n, size in self._uniforms.copied.items()},
            }
            bound = []
            for (step, pipeline, counts), words in zip(self._steps, self._uniforms.words(numbers), strict=True):
                group = self._bind_group(step, pipeline, ranges, words)
                bound.append(BoundStep(step=step, pipeline=pipeline, group=group, workgroups=counts))
        return self._bound.keep(key, tuple(bound), owners)

    def _record_first(self, encoder: Any, buffers: Mapping[str, BufferLike]) -> None:
        for name in self.recipe.cleared:
            buffer, offset = _place(buffers[name])
            encoder.clear_buffer(buffer, offset, self._sizes[name])
        for name in self._uniforms.copied:
            buffer, offset = _place(buffers[name])
            encoder.copy_buffer_to_buffer(buffer, offset, self._uniforms.array(name), 0, self._sizes[name])

    def _bind_group(self, step: Step, pipeline: Pipeline, ranges: Mapping[str, Range], words: Mapping[int, Any]) -> Any:
        bound: dict[int, Any] = dict(words)
        for binding in step.variant.bindings:
            if not binding.words:
                found = ranges[step.buffer_of(binding)]
                bound[binding.binding] = (found.buffer, found.offset, found.size)
        return self.device.bind_group(pipeline, bound)

    def _check(self, buffers: Mapping[str, BufferLike]) -> dict[str, Range]:
        """Every buffer's range, once all of them are found right."""
        cleared, copied = self.recipe.cleared, self._uniforms.copied
        wants = {name: (self._alignment, "STORAGE | COPY_DST" if name in cleared else "STORAGE") for name in self._sizes}
        wants |= dict.fromkeys(copied, (4, "COPY_SRC"))
        return all_ranged(
            buffers,
            self._sizes,
            wants,
            optional=self.recipe.problem.optional,
            written=tuple(self.recipe.problem.outputs),
            clash=self.recipe.clash,
        )


def _dispatch(compute_pass: Any, steps: tuple[BoundStep, ...]) -> None:
    set_pipeline, set_bind_group = compute_pass.set_pipeline, compute_pass.set_bind_group
    for bound in steps:
        set_pipeline(bound.pipeline.raw)
        set_bind_group(0, bound.group)
        compute_pass.dispatch_workgroups(*bound.workgroups)


def _place(given: BufferLike) -> tuple[Any, int]:
    return (given[0], given[1]) if isinstance(given, tuple) else (given, 0)
