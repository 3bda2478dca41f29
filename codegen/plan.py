"""Problem + Device → Plan: the ordered dispatches with their bindings, recorded into the caller's command encoder."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from . import catalog, manifest
from .device import Device, Pipeline, default_device
from .errors import ArgumentError, GpuBufferError, UnservedProblemError
from .kernels import SEG_UNIFORM_POSITIONS
from .problem import GRADIENTS, Problem
from .recipe import Recipe, Step
from .select import Selection, select
from .variant import Binding, RenderedVariant, Variant

BufferLike: TypeAlias = Any
"""A GPU buffer of the device's package, or (buffer, offset, size) in bytes."""

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
        self._uniform_doc_start = any(b.role == "doc_start" and b.access == "uniform" for b in bindings)
        self._scratch: dict[str, Any] = {}
        self._uniforms: dict[tuple[int, str, float], Any] = {}
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

    def record(self, encoder: Any, buffers: Mapping[str, BufferLike], scale: float | None = None) -> None:
        """Records the backward pass into ``encoder`` (a GPUCommandEncoder), in one compute pass; nothing is submitted.

        ``buffers`` maps the names in ``Plan.buffers`` to GPU buffers with the storage usage, or to (buffer, offset, size)
        in bytes: float32, row-major, laid out as ``Problem`` says; doc_start is uint32. Gradients that are cleared first
        need the copy-destination usage too. ``scale`` defaults to head_dim ** −0.5.

        Raises ``GpuBufferError`` or ``ArgumentError`` before anything is recorded.
        """
        value = resolve_scale(scale, self.problem.head_dim)
        ranges = self._check(buffers)
        with self._lock, self.device.guard("recording a plan"):
            for name, size in self.recipe.scratch.items():
                if name not in self._scratch:
                    self._scratch[name] = self.device.zeros(size, label=name)
                ranges[name] = _Range(self._scratch[name], 0, self._scratch[name].size)
            for name in self.recipe.cleared:
                encoder.clear_buffer(ranges[name].buffer, ranges[name].offset, self._sizes[name])
            if self._uniform_doc_start:
                ranges["doc_start"] = self._copy_to_uniform(encoder, ranges["doc_start"])
            groups = [self._bind_group(i, step, pipeline, ranges, value) for i, (step, pipeline, _) in enumerate(self._steps)]
            compute_pass = encoder.begin_compute_pass(label=self.recipe.algorithm)
            for (_, pipeline, counts), group in zip(self._steps, groups, strict=True):
                compute_pass.set_pipeline(pipeline.raw)
                compute_pass.set_bind_group(0, group)
                compute_pass.dispatch_workgroups(*counts)
            compute_pass.end()

    def _bind_group(self, index: int, step: Step, pipeline: Pipeline, ranges: Mapping[str, _Range], scale: float) -> Any:
        bound: dict[int, Any] = {}
        for binding in step.variant.bindings:
            if binding.words:
                key = index, binding.role, scale
                if key not in self._uniforms:
                    if len(self._uniforms) >= 64:  # a caller whose scale changes from call to call
                        self._uniforms.clear()
                    words = pack_words(binding, {**uniform_values(self.problem), "scale": scale, **step.sizes})
                    self._uniforms[key] = self.device.uniform(words, label=binding.role)
                bound[binding.binding] = self._uniforms[key]
            else:
                found = ranges[step.buffers.get(binding.role, binding.role)]
                bound[binding.binding] = (found.buffer, found.offset, found.size)
        return self.device.bind_group(pipeline, bound)

    def _copy_to_uniform(self, encoder: Any, source: _Range) -> _Range:
        size = 4 * SEG_UNIFORM_POSITIONS
        if "doc_start uniform" not in self._scratch:
            self._scratch["doc_start uniform"] = self.device.uniform(
                np.zeros(SEG_UNIFORM_POSITIONS, np.uint32), label="doc_start"
            )
        target = self._scratch["doc_start uniform"]
        encoder.copy_buffer_to_buffer(source.buffer, source.offset, target, 0, self._sizes["doc_start"])
        return _Range(target, 0, size)

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
        if name == "doc_start" and self._uniform_doc_start:
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


def resolve_scale(scale: float | None, head_dim: int) -> float:
    """``scale``, or head_dim ** −0.5 where it is ``None``; raises ``ArgumentError`` unless it is finite."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    try:
        value = float(scale)
    except (TypeError, ValueError):
        raise ArgumentError("scale", repr(scale), "a number") from None
    if not math.isfinite(value):
        raise ArgumentError("scale", value, "a finite number")
    return value


def uniform_values(problem: Problem) -> dict[str, float | int]:
    """What the words of a kernel's uniforms are called, and their values for a problem; terms that a mask lacks never bind."""
    mask, never = problem.interval, 1 << 30
    return {
        **problem.sizes,
        "lo_shift": -never if mask.lo_shift is None else mask.lo_shift,
        "hi_shift": never if mask.hi_shift is None else mask.hi_shift,
        "prefix": never if mask.prefix is None else mask.prefix,
        "prefix_shift": mask.prefix_shift,
    }


def pack_words(binding: Binding, values: Mapping[str, float | int]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A uniform's 32-bit words, as its binding names them."""
    words = np.zeros(len(binding.words), np.uint32)
    for i, word in enumerate(binding.words):
        name, kind = word.split(":")
        dtype = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}[kind]
        words[i] = np.array(values[name], dtype).view(np.uint32)
    return words


def _overlap(a: _Range, b: _Range) -> bool:
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size
