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

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from ..kernels.tiled_reductions import AttentionIntervals, AttentionReduce, AttentionRows
from ..kernels.variant import Variant
from ..problem.problem import MAX_HEAD_DIM
from .choice import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """(rows, cols, rows a thread, cols a thread) of each kernel's block; the gradients' cols are at most, by head_dim.

    ``workgroup_bytes`` is what no kernel of it exceeds; ``chunks`` are tried from the largest, of the scores' head_dim,
    dkdv's queries and dq's keys. ``parts`` is the choice's number.
    """

    name: str
    workgroup_bytes: int
    scores: tuple[int, int, int, int]
    dkdv: tuple[int, int, int, int]
    dq: tuple[int, int, int, int]
    chunks: tuple[int, int, int]
    parts: int
    span: int = 1


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
"""The first three are what selection tries by itself; the others are what tuning tables name."""


def choice(name: str, head_dim: int, v_head_dim: int = 0, *, at_most: bool = False) -> Choice:
    """A layout's kernels for one pair of head dims; ``v_head_dim`` 0 is the same as head_dim."""
    layout = LAYOUTS[name]
    v_dim = v_head_dim or head_dim
    dims: dict[str, Any] = {"head_dim": head_dim, "v_head_dim": 0 if v_dim == head_dim else v_dim, "at_most": at_most}
    rows, cols, row_reg, col_reg = layout.scores
    scores = AttentionScores(
        rows=rows,
        cols=cols,
        row_reg=row_reg,
        col_reg=col_reg,
        span=layout.span,
        chunk=_scores_chunk(layout, head_dim, v_dim),
        **dims,
    )
    wide = max(head_dim, v_dim)
    k_rows, k_most, k_row_reg, k_col_reg = layout.dkdv
    if wide > 96 and k_rows > 64:  # twice as many channels and half as many keys: as many accumulators
        k_rows, k_most = 64, 128
    k_cols = 64 if at_most else _columns(wide, k_most, k_col_reg)
    chunk = next(c for c in (layout.chunks[1], 8) if 8 * c * (k_rows + k_cols) <= layout.workgroup_bytes)
    dkdv = AttentionDkdv(
        rows=k_rows, cols=k_cols, row_reg=k_row_reg, col_reg=k_col_reg, chunk=chunk, query_rows=rows, key_cols=cols, **dims
    )
    q_rows, q_most, q_row_reg, q_col_reg = layout.dq
    q_cols = 64 if at_most else _columns(head_dim, q_most, q_col_reg)
    dq = AttentionDq(
        rows=q_rows,
        cols=q_cols,
        row_reg=q_row_reg,
        col_reg=q_col_reg,
        chunk=layout.chunks[2],
        query_rows=rows,
        key_cols=cols,
        **dims,
    )
    return Choice(algorithm="tiled", kernels=(scores, dkdv, dq), numbers={"parts": layout.parts})


def _scores_chunk(layout: Layout, head_dim: int, v_dim: int) -> int:
    """The largest chunk that divides both head dims, so that no channel needs a guard; else the layout's own."""
    for chunk in (c for c in (32, 16, 8) if c <= layout.chunks[0]):
        if head_dim % chunk == 0 and v_dim % chunk == 0:
            return chunk
    return min(16, layout.chunks[0])


def _columns(dim: int, most: int, register: int) -> int:
    """Channels of a block: an even division of ``dim`` into blocks of at most ``most``, and at least 16."""
    blocks = math.ceil(dim / most)
    return max(16, math.ceil(math.ceil(dim / blocks) / register) * register)


HEAD_DIMS = (32, 64, 80, 96, 128, 256)
"""Head dims with checked-in variants of their own; in a browser the others are served by *at most* variants."""


def checked_in() -> Iterator[Variant]:
    """The tiled variants in ``generated/``."""
    choices = [choice(name, head_dim) for name in ("48k", "32k", "16k") for head_dim in HEAD_DIMS]
    choices += [choice("64x32", 128), *(choice(name, 64) for name in ("64x64", "128x128"))]
    choices.append(choice("16k", MAX_HEAD_DIM, at_most=True))
    for chosen in choices:
        yield from chosen.kernels
    blocks = {(v.rows, v.cols, v.span * v.cols) for c in choices for v in c.kernels if isinstance(v, AttentionScores)}
    for rows, key_cols, span_keys in sorted(blocks):
        for given in ("", "o", "delta"):
            yield AttentionRows(wg=64, rows=rows, key_cols=key_cols, span_keys=span_keys, given=given)
    for rows in sorted({rows for rows, *_ in blocks}):
        for documents in ("", "documents", "wholedocuments"):
            for kv_lengths in (False, True):
                yield AttentionIntervals(rows=rows, documents=documents, kv_lengths=kv_lengths)
    yield AttentionReduce(wg=128)
    yield AttentionReduce(wg=128, strided=True)
