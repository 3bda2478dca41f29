"""The command show: one checked-in kernel, or any other one rendered on demand, or what the parameters of a family are."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from rich.console import Console

from ..errors import ArgumentError
from ..kernels.facts import RenderedVariant
from ..kernels.families import FAMILIES
from ..kernels.variant import Variant
from ..rendering import manifest
from .common import about, add_json_argument, console, facts, print_json, print_table, span, spelt, summary_of, table

SUMMARY = "one kernel: its facts, its bindings and its WGSL"
MANY = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show one kernel: its facts, its bindings, how it is dispatched, and its WGSL. NAME is a checked-in one (`list`), or "
        "a family, which is rendered on demand with the parameters that --set gives and described without any."
    )
    parser.epilog = (
        "For example:\n"
        "  wgsl-attention show attention_backward_wg256_d64_causal --wgsl > kernel.wgsl\n"
        "  wgsl-attention show attention_backward\n"
        "  wgsl-attention show attention_backward --set wg=64 --set head_dim=72 --set mask=window"
    )
    parser.add_argument("kernel", metavar="NAME", help="a checked-in kernel, or a family")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PARAM=VALUE", help="a family's parameter; may be repeated"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--wgsl", action="store_true", help="print the WGSL and nothing else")
    add_json_argument(how)


def run(args: argparse.Namespace) -> int:
    family = FAMILIES.get(args.kernel)
    if family and not args.set and not args.wgsl:
        return _show_family(family, as_json=args.json)
    if family:
        from ..rendering.renderer import render

        shown = render(variant_from(family, args.set))
    elif args.set:
        raise ArgumentError("--set", f"a value for {args.kernel}", f"a family: {', '.join(FAMILIES)}")
    else:
        shown = manifest.load(args.kernel)
    if args.wgsl:
        if not sys.stdout.isatty():
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # WGSL is UTF-8, whatever the locale says
        print(shown.wgsl, end="")
    elif args.json:
        entry = manifest.entry_of(shown)
        if shown.name not in manifest.entries():
            entry["file"] = None
        print_json({"name": shown.name, **entry, "wgsl": shown.wgsl})
    else:
        _show_variant(console(), shown)
    return 0


def variant_from(family: type[Variant], settings: list[str]) -> Variant:
    """A variant from ``PARAM=VALUE`` texts. Raises ``ArgumentError`` for a name, a value or a lack, ``VariantError`` for a rule."""
    fields = {field.name: field for field in dataclasses.fields(family)}
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in fields:
            raise ArgumentError("--set", setting, f"PARAM=VALUE with one of {', '.join(fields)}")
        values[name] = _value(name, text, fields[name].metadata["values"])
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ArgumentError("--set", f"no {' and no '.join(missing)}", f"a value for each, as {family.kernel} has no default")
    return family(**values)


def _value(name: str, text: str, allowed: tuple[Any, ...]) -> Any:
    kind = type(allowed[0]) if allowed else int
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ArgumentError(f"--set {name}", text, "true or false")
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"--set {name}", text, "a whole number") from None


def _show_family(family: type[Variant], *, as_json: bool) -> int:
    names = [name for name, entry in manifest.entries().items() if entry["kernel"] == family.kernel]
    parameters = [
        {
            "name": field.name,
            "values": list(field.metadata["values"]),
            "default": None if field.default is dataclasses.MISSING else field.default,
            "about": field.metadata["doc"],
        }
        for field in dataclasses.fields(family)
    ]
    if as_json:
        print_json({"kernel": family.kernel, "about": about(family), "parameters": parameters, "checked_in": names})
        return 0
    out = console()
    out.print(family.kernel, style="bold")
    out.print(f"{about(family)}\n", soft_wrap=True)
    rows = table(out, "parameter", "values", "default", "what")
    for field, parameter in zip(dataclasses.fields(family), parameters, strict=True):
        values = ", ".join(map(spelt, parameter["values"])) or "a number"
        default = "needed" if field.default is dataclasses.MISSING else spelt(field.default)
        rows.add_row(field.name, values, default, str(field.metadata["doc"]))
    print_table(out, rows)
    out.print(f"\n{len(names)} checked in:" if names else "\nnone checked in")
    for name in names[:MANY]:
        out.print(f"  {name}", soft_wrap=True)
    if len(names) > MANY:
        out.print(f"  … and {len(names) - MANY} more: wgsl-attention list --kernel {family.kernel}")
    return 0


def _show_variant(out: Console, shown: RenderedVariant) -> None:
    serves = shown.serves
    profile = manifest.smallest_profile(shown)
    told = {
        "kernel": f"{shown.kernel}: {summary_of(shown.kernel)}",
        "checked in": "yes" if shown.name in manifest.entries() else "no, rendered on demand",
        "parameters": ", ".join(f"{name}={spelt(value)}" for name, value in shown.params.items()),
        "constants": ", ".join(f"{c.name}: {c.size}, {c.taken}" for c in shown.constants) or "none",
        "masks": ", ".join(serves.masks) or "none: it has no mask",
        "head_dim": span(serves.min_head_dim, serves.max_head_dim),
        "longest": str(serves.max_seq or "any"),
        "workgroup": f"{shown.workgroup_size[0]} threads, {shown.workgroup_bytes} bytes of memory",
        "smallest profile": profile or "none of the built-in ones",
        "features": ", ".join(shown.features) or "none",
        "dispatch": _formula(shown),
    }
    out.print(shown.name, style="bold green", soft_wrap=True)
    out.print(facts(told))
    out.print()
    bindings = table(out, ">binding", "name", "type", "access", "role", "words")
    for b in shown.bindings:
        bindings.add_row(str(b.binding), b.name, b.type, b.access, b.role, " ".join(word.name for word in b.words))
    print_table(out, bindings)
    out.print()
    print(shown.wgsl, end="", file=out.file)  # as it is: no wrapping, no colours


def _formula(shown: RenderedVariant) -> str:
    counts = []
    for count in (shown.dispatch_data.x, shown.dispatch_data.y, shown.dispatch_data.z):
        product = " · ".join(count.factors) or "1"
        counts.append(f"⌈{product} / {count.divisor}⌉" if count.divisor > 1 else product)
    return f"{', '.join(counts)} workgroups{', x folded over y past its limit' if shown.dispatch_data.flat else ''}"
