"""Variants that are not checked in: every family, each value of its parameters, tiles of several shapes, odd head dims."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from wgsl_attention.errors import VariantError
from wgsl_attention.kernels.original import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from wgsl_attention.kernels.original_masks import MODES, SHORT_MASKS
from wgsl_attention.kernels.rope import RopeKBackward, RopeQBackward
from wgsl_attention.kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from wgsl_attention.kernels.tiled_reductions import AttentionIntervals, AttentionPack, AttentionReduce, AttentionRows
from wgsl_attention.kernels.variant import Variant

BOTH = (False, True)
GUARDS = ("zero", "propagate")
PIPELINES = ("", "ahead", "double")
TERMS = tuple(itertools.product(BOTH, BOTH))
"""Softcap and ALiBi."""
ENDS = ((False, False), (True, True))
DIMS: tuple[dict[str, Any], ...] = (
    {"head_dim": 64},
    {"head_dim": 32},
    {"head_dim": 40, "v_head_dim": 24},
    {"head_dim": 32, "v_head_dim": 64},
    {"head_dim": 21},
    {"head_dim": 1},
    {"head_dim": 5, "v_head_dim": 64},
    {"head_dim": 256, "at_most": True},
    {"head_dim": 64, "v_head_dim": 32, "at_most": True},
)
TILES = tuple(
    dict(zip(("rows", "cols", "row_reg", "col_reg", "chunk"), shape, strict=True))
    for shape in (
        (64, 64, 8, 4, 16),
        (128, 128, 8, 8, 16),
        (32, 32, 4, 4, 8),
        (16, 16, 2, 4, 32),
        (32, 24, 4, 4, 16),
        (64, 32, 2, 4, 8),
        (64, 128, 16, 4, 16),
        (16, 128, 4, 8, 16),
    )
)


def others() -> dict[str, Variant]:
    """By name, in the order of the families."""
    return {variant.name: variant for variant in (*_original(), *_products(), *_reductions())}


def _original() -> Iterator[Variant]:
    dims: tuple[dict[str, Any], ...] = ({"head_dim": 40}, {"head_dim": 21}, {"head_dim": 100, "at_most": True})
    for given, guard, flag in itertools.product(dims, GUARDS, BOTH):
        for mask in MODES:
            for uniform in BOTH if mask.startswith("documents") else (False,):
                common = {**given, "guard": guard, "seg_uniform": uniform, "mask": mask, "wg": 64}
                yield AttentionBackward(**common, overwrite=flag)
                if mask in SHORT_MASKS:
                    yield AttentionBackwardShort(**common, max_seq=100, accumulate=flag)
        for mask in ("full", "causal"):
            yield AttentionBackwardShortDkdv(**given, guard=guard, mask=mask, wg=64, accumulate=flag)
    yield RopeQBackward(wg=32)
    yield RopeKBackward(wg=1024)


def _products() -> Iterator[Variant]:
    pairs = [
        *((dims, TILES[0], term) for dims in DIMS for term in TERMS),
        *((DIMS[0], tile, term) for tile in TILES for term in ENDS),
    ]
    ways = itertools.cycle((*GUARDS, *reversed(GUARDS))), itertools.cycle(itertools.product(PIPELINES, BOTH))
    for (dims, tile, (softcap, alibi)), guard, (pipeline, written_out) in zip(pairs, *ways, strict=False):
        common = {"softcap": softcap, "alibi": alibi, "guard": guard, "pipeline": pipeline, "written_out": written_out, **tile}
        for span in (1, 4):
            with contextlib.suppress(VariantError):  # a tile that this family does not take
                yield AttentionScores(**common, span=span)
        for joint in BOTH:
            with contextlib.suppress(VariantError):
                yield AttentionDkdv(**common, **dims, joint=joint, query_rows=64, key_cols=128)
        with contextlib.suppress(VariantError):
            yield AttentionDq(**common, **dims, query_rows=128, key_cols=128)


def _reductions() -> Iterator[Variant]:
    for documents, kv_lengths in itertools.product(("", "documents", "wholedocuments"), BOTH):
        yield AttentionIntervals(rows=32, documents=documents, kv_lengths=kv_lengths)
    for vectorised in BOTH:
        yield AttentionPack(wg=64, vectorised=vectorised)
    for given, (softcap, alibi) in itertools.product(("", "o", "delta"), TERMS):
        yield AttentionRows(wg=32, given=given, softcap=softcap, alibi=alibi)
    for guard, strided, vectorised in itertools.product(GUARDS, BOTH, BOTH):
        yield AttentionReduce(wg=64, guard=guard, strided=strided, vectorised=vectorised)
