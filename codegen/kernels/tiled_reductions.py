"""The small kernels of the ``tiled`` algorithm: which keys each query sees, the terms of each row, and sums of parts.

templates/tiled/README.md has the whole algorithm and its words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..problem.mask import MASK_KINDS, Interval
from ..problem.problem import MAX_HEAD_DIM
from .facts import Binding, Count, Dispatch, Serves, WorkgroupArray, i32, u32
from .uniform_words import SIZES, call, stride_words
from .variant import Variant, param

MAX_ALIBI_HEADS = 256
"""What the slopes' uniform holds."""
MASK_TERMS = i32(*Interval().words)
PACKED_ROWS = 128
"""Rows of one packed tile."""


def storage(binding: int, name: str, type_: str, role: str = "", access: str = "read") -> Binding:
    return Binding(binding=binding, name=name, type=f"array<{type_}>", access=access, role=role or name)  # type: ignore[arg-type]


def slopes(binding: int) -> Binding:
    type_ = f"array<vec4<f32>, {MAX_ALIBI_HEADS // 4}>"
    return Binding(binding=binding, name="slopes", type=type_, access="uniform", role="alibi_slopes")


def terms_type(softcap: bool) -> str:
    """(factor, D), and for a softcap's derivative (factor, D, lse, slope)."""
    return "vec4<f32>" if softcap else "vec2<f32>"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionIntervals(Variant):
    """Which keys each query sees, and the hull of each block of queries. A thread owns a query."""

    kernel: ClassVar[str] = "attention_intervals"
    template: ClassVar[str] = "tiled/attention_intervals.wgsl.j2"

    rows: int = param("rows", "queries of a block", values=(16, 32, 64, 128, 256))
    documents: str = param(
        "", "bounds of a document: none, its start, or both", values=("", "documents", "wholedocuments"), default=""
    )
    kv_lengths: bool = param(
        "kvlengths", "each batch entry has its own number of keys", values=(False, True), default=False, tuned=False
    )

    @property
    def workgroup_size(self) -> int:
        return self.rows

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return (
            call(0, *u32("q_len", "kv_len", "key_cols"), *MASK_TERMS),
            storage(1, "intervals", "vec2<i32>", access="read_write"),
            *((storage(2, "doc_start", "u32"),) if self.documents else ()),
            *((storage(3, "kv_lengths", "u32"),) if self.kv_lengths else ()),
        )

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        hulls = WorkgroupArray(name="hull_tile", type="vec4<i32>", count=self.rows)
        return hulls, WorkgroupArray(name="before_tile", type="u32", count=self.rows)

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(x=Count(factors=("q_len",), divisor=self.rows), z=Count(factors=("batch",)))

    @property
    def serves(self) -> Serves:
        masks = ("documents",) if self.documents else tuple(mask for mask in MASK_KINDS if mask != "documents")
        return Serves(masks=masks, head_dim=(1, MAX_HEAD_DIM))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPack(Variant):
    """Q, dO, K and V of a strip's slots, turned: tiles of ``PACKED_ROWS`` positions, channel by channel.

    The scores kernel reads them as they lie. Strides and lengths end here: positions and channels past the ends are zeros. A
    thread turns 4 positions × 4 channels.
    """

    kernel: ClassVar[str] = "attention_pack"
    template: ClassVar[str] = "tiled/attention_pack.wgsl.j2"

    wg: int = param("wg", "threads of a workgroup", values=(64, 128, 256))
    vectorised: bool = param("vec4", "rows are read as vec4", values=(False, True), default=False, tuned=False)

    @property
    def workgroup_size(self) -> int:
        return self.wg

    @property
    def context(self) -> dict[str, object]:
        return {"packed_rows": PACKED_ROWS}

    @property
    def bindings(self) -> tuple[Binding, ...]:
        element = "vec4<f32>" if self.vectorised else "f32"
        tensors = tuple(storage(i, name, element) for i, name in enumerate(("q", "d_o", "k", "v")))
        return (
            *tensors,
            storage(4, "query_tiles", "vec4<f32>", access="read_write"),
            storage(5, "key_tiles", "vec4<f32>", access="read_write"),
            call(
                6,
                *SIZES,
                *u32("head_dim", "v_head_dim", "slot_first", "strip_slots", "strip_kv_slots"),
                *u32("channels", "v_channels", "d_o_tiles", "v_tiles"),
                *stride_words("q", "d_o", "k", "v"),
            ),
        )

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(
            x=Count(factors=("pack_threads",), divisor=self.wg), y=Count(factors=("strip_slots",)), z=Count(times=4)
        )

    @property
    def serves(self) -> Serves:
        return Serves(masks=MASK_KINDS, head_dim=(1, MAX_HEAD_DIM))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows(Variant):
    """For each row of a strip, what P is to be multiplied with (1/Σ P where only rounding keeps it from 1) and D.

    D is Σ P·dP / Σ P, which is more accurate than rowsum(d_o∘o) as long as the lse covers just these keys; where it covers
    more and ``given`` is ``o``, D is rowsum(d_o∘o). With ``delta`` it is the caller's. A thread owns a row.
    """

    kernel: ClassVar[str] = "attention_rows"
    template: ClassVar[str] = "tiled/attention_rows.wgsl.j2"

    wg: int = param("wg", "threads of a workgroup", values=(32, 64, 128, 256))
    given: str = param(
        "", "where D comes from: the scores, o, or the caller", values=("", "o", "delta"), default="", tuned=False
    )
    softcap: bool = param("softcap", "a row's lse is handed on too", values=(False, True), default=False, tuned=False)
    alibi: bool = param("alibi", "and its head's slope", values=(False, True), default=False, tuned=False)

    @property
    def workgroup_size(self) -> int:
        return self.wg

    @property
    def strided(self) -> tuple[str, ...]:
        """The caller's tensors that it reads."""
        given = {"": (), "o": ("o", "d_o"), "delta": ("delta",)}[self.given]
        return (*given, *(("lse",) if self.softcap or self.given else ()))

    @property
    def bindings(self) -> tuple[Binding, ...]:
        given = {
            "": (),
            "o": (storage(4, "o", "f32"), storage(5, "d_o", "f32")),
            "delta": (storage(4, "delta", "f32"),),
        }[self.given]
        sizes = u32("q_len", "heads", *(("v_head_dim",) if self.given == "o" else ()))
        strip = u32("slot_first", "row_first", "strip_rows", "spans", "batch", "query_rows", "key_cols", "span_keys")
        return (
            storage(0, "row_sums", "vec2<f32>"),
            storage(1, "intervals", "vec2<i32>"),
            storage(2, "row_terms", terms_type(self.softcap), access="read_write"),
            call(3, *sizes, *strip, *stride_words(*self.strided)),
            *given,
            *((storage(6, "lse", "f32"),) if "lse" in self.strided else ()),
            *((slopes(7),) if self.softcap and self.alibi else ()),
        )

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(x=Count(factors=("strip_rows",), divisor=self.wg), y=Count(factors=("strip_slots",)))

    @property
    def serves(self) -> Serves:
        return Serves(masks=MASK_KINDS, head_dim=(1, MAX_HEAD_DIM))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionReduce(Variant):
    """The sum of a gradient's parts, in their order, put where the gradient's rows lie. A thread owns a number, or four."""

    kernel: ClassVar[str] = "attention_reduce"
    template: ClassVar[str] = "tiled/attention_reduce.wgsl.j2"

    wg: int = param("wg", "threads of a workgroup", values=(32, 64, 128, 256))
    guard: str = param("", "what becomes of non-finite numbers", values=("zero", "propagate"), default="zero", tuned=False)
    strided: bool = param(
        "strided", "the gradient's rows lie where strides say", values=(False, True), default=False, tuned=False
    )
    vectorised: bool = param("vec4", "numbers go by vec4", values=(False, True), default=False, tuned=False)

    @property
    def workgroup_size(self) -> int:
        return self.wg

    @property
    def bindings(self) -> tuple[Binding, ...]:
        element = "vec4<f32>" if self.vectorised else "f32"
        strides = (*u32("total_dim", "total_heads", "total_length"), *stride_words("total")) if self.strided else ()
        return (
            storage(0, "parts_of", element, role="parts"),
            storage(1, "total", element, role="total", access="read_write"),
            call(2, *u32("count", "parts", "add"), *strides),
        )

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(x=Count(factors=("count",), divisor=self.wg * (4 if self.vectorised else 1)), flat=True)

    @property
    def serves(self) -> Serves:
        return Serves(masks=MASK_KINDS, head_dim=(1, MAX_HEAD_DIM))
