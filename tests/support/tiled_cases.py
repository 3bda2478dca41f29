"""What the tests of the tiled algorithm share: calls with all their arrays, choices of kernels, and runs on used buffers.

Two kinds of choices: the layouts, as selection makes them, and ``small``, whose blocks, scratch and parts are so small that
a problem of a hundred positions goes in several strips and has every kind of part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from wgsl_attention.algorithms.choice import Choice
from wgsl_attention.algorithms.recipe import Recipe
from wgsl_attention.algorithms.tiled import tiled
from wgsl_attention.algorithms.tiled_layouts import choice
from wgsl_attention.gpu.device import Device
from wgsl_attention.kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from wgsl_attention.planning.plan import Plan
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.reference import accuracy
from wgsl_attention.reference import attention as reference
from wgsl_attention.reference.attention import Outputs

from support.attention import SENTINEL, Array, documents

GUARDS = ("zero", "propagate")
OPTIONS = ("doc_start", "kv_lengths")


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """The arrays of one call by their buffers' names, float32 with a batch axis; ``lse`` is the exact one, rounded."""

    problem: Problem
    arrays: Mapping[str, Array]
    scale: float | None = None

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def options(self) -> dict[str, Any]:
        return {"scale": self.scale, **{name: self.arrays[name] for name in OPTIONS if name in self.arrays}}

    def changed(self, **arrays: Array) -> Call:
        """The same call with other arrays; nothing is computed anew."""
        made = {name: np.asarray(array, self.arrays[name].dtype) for name, array in arrays.items()}
        return replace(self, arrays={**self.arrays, **made})

    def asking(self, **fields: Any) -> Call:
        """The same arrays for a problem that differs in ``given`` or ``accumulate``."""
        return replace(self, problem=replace(self.problem, **fields))

    def expected(self, **own: Array) -> accuracy.Expected:
        """What is right; ``lse`` and ``delta`` only where they are not these rows' own on purpose."""
        plain = replace(self.problem, accumulate=frozenset())
        return accuracy.expected(plain, *(self.arrays[name] for name in ("q", "k", "v", "d_o")), **own, **self.options)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"d_q": self["q"].shape, "d_k": self["k"].shape, "d_v": self["v"].shape}


def problem(mask: Mask, q_len: int, kv_len: int = 0, **sizes: Any) -> Problem:
    """Four heads over two, head_dim 16."""
    return Problem(
        **{"heads": 4, "kv_heads": 2, "head_dim": 16, "mask": mask, "q_len": q_len, "kv_len": kv_len or q_len, **sizes}
    )


def call(
    p: Problem,
    *,
    seed: int = 0,
    scale: float | None = None,
    doc_start: Array | None = None,
    kv_lengths: list[int] | None = None,
    **given: Array,
) -> Call:
    """Normal noise, or the arrays that are ``given``. doc_start and kv_lengths are random where they are wanted and absent."""
    rng = np.random.default_rng(seed)
    query, key = (p.batch, p.q_len, p.heads), (p.batch, p.kv_len, p.kv_heads)
    shapes = {"q": (*query, p.head_dim), "k": (*key, p.head_dim), "v": (*key, p.v_head_dim), "d_o": (*query, p.v_head_dim)}
    arrays = {
        name: np.asarray(given[name] if name in given else rng.standard_normal(shape, np.float32), np.float32)
        for name, shape in shapes.items()
    }
    options: dict[str, Any] = {"scale": scale}
    if p.interval.doc_start:
        options["doc_start"] = documents(p, seed=seed) if doc_start is None else np.asarray(doc_start, np.uint32)
    if p.kv_lengths:
        lengths = rng.integers(0, p.kv_len + 1, p.batch) if kv_lengths is None else kv_lengths
        options["kv_lengths"] = np.asarray(lengths, np.uint32)
    o, lse = reference.forward(p, arrays["q"], arrays["k"], arrays["v"], **options)
    delta = np.sum(o * arrays["d_o"], axis=3)
    arrays |= {"o": o.astype(np.float32), "lse": lse.astype(np.float32), "delta": delta.astype(np.float32)}
    arrays |= {name: np.asarray(given[name], np.float32) for name in ("o", "lse", "delta") if name in given}
    return Call(problem=p, arrays={**arrays, **{n: x for n, x in options.items() if n in OPTIONS}}, scale=scale)


def small(head_dim: int, v_head_dim: int = 0, guard: str = "zero", blocks: int = 3) -> Choice:
    """Blocks of 32 × 32 scores, as many parts as there can be, and scratch for ``blocks`` blocks of 32 queries × 128 keys."""
    dims: dict[str, Any] = {
        "head_dim": head_dim,
        "v_head_dim": 0 if v_head_dim in (0, head_dim) else v_head_dim,
        "guard": guard,
    }
    kernels = (
        AttentionScores(rows=32, cols=32, row_reg=4, col_reg=4, chunk=8, span=2, **dims),
        AttentionDkdv(rows=32, cols=16, row_reg=4, col_reg=4, chunk=16, query_rows=32, key_cols=32, **dims),
        AttentionDq(rows=16, cols=16, row_reg=2, col_reg=4, chunk=16, query_rows=32, key_cols=32, **dims),
    )
    return Choice(algorithm="tiled", kernels=kernels, numbers={"parts": 4096, "budget": blocks * 8 * 32 * 128})


def recipe(p: Problem, kind: str = "16k", guard: str = "zero", at_most: int = 0) -> Recipe:
    """The recipe of a layout, by its name, with WebGPU's default limit as its budget of scratch, or of ``small``.

    With ``at_most``, by the layout's kernels for any head_dim up to that.
    """
    if kind == "small":
        return tiled(p, small(p.head_dim, p.v_head_dim, guard))
    dims = (at_most,) if at_most else (p.head_dim, p.v_head_dim)
    chosen = choice(kind, *dims, at_most=bool(at_most)).suited(p, guard)
    return tiled(p, chosen.replaced(budget=128 << 20))


@dataclass(kw_only=True)
class Run:
    """Runs one recipe. ``before`` is what the gradients' buffers hold (default: the sentinel), ``scratch`` all scratch."""

    device: Device
    recipe: Recipe
    before: Mapping[str, Array] = field(default_factory=dict)
    scratch: float | None = None

    def __post_init__(self) -> None:
        lacking = self.recipe.refusals(self.device.profile)
        if lacking:
            pytest.skip("; ".join(lacking))
        self.plan = Plan(self.recipe, self.device)
        self.buffers: dict[str, Any] | None = None
        if self.scratch is not None:
            fills = {name: np.full(size // 4, self.scratch, np.float32) for name, size in self.plan.scratch.items()}
            self.buffers = {name: self.device.storage(fill, label=name) for name, fill in fills.items()}

    def __call__(self, given: Call, padding: float | None = None) -> Outputs:
        """The gradients. With ``padding``, every input buffer is 64 elements longer, and they hold that."""
        device, tail = self.device, np.full(0 if padding is None else 64, padding or 0, np.float32)
        buffers: dict[str, Any] = {}
        for name in set(self.plan.buffers) - set(GRADIENTS):
            flat = np.ascontiguousarray(given[name]).ravel()
            buffers[name] = device.storage(np.concatenate([flat, tail.astype(np.float32).view(flat.dtype)]), label=name)
        for name, shape in given.shapes.items():
            held = np.array(np.broadcast_to(self.before.get(name, SENTINEL), shape), np.float32)
            buffers[name] = device.storage(held, label=name)
        encoder = device.raw.create_command_encoder()
        self.plan.record(encoder, buffers, given.scale, scratch=self.buffers)
        device.raw.queue.submit([encoder.finish()])
        read = {name: np.frombuffer(device.read(buffers[name]), np.float32) for name in GRADIENTS}
        return {name: x[: np.prod(given.shapes[name])].reshape(given.shapes[name]) for name, x in read.items()}


def check(device: Device, made: Recipe, given: Call, **own: Array) -> Outputs:
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
