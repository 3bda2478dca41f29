"""The command generate: renders generated/, or shows where it is not what the templates give."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ..errors import ArgumentError
from .common import add_json_argument, checkout, console, counted, print_json, progress

if TYPE_CHECKING:
    from ..rendering.build import Drift

SUMMARY = "render the checked-in kernels, or check that they are up to date"
MAX_DIFF_LINES = 40
MAX_DIFFS = 8
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Render every checked-in variant and its manifest from the templates. In a source checkout that is generated/; "
        "elsewhere name a folder with --out. The same templates always give the same bytes."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; print where the folder differs, and then exit with 1"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder: a new one, or one that this command made")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ..rendering import build

    folder = _generated_folder(args.out)
    shown = _short_path(folder)
    with progress("Rendering") as tell:
        files = build.build(lambda name: tell(f"Rendering {name}"))
    if args.check:
        drift = build.drift(folder, files)
        mend = build.MEND if args.out is None else f"{build.MEND} --out {shlex.quote(str(args.out))}"
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
        out.print(("wrote   " if path in files else "removed ") + path, soft_wrap=True)
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
    if out.exists() and not out.is_dir():
        raise ArgumentError("--out", out, "a folder")
    return out


def _short_path(folder: Path) -> str:
    try:
        return f"{folder.resolve().relative_to(Path.cwd())}/"
    except ValueError:
        return f"{folder}/"


def _print_drift(folder: str, drift: tuple[Drift, ...], mend: str) -> None:
    out = console()
    out.print(f"{folder} is not what the templates give: {counted(len(drift), 'file')} off.", style="bold")
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
