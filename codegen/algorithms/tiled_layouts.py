"""Blocks and register tiles for the tiled kernels: three layouts, for any head_dim.

What each was chosen by: on an H200, with the clocks up, ``48k`` was the fastest of a dozen for causal problems of 4096 positions
(head_dim 128) and 8192 (head_dim 64), and ``64x64`` for 512, 1024 and 2048. ``16k`` has the short texts: its products are
loops, which a software driver compiles quickly and runs as fast.

What decides it on that GPU, as measured: an SM has 64 KiB of workgroup memory for all its workgroups together, and 1 KiB of it
is lost to each. The compiler gives tiles of 8 × 8 some 200 registers, so that one workgroup of 256 threads fills an SM, and
nothing but its own pipeline hides its waiting: at 8192 positions, scores took 10 % longer with the next chunk in registers
alone than with a second chunk staged, and 23 % longer with a loop over the chunk than with text.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from ..errors import VariantError
from ..kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from ..kernels.tiled_reductions import AttentionIntervals, AttentionPack, AttentionReduce, AttentionRows
from ..kernels.variant import Variant
from ..problem.problem import MAX_HEAD_DIM
from .choice import Choice

Gradient = TypeVar("Gradient", AttentionDkdv, AttentionDq)
Form: TypeAlias = Literal["exact", "any", "at most"]
"""How the gradients' kernels know the head dims: as constants of the text; as constants that the pipeline is given, multiples of
four; or from the uniform, up to those given here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The kernels of a layout, with as many channels in the gradients' blocks as these have at most.

    Of ``dkdv`` and ``dq`` the first serves whose block holds all channels, else the last. ``parts`` is the choice's number.
    ``columns`` are the channels of a block in the checked-in texts, which serve any head_dim, and ``capped_columns`` those in
    the texts for a softcap, where such are checked in.
    """

    name: str
    scores: AttentionScores
    dkdv: tuple[AttentionDkdv, ...]
    dq: tuple[AttentionDq, ...]
    parts: int
    columns: tuple[int, ...] = (32, 48, 64, 80, 96, 128)
    capped_columns: tuple[int, ...] = ()


def _scores(rows: int, cols: int, row_reg: int, col_reg: int, chunk: int, **more: Any) -> AttentionScores:
    return AttentionScores(rows=rows, cols=cols, row_reg=row_reg, col_reg=col_reg, chunk=chunk, **more)


def _dkdv(block: tuple[int, int], rows: int, cols: int, row_reg: int, col_reg: int, chunk: int, **more: Any) -> AttentionDkdv:
    shape: dict[str, Any] = {"rows": rows, "cols": cols, "row_reg": row_reg, "col_reg": col_reg, "chunk": chunk}
    return AttentionDkdv(**shape, head_dim=0, query_rows=block[0], key_cols=block[1], **more)


def _dq(block: tuple[int, int], rows: int, cols: int, row_reg: int, col_reg: int, chunk: int, **more: Any) -> AttentionDq:
    shape: dict[str, Any] = {"rows": rows, "cols": cols, "row_reg": row_reg, "col_reg": col_reg, "chunk": chunk}
    return AttentionDq(**shape, head_dim=0, query_rows=block[0], key_cols=block[1], **more)


LARGE, SMALL = (128, 128), (64, 64)
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            name="48k",
            scores=_scores(128, 128, 8, 8, 16, pipeline="double", written_out=True, span=4),
            dkdv=(
                _dkdv(LARGE, 64, 64, 8, 4, 16, pipeline="double", written_out=True),
                _dkdv(LARGE, 128, 128, 8, 8, 16, pipeline="double", written_out=True),
            ),
            dq=(
                _dq(LARGE, 128, 64, 8, 8, 16, pipeline="ahead", written_out=True),
                _dq(LARGE, 128, 128, 8, 8, 32, pipeline="ahead", written_out=True),
            ),
            parts=2048,
        ),
        Layout(
            name="64x64",
            scores=_scores(64, 64, 4, 8, 16, pipeline="ahead", written_out=True),
            dkdv=(_dkdv(SMALL, 64, 64, 8, 4, 16, pipeline="double", written_out=True),),
            dq=(_dq(SMALL, 32, 64, 4, 4, 32, pipeline="ahead", written_out=True),),
            parts=512,
            columns=(32, 40, 48, 64),
        ),
        Layout(
            name="16k",
            scores=_scores(64, 64, 8, 4, 16),
            dkdv=(_dkdv(SMALL, 64, 64, 8, 4, 16, joint=True),),
            dq=(_dq(SMALL, 64, 64, 8, 4, 16),),
            parts=1024,
            columns=(32, 40, 48, 64),
            capped_columns=(32, 64),
        ),
    )
}


def choice(layout: str, head_dim: int, v_head_dim: int = 0, *, form: Form = "exact", capped: bool = False) -> Choice:
    """A layout's kernels for one pair of head dims; ``v_head_dim`` 0 is the same as head_dim. See ``Form``.

    ``capped``: with blocks for which there are texts with a softcap.
    """
    of = LAYOUTS[layout]
    if capped and of.capped_columns:
        of = replace(of, columns=of.capped_columns)
    v_dim = v_head_dim or head_dim
    dims: dict[str, Any] = {"head_dim": head_dim, "v_head_dim": 0 if v_dim == head_dim else v_dim, "at_most": form == "at most"}
    if form == "any":
        dims = {"head_dim": 0}
    dkdv = _for_channels(of, of.dkdv, max(head_dim, v_dim), form)
    dq = _for_channels(of, of.dq, head_dim, form)
    kernels = (of.scores, replace(dkdv, **dims), replace(dq, **dims))
    return Choice(algorithm="tiled", kernels=kernels, numbers={"parts": of.parts})


def _for_channels(layout: Layout, kernels: tuple[Gradient, ...], dim: int, form: Form) -> Gradient:
    """The kernel of a layout for so many channels, with an even division of them into blocks.

    Where a text serves any head_dim, one of the layout's ``columns``: that which leaves the fewest channels empty, the larger
    of two.
    """
    kernel = next((kernel for kernel in kernels if dim <= kernel.cols), kernels[-1])
    most, register = kernel.cols, kernel.col_reg
    if form == "at most":
        return replace(kernels[0], cols=64)
    if form == "any":
        known = [cols for cols in layout.columns if cols <= most and cols % register == 0]
        return replace(kernel, cols=min(known, key=lambda cols: (math.ceil(dim / cols) * cols, -cols)))
    blocks = math.ceil(dim / most)
    return replace(kernel, cols=max(16, math.ceil(math.ceil(dim / blocks) / register) * register))


@functools.cache
def layout_of(kernels: tuple[Variant, ...]) -> Mapping[str, Any]:
    """The arguments of ``choice`` that make these kernels; empty where none do."""
    head_dim, v_head_dim = (int(kernels[1].params[name]) for name in ("head_dim", "v_head_dim"))
    form: Form = "at most" if kernels[1].params["at_most"] else "exact" if head_dim else "any"
    dims = (
        [(head_dim, v_head_dim or head_dim)] if head_dim else [(dim, dim) for dim in (64, 128, *range(4, MAX_HEAD_DIM + 1, 4))]
    )
    for name in LAYOUTS:
        for dim, v_dim in dims:
            with contextlib.suppress(VariantError):
                if choice(name, dim, v_dim, form=form).kernels == kernels:
                    return {"layout": name, "head_dim": dim, "v_head_dim": v_dim, "form": form}
    return {}


def empty(choice: Choice, head_dim: int, v_head_dim: int) -> float:
    """The share of the channels of the gradients' blocks that lies past the head dims."""
    _, dkdv, dq = choice.kernels
    blocks = ((max(head_dim, v_head_dim), int(dkdv.params["cols"])), (head_dim, int(dq.params["cols"])))
    return max(1 - dim / (math.ceil(dim / cols) * cols) for dim, cols in blocks)


TERMS = ((True, False), (False, True), (True, True))
"""Softcap and ALiBi, where there is one of them."""


def checked_in() -> Iterator[Variant]:
    """The tiled variants in ``generated/``: for any head_dim that is a multiple of four, and for the others up to a bound.

    Those for a softcap or ALiBi are of one layout, the first that selection tries where a device has WebGPU's default limits.
    """
    choices = [choice(name, dim, form="any") for name in LAYOUTS for dim in (*LAYOUTS[name].columns, MAX_HEAD_DIM)]
    choices.append(choice("16k", MAX_HEAD_DIM, form="at most"))
    for chosen in choices:
        yield from chosen.kernels
    for layout in LAYOUTS.values():
        for cols in layout.capped_columns:
            for kernel, (softcap, alibi) in itertools.product(choice(layout.name, cols, form="any").kernels, TERMS):
                if softcap or isinstance(kernel, AttentionScores):  # see Tiled.suited
                    yield replace(kernel, softcap=softcap, alibi=alibi)  # type: ignore[call-arg]
    for given, (softcap, alibi) in itertools.product(("", "o", "delta"), ((False, False), *TERMS)):
        if softcap or not alibi:
            yield AttentionRows(wg=64, given=given, softcap=softcap, alibi=alibi)
    blocks = {v.rows for c in choices for v in c.kernels if isinstance(v, AttentionScores)}
    for rows in sorted(blocks):
        for documents in ("", "documents", "wholedocuments"):
            for kv_lengths in (False, True):
                yield AttentionIntervals(rows=rows, documents=documents, kv_lengths=kv_lengths)
    for vectorised in (True, False):
        yield AttentionPack(wg=128, vectorised=vectorised)
    for strided, vectorised in itertools.product((False, True), (False, True)):
        yield AttentionReduce(wg=128, strided=strided, vectorised=vectorised)
