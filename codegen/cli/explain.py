"""The command explain: which kernels serve a problem on a device, in which order, and what is refused and why."""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from ..errors import ArgumentError
from ..profile import PROFILES, builtin_profile
from ..selection.ranking import select
from .common import add_device_arguments, add_json_argument, console, print_json
from .problems import add_problem_arguments, problem_of

SUMMARY = "which kernels serve a problem on a device, and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say which kernels serve a problem on a device, in which order they are preferred, what they cost in memory, and "
        "what is refused and why. With --profile no GPU is needed."
    )
    parser.epilog = (
        "For example:\n"
        "  wgsl-attention explain --q-len 512 --heads 4 --kv-heads 2 --head-dim 128 --mask causal\n"
        "  wgsl-attention explain --seq 2048 --heads 8 --head-dim 64 --window 512 0 --profile webgpu-default"
    )
    add_problem_arguments(parser)
    device = add_device_arguments(parser)
    device.add_argument(
        "--profile", metavar="NAME", help=f"a built-in profile instead of the machine's GPU: {', '.join(PROFILES)}"
    )
    choice = parser.add_argument_group("choice")
    choice.add_argument("--algorithm", metavar="NAME", help="look at this algorithm only")
    choice.add_argument(
        "--guard", default="zero", metavar="NAME", help="what NaN and infinity become: zero (default) or propagate"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    problem = problem_of(args)
    if args.profile:
        if args.backend or args.adapter:
            raise ArgumentError("--profile", f"{args.profile} with --backend or --adapter", "one or the other")
        profile = builtin_profile(args.profile)
    else:
        from ..gpu.device import open_device

        with open_device(args.backend, args.adapter) as device:
            profile = device.profile
    selection = select(problem, profile, algorithm=args.algorithm, guard=args.guard)
    if args.json:
        candidates: list[dict[str, Any]] = [
            {
                "algorithm": recipe.algorithm,
                "scratch_bytes": dict(recipe.scratch),
                "steps": [
                    {
                        "variant": step.variant.name,
                        "workgroups": step.workgroups(problem),
                        "workgroup_size": step.variant.workgroup_size,
                        "workgroup_bytes": step.variant.workgroup_bytes,
                    }
                    for step in recipe.steps
                ],
            }
            for recipe in selection.candidates
        ]
        report = {"problem": str(problem), "profile": profile.name, "served": bool(candidates), "tuned": selection.tuned}
        print_json({**report, "candidates": candidates, "refusals": list(selection.refusals)})
    else:
        out = console()
        for line in selection.explain().splitlines():
            out.print(Text(line, style="bold green" if line.startswith("chosen") else ""), soft_wrap=True)
        if selection.best is None:
            out.print("nothing serves it", style="bold red")
    return 0 if selection.best else 1
