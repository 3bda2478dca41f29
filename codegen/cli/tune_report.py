"""What ``tune`` prints: the outcomes of a run, and the rows of a table, as tables for people or JSON for scripts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..algorithms.choice import Choice
from ..errors import VariantError
from ..selection.tables import Row, Table
from ..tuning.journal import Measurement
from ..tuning.search import Outcome
from ..tuning.tuner import Tuner
from .common import counted, print_json, print_table, table


def all_tuned(tuner: Tuner) -> bool:
    """Whether every problem that was come to is tuned."""
    return all(outcome.best is not None and not outcome.reason for outcome in tuner.outcomes)


def print_outcomes(out: Console, tuner: Tuner, device: str, path: Path, log: Path, *, as_json: bool) -> None:
    """A line for each problem: the default's time, the tuned one's, and what was chosen; or everything as JSON."""
    outcomes = tuner.outcomes
    if as_json:
        print_json(
            {
                "ok": all_tuned(tuner),
                "interrupted": tuner.interrupted,
                "device": device,
                "table": str(path),
                "log": str(log),
                "problems": [_outcome_json(outcome) for outcome in outcomes],
                "measurements": [dataclasses.asdict(made) for made in tuner.measurements],
            }
        )
        return
    out.print(Text.assemble("Tuned on ", (device, "bold"), " (interrupted)" if tuner.interrupted else ""), soft_wrap=True)
    rows = table(out, "problem", ">default", ">tuned", ">speed-up", ">next", ">tried", "")
    for outcome in outcomes:
        rows.add_row(*_cells(outcome))
    print_table(out, rows)
    for outcome in outcomes:
        if outcome.best is not None:
            what = "the default" if outcome.default and outcome.best.identity == outcome.default.identity else "tuned"
            out.print(Text(f"{outcome.problem}: {what}: {outcome.best.label}"), soft_wrap=True)
        if outcome.reason:
            out.print(Text(f"{outcome.problem}: {outcome.reason}", style="red"), soft_wrap=True)
    out.print(Text(f"\nTable: {path}\nLog: {log}", style="dim"), soft_wrap=True)


def _cells(outcome: Outcome) -> tuple[str | Text, ...]:
    tried = len({made.identity for made in outcome.measurements})
    bad = Counter(made.status for made in outcome.measurements if made.status != "timed")
    told = ", ".join(f"{count} {status}" for status, count in sorted(bad.items()))
    if outcome.best is None or outcome.default is None:
        return str(outcome.problem), "–", "–", Text("not tuned", style="red"), "–", str(tried), told
    told = told if outcome.final else f"{told}{told and ', '}not raced against the default to the end"
    style = "bold green" if outcome.speed_up > 1 else ""
    speed = Text(f"{outcome.speed_up:.2f} ×", style=style)
    return str(outcome.problem), _ms(outcome.default), _ms(outcome.best), speed, _ms(outcome.runner_up), str(tried), told


def _ms(made: Measurement | None) -> str:
    return "–" if made is None or made.seconds is None else f"{1e3 * made.seconds:.3g} ms"


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    def told(made: Measurement | None) -> dict[str, Any] | None:
        keys = ("label", "algorithm", "variants", "seconds", "score", "error", "choice")
        return None if made is None else {key: getattr(made, key) for key in keys}

    return {
        "problem": str(outcome.problem),
        "default": told(outcome.default),
        "best": told(outcome.best),
        "runner_up": told(outcome.runner_up),
        "speed_up": outcome.speed_up,
        "final": outcome.final,
        "reason": outcome.reason,
    }


def fault(row: Row) -> str:
    """Why a row does not hold with this package; empty where it does."""
    try:
        Choice.from_json(row.choice)
    except VariantError as error:
        return str(error)
    return ""


def print_rows(out: Console, found: Table, path: Path, *, as_json: bool) -> bool:
    """A line for each row. Returns whether all of them hold."""
    faults = [fault(row) for row in found.rows]
    if as_json:
        rows = [{**row.as_json(), "fault": why} for row, why in zip(found.rows, faults, strict=True)]
        print_json({"table": str(path), "rows": rows, "faults": list(found.faults)})
        return not any(faults) and not found.faults
    out.print(Text(f"{path}: {counted(len(found.rows), 'row')}", style="bold"), soft_wrap=True)
    shown = table(out, "device", "serves problems near", ">time", ">default", ">next", "measured", "")
    for row, why in zip(found.rows, faults, strict=True):
        measured = " ".join((row.date[:10], *(str(row.measured.get(name, "")) for name in ("package", "driver")))).strip()
        times = [f"{1e3 * x:.3g} ms" if x else "–" for x in (row.seconds, row.default_seconds, row.runner_up_seconds)]
        state = Text("ignored", style="red") if why else Text("")
        shown.add_row(row.device or "any", str(row.key), *times, measured, state)
    if found.rows:
        print_table(out, shown)
    for row, why in zip(found.rows, faults, strict=True):
        told = Text(f"ignored: {why}", style="red") if why else Text(str(Choice.from_json(row.choice)))
        out.print(Text.assemble(f"{row.problem}: ", told), soft_wrap=True)
    for line in found.faults:
        out.print(Text(line, style="red"), soft_wrap=True)
    return not any(faults) and not found.faults
