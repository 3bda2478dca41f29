"""Proves the kernels on a device: every algorithm that serves a sample, run on it and held against float64.

``run_checks`` returns plain records, one for each run; the command line prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..algorithms import ALGORITHMS
from ..algorithms.algorithm import algorithm_named
from ..errors import UnservedProblemError, WgslAttentionError
from ..gpu.device import Device, default_device
from ..planning.execute import run_plan
from ..planning.plans import plan
from ..planning.rope import rope_program
from ..problem.rotation import ROPE_BASE, Rotation, resolve_angles
from ..reference.accuracy import Expected, Judgement, judge_rope
from ..reference.attention import Array
from ..reference.samples import Sample, assorted_samples

ROPE_OFFSETS = (0, 100_000)
"""First positions at which rotary embedding is checked; a float32 angle is wrong in the third digit at the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run on one sample: an algorithm (or ``"rope"``) with one input, and how right each gradient came out.

    ``case`` is the sample's name, ``given`` whose lse it had. ``status`` is ``"pass"``, ``"fail"``, ``"refused"`` (the
    algorithm does not serve the sample on this device, while another does) or ``"baseline"`` (somebody's float32, judged for
    comparison only). ``reason`` says why, where something is refused or gave no gradients. ``variants`` are the kernels that
    ran, in order.
    """

    case: str
    problem: str
    algorithm: str
    given: str
    status: Literal["pass", "fail", "refused", "baseline"]
    judgements: tuple[Judgement, ...] = ()
    variants: tuple[str, ...] = ()
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status != "fail"


def run_checks(
    samples: Iterable[Sample] | None = None,
    *,
    device: Device | None = None,
    algorithm: str | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> list[Check]:
    """Runs every algorithm (or one) on every sample, each with the forward pass's lse and with the exact one, then RoPE.

    ``samples`` defaults to ``assorted_samples()``, ``device`` to the process's shared one. A kernel that the device's compiler
    or driver fails on is a failed check; a sample that no algorithm serves fails too. ``progress`` is told what is being done.
    Raises ``ArgumentError`` for an unknown algorithm and ``DeviceError`` where there is no device at all.
    """
    if algorithm is not None:
        algorithm_named(algorithm)
    device = device or default_device()
    checks: list[Check] = []
    for sample in assorted_samples() if samples is None else samples:
        progress(f"{sample.name}: the float64 reference")
        right = sample.expected()
        # The sample's own o goes with its own lse; without an o a kernel must find D for itself.
        exact = sample.without("o").changed(lse=sample.forward()[1])
        inputs = {"given lse": sample, "exact lse": exact}
        if "lse" not in sample.arrays:
            inputs = {"float32 lse": sample.changed(lse=sample.forward(np.float32)[1]), "exact lse": exact}
        found: list[Check] = []
        for name in ALGORITHMS if algorithm is None else (algorithm,):
            bounds = sample.expected(chained=True) if ALGORITHMS[name].chained else right
            runs = []
            for given, asked in inputs.items():
                progress(f"{sample.name}: {name}, {given}")
                runs.append(_run(asked, device, name, given, bounds))
            found += runs if any(run.status != "refused" for run in runs) else runs[:1]
        if all(check.status == "refused" for check in found):
            found = [_record(sample, c.algorithm, c.given, "fail", reason=c.reason) for c in found]
        whose, theirs = ("autograd", sample.theirs) if sample.theirs else ("NumPy", sample.backward(np.float32))
        found.append(_record(sample, whose, "", "baseline", judgements=right.judge(theirs).judgements))
        if sample.problem.head_dim % 2 == 0:
            for offset in ROPE_OFFSETS:
                progress(f"{sample.name}: rotary embedding from position {offset}")
                found.append(_run_rope(sample, device, right.outputs, offset))
        checks += found
    return checks


def _record(
    sample: Sample, algorithm: str, given: str, status: Literal["pass", "fail", "refused", "baseline"], **rest: Any
) -> Check:
    return Check(case=sample.name, problem=str(sample.problem), algorithm=algorithm, given=given, status=status, **rest)


def _run(sample: Sample, device: Device, algorithm: str, given: str, right: Expected) -> Check:
    variants: tuple[str, ...] = ()
    try:
        problem = replace(sample.problem, given="o" if "o" in sample.arrays else "none")
        chosen = plan(problem, device, algorithm=algorithm)
        variants = tuple(variant.name for variant in chosen.recipe.variants)
        got = run_plan(chosen, sample.arrays, sample.numbers)
    except UnservedProblemError as error:
        return _record(sample, algorithm, given, "refused", reason="; ".join(error.reasons))
    except WgslAttentionError as error:
        return _record(sample, algorithm, given, "fail", reason=str(error), variants=variants)
    verdict = right.judge(got)
    status: Literal["pass", "fail"] = "pass" if verdict.ok else "fail"
    return _record(sample, algorithm, given, status, judgements=verdict.judgements, variants=variants)


def _run_rope(sample: Sample, device: Device, gradients: Mapping[str, Array], offset: int) -> Check:
    """Both RoPE kernels, on the right d_q and d_k in float32."""
    judgements = []
    given = f"from {offset}"
    variants = ("rope_q_backward", "rope_k_backward")
    try:
        for tensor, name in (("q", "d_q"), ("k", "d_k")):
            d_x = gradients[name].astype(np.float32)
            batch, seq, heads, head_dim = d_x.shape
            rotation = Rotation(batch=batch, seq=seq, heads=heads, head_dim=head_dim)
            angles = resolve_angles(rotation, ROPE_BASE, offset)
            got = run_plan(rope_program(rotation, device, tensor), {"d_x": d_x}, angles)["d_x"]
            judgements.append(judge_rope(name, got, d_x, offset))
    except WgslAttentionError as error:
        return _record(sample, "rope", given, "fail", reason=str(error), variants=variants)
    status: Literal["pass", "fail"] = "pass" if all(j.ok for j in judgements) else "fail"
    return _record(sample, "rope", given, status, judgements=tuple(judgements), variants=variants)
