"""Runs the matrix: every variant on every column, in worker processes, a few at a time.

A worker that crashes or hangs is an outcome: it is started again, and what it crashed on is tried once more in a process of
its own, so that nothing is blamed for what came before it.
"""

from __future__ import annotations

import base64
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ArgumentError
from ..kernels.facts import RenderedVariant
from ..rendering import manifest
from ..wgsl import checks as static_checks
from ..wgsl import hygiene
from .coverage import Run
from .report import Outcome, Report, Row
from .toolchains import Column, WorkerEndedError, WorkerProcess

TIMEOUT = 120.0
OPEN_TIMEOUT = 60.0
_SLOWNESS = {"tint on swiftshader": 3.0, "tint, no driver": 0.02}
"""Relative times of a task before any has been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One variant on one column: compile it, then execute the runs that are its own."""

    name: str
    runs: tuple[Run, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Queue:
    column: Column
    tasks: deque[Task]
    spent: float = 0.0
    done: int = 0

    @property
    def remaining(self) -> float:
        """Seconds of work left, by what the finished tasks took."""
        each = self.spent / self.done if self.done else _SLOWNESS.get(self.column.name, 1.0)
        return each * len(self.tasks)


def validate(
    variants: Sequence[RenderedVariant],
    columns: Sequence[Column],
    *,
    runs: Sequence[Run] = (),
    brief_runs: Sequence[Run] = (),
    not_run: Mapping[str, str] | None = None,
    executed: bool = False,
    jobs: int = 1,
    timeout: float = TIMEOUT,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Report:
    """Compiles ``variants`` on every column, executes ``runs`` (``brief_runs`` on slow drivers) on those that can, and reports.

    ``runs`` and ``not_run`` are ``coverage.runs``'s. At most ``jobs`` processes work at a time; a request that takes longer
    than ``timeout`` seconds has hung. ``progress`` is called with a variant's name, tasks done and tasks in all. Columns that
    do not answer are in ``Report.missing``.
    """
    start = time.perf_counter()
    report = Report(rows={v.name: _row(v) for v in variants}, columns=list(columns), executed=executed)
    for name, reason in (not_run or {}).items():
        report.rows[name].not_run = reason
    _Matrix(report=report, runs=runs, brief_runs=brief_runs, jobs=max(1, jobs), timeout=timeout, progress=progress).work()
    report.seconds = time.perf_counter() - start
    return report


def _row(variant: RenderedVariant) -> Row:
    findings = static_checks.check(variant)
    try:
        return Row(rendered=variant, counts=static_checks.count(variant), findings=(*findings, *hygiene.check(variant)))
    except ArgumentError:  # it does not read as WGSL, which is a finding
        return Row(rendered=variant, counts=None, findings=findings)


@dataclass(slots=True, kw_only=True)
class _Matrix:
    """The queues of all columns, and the threads that empty them; each thread has one worker process at most."""

    report: Report
    runs: Sequence[Run]
    brief_runs: Sequence[Run]
    jobs: int
    timeout: float
    progress: Callable[[str, int, int], None]
    queues: list[_Queue] = field(default_factory=list)
    compiled: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    """By column and variant."""
    stuck: set[tuple[str, frozenset[str]]] = field(default_factory=set)
    """Columns and recipes' variants that hung or crashed."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: bool = False
    total: int = 0
    done: int = 0
    failure: BaseException | None = None

    def work(self) -> None:
        opened = self.open_columns()
        self.queues = [_Queue(column=column, tasks=deque(self.tasks(column))) for column in opened]
        self.total = sum(len(q.tasks) for q in self.queues)
        threads = [threading.Thread(target=self.thread, daemon=True) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self.stop = True
        for q in self.queues:
            self.report.column_seconds[q.column.name] = q.spent
        if self.failure is not None:
            raise self.failure

    def open_columns(self) -> list[Column]:
        """The columns that answer; what keeps the others from it is noted."""
        found: dict[str, Column] = {}
        waiting = deque(self.report.columns)

        def probe() -> None:
            while waiting:
                try:
                    column = waiting.popleft()
                except IndexError:
                    return
                reason = self.open_column(column)
                if reason:
                    self.report.missing[column.name] = reason
                else:
                    found[column.name] = column

        threads = [threading.Thread(target=probe, daemon=True) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [column for column in self.report.columns if column.name in found]

    def open_column(self, column: Column) -> str:
        if column.missing:
            return column.missing
        worker = WorkerProcess(column)
        try:
            answer = worker.ask({"op": "open"}, OPEN_TIMEOUT)
        except WorkerEndedError as error:
            return str(error)
        finally:
            worker.close()
        if not answer["ok"]:
            return " ".join(str(answer["message"]).split())
        self.report.devices[column.name] = f"{answer['device']}{', ' if answer['driver'] else ''}{answer['driver']}"
        return ""

    def tasks(self, column: Column) -> list[Task]:
        own: dict[str, list[Run]] = {}
        if column.executes:
            for run in self.brief_runs if column.slow else self.runs:
                own.setdefault(run.proves[0][0], []).append(run)
        names = list(self.report.rows)
        return [Task(name=name, runs=tuple(own.pop(name, ()))) for name in names]

    def thread(self) -> None:
        worker: WorkerProcess | None = None
        mine: _Queue | None = None
        try:
            while not self.stop:
                with self.lock:
                    if mine is None or not mine.tasks:
                        waiting = [q for q in self.queues if q.tasks]
                        if not waiting:
                            return
                        mine = max(waiting, key=lambda q: q.remaining)
                    task = mine.tasks.popleft()
                if worker is not None and worker.column is not mine.column:
                    worker.close()
                    worker = None
                start = time.perf_counter()
                worker = self.do(task, mine.column, worker)
                with self.lock:
                    mine.spent += time.perf_counter() - start
                    mine.done += 1
                    self.done += 1
                    self.progress(f"{mine.column.name}: {task.name}", self.done, self.total)
        except BaseException as error:  # raised where the thread is waited for
            self.failure, self.stop = error, True
        finally:
            if worker is not None:
                worker.close()

    def do(self, task: Task, column: Column, worker: WorkerProcess | None) -> WorkerProcess | None:
        worker = self.compile(self.report.rows[task.name].rendered, column, worker)
        for run in task.runs:
            found, worker = self.execute(run, column, worker)
            self.record(run, column, found)
        return worker

    def compile(self, variant: RenderedVariant, column: Column, worker: WorkerProcess | None) -> WorkerProcess | None:
        """Compiles a variant on a column, unless that has been done: for a recipe that it is part of."""
        known = self.compiled.setdefault(column.name, {})
        if variant.name not in known:
            known[variant.name], worker = self.ask({"op": "compile", "variant": variant.as_json()}, column, worker)
        if variant.name in self.report.rows:
            self.report.rows[variant.name].compiles[column.name] = known[variant.name]
        return worker

    def execute(self, run: Run, column: Column, worker: WorkerProcess | None) -> tuple[Outcome, WorkerProcess | None]:
        """A run's outcome. Its variants are compiled first, one by one, so that what hangs there is named and not met again."""
        rows = self.report.rows
        names = frozenset(v.name for v in run.recipe.variants)
        for name in sorted(names & (rows.keys() | manifest.entries().keys())):
            worker = self.compile(rows[name].rendered if name in rows else manifest.load(name), column, worker)
            outcome = self.compiled[column.name][name]
            if outcome.status != "pipeline":
                status = "needs" if outcome.status in ("module", "needs", "quirk") else "blocked"
                return Outcome(status=status, message=f"{name}: {outcome.status}"), worker
        if (column.name, names) in self.stuck:
            return Outcome(status="blocked", message="it hung on another mask"), worker
        variants = [rows[name].rendered.as_json() for name in sorted(names & rows.keys())]
        pickled = base64.b64encode(pickle.dumps(run)).decode()
        found, worker = self.ask({"op": "run", "run": pickled, "variants": variants}, column, worker)
        if found.status in ("hung", "crashed"):
            self.stuck.add((column.name, names))
        return found, worker

    def record(self, run: Run, column: Column, found: Outcome) -> None:
        with self.lock:
            for name, mode in run.proves:
                if name in self.report.rows:
                    outcome = Outcome(
                        status=found.status,
                        message=found.message,
                        seconds=found.seconds,
                        mode=mode,
                        multiple=found.multiple,
                    )
                    if found.status != "needs":
                        self.report.rows[name].runs.setdefault(column.name, []).append(outcome)

    def ask(
        self, request: Mapping[str, Any], column: Column, worker: WorkerProcess | None
    ) -> tuple[Outcome, WorkerProcess | None]:
        """The answer as an outcome, and the worker to go on with. A crash is tried again in a process of its own."""
        while True:
            worker = worker or WorkerProcess(column)
            fresh = worker.asked == 0
            try:
                answer = worker.ask(request, self.timeout)
            except WorkerEndedError as error:
                worker = None
                if fresh or error.hung:
                    return Outcome(status="hung" if error.hung else "crashed", message=str(error)), None
                continue
            return _outcome(answer), worker


def _outcome(answer: Mapping[str, Any]) -> Outcome:
    kind = str(answer["kind"])
    status = ("pass" if answer["ok"] else "fail") if kind == "run" else kind
    return Outcome(
        status=status,
        message=str(answer.get("message", "")),
        seconds=round(float(answer.get("seconds", 0.0)), 3),
        limits=str(answer.get("limits", "")),
        multiple=round(float(answer["multiple"]), 3) if "multiple" in answer else None,
    )
