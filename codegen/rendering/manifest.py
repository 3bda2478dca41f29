"""Reads ``generated/``: the checked-in variants, without Jinja2 and without a GPU.

An entry of ``manifest.json`` is plain data, so that a loader in any language can choose and dispatch a variant: its
dispatch is lists of named factors, and its uniforms are lists of 32-bit words, each with its name and its type.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ..errors import ArgumentError, ManifestError
from ..kernels.facts import Constant, HasSizes, RenderedVariant
from ..plain import from_plain
from ..profile import PROFILES

SCHEMA = 2
ELSEWHERE = ("name", "wgsl")
"""What an entry leaves out: the name is its key, the text has a file of its own."""


def entry_of(rendered: RenderedVariant) -> dict[str, Any]:
    """A rendered variant's manifest entry: its facts, where its text lies, and the smallest device that holds it."""
    return {
        "file": f"wgsl/{rendered.name}.wgsl",
        **{key: value for key, value in rendered.as_json().items() if key not in ELSEWHERE},
        "profile": smallest_profile(rendered),
        "sha256": hashlib.sha256(rendered.wgsl.encode()).hexdigest(),
    }


def smallest_profile(rendered: RenderedVariant) -> str | None:
    """The first built-in profile that the variant fits, from compatibility mode upwards; ``None`` where none is large enough."""
    return next((name for name, profile in PROFILES.items() if not rendered.shortfalls(profile)), None)


@functools.cache
def entries() -> dict[str, dict[str, Any]]:
    """The checked-in manifest's entries by name. Raises ``ManifestError`` where there is none, or its schema is another."""
    try:
        manifest = json.loads(files("wgsl_attention.generated").joinpath("manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError("generated/manifest.json is missing: run `wgsl-attention generate`") from None
    if manifest.get("schema") != SCHEMA:
        raise ManifestError(f"generated/manifest.json has schema {manifest.get('schema')}; this package reads {SCHEMA}")
    return dict(manifest["variants"])


@functools.lru_cache(maxsize=1024)
def load(name: str) -> RenderedVariant:
    """A checked-in variant by name.

    Raises ``ArgumentError`` for a name that is not checked in, with what took its place or the nearest ones, and
    ``ManifestError`` where the file is missing or is not the text that the manifest was made with.
    """
    if name not in entries():
        import difflib

        if found := successor(name):
            raise ArgumentError("name", repr(name), f"{found}, which took its place")
        near = difflib.get_close_matches(name, entries(), n=3, cutoff=0.5)
        hint = f"one of the checked-in names, such as {', '.join(near)}" if near else "a checked-in name (wgsl-attention list)"
        raise ArgumentError("name", repr(name), hint)
    entry = entries()[name]
    try:
        wgsl = files("wgsl_attention.generated").joinpath(entry["file"]).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ManifestError(f"generated/{entry['file']} is missing: run `wgsl-attention generate`") from None
    if hashlib.sha256(wgsl.encode()).hexdigest() != entry["sha256"]:
        raise ManifestError(f"generated/{entry['file']} was changed by hand: run `wgsl-attention generate`")
    return RenderedVariant.from_json({**entry, "name": name, "wgsl": wgsl})


def constants(variant: RenderedVariant, sizes: HasSizes | Mapping[str, int]) -> dict[str, int]:
    """The constants of the variant's pipeline, by name, for a ``Problem`` or a mapping of sizes; empty for a text without any.

    Raises ``ArgumentError`` that names a size that is missing, or that the text does not serve.
    """
    return dict(variant.specialised(sizes).values)


def successor(name: str) -> str:
    """What took the place of a name that is checked in no more, in words: a name, and the constants to give its pipeline.

    A name loses numbers: where a text for one head_dim became one for any (``dmax`` is a bound), where blocks became words of
    the uniform, and where other blocks are checked in; it loses no words, such as ``softcap``. Of the kernel's texts that serve
    the same head dims and have the name's words, the one that shares most with it, and adds least. Empty where there is none.
    The ES module has the same rule.
    """
    parts = set(name.split("_"))
    longest = max((int(number) for number in re.findall(r"_maxseq(\d+)", name)), default=0)
    dims = {tag: int(number) for tag, number in re.findall(r"_([dv])(\d+)(?![^_])", name)}
    sizes = {"head_dim": dims.get("d", 0), "v_head_dim": dims.get("v", dims.get("d", 0))}
    found: tuple[tuple[int, int, int], str] = ((0, 0, 0), "")
    for other, entry in entries().items():
        own = {part for part in other.split("_") if not re.fullmatch(r"[dv]max\d+", part)}
        open_ = [from_plain(Constant, constant) for constant in entry["constants"]]
        least, most = entry["serves"]["head_dim"]
        served = all(c.takes(sizes[c.size]) for c in open_) and ("d" not in dims or least <= sizes["head_dim"] <= most)
        served = served and longest <= (entry["serves"]["max_seq"] or longest)
        lost_numbers = all(re.fullmatch(r"[a-z]+\d+", part) for part in parts - own)
        rank = (len(own & parts), -len(own - parts), len(open_))
        if served and name.startswith(entry["kernel"] + "_") and lost_numbers and rank > found[0]:
            values = ", ".join(f"{c.name}: {sizes[c.size]}" for c in open_)
            found = rank, f"{other} with the constants {{{values}}}" if open_ else other
    return found[1]
