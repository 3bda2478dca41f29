"""A variant's text: the checked-in one where there is one, which needs no Jinja2, else rendered."""

from __future__ import annotations

from ..kernels.facts import RenderedVariant
from ..kernels.variant import Variant
from ..selection import catalog
from . import manifest


def rendered(variant: Variant) -> RenderedVariant:
    """The variant's text and facts: from ``generated/`` where it is checked in, else rendered now (which needs Jinja2)."""
    if is_checked_in(variant) and variant.name in manifest.entries():
        return manifest.load(variant.name)
    from .render import render

    return render(variant)


def is_checked_in(variant: Variant) -> bool:
    """Whether the variant has passed validation on every compiler, and so may run without runtime checks."""
    return variant.name in catalog.checked_in()
