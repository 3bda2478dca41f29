"""The matrix kernels of the ``tiled`` algorithm: five products, no atomics, no scratch that grows with the length squared.

templates/tiled/README.md has the whole algorithm, kernel by kernel, and says what a slot, strip, span, hull and part is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from .facts import Binding, Count, Dispatch, WorkgroupArray, f32, u32
from .tiled_blocks import DIM_RULE, FOURS_RULE, THREADS_RULE, BlockVariant, GradientVariant
from .tiled_reductions import PACKED_ROWS, slopes, storage, terms_type
from .uniform_words import SIZES, STRIP, call, stride_words
from .variant import Rule, param


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionScores(BlockVariant):
    """P and dP of a strip, and each row's Σ P and Σ P·dP over a span of keys; for any head dims.

    One workgroup owns ``rows`` queries of one slot and ``span`` blocks of ``cols`` keys. Blocks that no query of it sees are
    not visited, and not written. Q, dO, K and V come packed, see ``AttentionPack``.
    """

    kernel: ClassVar[str] = "attention_scores"
    template: ClassVar[str] = "tiled/attention_scores.wgsl.j2"
    rules: ClassVar[tuple[Rule, ...]] = (
        THREADS_RULE,
        FOURS_RULE,
        Rule(lambda v: PACKED_ROWS % v.cols == 0, f"blocks of {{cols}} keys do not divide packed tiles of {PACKED_ROWS}"),
    )

    span: int = param("span", "blocks of keys that one workgroup visits", values=(1, 2, 4, 8, 16), default=1)

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return (
            storage(0, "query_tiles", "vec4<f32>"),
            storage(1, "key_tiles", "vec4<f32>"),
            storage(2, "lse", "f32"),
            storage(3, "intervals", "vec2<i32>"),
            storage(4, "p_tiles", "vec4<f32>", access="read_write"),
            storage(5, "d_p_tiles", "vec4<f32>", access="read_write"),
            storage(6, "row_sums", "vec2<f32>", access="read_write"),
            call(
                7,
                *SIZES,
                *f32("scale"),
                *STRIP,
                *u32("spans", "batch", "channels", "v_channels", "d_o_tiles", "v_tiles"),
                *stride_words("lse"),
                *self.cap_words,
            ),
            *((slopes(8),) if self.alibi else ()),
        )

    @property
    def context(self) -> dict[str, object]:
        return {**super(AttentionScores, self).context, "packed_rows": PACKED_ROWS}

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        sums = self.rows // 2 * self.col_threads
        return (replace(self.tile, count=max(self.tile.count, sums)),)

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(
            x=Count(factors=("spans",)),
            y=Count(factors=("strip_rows",), divisor=self.rows),
            z=Count(factors=("strip_slots",)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDkdv(GradientVariant):
    """d_k and d_v of a strip: dK = dSᵀ·Q and dV = Pᵀ·dO, summed over the strip's queries and a part of the group's heads.

    One workgroup owns ``rows`` keys and ``cols`` channels of one kv head, of d_k or of d_v, or with ``joint`` of both.
    ``query_rows`` and ``key_cols`` are the scores kernel's ``rows`` and ``cols``.
    """

    kernel: ClassVar[str] = "attention_dkdv"
    template: ClassVar[str] = "tiled/attention_dkdv.wgsl.j2"
    rules: ClassVar[tuple[Rule, ...]] = (
        DIM_RULE,
        THREADS_RULE,
        FOURS_RULE,
        Rule(lambda v: v.query_rows % v.chunk == 0, "chunks of {chunk} queries do not divide blocks of {query_rows}"),
        Rule(
            lambda v: v.pipeline != "double" or v.query_rows > v.chunk,
            "with the pipeline double, blocks of {query_rows} queries take chunks of less than {chunk}",
        ),
        Rule(lambda v: v.key_cols % v.rows == 0, "{rows} keys do not divide blocks of {key_cols}"),
    )

    joint: bool = param("joint", "a workgroup makes d_k and d_v, and reads P and dP once", values=(False, True), default=False)

    @property
    def chunk_vecs(self) -> int:
        return (2 if self.joint else 1) * self.chunk * (self.rows + self.cols) // 4

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return (
            storage(0, "q", self.element),
            storage(1, "d_o", self.element),
            storage(2, "p_tiles", "vec4<f32>"),
            storage(3, "d_p_tiles", "vec4<f32>"),
            storage(4, "row_terms", terms_type(self.softcap)),
            storage(5, "intervals", "vec2<i32>"),
            storage(6, "d_k", self.element, access="read_write"),
            storage(7, "d_v", self.element, access="read_write"),
            call(
                8,
                *SIZES,
                *self.dim_words("head_dim", "v_head_dim"),
                *f32("scale"),
                *STRIP,
                *u32("strip_slots", "batch"),
                *u32("head_parts", "query_parts", "add_k", "add_v"),
                *stride_words("q", "d_o"),
                *stride_words("d_k", "d_v", parts=True),
                *self.cap_words,
            ),
        )

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        return (self.tile,)

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(
            x=Count(factors=("strip_kv_slots", "head_parts", "query_parts")),
            y=Count(factors=("kv_len",), divisor=self.rows),
            z=Count(factors=("widest_head_dim",), divisor=self.cols, times=1 if self.joint else 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDq(GradientVariant):
    """d_q of a strip: dQ = dS·K. One workgroup owns ``rows`` queries and ``cols`` channels of one slot.

    ``query_rows`` and ``key_cols`` are the scores kernel's ``rows`` and ``cols``.
    """

    kernel: ClassVar[str] = "attention_dq"
    template: ClassVar[str] = "tiled/attention_dq.wgsl.j2"
    rules: ClassVar[tuple[Rule, ...]] = (
        DIM_RULE,
        THREADS_RULE,
        Rule(lambda v: v.query_rows % v.rows == 0, "{rows} rows do not divide blocks of {query_rows} queries"),
        Rule(lambda v: v.key_cols % v.chunk == 0, "chunks of {chunk} keys do not divide blocks of {key_cols}"),
    )

    @property
    def sizes_read(self) -> tuple[str, ...]:
        return ("head_dim",)

    @property
    def row_stride(self) -> int:
        """vec4 elements of a staged row of dS; one more than the chunk, against bank conflicts."""
        return self.chunk // 4 + 1

    @property
    def chunk_vecs(self) -> int:
        return self.rows * self.row_stride + self.chunk * self.cols // 4

    @property
    def bindings(self) -> tuple[Binding, ...]:
        return (
            storage(0, "k", self.element),
            storage(1, "p_tiles", "vec4<f32>"),
            storage(2, "d_p_tiles", "vec4<f32>"),
            storage(3, "row_terms", terms_type(self.softcap)),
            storage(4, "intervals", "vec2<i32>"),
            storage(5, "d_q", self.element, access="read_write"),
            call(
                6,
                *SIZES,
                *self.dim_words("head_dim"),
                *f32("scale"),
                *STRIP,
                *u32("batch", "key_parts", "add_q"),
                *stride_words("k"),
                *stride_words("d_q", parts=True),
                *self.cap_words,
            ),
        )

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        return (self.tile,)

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(
            x=Count(factors=("strip_slots", "key_parts")),
            y=Count(factors=("strip_rows",), divisor=self.rows),
            z=Count(factors=("head_dim",), divisor=self.cols),
        )
