"""The command doctor: what this machine has, what that can do, and what to install for more."""

from __future__ import annotations

import argparse

from rich.text import Text

from .common import add_json_argument, console, facts, print_json, progress

SUMMARY = "what this machine has and what it lacks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Report which WebGPU implementations and adapters this machine has, what they can do, and what to install for more. "
        "Exits with 1 where there is no adapter at all."
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
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
            told = {
                "driver": adapter["driver"] or "unknown",
                "workgroup": f"{limits['max_compute_invocations_per_workgroup']} threads, "
                f"{limits['max_compute_workgroup_storage_size']} bytes of memory",
                "buffers": f"{limits['max_storage_buffers_per_shader_stage']} storage buffers of "
                f"{limits['max_storage_buffer_binding_size'] / 2**20:.0f} MiB",
                "features": ", ".join(adapter["features"]) or "none that matter here",
                "can stand in for": ", ".join(adapter["fits"]) or "none of the built-in profiles",
            }
            out.print(facts(told, indent=4))
    if report["advice"]:
        out.print("\nAdvice", style="bold")
        for line in report["advice"]:
            out.print(f"  - {line}", soft_wrap=True)
    return 0 if adapters else 1
