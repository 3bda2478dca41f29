"""Attention and its backward pass in NumPy: the definition of right that every kernel is judged against.

float64 is the reference. In any other dtype the products are summed in a fixed order instead of by the BLAS, so that the
float32 result, which the tolerance is made of (``accuracy.py``), does not depend on what NumPy was built with. Work goes by
blocks of ``BLOCK`` queries of one head, so memory grows with q_len + kv_len and not with their product.

Arrays are always 4-D, as ``Problem`` says: (batch, seq, heads, dim). Score and gradients, for the keys that query i sees:

    S = scale·q_i·k_j          with ``softcap`` c: c·tanh(S/c)          with ``alibi``: − slope_h·|i + kv_len − q_len − j|
    P = exp(S − lse)           dP = dO_i·v_j          D = Σ P·dP          dS = P·(dP − D)·(1 − tanh²)
    d_q = scale·Σ dS·k_j       d_k = scale·Σ dS·q_i   d_v = Σ P·dO_i
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..problem.intervals import key_intervals as key_intervals  # part of the definition, and of this module's face
from ..problem.problem import AXES, Problem
from ..problem.scalars import default_scale

Array = npt.NDArray[Any]
Outputs: TypeAlias = dict[str, Array]
"""What a problem's ``outputs`` names, of the shapes that it gives them."""

BLOCK = 64
LSE_TOLERANCE = 2.0**-10
"""How far Σ P of a row may be from 1 and still be rounding: beyond it the lse belongs to something else, or holds a sink."""


class Options(TypedDict, total=False):
    """How scores are formed; keyword arguments of every function here. All may be left out.

    ``scale``: multiplies q·k; None is head_dim ** -0.5. ``doc_start``: (seq,) or (batch, seq) integers, for masks with
    documents, and ignored by others. ``kv_lengths``: (batch,) integers, where the problem says so. ``softcap``: the bound c
    of c·tanh(S/c). ``alibi``: (heads,) slopes of a bias −slope·|i + kv_len − q_len − j|, FlashAttention's, zero on the bottom-right
    diagonal and linear on both sides of it.
    """

    scale: float | None
    doc_start: npt.ArrayLike | None
    kv_lengths: npt.ArrayLike | None
    softcap: float | None
    alibi: npt.ArrayLike | None


def forward(
    problem: Problem, q: Array, k: Array, v: Array, *, dtype: npt.DTypeLike = np.float64, **options: Unpack[Options]
) -> tuple[Array, Array]:
    """o (batch, q_len, heads, v_head_dim) and lse (batch, q_len, heads), natural log. A query that sees nothing: 0 and +inf.

    Raises ``ArgumentError`` for an array whose shape is not the problem's.
    """
    call = _Call.make(problem, dtype, options, q=q, k=k, v=v)
    o = np.zeros((problem.batch, problem.q_len, problem.heads, problem.v_head_dim), dtype)
    lse = np.full(o.shape[:3], np.inf, dtype)
    for block in call.blocks():
        p, block_lse = block.softmax()
        o[block.queries] = _product(p, call.arrays["v"][block.keys])
        lse[block.queries] = block_lse
    return o, lse


def backward(
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    d_o: Array,
    *,
    lse: Array | None = None,
    delta: Array | None = None,
    dtype: npt.DTypeLike = np.float64,
    **options: Unpack[Options],
) -> Outputs:
    """d_q, d_k and d_v for d_o (batch, q_len, heads, v_head_dim), in ``dtype``; a shared kv head sums over its query heads.

    ``lse`` (batch, q_len, heads) None: each row's own softmax. Given: P = exp(S − lse) as it stands, not corrected, so that
    P may sum to less than 1 (a sink, or keys on other devices). ``delta`` (batch, q_len, heads) None: D = Σ P·dP over the
    keys at hand with that P, which is right for a sink and wrong for sharded keys, whose D is d_o·o of the whole row.
    Queries that see nothing and keys that nothing sees get exact zeros, whatever their rows hold. Something that is not
    finite reaches only what a visible pair connects with it. Raises ``ArgumentError`` for a wrong shape.
    """
    call = _Call.make(problem, dtype, options, q=q, k=k, v=v, d_o=d_o, lse=lse, delta=delta)
    result = _zeros(problem, dtype)
    for block, p, d_s in call.derivatives():
        _accumulate(result, call, block, p, d_s, np.asarray)
    return result


def chained(
    problem: Problem, q: Array, k: Array, v: Array, d_o: Array, *, lse: Array | None = None, **options: Unpack[Options]
) -> Outputs:
    """d_k and d_v as a kernel leaves them that adds each term to memory in float32: by queries, and for each by its heads.

    The terms themselves are float64's, rounded, so that what differs from ``backward`` is the chain of additions.
    """
    call = _Call.make(problem, np.float64, options, q=q, k=k, v=v, d_o=d_o, lse=lse)
    zeros = _zeros(problem, np.float32)
    result = {name: zeros[name] for name in ("d_k", "d_v")}
    rows = {name: call.arrays[name].astype(np.float32) for name in ("q", "d_o")}
    for _, group in itertools.groupby(call.derivatives(), lambda found: found[0].queries[:2]):
        heads = list(group)
        for i in range(len(heads[0][1])):
            for block, p, d_s in heads:
                entry, queries, head = block.queries
                for name, terms, row in (("d_k", d_s, rows["q"]), ("d_v", p, rows["d_o"])):
                    result[name][block.keys] += terms[i].astype(np.float32)[:, None] * row[entry, queries, head][i]
    return result


def magnitudes(
    problem: Problem, q: Array, k: Array, v: Array, d_o: Array, *, lse: Array | None = None, **options: Unpack[Options]
) -> Outputs:
    """What the gradients' terms amount to before anything cancels, float64.

    |scale|·Σ|P|(|dO|·|v|)|k|, |scale|·Σ|P|(|dO|·|v|)|q| and Σ|P||dO|: where a gradient is zero, its rounding errors are
    proportional to these.
    """
    call = _Call.make(problem, np.float64, options, q=q, k=k, v=np.abs(v), d_o=np.abs(d_o), lse=lse)
    result = _zeros(problem, np.float64)
    for block, p, d_p in call.probabilities():
        d_s = np.where(block.visible, np.abs(call.scale * block.slope) * p * d_p, 0)
        _accumulate(result, call, block, p, d_s, np.abs)
    return result


def row_sums(problem: Problem, q: Array, k: Array, lse: Array, **options: Unpack[Options]) -> Array:
    """Σ exp(S − lse) over each query's keys, float64 (batch, q_len, heads): 1 up to rounding where lse is these rows' own."""
    call = _Call.make(problem, np.float64, options, q=q, k=k, lse=lse)
    sums = np.zeros(call.arrays["lse"].shape)
    for block in call.blocks():
        sums[block.queries] = np.sum(block.exp(call.arrays["lse"][block.queries]), axis=1)
    return sums


def first_bad_row(problem: Problem, q: Array, k: Array, lse: Array, **options: Unpack[Options]) -> tuple[int, int, int] | None:
    """The first (batch, position, head) whose lse does not belong to these q, k, mask and scale; None if all do.

    That is: Σ exp(S − lse) is off from 1 by more than 2⁻¹⁰, or is NaN, or the query sees nothing and its lse is not +inf.
    """
    sums = row_sums(problem, q, k, lse, **options)
    lo, hi = key_intervals(problem, doc_start=options.get("doc_start"), kv_lengths=options.get("kv_lengths"))
    good = np.where((hi > lo)[:, :, None], np.abs(sums - 1) <= LSE_TOLERANCE, np.asarray(lse) == np.inf)
    bad = np.argwhere(~good)
    return (int(bad[0, 0]), int(bad[0, 1]), int(bad[0, 2])) if len(bad) else None


def rope_backward(d_x: Array, base: float = 10000.0, offset: int = 0, dtype: npt.DTypeLike = np.float64) -> Array:
    """Undo, on a gradient (batch, seq, heads, head_dim), the rotary embedding of interleaved pairs (2p, 2p + 1).

    The pair at position s is turned back by (s + offset)·base^(−2p/head_dim) radians, the transpose of the forward rotation
    of RoFormer (Su et al. 2021). Angles are float64 in every ``dtype``. Raises ``ArgumentError`` for an odd head_dim.
    """
    if d_x.ndim != 4 or d_x.shape[3] % 2:
        raise ArgumentError("d_x", f"shape {d_x.shape}", "(batch, seq, heads, head_dim) with an even head_dim")
    if not base > 0:
        raise ArgumentError("base", base, "a number above 0")
    head_dim = d_x.shape[3]
    angle = np.outer(np.arange(d_x.shape[1]) + float(offset), float(base) ** (-np.arange(0, head_dim, 2) / head_dim))
    cos, sin = (f(angle).astype(dtype)[None, :, None, :] for f in (np.cos, np.sin))
    x0, x1 = (d_x[..., first::2].astype(dtype) for first in (0, 1))
    return np.stack([x0 * cos + x1 * sin, x1 * cos - x0 * sin], axis=-1).reshape(d_x.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """Queries of one head against the keys [first lo, last hi) of any of them; ``visible`` says which pairs count."""

    queries: tuple[int, slice, int]
    keys: tuple[int, slice, int]
    visible: Array
    scores: Array
    slope: Array | float
    """The softcap's derivative."""

    def exp(self, shift: Array) -> Array:
        """exp(S − shift), and 0 for pairs that do not count. −inf is put in, never subtracted."""
        return np.exp(np.where(self.visible, self.scores - shift[:, None], -np.inf))

    def softmax(self) -> tuple[Array, Array]:
        """P of the rows' own softmax, and their lse; 0 and +inf for an empty row."""
        some = self.visible.any(axis=1)
        peak = np.where(some, np.max(self.scores, axis=1, initial=-np.inf, where=self.visible), self.scores.dtype.type(0))
        e = self.exp(peak)
        total = np.where(some, np.sum(e, axis=1), e.dtype.type(1))
        return e / total[:, None], np.where(some, peak + np.log(total), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    """The inputs of one call, checked and converted, and the walk over their blocks."""

    problem: Problem
    arrays: dict[str, Array]
    lo: Array
    hi: Array
    scale: Any
    softcap: Any
    alibi: Array | None

    @classmethod
    def make(cls, problem: Problem, dtype: npt.DTypeLike, options: Options, **arrays: Array | None) -> _Call:
        for name, array in arrays.items():
            want = problem.shape_of(name)
            if array is not None and np.shape(array) != want:
                raise ArgumentError(name, f"shape {np.shape(array)}", f"{want}: ({', '.join(AXES[name])})")
        lo, hi = key_intervals(problem, doc_start=options.get("doc_start"), kv_lengths=options.get("kv_lengths"))
        real: Any = np.dtype(dtype).type
        scale, softcap, alibi = options.get("scale"), options.get("softcap"), options.get("alibi")
        if softcap is not None and not softcap > 0:
            raise ArgumentError("softcap", softcap, "a number above 0, or None")
        slopes = None if alibi is None else np.asarray(alibi, dtype)
        if slopes is not None and slopes.shape != (problem.heads,):
            raise ArgumentError("alibi", f"shape {slopes.shape}", f"one slope for each head: ({problem.heads},)")
        return cls(
            problem=problem,
            arrays={name: np.asarray(array, dtype) for name, array in arrays.items() if array is not None},
            lo=lo,
            hi=hi,
            scale=real(default_scale(problem.head_dim) if scale is None else scale),
            softcap=None if softcap is None else real(softcap),
            alibi=slopes,
        )

    def blocks(self) -> Iterator[_Block]:
        """Every block that has a visible pair. Where an input is not finite a block is one row, as 0·NaN would spread."""
        finite = all(np.isfinite(array).all() for name, array in self.arrays.items() if name in ("q", "k", "v", "d_o"))
        rows = BLOCK if finite else 1
        q, k, shift = self.arrays["q"], self.arrays["k"], self.problem.kv_len - self.problem.q_len
        for entry in range(self.problem.batch):
            for start in range(0, self.problem.q_len, rows):
                stop = min(start + rows, self.problem.q_len)
                lo, hi = self.lo[entry, start:stop], self.hi[entry, start:stop]
                if not (hi > lo).any():
                    continue
                first, last = int(lo[hi > lo].min()), int(hi[hi > lo].max())
                j = np.arange(first, last)
                visible = (j >= lo[:, None]) & (j < hi[:, None])
                for head in range(self.problem.heads):
                    queries = (entry, slice(start, stop), head)
                    keys = (entry, slice(first, last), head // self.problem.group)
                    slope: Array | float = 1.0
                    with np.errstate(over="ignore", invalid="ignore"):  # pairs that do not count may hold anything
                        scores = self.scale * _product(q[queries], k[keys].T)
                        if self.softcap is not None:
                            capped = np.tanh(scores / self.softcap)
                            scores, slope = self.softcap * capped, 1 - capped * capped
                        if self.alibi is not None:
                            distance = j - np.arange(start, stop)[:, None] - shift
                            scores = scores - self.alibi[head] * np.abs(distance).astype(scores.dtype)
                        yield _Block(queries=queries, keys=keys, visible=visible, scores=scores, slope=slope)

    def probabilities(self) -> Iterator[tuple[_Block, Array, Array]]:
        """Each block with its P, by the rows' own softmax or by the lse that was given, and its dP."""
        lse = self.arrays.get("lse")
        for block in self.blocks():
            p = block.softmax()[0] if lse is None else block.exp(lse[block.queries])
            yield block, p, _product(self.arrays["d_o"][block.queries], self.arrays["v"][block.keys].T)

    def derivatives(self) -> Iterator[tuple[_Block, Array, Array]]:
        """Each block with its P and dS; D is ``delta`` where that was given."""
        for block, p, d_p in self.probabilities():
            total = self.arrays["delta"][block.queries] if "delta" in self.arrays else np.sum(p * d_p, axis=1)
            yield block, p, np.where(block.visible, self.scale * p * (d_p - total[:, None]) * block.slope, 0)


def _accumulate(result: Outputs, call: _Call, block: _Block, p: Array, d_s: Array, of: Any) -> None:
    """The last three products; ``of`` is applied to what P and dS are multiplied with."""
    result["d_q"][block.queries] = _product(d_s, of(call.arrays["k"][block.keys]))
    result["d_k"][block.keys] += _product(d_s.T, of(call.arrays["q"][block.queries]))
    result["d_v"][block.keys] += _product(p.T, of(call.arrays["d_o"][block.queries]))


def _product(a: Array, b: Array) -> Array:
    """a @ b: in float64 by the BLAS; otherwise one chain of additions in order, as a plain loop would sum it, everywhere."""
    if a.dtype == np.float64:
        return np.asarray(a @ b)
    columns, rows = np.ascontiguousarray(a.T)[:, :, None], np.ascontiguousarray(b)
    total: Array = columns[0] * rows[0]
    term = np.empty_like(total)
    for t in range(1, len(rows)):
        np.multiply(columns[t], rows[t], out=term)
        total += term
    return total


def _zeros(problem: Problem, dtype: npt.DTypeLike) -> Outputs:
    return {name: np.zeros(shape, dtype) for name, shape in problem.outputs.items()}
