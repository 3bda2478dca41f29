"""Reads ``generated/``: the checked-in variants, without Jinja2 and without a GPU.

An entry of ``manifest.json`` is plain data, so that a loader in any language can choose and dispatch a variant: its
dispatch is lists of named factors, and its uniforms are lists of 32-bit words, each with its name and its type.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ..errors import ArgumentError, ManifestError
from ..kernels.facts import Binding, Count, Dispatch, RenderedVariant, Serves, Word
from ..profile import PROFILES

SCHEMA = 2


def entry_of(rendered: RenderedVariant) -> dict[str, Any]:
    """A rendered variant's manifest entry."""
    dispatch = rendered.dispatch_data
    counts = {"x": dispatch.x, "y": dispatch.y, "z": dispatch.z}
    serves = rendered.serves
    return {
        "file": f"wgsl/{rendered.name}.wgsl",
        "kernel": rendered.kernel,
        "params": dict(rendered.params),
        "serves": {
            "masks": list(serves.masks),
            "head_dim": [serves.min_head_dim, serves.max_head_dim],
            "max_seq": serves.max_seq,
        },
        "entry_point": rendered.entry_point,
        "workgroup_size": list(rendered.workgroup_size),
        "workgroup_bytes": rendered.workgroup_bytes,
        "bindings": [_binding_entry(binding) for binding in rendered.bindings],
        "extensions": list(rendered.extensions),
        "features": list(rendered.features),
        "profile": smallest_profile(rendered),
        "dispatch": {
            **{axis: {"factors": list(count.factors), "divisor": count.divisor} for axis, count in counts.items()},
            "flat": dispatch.flat,
        },
        "sha256": hashlib.sha256(rendered.wgsl.encode()).hexdigest(),
    }


def variant_of(name: str, entry: Mapping[str, Any], wgsl: str) -> RenderedVariant:
    """The reverse of ``entry_of``."""
    serves, dispatch = entry["serves"], entry["dispatch"]
    counts = {
        axis: Count(factors=tuple(dispatch[axis]["factors"]), divisor=dispatch[axis]["divisor"]) for axis in ("x", "y", "z")
    }
    return RenderedVariant(
        name=name,
        kernel=entry["kernel"],
        wgsl=wgsl,
        entry_point=entry["entry_point"],
        workgroup_size=tuple(entry["workgroup_size"]),
        workgroup_bytes=entry["workgroup_bytes"],
        bindings=tuple(Binding(**{**b, "words": tuple(Word(**w) for w in b.get("words", ()))}) for b in entry["bindings"]),
        params=entry["params"],
        serves=Serves(
            masks=tuple(serves["masks"]),
            min_head_dim=serves["head_dim"][0],
            max_head_dim=serves["head_dim"][1],
            max_seq=serves["max_seq"],
        ),
        dispatch_data=Dispatch(**counts, flat=dispatch["flat"]),
        features=tuple(entry["features"]),
        extensions=tuple(entry["extensions"]),
    )


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

    Raises ``ArgumentError`` for a name that is not checked in, with the nearest ones, and ``ManifestError`` where the
    file is missing or is not the text that the manifest was made with.
    """
    if name not in entries():
        import difflib

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
    return variant_of(name, entry, wgsl)


def _binding_entry(binding: Binding) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "group": binding.group,
        "binding": binding.binding,
        "name": binding.name,
        "type": binding.type,
        "access": binding.access,
        "role": binding.role,
    }
    return {**entry, "words": [{"name": word.name, "type": word.type} for word in binding.words]} if binding.words else entry
