"""The command validate: every variant on every compiler and every driver here, compiled, counted, and run against float64.

It says which variants, and on what; ``validation.matrix`` does the work.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
from collections.abc import Iterable
from typing import Any

from ..errors import ArgumentError
from ..rendering import manifest
from ..validation import coverage, toolchains
from ..validation.matrix import TIMEOUT, validate
from ..validation.report import DEFAULT_PROFILES
from .common import add_json_argument, check_least, console, print_json, progress
from .validate_report import print_report

SUMMARY = "compile and run every checked-in kernel"


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
    return entry["profile"] not in DEFAULT_PROFILES, entry["serves"]["head_dim"][1], name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check the text of every checked-in kernel, compile it with every WebGPU compiler on every driver that this machine "
        "has, and with --run execute it on small problems and compare with float64. A kernel that crashes or hangs is a line "
        "in the report. Exits with 1 where a kernel is found wanting, or where there is no compiler."
    )
    parser.epilog = (
        "For example:\n"
        "  wgsl-attention validate --static\n"
        "  wgsl-attention validate --quick --run\n"
        "  wgsl-attention validate --only 'attention_dq*' --compiler tint --driver none --setup"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only kernels whose name it matches, or is a part of; may be repeated",
    )
    what.add_argument("--quick", action="store_true", help="one variant of each kernel and mask")
    what.add_argument("--static", action="store_true", help="only what needs no compiler")
    what.add_argument("--run", action="store_true", help="also execute each variant on small problems and compare with float64")
    on = parser.add_argument_group("on what")
    on.add_argument(
        "--compiler", choices=toolchains.COMPILERS, action="append", default=[], help="may be repeated; default: all"
    )
    on.add_argument("--driver", choices=toolchains.DRIVERS, action="append", default=[], help="may be repeated; default: all")
    on.add_argument(
        "--limits",
        choices=toolchains.LIMITS,
        default="default",
        help="default: WebGPU's, else the smallest built-in profile that holds the variant; adapter: the adapter's own",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes at a time; default: %(default)s"
    )
    how.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"after which a compile or a run has hung; default: {TIMEOUT:g}",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    check_least(args, jobs=1, timeout=0.1)
    names = choose(args.only, args.quick)
    with progress("Looking for compilers") as tell:
        columns = [] if args.static else toolchains.columns(args.compiler, args.driver, args.limits)
        executed = args.run and not args.static
        runs, not_run = coverage.runs(names) if executed else ((), {})
        brief_runs, _ = coverage.runs(names, brief=True) if executed else ((), {})
        tell("Opening drivers")
        report = validate(
            [manifest.load(name) for name in names],
            columns,
            runs=runs,
            brief_runs=brief_runs,
            not_run=not_run,
            executed=executed,
            jobs=args.jobs,
            timeout=args.timeout,
            progress=tell,
        )
    if args.static:
        report.devices["static checks"] = "the text alone"
    if args.json:
        print_json(report.to_json())
    else:
        print_report(console(), report)
    return 1 if report.faults() else 0
