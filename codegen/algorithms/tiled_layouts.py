"""Blocks and register tiles for the tiled kernels: three layouts by the workgroup memory that they take, for any head_dim.

What each was chosen by: on an H200, with the clocks up, the tiles of ``48k`` were the fastest of about sixty for causal
problems of 2048 positions (head_dim 64) and 4096 (head_dim 128); those of ``16k`` are the fastest that fit WebGPU's default
limits and compatibility mode, and on llvmpipe no other was faster.

What decides it on that GPU, as measured: an SM has 64 KiB of workgroup memory for all its workgroups together, and 1 KiB of it
is lost to each, so that two fit up to 31 KiB, three up to 20; the compiler gives tiles of 8 × 8 some 200 to 240 registers, so
that one workgroup of 256 threads fills an SM; with all else taken out, the inner loops then reach 37 TFLOP/s (``dq``: 45).
Loads take 10 to 20 % of the time; fetching the next chunk meanwhile, into registers and a second buffer, gained nothing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..errors import VariantError
from ..kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from ..kernels.tiled_reductions import AttentionIntervals, AttentionReduce, AttentionRows
from ..kernels.variant import Variant
from ..problem.problem import MAX_HEAD_DIM
from .choice import Choice

Form: TypeAlias = Literal["exact", "any", "at most"]
"""How kernels know the head dims: as constants of the text; as constants that the pipeline is given, multiples of four; or from
the uniform, up to those given here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """(rows, cols, rows a thread, cols a thread) of each kernel's block; the gradients' cols are at most, by head_dim.

    ``workgroup_bytes`` is what no kernel of it exceeds; ``chunks`` are tried from the largest, of the scores' head_dim,
    dkdv's queries and dq's keys. ``parts`` is the choice's number. ``columns`` are the channels of a block in the
    checked-in texts, which serve any head_dim, and ``capped_columns`` those in the texts for a softcap, where such are checked in.
    """

    name: str
    workgroup_bytes: int
    scores: tuple[int, int, int, int]
    dkdv: tuple[int, int, int, int]
    dq: tuple[int, int, int, int]
    chunks: tuple[int, int, int]
    parts: int
    span: int = 1
    columns: tuple[int, ...] = (32, 48, 64, 80, 128)
    capped_columns: tuple[int, ...] = ()


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            name="48k",
            workgroup_bytes=49152,
            scores=(128, 128, 8, 8),
            dkdv=(128, 80, 8, 8),
            dq=(128, 80, 8, 4),
            chunks=(32, 16, 16),
            parts=2048,
        ),
        Layout(
            name="32k",
            workgroup_bytes=32768,
            scores=(64, 128, 8, 8),
            dkdv=(128, 80, 8, 8),
            dq=(64, 80, 8, 4),
            chunks=(16, 16, 16),
            parts=1024,
        ),
        Layout(
            name="16k",
            workgroup_bytes=16384,
            scores=(64, 64, 8, 4),
            dkdv=(64, 64, 8, 4),
            dq=(64, 64, 8, 4),
            chunks=(16, 16, 16),
            parts=1024,
            columns=(32, 40, 48, 64),
            capped_columns=(32, 64),
        ),
        # By tuning on an H200, for causal problems of 512 positions with head_dim 128 and few heads,
        Layout(
            name="64x32",
            workgroup_bytes=16384,
            scores=(64, 32, 4, 4),
            dkdv=(32, 64, 4, 4),
            dq=(64, 128, 8, 4),
            chunks=(32, 8, 16),
            parts=512,
        ),
        # of 1024 and 2048 with head_dim 64,
        Layout(
            name="64x64",
            workgroup_bytes=16384,
            scores=(64, 64, 4, 8),
            dkdv=(32, 64, 4, 4),
            dq=(64, 64, 8, 4),
            chunks=(16, 8, 16),
            parts=1024,
            span=2,
        ),
        # and of 8192 with head_dim 64.
        Layout(
            name="128x128",
            workgroup_bytes=49152,
            scores=(128, 128, 8, 4),
            dkdv=(64, 64, 4, 4),
            dq=(128, 64, 8, 4),
            chunks=(32, 16, 16),
            parts=4096,
            span=4,
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
    wide = max(head_dim, v_dim)
    dims: dict[str, Any] = {"head_dim": head_dim, "v_head_dim": 0 if v_dim == head_dim else v_dim, "at_most": form == "at most"}
    if form == "any":
        dims = {"head_dim": 0}
    rows, cols, row_reg, col_reg = of.scores
    scores = AttentionScores(
        rows=rows,
        cols=cols,
        row_reg=row_reg,
        col_reg=col_reg,
        span=of.span,
        chunk=_scores_chunk(of, head_dim, v_dim, form),
        **dims,
    )
    k_rows, k_most, k_row_reg, k_col_reg = of.dkdv
    if wide > 96 and k_rows > 64:  # twice as many channels and half as many keys: as many accumulators
        k_rows, k_most = 64, 128
    k_cols = _columns(of, wide, k_most, k_col_reg, form)
    chunk = next(c for c in (of.chunks[1], 8) if 8 * c * (k_rows + k_cols) <= of.workgroup_bytes)
    dkdv = AttentionDkdv(
        rows=k_rows, cols=k_cols, row_reg=k_row_reg, col_reg=k_col_reg, chunk=chunk, query_rows=rows, key_cols=cols, **dims
    )
    q_rows, q_most, q_row_reg, q_col_reg = of.dq
    dq = AttentionDq(
        rows=q_rows,
        cols=_columns(of, head_dim, q_most, q_col_reg, form),
        row_reg=q_row_reg,
        col_reg=q_col_reg,
        chunk=of.chunks[2],
        query_rows=rows,
        key_cols=cols,
        **dims,
    )
    return Choice(algorithm="tiled", kernels=(scores, dkdv, dq), numbers={"parts": of.parts})


def _scores_chunk(layout: Layout, head_dim: int, v_dim: int, form: Form) -> int:
    """The largest chunk that divides both head dims, so that none of it is empty; else 16, as far as the layout has room."""
    for chunk in (c for c in ((32, 16) if form == "any" else (32, 16, 8)) if c <= layout.chunks[0]):
        if head_dim % chunk == 0 and v_dim % chunk == 0:
            return chunk
    return min(16, layout.chunks[0])


def _columns(layout: Layout, dim: int, most: int, register: int, form: Form) -> int:
    """Channels of a block: an even division of ``dim`` into blocks of at most ``most``, and at least 16.

    Where a text serves any head_dim, one of the layout's ``columns``: that which leaves the fewest channels empty, the larger
    of two.
    """
    if form == "at most":
        return 64
    if form == "any":
        known = [cols for cols in layout.columns if cols <= most and cols % register == 0]
        return min(known, key=lambda cols: (math.ceil(dim / cols) * cols, -cols))
    blocks = math.ceil(dim / most)
    return max(16, math.ceil(math.ceil(dim / blocks) / register) * register)


@functools.cache
def layout_of(kernels: tuple[Variant, ...]) -> Mapping[str, Any]:
    """The arguments of ``choice`` that make these kernels; empty where none do."""
    head_dim, v_head_dim = (int(kernels[0].params[name]) for name in ("head_dim", "v_head_dim"))
    form: Form = "at most" if kernels[0].params["at_most"] else "exact" if head_dim else "any"
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


FIRST = ("48k", "32k", "16k")
"""The layouts that selection tries by itself; the others are what tuning tables name."""
TUNED: tuple[tuple[str, int, Form], ...] = (("64x32", 128, "exact"), ("64x64", 64, "exact"), ("128x128", 64, "any"))
"""The layouts of the shipped tuning tables' rows, with the head_dim that they were measured at, and the form.

On an H200, at 1024 positions, ``64x64`` took 0.319 ms where the pipeline gives head_dim, and a text for head_dim 64 had taken
0.288 ms; blocks of 128 take the same either way. ``64x32`` is taken for alike.
"""
TERMS = ((True, False), (False, True), (True, True))
"""Softcap and ALiBi, where there is one of them."""


def checked_in() -> Iterator[Variant]:
    """The tiled variants in ``generated/``: for any head_dim that is a multiple of four, and for the others up to a bound.

    Those for a softcap or ALiBi are of one layout, the first that selection tries where a device has WebGPU's default limits.
    """
    choices = [choice(name, dim, form="any") for name in FIRST for dim in (*LAYOUTS[name].columns, MAX_HEAD_DIM)]
    choices += [choice(layout, dim, form=form) for layout, dim, form in TUNED]
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
    yield AttentionReduce(wg=128)
    yield AttentionReduce(wg=128, strided=True)
