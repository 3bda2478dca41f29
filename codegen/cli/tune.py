"""The command tune: tunes problems on this machine's GPU, and shows, merges and plots tuning tables."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from ..algorithms import ALGORITHMS
from ..errors import ArgumentError
from ..selection import tables
from ..selection.table_files import VARIABLE, user_table
from ..tuning import journal
from ..tuning.search import Status
from ..tuning.tuner import BUDGET, PRESETS, Tuner, merge_files
from .common import add_device_arguments, add_json_argument, console
from .plots import check_plot, draw_tuning
from .problems import add_measured_problem_arguments, mask_of, measured_problems, usual_problems, with_strides
from .tune_report import all_tuned, print_outcomes, print_rows

SUMMARY = "find this GPU's fastest kernels for given problems and keep them in a table"
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find the fastest kernels for given problems on this machine's GPU and keep them in a tuning table, which selection "
        "goes by from then on. Candidates come from the whole parameter space; each one's gradients are checked before its "
        "time counts. Ctrl-C keeps what was measured. Exits with 1 where a problem could not be tuned."
    )
    parser.epilog = (
        "A row of the table serves lengths, heads and windows near its own: they are rounded to powers of two, and the "
        "nearest row within a factor of four counts. Rows fall back from the device to its architecture and vendor.\n\n"
        "For example:\n"
        "  wgsl-attention tune\n"
        "  wgsl-attention tune llama-1b --budget 600 --plot tuned.png\n"
        "  wgsl-attention tune --seq 3000 --heads 16 --kv-heads 4 --head-dim 96 --window 512 0\n"
        "  wgsl-attention tune --resume --budget 600\n"
        "  wgsl-attention tune --merge theirs.json\n"
        "  wgsl-attention tune --show"
    )
    what = parser.add_argument_group("what")
    what.add_argument("preset", nargs="*", metavar="PRESET", help=f"problems of a kind of model: {', '.join(PRESETS)}")
    what.add_argument("--algorithm", choices=tuple(ALGORITHMS), metavar="NAME", help=f"only this one: {', '.join(ALGORITHMS)}")
    add_measured_problem_arguments(parser, what)
    how = parser.add_argument_group("how")
    how.add_argument(
        "--budget", type=float, default=BUDGET, metavar="SECONDS", help=f"for all problems together; default: {BUDGET:g}"
    )
    how.add_argument("--resume", action="store_true", help="take up the log where an earlier run ended")
    how.add_argument(
        "--unchecked",
        action="store_true",
        help="time every kernel without the compiler's bounds checks, for kernels that are to be checked in",
    )
    table = parser.add_argument_group("table")
    table.add_argument("--table", type=Path, metavar="FILE.json", help=f"the table; default: yours (or {VARIABLE})")
    table.add_argument(
        "--merge", nargs="+", default=[], type=Path, metavar="FILE.json", help="take their rows into it, and stop"
    )
    table.add_argument("--show", action="store_true", help="print its rows, and whether each still holds, and stop")
    table.add_argument("--plot", type=Path, metavar="FILE.png", help="draw what was measured (with --show: what the log holds)")
    add_device_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    table = args.table or user_table()
    if table is None:
        raise ArgumentError("--table", f"nothing, and {VARIABLE} is empty", "--table FILE.json")
    if args.plot is not None:
        check_plot(args.plot)
    if args.merge or args.show:
        for path in args.merge:
            if not path.is_file():
                raise ArgumentError("--merge", path, "tables that are there")
        if args.merge:
            merge_files(args.merge, table)
        return _show(args, table)
    return _tune(args, table)


def log_of(table: Path) -> Path:
    """The journal's file, next to the table: tuned.json has tuned.log.jsonl."""
    return table.with_suffix(".log.jsonl")


def _show(args: argparse.Namespace, path: Path) -> int:
    found = tables.load(path) if path.exists() else tables.EMPTY
    ok = print_rows(console(), found, path, as_json=args.json)
    if args.plot is not None:
        _plot(args, journal.read(log_of(path)), f"Tuning, {path.name}")
    return 0 if ok else 1


def _tune(args: argparse.Namespace, path: Path) -> int:
    from ..gpu.device import open_device

    for preset in args.preset:
        if preset not in PRESETS:
            raise ArgumentError("PRESET", repr(preset), f"one of {', '.join(PRESETS)}")
    problems = [with_strides(problem, args.strides) for preset in args.preset for problem in PRESETS[preset]]
    asked = measured_problems(args)
    tuner: Tuner | None = None
    try:
        with _progress(args.budget, args.json) as tell, open_device(args.backend, args.adapter) as device:
            profile = device.profile
            if not asked and (not problems or mask_of(args)):
                asked = usual_problems(args, profile)
            tuner = Tuner(
                [*problems, *asked],
                device,
                budget=args.budget,
                log=log_of(path),
                table=path,
                resume=args.resume,
                algorithm=args.algorithm,
                unchecked=args.unchecked,
                tell=tell,
            )
            tuner.run()
    finally:  # whatever ends it, what was measured is told
        if tuner is not None:
            _report(args, tuner, f"{profile.name}, {profile.backend}", path)
    if tuner.interrupted:
        return INTERRUPTED
    return 0 if all_tuned(tuner) else 1


def _report(args: argparse.Namespace, tuner: Tuner, device: str, path: Path) -> None:
    print_outcomes(console(), tuner, device, path, log_of(path), as_json=args.json)
    if args.plot is not None and tuner.measurements:
        _plot(args, tuner.measurements, f"Tuning on {device}")


def _plot(args: argparse.Namespace, measurements: list[journal.Measurement], title: str) -> None:
    draw_tuning(args.plot, measurements, title)
    if not args.json:
        console().print(f"\nDrawn in {args.plot}", soft_wrap=True)


@contextlib.contextmanager
def _progress(budget: float, quiet: bool) -> Iterator[Callable[[Status], None]]:
    """On a terminal, what is being tried, the best so far and how much of the time is gone; nothing otherwise."""
    out = console(stderr=True)
    if not out.is_terminal or quiet:
        yield lambda status: None
        return
    shown = _Shown(out, budget)
    with Live(get_renderable=shown.render, console=out, refresh_per_second=4, transient=True):
        yield shown.tell


class _Shown:
    """What the terminal shows while tuning."""

    def __init__(self, out: Console, budget: float) -> None:
        self._out, self._budget, self._begin = out, budget, time.monotonic()
        self._status: Status | None = None

    def tell(self, status: Status) -> None:
        self._status = status

    def render(self) -> Any:
        status, gone = self._status, time.monotonic() - self._begin
        bar = ProgressBar(total=self._budget, completed=min(gone, self._budget), width=40)
        left = Text(f"{max(0.0, self._budget - gone):.0f} s left", style="dim")
        if status is None:
            return Group(bar, Text("Opening the device"))
        best = "best so far: nothing yet"
        if status.best_seconds:
            faster = status.default_seconds / status.best_seconds
            best = f"best so far: {1e3 * status.best_seconds:.3g} ms, {faster:.2f} × the default: {status.best}"
        lines = [Text(str(status.problem), style="bold"), Text(f"trying {status.doing}"), Text(best, style="green")]
        for line in lines:
            line.truncate(self._out.width - 1, overflow="ellipsis")
        return Group(*lines, bar, left)
