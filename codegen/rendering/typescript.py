"""Dataclasses of plain data as TypeScript sees their JSON, for the types of ``generated/``'s ES module."""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Collection, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from ..plain import members

NAMES = {int: "number", str: "string", bool: "boolean", types.NoneType: "null"}


def interface(kind: type) -> str:
    """The dataclass as an exported interface, with the first line of its docstring."""
    about = (inspect.getdoc(kind) or "").partition("\n")[0].replace("``", "`")
    return f"/** {about} */\nexport interface {kind.__name__} {{\n{body(kind)}\n}}"


def body(kind: type, without: Collection[str] = ()) -> str:
    """An interface's members."""
    return "\n".join(f"  {key}: {type_of(hint)};" for key, _, hint in members(kind) if key not in without)


def type_of(hint: Any) -> str:
    """A field's type. Raises ``TypeError`` for what JSON does not hold."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in NAMES:
        return NAMES[hint]
    if dataclasses.is_dataclass(hint):
        return str(hint.__name__)  # type: ignore[union-attr]
    if origin is Literal:
        return " | ".join(map(json.dumps, args))
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_of, args))
    if origin is tuple:
        return f"{type_of(args[0])}[]" if args[-1] is ... else f"[{', '.join(map(type_of, args))}]"
    if origin is Mapping:
        return f"Record<{', '.join(map(type_of, args))}>"
    raise TypeError(f"TypeScript has no type for {hint!r}")
