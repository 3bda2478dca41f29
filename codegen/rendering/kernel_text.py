"""A variant's text: the checked-in one where there is one, which needs no Jinja2, else rendered."""

from __future__ import annotations

from collections.abc import Mapping

from ..kernels.facts import HasSizes, RenderedVariant
from ..kernels.variant import Variant
from ..selection import catalog
from . import manifest


def rendered(variant: Variant, problem: HasSizes | Mapping[str, int] | None = None) -> RenderedVariant:
    """The variant's text and facts: from ``generated/`` where it is checked in, else rendered now (which needs Jinja2).

    With a problem, or a mapping of its sizes, the text's constants have their values.
    """
    if may_run_unchecked(variant) and variant.name in manifest.entries():
        text = manifest.load(variant.name)
    else:
        from .renderer import render

        text = render(variant)
    return text if problem is None else text.specialised(problem)


def may_run_unchecked(variant: Variant) -> bool:
    """Whether it is one of the checked-in variants, all of which pass validation; others run with the compiler's checks."""
    return variant.name in catalog.checked_in()
