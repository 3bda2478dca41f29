"""The commands generate, explain and doctor, and the table of all commands.

A command is a name, a line for the overview, a function that adds its arguments to a parser, and one that runs it and
returns the exit status: 0, or 1 where something was found wanting.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..errors import ArgumentError
from ..profile import PROFILES, builtin_profile
from .catalog import add_list_arguments, add_show_arguments, run_list, run_show
from .common import (
    add_device_arguments,
    add_json_argument,
    add_problem_arguments,
    checkout,
    console,
    print_json,
    problem_of,
    progress,
    table,
)
from .gradcheck import add_gradcheck_arguments, run_gradcheck

if TYPE_CHECKING:
    from ..rendering.build import Drift

MAX_DIFF_LINES = 40
MAX_DIFFS = 8
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Render every checked-in variant and its manifest from the templates. In a source checkout that is generated/; "
        "elsewhere name a folder with --out. The same templates always give the same bytes."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; print where the folder differs, and then exit with 1"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder: a new one, or one that this command made")
    add_json_argument(parser)


def run_generate(args: argparse.Namespace) -> int:
    from ..rendering import build

    folder = _generated_folder(args.out)
    shown = _short_path(folder)
    with progress("Rendering") as tell:
        files = build.build(lambda name: tell(f"Rendering {name}"))
    if args.check:
        drift = build.drift(folder, files)
        mend = build.MEND if args.out is None else f"{build.MEND} --out {args.out}"
        if args.json:
            found = [{"path": d.path, "kind": d.kind, "diff": d.diff} for d in drift]
            print_json({"ok": not drift, "folder": str(folder), "drift": found, "mend": mend})
        elif drift:
            _print_drift(shown, drift, mend if args.out else f"make generate   (or {mend})")
        else:
            console().print(f"{shown} is what the templates give: {len(files)} files.")
        return 1 if drift else 0
    try:
        changed = build.write(folder, files)
    except OSError as error:
        raise ArgumentError("out", f"{folder} ({error.strerror or error})", "a folder that can be written to") from error
    if args.json:
        print_json({"folder": str(folder), "files": len(files), "changed": list(changed)})
        return 0
    out = console()
    for path in changed:
        out.print(("wrote   " if path in files else "removed ") + path)
    size = sum(len(text.encode()) for text in files.values())
    out.print(f"{shown}: {len(files)} files, {size / 1e6:.1f} MB; {len(changed) or 'none'} changed.")
    return 0


def _generated_folder(out: Path | None) -> Path:
    """Where to generate: ``--out``, or a checkout's generated/; never inside an installed package."""
    root = checkout()
    if out is None:
        if root is None:
            raise ArgumentError("--out", "nothing", "--out DIR, since this is an installed package and not a source checkout")
        return root / "generated"
    package = Path(__file__).resolve().parents[1]
    if root is None and package in (out.resolve(), *out.resolve().parents):
        raise ArgumentError("--out", out, "a folder outside the installed package")
    return out


def _short_path(folder: Path) -> str:
    try:
        return f"{folder.resolve().relative_to(Path.cwd())}/"
    except ValueError:
        return f"{folder}/"


def _print_drift(folder: str, drift: tuple[Drift, ...], mend: str) -> None:
    out = console()
    out.print(f"{folder} is not what the templates give: {len(drift)} file{'s' if len(drift) > 1 else ''} off.", style="bold")
    shown = 0
    for found in drift:
        lines = found.diff.splitlines() if found.kind == "changed" else []
        if not lines or shown >= MAX_DIFFS:
            out.print(f"{found.kind}: {found.path}", style="bold", soft_wrap=True)
            continue
        out.print(f"\n{found.kind}: {found.path}", style="bold", soft_wrap=True)
        shown += 1
        for line in lines[:MAX_DIFF_LINES]:
            out.print(Text(line, style=_STYLES.get(line[:1], ""), no_wrap=True, overflow="ignore"), crop=False)
        if len(lines) > MAX_DIFF_LINES:
            out.print(f"… and {len(lines) - MAX_DIFF_LINES} more lines (--json has them all)")
    out.print(f"\nTo mend it:  {mend}", soft_wrap=True)


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
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
    device = parser.add_argument_group("device")
    device.add_argument(
        "--profile", metavar="NAME", help=f"a built-in profile instead of the machine's GPU: {', '.join(PROFILES)}"
    )
    add_device_arguments(device)
    choice = parser.add_argument_group("choice")
    choice.add_argument("--algorithm", metavar="NAME", help="look at this algorithm only")
    choice.add_argument(
        "--guard", default="zero", metavar="NAME", help="what NaN and infinity become: zero (default) or propagate"
    )
    add_json_argument(parser)


def run_explain(args: argparse.Namespace) -> int:
    from ..selection.select import select

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


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Report which WebGPU implementations and adapters this machine has, what they can do, and what to install for more. "
        "Exits with 1 where there is no adapter at all."
    )
    add_json_argument(parser)


def run_doctor(args: argparse.Namespace) -> int:
    from ..gpu.doctor import doctor

    with progress("Looking for adapters"):
        report = doctor()
    adapters = [adapter for backend in report["backends"] for adapter in backend["adapters"]]
    if args.json:
        print_json(report)
        return 0 if adapters else 1
    out = console()
    for backend in report["backends"]:
        state = backend["version"] or ("installed" if backend["installed"] else "not installed")
        out.print(Text.assemble((backend["name"], "bold"), f" {state}"))
        if backend["error"] and backend["installed"]:
            out.print(f"  {backend['error']}", style="red", soft_wrap=True)
        if not backend["adapters"]:
            out.print("  no adapter")
        for adapter in backend["adapters"]:
            limits = adapter["limits"]
            out.print(f"  {adapter['description']}", style="green", soft_wrap=True)
            rows = table(out, "", "")
            rows.show_header, rows.box = False, None
            rows.add_row("    driver", adapter["driver"] or "unknown")
            rows.add_row(
                "    workgroup",
                f"{limits['max_compute_invocations_per_workgroup']} threads, "
                f"{limits['max_compute_workgroup_storage_size']} bytes of memory",
            )
            rows.add_row(
                "    buffers",
                f"{limits['max_storage_buffers_per_shader_stage']} storage buffers of "
                f"{limits['max_storage_buffer_binding_size'] / 2**20:.0f} MiB",
            )
            rows.add_row("    features", ", ".join(adapter["features"]) or "none that matter here")
            rows.add_row("    can stand in for", ", ".join(adapter["fits"]) or "none of the built-in profiles")
            out.print(rows)
    if report["advice"]:
        out.print("\nAdvice", style="bold")
        for line in report["advice"]:
            out.print(f"  - {line}", soft_wrap=True)
    return 0 if adapters else 1


@dataclass(frozen=True, slots=True)
class Command:
    """One command; see the module's docstring."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _in_module(name: str, summary: str, module_name: str = "") -> Command:
    """A command that is a module of its own with ``add_arguments`` and ``run``; imported when it is asked for."""

    def module() -> Any:
        return importlib.import_module(f".{module_name or name}", __package__)

    return Command(name, summary, lambda parser: module().add_arguments(parser), lambda args: int(module().run(args)))


COMMANDS = (
    Command(
        "generate", "render the checked-in kernels, or check that they are up to date", add_generate_arguments, run_generate
    ),
    _in_module("validate", "compile and run every checked-in kernel"),
    Command("list", "the checked-in kernels", add_list_arguments, run_list),
    Command("show", "one kernel: its facts, its bindings and its WGSL", add_show_arguments, run_show),
    Command("explain", "which kernels serve a problem on a device, and why", add_explain_arguments, run_explain),
    Command("gradcheck", "prove the gradients on this machine's GPU", add_gradcheck_arguments, run_gradcheck),
    _in_module("tune", "find this GPU's fastest kernels for given problems and keep them in a table", "tune"),
    _in_module("bench", "time algorithms, variants and the reference's kernels side by side"),
    Command("doctor", "what this machine has and what it lacks", add_doctor_arguments, run_doctor),
)
