"""The command list: the checked-in kernels, what each serves, and what it asks of a device."""

from __future__ import annotations

import argparse

from rich.text import Text

from ..kernels.families import FAMILIES
from ..kernels.original_masks import MODES
from ..rendering import manifest
from .common import add_json_argument, console, counted, print_json, print_table, span, summary_of, table

SUMMARY = "the checked-in kernels"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the checked-in kernels: what each serves, and what it asks of a device."
    parser.add_argument("--kernel", choices=tuple(FAMILIES), metavar="NAME", help=f"only this one: {', '.join(FAMILIES)}")
    parser.add_argument("--mask", choices=tuple(MODES), metavar="MODE", help=f"only those that serve it: {', '.join(MODES)}")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    entries = {
        name: entry
        for name, entry in manifest.entries().items()
        if args.kernel in (None, entry["kernel"]) and (args.mask is None or args.mask in entry["serves"]["masks"])
    }
    if args.json:
        fields = ("kernel", "serves", "workgroup_size", "workgroup_bytes", "profile", "features", "file")
        print_json([{"name": name, **{field: entry[field] for field in fields}} for name, entry in entries.items()])
        return 0
    out = console()
    for kernel in dict.fromkeys(entry["kernel"] for entry in entries.values()):
        out.print(Text.assemble((kernel, "bold"), f"  {summary_of(kernel)}"), soft_wrap=True)
        rows = table(out, "name", "masks", ">head_dim", ">longest", ">threads", ">workgroup bytes", "smallest profile")
        for name, entry in entries.items():
            if entry["kernel"] == kernel:
                serves = entry["serves"]
                rows.add_row(
                    name,
                    ", ".join(serves["masks"]) or "–",
                    span(*serves["head_dim"]),
                    str(serves["max_seq"] or "any"),
                    str(entry["workgroup_size"][0]),
                    str(entry["workgroup_bytes"]),
                    entry["profile"] or "none",
                )
        print_table(out, rows)
        out.print()
    out.print(counted(len(entries), "kernel"))
    return 0
