"""The pictures of ``bench`` and ``tune``. Imports matplotlib when it draws; nothing here is named by hand but axes.

``draw_bench`` has a panel for each problem with a bar for each contender, ``draw_tuning`` the speed-ups over the default and,
for each problem and kernel, the times against every parameter that was varied.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..benchmarking.bench import Report
from ..errors import ArgumentError
from ..tuning.journal import Measurement
from .bench_report import speed_unit
from .common import spelt

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f", "#ff9da7", "#bab0ac")
SUFFIXES = (".png", ".pdf", ".svg")
SHARED = "how the work is split"
"""The panel of the parameters that belong to no kernel."""


def check_plot(path: Path) -> None:
    """Raises ``ArgumentError`` where nothing could be drawn into ``path``."""
    if path.suffix not in SUFFIXES:
        raise ArgumentError("--plot", path, f"a name that ends in {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError("--plot", path, "a name in a folder that exists")
    _figure_class()


def draw_bench(path: Path, reports: Sequence[Report], title: str) -> None:
    """Draws the contenders that were timed: speed as a bar, the middle half as a whisker, the median written beside it.

    One colour stands for one contender in all panels, and all panels share their axis. Raises ``ArgumentError`` where the
    file cannot be written.
    """
    shown = [report for report in reports if report.timed]
    labels = list(dict.fromkeys(result.label for report in shown for result in report.timed))
    colours = {label: _colour(i) for i, label in enumerate(labels)}
    fastest = max((result.tflops for report in shown for result in report.timed), default=1.0)
    unit, name = speed_unit(shown)
    heights = [len(report.timed) + 1.2 for report in shown] or [1.0]
    figure = _figure(title, (9, 1.1 + 0.34 * sum(heights)), dpi=150)
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
        _plain(axis, grid="x")
    axes[-1].set_xlim(0, unit * fastest * 1.22)
    axes[-1].set_xlabel(f"{name} (five products; more is better)", fontsize=9)
    _save(figure, path)


def draw_tuning(path: Path, measurements: Sequence[Measurement], title: str) -> None:
    """Draws what was timed. Raises ``ArgumentError`` where the file cannot be written.

    At the top a bar for each problem. Below, for each problem and kernel, the times relative to the default's: above each
    value of each parameter that was varied stand all candidates that had it, the best of them marked. Kernels are changed
    one at a time, so that the same value stands beside different others.
    """
    timed = [made for made in measurements if made.status == "timed" and made.score]
    problems = list(dict.fromkeys(made.problem for made in timed))
    panels = {problem: _varied([made for made in timed if made.problem == problem]) for problem in problems}
    roles = list(dict.fromkeys(role for panel in panels.values() for role in panel))
    # the widest panel of each kernel decides how wide its column is
    widths = [max(len(_ticks(panel[role])) for panel in panels.values() if role in panel) + 6 for role in roles] or [1]
    rows = max(1, len(problems))
    size = (max(9.0, 0.16 * sum(widths)), 1.6 + 0.35 * rows + (2.9 * rows if roles else 0))
    figure = _figure(title, size, dpi=120)
    heights = [0.9 + 0.35 * rows, *([2.9] * rows if roles else [])]
    grid = figure.add_gridspec(len(heights), len(widths), height_ratios=heights, width_ratios=widths)
    _speed_ups(figure.add_subplot(grid[0, :]), problems, timed)
    for row, (problem, panel) in enumerate(panels.items(), 1):
        for column, role in enumerate(roles):
            if role in panel:
                axis = figure.add_subplot(grid[row, column])
                _times(axis, panel[role])
                axis.set_title(f"{problem if column == 0 else ''}\n{role}", fontsize=8, loc="left")
    _save(figure, path)


Varied = dict[str, dict[Any, list[float]]]
"""For each parameter that was varied, the scores by its value."""


def _varied(timed: Sequence[Measurement]) -> dict[str, Varied]:
    """What was varied at one problem, by the kernel that it belongs to: ``dq.rows`` is the parameter ``rows`` of ``dq``."""
    found: dict[str, Varied] = {}
    for made in timed:
        for name, value in made.params.items():
            role, _, parameter = name.rpartition(".")
            found.setdefault(role or SHARED, {}).setdefault(parameter, {}).setdefault(value, []).append(made.score or 0.0)
    varied = {role: {name: scores for name, scores in panel.items() if len(scores) > 1} for role, panel in found.items()}
    return {role: panel for role, panel in varied.items() if panel}


def _ticks(panel: Varied) -> list[tuple[str, Any]]:
    """The places along the axis: each parameter's values, numbers in their order."""
    return [
        (name, value)
        for name, scores in panel.items()
        for value in sorted(scores, key=lambda value: (isinstance(value, str), value))
    ]


def _speed_ups(axis: Any, problems: Sequence[str], timed: Iterable[Measurement]) -> None:
    best = dict.fromkeys(problems, 1.0)
    for made in timed:
        if made.stage == "final" and made.score:
            best[made.problem] = max(best[made.problem], 1 / made.score)
    for place, problem in enumerate(problems):
        axis.barh(place, best[problem], color=COLOURS[0])
        axis.text(best[problem], place, f" {best[problem]:.2f} ×", va="center", fontsize=8)
    axis.axvline(1, color="#333333", linewidth=0.8)
    axis.set_yticks(range(len(problems)), problems, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * max(best.values(), default=1.0))
    axis.set_xlabel("speed-up over the default (more is better)", fontsize=8)
    _plain(axis)


def _times(axis: Any, panel: Varied) -> None:
    colours = {name: _colour(i) for i, name in enumerate(panel)}
    places: list[float] = []
    place = 0.0
    before = ""
    for name, value in _ticks(panel):
        place += 1.0 if name == before or not before else 1.8  # a gap between parameters
        scores, before = panel[name][value], name
        axis.plot([place] * len(scores), scores, "o", color=colours[name], alpha=0.35, markersize=3)
        axis.plot([place - 0.35, place + 0.35], [min(scores)] * 2, color=colours[name], linewidth=1.6)
        places.append(place)
    axis.axhline(1, color="#333333", linewidth=0.8)
    axis.set_xticks(places, [f"{name} {_brief(value)}" for name, value in _ticks(panel)], fontsize=6, rotation=90)
    axis.set_ylabel("time / default's", fontsize=8)
    axis.tick_params(axis="y", labelsize=7)
    _plain(axis)


def _figure_class() -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise ArgumentError("--plot", f"no matplotlib ({error})", "pip install 'wgsl-attention[plot]'") from error


def _figure(title: str, size: tuple[float, float], dpi: int) -> Any:
    figure = _figure_class()(figsize=size, layout="constrained", dpi=dpi)
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    return figure


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise ArgumentError("--plot", f"{path} ({error.strerror or error})", "a file that can be written") from error


def _plain(axis: Any, grid: str = "both") -> None:
    axis.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def _brief(value: object) -> str:
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} Mi"
    return spelt(value)


def _short(label: str, most: int = 40) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"
