"""The whole of ``generated/`` as a dict of path → text: write it, or report where a folder differs from it.

Everything in the folder comes out of ``build``, so a file that it does not name is an orphan. Nothing in it depends on
the machine, the date or a tool's version.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import ArgumentError
from ..kernels.facts import Binding, Constant, Count, Dispatch, RenderedVariant, Serves, Word
from ..selection import catalog
from .manifest import ELSEWHERE, SCHEMA, entry_of
from .renderer import environment, render
from .typescript import body, interface

OWN_PATTERNS = ("__init__.py", "manifest.json", "package.json", "*.mjs", "*.d.ts", "wgsl/*")
MEND = "wgsl-attention generate"
WIDTH = 128
TYPES = {
    "interface": interface,
    "body": body,
    "kinds": (Word, Binding, Constant, Count, Dispatch, Serves),
    "entry": RenderedVariant,
    "elsewhere": ELSEWHERE,
}
"""What the template of the TypeScript interfaces reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One file of a folder that is not as ``build`` makes it. ``diff`` is a unified diff, empty for an orphan."""

    path: str
    kind: Literal["changed", "missing", "orphaned"]
    diff: str = ""


def build(progress: Callable[[str], None] = lambda name: None) -> dict[str, str]:
    """Every file of ``generated/``, path → text, sorted. ``progress`` is called with each variant's name."""
    variants: dict[str, RenderedVariant] = {}
    for name, variant in catalog.checked_in().items():
        progress(name)
        variants[name] = render(variant)
    files = {f"wgsl/{name}.wgsl": rendered.wgsl for name, rendered in variants.items()}
    manifest = {"schema": SCHEMA, "variants": {name: entry_of(rendered) for name, rendered in variants.items()}}
    files["manifest.json"] = _json(manifest) + "\n"
    files["package.json"] = (
        _json({"name": "wgsl-attention-kernels", "type": "module", "main": "index.mjs", "types": "index.d.ts"}) + "\n"
    )
    for path in ("__init__.py", "index.mjs", "index.d.ts"):
        files[path] = environment().get_template(f"faces/{path}.j2").render(names=sorted(variants), **TYPES)
    return dict(sorted(files.items()))


def write(folder: Path, files: dict[str, str]) -> tuple[str, ...]:
    """Make ``folder`` hold exactly ``files``; returns the paths that changed, orphans that were removed among them.

    Raises ``ArgumentError`` where the folder holds something that is not ours, rather than removing it.
    """
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("out", str(folder), "a folder")
    foreign = _foreign(folder)
    if foreign and not (folder / "manifest.json").exists():
        raise ArgumentError("out", f"{folder}, which holds {foreign[0]}", "an empty or new folder, or one made by this command")
    changed = []
    for found in drift(folder, files):
        path = folder / found.path
        if found.kind == "orphaned":
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[found.path], encoding="utf-8", newline="\n")
        changed.append(found.path)
    return tuple(changed)


def drift(folder: Path, files: dict[str, str]) -> tuple[Drift, ...]:
    """Where ``folder`` differs from ``files``: changed, missing and orphaned files, sorted by path."""
    found = []
    for path, text in files.items():
        file = folder / path
        if not file.exists():
            found.append(Drift(path=path, kind="missing", diff=_diff(path, "", text)))
        elif (old := file.read_bytes().decode("utf-8", errors="replace")) != text:
            found.append(Drift(path=path, kind="changed", diff=_diff(path, old, text)))
    present = {p.relative_to(folder).as_posix() for pattern in OWN_PATTERNS for p in folder.glob(pattern) if p.is_file()}
    found += [Drift(path=path, kind="orphaned") for path in present - set(files)]
    return tuple(sorted(found, key=lambda item: item.path))


def _foreign(folder: Path) -> list[str]:
    if not folder.exists():
        return []
    ours = {p for pattern in OWN_PATTERNS for p in folder.glob(pattern)}
    return sorted(p.name for p in folder.iterdir() if p not in ours and p.name not in ("wgsl", "__pycache__"))


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"generated/{path}", f"generated/{path} as rendered", lineterm="", n=2
    )
    return "\n".join(lines)


def _json(value: Any, indent: str = "") -> str:
    """Indented, but with whatever fits a line on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(flat) <= WIDTH:
        return flat
    deeper = indent + " "
    if isinstance(value, dict):
        lines = [f"{deeper}{json.dumps(key)}: {_json(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _json(item, deeper) for item in value) + f"\n{indent}]"
