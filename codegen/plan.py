"""Problem + Device → Plan: the ordered dispatches with their bindings, recorded into the caller's command encoder."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from . import catalog, manifest
from .device import Device, Pipeline, default_device
from .errors import ArgumentError, GpuBufferError, UnservedProblemError
from .problem import GRADIENTS, Problem
from .recipe import Recipe, Step
from .select import Selection, select
from .variant import RenderedVariant, Variant
from .words import Numbers, pack_words, resolve_numbers, uniform_values

BufferLike: TypeAlias = Any
"""A GPU buffer of the device's package, or (buffer, offset, size) in bytes."""

MAX_NUMBERS = 4
"""Scales for which a plan keeps its uniform buffers."""

COPY_SRC, COPY_DST, UNIFORM, STORAGE = 4, 8, 64, 128
"""WebGPU's buffer usage flags, the same numbers in every implementation."""


def rendered(variant: Variant) -> RenderedVariant:
    """The variant's text and facts: from ``generated/`` where it is checked in, else rendered now (which needs Jinja2)."""
    if is_checked_in(variant) and variant.name in manifest.entries():
        return manifest.load(variant.name)
    from .render import render

    return render(variant)


def is_checked_in(variant: Variant) -> bool:
    """Whether the variant has passed validation on every compiler, and so may run without runtime checks."""
    return variant.name in catalog.checked_in()


@dataclass(frozen=True, slots=True)
class _Range:
    buffer: Any
    offset: int
    size: int


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


class Plan:
    """What runs for one problem on one device: pipelines, workgroup counts, and scratch that the plan owns.

    Made by ``plan``. ``record`` may be called any number of times, and from one thread at a time; recordings share the
    plan's scratch, which is right as long as they run on the device's one queue.
    """

    def __init__(self, selection: Selection, recipe: Recipe, device: Device) -> None:
        self.selection = selection
        self.recipe = recipe
        self.problem = recipe.problem
        self.device = device
        self._steps: list[tuple[Step, Pipeline, tuple[int, int, int]]] = []
        for step in recipe.steps:
            pipeline = device.pipeline(rendered(step.variant), trusted=is_checked_in(step.variant))
            self._steps.append((step, pipeline, step.workgroups(self.problem)))
        self._sizes = {name: size for name, size in recipe.buffer_bytes().items() if name not in recipe.scratch}
        bindings = [b for step in recipe.steps for b in step.variant.bindings]
        self._copied = {b.role: b.array_bytes for b in bindings if b.array_bytes}
        self._scratch: dict[str, Any] = {}
        self._uniforms: OrderedDict[Numbers, tuple[Any, ...]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def scratch(self) -> Mapping[str, int]:
        """Bytes of each scratch buffer."""
        return dict(self.recipe.scratch)

    @property
    def buffers(self) -> Mapping[str, int]:
        """The caller's buffers that ``record`` wants, and the bytes each must hold at least."""
        return dict(self._sizes)

    def explain(self) -> str:
        """What was chosen, what was refused and why, with numbers."""
        return self.selection.explain()

    @property
    def first(self) -> tuple[str, ...]:
        """What ``record`` does before its pass, in words; empty where ``record_pass`` serves."""
        copies = (f"{name} is copied into a uniform buffer" for name in self._copied)
        return (*(f"{name} is cleared" for name in self.recipe.cleared), *copies)

    def record(
        self, encoder: Any, buffers: Mapping[str, BufferLike], scale: float | None = None, *, softcap: float | None = None
    ) -> None:
        """Records the backward pass into ``encoder`` (a GPUCommandEncoder), in one compute pass; nothing is submitted.

        ``buffers`` maps the names in ``Plan.buffers`` to GPU buffers with the storage usage, or to (buffer, offset, size)
        in bytes: float32, row-major, laid out as ``Problem`` says; doc_start is uint32. Gradients that are cleared first
        need the copy-destination usage too, and buffers that are copied first (``first``) only the copy-source usage.
        ``scale`` defaults to head_dim ** −0.5; ``softcap`` is the bound c, for a problem that has one.

        Raises ``GpuBufferError`` or ``ArgumentError`` before anything is recorded.
        """
        numbers = resolve_numbers(self.problem, scale, softcap)
        ranges = self._check(buffers)
        with self._lock, self.device.guard("recording a plan"):
            bound = self._bind(ranges, numbers)
            self._record_first(encoder, ranges)
            compute_pass = encoder.begin_compute_pass(label=self.recipe.algorithm)
            for step in bound:
                step.record(compute_pass)
            compute_pass.end()

    def record_pass(
        self, compute_pass: Any, buffers: Mapping[str, BufferLike], scale: float | None = None, *, softcap: float | None = None
    ) -> None:
        """As ``record``, into a compute pass of the caller's (a GPUComputePassEncoder), which is left open.

        Raises ``ArgumentError`` where something comes before the pass (``first``): a pass can neither clear nor copy.
        """
        if self.first:
            want = "record() with a command encoder" + (", or a problem that accumulates" if self.recipe.cleared else "")
            raise ArgumentError("compute_pass", f"a pass, before which {'; '.join(self.first)}", want)
        for step in self.bind(buffers, scale, softcap=softcap):
            step.record(compute_pass)

    def bind(
        self, buffers: Mapping[str, BufferLike], scale: float | None = None, *, softcap: float | None = None
    ) -> tuple[BoundStep, ...]:
        """The dispatches of ``record`` with these buffers bound, for recording them apart or again and again.

        What comes before the first of them is ``record_first``'s. Arguments and errors are those of ``record``.
        """
        numbers = resolve_numbers(self.problem, scale, softcap)
        ranges = self._check(buffers)
        with self._lock, self.device.guard("binding a plan's buffers"):
            return self._bind(ranges, numbers)

    def record_first(self, encoder: Any, buffers: Mapping[str, BufferLike]) -> None:
        """Records what comes before the pass: the clears and copies that ``first`` names. Errors are those of ``record``."""
        ranges = self._check(buffers)
        with self._lock, self.device.guard("recording a plan"):
            self._record_first(encoder, ranges)

    def _bind(self, given: Mapping[str, _Range], numbers: Numbers) -> tuple[BoundStep, ...]:
        ranges = dict(given)
        for name, size in self.recipe.scratch.items():
            if name not in self._scratch:
                self._scratch[name] = self.device.zeros(size, label=name)
            ranges[name] = _Range(self._scratch[name], 0, self._scratch[name].size)
        for name, size in self._copied.items():
            ranges[name] = _Range(self._uniform_array(name), 0, size)
        uniforms = self._uniforms_for(numbers)
        bound = []
        for (step, pipeline, counts), words in zip(self._steps, uniforms, strict=True):
            group = self._bind_group(step, pipeline, ranges, words)
            bound.append(BoundStep(step=step, pipeline=pipeline, group=group, workgroups=counts))
        return tuple(bound)

    def _record_first(self, encoder: Any, ranges: Mapping[str, _Range]) -> None:
        for name in self.recipe.cleared:
            encoder.clear_buffer(ranges[name].buffer, ranges[name].offset, self._sizes[name])
        for name in self._copied:
            source = ranges[name]
            encoder.copy_buffer_to_buffer(source.buffer, source.offset, self._uniform_array(name), 0, self._sizes[name])

    def _uniforms_for(self, numbers: Numbers) -> tuple[dict[int, Any], ...]:
        """For each step, its uniform buffers by binding; kept for the last few scales that were asked for."""
        if numbers not in self._uniforms:
            values = {**uniform_values(self.problem), "scale": numbers.scale, "softcap": numbers.softcap}
            self._uniforms[numbers] = tuple(
                {
                    b.binding: self.device.uniform(pack_words(b, {**values, **step.sizes}), label=b.role)
                    for b in step.variant.bindings
                    if b.words
                }
                for step in self.recipe.steps
            )
            if len(self._uniforms) > MAX_NUMBERS:
                self._uniforms.popitem(last=False)
        self._uniforms.move_to_end(numbers)
        return self._uniforms[numbers]

    def _bind_group(self, step: Step, pipeline: Pipeline, ranges: Mapping[str, _Range], words: Mapping[int, Any]) -> Any:
        bound: dict[int, Any] = dict(words)
        for binding in step.variant.bindings:
            if not binding.words:
                found = ranges[step.buffers.get(binding.role, binding.role)]
                bound[binding.binding] = (found.buffer, found.offset, found.size)
        return self.device.bind_group(pipeline, bound)

    def _uniform_array(self, name: str) -> Any:
        key = f"{name} uniform"
        if key not in self._scratch:
            self._scratch[key] = self.device.uniform(np.zeros(self._copied[name] // 4, np.uint32), label=name)
        return self._scratch[key]

    def _check(self, buffers: Mapping[str, BufferLike]) -> dict[str, _Range]:
        """Every buffer's range, once all of them are found right."""
        unknown = sorted(set(buffers) - set(self._sizes) - {"o", "delta"})
        if unknown:
            raise GpuBufferError(unknown[0], "a buffer", f"only {', '.join(self._sizes)}")
        ranges: dict[str, _Range] = {}
        for name, need in self._sizes.items():
            if buffers.get(name) is None:
                raise GpuBufferError(name, "nothing", f"a buffer of at least {need} bytes")
            given = buffers[name]
            buffer, offset, size = given if isinstance(given, tuple) else (given, 0, None)
            if not hasattr(buffer, "usage") or not hasattr(buffer, "size"):
                raise GpuBufferError(name, f"a {type(buffer).__name__}", "a GPU buffer, or (buffer, offset, size)")
            size = buffer.size - offset if size is None else size
            self._check_range(name, need, buffer, offset, size)
            ranges[name] = _Range(buffer, offset, need)
        for name in GRADIENTS:
            written = ranges[name]
            for other, read in ranges.items():
                if other != name and read.buffer is written.buffer and (other not in GRADIENTS or _overlap(written, read)):
                    raise GpuBufferError(name, f"the buffer of {other!r} too", "a buffer of its own")
        return ranges

    def _check_range(self, name: str, need: int, buffer: Any, offset: int, size: int) -> None:
        alignment = self.device.profile.limits.min_storage_buffer_offset_alignment
        usage, usage_name = STORAGE, "STORAGE"
        if name in self._copied:
            usage, usage_name, alignment = COPY_SRC, "COPY_SRC", 4
        elif name in self.recipe.cleared:
            usage, usage_name = STORAGE | COPY_DST, "STORAGE | COPY_DST"
        if offset < 0 or offset % alignment:
            raise GpuBufferError(name, f"an offset of {offset}", f"a multiple of {alignment}")
        if size < need or offset + need > buffer.size:
            raise GpuBufferError(name, f"{min(size, buffer.size - offset)} bytes", f"at least {need}")
        if buffer.usage & usage != usage:
            raise GpuBufferError(name, f"usage {buffer.usage}", f"a buffer made with {usage_name}")


def plan(problem: Problem, device: Device | None = None, *, algorithm: str | None = None, guard: str = "zero") -> Plan:
    """Chooses the best recipe for a problem on a device and compiles its pipelines.

    ``device`` defaults to the process's shared one; ``algorithm`` and ``guard`` are as for ``select``.
    Raises ``UnservedProblemError`` with the reasons where nothing serves the problem.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError("problem", f"a {type(problem).__name__}", "a Problem")
    device = device or default_device()
    selection = select(problem, device.profile, algorithm=algorithm, guard=guard)
    if selection.best is None:
        raise UnservedProblemError(problem, device.profile.name, selection.refusals)
    return Plan(selection, selection.best, device)


def _overlap(a: _Range, b: _Range) -> bool:
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size
