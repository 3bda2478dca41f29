"""What the kernel tests share: samples for a problem, and a run of chosen variants on buffers that held something else before."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from conftest import skip_without
from wgsl_attention import PROFILES
from wgsl_attention.algorithms import ALGORITHMS
from wgsl_attention.algorithms.choice import Choice
from wgsl_attention.algorithms.recipe import Recipe
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.kernels.original import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from wgsl_attention.planning.plans import Plan
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import Problem
from wgsl_attention.reference import accuracy, samples
from wgsl_attention.reference.attention import Outputs
from wgsl_attention.reference.samples import Sample

Array = np.ndarray[Any, Any]
DEFAULT = PROFILES["webgpu-default"]
SENTINEL = np.float32(-12345.678)
"""What output buffers hold before a kernel runs: an element that is not written, or added to by mistake, shows."""


@functools.cache
def wgpu_device() -> Device:
    """The process's wgpu device, on which most kernel tests run: each pipeline takes Dawn on SwiftShader 3 to 5 s."""
    skip_without("wgpu")
    return open_device("wgpu")


def problem(mask: Mask, q_len: int, kv_len: int = 0, **sizes: Any) -> Problem:
    """A problem of small sizes: two heads over one kv head, head_dim 16."""
    return Problem(
        **{"heads": 2, "kv_heads": 1, "head_dim": 16, "mask": mask, "q_len": q_len, "kv_len": kv_len or q_len, **sizes}
    )


def documents(problem: Problem, lengths: list[int] | None = None, seed: int = 0) -> Array:
    """doc_start (batch, seq): documents of these lengths, or of random ones, different in each batch entry."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(problem.batch):
        first = rng.random(problem.q_len) < 3 / problem.q_len
        first[0] = True
        starts = np.maximum.accumulate(np.where(first, np.arange(problem.q_len), 0))
        rows.append(starts if lengths is None else samples.documents(problem.q_len, lengths))
    return np.array(rows)


def sample(problem: Problem, *, seed: int = 0, doc_start: Any = None, **given: Any) -> Sample:
    """Normal noise, or the arrays that are ``given``, with lse, o and delta; documents are random where none are given."""
    starts = documents(problem, seed=seed) if doc_start is None else doc_start
    return samples.random_sample(problem, seed=seed, doc_start=starts, **given).completed()


def rule(given: Sample, algorithm: str, lse: Array | None = None) -> accuracy.Expected:
    """What is right for an algorithm; ``lse`` only where it is not these rows' own on purpose."""
    return given.expected(lse=lse, chained=ALGORITHMS[algorithm].chained)


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
    """Runs one recipe. ``before`` is what the gradients' buffers hold (default: the sentinel), ``scratch`` all scratch."""

    device: Device
    recipe: Recipe
    before: Mapping[str, Array] = field(default_factory=dict)
    scratch: float | None = None

    def __post_init__(self) -> None:
        if lacking := self.recipe.refusals(self.device.profile):
            pytest.skip("; ".join(lacking))
        self.plan = Plan(self.recipe, self.device)
        self.buffers: dict[str, Any] | None = None
        if self.scratch is not None:
            fills = {name: np.full(size // 4, self.scratch, np.float32) for name, size in self.plan.scratch.items()}
            self.buffers = {name: self.device.storage(fill, label=name) for name, fill in fills.items()}

    def __call__(self, given: Sample, padding: float | None = None) -> Outputs:
        """The gradients. With ``padding``, every input buffer is 64 elements longer, and they hold that."""
        device, outputs = self.device, given.problem.outputs
        tail = np.full(0 if padding is None else 64, padding or 0, np.float32)
        buffers: dict[str, Any] = {}
        for name in set(self.plan.buffers) - set(outputs):
            flat = given[name].ravel()
            buffers[name] = device.storage(np.concatenate([flat, tail.view(flat.dtype)]), label=name)
        for name, shape in outputs.items():
            held = np.array(np.broadcast_to(self.before.get(name, SENTINEL), shape), np.float32)
            buffers[name] = device.storage(held, label=name)
        device.submit(lambda encoder: self.plan.record_call(encoder, buffers, given.numbers, self.buffers))
        read = {name: np.frombuffer(device.read(buffers[name]), np.float32) for name in outputs}
        return {name: x[: np.prod(outputs[name])].reshape(outputs[name]) for name, x in read.items()}


def run(device: Device, recipe: Recipe, given: Sample) -> Outputs:
    return Run(device=device, recipe=recipe)(given)
