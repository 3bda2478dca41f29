"""One candidate at one problem: compiled, checked, and timed in turns with an incumbent. ``Bench`` keeps what they share."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..algorithms.choice import Choice
from ..algorithms.recipe import Recipe
from ..benchmarking.timing import PASS_SECONDS, PlanRunner, Timing, Workbench, race
from ..errors import DeviceError, VariantError, WgslAttentionError
from ..gpu.device import Device
from ..kernels.facts import RenderedVariant
from ..problem.problem import Problem
from ..reference.samples import timed_sample
from ..rendering.kernel_text import may_run_unchecked, rendered
from ..rendering.renderer import render
from .journal import Journal, Measurement, Status
from .miniature import Twin

WARM_UP = 0.03
"""Seconds of work before each timing; the GPU is busy all the while, but for compiling, after which it is ``RECOVERY``."""
RECOVERY = 0.5
BATCH = 8
"""Candidates that are compiled at the same time."""


class UncheckedDevice(Device):
    """A device on which every kernel runs without the compiler's bounds checks, as a checked-in one would.

    For measuring kernels that are to be checked in; it shares the other device's GPU and its lifetime.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device.raw, device.profile)

    def pipeline(self, rendered: RenderedVariant, *, unchecked: bool = False) -> Any:
        return super().pipeline(rendered, unchecked=True)

    def prepare(self, variants: Iterable[tuple[RenderedVariant, bool]], threads: int = 0) -> None:
        super().prepare([(variant, True) for variant, _ in variants], threads)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A choice, or a bare recipe, made for one problem: the ``recipe``, and the ``small`` one for the problem's twin."""

    choice: Choice | None
    recipe: Recipe
    small: Recipe | None

    @property
    def label(self) -> str:
        """For people; two candidates may have the same."""
        return str(self.choice or self._recipe)

    @property
    def identity(self) -> str:
        """What tells candidates apart."""
        return self._recipe if self.choice is None else self.choice.identity

    @property
    def _recipe(self) -> str:
        """A bare recipe, in words."""
        return f"{self.recipe.algorithm}: {' + '.join(variant.name for variant in self.recipe.variants)}"

    @property
    def params(self) -> dict[str, Any]:
        if self.choice is not None:
            return self.choice.params
        return {f"{v.kernel}.{name}": value for v in self.recipe.variants for name, value in v.params.items()}


class Bench:
    """Everything that the trials of one problem share: buffers, the twin with its right gradients, the journal."""

    def __init__(self, device: Device, problem: Problem, journal: Journal, package: str) -> None:
        self.device = device
        self.problem = problem
        self.journal = journal
        self.package = package
        self._work = Workbench(device, timed_sample(problem))
        self._twin: Twin | None = None
        self._verdicts: dict[Any, tuple[bool, float, str]] = {}
        self._runner: tuple[Candidate, PlanRunner] | None = None
        self.warm_up = 0.0 if device.profile.software else WARM_UP
        self._cold = True

    @property
    def twin(self) -> Twin:
        if self._twin is None:
            self._twin = Twin(self.device, self.problem)
        return self._twin

    def candidate(self, entry: Choice | Recipe, guard: str = "zero") -> Candidate:
        """Raises ``VariantError`` where the entry cannot serve the problem."""
        if isinstance(entry, Recipe):
            same = entry.problem == self.twin.problem
            return Candidate(None, entry, entry if same else None)
        choice = entry.suited(self.problem, guard)
        profile, small = self.device.profile, self.twin.problem
        return Candidate(choice, choice.recipe(self.problem, profile), choice.suited(small, guard).recipe(small, profile))

    def compile(self, candidates: Iterable[Candidate]) -> None:
        """Compiles what several candidates need, side by side. What fails will fail by itself again."""
        recipes = [recipe for c in candidates for recipe in (c.recipe, c.small) if recipe]
        wanted = {(v, recipe.problem): None for recipe in recipes for v in recipe.variants}
        fitting = [(v, of) for v, of in wanted if not v.shortfalls(self.device.profile)]
        self._cold = True
        try:
            self.device.prepare([(rendered(v, of), may_run_unchecked(v)) for v, of in fitting], min(BATCH, os.cpu_count() or 1))
        except WgslAttentionError:
            self._raise_if_gone()

    def trial(
        self, candidate: Candidate, incumbent: Candidate, *, stage: str, rounds: int, score: float = 1.0
    ) -> tuple[Measurement, bool]:
        """Measures a candidate against an incumbent whose own ``score`` (time relative to the default's) is known.

        Also says whether the journal had it already. Raises ``DeviceError`` where the device is gone, or the incumbent fails.
        """
        mark = self._fingerprint(candidate, incumbent, stage, rounds)
        known = self.journal.find(mark)
        if known is not None:
            again = None if known.ratio is None else known.ratio * score
            return replace(known, score=again), True
        if self.journal.gave_up(mark):
            return self._measurement(candidate, stage, "failed", reason="begun before, and the process did not come back"), True
        self.journal.begin(mark)
        made = self._trial(candidate, incumbent, stage, rounds, score)
        self._raise_if_gone(made.reason)
        self.journal.end(mark, made)
        return made, False

    def _trial(self, candidate: Candidate, incumbent: Candidate, stage: str, rounds: int, score: float) -> Measurement:
        refusals = candidate.recipe.refusals(self.device.profile)
        if refusals:
            return self._measurement(candidate, stage, "refused", reason="; ".join(refusals))
        ok, error, told = self._check(candidate)
        if not ok:
            return self._measurement(candidate, stage, "wrong" if error else "failed", error=error or None, reason=told)
        runner = None
        try:
            first = self._incumbent(incumbent)
            runner = first if candidate is incumbent else self._work.prepare("candidate", candidate.recipe)
            if self._cold and self.warm_up:
                self._keep_busy(first)
            pair = [runner] if runner is first else [first, runner]
            timings = race(pair, rounds=rounds, warm_up=self.warm_up)
        except DeviceError as failure:
            return self._measurement(candidate, stage, "failed", error=error, reason=str(failure))
        finally:
            if runner is not None and candidate is not incumbent:
                runner.plan.release()
        if not timings[0].ok:
            raise DeviceError(f"the incumbent broke off: {timings[0].reason}")
        if not timings[-1].ok:
            return self._measurement(candidate, stage, "failed", error=error, reason=timings[-1].reason)
        before, now = self._typical(timings[0]), self._typical(timings[-1])
        ratio = now / before if before > 0 else 1.0
        return self._measurement(
            candidate,
            stage,
            "timed",
            rounds=rounds,
            seconds=now,
            incumbent=incumbent.label,
            incumbent_seconds=before,
            ratio=ratio,
            score=ratio * score,
            error=error,
        )

    def _typical(self, timing: Timing) -> float:
        """The median; on a processor the least, since what else it does only ever adds, and much."""
        return min(timing.seconds) if self.device.profile.software else timing.median

    def _check(self, candidate: Candidate) -> tuple[bool, float, str]:
        """Whether the gradients are right, the worst multiple of the tolerance, and what is wrong."""
        if candidate.small is None:
            return self._judge_large(candidate)
        key = candidate.choice or candidate.recipe.variants
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(self.twin, candidate.small)
        return self._verdicts[key]

    def _judge_large(self, candidate: Candidate) -> tuple[bool, float, str]:
        """A bare recipe serves its own problem only, so that is where it is checked, however long float64 takes."""
        twin = Twin(self.device, self.problem, whole=True)
        return self._judge(twin, candidate.recipe)

    def _judge(self, twin: Twin, recipe: Recipe) -> tuple[bool, float, str]:
        try:
            verdict = twin.judge(recipe)
        except WgslAttentionError as error:
            return False, 0.0, str(error)
        worst = max(judgement.multiple for judgement in verdict.judgements)
        return verdict.ok, worst, "" if verdict.ok else f"its gradients: {verdict}"

    def _incumbent(self, incumbent: Candidate) -> PlanRunner:
        if self._runner is None or self._runner[0] is not incumbent:
            self.forget()
            self._runner = (incumbent, self._work.prepare("incumbent", incumbent.recipe))
        return self._runner[1]

    def forget(self) -> None:
        """Drops the incumbent's scratch."""
        if self._runner is not None:
            self._runner[1].plan.release()
            self._runner = None

    def _keep_busy(self, runner: PlanRunner) -> None:
        """After compiling and checking, which idle the GPU, its clock has to come up again."""
        done, once = 0.0, runner.time()
        while done < RECOVERY:
            done += max(1e-4, runner.time(max(1, min(64, int(PASS_SECONDS / max(once, 1e-6))))))
        self._cold = False

    def _raise_if_gone(self, reason: str = "") -> None:
        if not self.device.usable:
            raise DeviceError(reason or f"the device {self.device.profile.name} is lost")

    def _measurement(self, candidate: Candidate, stage: str, status: Status, **more: Any) -> Measurement:
        profile = self.device.profile
        return Measurement(
            problem=str(self.problem),
            device=profile.identity,
            driver=profile.driver,
            package=self.package,
            unchecked=isinstance(self.device, UncheckedDevice),
            stage=stage,
            algorithm=candidate.recipe.algorithm,
            label=candidate.label,
            identity=candidate.identity,
            variants=tuple(variant.name for variant in candidate.recipe.variants),
            params=candidate.params,
            status=status,
            choice=None if candidate.choice is None else candidate.choice.as_json(),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **more,
        )

    def _fingerprint(self, candidate: Candidate, incumbent: Candidate, stage: str, rounds: int) -> str:
        """What must be the same for a measurement to stand for another: the kernels' texts too, which may be edited between."""
        profile = self.device.profile
        texts = [_text(v) for c in (candidate, incumbent) for v in c.recipe.variants]
        what = (profile.identity, profile.driver, isinstance(self.device, UncheckedDevice), repr(self.problem), stage, rounds)
        who = [(c.identity, len(c.recipe.steps), sorted(c.recipe.scratch.items())) for c in (candidate, incumbent)]
        return hashlib.sha256(json.dumps([what, who, texts]).encode()).hexdigest()[:24]


def _text(variant: Any) -> str:
    try:
        return rendered(variant).wgsl if may_run_unchecked(variant) else render(variant).wgsl
    except VariantError as error:
        return str(error)
