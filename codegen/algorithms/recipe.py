"""Recipes as data: ordered dispatches, the buffers they bind, and the scratch between them.

A ``Recipe`` is made for one problem from one choice of variants. It names buffers by role and counts bytes and
workgroups, and knows nothing of a device; ``refusals`` says why a device cannot run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.facts import Binding
from ..kernels.variant import Variant
from ..problem.strides import apart, scatter
from ..problem.task import MAX_INDEX, Task
from ..profile import DeviceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One dispatch.

    ``buffers`` maps a binding's role to the buffer that goes there, where the two differ in name; ``sizes`` are factors
    of the dispatch formula, and words of the kernel's uniforms, beside the problem's.
    """

    variant: Variant
    buffers: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def buffer_of(self, binding: Binding) -> str:
        """The name of the buffer that a binding takes."""
        return self.buffers.get(binding.role, binding.role)

    def workgroups(self, problem: Task) -> tuple[int, int, int]:
        return self.variant.dispatch.workgroups({**problem.sizes, **self.sizes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Ordered steps, the scratch they share (name → bytes) and the caller's outputs that are cleared first."""

    algorithm: str
    problem: Task
    steps: tuple[Step, ...]
    scratch: Mapping[str, int] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The distinct variants, in order of first use."""
        return tuple(dict.fromkeys(step.variant for step in self.steps))

    @property
    def label(self) -> str:
        """The algorithm and its kernels, for people."""
        return f"{self.algorithm}: {' + '.join(variant.name for variant in self.variants)}"

    def buffer_bytes(self) -> dict[str, int]:
        """Bytes of every buffer that some step binds, by name, scratch included."""
        sizes = {**self.problem.buffer_bytes, **self.scratch}
        bound = {step.buffer_of(binding) for step in self.steps for binding in step.variant.bindings if not binding.words}
        return {name: sizes[name] for name in sorted(bound)}

    def clash(self, name: str, offset: int, other: str, other_offset: int) -> str:
        """What two outputs in one buffer, at these offsets in bytes, need instead; empty where they may be there.

        They may where they share no element, and no kernel binds both: WebGPU has no two bindings that overlap and are written.
        """
        p = self.problem
        one, two = p.strides_of(name).moved(offset // 4), p.strides_of(other).moved(other_offset // 4)
        if not apart(one, p.shapes[name], two, p.shapes[other]):
            return "a buffer of its own, or places of its own there"
        for step in self.steps:
            if {name, other} <= {step.buffer_of(binding) for binding in step.variant.bindings}:
                return f"a buffer of its own, since {step.variant.kernel} writes both"
        return ""

    def refusals(self, profile: DeviceProfile) -> tuple[str, ...]:
        """Why this recipe cannot run on a device, one line each; empty where it can."""
        lines = [f"{v.name}: {line}" for v in self.variants for line in v.shortfalls(profile)]
        limits = profile.limits
        uniform = {b.role for v in self.variants for b in v.bindings if b.access == "uniform"}
        for name, size in self.buffer_bytes().items():
            limit = limits.max_uniform_buffer_binding_size if name in uniform else limits.binding_bytes
            if size > limit:
                lines.append(f"{name} takes {size} bytes, the device binds {limit}")
            if size // 4 >= MAX_INDEX:
                lines.append(f"{name} has {size // 4} elements, more than a 32-bit index reaches")
        lines += [line for step in self.steps for line in _stray(step, self.problem)] if self.problem.strides else []
        most = limits.max_compute_workgroups_per_dimension
        for step in self.steps:
            counts = step.workgroups(self.problem)
            if max(counts) > most:
                lines.append(f"{step.variant.name}: {counts} workgroups, the device takes {most} in a dimension")
        return tuple(dict.fromkeys(lines))


def placed(problem: Task, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """What the buffer of a tensor, or of any other array of a call, holds: ``array`` where the problem has its rows."""
    return scatter(array, problem.strides_of(name)) if name in dict(problem.strides) else np.ascontiguousarray(array)


def _stray(step: Step, problem: Task) -> Iterator[str]:
    """What a step's kernel does not take of the problem's strides."""
    strided = dict(problem.strides)
    for binding in step.variant.bindings:
        name = step.buffer_of(binding)
        if name not in strided:
            continue
        words = {word.name for b in step.variant.bindings for word in b.words}
        if f"{binding.role}.row" not in words:
            yield f"{step.variant.name}: it takes {name} without gaps only, not {strided[name]}"
        elif "vec4" in binding.type and not strided[name].multiples_of(4):
            yield f"{step.variant.name}: it takes {name} by vec4, and not every number of {strided[name]} is a multiple of 4"
