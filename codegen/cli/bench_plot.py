"""The picture of ``bench``: a panel for each problem, a bar for each contender. Imports matplotlib when it draws."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from .bench_report import Report, speed_unit

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f", "#ff9da7", "#bab0ac")
SUFFIXES = (".png", ".pdf", ".svg")


def check(path: Path) -> None:
    """Raises ``ArgumentError`` where nothing could be drawn into ``path``."""
    if path.suffix not in SUFFIXES:
        raise ArgumentError("--plot", path, f"a name that ends in {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError("--plot", path, "a name in a folder that exists")
    matplotlib("figure")


def matplotlib(module: str) -> Any:
    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ArgumentError("--plot", f"no matplotlib ({error})", "pip install 'wgsl-attention[plot]'") from error


def plot(path: Path, reports: Sequence[Report], title: str) -> None:
    """Draws the contenders that were timed: speed as a bar, the middle half as a whisker, the median written beside it.

    One colour stands for one contender in all panels, and all panels share their axis. Raises ``ArgumentError`` where the
    file cannot be written.
    """
    shown = [report for report in reports if report.timed]
    labels = list(dict.fromkeys(result.label for report in shown for result in report.timed))
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    fastest = max((result.tflops for report in shown for result in report.timed), default=1.0)
    unit, name = speed_unit(shown)
    heights = [len(report.timed) + 1.2 for report in shown] or [1.0]
    figure = matplotlib("figure").Figure(figsize=(9, 1.1 + 0.34 * sum(heights)), layout="constrained", dpi=150)
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplots(max(1, len(shown)), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axis, report in zip(axes, shown, strict=False):
        for place, result in enumerate(report.timed):
            low, high = (unit * report.operations / seconds / 1e12 for seconds in reversed(result.timing.quartiles))
            speed = unit * result.tflops
            # the median of few timings is interpolated like the quartiles, so it lies between them but for rounding
            whisker = [[max(0.0, speed - low)], [max(0.0, high - speed)]]
            axis.barh(place, speed, color=colours[result.label], xerr=whisker, error_kw={"elinewidth": 1, "ecolor": "#333333"})
            text = f" {speed:.3g}  ({_time(result.timing.median)})"
            axis.text(max(speed, high), place, text, va="center", fontsize=8)
        axis.set_yticks(range(len(report.timed)), [_short(result.label) for result in report.timed], fontsize=8)
        axis.invert_yaxis()
        axis.set_title(str(report.problem), fontsize=9, loc="left")
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlim(0, unit * fastest * 1.22)
    axes[-1].set_xlabel(f"{name} (five products; more is better)", fontsize=9)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ArgumentError("--plot", f"{path} ({error.strerror or error})", "a file that can be written") from error


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def _short(label: str, most: int = 40) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"
