"""Measures everything that can be timed for a problem, in one race: ``measure``, and the ``Report`` that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ..errors import UnservedProblemError, WgslAttentionError
from ..gpu.device import Device
from ..problem.problem import Problem
from ..profile import DeviceProfile
from ..reference.samples import timed_sample
from .contenders import NAMES, contenders, operations
from .timing import WARM_UP, PlanRunner, Runner, Timing, Workbench, race

LIMIT, SOFTWARE_LIMIT = 20.0, 5.0
"""Seconds of work for each contender, after which it sits out the rounds that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One contender at one problem. ``status`` is ``"timed"``, ``"refused"`` (it does not serve the problem) or ``"failed"``.

    ``tflops`` counts what the mask shows (``contenders.operations``); ``ratio`` is its speed over that of the first
    contender that was timed. ``unchecked`` says that its kernels ran without the compiler's bounds checks.
    """

    label: str
    status: str
    timing: Timing
    tflops: float = 0.0
    ratio: float = 0.0
    variants: tuple[str, ...] = ()
    unchecked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All contenders at one problem, in the order asked for."""

    problem: Problem
    operations: float
    results: tuple[Result, ...]

    @property
    def timed(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.status == "timed")

    @property
    def ok(self) -> bool:
        """Whether something was timed and nothing failed; what does not serve the problem is no failure."""
        return bool(self.timed) and all(result.status != "failed" for result in self.results)


def usual_warm_up(profile: DeviceProfile) -> float:
    """Seconds; a processor's clock needs no warming up that a first run does not do."""
    return 0.0 if profile.software else WARM_UP


def measure(
    device: Device,
    problem: Problem,
    *,
    algorithms: Iterable[str] | None = None,
    layouts: Iterable[str] = (),
    variants: Iterable[str] = (),
    candidates: int = 1,
    torch: bool = False,
    document_length: int | None = None,
    rounds: int = 9,
    warm_up: float | None = None,
    limit: float | None = None,
    kernels: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> Report:
    """Prepares every contender at one problem, then races those that could be; see ``race``.

    ``algorithms``, ``layouts``, ``variants`` and ``candidates`` are as for ``contenders``; without the first three all
    algorithms take part. ``torch`` adds PyTorch's own backward pass. ``document_length`` is of a mask with documents.
    ``warm_up`` and ``limit`` default to what the kind of device needs. Raises ``ArgumentError`` for unknown names.
    """
    layouts, variants = tuple(layouts), tuple(variants)
    if algorithms is None:
        algorithms = () if layouts or variants else NAMES
    sample = timed_sample(problem, document_length=document_length)
    doc_start = sample.arrays.get("doc_start")
    workbench = Workbench(device, sample)
    entries: list[Runner | Result] = []
    for contender in contenders(problem, device.profile, algorithms, candidates=candidates, layouts=layouts, variants=variants):
        progress(f"{problem}: compiling {contender.label}")
        if contender.recipe is None:
            entries.append(_untimed(contender.label, "refused", contender.reason))
        else:
            entries.append(_enter(contender.label, partial(workbench.prepare, contender.label, contender.recipe)))
    if torch:
        from .pytorch import TorchRunner

        entries.append(_enter("PyTorch", partial(TorchRunner, problem, doc_start)))
    software = device.profile.software
    timings = race(
        [entry for entry in entries if not isinstance(entry, Result)],
        rounds=rounds,
        warm_up=usual_warm_up(device.profile) if warm_up is None else warm_up,
        limit=(SOFTWARE_LIMIT if software else LIMIT) if limit is None else limit,
        kernels=kernels,
        progress=lambda doing: progress(f"{problem}: {doing}"),
    )
    count = operations(problem, doc_start)
    first = next((timing.median for timing in timings if timing.ok), 0.0)
    raced = iter(timings)
    results = [entry if isinstance(entry, Result) else _result(entry, next(raced), count, first) for entry in entries]
    return Report(problem=problem, operations=count, results=tuple(results))


def _enter(label: str, make: Callable[[], Runner]) -> Runner | Result:
    try:
        return make()
    except UnservedProblemError as error:
        return _untimed(label, "refused", "; ".join(error.reasons))
    except WgslAttentionError as error:
        return _untimed(label, "failed", str(error))


def _untimed(label: str, status: str, reason: str) -> Result:
    return Result(label=label, status=status, timing=Timing(label=label, reason=reason))


def _result(runner: Runner, timing: Timing, count: float, first: float) -> Result:
    plan = runner if isinstance(runner, PlanRunner) else None
    return Result(
        label=timing.label,
        status="timed" if timing.ok else "failed",
        timing=timing,
        tflops=count / timing.median / 1e12 if timing.ok else 0.0,
        ratio=first / timing.median if timing.ok else 0.0,
        variants=tuple(v.name for v in plan.plan.recipe.variants) if plan else (),
        unchecked=bool(plan and plan.unchecked),
    )
