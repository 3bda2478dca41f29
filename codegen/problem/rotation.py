"""Rotary embedding, backward, as a call asks for it: the ``Rotation``, small beside a ``Problem``, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from ..errors import ArgumentError
from .checks import finite, integer
from .problem import MAX_HEAD_DIM
from .strides import Shape, Strides
from .task import MAX_INDEX

ROPE_BASE = 10000.0
"""RoFormer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The inverse rotation of interleaved pairs, in place on d_x: (batch, seq, heads, head_dim) without gaps.

    A ``Task`` of its own: neither keys nor a mask have a part in it. Raises ``ArgumentError``.
    """

    seq: int
    heads: int
    head_dim: int
    batch: int = 1

    optional: ClassVar[tuple[str, ...]] = ()
    accumulate: ClassVar[frozenset[str]] = frozenset()
    strides: ClassVar[tuple[tuple[str, Strides], ...]] = ()

    def __post_init__(self) -> None:
        for name in ("seq", "heads", "head_dim", "batch"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        if self.head_dim % 2 or self.head_dim > MAX_HEAD_DIM:
            raise ArgumentError("head_dim", self.head_dim, f"an even number from 2 to {MAX_HEAD_DIM}")
        elements = math.prod(self.shapes["d_x"])
        if elements >= MAX_INDEX:
            raise ArgumentError("buffer", f"{elements} elements", "fewer than 2³², which a 32-bit index reaches")

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"d_x": (self.batch, self.seq, self.heads, self.head_dim)}

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        return dict(self.shapes)

    @property
    def buffer_bytes(self) -> dict[str, int]:
        return {name: 4 * math.prod(shape) for name, shape in self.shapes.items()}

    def strides_of(self, name: str) -> Strides:
        return Strides.contiguous(self.shapes[name])

    @property
    def sizes(self) -> dict[str, int]:
        """``heads`` counts as the heads of either, q or k."""
        return {
            "batch": self.batch,
            "seq_len": self.seq,
            "heads": self.heads,
            "kv_heads": self.heads,
            "head_dim": self.head_dim,
            "half_head_dim": self.head_dim // 2,
        }

    @property
    def words(self) -> dict[str, int]:
        return self.sizes

    def __str__(self) -> str:
        batch = f"batch {self.batch}, " if self.batch > 1 else ""
        return f"rotation of {batch}length {self.seq}, heads {self.heads}, head_dim {self.head_dim}"


class Angles(NamedTuple):
    """Position p turns pair i by (p + ``offset``)·``base``^(−2i/``head_dim``) radians."""

    base: float
    offset: int
    head_dim: int

    @property
    def words(self) -> Mapping[str, float | int]:
        """By the names of the kernels' uniform words; the ratio is a 64-bit fraction in two of them."""
        ratio = rope_ratio(self.base, self.head_dim)
        low, high = ratio & 0xFFFFFFFF, ratio >> 32
        return {"rope_base": self.base, "pos_offset": self.offset, "ratio_low": low, "ratio_high": high}


def resolve_angles(rotation: Rotation, base: float, offset: int) -> Angles:
    """The call's numbers; raises ``ArgumentError`` for a base or a first position that cannot be."""
    number = finite("base", base)
    if number <= 0:
        raise ArgumentError("base", number, "a positive, finite number")
    whole = isinstance(offset, (int, np.integer)) and not isinstance(offset, bool)
    if not whole or offset < 0 or offset + rotation.seq > 2**32:
        raise ArgumentError("offset", repr(offset), "a whole number of positions, from 0 to 2³² − seq")
    return Angles(base=number, offset=int(offset), head_dim=rotation.head_dim)


def rope_ratio(base: float, head_dim: int) -> int:
    """base^(−2/head_dim) as a 64-bit fraction, rounded; 0 where it is not below 1 (the kernel then computes in f32)."""
    # Newton on x^(head_dim/2) = 1/base in exact arithmetic, from the float64 root.
    power, target = head_dim // 2, 1 / Fraction(base)
    x = Fraction(base ** (-1 / power))
    for _ in range(2):
        x -= (x**power - target) / (power * x ** (power - 1))
        x = Fraction(round(x * 2**120), 2**120)
    ratio = round(x * 2**64)
    return ratio if 0 < ratio < 2**64 else 0
