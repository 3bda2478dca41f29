"""What the commands share: where output goes and how it is set out, and the arguments that several of them have."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..errors import ArgumentError
from ..gpu.backends import BACKENDS
from ..kernels.families import FAMILIES
from ..kernels.variant import Variant

PIPED_WIDTH = 240
"""Columns of output that goes to no terminal: wide enough for every table."""
MOST = 1 << 40


def console(*, stderr: bool = False) -> Console:
    """A console on today's stdout or stderr: colours and the terminal's width on a terminal, plain text otherwise."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def table(out: Console, *headers: str) -> Table:
    """An empty table; headers that begin with ``>`` are of columns set to the right. Rules only on a terminal."""
    box, padding = (SIMPLE_HEAD, (0, 1, 0, 0)) if out.is_terminal else (None, (0, 1))  # two columns apart in either
    made = Table(box=box, padding=padding, pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        made.add_column(header.removeprefix(">"), justify="right" if header.startswith(">") else "left", overflow="fold")
    return made


def print_table(out: Console, made: Table) -> None:
    """Prints a table with its words whole: where it is too wide, headers of several words give way, and then cells.

    Where not even that is enough, its lines run on past the edge, and a name can still be copied.
    """
    texts = [[str(cell) for cell in (column.header, *column.cells)] for column in made.columns]
    bodies = [max(map(cell_len, cells), default=0) for _, *cells in texts]
    widths = [max(map(cell_len, column)) for column in texts]
    least = [max(_unbreakable(text) for text in column) for column in texts]
    gaps = 2 * (len(texts) - 1)
    if sum(least) + gaps <= out.width:
        while sum(widths) + gaps > out.width:
            able = (i for i, width in enumerate(widths) if width > least[i])
            widths[max(able, key=lambda i: (widths[i] > bodies[i], widths[i]))] -= 1
    for column, width in zip(made.columns, widths, strict=True):
        column.width = width
    made.width = sum(widths) + gaps
    out.print(made, crop=False)


def _unbreakable(text: str) -> int:
    """Columns of the longest word, and of the blanks before the text."""
    return cell_len(text) - cell_len(text.lstrip()) + max(map(cell_len, text.split()), default=0)


def facts(values: Mapping[str, str], indent: int = 0) -> Table:
    """A table of names and what is to be said of each."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values.items():
        made.add_row(Text(f"{'':{indent}}{name}", style="bold"), value)
    return made


def counted(number: int, noun: str) -> str:
    """``no kernels``, ``1 kernel``, ``2 kernels``."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def span(least: int, most: int) -> str:
    return str(most) if least == most else f"{least}–{most}"


def spelt(value: object) -> str:
    """A parameter's value as ``show --set`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def about(family: type[Variant] | None) -> str:
    """A family's docstring, with the marks of code left out."""
    return (inspect.getdoc(family) or "").replace("``", "") if family else ""


def summary_of(kernel: str) -> str:
    """The first line of a family's docstring; empty for a kernel that no family is known for."""
    return about(FAMILIES.get(kernel)).partition("\n")[0]


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers that JSON does not have (infinity, NaN) become null."""
    encoding = str(getattr(sys.stdout, "encoding", None) or "").lower()  # where it is a narrow one, JSON's own escapes stand in
    print(json.dumps(_plain(value), indent=2, ensure_ascii=not encoding.startswith("utf"), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Tell(Protocol):
    """Says what is being done, and how much of it is, where that is known."""

    def __call__(self, doing: str, /, done: int = 0, total: int = 0) -> None: ...


@contextlib.contextmanager
def progress(doing: str) -> Iterator[Tell]:
    """On a terminal, a line on stderr that says what is being done, and disappears; nothing otherwise."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda doing, done=0, total=0: None
        return
    columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=out, transient=True) as shown:
        task = shown.add_task(doing, total=None)

        def tell(doing: str, /, done: int = 0, total: int = 0) -> None:
            text = f"{doing}: {done} of {total}" if total else doing
            shown.update(task, description=text, completed=done, total=total or None)

        yield tell


def checkout() -> Path | None:
    """The root of the source checkout that this package runs from, or None where it is installed."""
    root = Path(__file__).resolve().parents[2]
    inside = Path(__file__).resolve().parents[1].name == "codegen" and (root / "templates").is_dir()
    return root if inside and (root / "pyproject.toml").is_file() else None


def check_least(args: argparse.Namespace, **least: float) -> None:
    """Raises ``ArgumentError`` where one of these arguments was given and is below its least, too large, or not a number."""
    for name, smallest in least.items():
        value = getattr(args, name)
        if value is not None and not smallest <= value < MOST:
            raise ArgumentError(f"--{name.replace('_', '-')}", value, f"{smallest} or more, and finite")


def add_device_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The group of arguments that say which device, for more of them."""
    group = parser.add_argument_group("device")
    group.add_argument("--backend", choices=BACKENDS, help="WebGPU's implementation; default: the first with an adapter")
    group.add_argument("--adapter", metavar="TEXT", help="an adapter whose description holds this; `doctor` lists them")
    return group


def add_json_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead, for scripts")
