"""Frozen dataclasses of plain data as what JSON holds, and back, by their fields.

A field that is called otherwise in JSON says so: ``field(metadata={"json": "dispatch"})``; with ``None`` it is not there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Plain = TypeVar("Plain")


def to_plain(value: Any) -> Any:
    """Dataclasses and mappings become dicts, tuples become lists; anything else stays as it is."""
    if dataclasses.is_dataclass(value):
        return {key: to_plain(getattr(value, name)) for key, name, _ in members(type(value))}  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(kind: type[Plain], data: Mapping[str, Any]) -> Plain:
    """The reverse of ``to_plain``, for a dataclass; keys that it has no field for are left out."""
    return kind(**{name: _restored(hint, data[key]) for key, name, hint in members(kind)})  # type: ignore[arg-type]


@functools.cache
def members(kind: type) -> tuple[tuple[str, str, Any], ...]:
    """A dataclass's fields in order: the key in JSON, the name, the type."""
    hints = get_type_hints(kind)
    names = ((f.metadata.get("json", f.name), f.name) for f in dataclasses.fields(kind))
    return tuple((str(key), name, hints[name]) for key, name in names if key is not None)


def _restored(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value)  # type: ignore[arg-type]
    if get_origin(hint) is not tuple:
        return value
    first, *others = get_args(hint)
    hints = itertools.repeat(first) if others == [...] else (first, *others)
    return tuple(_restored(hint, item) for hint, item in zip(hints, value, strict=False))
