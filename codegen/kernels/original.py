"""The attention kernels that keep the contract of the original, a hand-written file: entry points, bindings, uniforms, dispatch.

A batch is workgroup_id.z. ``params`` holds 32-bit words: the scale's (or the RoPE base's) bits first, then what a mask
needs; a variant reads only the words it names. Everything else a family is made of stands in its class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..problem.problem import MAX_HEAD_DIM
from .facts import Binding, Count, Dispatch, Serves, WorkgroupArray, f32, u32
from .original_masks import MODES, SHORT_MASKS
from .variant import WORKGROUP_SIZES, Rule, Variant, param

SEG_UNIFORM_POSITIONS = 16384
"""What fits a 64 KiB uniform."""

DIMS = u32("q_len", "heads", "kv_heads", "head_dim")
QUERY_DISPATCH = Dispatch(x=Count(factors=("q_len",)), y=Count(factors=("heads",)), z=Count(factors=("batch",)))
KEY_DISPATCH = Dispatch(x=Count(factors=("kv_len",)), y=Count(factors=("kv_heads",)), z=Count(factors=("batch",)))

HEAD_DIM_RULE = Rule(
    lambda v: 1 <= v.head_dim <= MAX_HEAD_DIM,
    f"head_dim {{head_dim}} is outside 1 to {MAX_HEAD_DIM}",
    f"const_assert(HEAD_DIM >= 1u && HEAD_DIM <= {MAX_HEAD_DIM}u);",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttentionVariant(Variant):
    """What the three attention kernels share: workgroup size and head_dim bound."""

    wg: int = param("wg", "threads of a workgroup", values=WORKGROUP_SIZES)

    @property
    def vectorised(self) -> bool:
        """Rows are read as vec4: the head_dim is a constant and a multiple of four."""
        return not self.at_most and self.head_dim % 4 == 0  # type: ignore[attr-defined]

    @property
    def element(self) -> str:
        """The WGSL type that a row of q, k, v, d_o is made of."""
        return "vec4<f32>" if self.vectorised else "f32"

    @property
    def channels(self) -> int:
        """Elements of a row, at most."""
        return int(self.head_dim // 4 if self.vectorised else self.head_dim)  # type: ignore[attr-defined]

    @property
    def context(self) -> dict[str, object]:
        return {"vectorised": self.vectorised, "element": self.element, "channels": self.channels}

    @property
    def workgroup_size(self) -> int:
        return self.wg

    @property
    def summary(self) -> str:
        bound = f" d≤{self.head_dim}" if self.at_most else ""  # type: ignore[attr-defined]
        return f"{self.in_words()}{bound}{' seg uniform' if getattr(self, 'seg_uniform', False) else ''}"

    def tag(self, field: str, tag: str) -> str:
        return "dmax" if field == "head_dim" and self.at_most else tag  # type: ignore[attr-defined]

    def _rows(self, binding: int, name: str, role: str, access: str = "read") -> Binding:
        return Binding(binding=binding, name=name, type=f"array<{self.element}>", access=access, role=role)  # type: ignore[arg-type]

    def _serves(self, masks: tuple[str, ...], max_seq: int | None = None) -> Serves:
        least = 1 if self.at_most else self.head_dim  # type: ignore[attr-defined]
        return Serves(masks=masks, head_dim=(least, self.head_dim), max_seq=max_seq)  # type: ignore[attr-defined]


def _head_dim() -> int:
    return param("d", "head_dim: a constant, or with at_most the bound of what comes in dims", tuned=False)  # type: ignore[no-any-return]


def _at_most() -> bool:
    return param("", "head_dim is a bound, the real one comes in dims", values=(False, True), default=False, tuned=False)  # type: ignore[no-any-return]


def _guard() -> str:
    return param(  # type: ignore[no-any-return]
        "",
        "zero: a non-finite probability or result becomes 0; propagate: something non-finite comes out where it went in",
        values=("zero", "propagate"),
        default="zero",
        tuned=False,
    )


def _seg_binding(uniform: bool) -> Binding:
    if uniform:
        return Binding(
            binding=10, name="seg", type=f"array<vec4<u32>, {SEG_UNIFORM_POSITIONS // 4}>", access="uniform", role="doc_start"
        )
    return Binding(binding=10, name="seg", type="array<u32>", access="read", role="doc_start")


def _uniforms(dims: int, mask: str) -> tuple[Binding, Binding]:
    return (
        Binding(binding=dims, name="dims", type="vec4<u32>", access="uniform", role="dims", words=DIMS),
        Binding(
            binding=dims + 1,
            name="params",
            type="vec4<u32>",
            access="uniform",
            role="params",
            words=(*f32("scale"), *MODES[mask].words),
        ),
    )


SEG_RULE = Rule(
    lambda v: not v.seg_uniform or v.mask.startswith("documents"), "seg_uniform without a documents mask (mask is {mask})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackward(_AttentionVariant):
    """d_q, d_k and d_v in one kernel, streaming over the keys; no bound on the length, no scratch.

    One workgroup owns one query of one head. It passes over the query's keys twice, ``wg`` at a time: once for the sums
    that give D, once for dS. d_q is its own; d_k and d_v are added to by compare-and-swap, so the caller clears them, and
    the order of the additions differs from run to run.
    """

    kernel: ClassVar[str] = "attention_backward"
    template: ClassVar[str] = "original/attention_backward.wgsl.j2"
    rules: ClassVar[tuple[Rule, ...]] = (HEAD_DIM_RULE, SEG_RULE)

    head_dim: int = _head_dim()
    at_most: bool = _at_most()
    mask: str = param("", "what a query sees", values=tuple(MODES), tuned=False)
    guard: str = _guard()
    overwrite: bool = param("overwrite", "d_q is overwritten, not added to", values=(False, True), default=False, tuned=False)
    seg_uniform: bool = param(
        "seguniform", "seg is a uniform buffer of 16384 positions", values=(False, True), default=False, tuned=False
    )

    @property
    def bindings(self) -> tuple[Binding, ...]:
        atomics = (
            Binding(binding=6, name="dK", type="array<atomic<u32>>", access="read_write", role="d_k"),
            Binding(binding=7, name="dV", type="array<atomic<u32>>", access="read_write", role="d_v"),
        )
        return (
            self._rows(0, "Q", "q"),
            self._rows(1, "K", "k"),
            self._rows(2, "V", "v"),
            self._rows(3, "dO", "d_o"),
            Binding(binding=4, name="LSE", type="array<f32>", access="read", role="lse"),
            self._rows(5, "dQ", "d_q", "read_write"),
            *atomics,
            *_uniforms(8, self.mask),
            *((_seg_binding(self.seg_uniform),) if self.mask.startswith("documents") else ()),
        )

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        return (
            WorkgroupArray(name="q_tile", type=self.element, count=self.channels),
            WorkgroupArray(name="do_tile", type=self.element, count=self.channels),
            WorkgroupArray(name="p_tile", type="f32", count=self.wg),
            WorkgroupArray(name="ds_tile", type="f32", count=self.wg),
            WorkgroupArray(name="partial_tile", type=self.element, count=max(self.wg, self.channels)),
            WorkgroupArray(name="sum_tile", type="vec2<f32>", count=self.wg),
        )

    @property
    def dispatch(self) -> Dispatch:
        return QUERY_DISPATCH

    @property
    def serves(self) -> Serves:
        return self._serves((self.mask,), SEG_UNIFORM_POSITIONS if self.seg_uniform else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackwardShort(_AttentionVariant):
    """d_q, and P and dS as scratch for the key-major companion; lengths up to MAX_SEQ.

    One workgroup owns one query of one head, and keeps that query's P and dP in workgroup memory, so nothing is computed
    twice. The scratch is (batch, seq, heads, seq); keys before the query's document hold zeros, keys past the query nothing.
    """

    kernel: ClassVar[str] = "attention_backward_short"
    template: ClassVar[str] = "original/attention_backward_short.wgsl.j2"
    rules: ClassVar[tuple[Rule, ...]] = (
        HEAD_DIM_RULE,
        SEG_RULE,
        Rule(
            lambda v: 1 <= v.max_seq <= 8192,
            "max_seq {max_seq} is outside 1 to 8192",
            "const_assert(MAX_SEQ >= 1u && MAX_SEQ <= 8192u);",
        ),
    )

    max_seq: int = param("maxseq", "the longest sequence; 8 bytes of workgroup memory for each position")
    head_dim: int = _head_dim()
    at_most: bool = _at_most()
    mask: str = param("", "what a query sees", values=SHORT_MASKS, tuned=False)
    guard: str = _guard()
    accumulate: bool = param("accumulate", "d_q is added to, not overwritten", values=(False, True), default=False, tuned=False)
    seg_uniform: bool = param(
        "seguniform", "seg is a uniform buffer of 16384 positions", values=(False, True), default=False, tuned=False
    )

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return (
            self._rows(0, "Q", "q"),
            self._rows(1, "K", "k"),
            self._rows(2, "V", "v"),
            self._rows(3, "dO", "d_o"),
            Binding(binding=4, name="LSE", type="array<f32>", access="read", role="lse"),
            self._rows(5, "dQ", "d_q", "read_write"),
            Binding(binding=6, name="P_out", type="array<f32>", access="read_write", role="p"),
            Binding(binding=7, name="dS_out", type="array<f32>", access="read_write", role="d_s"),
            *_uniforms(8, self.mask),
            *((_seg_binding(self.seg_uniform),) if self.mask == "documents" else ()),
        )

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        return (
            WorkgroupArray(name="q_tile", type=self.element, count=self.channels),
            WorkgroupArray(name="do_tile", type=self.element, count=self.channels),
            WorkgroupArray(name="p_tile", type="f32", count=self.max_seq),
            WorkgroupArray(name="dp_tile", type="f32", count=self.max_seq),
            WorkgroupArray(name="partial_tile", type=self.element, count=max(self.wg, self.channels)),
            WorkgroupArray(name="sum_tile", type="vec2<f32>", count=self.wg),
        )

    @property
    def dispatch(self) -> Dispatch:
        return QUERY_DISPATCH

    @property
    def serves(self) -> Serves:
        return self._serves((self.mask,), self.max_seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackwardShortDkdv(_AttentionVariant):
    """d_k and d_v from the P and dS that ``AttentionBackwardShort`` left.

    One workgroup owns one key of one kv head and sums over the queries that can see it, in every query head of the group.
    """

    kernel: ClassVar[str] = "attention_backward_short_dKdV"
    template: ClassVar[str] = "original/attention_backward_short_dkdv.wgsl.j2"
    rules: ClassVar[tuple[Rule, ...]] = (HEAD_DIM_RULE,)

    head_dim: int = _head_dim()
    at_most: bool = _at_most()
    mask: str = param("", "what a query sees: full, or nothing past itself", values=("full", "causal"), tuned=False)
    guard: str = _guard()
    accumulate: bool = param(
        "accumulate", "d_k and d_v are added to, not overwritten", values=(False, True), default=False, tuned=False
    )

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return (
            self._rows(0, "Q", "q"),
            self._rows(1, "dO", "d_o"),
            Binding(binding=2, name="P_in", type="array<f32>", access="read", role="p"),
            Binding(binding=3, name="dS_in", type="array<f32>", access="read", role="d_s"),
            self._rows(4, "dK", "d_k", "read_write"),
            self._rows(5, "dV", "d_v", "read_write"),
            Binding(binding=6, name="dims", type="vec4<u32>", access="uniform", role="dims", words=DIMS),
        )

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        count = max(self.wg, self.channels)
        return (
            WorkgroupArray(name="dk_tile", type=self.element, count=count),
            WorkgroupArray(name="dv_tile", type=self.element, count=count),
        )

    @property
    def dispatch(self) -> Dispatch:
        return KEY_DISPATCH

    @property
    def serves(self) -> Serves:
        return self._serves(("full",) if self.mask == "full" else ("causal", "documents"))
