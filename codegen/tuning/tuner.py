"""Finds the fastest kernels for given problems on a device, by measurement, and keeps them in a tuning table.

``tune`` is the call from Python; ``Tuner`` is what it and the command line drive. Times are of one device in one run, each
candidate beside an incumbent; see ``search`` for the order and ``trial`` for one measurement.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MappingProxyType

from ..algorithms.choice import Choice
from ..errors import ArgumentError, DeviceError, TuningError, VariantError
from ..gpu.device import Device, default_device
from ..problem.mask import Mask
from ..problem.problem import Problem
from ..selection import tables as tuning
from ..selection.table_files import default_table
from ..selection.tables import Key, Row, Table
from .journal import Journal, Measurement
from .search import Outcome, Search, Status
from .space import Space
from .trial import Bench, UncheckedDevice

BUDGET = 120.0
MAX_BUDGET = 1e7


def _causal(seq: int, heads: int, kv_heads: int, head_dim: int, batch: int = 1, mask: Mask | None = None) -> Problem:
    mask = Mask.causal() if mask is None else mask
    return Problem(q_len=seq, kv_len=seq, heads=heads, kv_heads=kv_heads, head_dim=head_dim, batch=batch, mask=mask, given="o")


PRESETS = MappingProxyType(
    {
        "gpt-small": (_causal(1024, 12, 12, 64), _causal(1024, 12, 12, 64, batch=8)),
        "llama-1b": (_causal(2048, 32, 8, 64), _causal(8192, 32, 8, 64)),
        "llama-8b": (_causal(2048, 32, 8, 128), _causal(4096, 32, 8, 128)),
        "bert": (_causal(512, 12, 12, 64, mask=Mask.full()), _causal(512, 12, 12, 64, batch=16, mask=Mask.full())),
        "long-context": (_causal(16384, 8, 2, 128), _causal(32768, 8, 2, 128), _causal(16384, 32, 8, 64)),
    }
)
"""Attention as some families of models train it: GPT-2 small, Llama 3.2 1B, Llama 3.1 8B, BERT base, a shard of long context."""


class Tuner:
    """Tunes problems one after another within a time. ``outcomes`` and ``measurements`` hold what there is at any moment.

    With a ``table`` its rows are brought up to date in the file whenever something better is known; other rows stay.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        device: Device,
        *,
        space: Space | None = None,
        budget: float = BUDGET,
        log: Path | None = None,
        table: Path | None = None,
        resume: bool = False,
        algorithm: str | None = None,
        guard: str = "zero",
        unchecked: bool = False,
        tell: Callable[[Status], None] = lambda status: None,
    ) -> None:
        """Raises ``ArgumentError``, and ``TuningError`` where a file is no table or cannot be written."""
        self.problems = list(dict.fromkeys(problems))
        if not self.problems:
            raise ArgumentError("problems", "none", "one or more")
        for problem in self.problems:
            if not isinstance(problem, Problem):
                raise ArgumentError("problems", f"a {type(problem).__name__}", "Problems")
        if not 0 < budget <= MAX_BUDGET:
            raise ArgumentError("budget", budget, "seconds, more than 0")
        self._device = UncheckedDevice(device) if unchecked else device
        self._space, self._algorithm, self._guard, self._tell = space, algorithm, guard, tell
        self._budget = budget
        self._path = table
        self._kept = tuning.load(table) if table is not None and table.exists() else tuning.EMPTY
        self.journal = Journal(log, resume=resume)
        self.package = _version()
        self.outcomes: list[Outcome] = []
        self.interrupted = False

    @property
    def measurements(self) -> list[Measurement]:
        """Every measurement of this run, in order; those that a resumed journal had are among them."""
        return [made for outcome in self.outcomes for made in outcome.measurements]

    def run(self) -> None:
        """Tunes. On Ctrl-C (``KeyboardInterrupt``) it stops, ``interrupted``, with what was measured kept.

        Raises ``DeviceError`` where the device is lost; what was measured is kept then too.
        """
        end = time.monotonic() + self._budget
        try:
            for number, problem in enumerate(self.problems):
                left = max(0.0, end - time.monotonic())
                bench = Bench(self._device, problem, self.journal, self.package)
                search = Search(
                    bench,
                    space=self._space,
                    seeds=self._seeds(problem),
                    algorithm=self._algorithm,
                    guard=self._guard,
                    tell=self._tell,
                    found=self._found,
                )
                self.outcomes.append(search.outcome)
                try:
                    search.run(left / (len(self.problems) - number))
                except DeviceError as error:
                    search.outcome.reason = str(error)
                    raise
                finally:
                    bench.forget()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.journal.close()

    def _seeds(self, problem: Problem) -> list[Choice]:
        """What tables recommend: where it is still the best, it must be there to win again."""
        found = []
        for table in (self._kept, default_table()):
            for row, _ in list(table.lookup(problem, self._device.profile))[:2]:
                try:
                    found.append(tuning.restore(row, problem, self._guard))
                except VariantError:
                    continue
        return [choice for choice in dict.fromkeys(found) if self._algorithm in (None, choice.algorithm)]

    def _found(self, outcome: Outcome) -> None:
        row = self.row(outcome)
        if row is None or self._path is None:
            return
        rows = [other for other in self._kept.rows if other.identity != row.identity]
        rows = sorted([*rows, row], key=lambda each: (each.device, str(each.key)))
        if tuple(rows) != self._kept.rows:
            self._kept = Table(rows=tuple(rows))
            tuning.save(self._kept, self._path)

    def row(self, outcome: Outcome) -> Row | None:
        """The table's row for an outcome; None where there is nothing that a table can name."""
        best, default, second = outcome.best, outcome.default, outcome.runner_up
        if best is None or default is None or best.choice is None or best.seconds is None:
            return None
        profile = self._device.profile
        return Row(
            device=profile.identity,
            vendor=profile.vendor,
            architecture=profile.architecture,
            backend=profile.backend,
            key=Key.of(outcome.problem),
            problem=str(outcome.problem),
            choice=best.choice,
            seconds=best.seconds,
            default_seconds=best.seconds / (best.score or 1.0),
            runner_up=second.choice if second else None,
            runner_up_seconds=second.seconds if second and second.choice else None,
            measured={**best.circumstances, "package": self.package, "backend": profile.backend, "driver": profile.driver},
        )


def tune(
    problems: Problem | Iterable[Problem],
    space: Space | None = None,
    device: Device | None = None,
    budget: float = BUDGET,
    log: str | Path | None = None,
    *,
    table: str | Path | None = None,
    resume: bool = False,
    algorithm: str | None = None,
    guard: str = "zero",
) -> list[Measurement]:
    """Times candidates for each problem on a device and returns every measurement, as records that a DataFrame takes.

    ``space`` is what is tried beside selection's own choice: an iterable of ``Choice`` or ``Recipe``, or a
    function of (problem, profile) that gives one; without it the whole tunable space, the promising first, as far as
    ``budget`` seconds for all problems together go. Each candidate's gradients are checked before it is timed.
    ``log`` is a file that each measurement is appended to at once, and that ``resume`` takes up again; ``table`` a tuning
    table that is brought up to date with what was found (``selection.table_files.user_table()`` is the one that is used by itself).
    ``device`` defaults to the process's shared one; ``algorithm`` and ``guard`` are as for ``select``. Ctrl-C ends it early,
    with what was measured. Lengths are the problems' own; a row of a table serves lengths near it (see ``tuning``).

    Raises ``ArgumentError``, ``TuningError`` for files, and ``DeviceError`` where there is no device or it is lost.
    """
    tuner = Tuner(
        [problems] if isinstance(problems, Problem) else problems,
        device or default_device(),
        space=space,
        budget=budget,
        log=None if log is None else Path(log),
        table=None if table is None else Path(table),
        resume=resume,
        algorithm=algorithm,
        guard=guard,
    )
    tuner.run()
    return tuner.measurements


def merge_files(paths: Iterable[Path], into: Path) -> Table:
    """Writes the merger of several tables (``tuning.merge``), with ``into``'s own rows where it exists. Raises ``TuningError``."""
    tables = [tuning.load(path) for path in paths]
    if into.exists():
        tables.insert(0, tuning.load(into))
    merged = tuning.merge(tables)
    if merged.faults:
        raise TuningError("; ".join(merged.faults))
    tuning.save(merged, into)
    return merged


def _version() -> str:
    """The package's version, which a checkout that is not installed has too."""
    return str(sys.modules["wgsl_attention"].__version__)
