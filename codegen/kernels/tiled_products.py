"""The matrix kernels of the ``tiled`` algorithm: five products, no atomics, no scratch that grows with the length squared.

templates/tiled/README.md has the whole algorithm, kernel by kernel, and says what a slot, strip, span, hull and part is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..problem.mask import MASK_KINDS
from ..problem.problem import MAX_HEAD_DIM
from .facts import Binding, Constant, Count, Dispatch, Serves, Word, WorkgroupArray, f32, u32
from .tiled_reductions import PACKED_ROWS, slopes, storage, terms_type
from .uniform_words import SIZES, STRIP, call, stride_words
from .variant import Rule, Variant, param

DIM_RULE = Rule(
    lambda v: v.head_dim <= MAX_HEAD_DIM and v.v_head_dim <= MAX_HEAD_DIM and (v.head_dim or not (v.v_head_dim or v.at_most)),
    f"head_dim {{head_dim}} or v_head_dim {{v_head_dim}} is outside 1 to {MAX_HEAD_DIM} (head_dim 0 leaves both to the pipeline)",
)
HEAD_DIMS = {
    size: Constant(name=size.upper(), size=size, least=4, most=MAX_HEAD_DIM, multiple=4) for size in ("head_dim", "v_head_dim")
}
"""What a text without head dims of its own leaves to the pipeline."""
THREADS_RULE = Rule(
    lambda v: v.rows % v.row_reg == 0 and v.cols % v.col_reg == 0 and 32 <= v.workgroup_size <= 1024,
    "a block of {rows} × {cols} does not divide into {row_reg} × {col_reg} a thread, or not into 32 to 1024 threads",
)


FOURS_RULE = Rule(lambda v: v.row_reg % 4 == 0, "{row_reg} rows a thread; want a multiple of 4")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TiledVariant(Variant):
    """What the matrix kernels share: a block of rows × cols, row_reg × col_reg of it in each thread's registers, and a stream of
    chunks of the summed axis that goes through workgroup memory."""

    rows: int = param("rows", "rows of the block that a workgroup owns", values=(16, 32, 64, 128))
    cols: int = param("cols", "its columns")
    row_reg: int = param("rr", "rows in one thread's registers", values=(2, 4, 8, 16))
    col_reg: int = param("cr", "columns in one thread's registers", values=(4, 8))
    chunk: int = param("chunk", "of the summed axis, staged in workgroup memory at a time", values=(8, 16, 32))
    pipeline: str = param(
        "",
        "where the next chunk is while one is multiplied: in memory, in registers, or in registers with two chunks staged",
        values=("", "ahead", "double"),
        default="",
    )
    written_out: bool = param("wo", "the products over a chunk are text without a loop", values=(False, True), default=False)
    guard: str = param("", "what becomes of non-finite numbers", values=("zero", "propagate"), default="zero", tuned=False)
    softcap: bool = param("softcap", "scores are c·tanh(S/c)", values=(False, True), default=False, tuned=False)
    alibi: bool = param(
        "alibi", "scores fall with the distance, by a slope for each head", values=(False, True), default=False, tuned=False
    )

    @property
    def summary(self) -> str:
        more = self.in_words("rows", "cols", "row_reg", "col_reg")
        return f"{self.rows}×{self.cols} {self.row_reg}×{self.col_reg} {more}"

    @property
    def row_threads(self) -> int:
        return self.rows // self.row_reg

    @property
    def col_threads(self) -> int:
        return self.cols // self.col_reg

    @property
    def workgroup_size(self) -> int:
        return self.row_threads * self.col_threads

    @property
    def chunk_vecs(self) -> int:
        """vec4 elements of one chunk's operands in workgroup memory."""
        return self.chunk * (self.rows + self.cols) // 4

    @property
    def tile(self) -> WorkgroupArray:
        """The staged operands: of one chunk, or of two."""
        return WorkgroupArray(name="tile", type="vec4<f32>", count=self.chunk_vecs * (2 if self.pipeline == "double" else 1))

    @property
    def context(self) -> dict[str, object]:
        return {
            "threads": self.workgroup_size,
            "row_threads": self.row_threads,
            "col_threads": self.col_threads,
            "chunk_vecs": self.chunk_vecs,
        }

    @property
    def cap_words(self) -> tuple[Word, ...]:
        """Words of ``call`` that a softcap adds."""
        return f32("softcap") if self.softcap else ()

    @property
    def serves(self) -> Serves:
        return Serves(masks=MASK_KINDS, head_dim=(1, MAX_HEAD_DIM))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionScores(_TiledVariant):
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
class _GradientVariant(_TiledVariant):
    """What the gradients' kernels share: they read blocks of scores, and rows of the caller's tensors as these lie."""

    head_dim: int = param(
        "d", "head_dim: a constant, 0 where the pipeline gives it, or with at_most the bound of what comes in call", tuned=False
    )
    v_head_dim: int = param("v", "v_head_dim where it differs from head_dim", default=0, tuned=False)
    at_most: bool = param(
        "", "head dims are bounds, the real ones come in call", values=(False, True), default=False, tuned=False
    )
    query_rows: int = param("qrows", "queries of a block of scores", values=(16, 32, 64, 128), follows=True)
    key_cols: int = param("kcols", "keys of a block of scores", follows=True)

    @property
    def summary(self) -> str:
        bound = f" d≤{self.head_dim}" if self.at_most else "" if self.head_dim else " any d"
        return super(_GradientVariant, self).summary + bound

    def tag(self, field: str, tag: str) -> str:
        if field == "head_dim" and not self.head_dim:
            return ""
        return tag + "max" if field in ("head_dim", "v_head_dim") and self.at_most else tag

    @property
    def constants(self) -> tuple[Constant, ...]:
        return () if self.head_dim else tuple(HEAD_DIMS[size] for size in self.sizes_read)

    @property
    def sizes_read(self) -> tuple[str, ...]:
        """The head dims that the kernel's text needs."""
        return tuple(HEAD_DIMS)

    @property
    def v_dim(self) -> int:
        return self.v_head_dim or self.head_dim

    @property
    def vectorised(self) -> bool:
        """Rows of the tensors are read as vec4: head dims are constants and multiples of four."""
        return not self.at_most and self.head_dim % 4 == 0 and self.v_dim % 4 == 0

    @property
    def element(self) -> str:
        return "vec4<f32>" if self.vectorised else "f32"

    @property
    def context(self) -> dict[str, object]:
        return {
            **super(_GradientVariant, self).context,
            "v_dim": self.v_dim,
            "any_dim": not self.head_dim,
            "vectorised": self.vectorised,
        }

    def dim_words(self, *names: str) -> tuple[Word, ...]:
        """Words of ``call`` for head dims, where they are no constants."""
        return u32(*names) if self.at_most else ()

    @property
    def serves(self) -> Serves:
        if not self.head_dim:
            return Serves(masks=MASK_KINDS, head_dim=(4, MAX_HEAD_DIM))
        return Serves(masks=MASK_KINDS, head_dim=(1 if self.at_most else self.head_dim, self.head_dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDkdv(_GradientVariant):
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
class AttentionDq(_GradientVariant):
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
