"""A small problem of the same kind as a large one, on which candidates prove that their gradients are right.

What decides which code of a kernel runs (head dims, mask, group, softcap, ALiBi) is the large problem's; lengths are a few
hundred and heads few, so that float64 has the answer in a moment. The lengths are off every tile's edge.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms import ALGORITHMS
from ..algorithms.recipe import Recipe, placed
from ..gpu.device import Device
from ..planning.plan import Plan
from ..problem.documents import doc_start_from_lengths
from ..problem.problem import Problem
from ..problem.strides import gather
from ..reference import attention as reference
from ..reference.accuracy import Expected, Verdict, expected

LENGTH = 333
"""More than two blocks of the largest tiles but one, and a multiple of nothing."""
SOFTWARE_LENGTH = 141
SOFTCAP = 2.0
"""Well inside the scores of normal noise, so that the derivative of tanh counts for something."""
MAX_GROUP = 4


def twin_of(problem: Problem, length: int = LENGTH) -> Problem:
    """The small problem. Windows and prefixes shrink with the length, so that they still cut."""
    # as many keys, more, or fewer, as the large one has
    longest = length + length // 3 * ((problem.kv_len > problem.q_len) - (problem.kv_len < problem.q_len))
    q_len, kv_len = min(problem.q_len, length), min(problem.kv_len, longest)
    strides = dict(problem.strides)
    group = next(n for n in range(min(MAX_GROUP, problem.group), 0, -1) if problem.group % n == 0)
    twin = replace(
        problem,
        strides=(),
        q_len=q_len,
        kv_len=kv_len,
        heads=group,
        kv_heads=1,
        batch=min(problem.batch, 2),
        mask=problem.mask.shrunk(kv_len),
        given="o" if problem.given == "o" else "none",  # a caller's delta is less right than the rule asks for
        accumulate=frozenset(),
    )
    return replace(twin, strides={name: s.like(problem.shapes[name], twin.shapes[name]) for name, s in strides.items()})


class Twin:
    """The twin of a problem with its arrays, its right gradients and its buffers on a device, shared by all candidates."""

    def __init__(self, device: Device, problem: Problem, *, whole: bool = False) -> None:
        """``whole`` takes the problem itself, with what that costs in float64."""
        self.device = device
        small = twin_of(problem, SOFTWARE_LENGTH if device.profile.software else LENGTH)
        self.problem = p = replace(problem, accumulate=frozenset()) if whole else small
        random = np.random.default_rng(0)

        def normal(seq: int, heads: int, dim: int, size: float = 1.0) -> NDArray[np.float32]:
            return (size * random.standard_normal((p.batch, seq, heads, dim))).astype(np.float32)

        q, k = normal(p.q_len, p.heads, p.head_dim), normal(p.kv_len, p.kv_heads, p.head_dim)
        v, d_o = normal(p.kv_len, p.kv_heads, p.v_head_dim), normal(p.q_len, p.heads, p.v_head_dim, 1e-4)
        options: reference.Options = {}
        arrays: dict[str, NDArray[Any]] = {"q": q, "k": k, "v": v, "d_o": d_o}
        if p.mask.documents_mode:
            lengths = np.diff(np.unique([0, 1, p.q_len // 3, p.q_len // 2, p.q_len]))
            doc_start = doc_start_from_lengths(lengths)
            arrays["doc_start"] = np.ascontiguousarray(np.broadcast_to(doc_start, (p.batch, p.q_len)), np.uint32)
            options["doc_start"] = doc_start
        if p.kv_lengths:
            arrays["kv_lengths"] = np.array([p.kv_len - 7 * b for b in range(p.batch)], np.uint32).clip(1)
            options["kv_lengths"] = arrays["kv_lengths"]
        if p.softcap:
            options["softcap"] = SOFTCAP
        if p.alibi:
            arrays["alibi_slopes"] = np.exp2(-8 * np.arange(1, p.heads + 1) / p.heads).astype(np.float32)
            options["alibi"] = arrays["alibi_slopes"]
        o, lse = (x.astype(np.float32) for x in reference.forward(p, q, k, v, **options))
        arrays |= {"o": o, "lse": lse}
        self._judge_by = partial(expected, p, q, k, v, d_o, **options)
        self._expected: dict[bool, Expected] = {}
        self._buffers = {name: device.storage(placed(p, name, array), label=name) for name, array in arrays.items()}
        for name in p.outputs:
            self._buffers[name] = device.zeros(p.buffer_bytes[name], label=name)

    def judge(self, recipe: Recipe) -> Verdict:
        """Runs a recipe for the twin and holds its gradients against float64. Raises as ``Plan`` and ``Plan.record`` do."""
        device = self.device
        sizes, shapes = self.problem.buffer_bytes, self.problem.shapes
        for name in self.problem.outputs:  # what is not written must show
            fill = 0.0 if name in recipe.problem.accumulate else np.nan
            device.write(self._buffers[name], np.full(sizes[name] // 4, fill, np.float32))
        plan = Plan(recipe, device)
        try:
            with device.guard("running the twin"):
                encoder = device.raw.create_command_encoder()
                buffers = {name: self._buffers[name] for name in plan.buffers}
                plan.record(encoder, buffers, softcap=SOFTCAP if self.problem.softcap else None)
                device.raw.queue.submit([encoder.finish()])
            found = {}
            for name in self.problem.outputs:
                flat = np.frombuffer(device.read(self._buffers[name], sizes[name]), np.float32)
                found[name] = gather(flat, self.problem.strides_of(name), shapes[name])
        finally:
            plan.release()
        chained = ALGORITHMS[recipe.algorithm].chained
        if chained not in self._expected:
            self._expected[chained] = self._judge_by(chained=chained)
        return self._expected[chained].judge(found)
