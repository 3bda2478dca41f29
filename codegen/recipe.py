"""Recipes as data: ordered dispatches, the buffers they bind, and the scratch between them.

A ``Recipe`` is made for one problem from one choice of variants. It names buffers by role and counts bytes and
workgroups, and knows nothing of a device; ``refusals`` says why a device cannot run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .problem import Problem
from .profile import DeviceProfile
from .variant import Variant

MAX_INDEX = 1 << 32
"""Kernels index elements in u32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One dispatch.

    ``buffers`` maps a binding's role to the buffer that goes there, where the two differ in name; ``sizes`` are factors
    of the dispatch formula, and words of the kernel's uniforms, beside the problem's.
    """

    variant: Variant
    buffers: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def workgroups(self, problem: Problem) -> tuple[int, int, int]:
        return self.variant.dispatch.workgroups({**problem.sizes, **self.sizes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Ordered steps, the scratch they share (name → bytes) and the caller's gradients that are cleared first."""

    algorithm: str
    problem: Problem
    steps: tuple[Step, ...]
    scratch: Mapping[str, int] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The distinct variants, in order of first use."""
        return tuple(dict.fromkeys(step.variant for step in self.steps))

    def buffer_bytes(self) -> dict[str, int]:
        """Bytes of every buffer that some step binds, by name, scratch included."""
        sizes = {**buffer_bytes(self.problem), **self.scratch}
        bound = {
            step.buffers.get(binding.role, binding.role)
            for step in self.steps
            for binding in step.variant.bindings
            if not binding.words
        }
        return {name: sizes[name] for name in sorted(bound)}

    def refusals(self, profile: DeviceProfile) -> tuple[str, ...]:
        """Why this recipe cannot run on a device, one line each; empty where it can."""
        lines = [f"{v.name}: {line}" for v in self.variants for line in v.shortfalls(profile)]
        limits = profile.limits
        uniform = {b.role for v in self.variants for b in v.bindings if b.access == "uniform"}
        for name, size in self.buffer_bytes().items():
            limit = limits.max_uniform_buffer_binding_size if name in uniform else limits.max_storage_buffer_binding_size
            limit = min(limit, limits.max_buffer_size)
            if size > limit:
                lines.append(f"{name} takes {size} bytes, the device binds {limit}")
            if size // 4 >= MAX_INDEX:
                lines.append(f"{name} has {size // 4} elements, more than a 32-bit index reaches")
        most = limits.max_compute_workgroups_per_dimension
        for step in self.steps:
            counts = step.workgroups(self.problem)
            if max(counts) > most:
                lines.append(f"{step.variant.name}: {counts} workgroups, the device takes {most} in a dimension")
        return tuple(dict.fromkeys(lines))


def buffer_bytes(problem: Problem) -> dict[str, int]:
    """Bytes of each of the caller's buffers, by role."""
    p = problem
    queries, keys = p.batch * p.q_len * p.heads, p.batch * p.kv_len * p.kv_heads
    return {
        "q": 4 * queries * p.head_dim,
        "k": 4 * keys * p.head_dim,
        "v": 4 * keys * p.v_head_dim,
        "o": 4 * queries * p.v_head_dim,
        "d_o": 4 * queries * p.v_head_dim,
        "lse": 4 * queries,
        "delta": 4 * queries,
        "doc_start": 4 * p.batch * p.q_len,
        "kv_lengths": 4 * p.batch,
        "alibi_slopes": 4 * p.heads,
        "d_q": 4 * queries * p.head_dim,
        "d_k": 4 * keys * p.head_dim,
        "d_v": 4 * keys * p.v_head_dim,
    }
