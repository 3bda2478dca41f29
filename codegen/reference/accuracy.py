"""The tolerance rule: whether gradients are as right as float32 can be expected to make them.

A gradient g passes against the float64 reference r when, for each head of each batch entry and each ``BLOCK`` rows,

    max|g − r| ≤ 3·max|b − r| + 2⁻²²·max|r|

where b is the same computation in float32; r and b each take their own softmax. This is the rule of FlashAttention's tests
with the absolute term made relative to the gradient's size, as real gradients are far smaller than any constant. Blocks
keep one huge row from hiding small ones. Where r is zero, or a block has only a few rows, the floor is 2⁻²² of what the
gradient's terms amount to before they cancel. What takes part in nothing must be zero bit by bit, and NaN never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from ..errors import ArgumentError
from ..problem.problem import AXES, Problem
from . import attention as reference
from .attention import Array, Options

BLOCK = 64
FLOAT32_FACTOR = 3.0
RELATIVE = 2.0**-22
CANCELLED = 2.0**-22
NOTHING_LEFT = 2.0**-40
FEW_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One gradient: its largest error as a multiple of what is allowed there, and where that is.

    ``multiple`` up to 1 passes; it is inf for NaN, infinity, or anything but zero where nothing takes part (``reason`` says
    which). ``rows`` are the block's first row and the one past its last. ``relative_error`` is |g − r| / |r| in the
    2-norm of the whole gradient (0 where both are zero).
    """

    name: str
    multiple: float
    relative_error: float
    batch: int
    head: int
    rows: tuple[int, int]
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.multiple <= 1

    def __str__(self) -> str:
        text = f"{self.name} {self.multiple:.2f} ({self.relative_error:.1e})"
        if self.ok:
            return text
        where = f"at batch {self.batch}, head {self.head}, rows {self.rows[0]} to {self.rows[1] - 1}"
        return f"{text} {where}{self.reason and ': '}{self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgements of all outputs. Its text is one line: multiples of the tolerance, and 2-norm errors in brackets."""

    judgements: tuple[Judgement, ...]

    def __getitem__(self, name: str) -> Judgement:
        return next(judgement for judgement in self.judgements if judgement.name == name)

    @property
    def ok(self) -> bool:
        return all(judgement.ok for judgement in self.judgements)

    def __str__(self) -> str:
        return f"{'pass' if self.ok else 'FAIL'}: {', '.join(map(str, self.judgements))}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """The right outputs of one call, and how far off each row (batch, seq, heads) may be: 0 if it takes part in nothing."""

    outputs: Mapping[str, Array]
    tolerances: Mapping[str, Array]

    def judge(self, found: Mapping[str, Array]) -> Verdict:
        """Hold outputs of the same shapes against the rule. Raises ``ArgumentError`` for another shape."""
        return Verdict(
            judgements=tuple(
                _judgement(name, np.asarray(found[name]), right, self.tolerances[name]) for name, right in self.outputs.items()
            )
        )


def expected(
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    d_o: Array,
    *,
    lse: Array | None = None,
    delta: Array | None = None,
    chained: bool = False,
    **options: Unpack[Options],
) -> Expected:
    """What is right for this call and how far off it may be; computed once, for any number of kernels to be judged by.

    Shapes and options are those of ``reference.backward``. Leave ``lse`` out even when the kernel is given one: the rule is
    about q, k and the mask. Give it (and ``delta``) only where it is not these rows' own on purpose: a sink, sharded keys.

    ``chained`` is for kernels whose contract is to add a key's terms to memory one after another, q_len · group of them, where
    the rule's float32 computation sums in blocks of 64 queries: on normal noise of 1500 queries and a group of 4 that alone
    made d_k and d_v 3.0 times what the rule allows. Their bound is then never below what the same chain of float32 additions
    is off by, with the rule's own factor.

    Memory is bounded, time is not: 0.2 s for the real training step (512 positions, 4 heads of 64), 16 times that for 2048.
    Raises ``ArgumentError`` for wrong shapes and where the reference itself is not finite.
    """
    right = reference.backward(problem, q, k, v, d_o, lse=lse, delta=delta, **options)
    single = reference.backward(problem, q, k, v, d_o, lse=lse, delta=delta, dtype=np.float32, **options)
    terms = reference.magnitudes(problem, q, k, v, d_o, lse=lse, **options)
    lo, hi = reference.key_intervals(problem, doc_start=options.get("doc_start"), kv_lengths=options.get("kv_lengths"))
    seen = _seen_keys(lo, hi, problem.kv_len)
    tolerances = {}
    for name, r in right.items():
        if not (np.isfinite(r).all() and np.isfinite(single[name]).all()):
            raise ArgumentError("inputs", f"a reference {name} that is not finite", "inputs whose gradients fit float32")
        part = hi > lo if "q_len" in AXES[name] else seen
        tolerances[name] = _tolerance(r, single[name], terms[name], part)
    chains = reference.chained(problem, q, k, v, d_o, lse=lse, **options) if chained else {}
    for name, chain in chains.items():
        allowed = FLOAT32_FACTOR * _over_blocks(np.max, np.abs(chain - right[name]).max(axis=3))
        tolerances[name] = np.where(tolerances[name] > 0, np.maximum(tolerances[name], allowed), 0.0)
    return Expected(outputs=right, tolerances=tolerances)


def judge_rope(name: str, got: Array, d_x: Array, offset: int) -> Judgement:
    """Rotary embedding by the same rule, row by row: a rotation mixes only pairs, so rows need no blocks."""
    right = reference.rope_backward(d_x, offset=offset)
    single = reference.rope_backward(d_x, offset=offset, dtype=np.float32)
    allowed = FLOAT32_FACTOR * np.abs(single - right).max(axis=3) + RELATIVE * np.abs(right).max(axis=3)
    return _judgement(name, got, right, allowed, block=1, zeros=False)


def _judgement(name: str, got: Array, right: Array, allowed: Array, *, block: int = BLOCK, zeros: bool = True) -> Judgement:
    """``allowed`` is each row's error, (batch, seq, heads); with ``zeros`` a row that is allowed none is +0 bit by bit."""
    if got.shape != right.shape:
        raise ArgumentError(name, f"shape {got.shape}", f"{right.shape}")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        difference = np.abs(got.astype(np.float64) - right)
        error = difference.max(axis=3)
        multiple = np.where(error > 0, error / allowed, 0.0)
        norm = np.linalg.norm(right)
        relative = float(np.linalg.norm(difference) / norm) if norm else (np.inf if difference.any() else 0.0)
    finite = np.asarray(np.isfinite(got).all(axis=3))
    # a negative zero is not what was asked for either
    stray: Array = zeros & (allowed == 0) & ((got != 0) | np.signbit(got)).any(axis=3) & finite
    multiple = np.where(finite & ~stray, multiple, np.inf)
    batch, row, head = (int(n) for n in np.unravel_index(np.argmax(multiple), multiple.shape))
    start = row // block * block
    reasons = {(True, False): "not finite", (False, True): "not zero where nothing takes part"}
    return Judgement(
        name=name,
        multiple=float(multiple[batch, row, head]),
        relative_error=relative,
        batch=batch,
        head=head,
        rows=(start, min(start + block, got.shape[1])),
        reason=reasons.get((not finite[batch, row, head], bool(stray[batch, row, head])), ""),
    )


def _tolerance(r: Array, b: Array, terms: Array, part: Array) -> Array:
    """Allowed error of each row, (batch, seq, heads), for ``part`` (batch, seq): whether the row takes part in anything."""
    error, size, before = (np.abs(x).max(axis=3) for x in (b - r, r, terms))
    allowed = FLOAT32_FACTOR * _over_blocks(np.max, error) + RELATIVE * _over_blocks(np.max, size)
    # Where everything cancels r is zero, or what float64 leaves of zero, and b may be off by nothing at all (one visible
    # key: P = 1, D = dP). And b's error in a few rows says little. What other orders of summation are off by there was
    # measured over random, sharp and constant inputs of 1 to 128 rows: up to 3.7 · 2⁻²⁴ of the terms.
    nothing_left = size <= NOTHING_LEFT * before
    telling = _over_blocks(np.sum, part[:, :, None] & ~nothing_left)
    floor = np.where(nothing_left | (telling < FEW_ROWS), CANCELLED * _over_blocks(np.max, before), 0)
    # the smallest number stands for "takes part, though all its terms are zero"
    return np.where(part[:, :, None], np.maximum(np.maximum(allowed, floor), np.finfo(np.float64).tiny), 0.0)


def _over_blocks(reduce: Callable[..., Array], x: Array) -> Array:
    """The sum or largest value of each row's block, over (batch, seq, heads). A last block that is short looks at the last
    ``BLOCK`` rows instead."""
    length = x.shape[1]
    starts = [min(start, max(0, length - BLOCK)) for start in range(0, length, BLOCK)]
    blocks = np.stack([reduce(x[:, start : start + BLOCK], axis=1) for start in starts], axis=1)
    return np.repeat(blocks, BLOCK, axis=1)[:, :length]


def _seen_keys(lo: Array, hi: Array, kv_len: int) -> Array:
    """(batch, kv_len): whether any query sees the key."""
    change = np.zeros((len(lo), kv_len + 1), np.int64)
    entry = np.arange(len(lo))[:, None]
    np.add.at(change, (entry, lo), 1)
    np.add.at(change, (entry, hi), -1)
    return np.asarray(np.cumsum(change, axis=1)[:, :kv_len] > 0)
