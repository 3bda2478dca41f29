"""Every variant on every compiler and every driver that this machine has: compiled, counted, and executed against float64.

This is the command's face: which variants, which columns, what is printed. ``validate_matrix`` does the work.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import ArgumentError, DeviceError
from ..rendering import manifest
from ..validation import coverage as cases
from ..validation import toolchains
from ..validation.matrix import TIMEOUT, validate

WIDTH = 200
"""Of the table, where the output is not a terminal."""


def choose(patterns: Iterable[str], quick: bool) -> list[str]:
    """The checked-in names that a pattern matches (a glob, or a part of the name); with ``quick`` one of each kernel and mask.

    Raises ``ArgumentError`` for a pattern that matches nothing.
    """
    names = list(manifest.entries())
    patterns = list(patterns)
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in names):
            raise ArgumentError("--only", repr(pattern), "a pattern that some checked-in name matches (wgsl-attention list)")
    names = [name for name in names if not patterns or any(_matches(name, pattern) for pattern in patterns)]
    if not quick:
        return names
    kinds: dict[tuple[Any, ...], str] = {}
    for name in sorted(names, key=_quickness):
        entry = manifest.entries()[name]
        kinds.setdefault((entry["kernel"], entry["params"].get("mask")), name)
    return sorted(kinds.values())


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatch(name, pattern) or pattern in name


def _quickness(name: str) -> tuple[bool, int, str]:
    """Sorts what is fast to compile first: rows that are not unrolled, then small head dims."""
    entry = manifest.entries()[name]
    return entry["profile"] not in ("webgpu-compat", "webgpu-default"), entry["serves"]["head_dim"][1], name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options; ``run`` takes what they parse to."""
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="variants whose name matches (repeatable)"
    )
    parser.add_argument("--compiler", choices=toolchains.COMPILERS, action="append", default=[], help="repeatable; default all")
    parser.add_argument("--driver", choices=toolchains.DRIVERS, action="append", default=[], help="repeatable; default all")
    parser.add_argument(
        "--run", action="store_true", help="also execute each variant on small problems and compare with float64"
    )
    parser.add_argument("--quick", action="store_true", help="one variant of each kernel and mask")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes at a time (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="S", help="seconds before a compile or a run has hung (%(default)s)"
    )
    parser.add_argument(
        "--limits",
        choices=toolchains.LIMITS,
        default="default",
        help="default: WebGPU's, else the smallest built-in profile that holds the variant; adapter: the adapter's own",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--static", action="store_true", help="only what needs no compiler")
    parser.add_argument(
        "--setup", action="store_true", help="first install the npm package webgpu (132 MB), for Tint without a driver"
    )
    parser.add_argument(
        "--node-folder",
        type=Path,
        default=None,
        metavar="DIR",
        help=f"where that package is (default {toolchains.NODE_FOLDER})",
    )


def run(args: argparse.Namespace) -> int:
    """Validates and prints: 0 where nothing is wrong, 1 where a variant is found wanting, 2 for wrong use."""
    errors = Console(stderr=True)
    try:
        if args.jobs < 1 or args.timeout <= 0:
            raise ArgumentError("--jobs, --timeout", f"{args.jobs}, {args.timeout}", "at least 1, and more than 0")
        names = choose(args.only, args.quick)
        if args.setup and not args.static:
            _set_up(args.node_folder, errors)
        columns = [] if args.static else toolchains.columns(args.compiler, args.driver, args.node_folder, args.limits)
    except ArgumentError as error:
        errors.print(str(error), style="red", markup=False)
        return 2
    executed = args.run and not args.static
    runs, not_run = cases.runs(names) if executed else ((), {})
    brief_runs, _ = cases.runs(names, brief=True) if executed else ((), {})
    variants = [manifest.load(name) for name in names]
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=args.json or not errors.is_terminal,
    ) as bar:
        shown = bar.add_task("opening drivers", total=None)
        report = validate(
            variants,
            columns,
            runs=runs,
            brief_runs=brief_runs,
            not_run=not_run,
            executed=executed,
            jobs=args.jobs,
            timeout=args.timeout,
            progress=lambda name, done, total: bar.update(shown, description=name, completed=done, total=total),
        )
    if args.static:
        report.devices["static checks"] = "the text alone"
    if args.json:
        json.dump(report.to_json(), sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        report.print(Console() if sys.stdout.isatty() else Console(width=WIDTH, color_system=None))
    return 1 if report.faults() else 0


def _set_up(folder: Path | None, console: Console) -> None:
    """Installs what Tint needs without a driver, unless it is there; that it cannot be had is no reason not to go on."""
    if toolchains.find_node_package(folder) is None:
        try:
            toolchains.install_node_package(folder)
        except DeviceError as error:
            console.print(f"Tint without a driver is left out: {error}", markup=False)
