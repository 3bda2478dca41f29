"""What validation found, as data: a row for each variant, in it an outcome for each compiler on each driver."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..kernels.facts import RenderedVariant
from ..rendering.manifest import smallest_profile
from ..wgsl.checks import Counts, Finding
from .toolchains import Column

BAD = ("refused", "crashed", "hung", "error")
"""Statuses that fail. The others of a compile are pipeline, module, needs and quirk; of a run pass, fail, needs, blocked."""
DEFAULT_PROFILES = ("webgpu-compat", "webgpu-default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one column made of one variant: a compile, or a run on a small problem with its mask mode.

    ``multiple`` is a run's largest error in multiples of the tolerance. ``seconds`` include one dispatch, where there is a
    driver. ``limits`` says under which device's limits it was compiled.
    """

    status: str
    message: str = ""
    seconds: float = 0.0
    limits: str = ""
    mode: str = ""
    multiple: float | None = None

    @property
    def line(self) -> int | None:
        """The line of WGSL that a compiler's message points to."""
        found = re.search(r"^\s+line (\d+)", self.message, re.MULTILINE)
        return int(found[1]) if found else None


@dataclass(slots=True, kw_only=True)
class Row:
    """One variant: what it takes, what the static checks found, and each column's outcomes by the column's name."""

    rendered: RenderedVariant
    counts: Counts | None
    findings: tuple[Finding, ...]
    compiles: dict[str, Outcome] = field(default_factory=dict)
    runs: dict[str, list[Outcome]] = field(default_factory=dict)
    not_run: str = ""

    @property
    def profile(self) -> str:
        """The smallest built-in profile that it fits."""
        return smallest_profile(self.rendered) or "none"

    @property
    def fits_default(self) -> bool:
        return self.profile in DEFAULT_PROFILES

    def accepted(self, compiler: str) -> bool:
        """As a pipeline, on some driver of that compiler."""
        return any(o.status == "pipeline" for name, o in self.compiles.items() if name.startswith(compiler))

    @property
    def right_on(self) -> list[str]:
        """The columns on which every one of its runs passed."""
        return [name for name, found in self.runs.items() if found and all(o.status == "pass" for o in found)]

    @property
    def right_drivers(self) -> set[str]:
        """The drivers among them."""
        return {name.rpartition(" on ")[2] for name in self.right_on}


@dataclass(slots=True, kw_only=True)
class Report:
    rows: dict[str, Row]
    columns: list[Column]
    devices: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    executed: bool = False
    seconds: float = 0.0
    column_seconds: dict[str, float] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Everything that makes the exit status 1, one entry each."""
        lines = []
        for name, row in self.rows.items():
            lines += [f"{name}: {finding}" for finding in row.findings]
            for column, outcome in row.compiles.items():
                if outcome.status in BAD:
                    lines.append(f"{name}: {column}: {outcome.status}: {outcome.message.removeprefix(name + ': ')}")
            for column, outcomes in row.runs.items():
                for outcome in outcomes:
                    if outcome.status in (*BAD, "fail"):
                        mode = f" ({outcome.mode})" if outcome.mode else ""
                        lines.append(f"{name}: {column}: run{mode} {outcome.status}: {outcome.message}")
            if self.executed:
                lines += self._not_executed(name, row)
        if not self.devices:
            lines.append("no compiler is there to validate with")
        return lines

    def _not_executed(self, name: str, row: Row) -> list[str]:
        if row.not_run:
            return [f"{name}: not run: {row.not_run}"]
        executing = [column.name for column in self.columns if column.executes and column.name in self.devices]
        executing = [c for c in executing if c not in row.compiles or row.compiles[c].status != "quirk"]
        if not executing or not row.fits_default or row.rendered.features:
            return []  # a driver that has no room for it, or is known to get it wrong, proves nothing against it
        passed = {o.mode for c in executing for o in row.runs.get(c, []) if o.status == "pass"}
        modes = [mode for mode in row.rendered.serves.masks or ("",) if mode not in passed]
        return (
            [f"{name}: not run: no driver executed it rightly{': ' if any(modes) else ''}{', '.join(modes)}"] if modes else []
        )

    def notes(self) -> list[str]:
        """How far the proof reaches: what is missing here, and what was checked only as a module."""
        rows = list(self.rows.values())
        lines = [f"not there: {name}: {reason}" for name, reason in self.missing.items()]
        default = [row for row in rows if row.fits_default]
        both = sum(row.accepted("naga") and row.accepted("tint") for row in default)
        lines.append(f"{len(rows)} variants, {len(default)} of them within WebGPU's default limits")
        if {column.compiler for column in self.columns if column.name in self.devices} == {"naga", "tint"}:
            lines.append(f"accepted by both compilers as a pipeline, of those within the default limits: {both}")
        if self.executed:
            lines.append(f"right on at least two drivers: {sum(len(row.right_drivers) >= 2 for row in rows)}")
        for name, row in self.rows.items():
            lines += [f"{name} is not for {c}: {o.message}" for c, o in row.compiles.items() if o.status == "quirk"]
            only = [c for c, o in row.compiles.items() if o.status in ("module", "needs")]
            where = "; ".join(f"{c}: {row.compiles[c].status}, {row.compiles[c].message}" for c in only)
            if where:
                lines.append(f"{name} wants {row.profile}: {where}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain data: ``{"ok", "seconds", "columns", "missing", "faults", "variants": {name: {…}}}``."""
        return {
            "ok": not self.faults(),
            "seconds": round(self.seconds, 2),
            "columns": {
                column.name: {
                    "compiler": column.compiler,
                    "driver": column.driver,
                    "device": self.devices[column.name],
                    "seconds": round(self.column_seconds.get(column.name, 0.0), 2),
                }
                for column in self.columns
                if column.name in self.devices
            },
            "missing": self.missing,
            "faults": self.faults(),
            "variants": {name: _row_json(row) for name, row in self.rows.items()},
        }


def _row_json(row: Row) -> dict[str, Any]:
    rendered = row.rendered
    return {
        "workgroup_bytes": {"declared": rendered.workgroup_bytes, "counted": row.counts and row.counts.workgroup_bytes},
        "storage_buffers": row.counts.storage_buffers if row.counts else rendered.storage_buffers,
        "threads": row.counts.threads if row.counts else None,
        "features": list(rendered.features),
        "profile": row.profile,
        "findings": [dataclasses.asdict(finding) for finding in row.findings],
        "compiles": {name: _outcome_json(outcome) for name, outcome in row.compiles.items()},
        "runs": {name: [_outcome_json(outcome) for outcome in found] for name, found in row.runs.items()},
        "not_run": row.not_run,
    }


def _outcome_json(outcome: Outcome) -> Mapping[str, Any]:
    found = {key: value for key, value in dataclasses.asdict(outcome).items() if value not in ("", None)}
    return {**found, "line": outcome.line} if outcome.line else found
