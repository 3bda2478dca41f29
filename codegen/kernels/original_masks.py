"""The mask modes of the original file's kernels: which masks each of them can express."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..problem.mask import Interval
from .facts import Word, i32, u32


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What one mask mode of the kernels can express: the terms of ``fixed``, and any numbers for ``terms``.

    A mask that has anything else is not expressed, whatever terms ``Interval`` may have got since. ``needs`` is a term that
    must be there, ``square`` says that the mode has one length for queries and keys.
    """

    fixed: Interval = field(default_factory=Interval)
    terms: tuple[str, ...] = ()
    needs: str = ""
    square: bool = False

    def expresses(self, interval: Interval, *, square: bool) -> bool:
        if (self.square and not square) or (self.needs and getattr(interval, self.needs) is None):
            return False
        return interval == replace(self.fixed, **{term: getattr(interval, term) for term in self.terms})

    @property
    def words(self) -> tuple[Word, ...]:
        """What follows the scale in ``params``."""
        return (*u32("kv_len"), *i32(*self.terms)) if self.terms else ()


MODES = {
    "full": Mode(square=True),
    "causal": Mode(fixed=Interval(hi_shift=1), square=True),
    "documents": Mode(fixed=Interval(hi_shift=1, doc_start=True), square=True),
    "window": Mode(terms=("lo_shift", "hi_shift")),
    "prefix": Mode(terms=("prefix", "prefix_shift"), needs="prefix"),
    "documents_window": Mode(fixed=Interval(doc_start=True), terms=("lo_shift", "hi_shift"), square=True),
}
"""The mask modes, the most special first."""
SHORT_MASKS = ("full", "causal", "documents")
