"""What one call asks for: the ``Problem``. No arrays, no tile sizes, no GPU objects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ArgumentError
from .checks import integer
from .mask import Interval, Mask
from .strides import Shape, Strides, four_axes, side_by_side

GRADIENTS = ("d_q", "d_k", "d_v")
MAX_HEAD_DIM = 256
MAX_LENGTH = 1 << 29
"""Positions are i32 in the kernels, and sums of two of them must not wrap."""

_QUERIES, _KEYS = ("batch", "q_len", "heads"), ("batch", "kv_len", "kv_heads")
AXES: dict[str, tuple[str, ...]] = {
    "q": (*_QUERIES, "head_dim"),
    "d_q": (*_QUERIES, "head_dim"),
    "o": (*_QUERIES, "v_head_dim"),
    "d_o": (*_QUERIES, "v_head_dim"),
    "lse": _QUERIES,
    "delta": _QUERIES,
    "k": (*_KEYS, "head_dim"),
    "d_k": (*_KEYS, "head_dim"),
    "v": (*_KEYS, "v_head_dim"),
    "d_v": (*_KEYS, "v_head_dim"),
    "doc_start": ("batch", "q_len"),
    "kv_lengths": ("batch",),
    "alibi_slopes": ("heads",),
}
"""The axes of every array that a call can have, by the names of a problem's sizes."""
EXTRAS = ("doc_start", "kv_lengths", "alibi_slopes")
"""The arrays that masks and terms read. All others are tensors: they may have strides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """What every call brings, what it may bring beside that (``Problem.given``), and what it gets, by name."""

    inputs: tuple[str, ...]
    optional: tuple[str, ...]
    outputs: tuple[str, ...]


COMPUTATIONS = {
    "backward": Computation(inputs=("q", "k", "v", "d_o", "lse"), optional=("o", "delta"), outputs=GRADIENTS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What one call computes, its shape, and how its result is wanted.

    ``computes`` is of ``COMPUTATIONS``, by which ``inputs`` and ``outputs`` go. q, d_o and d_q are (batch, q_len, heads,
    head_dim), with v_head_dim in d_o; k, d_k are (batch, kv_len, kv_heads, head_dim) and v, d_v (batch, kv_len, kv_heads,
    v_head_dim), all row-major. ``given`` says what helps with D = rowsum(dO∘O): ``"o"``, ``"delta"`` (D itself) or ``"none"``.
    ``accumulate`` names the outputs that are added to what is there (any of them, or ``True`` for all); the others are
    overwritten. ``kv_lengths`` says that the call gives each batch entry its own number of keys, ``softcap`` that the scores
    are S = c·tanh(scale·q·k / c), and ``alibi`` that each head has a slope m, and −m·|i + kv_len − q_len − j| is added to S.
    ``strides`` says where the rows of q, k, v, o, d_o, lse, delta and of gradients lie, by name, where that is not row by row
    without gaps; ``heads_first`` and ``packed`` make the usual ones. Raises ``ArgumentError``.
    """

    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    mask: Mask
    computes: Literal["backward"] = "backward"
    batch: int = 1
    v_head_dim: int = 0
    dtype: Literal["f32"] = "f32"
    given: Literal["none", "o", "delta"] = "none"
    accumulate: frozenset[str] = frozenset()
    kv_lengths: bool = False
    softcap: bool = False
    alibi: bool = False
    strides: Mapping[str, Strides] | tuple[tuple[str, Strides], ...] = ()

    def __post_init__(self) -> None:
        if self.computes not in COMPUTATIONS:
            raise ArgumentError("computes", repr(self.computes), f"one of {', '.join(map(repr, COMPUTATIONS))}")
        for name in ("q_len", "kv_len", "heads", "kv_heads", "head_dim", "batch"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        object.__setattr__(self, "v_head_dim", integer("v_head_dim", self.v_head_dim, 0) or self.head_dim)
        for name in ("head_dim", "v_head_dim"):
            if getattr(self, name) > MAX_HEAD_DIM:
                raise ArgumentError(name, getattr(self, name), f"1 to {MAX_HEAD_DIM}")
        for name in ("q_len", "kv_len"):
            if getattr(self, name) > MAX_LENGTH:
                raise ArgumentError(name, getattr(self, name), f"1 to {MAX_LENGTH}")
        if self.heads % self.kv_heads:
            raise ArgumentError("heads", f"{self.heads} with kv_heads {self.kv_heads}", "a multiple of kv_heads")
        if not isinstance(self.mask, Mask):
            raise ArgumentError("mask", repr(self.mask), "a Mask, such as Mask.causal()")
        if self.dtype != "f32":
            raise ArgumentError("dtype", repr(self.dtype), "'f32'")
        if self.given not in ("none", *self.optional):
            raise ArgumentError("given", repr(self.given), " or ".join(map(repr, ("none", *self.optional))))
        object.__setattr__(self, "accumulate", self._added(self.accumulate))
        self.interval  # noqa: B018  raises for a mask that these lengths cannot have
        object.__setattr__(self, "strides", tuple(self._settled(self.strides)))

    @property
    def group(self) -> int:
        """Query heads for each kv head."""
        return self.heads // self.kv_heads

    @property
    def interval(self) -> Interval:
        """The mask, resolved for these lengths."""
        return self.mask.interval(self.q_len, self.kv_len)

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays that the call brings, by name, in this order."""
        extras = zip(EXTRAS, (self.interval.doc_start, self.kv_lengths, self.alibi), strict=True)
        given = () if self.given == "none" else (self.given,)
        names = (*COMPUTATIONS[self.computes].inputs, *given, *(name for name, wanted in extras if wanted))
        return {name: self.shape_of(name) for name in names}

    @property
    def optional(self) -> tuple[str, ...]:
        """The inputs that a call may bring whether they are wanted or not."""
        return COMPUTATIONS[self.computes].optional

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays that the call gets, by name, in this order."""
        return {name: self.shape_of(name) for name in COMPUTATIONS[self.computes].outputs}

    def shape_of(self, name: str) -> tuple[int, ...]:
        """An array's own shape: lse and delta have three axes here."""
        sizes = self.sizes
        return tuple(sizes[axis] for axis in AXES[name])

    @property
    def shapes(self) -> dict[str, Shape]:
        """(batch, length, heads, dim) of every tensor that strides can be given for; lse and delta have a dim of 1."""
        computation = COMPUTATIONS[self.computes]
        names = {*computation.inputs, *computation.optional, *computation.outputs}
        return {name: four_axes(self.shape_of(name)) for name in AXES if name in names}

    @property
    def buffer_bytes(self) -> dict[str, int]:
        """Bytes of the buffer of every array that a kernel may bind, by name."""
        tensors = {name: 4 * self.strides_of(name).span(shape) for name, shape in self.shapes.items()}
        return {**tensors, **{name: 4 * math.prod(self.shape_of(name)) for name in EXTRAS}}

    @property
    def strided(self) -> str:
        """Which tensors have strides, in words."""
        names = tuple(dict(self.strides))
        return ", ".join(names) if len(names) < len(self.shapes) else "all tensors"

    def strides_of(self, name: str) -> Strides:
        """Where a tensor's rows lie, whether that was said or not."""
        return dict(self.strides).get(name) or Strides.contiguous(self.shapes[name])

    def heads_first(self) -> Problem:
        """The same problem with (batch, heads, length, dim) for every tensor, as in PyTorch, and (batch, heads, length) for lse."""
        found = {
            name: Strides(batch=heads * length * dim, head=length * dim, row=dim)
            for name, (_, length, heads, dim) in self.shapes.items()
        }
        return replace(self, strides=found)

    def packed(self, *names: str) -> Problem:
        """The same problem with these tensors, of one length, in one array: (batch, length, sum of their heads·dim).

        Each position has a row of all of them, in this order; every name is then given the same buffer. Fused projections:
        ``problem.packed("q", "k", "v").packed("d_q", "d_k", "d_v")``. Raises ``ArgumentError``.
        """
        shapes = self.shapes
        if not names or len(set(names)) < len(names) or not set(names) <= set(shapes):
            raise ArgumentError("names", ", ".join(map(repr, names)) or "nothing", f"different ones of {', '.join(shapes)}")
        packed = side_by_side({name: shapes[name] for name in names})
        return replace(self, strides={**dict(self.strides), **dict(packed)})

    def _settled(self, strides: object) -> Iterable[tuple[str, Strides]]:
        try:
            given: dict[str, Strides] = dict(strides)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise ArgumentError("strides", repr(strides), "a mapping of names to Strides") from None
        if not given:
            return
        shapes = self.shapes
        for name in given:
            if name not in shapes or not isinstance(given[name], Strides):
                raise ArgumentError("strides", f"{name}: {given[name]!r}", f"Strides for {', '.join(shapes)}")
        for name, shape in shapes.items():
            if name in given:
                strides = given[name].settled(shape)
                if name in self.outputs and not strides.is_distinct(shape):
                    want = "each axis to step past all that lies within it: an output's elements are written once"
                    raise ArgumentError("strides", f"{name}: {strides}", want)
                if strides != Strides.contiguous(shape):
                    yield name, strides

    def _added(self, accumulate: bool | Iterable[str]) -> frozenset[str]:
        outputs = COMPUTATIONS[self.computes].outputs
        if isinstance(accumulate, bool):
            return frozenset(outputs if accumulate else ())
        names = frozenset((accumulate,) if isinstance(accumulate, str) else accumulate)
        if not names <= set(outputs):
            raise ArgumentError("accumulate", sorted(names), f"names among {', '.join(outputs)}")
        return names

    @property
    def sizes(self) -> dict[str, int]:
        """The named factors that dispatch formulas are made of."""
        return {
            "batch": self.batch,
            "q_len": self.q_len,
            "kv_len": self.kv_len,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "v_head_dim": self.v_head_dim,
        }

    @property
    def words(self) -> dict[str, float | int]:
        """The values of the kernels' uniform words, by name, as far as they follow from the problem."""
        strides = (self.strides_of(name).words(name) for name in self.shapes)
        return {**self.sizes, **self.interval.words, **{word: value for words in strides for word, value in words.items()}}

    def __str__(self) -> str:
        batch = f"batch {self.batch}, " if self.batch > 1 else ""
        length = f"{self.q_len}" if self.q_len == self.kv_len else f"{self.q_len} on {self.kv_len}"
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads} over {self.kv_heads}"
        dim = f"{self.head_dim}" if self.head_dim == self.v_head_dim else f"{self.head_dim} and {self.v_head_dim}"
        strides = f", strides of {self.strided}" if self.strides else ""
        return f"{batch}length {length}, heads {heads}, head_dim {dim}, {self.mask}{strides}"
