"""The search for one problem's fastest choice, within a time: stage by stage, each a race by successive halving.

A stage takes candidates nearest to the best known first and times each shortly against the incumbent; the better third
again for longer, the better third of those for longer still. The winner is the next stage's incumbent. In the end what
came out is raced against the default once more, and only a clear win replaces it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..algorithms.choice import Choice
from ..algorithms.recipe import Recipe
from ..errors import UnservedProblemError, VariantError
from ..problem.problem import Problem
from ..selection.ranking import choices, select
from ..selection.tables import EMPTY
from . import space as spaces
from .journal import Measurement
from .trial import BATCH, Bench, Candidate

RUNGS = (3, 7, 13)
"""Rounds of the heats."""
KEEP = 3
"""One candidate in so many goes on to the next heat, and none that is ``HOPELESS`` times slower than the best."""
HOPELESS = 1.3
FIRST_HEAT = 0.65
"""The first heat's part of a stage's time: it sees most candidates, and has them compiled."""
CLEAR = 0.99
"""A win takes at least one part in a hundred off the time; less is noise."""
GLANCE = 0.9
"""What was only seen in a first heat counts as a win, where the search breaks off, if it is so much better."""
START_WEIGHT = 3
"""The first stage's share of the time, beside those that the algorithm's stages have; what one leaves goes to the others."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the search found for one problem. ``best`` is None where nothing could be timed; ``reason`` says why.

    The final measurements are by the default's side, in one run: ``default``, ``best`` (which may be the default's own)
    and ``runner_up``.
    """

    problem: Problem
    default: Measurement | None = None
    best: Measurement | None = None
    runner_up: Measurement | None = None
    final: bool = False
    reason: str = ""
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def speed_up(self) -> float:
        """The default's time over the best's; 1 where the default is the best."""
        score = self.best.score if self.best else None
        return 1 / score if score else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a search is doing, for a progress bar. Times in seconds, 0 where not known yet."""

    problem: Problem
    doing: str
    best: str = ""
    best_seconds: float = 0.0
    default_seconds: float = 0.0


class Search:
    """One problem's search. ``seeds`` are choices to begin with beside selection's own, such as those of older tables."""

    def __init__(
        self,
        bench: Bench,
        *,
        space: spaces.Space | None,
        seeds: Iterable[Choice] = (),
        algorithm: str | None = None,
        guard: str = "zero",
        tell: Callable[[Status], None] = lambda status: None,
        found: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self._bench = bench
        self._space = space
        self._seeds = tuple(seeds)
        self._algorithm = algorithm
        self._guard = guard
        self._tell = tell
        self._found = found
        self._problem = bench.problem
        self._profile = bench.device.profile
        self._standing: dict[str, tuple[int, Measurement, Candidate]] = {}
        self.outcome = Outcome(problem=bench.problem)

    def run(self, seconds: float) -> Outcome:
        """Searches for about so long; what was found stands in ``outcome`` at any time. Raises ``DeviceError``."""
        outcome, end = self.outcome, time.monotonic() + seconds
        default = self._default()
        if default is None:
            return outcome
        reserve = 0.12 * seconds
        last = end - reserve
        if self._space is not None:
            self._compete("own", spaces.entries(self._space, self._problem, self._profile), last - time.monotonic())
        else:
            weight = START_WEIGHT + sum(stage.weight for stage in self._choice.of.stages())
            self._compete("start", self._firsts(), (last - time.monotonic()) * START_WEIGHT / weight)
            stages = self._choice.of.stages()
            for number, stage in enumerate(stages):
                left = last - time.monotonic()
                if left <= 0:
                    break
                share = left * stage.weight / sum(later.weight for later in stages[number:])
                self._compete(stage.name, list(stage.neighbours(self._choice, self._problem, self._profile)), share)
        self._finish(default)
        return outcome

    @property
    def _choice(self) -> Choice:
        choice = self._incumbent.choice
        return choice if choice is not None else self._first_choice

    def _default(self) -> Candidate | None:
        """What selection takes without tuning: the first incumbent, and what all scores are relative to."""
        offered = choices(self._problem, self._profile, algorithm=self._algorithm, guard=self._guard)
        if not offered:
            refusals = select(self._problem, self._profile, algorithm=self._algorithm, guard=self._guard, tuning=EMPTY).refusals
            self.outcome.reason = str(UnservedProblemError(self._problem, self._profile.name, refusals))
            return None
        self._offered, self._first_choice = offered, offered[0]
        self._say("the default")
        default = self._bench.candidate(offered[0], self._guard)
        self._incumbent, self._score = default, 1.0
        first = self._measure(default, "default", RUNGS[0])
        if first.status != "timed":
            self.outcome.reason = f"the default: {first.reason}"
            return None
        self.outcome.default = first
        self._conclude()
        return default

    def _firsts(self) -> list[Choice | Recipe]:
        """What the search begins with: older tables' choices, the default's algorithm, and the best of each other one.

        An algorithm is out of the running beyond its ``tuned_up_to``: at 2048 positions the original's kernels took 14 and 36
        times as long as ``tiled``.
        """
        longest = max(self._problem.q_len, self._problem.kv_len)
        first = self._first_choice.algorithm
        same = [choice for choice in self._offered if choice.algorithm == first]
        others: dict[str, Choice] = {}
        for choice in self._offered:
            limit = choice.of.tuned_up_to
            if choice.algorithm != first and (limit is None or longest <= limit):
                others.setdefault(choice.algorithm, choice)
        return list(dict.fromkeys((*self._seeds, *same, *others.values())))

    def _compete(self, stage: str, pool: Sequence[Choice | Recipe], seconds: float) -> None:
        """One stage; leaves the winner as the incumbent."""
        begin = time.monotonic()
        end, first_end = begin + seconds, begin + FIRST_HEAT * seconds
        pending = list(pool)
        field_: dict[str, tuple[int, float, Candidate]] = {}
        best, best_score = self._incumbent.choice, self._score
        _nearest_first(pending, best)
        while pending and time.monotonic() < (first_end if field_ else end):
            batch, before = self._next(pending), best
            self._say(f"{stage}: compiling {len(batch)} candidates, {len(pending)} more to try")
            self._bench.compile(batch)
            for candidate in batch:
                if field_ and time.monotonic() >= end:
                    break
                self._say(f"{stage}: {candidate.label}")
                made = self._measure(candidate, stage, RUNGS[0])
                if made.score is not None:
                    field_[candidate.identity] = (0, made.score, candidate)
                    if made.score < best_score:
                        best, best_score = candidate.choice, made.score
            if best is not before:
                _nearest_first(pending, best)
        for rung, rounds in enumerate(RUNGS[1:], 1):
            ranked = sorted((score, identity) for identity, (at, score, _) in field_.items() if at == rung - 1)
            going = [identity for score, identity in ranked[: math.ceil(len(ranked) / KEEP)] if score < HOPELESS * ranked[0][0]]
            for identity in going:
                if time.monotonic() >= end:
                    break
                candidate = field_[identity][2]
                self._say(f"{stage}, again: {candidate.label}")
                made = self._measure(candidate, stage, rounds)
                if made.score is not None:
                    field_[identity] = (rung, made.score, candidate)
        self._adopt(field_.values())

    def _adopt(self, field_: Iterable[tuple[int, float, Candidate]]) -> None:
        """The best of those that came furthest, where it beats the incumbent clearly."""
        top = max((rung for rung, *_ in field_), default=0)
        ranked = sorted(
            ((score, n, c) for n, (rung, score, c) in enumerate(field_) if rung == top), key=lambda entry: entry[:2]
        )
        if ranked and ranked[0][0] < (CLEAR if top else GLANCE) * self._score:
            self._score, _, self._incumbent = ranked[0]

    def _next(self, pending: list[Choice | Recipe]) -> list[Candidate]:
        """Takes as many candidates out of ``pending`` as are compiled at once; those that cannot serve are dropped."""
        batch: list[Candidate] = []
        while pending and len(batch) < min(BATCH, os.cpu_count() or 1):
            try:
                candidate = self._bench.candidate(pending.pop(0), self._guard)
            except VariantError:
                continue
            if candidate.identity != self._incumbent.identity:
                batch.append(candidate)
        return batch

    def _measure(self, candidate: Candidate, stage: str, rounds: int) -> Measurement:
        made, _ = self._bench.trial(candidate, self._incumbent, stage=stage, rounds=rounds, score=self._score)
        self.outcome.measurements.append(made)
        if made.status == "timed":
            self._standing[made.identity] = (rounds, made, candidate)
            if rounds > RUNGS[0]:
                self._conclude()
        return made

    def _finish(self, default: Candidate) -> None:
        """Races the best two against the default."""
        rivals = [candidate for _, candidate in self._ranked() if candidate.identity != default.identity][:2]
        self._incumbent, self._score = default, 1.0
        finals = []
        for candidate in rivals:
            self._say(f"against the default: {candidate.label}")
            made = self._measure(candidate, "final", RUNGS[-1])
            if made.status == "timed":
                finals.append(made)
        if not finals:
            finals = [self._measure(default, "final", RUNGS[-1])]
        self._conclude(finals)
        self._bench.forget()

    def _ranked(self) -> list[tuple[Measurement, Candidate]]:
        """What was timed, the best first; a candidate that was only glanced at, after those that were looked at for longer."""
        found = sorted(self._standing.values(), key=lambda entry: (entry[0] == RUNGS[0], entry[1].score or math.inf))
        return [(made, candidate) for _, made, candidate in found]

    def _conclude(self, finals: Sequence[Measurement] = ()) -> None:
        """Writes down what is known so far, or in the end."""
        outcome = self.outcome
        assert outcome.default is not None
        ranked = list(finals) or [
            made for rounds, made, _ in self._standing.values() if rounds > RUNGS[0] or (made.score or 1.0) < GLANCE
        ]
        if finals:  # all by the default as it was in the best one's turns
            base = min(finals, key=lambda made: made.score or math.inf).incumbent_seconds or 0.0
            outcome.default = replace(outcome.default, seconds=base, ratio=1.0, score=1.0, rounds=finals[0].rounds)
            ranked = [replace(made, seconds=base * (made.score or 1.0), incumbent_seconds=base) for made in ranked]
        rest = [made for made in ranked if made.identity != outcome.default.identity]
        order = sorted([outcome.default, *rest], key=lambda made: made.score or math.inf)
        if rest and (order[0] is outcome.default or (order[0].score or 1.0) >= CLEAR):
            order.remove(outcome.default)
            order.insert(0, outcome.default)
        outcome.best, outcome.runner_up = order[0], order[1] if len(order) > 1 else None
        outcome.final = bool(finals)
        self._found(outcome)

    def _say(self, doing: str) -> None:
        best, default = self.outcome.best, self.outcome.default
        self._tell(
            Status(
                problem=self._problem,
                doing=doing,
                best=best.label if best else "",
                best_seconds=(best.seconds or 0.0) if best else 0.0,
                default_seconds=(default.seconds or 0.0) if default else 0.0,
            )
        )


def _nearest_first(pending: list[Choice | Recipe], best: Choice | None) -> None:
    """Brings the candidates nearest to the best so far to the front; of equals, the order given stays."""
    if best is not None and all(isinstance(entry, Choice) for entry in pending):
        pending.sort(key=lambda entry: spaces.distance(entry, best))
