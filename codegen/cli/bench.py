"""The command bench: times algorithms, variants and the original's kernels side by side, and prints how they compare."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.text import Text

from ..algorithms.tiled_layouts import LAYOUTS
from ..benchmarking.bench import LIMIT, SOFTWARE_LIMIT, measure, usual_warm_up
from ..benchmarking.contenders import NAMES, check_variant
from ..benchmarking.timing import WARM_UP
from .bench_report import as_json, print_report
from .common import add_device_arguments, add_json_argument, check_least, console, print_json, progress
from .plots import check_plot, draw_bench
from .problems import add_measured_problem_arguments, measured_problems, usual_problems

SUMMARY = "time algorithms, variants and the original's kernels side by side"
MAX_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Time the backward pass on this machine's GPU: the package's algorithms and the kernels of the original, the file that "
        "the project started from, in turns and with the clock warmed up, by the GPU's timestamps. Exits with 1 where one "
        "fails, or where none serves a shape."
    )
    parser.epilog = (
        "TFLOP/s are five products, 5·2·S²·D·H, half of it for causal masks and the mask's true area otherwise. Times are "
        "medians of the kernels' compute pass; the range is that of the middle half. Clearing gradients first (streaming and "
        "the original's) is not counted.\n\n"
        "For example:\n"
        "  wgsl-attention bench\n"
        "  wgsl-attention bench --shape 4096,32,8,128 --shape 8192,16,4,64 --algorithm tiled --algorithm original\n"
        "  wgsl-attention bench --seq 8192 --heads 16 --kv-heads 4 --head-dim 64 --window 512 0 --layout 16k --layout 48k\n"
        "  wgsl-attention bench --kernels --plot bench.png --json > bench.json"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--algorithm",
        action="append",
        choices=("original", *NAMES),
        metavar="NAME",
        help=f"time this one; may be repeated, the first is what ratios are to: original, {', '.join(NAMES)}; default: all",
    )
    what.add_argument(
        "--layout",
        action="append",
        default=[],
        choices=tuple(LAYOUTS),
        metavar="NAME",
        help=f"time tiled with this layout too; may be repeated: {', '.join(LAYOUTS)}",
    )
    what.add_argument("--variant", action="append", default=[], metavar="KERNEL", help="time the best recipe that uses it too")
    what.add_argument("--candidates", type=int, default=1, metavar="N", help="time the N best recipes of each algorithm")
    what.add_argument("--torch", action="store_true", help="time PyTorch's own backward pass too: on CUDA, or else its CPU's")
    what.add_argument(
        "--document-length", type=int, metavar="N", help="of a documents mask; default: an eighth of the sequence"
    )
    add_measured_problem_arguments(parser, what)
    how = parser.add_argument_group("how")
    how.add_argument("--rounds", type=int, default=9, metavar="N", help="timings of each; default: 9")
    how.add_argument("--warm-up", type=float, metavar="SECONDS", help=f"of work before each; default: {WARM_UP}, software: 0")
    how.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help=f"of work for each, then no more rounds; default: {LIMIT:g}, software: {SOFTWARE_LIMIT:g}",
    )
    how.add_argument("--kernels", action="store_true", help="time each kernel by itself as well")
    how.add_argument("--checked", action="store_true", help="leave the compiler's bounds checks in everywhere")
    how.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the result (needs matplotlib, the extra plot)")
    add_device_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ..gpu.device import open_device

    _check(args)
    problems = measured_problems(args)
    unchecked = False if args.checked else None
    with progress("Opening the device") as tell, open_device(args.backend, args.adapter, unchecked=unchecked) as device:
        profile = device.profile
        warm_up = usual_warm_up(profile) if args.warm_up is None else args.warm_up
        reports = [
            measure(
                device,
                problem,
                algorithms=args.algorithm,
                layouts=args.layout,
                variants=args.variant,
                candidates=args.candidates,
                torch=args.torch,
                document_length=args.document_length,
                rounds=args.rounds,
                warm_up=warm_up,
                limit=args.limit,
                kernels=args.kernels,
                progress=tell,
            )
            for problem in problems or usual_problems(args, profile)
        ]
    out = console()
    if args.json:
        print_json(
            {
                "ok": all(report.ok for report in reports),
                "adapter": profile.name,
                "backend": profile.backend,
                "driver": profile.driver,
                "clock": "timestamps" if "timestamp-query" in profile.features else "wall",
                "rounds": args.rounds,
                "warm_up": warm_up,
                "shapes": [as_json(report) for report in reports],
            }
        )
    else:
        out.width = min(out.width, MAX_WIDTH)
        out.print(Text.assemble("Backward pass on ", (profile.name, "bold"), f", {profile.backend}"))
        for report in reports:
            print_report(out, report)
    if args.plot is not None:  # last, so that nothing measured is lost where it cannot be written
        draw_bench(args.plot, reports, f"Backward pass on {profile.name}, {profile.backend}")
        if not args.json:
            out.print(f"\nDrawn in {args.plot}", soft_wrap=True)
    return 0 if all(report.ok for report in reports) else 1


def _check(args: argparse.Namespace) -> None:
    """What is wrong whatever the device, before anything takes time."""
    check_least(args, rounds=1, candidates=1, document_length=1, warm_up=0, limit=0)
    for variant in args.variant:
        check_variant(variant)
    if args.plot is not None:
        check_plot(args.plot)
    if args.torch:
        from ..benchmarking.pytorch import load_torch

        load_torch()
