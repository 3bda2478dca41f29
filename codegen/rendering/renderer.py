"""Variant → WGSL text, from the templates. The only importer of Jinja2."""

from __future__ import annotations

import dataclasses
import functools
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..kernels.facts import RenderedVariant
from ..kernels.variant import Variant

if TYPE_CHECKING:
    import jinja2


def _load(path: str) -> str | None:
    try:
        if Path(path).is_absolute():  # a kernel of the caller's own, which may import the package's macros
            return Path(path).read_text(encoding="utf-8")
        return files("wgsl_attention.templates").joinpath(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


@functools.cache
def environment() -> jinja2.Environment:
    """The one environment that every template is rendered in; a misspelt name is an error, not an empty string."""
    import jinja2  # here, since the package's own import of this module must do without it

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_load),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_without_last_newline,
    )


def _without_last_newline(value: object) -> object:
    """What an expression gives; a macro's last line is ended by the line that calls it."""
    return value.rstrip("\n") if isinstance(value, str) else value


def render_text(variant: Variant, env: jinja2.Environment | None = None) -> str:
    """The WGSL of a variant; the same variant always gives the same text."""
    template = (env or environment()).get_template(variant.template)
    text = template.render(v=variant, name=variant.name, kernel=variant.kernel, **variant.params, **variant.context)
    return _tidy(text)


@functools.lru_cache(maxsize=4096)
def render(variant: Variant) -> RenderedVariant:
    """A variant's WGSL and facts, rendered on demand; the checked-in ones come from ``generated.load``, which needs no Jinja2."""
    own: dict[str, Any] = {
        "wgsl": render_text(variant),
        "workgroup_size": (variant.workgroup_size, 1, 1),
        "dispatch_data": variant.dispatch,
    }
    names = (field.name for field in dataclasses.fields(RenderedVariant) if field.name != "values")
    return RenderedVariant(**{name: own[name] if name in own else getattr(variant, name) for name in names})


def _tidy(text: str) -> str:
    """One blank line after each function and struct, no runs of them, and none where a macro gave nothing at the end of a block."""
    text = re.sub(r"^\}\n(?=\S)", "}\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return text.strip("\n") + "\n"
