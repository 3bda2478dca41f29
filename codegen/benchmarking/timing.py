"""Times recipes for one problem side by side: one set of inputs, compiled first, then measured in turns.

What makes such numbers wrong, and what is done about it: an idle GPU clocks down, and compiling idles it, so everything is
compiled before anything is timed and each timing follows on work of the same kind (``warm_up``); clocks and neighbours
drift, so the contenders take turns (``race``) and a median is taken; the host's own cost stays out, by timestamps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ..algorithms.recipe import Recipe, placed
from ..errors import UnservedProblemError, WgslAttentionError
from ..gpu.device import Device
from ..planning.plans import Plan
from ..planning.program import BoundStep
from ..reference.samples import Sample

WARM_UP = 0.25
"""Seconds of GPU work before each timing."""
PASS_SECONDS = 0.02
"""Warming up goes in passes of about so long: long enough to hide the host, too short for a driver's time-out."""
MAX_REPETITIONS = 64
KERNEL_ROUNDS = 5


class Runner(Protocol):
    """What can take part in a race. ``kernels`` names the parts that can be timed by themselves."""

    @property
    def label(self) -> str: ...
    @property
    def kernels(self) -> Sequence[str]: ...

    def time(self, repetitions: int = 1, kernel: str = "") -> float:
        """Seconds that so many repetitions take together. Raises ``WgslAttentionError``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a race found out about one runner: ``seconds`` in the order measured, and each kernel's median alone.

    Kernels of one pass overlap where they do not depend on each other, so theirs may add up to more than the whole.
    ``reason`` says why a runner broke off; ``seconds`` then holds what it had, often nothing.
    """

    label: str
    seconds: tuple[float, ...] = ()
    kernels: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def ok(self) -> bool:
        return bool(self.seconds) and not self.reason

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third, interpolated; of one number twice that number."""
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return first, third


def race(
    runners: Sequence[Runner],
    *,
    rounds: int = 9,
    warm_up: float = WARM_UP,
    limit: float = math.inf,
    kernels: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> list[Timing]:
    """Times the runners in turns, ``rounds`` times each, and, with ``kernels``, then each of their kernels.

    Each runs once untimed, so that lazy allocation is no part of any number, and before each timing again until it has
    done ``warm_up`` seconds of work. A runner that has used up ``limit`` seconds sits out the rounds that are left (it has
    one timing at least). One that raises ``WgslAttentionError`` drops out; its ``reason`` says why. Returns them in order.
    """
    entries = [_Entry(runner) for runner in runners]
    for entry in entries:
        progress(f"{entry.runner.label}, the first time")
        entry.attempt(entry.first)
    for number in range(rounds):
        for entry in entries:
            if not entry.reason and (not entry.seconds or entry.spent < limit):
                progress(f"round {number + 1} of {rounds}: {entry.runner.label}")
                entry.attempt(partial(entry.time, warm_up))
    for entry in entries if kernels else ():
        for kernel in entry.runner.kernels if not entry.reason else ():
            progress(f"{entry.runner.label}: {kernel} alone")
            entry.attempt(partial(entry.time_kernel, kernel, rounds, warm_up))
    return [Timing(label=e.runner.label, seconds=tuple(e.seconds), kernels=dict(e.kernels), reason=e.reason) for e in entries]


class _Entry:
    """One runner's place in a race."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.seconds: list[float] = []
        self.kernels: dict[str, float] = {}
        self.reason = ""
        self.spent = 0.0
        self._expected = 0.0

    def attempt(self, do: Callable[[], None]) -> None:
        if not self.reason:
            try:
                do()
            except WgslAttentionError as error:
                self.reason = str(error)

    def first(self) -> None:
        self._expected = self._run()

    def time(self, warm_up: float) -> None:
        """One timing, once ``warm_up`` seconds of the same work are done."""
        self._warm(warm_up, self._expected)
        self._expected = self._run()
        self.seconds.append(self._expected)

    def time_kernel(self, kernel: str, rounds: int, warm_up: float) -> None:
        self._warm(warm_up, self._run(kernel=kernel), kernel)
        found = [self._run(kernel=kernel) for _ in range(min(rounds, KERNEL_ROUNDS))]
        self.kernels[kernel] = statistics.median(found)

    def _warm(self, warm_up: float, expected: float, kernel: str = "") -> None:
        done = 0.0
        while done < warm_up:
            fit = int(min(PASS_SECONDS, warm_up - done) / expected) if expected > 0 else MAX_REPETITIONS
            repetitions = max(1, min(MAX_REPETITIONS, fit))
            took = self._run(repetitions, kernel)
            expected = took / repetitions
            done += max(took, 1e-6)  # a clock that stands still must not keep us here for ever

    def _run(self, repetitions: int = 1, kernel: str = "") -> float:
        took = self.runner.time(repetitions, kernel)
        self.spent += took
        return took


class PlanRunner:
    """A compiled plan with its buffers bound; what a plan does before its pass (clears, copies) has been done once."""

    def __init__(self, label: str, plan: Plan, steps: Sequence[BoundStep]) -> None:
        self.label = label
        self.plan = plan
        self._steps: dict[str, list[BoundStep]] = {"": list(steps)}
        for step in steps:
            self._steps.setdefault(step.step.variant.kernel, []).append(step)

    @property
    def kernels(self) -> Sequence[str]:
        """The kernels in the order in which they first run."""
        return tuple(name for name in self._steps if name)

    @property
    def unchecked(self) -> bool:
        """Whether every kernel runs without the compiler's bounds checks."""
        return all(step.pipeline.unchecked for step in self._steps[""])

    def time(self, repetitions: int = 1, kernel: str = "") -> float:
        """Of the whole plan in one pass, or of all steps of one kernel. Raises ``DeviceError``."""

        def record(compute_pass: Any) -> None:
            for _ in range(repetitions):
                for step in self._steps[kernel]:
                    step.record(compute_pass)

        return self.plan.device.time(record)


class Workbench:
    """The buffers that all recipes for one problem on one device share, made when the first recipe wants them.

    They hold a sample's arrays; a kernel that wants a doc_start where the mask has no documents finds zeros.
    """

    def __init__(self, device: Device, sample: Sample) -> None:
        self.device = device
        self.sample = sample
        self.problem = sample.problem
        self._buffers: dict[str, Any] = {}

    def prepare(self, label: str, recipe: Recipe) -> PlanRunner:
        """Compiles a recipe for this problem and binds it, ready to be timed.

        Raises ``UnservedProblemError`` where the device cannot run it, ``DeviceError`` where its compiler does not.
        """
        refusals = recipe.refusals(self.device.profile)
        if refusals:
            raise UnservedProblemError(self.problem, self.device.profile.name, refusals)
        plan = Plan(recipe, self.device)
        buffers = {name: self._buffer(name) for name in plan.buffers}
        steps = plan.bound(buffers, self.sample.numbers)
        self.device.submit(lambda encoder: plan.record_first(encoder, buffers), doing="preparing a plan")
        return PlanRunner(label, plan, steps)

    def _buffer(self, name: str) -> Any:
        if name not in self._buffers:
            array = self.sample.arrays.get(name)
            held = self.problem.buffer_bytes[name] if array is None else placed(self.problem, name, array)
            self._buffers[name] = self.device.storage(held, label=name)
        return self._buffers[name]
