"""What the commands share: where output goes, how it is set out, and the arguments that describe a problem."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..errors import ArgumentError
from ..problem.mask import ALIGNMENTS, Mask
from ..problem.problem import Problem

PIPED_WIDTH = 240
"""Columns of output that goes to no terminal: wide enough for every table."""

MASKS = ("full", "causal", "documents")
STRIDES = ("heads-first", "packed")


def console(*, stderr: bool = False) -> Console:
    """A console on today's stdout or stderr: colours and the terminal's width on a terminal, plain text otherwise."""
    stream = sys.stderr if stderr else sys.stdout
    with contextlib.suppress(AttributeError, OSError):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that lacks × or √ gets ? for it
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def table(out: Console, *headers: str) -> Table:
    """An empty table; headers that begin with ``>`` are of columns set to the right. Rules only on a terminal."""
    made = Table(box=SIMPLE_HEAD if out.is_terminal else None, pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        made.add_column(header.removeprefix(">"), justify="right" if header.startswith(">") else "left", overflow="fold")
    return made


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers that JSON does not have (infinity, NaN) become null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """On a terminal, a line on stderr that says what is being done, and disappears; nothing otherwise."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda text: None
        return
    with out.status(doing) as status:
        yield status.update


def checkout() -> Path | None:
    """The root of the source checkout that this package runs from, or None where it is installed."""
    root = Path(__file__).resolve().parents[2]
    inside = Path(__file__).resolve().parents[1].name == "codegen" and (root / "templates").is_dir()
    return root if inside and (root / "pyproject.toml").is_file() else None


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """The shape and the mask of a problem. Everything is None until it is given; see ``problem_of``."""
    shape = parser.add_argument_group("shape")
    shape.add_argument("--q-len", "--seq", type=int, metavar="N", help="queries (with --kv-len left out: keys too)")
    shape.add_argument("--kv-len", type=int, metavar="N", help="keys, where their number differs")
    shape.add_argument("--heads", type=int, metavar="N", help="query heads")
    shape.add_argument(
        "--kv-heads", type=int, metavar="N", help="heads of k and v, of which heads is a multiple; default: as many"
    )
    shape.add_argument("--head-dim", type=int, metavar="N", help="channels of a head")
    shape.add_argument("--v-head-dim", type=int, metavar="N", help="channels of a head of v, where they differ")
    shape.add_argument("--batch", type=int, metavar="N", help="sequences at once; default: 1")
    shape.add_argument(
        "--strides",
        choices=STRIDES,
        help="heads-first: (batch, heads, seq, dim), as in PyTorch; packed: q, k and v in one array, and their gradients in "
        "another; default: (batch, seq, heads, dim) each",
    )
    mask = parser.add_argument_group("mask", "Which keys a query sees; where several are given, those that all of them show.")
    mask.add_argument("--mask", choices=MASKS, help="documents: several texts in one sequence, causal inside each")
    mask.add_argument("--documents", action="store_true", help="the same as --mask documents, to go with another --mask")
    mask.add_argument(
        "--window",
        nargs=2,
        type=_width,
        metavar=("LEFT", "RIGHT"),
        help="so many keys to either side, both ends inclusive; none is unbounded: --window 512 0",
    )
    mask.add_argument("--prefix", type=int, metavar="N", help="the first N keys, and beyond them causal")
    mask.add_argument(
        "--align",
        choices=ALIGNMENTS,
        default="bottom-right",
        help="where the diagonal lies if --kv-len differs: bottom-right (default; FlashAttention) or top-left (PyTorch)",
    )


def _width(text: str) -> int | str:
    if text in ("none", "-1"):
        return "none"
    return int(text)


def mask_of(args: argparse.Namespace) -> Mask | None:
    """The mask that the arguments of ``add_problem_arguments`` describe; None where there are none. Raises ``ArgumentError``."""
    masks = []
    if args.mask == "full":
        masks.append(Mask.full())
    if args.mask == "causal":
        masks.append(Mask.causal(args.align))
    if args.mask == "documents" or args.documents:
        masks.append(Mask.documents())
    if args.window:
        left, right = (None if width == "none" else width for width in args.window)
        masks.append(Mask.window(left, right, args.align))
    if args.prefix is not None:
        masks.append(Mask.prefix(args.prefix, args.align))
    if not masks:
        return None
    met = masks[0]
    for mask in masks[1:]:
        met = met & mask
    return met


def problem_of(args: argparse.Namespace, **defaults: Any) -> Problem:
    """The problem that the arguments describe, ``defaults`` (q_len, heads, head_dim, mask) standing in for what is missing.

    Raises ``ArgumentError`` that names the option for what is missing still.
    """
    mask = mask_of(args) or defaults.get("mask")
    if mask is None:
        raise ArgumentError("--mask", "nothing", f"--mask {' or '.join(MASKS)}, --window LEFT RIGHT or --prefix N")
    shape: dict[str, Any] = {}
    for name in ("q_len", "heads", "head_dim"):
        given = getattr(args, name)
        given = defaults.get(name) if given is None else given
        if given is None:
            raise ArgumentError(f"--{name.replace('_', '-')}", "nothing", "a number")
        shape[name] = given
    problem = Problem(
        **shape,
        kv_len=shape["q_len"] if args.kv_len is None else args.kv_len,
        kv_heads=shape["heads"] if args.kv_heads is None else args.kv_heads,
        v_head_dim=args.v_head_dim or 0,
        batch=1 if args.batch is None else args.batch,
        mask=mask,
    )
    return with_strides(problem, args.strides)


def with_strides(problem: Problem, strides: str | None) -> Problem:
    """The problem with what ``--strides`` says. Raises ``ArgumentError`` where its tensors cannot lie so."""
    if strides == "heads-first":
        return problem.heads_first()
    if strides == "packed":
        return problem.packed("q", "k", "v").packed(*problem.outputs)
    return problem


def has_shape(args: argparse.Namespace) -> bool:
    """Whether any argument of the shape group was given."""
    names = ("q_len", "kv_len", "heads", "kv_heads", "head_dim", "v_head_dim", "batch")
    return any(getattr(args, name) is not None for name in names)


def add_device_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--backend", choices=("wgpu", "dawn"), help="WebGPU's implementation; default: the first with an adapter"
    )
    parser.add_argument("--adapter", metavar="TEXT", help="an adapter whose description holds this; `doctor` lists them")


def add_json_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead, for scripts")
