"""Kinds of input on which kernels are tried: what brings out errors that normal noise does not."""

from __future__ import annotations

import numpy as np
from wgsl_attention.problem.problem import Problem
from wgsl_attention.reference.samples import Sample

from support.attention import sample


def ordinary(p: Problem) -> Sample:
    return sample(p)


def sharp(p: Problem) -> Sample:
    """Scores five times as large: the softmax is nearly one-hot."""
    return sample(p, q=5 * sample(p)["q"])


def tiny(p: Problem) -> Sample:
    return sample(p, d_o=1e-6 * sample(p)["d_o"])


def large(p: Problem) -> Sample:
    return sample(p, d_o=1e4 * sample(p)["d_o"])


def constant(p: Problem) -> Sample:
    """Every probability of a row is the same, and dP − D is zero."""
    given = sample(p)
    return sample(p, **{name: np.full_like(given[name], 0.7) for name in ("q", "k", "v", "d_o")})


def huge_row(p: Problem) -> Sample:
    """One row of the upstream gradient is 2²⁰ times the others; the rule looks at blocks of 64 rows.

    That row alone then says what a block is allowed. With seed 0 float32 NumPy happens to be so near in it that rounding a
    caller's delta is 1.9 of what is allowed; it was 0.3 to 0.9 with 23 other draws.
    """
    d_o = sample(p, seed=1)["d_o"].copy()
    d_o[:, 3] *= 2**20
    return sample(p, seed=1, d_o=d_o)


def huge_key(p: Problem) -> Sample:
    k = sample(p)["k"].copy()
    k[:, 66] *= 20
    return sample(p, k=k)


def very_negative_lse(p: Problem) -> Sample:
    """Scores around −1000, all of them."""
    given = sample(p)
    q, k = given["q"].copy(), given["k"].copy()
    q[..., 0], k[..., 0] = 64, -64
    made = sample(p, q=q, k=k)
    assert made["lse"].max() < -900
    return made


def no_scale(p: Problem) -> Sample:
    return sample(p, scale=0.0)


def other_scale(p: Problem) -> Sample:
    return sample(p, scale=-0.6)


INPUTS = (ordinary, sharp, tiny, large, constant, huge_row, huge_key, very_negative_lse, no_scale, other_scale)
