"""Which variants are checked in, and which others the package considers for a problem and renders on demand.

The checked-in set is the product that ``checked_in`` states: good defaults for every (kernel, mask, head_dim), and for
every mask a variant that WebGPU's default limits and compatibility mode can serve.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from .kernels import (
    MASKS,
    SHORT_MASKS,
    AttentionBackward,
    AttentionBackwardShort,
    AttentionBackwardShortDkdv,
    RopeKBackward,
    RopeQBackward,
)
from .problem import MAX_HEAD_DIM
from .variant import Variant

HEAD_DIMS = (32, 64, 80, 96, 128)
"""Head dims with variants of their own; the others are served by *at most* variants."""
BOUNDS: tuple[tuple[int, bool], ...] = (*((d, False) for d in HEAD_DIMS), (MAX_HEAD_DIM, True))
FEW_BOUNDS: tuple[tuple[int, bool], ...] = ((64, False), (128, False), (MAX_HEAD_DIM, True))
COMPAT_WG = 128
"""Compatibility mode allows 128 threads."""
MAX_SEQS = (512, 1024)


def _streaming() -> Iterator[Variant]:
    for mask in MASKS:
        documents = mask.startswith("documents")
        for head_dim, at_most in BOUNDS if mask in SHORT_MASKS else FEW_BOUNDS:
            for seg_uniform in (False, True) if documents else (False,):
                yield AttentionBackward(wg=256, head_dim=head_dim, at_most=at_most, mask=mask, seg_uniform=seg_uniform)
        # Nine storage buffers never fit compatibility mode, so documents come as a uniform there.
        yield AttentionBackward(wg=COMPAT_WG, head_dim=MAX_HEAD_DIM, at_most=True, mask=mask, seg_uniform=documents)


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


def _rope() -> Iterator[Variant]:
    for wg in (64, 256):
        yield RopeQBackward(wg=wg)
        yield RopeKBackward(wg=wg)


@functools.cache
def checked_in() -> dict[str, Variant]:
    """The variants in ``generated/``, by name, sorted."""
    variants = [*_streaming(), *_short(), *_rope()]
    by_name = {variant.name: variant for variant in variants}
    assert len(by_name) == len(variants), "two variants of one name"
    return dict(sorted(by_name.items()))
