"""What the matrix kernels of the ``tiled`` algorithm have in common: blocks, chunks, head dims.

templates/lib/product.j2 is what their templates have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..problem.mask import MASK_KINDS
from ..problem.problem import MAX_HEAD_DIM
from .facts import Constant, Serves, Word, WorkgroupArray, f32, u32
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
class BlockVariant(Variant):
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
class GradientVariant(BlockVariant):
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
        return super(GradientVariant, self).summary + bound

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
            **super(GradientVariant, self).context,
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
