"""Proves the kernels on a device: every algorithm that serves a case, run on it and held against float64.

A ``Case`` is one backward pass with its arrays: from a file such as a captured training step, or made up for a problem.
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
from ..planning.plan import plan
from ..planning.rope import record_rope_backward
from ..problem.scalars import resolve_numbers
from ..reference import attention as reference
from ..reference.accuracy import Expected, Judgement, expected, judge_rope
from ..reference.attention import Array
from ..reference.samples import F32, Case, synthetic_cases

ROPE_OFFSETS = (0, 100_000)
"""First positions at which rotary embedding is checked; a float32 angle is wrong in the third digit at the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run of one case: an algorithm (or ``"rope"``) with one input, and how right each gradient came out.

    ``status`` is ``"pass"``, ``"fail"``, ``"refused"`` (the algorithm does not serve the case on this device, while another
    does) or ``"baseline"`` (somebody's float32, judged for comparison only). ``reason`` says why, where something is
    refused or gave no gradients. ``variants`` are the kernels that ran, in order.
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
    cases: Iterable[Case] | None = None,
    *,
    device: Device | None = None,
    algorithm: str | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> list[Check]:
    """Runs every algorithm (or one) on every case, each with the forward pass's lse and with the exact one, then RoPE.

    ``cases`` defaults to ``synthetic_cases()``, ``device`` to the process's shared one. A kernel that the device's compiler
    or driver fails on is a failed check; a case that no algorithm serves fails too. ``progress`` is told what is being done.
    Raises ``ArgumentError`` for an unknown algorithm and ``DeviceError`` where there is no device at all.
    """
    if algorithm is not None:
        algorithm_named(algorithm)
    device = device or default_device()
    checks: list[Check] = []
    for case in synthetic_cases() if cases is None else cases:
        progress(f"{case.name}: the float64 reference")
        right = _expected(case)
        exact = reference.forward(case.problem, case.q, case.k, case.v, **case.options)[1].astype(np.float32)
        # The step's own o goes with its own lse; without an o a kernel must find D for itself.
        inputs = ((case.lse_name, case.lse, case.o), ("exact lse", exact, None))
        found: list[Check] = []
        for name in ALGORITHMS if algorithm is None else (algorithm,):
            bounds = _expected(case, chained=True) if ALGORITHMS[name].chained else right
            runs = []
            for given, lse, o in inputs:
                progress(f"{case.name}: {name}, {given}")
                runs.append(_run(case, device, name, given, lse, o, bounds))
            found += runs if any(run.status != "refused" for run in runs) else runs[:1]
        if all(check.status == "refused" for check in found):
            found = [_record(case, c.algorithm, c.given, "fail", reason=c.reason) for c in found]
        judged = right.judge(case.float32).judgements
        found.append(_record(case, case.float32_name, "", "baseline", judgements=judged))
        if case.problem.head_dim % 2 == 0:
            for offset in ROPE_OFFSETS:
                progress(f"{case.name}: rotary embedding from position {offset}")
                found.append(_run_rope(case, device, right.outputs, offset))
        checks += found
    return checks


def _record(
    case: Case, algorithm: str, given: str, status: Literal["pass", "fail", "refused", "baseline"], **rest: Any
) -> Check:
    return Check(case=case.name, problem=str(case.problem), algorithm=algorithm, given=given, status=status, **rest)


def _run(
    case: Case,
    device: Device,
    algorithm: str,
    given: str,
    lse: F32,
    o: F32 | None,
    right: Expected,
) -> Check:
    variants: tuple[str, ...] = ()
    try:
        chosen = plan(replace(case.problem, given="none" if o is None else "o"), device, algorithm=algorithm)
        variants = tuple(variant.name for variant in chosen.recipe.variants)
        arrays = {"q": case.q, "k": case.k, "v": case.v, "d_o": case.d_o, "lse": lse}
        if o is not None:
            arrays["o"] = o
        if case.doc_start is not None:
            arrays["doc_start"] = np.broadcast_to(case.doc_start, case.q.shape[:2]).astype(np.uint32)
        got = run_plan(chosen, arrays, resolve_numbers(chosen.problem, case.scale, None))
    except UnservedProblemError as error:
        return _record(case, algorithm, given, "refused", reason="; ".join(error.reasons))
    except WgslAttentionError as error:
        return _record(case, algorithm, given, "fail", reason=str(error), variants=variants)
    verdict = right.judge(got)
    status: Literal["pass", "fail"] = "pass" if verdict.ok else "fail"
    return _record(case, algorithm, given, status, judgements=verdict.judgements, variants=variants)


def _expected(case: Case, *, chained: bool = False) -> Expected:
    return expected(case.problem, case.q, case.k, case.v, case.d_o, chained=chained, **case.options)


def _run_rope(case: Case, device: Device, gradients: Mapping[str, Array], offset: int) -> Check:
    """Both RoPE kernels, on the right d_q and d_k in float32."""
    judgements = []
    given = f"from {offset}"
    variants = ("rope_q_backward", "rope_k_backward")
    try:
        for tensor, name in (("q", "d_q"), ("k", "d_k")):
            d_x = gradients[name].astype(np.float32)
            batch, seq, heads, head_dim = d_x.shape
            buffer = device.storage(d_x, label=name)
            with device.guard("running rotary embedding backward"):
                encoder = device.raw.create_command_encoder()
                record_rope_backward(
                    device,
                    encoder,
                    buffer,
                    batch=batch,
                    seq=seq,
                    heads=heads,
                    head_dim=head_dim,
                    offset=offset,
                    tensor=tensor,  # type: ignore[arg-type]
                )
                device.raw.queue.submit([encoder.finish()])
            got = np.frombuffer(device.read(buffer, d_x.nbytes), np.float32).reshape(d_x.shape)
            judgements.append(judge_rope(name, got, d_x, offset))
    except WgslAttentionError as error:
        return _record(case, "rope", given, "fail", reason=str(error), variants=variants)
    status: Literal["pass", "fail"] = "pass" if all(j.ok for j in judgements) else "fail"
    return _record(case, "rope", given, status, judgements=tuple(judgements), variants=variants)
