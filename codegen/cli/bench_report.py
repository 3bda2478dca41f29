"""What ``bench`` found, as a table for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from ..benchmarking.bench import Report
from .common import print_table, table


def speed_unit(reports: Iterable[Report]) -> tuple[float, str]:
    """What TFLOP/s are multiplied by to be shown, and the unit's name: a software adapter's are too few to be read."""
    fastest = max((result.tflops for report in reports for result in report.timed), default=1.0)
    return (1.0, "TFLOP/s") if fastest >= 0.1 else (1e3, "GFLOP/s")


def print_report(out: Console, report: Report) -> None:
    out.print(Text.assemble("\n", (str(report.problem), "bold cyan"), "\n"))
    scale, unit = speed_unit([report])
    rows = table(out, "", ">ms", "middle half", f">{unit}", ">× first")
    best = min((result.timing.median for result in report.timed), default=0.0)
    for result in report.results:
        if result.status != "timed":
            style = "bold red" if result.status == "failed" else "yellow"
            rows.add_row(result.label, "–", Text("FAILED" if result.status == "failed" else "not served", style=style))
            continue
        low, high = result.timing.quartiles
        cells = (_ms(result.timing.median), f"{_ms(low)} – {_ms(high)}", f"{scale * result.tflops:#.3g}", f"{result.ratio:.2f}")
        rows.add_row(result.label, *cells, style="bold green" if result.timing.median == best else "")
        for kernel, seconds in result.timing.kernels.items():
            rows.add_row(f"  {kernel}", _ms(seconds), style="dim")
    print_table(out, rows)
    untimed = [result for result in report.results if result.status != "timed"]
    if untimed:
        out.print()
    for result in untimed:
        out.print(f"{result.label}: {result.timing.reason}", style="red" if result.status == "failed" else "yellow")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def as_json(report: Report) -> dict[str, Any]:
    p = report.problem
    return {
        "problem": str(p),
        "shape": p.sizes,
        "mask": str(p.mask),
        "given": p.given,
        "operations": report.operations,
        "contenders": [
            {
                "label": result.label,
                "status": result.status,
                "reason": result.timing.reason,
                "variants": list(result.variants),
                "unchecked": result.unchecked,
                "seconds": list(result.timing.seconds),
                "median": result.timing.median if result.status == "timed" else None,
                "quartiles": list(result.timing.quartiles) if result.status == "timed" else None,
                "tflops": result.tflops if result.status == "timed" else None,
                "ratio": result.ratio if result.status == "timed" else None,
                "kernels": dict(result.timing.kernels),
            }
            for result in report.results
        ],
    }
