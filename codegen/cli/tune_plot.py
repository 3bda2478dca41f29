"""The picture of ``tune``: the speed-up over the default per problem, and each stage's times against the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..tuning.journal import Measurement
from .bench_plot import COLOURS, matplotlib

ROLES = ("scores", "dkdv", "dq")


def plot(path: Path, measurements: Sequence[Measurement], title: str) -> None:
    """Draws what was timed. Raises ``ArgumentError`` where the file cannot be written.

    At the top a bar for each problem. Below, for each problem and kernel, the time relative to the default's against the
    block's shape, a colour for each register tile; kernels are changed one at a time, so other points stand for the rest.
    """
    timed = [made for made in measurements if made.status == "timed" and made.score]
    problems = list(dict.fromkeys(made.problem for made in timed))
    count = max(1, len(problems))
    size = (13, 1.6 + 0.35 * count + 2.9 * count)
    figure = matplotlib("figure").Figure(figsize=size, layout="constrained", dpi=120)
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    grid = figure.add_gridspec(count + 1, len(ROLES), height_ratios=[0.9 + 0.35 * count, *[2.9] * count])
    _speed_ups(figure.add_subplot(grid[0, :]), problems, timed)
    for row, problem in enumerate(problems, 1):
        mine = [made for made in timed if made.problem == problem]
        for column, role in enumerate(ROLES):
            axis = figure.add_subplot(grid[row, column])
            _times(axis, role, [made for made in mine if f"{role}.row_reg" in made.params])
            axis.set_title(f"{problem}\n{role}" if column == 0 else f"\n{role}", fontsize=8, loc="left")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ArgumentError("--plot", f"{path} ({error.strerror or error})", "a file that can be written") from error


def _speed_ups(axis: Any, problems: Sequence[str], timed: Iterable[Measurement]) -> None:
    best = dict.fromkeys(problems, 1.0)
    for made in timed:
        finals = made.stage == "final" and made.score
        if finals:
            best[made.problem] = max(best[made.problem], 1 / (made.score or 1.0))
    for place, problem in enumerate(problems):
        axis.barh(place, best[problem], color=COLOURS[0])
        axis.text(best[problem], place, f" {best[problem]:.2f} ×", va="center", fontsize=8)
    axis.axvline(1, color="#333333", linewidth=0.8)
    axis.set_yticks(range(len(problems)), problems, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * max(best.values(), default=1.0))
    axis.set_xlabel("speed-up over the default (more is better)", fontsize=8)
    _plain(axis)


def _times(axis: Any, role: str, timed: Sequence[Measurement]) -> None:
    """Score against rows × cols; the shapes are set out in the order of their area."""

    def block(made: Measurement) -> tuple[int, int]:
        return int(made.params[f"{role}.rows"]), int(made.params[f"{role}.cols"])

    shapes = sorted({block(made) for made in timed}, key=lambda shape: (shape[0] * shape[1], shape))
    tiles = sorted({(made.params[f"{role}.row_reg"], made.params[f"{role}.col_reg"]) for made in timed})
    for number, tile in enumerate(tiles):
        mine = [made for made in timed if (made.params[f"{role}.row_reg"], made.params[f"{role}.col_reg"]) == tile]
        offset = (number - (len(tiles) - 1) / 2) * 0.6 / max(1, len(tiles))
        axis.plot(
            [shapes.index(block(made)) + offset for made in mine],
            [made.score for made in mine],
            "o",
            color=COLOURS[number % len(COLOURS)],
            alpha=0.7,
            markersize=4,
            label=f"{tile[0]} × {tile[1]} a thread",
        )
    axis.axhline(1, color="#333333", linewidth=0.8)
    axis.set_xticks(range(len(shapes)), [f"{rows}×{cols}" for rows, cols in shapes], fontsize=7, rotation=45)
    axis.set_ylabel("time / default's", fontsize=8)
    axis.tick_params(axis="y", labelsize=7)
    if tiles:
        axis.legend(fontsize=6, frameon=False)
    _plain(axis)


def _plain(axis: Any) -> None:
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
