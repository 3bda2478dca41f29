"""Which variants are checked in, and which others the package considers for a problem and renders on demand.

The checked-in set is the product that ``checked_in`` states: good defaults for every (kernel, mask, head_dim), for
every mask a variant that WebGPU's default limits and compatibility mode can serve, and what the shipped tuning tables name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from ..algorithms.tiled_layouts import LAYOUTS, choice
from ..kernels.original import MASKS, SHORT_MASKS, AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from ..kernels.rope import RopeKBackward, RopeQBackward
from ..kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from ..kernels.tiled_reductions import AttentionIntervals, AttentionReduce, AttentionRows
from ..kernels.variant import Variant
from ..problem.problem import MAX_HEAD_DIM

FAMILIES: dict[str, type[Variant]] = {
    family.kernel: family
    for family in (
        AttentionIntervals,
        AttentionScores,
        AttentionRows,
        AttentionDkdv,
        AttentionDq,
        AttentionReduce,
        AttentionBackward,
        AttentionBackwardShort,
        AttentionBackwardShortDkdv,
        RopeQBackward,
        RopeKBackward,
    )
}
"""Every family by its kernel's name."""

HEAD_DIMS = (32, 64, 80, 96, 128, 256)
"""Head dims with tiled variants of their own; in a browser the others are served by *at most* variants."""
BOUNDS: tuple[tuple[int, bool], ...] = ((64, False), (128, False), (MAX_HEAD_DIM, True))
"""(head_dim, at most) of the reference's kernels, which are the fall-back."""
COMPAT_WG = 128
"""Compatibility mode allows 128 threads."""
MAX_SEQS = (512, 1024)


def _streaming() -> Iterator[Variant]:
    for mask in MASKS:
        documents = mask.startswith("documents")
        for head_dim, at_most in BOUNDS:
            for seg_uniform in (False, True) if documents else (False,):
                yield AttentionBackward(wg=256, head_dim=head_dim, at_most=at_most, mask=mask, seg_uniform=seg_uniform)
        if not documents:  # nine storage buffers, or a 64 KiB uniform, are more than compatibility mode has
            yield AttentionBackward(wg=COMPAT_WG, head_dim=MAX_HEAD_DIM, at_most=True, mask=mask)


def _short() -> Iterator[Variant]:
    for mask in SHORT_MASKS:
        documents = mask == "documents"
        for head_dim, at_most in BOUNDS:
            for max_seq in MAX_SEQS:
                for seg_uniform in (False, True) if documents else (False,):
                    yield AttentionBackwardShort(
                        wg=256, max_seq=max_seq, head_dim=head_dim, at_most=at_most, mask=mask, seg_uniform=seg_uniform
                    )
    for mask in ("full", "causal"):
        for head_dim, at_most in BOUNDS:
            yield AttentionBackwardShortDkdv(wg=256, head_dim=head_dim, at_most=at_most, mask=mask)


def _shipped() -> Iterator[Variant]:
    """The kernels that the rows of tuned/*.json choose: a measurement without bounds checks holds for validated kernels only."""
    folder = files("wgsl_attention.selection").joinpath("tuned")
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else ():
        if entry.name.endswith(".json"):
            for row in json.loads(entry.read_text(encoding="utf-8"))["rows"]:
                for kernel in row["choice"]["kernels"].values():
                    params: dict[str, Any] = kernel["params"]
                    yield FAMILIES[kernel["kernel"]](**params)


def _tiled() -> Iterator[Variant]:
    spans = set()
    for layout in LAYOUTS.values():
        for head_dim in HEAD_DIMS:
            chosen = choice(layout, head_dim)
            yield from (chosen.scores, chosen.dkdv, chosen.dq)
            spans.add((chosen.scores.rows, chosen.scores.cols, chosen.scores.span * chosen.scores.cols))
    for variant in _shipped():
        yield variant
        if isinstance(variant, AttentionScores):
            spans.add((variant.rows, variant.cols, variant.span * variant.cols))
    fallback = choice(LAYOUTS["16k"], MAX_HEAD_DIM, at_most=True)
    yield from (fallback.scores, fallback.dkdv, fallback.dq)
    for rows, key_cols, span_keys in sorted(spans):
        for given in ("", "o", "delta"):
            yield AttentionRows(wg=64, rows=rows, key_cols=key_cols, span_keys=span_keys, given=given)
    for rows in sorted({rows for rows, *_ in spans}):
        for documents in ("", "documents", "wholedocuments"):
            for kv_lengths in (False, True):
                yield AttentionIntervals(rows=rows, documents=documents, kv_lengths=kv_lengths)
    yield AttentionReduce(wg=128)
    yield AttentionReduce(wg=128, strided=True)


def _rope() -> Iterator[Variant]:
    for wg in (64, 256):
        yield RopeQBackward(wg=wg)
        yield RopeKBackward(wg=wg)


@functools.cache
def checked_in() -> dict[str, Variant]:
    """The variants in ``generated/``, by name, sorted."""
    variants = (*_streaming(), *_short(), *_tiled(), *_rope())
    return dict(sorted({variant.name: variant for variant in variants}.items()))
