"""The command gradcheck: chooses what is checked, and prints what ``gradcheck`` found as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ArgumentError
from ..problem.mask import Mask
from .common import add_device_arguments, add_json_argument, checkout, console, print_json, print_table, progress, table
from .problems import add_problem_arguments, has_shape, mask_of, problem_of, with_strides

if TYPE_CHECKING:
    from ..reference.samples import Case
    from ..validation.gradcheck import Check

SUMMARY = "prove the gradients on this machine's GPU"
REAL_STEP = Path("tests", "data", "real_step.npz")
_STATUS = {
    "pass": ("pass", "green"),
    "fail": ("FAIL", "bold red"),
    "refused": ("not served", "yellow"),
    "baseline": ("", "dim"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run the backward pass on this machine's GPU with every algorithm that serves it, and compare the gradients with "
        "float64. What is checked: a file with --data, one random problem where a shape is given, and otherwise, in a source "
        "checkout, a captured training step, elsewhere a set of random problems of every mask. Exits with 1 if any fails."
    )
    parser.epilog = (
        "A gradient passes where max|g − r| ≤ 3·max|b − r| + 2⁻²²·max|r| in every 64 rows of every head: r is "
        "float64's, b NumPy's in float32.\n\n"
        "For example:\n"
        "  wgsl-attention gradcheck\n"
        "  wgsl-attention gradcheck --seq 300 --heads 8 --kv-heads 2 --head-dim 72 --window 64 0\n"
        "  wgsl-attention gradcheck --data step.npz --algorithm streaming --json"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--data",
        type=Path,
        metavar="FILE.npz",
        help="q, k, v, do of (seq, heads, head_dim), or with a batch axis; optional: o, lse (…, seq, heads), doc_start, scale, "
        "and dq_autograd, dk_autograd, dv_autograd to be shown beside ours",
    )
    what.add_argument("--synthetic", action="store_true", help="the set of random problems, in a source checkout too")
    what.add_argument("--algorithm", metavar="NAME", help="this algorithm only")
    add_problem_arguments(parser)
    add_device_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ..gpu.device import open_device
    from ..validation.gradcheck import run_checks

    with progress("Opening the device") as tell:
        cases = [replace(case, problem=with_strides(case.problem, args.strides)) for case in _cases(args)]
        with open_device(args.backend, args.adapter) as device:
            checks = run_checks(cases, device=device, algorithm=args.algorithm, progress=tell)
            profile = device.profile
    ok = all(check.ok for check in checks)
    if args.json:
        report = {"ok": ok, "adapter": profile.name, "backend": profile.backend, "driver": profile.driver}
        print_json({**report, "checks": [_as_json(check) for check in checks]})
    else:
        out = console()
        out.print(
            Text.assemble("Gradients on ", (profile.name, "bold"), f", {profile.backend}, against float64"), soft_wrap=True
        )
        for case in dict.fromkeys(check.case for check in checks):
            _print_case(out, [check for check in checks if check.case == case])
        _print_end(out, checks)
    return 0 if ok else 1


def _cases(args: argparse.Namespace) -> list[Case]:
    from ..reference.samples import case_from_file, synthetic_case, synthetic_cases

    mask = mask_of(args)
    if sum((args.data is not None, has_shape(args), args.synthetic)) > 1:
        raise ArgumentError("--data, --synthetic and shapes", "several of them", "one")
    if args.data is not None:
        return [case_from_file(args.data, mask)]
    if has_shape(args) or (mask is not None and not args.synthetic):
        problem = problem_of(args, q_len=256, heads=4, head_dim=64, mask=Mask.causal())
        return [synthetic_case("random arrays", problem)]
    if mask is not None:
        raise ArgumentError("--synthetic", "a mask too", "no mask, since the set has one problem of each")
    root = checkout()
    if root and not args.synthetic and (root / REAL_STEP).is_file():
        return [case_from_file(root / REAL_STEP)]
    return synthetic_cases()


def _print_case(out: Console, checks: list[Check]) -> None:
    """One case: a row for each run, gradients side by side, and below it which kernels ran and what went wrong."""
    out.print(Text.assemble("\n", (checks[0].case, "bold cyan"), f"  {checks[0].problem}\n"), soft_wrap=True)
    names = tuple(dict.fromkeys(judgement.name for check in checks for judgement in check.judgements))
    headers = [header for name in names for header in (f">{name} error", ">× tol.")]
    rows = table(out, "", "", *headers, "")
    for check in sorted(checks, key=lambda check: check.status == "baseline"):
        if check.status != "refused":
            _add_row(rows, check, names)
    print_table(out, rows)
    out.print()
    ran: dict[str, dict[str, None]] = {}
    for check in checks:
        if check.variants:
            ran.setdefault(check.algorithm, {}).update(dict.fromkeys(check.variants))
    width = max((len(name) for name in ran), default=0)
    for name, variants in ran.items():
        for i, variant in enumerate(variants):
            out.print(Text(f"{name if i == 0 else '':<{width}}  {variant}", style="dim"), soft_wrap=True)
    if line := _nearer(checks):
        out.print(f"\n{line}", style="green", soft_wrap=True)
    for check in checks:
        if check.status == "refused":
            out.print(Text(f"{check.algorithm} does not serve this: {check.reason}", style="yellow"), soft_wrap=True)
        elif check.status == "fail":
            for line in [check.reason] if check.reason else [str(j) for j in check.judgements if not j.ok]:
                out.print(Text(f"FAIL {check.algorithm}, {check.given}: {line}", style="bold red"), soft_wrap=True)


def _nearer(checks: list[Check]) -> str:
    """How much nearer to float64 every run is than the file's own float32 gradients; empty without such, or where they win."""
    ratios = []
    for baseline in checks:
        for j in baseline.judgements if baseline.status == "baseline" and baseline.algorithm == "autograd" else ():
            errors = [
                other.relative_error
                for check in checks
                for other in check.judgements
                if other.name == j.name and check.status == "pass" and check.algorithm != "rope"
            ]
            if errors and max(errors) > 0:
                ratios.append((j.name, j.relative_error / max(errors)))
    if not ratios or min(ratio for _, ratio in ratios) < 1:
        return ""
    factors = ", ".join(f"{name} {ratio:.1f} times" for name, ratio in ratios)
    return f"Nearer to float64 than autograd, in every run at least: {factors}"


def _add_row(rows: Table, check: Check, names: Iterable[str]) -> None:
    word, style = _STATUS[check.status]
    found = {judgement.name: judgement for judgement in check.judgements}
    cells: list[Text] = []
    for name in names:
        if name not in found:
            cells += [Text("–", style="dim")] * 2
            continue
        bad = check.status == "fail" and not found[name].ok
        cells.append(Text(f"{found[name].relative_error:.1e}"))
        cells.append(Text(f"{found[name].multiple:.2f}", style="bold red" if bad else ""))
    if check.status == "baseline":
        rows.add_section()
    given = check.given if check.status != "baseline" else "float32"
    rows.add_row(check.algorithm, given, *cells, Text(word, style=style), style="dim" if check.status == "baseline" else "")


def _print_end(out: Console, checks: list[Check]) -> None:
    ran = [check for check in checks if check.status in ("pass", "fail")]
    judged = [judgement for check in ran for judgement in check.judgements]
    passed = sum(check.ok for check in ran)
    failed = len(ran) - passed
    out.print(
        "\nerror: |g − r| / |r| in the 2-norm, where r is float64's.  × tol.: the largest error in any 64\n"
        "rows of a head over the error allowed there, 3 times float32 NumPy's and a bit; up to 1 passes.",
        style="dim",
        soft_wrap=True,
    )
    worst = max((judgement.multiple for judgement in judged), default=float("inf"))
    verdict = f"{passed} of {len(ran)} runs pass" if failed else f"All {len(ran)} runs pass"
    out.print(
        f"\n{verdict}; the largest error is {worst:.2f} of what is allowed.", style="bold red" if failed else "bold green"
    )


def _as_json(check: Check) -> dict[str, Any]:
    return {
        "case": check.case,
        "problem": check.problem,
        "algorithm": check.algorithm,
        "given": check.given,
        "status": check.status,
        "reason": check.reason,
        "variants": list(check.variants),
        "gradients": {
            j.name: {
                "error": j.relative_error,
                "multiple": j.multiple,
                "ok": j.ok,
                "worst": {"batch": j.batch, "head": j.head, "first_row": j.rows[0], "last_row": j.rows[1] - 1},
                "reason": j.reason,
            }
            for j in check.judgements
        },
    }
