"""The command bench: times algorithms, variants and the reference's own kernels in one run, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ..algorithms.tiled_layouts import LAYOUTS
from ..benchmarking.contenders import NAMES, check_variant, contenders, document_starts, operations
from ..benchmarking.timing import WARM_UP, PlanRunner, Runner, Timing, Workbench, race
from ..errors import ArgumentError, UnservedProblemError, WgslAttentionError
from ..problem.mask import Mask
from ..problem.problem import Problem
from .bench_report import Report, Result, as_json, print_report
from .common import (
    add_device_arguments,
    add_json_argument,
    add_problem_arguments,
    console,
    has_shape,
    mask_of,
    print_json,
    problem_of,
    progress,
    with_strides,
)

if TYPE_CHECKING:
    from ..gpu.device import Device

summary = "time algorithms, variants and the reference's kernels side by side"
SHAPES = ((512, 4, 2, 128), (1024, 16, 4, 64), (2048, 16, 4, 64), (4096, 32, 8, 128), (8192, 16, 4, 64))
"""(seq, heads, kv_heads, head_dim) that a GPU is timed at."""
SOFTWARE_SHAPES = ((256, 4, 2, 64), (512, 4, 2, 64))
MAX_WIDTH = 100
LIMIT, SOFTWARE_LIMIT = 20.0, 5.0
MOST = 1 << 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Time the backward pass on this machine's GPU: the package's algorithms and the reference's own kernels, in turns and "
        "with the clock warmed up, by the GPU's timestamps. Exits with 1 where one fails, or where none serves a shape."
    )
    parser.epilog = (
        "TFLOP/s are five products, 5·2·S²·D·H, half of it for causal masks and the mask's true area otherwise. Times are\n"
        "medians of the kernels' compute pass; the range is that of the middle half. Clearing gradients first (streaming and\n"
        "its reference) is not counted.\n\n"
        "For example:\n"
        "  wgsl-attention bench\n"
        "  wgsl-attention bench --shape 4096,32,8,128 --shape 8192,16,4,64 --algorithm tiled --algorithm reference\n"
        "  wgsl-attention bench --seq 8192 --heads 16 --kv-heads 4 --head-dim 64 --window 512 0 --layout 16k --layout 48k\n"
        "  wgsl-attention bench --kernels --plot bench.png --json > bench.json"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--algorithm",
        action="append",
        choices=("reference", *NAMES),
        metavar="NAME",
        help=f"time this one; may be repeated, the first is what ratios are to: reference, {', '.join(NAMES)}; default: all",
    )
    what.add_argument(
        "--layout",
        action="append",
        choices=tuple(LAYOUTS),
        metavar="NAME",
        help=f"time tiled with this layout too; may be repeated: {', '.join(LAYOUTS)}",
    )
    what.add_argument("--variant", action="append", metavar="KERNEL", help="time the best recipe that uses this kernel too")
    what.add_argument("--candidates", type=int, default=1, metavar="N", help="time the N best recipes of each algorithm")
    what.add_argument("--torch", action="store_true", help="time PyTorch's own backward pass too: on CUDA, or else its CPU's")
    what.add_argument(
        "--shape",
        action="append",
        metavar="SEQ,HEADS,KV_HEADS,HEAD_DIM",
        help="may be repeated; default: five shapes of training, or two small ones on a software adapter",
    )
    add_problem_arguments(parser)
    what.add_argument(
        "--document-length", type=int, metavar="N", help="of a documents mask; default: an eighth of the sequence"
    )
    what.add_argument(
        "--given", choices=("o", "delta", "none"), default="o", help="what the caller has: o (default), rowsum(do∘o) or neither"
    )
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
    add_device_arguments(how)
    how.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the result (needs matplotlib, the extra plot)")
    add_json_argument(how)


def run(args: argparse.Namespace) -> int:
    from ..gpu.device import open_device

    _check(args)
    with progress("Opening the device") as tell, open_device(args.backend, args.adapter, trusted=not args.checked) as device:
        profile = device.profile
        problems = problems_of(args, SOFTWARE_SHAPES if profile.software else SHAPES)
        reports = [measure(device, problem, args, tell) for problem in problems]
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
                "warm_up": _warm_up(args, device),
                "shapes": [as_json(report) for report in reports],
            }
        )
    else:
        out.width = min(out.width, MAX_WIDTH)
        out.print(Text.assemble("Backward pass on ", (profile.name, "bold"), f", {profile.backend}"))
        for report in reports:
            print_report(out, report)
    if args.plot is not None:  # last, so that nothing measured is lost where it cannot be written
        from .bench_plot import plot

        plot(args.plot, reports, f"Backward pass on {profile.name}, {profile.backend}")
        if not args.json:
            out.print(f"\nDrawn in {args.plot}", soft_wrap=True)
    return 0 if all(report.ok for report in reports) else 1


def _check(args: argparse.Namespace) -> None:
    """What is wrong whatever the device, before anything takes time."""
    for name, least in (("rounds", 1), ("candidates", 1), ("document_length", 1), ("warm_up", 0), ("limit", 0)):
        value = getattr(args, name)
        if value is not None and not least <= value < MOST:
            raise ArgumentError(f"--{name.replace('_', '-')}", value, f"{least} or more, and finite")
    for variant in args.variant or ():
        check_variant(variant)
    if args.plot is not None:
        from .bench_plot import check

        check(args.plot)
    if args.torch:
        from ..benchmarking.pytorch import load_torch

        load_torch()


def problems_of(args: argparse.Namespace, default: tuple[tuple[int, int, int, int], ...]) -> list[Problem]:
    """The problems that the arguments describe; ``default`` shapes where they give none. Raises ``ArgumentError``."""
    mask = mask_of(args) or Mask.causal()
    if has_shape(args):
        if args.shape:
            raise ArgumentError("--shape", "--seq, --heads, … too", "one way or the other")
        return [replace(problem_of(args, mask=mask), given=args.given)]
    problems = []
    for text in args.shape or default:
        try:
            seq, heads, kv_heads, head_dim = map(int, text.split(",")) if isinstance(text, str) else text
        except ValueError:
            raise ArgumentError("--shape", repr(text), "SEQ,HEADS,KV_HEADS,HEAD_DIM, such as 4096,32,8,128") from None
        problem = Problem(q_len=seq, kv_len=seq, heads=heads, kv_heads=kv_heads, head_dim=head_dim, mask=mask, given=args.given)
        problems.append(with_strides(problem, args.strides))
    return problems


def _warm_up(args: argparse.Namespace, device: Device) -> float:
    """A processor's clock needs no warming up that a first run does not do."""
    if args.warm_up is not None:
        return float(args.warm_up)
    return 0.0 if device.profile.software else WARM_UP


def _limit(args: argparse.Namespace, device: Device) -> float:
    if args.limit is not None:
        return float(args.limit)
    return SOFTWARE_LIMIT if device.profile.software else LIMIT


def measure(device: Device, problem: Problem, args: argparse.Namespace, tell: Callable[[str], None]) -> Report:
    """Prepares every contender at one problem, then races those that could be."""
    doc_start = document_starts(problem, args.document_length)
    bench = Workbench(device, problem, doc_start=doc_start)
    asked = args.algorithm or ([] if args.layout or args.variant else NAMES)
    entries: list[Runner | Result] = []
    for contender in contenders(
        problem, device.profile, asked, candidates=args.candidates, layouts=args.layout or (), variants=args.variant or ()
    ):
        tell(f"{problem}: compiling {contender.label}")
        if contender.recipe is None:
            entries.append(_untimed(contender.label, "refused", contender.reason))
        else:
            entries.append(_enter(contender.label, partial(bench.prepare, contender.label, contender.recipe)))
    if args.torch:
        from ..benchmarking.pytorch import TorchRunner

        entries.append(_enter("PyTorch", partial(TorchRunner, problem, doc_start)))
    runners = [entry for entry in entries if not isinstance(entry, Result)]
    timings = race(
        runners,
        rounds=args.rounds,
        warm_up=_warm_up(args, device),
        limit=_limit(args, device),
        kernels=args.kernels,
        progress=lambda doing: tell(f"{problem}: {doing}"),
    )
    count = operations(problem, doc_start)
    first = next((timing.median for timing in timings if timing.ok), 0.0)
    raced = iter(timings)
    results = [entry if isinstance(entry, Result) else _result(entry, next(raced), count, first) for entry in entries]
    return Report(problem=problem, operations=count, results=tuple(results))


def _enter(label: str, make: Callable[[], Runner]) -> Runner | Result:
    try:
        return make()
    except UnservedProblemError as error:
        return _untimed(label, "refused", "; ".join(error.reasons))
    except WgslAttentionError as error:
        return _untimed(label, "failed", str(error))


def _untimed(label: str, status: str, reason: str) -> Result:
    return Result(label=label, status=status, timing=Timing(label=label, reason=reason))


def _result(runner: Runner, timing: Timing, count: float, first: float) -> Result:
    plan = runner if isinstance(runner, PlanRunner) else None
    return Result(
        label=timing.label,
        status="timed" if timing.ok else "failed",
        timing=timing,
        tflops=count / timing.median / 1e12 if timing.ok else 0.0,
        ratio=first / timing.median if timing.ok else 0.0,
        variants=tuple(v.name for v in plan.plan.recipe.variants) if plan else (),
        unchecked=bool(plan and plan.unchecked),
    )
