"""What ``validate`` found, as a table: one row for each variant, one column for each compiler on each driver."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..validation.report import BAD, Report, Row
from .common import counted, print_table, table


def print_report(out: Console, report: Report) -> None:
    """The table, the notes, and the faults in full."""
    present = [column.name for column in report.columns if column.name in report.devices]
    rows = table(out, "variant", ">bytes", ">buffers", ">threads", "fits", "static", *present)
    for name, row in report.rows.items():
        rows.add_row(name, *_facts(row), *(_cell(row, column) for column in present))
    print_table(out, rows)
    if present:
        out.print("\ncells: seconds to compile and dispatch; worst error in multiples of the tolerance", style="dim")
    out.print()
    for name, device in report.devices.items():
        seconds = report.column_seconds.get(name, 0.0)
        out.print(Text(f"{name}: {device}, {seconds:.0f} s of work", style="dim"), soft_wrap=True)
    for note in report.notes():
        out.print(note, soft_wrap=True)
    faults = report.faults()
    for fault in faults:
        out.print(Text(f"FAULT {fault}", style="red"), soft_wrap=True)
    out.print(f"{counted(len(faults), 'fault')} in {report.seconds:.0f} s", style="bold red" if faults else "bold green")


def _facts(row: Row) -> tuple[str, ...]:
    counts, rendered = row.counts, row.rendered
    same = counts is not None and counts.workgroup_bytes == rendered.workgroup_bytes
    counted_bytes = "" if same else f"{counts.workgroup_bytes if counts else '?'}≠"
    return (
        f"{counted_bytes}{rendered.workgroup_bytes}",
        str(counts.storage_buffers if counts else rendered.storage_buffers),
        str(counts.threads if counts else "?"),
        row.profile + "".join(f" +{feature}" for feature in rendered.features),
        ", ".join(sorted({finding.rule for finding in row.findings})) or "ok",
    )


def _cell(row: Row, column: str) -> Text:
    outcome = row.compiles.get(column)
    if outcome is None:
        return Text("–", style="dim")
    text = f"{outcome.seconds:.1f} s" if outcome.status == "pipeline" else outcome.status
    found = row.runs.get(column, [])
    wrong = [o.status for o in found if o.status in (*BAD, "fail")]
    if wrong:
        return Text(f"{text} {wrong[0].upper()}", style="bold red")
    multiples = [o.multiple for o in found if o.multiple is not None]
    if multiples:
        return Text(f"{text} {max(multiples):.2f}")
    return Text(text.upper(), style="bold red") if outcome.status in BAD else Text(text)
