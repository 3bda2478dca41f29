"""Which variants are checked in: what every algorithm says of its own (``Algorithm.checked_in``), and rotary embedding's.

Together they are good defaults for every (kernel, mask, head_dim), and for every mask a variant that WebGPU's default limits
and compatibility mode can serve.
"""

from __future__ import annotations

import functools

from ..algorithms import ALGORITHMS, rope
from ..kernels.variant import Variant


@functools.cache
def checked_in() -> dict[str, Variant]:
    """The variants in ``generated/``, by name, sorted."""
    variants = [variant for algorithm in ALGORITHMS.values() for variant in algorithm.checked_in()]
    return dict(sorted({variant.name: variant for variant in (*variants, *rope.checked_in())}.items()))
