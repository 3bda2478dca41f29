"""A small problem of the same kind as a large one, on which candidates prove that their gradients are right.

What decides which code of a kernel runs (head dims, mask, group, softcap, ALiBi) is the large problem's; lengths are a few
hundred and heads few, so that float64 has the answer in a moment. The lengths are off every tile's edge.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..algorithms import ALGORITHMS
from ..algorithms.recipe import Recipe
from ..gpu.device import Device
from ..planning.execute import run_plan
from ..planning.plans import Plan
from ..problem.problem import Problem
from ..reference.accuracy import Expected, Verdict
from ..reference.samples import LOSS_SIZE, documents, random_sample

LENGTH = 333
"""More than two blocks of the largest tiles but one, and a multiple of nothing."""
SOFTWARE_LENGTH = 141
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
    """The twin of a problem with a sample and its right gradients, shared by all candidates on a device."""

    def __init__(self, device: Device, problem: Problem, *, whole: bool = False) -> None:
        """``whole`` takes the problem itself, with what that costs in float64."""
        self.device = device
        small = twin_of(problem, SOFTWARE_LENGTH if device.profile.software else LENGTH)
        self.problem = p = replace(problem, accumulate=frozenset()) if whole else small
        lengths = np.diff(np.unique([0, 1, p.q_len // 3, p.q_len // 2, p.q_len]))
        self._sample = random_sample(
            p,
            d_o_size=LOSS_SIZE,
            doc_start=documents(p.q_len, lengths),
            kv_lengths=np.array([p.kv_len - 7 * b for b in range(p.batch)]).clip(1),
        ).completed()
        self._expected: dict[bool, Expected] = {}

    def judge(self, recipe: Recipe) -> Verdict:
        """Runs a recipe for the twin and holds its gradients against float64. Raises as ``Plan`` and ``Plan.record`` do."""
        plan = Plan(recipe, self.device)
        try:
            # what is not written must show
            found = run_plan(plan, self._sample.arrays, self._sample.numbers, before=np.nan)
        finally:
            plan.release()
        chained = ALGORITHMS[recipe.algorithm].chained
        if chained not in self._expected:
            self._expected[chained] = self._sample.expected(chained=chained)
        return self._expected[chained].judge(found)
