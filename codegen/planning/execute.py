"""Runs a plan once on NumPy arrays: uploads them to where the problem has their rows, submits, and reads the outputs back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms.recipe import placed
from ..problem.strides import gather
from ..problem.task import Scalars
from .program import Program


def run_plan(
    plan: Program,
    arrays: Mapping[str, NDArray[Any]],
    numbers: Scalars,
    *,
    before: float = 0.0,
) -> dict[str, NDArray[np.float32]]:
    """The outputs by name, float32, (batch, length, heads, dim). ``arrays`` are shaped so too, float32, by the names of buffers.

    lse and delta lack dim, doc_start is (batch, q_len) uint32. An output that is among ``arrays`` is worked on in place.
    ``before`` is what the buffers of the others hold at first, where they are overwritten: NaN shows what is not written.
    Those that are added to hold zeros. Every buffer is made for the call and freed after it.

    Raises as ``Plan.record`` does.
    """
    device, problem = plan.device, plan.recipe.problem
    buffers = {}
    for name, size in plan.buffers.items():
        if name in arrays or name not in problem.outputs:
            buffers[name] = device.storage(placed(problem, name, arrays[name]), label=name)
        else:
            buffers[name] = device.zeros(size, label=name)
            if before != 0.0 and name not in problem.accumulate:
                device.write(buffers[name], np.full(size // 4, before, np.float32))
    scratch = {name: device.zeros(size, label=name) for name, size in plan.scratch.items()}
    device.submit(lambda encoder: plan.record_call(encoder, buffers, numbers, scratch), doing=f"running {plan.recipe.label}")
    found = {}
    for name in problem.outputs:
        flat = np.frombuffer(device.read(buffers[name], plan.buffers[name]), np.float32)
        found[name] = gather(flat, problem.strides_of(name), problem.shapes[name])
    return found
