"""What the tests of the tiled algorithm share: choices of kernels, and runs that are judged.

Two kinds of choices: the layouts, as selection makes them, and ``small``, whose blocks, scratch and parts are so small that
a problem of a hundred positions goes in several strips and has every kind of part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from wgsl_attention.algorithms.choice import Choice
from wgsl_attention.algorithms.recipe import Recipe
from wgsl_attention.algorithms.tiled import tiled
from wgsl_attention.algorithms.tiled_layouts import choice
from wgsl_attention.gpu.device import Device
from wgsl_attention.kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.reference.attention import Outputs
from wgsl_attention.reference.samples import Sample

from support.attention import Array, Run

GUARDS = ("zero", "propagate")


def problem(mask: Mask, q_len: int, kv_len: int = 0, **sizes: Any) -> Problem:
    """Four heads over two, head_dim 16."""
    return Problem(
        **{"heads": 4, "kv_heads": 2, "head_dim": 16, "mask": mask, "q_len": q_len, "kv_len": kv_len or q_len, **sizes}
    )


def small(head_dim: int, v_head_dim: int = 0, guard: str = "zero", blocks: int = 3) -> Choice:
    """Blocks of 32 × 32 scores, as many parts as there can be, and scratch for four times ``blocks`` of them."""
    dims: dict[str, Any] = {
        "head_dim": head_dim,
        "v_head_dim": 0 if v_head_dim in (0, head_dim) else v_head_dim,
        "guard": guard,
    }
    kernels = (
        AttentionScores(rows=32, cols=32, row_reg=4, col_reg=4, chunk=8, span=2, pipeline="double", guard=guard),
        AttentionDkdv(rows=32, cols=16, row_reg=4, col_reg=4, chunk=16, pipeline="ahead", query_rows=32, key_cols=32, **dims),
        AttentionDq(rows=16, cols=16, row_reg=2, col_reg=4, chunk=16, query_rows=32, key_cols=32, **dims),
    )
    return Choice(algorithm="tiled", kernels=kernels, numbers={"parts": 4096, "budget": blocks * 4 * 32 * 128})


def recipe(p: Problem, kind: str = "16k", guard: str = "zero", at_most: int = 0) -> Recipe:
    """The recipe of a layout, by its name, with WebGPU's default limit as its budget of scratch, or of ``small``.

    With ``at_most``, by the layout's kernels for any head_dim up to that.
    """
    if kind == "small":
        return tiled(p, small(p.head_dim, p.v_head_dim, guard))
    dims = (at_most,) if at_most else (p.head_dim, p.v_head_dim)
    chosen = choice(kind, *dims, form="at most" if at_most else "exact").suited(p, guard)
    return tiled(p, chosen.replaced(budget=128 << 20))


def check(device: Device, made: Recipe, given: Sample, **own: Array) -> Outputs:
    """The gradients, once they have passed the rule: every element is written, and what takes part in nothing is +0."""
    got = Run(device=device, recipe=made)(given)
    verdict = given.expected(**own).judge(got)
    assert verdict.ok, f"{given.problem}: {' + '.join(v.name for v in made.variants)}: {verdict}"
    return got


def assert_same_bits(a: Outputs, b: Outputs, where: Mapping[str, Array] | None = None) -> None:
    """``where`` says in which rows, by the gradient's name."""
    for name in GRADIENTS:
        x, y = (g[name] if where is None else g[name][where[name]] for g in (a, b))
        assert x.tobytes() == y.tobytes(), f"{name}: {np.argwhere(x.view(np.uint32) != y.view(np.uint32))[:5].tolist()}"
