"""What the kernel tests share: inputs for a problem, and a run of chosen variants on buffers that held something else before."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from conftest import skip_without
from wgsl_attention import PROFILES
from wgsl_attention.algorithms.choice import Choice
from wgsl_attention.algorithms.recipe import Recipe
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.kernels.original import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from wgsl_attention.planning.plan import Plan
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.reference import accuracy
from wgsl_attention.reference import attention as reference
from wgsl_attention.reference.attention import Outputs

Array = np.ndarray[Any, Any]
DEFAULT = PROFILES["webgpu-default"]
SENTINEL = np.float32(-12345.678)
"""What output buffers hold before a kernel runs: an element that is not written, or added to by mistake, shows."""


@functools.cache
def wgpu_device() -> Device:
    """The process's wgpu device, on which most kernel tests run: each pipeline takes Dawn on SwiftShader 3 to 5 s."""
    skip_without("wgpu")
    return open_device("wgpu")


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """Arrays of one call, always with a batch axis, in float32. ``lse`` is the exact one, rounded."""

    problem: Problem
    q: Array
    k: Array
    v: Array
    d_o: Array
    lse: Array
    doc_start: Array | None = None
    scale: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"doc_start": self.doc_start, "scale": self.scale}

    @property
    def arrays(self) -> dict[str, Array]:
        arrays = {"q": self.q, "k": self.k, "v": self.v, "d_o": self.d_o, "lse": self.lse}
        return arrays if self.doc_start is None else {**arrays, "doc_start": self.doc_start}

    def expected(self, algorithm: str = "", lse: Array | None = None) -> accuracy.Expected:
        """What is right, by the rule for an algorithm; ``lse`` only where it is not these rows' own on purpose."""
        chained = algorithm == "streaming"
        return accuracy.expected(self.problem, self.q, self.k, self.v, self.d_o, lse=lse, chained=chained, **self.options)


def problem(mask: Mask, q_len: int, kv_len: int = 0, **sizes: Any) -> Problem:
    """A problem of small sizes: two heads over one kv head, head_dim 16."""
    return Problem(
        **{"heads": 2, "kv_heads": 1, "head_dim": 16, "mask": mask, "q_len": q_len, "kv_len": kv_len or q_len, **sizes}
    )


def documents(problem: Problem, lengths: list[int] | None = None, seed: int = 0) -> Array:
    """doc_start (batch, seq) uint32: documents of these lengths, or of random ones, different in each batch entry."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(problem.batch):
        if lengths is None:
            first = rng.random(problem.q_len) < 3 / problem.q_len
            first[0] = True
            starts = np.maximum.accumulate(np.where(first, np.arange(problem.q_len), 0))
        else:
            starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows.append(starts)
    return np.array(rows, np.uint32)


def inputs(
    problem: Problem, *, seed: int = 0, doc_start: Array | None = None, scale: float | None = None, **given: Any
) -> Inputs:
    """Normal noise, or the arrays that are ``given``; doc_start is random where the mask needs one and none is given."""
    rng = np.random.default_rng(seed)
    p = problem
    query, key = (p.batch, p.q_len, p.heads, p.head_dim), (p.batch, p.kv_len, p.kv_heads, p.head_dim)
    arrays = {
        name: np.asarray(given.get(name, rng.standard_normal(shape, np.float32)), np.float32)
        for name, shape in (("q", query), ("k", key), ("v", key), ("d_o", query))
    }
    if p.interval.doc_start and doc_start is None:
        doc_start = documents(p, seed=seed)
    options = {"doc_start": doc_start, "scale": scale}
    _, lse = reference.forward(p, arrays["q"], arrays["k"], arrays["v"], **options)
    return Inputs(problem=p, **arrays, lse=np.asarray(given.get("lse", lse), np.float32), **options)


def streaming(problem: Problem, **params: Any) -> Recipe:
    """The streaming recipe with the variant that these parameters make."""
    kernels = (AttentionBackward(**{"wg": 64, "head_dim": problem.head_dim, **params}),)
    return Choice(algorithm="streaming", kernels=kernels).recipe(problem, DEFAULT)


def short(problem: Problem, max_seq: int = 0, seg_uniform: bool = False, **params: Any) -> Recipe:
    """The short recipe with the two variants that these parameters make."""
    params = {"wg": 64, "head_dim": problem.head_dim, **params}
    main = AttentionBackwardShort(**params, max_seq=max_seq or problem.kv_len, seg_uniform=seg_uniform)
    mask = "full" if params["mask"] == "full" else "causal"
    kernels = (main, AttentionBackwardShortDkdv(**{**params, "mask": mask}))
    return Choice(algorithm="short", kernels=kernels).recipe(problem, DEFAULT)


RECIPES = {"streaming": streaming, "short": short}


@dataclass(kw_only=True)
class Run:
    """Runs one recipe on a device; ``before`` is what the gradients' buffers hold (default: the sentinel)."""

    device: Device
    recipe: Recipe
    before: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = Plan(self.recipe, self.device)

    def __call__(self, given: Inputs, padding: float | None = None) -> Outputs:
        """The gradients. With ``padding``, every input buffer is 64 elements longer, and they hold that."""
        device, problem = self.device, self.recipe.problem
        buffers = {}
        for name, array in given.arrays.items():
            if name in self.plan.buffers:
                flat = np.ascontiguousarray(array).ravel()
                tail = np.full(0 if padding is None else 64, 0 if padding is None else padding, np.float32)
                buffers[name] = device.storage(
                    np.concatenate([flat, tail.astype(flat.dtype) if flat.dtype.kind == "f" else tail.view(np.uint32)])
                )
        shapes = {"d_q": given.q.shape, "d_k": given.k.shape, "d_v": given.v.shape}
        for name in GRADIENTS:
            buffers[name] = device.storage(np.array(np.broadcast_to(self.before.get(name, SENTINEL), shapes[name]), np.float32))
        encoder = device.raw.create_command_encoder()
        self.plan.record(encoder, buffers, given.scale)
        device.raw.queue.submit([encoder.finish()])
        assert problem.v_head_dim == problem.head_dim
        return {n: np.frombuffer(device.read(buffers[n]), np.float32)[: np.prod(s)].reshape(s) for n, s in shapes.items()}


def run(device: Device, recipe: Recipe, given: Inputs) -> Outputs:
    return Run(device=device, recipe=recipe)(given)
