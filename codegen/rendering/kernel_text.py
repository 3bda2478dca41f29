"""A variant's text: the checked-in one where there is one, which needs no Jinja2, else rendered."""

from __future__ import annotations

from ..kernels.facts import RenderedVariant
from ..kernels.variant import Variant
from ..selection import catalog
from . import manifest


def rendered(variant: Variant) -> RenderedVariant:
    """The variant's text and facts: from ``generated/`` where it is checked in, else rendered now (which needs Jinja2)."""
    if may_run_unchecked(variant) and variant.name in manifest.entries():
        return manifest.load(variant.name)
    from .render import render

    return render(variant)


def may_run_unchecked(variant: Variant) -> bool:
    """Whether it is one of the checked-in variants, all of which pass validation; others run with the compiler's checks."""
    return variant.name in catalog.checked_in()
