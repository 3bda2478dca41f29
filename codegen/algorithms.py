"""The recipes: which kernels, in which order, with which scratch, together give d_q, d_k and d_v.

A ``Recipe`` is made for one problem from one choice of variants and is plain data: it names buffers by role and counts
bytes and workgroups, and knows nothing of a device. ``refusals`` says why a device cannot run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .kernels import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from .problem import Problem
from .profile import DeviceProfile
from .variant import Variant

MAX_INDEX = 1 << 32
"""Kernels index elements in u32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One dispatch. ``buffers`` maps a binding's role to the buffer that goes there, where the two differ in name;
    ``sizes`` are factors of the dispatch formula beside the problem's."""

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
        return tuple(step.variant for step in self.steps)

    def buffer_bytes(self) -> dict[str, int]:
        """Bytes of every buffer that some step binds, by name, scratch included."""
        sizes = {**buffer_bytes(self.problem), **self.scratch}
        bound = {
            step.buffers.get(binding.role, binding.role)
            for step in self.steps
            for binding in step.variant.bindings
            if binding.role not in ("dims", "params")
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
        return tuple(lines)


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
        "d_q": 4 * queries * p.head_dim,
        "d_k": 4 * keys * p.head_dim,
        "d_v": 4 * keys * p.v_head_dim,
    }


def mask_modes(problem: Problem) -> tuple[str, ...]:
    """The mask modes of the reference's kernels that serve a problem, the most special first; empty where none does."""
    mask = problem.interval
    square = problem.q_len == problem.kv_len
    band = () if mask.prefix is not None or mask.doc_end else (("documents_window",) if mask.doc_start else ("window",))
    if mask.doc_start:
        return (("documents",) if mask.lo_shift is None and mask.hi_shift == 1 and not mask.doc_end else ()) + band
    if mask.prefix is not None:
        return ("prefix",) if mask.lo_shift is None and mask.hi_shift is None else ()
    if square and mask.lo_shift is None and mask.hi_shift is None:
        return ("full", *band)
    if square and mask.lo_shift is None and mask.hi_shift == 1:
        return ("causal", *band)
    return band


def _common_refusal(problem: Problem) -> str:
    if problem.head_dim != problem.v_head_dim:
        return f"head_dim {problem.head_dim} and v_head_dim {problem.v_head_dim} differ"
    if problem.kv_lengths:
        return "a number of keys for each batch entry (kv_lengths)"
    return ""


def streaming(problem: Problem, main: AttentionBackward) -> Recipe:
    """One kernel; d_k and d_v by atomic addition, so not repeatable to the bit. No bound on the length, no scratch."""
    cleared = tuple(
        name for name in ("d_q", "d_k", "d_v") if name not in problem.accumulate and not (name == "d_q" and main.overwrite)
    )
    return Recipe(algorithm="streaming", problem=problem, steps=(Step(variant=main),), cleared=cleared)


def streaming_refusal(problem: Problem) -> str:
    """Why the streaming kernel cannot serve a problem on any device; empty where it can."""
    if reason := _common_refusal(problem):
        return f"streaming does not take {reason}" if "kv_lengths" in reason else f"streaming: {reason}"
    return "" if mask_modes(problem) else f"streaming has no mask mode for {problem.mask}"


def short(problem: Problem, main: AttentionBackwardShort, dkdv: AttentionBackwardShortDkdv) -> Recipe:
    """Two kernels with P and dS as scratch, 4·batch·seq²·heads bytes each; repeatable to the bit."""
    scratch = 4 * problem.batch * problem.q_len * problem.kv_len * problem.heads
    return Recipe(
        algorithm="short",
        problem=problem,
        steps=(Step(variant=main), Step(variant=dkdv)),
        scratch={"p": scratch, "d_s": scratch},
    )


def short_refusal(problem: Problem) -> str:
    """Why the short kernels cannot serve a problem on any device; empty where they can."""
    if reason := _common_refusal(problem):
        return f"short does not take {reason}" if "kv_lengths" in reason else f"short: {reason}"
    if len(problem.accumulate & {"d_k", "d_v"}) == 1:
        return "short adds to d_k and d_v or overwrites both"
    if not set(mask_modes(problem)) & {"full", "causal", "documents"}:
        return f"short has no mask mode for {problem.mask} with q_len {problem.q_len} and kv_len {problem.kv_len}"
    return ""


REFUSALS: dict[str, Callable[[Problem], str]] = {"short": short_refusal, "streaming": streaming_refusal}
"""Every algorithm, with what rules it out whatever the device."""
