"""Masks: which keys each query sees. No arrays: a document's start, for example, comes with the call.

Every mask gives each query one contiguous interval of keys [lo, hi). ``Mask`` holds the modes and their constants
as the caller named them; ``Mask.interval`` resolves them, for given lengths, into the few numbers that kernels need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ArgumentError
from .checks import integer

Align = Literal["bottom-right", "top-left"]
Documents = Literal["", "causal", "whole"]

ALIGNMENTS: tuple[Align, ...] = ("bottom-right", "top-left")
NEVER = 1 << 30
"""A bound past every position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Keys from i + a − left to i + a + right, both inclusive; ``None`` is unbounded."""

    align: Align
    left: int | None = None
    right: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first ``length`` keys, and beyond them the keys up to i + a."""

    align: Align
    length: int


MASK_KINDS = ("full", "causal", "documents", "window", "prefix")
"""What a mask is made of: the makers of ``Mask``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mask resolved for one q_len and kv_len. Query i sees the keys [lo, hi), clamped to [0, kv_len], where

    lo = max of i + ``lo_shift`` and, with ``doc_start``, doc_start[i];
    hi = min of i + ``hi_shift``, max(``prefix``, i + ``prefix_shift``) and, with ``doc_end``, the end of i's document.

    ``None`` leaves a term out. Terms that can never bind are left out too, so equal masks resolve to equal intervals.
    """

    lo_shift: int | None = None
    hi_shift: int | None = None
    prefix: int | None = None
    prefix_shift: int = 0
    doc_start: bool = False
    doc_end: bool = False

    @property
    def words(self) -> dict[str, int]:
        """The terms that are numbers, as kernels read them in 32 bits; one that is left out never binds."""
        return {
            "lo_shift": -NEVER if self.lo_shift is None else self.lo_shift,
            "hi_shift": NEVER if self.hi_shift is None else self.hi_shift,
            "prefix": NEVER if self.prefix is None else self.prefix,
            "prefix_shift": self.prefix_shift,
        }

    @property
    def kind(self) -> str:
        """``full``, ``causal``, ``window``, ``prefix``, ``documents``, ``wholedocuments``, or two of them with a plus."""
        kinds = []
        if self.doc_start:
            kinds.append("wholedocuments" if self.doc_end else "documents")
        if self.prefix is not None:
            kinds.append("prefix")
        if self.lo_shift is not None:
            kinds.append("window")
        elif self.hi_shift is not None and not self.doc_start:
            kinds.append("causal")
        return "+".join(kinds) or "full"

    @property
    def moving_width(self) -> int | None:
        """The keys between the two bounds that move along with the query; None where one of them does not."""
        if self.lo_shift is None or self.hi_shift is None:
            return None
        return max(0, self.hi_shift - self.lo_shift)

    def width(self, kv_len: int) -> int | None:
        """The keys that a query sees at most by the bounds that move along with it; None where nothing bounds them below."""
        if self.lo_shift is None:
            return None
        high = 1 if self.hi_shift is None and self.doc_start and not self.doc_end else self.hi_shift
        return kv_len if high is None else min(kv_len, max(1, high - self.lo_shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Which keys each query sees. Made by the class methods and by ``&``, which is "visible in both".

    ``align`` says where the diagonal lies when q_len differs from kv_len: ``"bottom-right"`` (FlashAttention's: the last
    query is level with the last key) or ``"top-left"`` (PyTorch's ``is_causal``: the first query is level with the first key).
    """

    documents_mode: Documents = ""
    bands: tuple[Band, ...] = ()
    prefixes: tuple[Prefix, ...] = ()

    @classmethod
    def full(cls) -> Mask:
        """Every query sees every key."""
        return cls()

    @classmethod
    def causal(cls, align: Align = "bottom-right") -> Mask:
        """Query i sees the keys up to and including i + a, with a = kv_len − q_len for bottom-right and 0 for top-left."""
        return cls.window(None, 0, align=align)

    @classmethod
    def window(cls, left: int | None, right: int | None, align: Align = "bottom-right") -> Mask:
        """Query i sees the keys i + a − left to i + a + right, both inclusive; ``None`` is unbounded.

        As FlashAttention's ``window_size``: a window of (2048, 0) keeps 2049 keys. Raises ``ArgumentError`` for a negative width.
        """
        _check_align(align)
        left, right = (None if x is None else integer(n, x, 0) for n, x in (("left", left), ("right", right)))
        if left is None and right is None:
            return cls()
        return cls(bands=(Band(align=align, left=left, right=right),))

    @classmethod
    def prefix(cls, length: int, align: Align = "bottom-right") -> Mask:
        """Query i sees the first ``length`` keys, and beyond them the keys up to and including i + a (a prefix language model)."""
        _check_align(align)
        return cls(prefixes=(Prefix(align=align, length=integer("length", length, 0)),))

    @classmethod
    def documents(cls, causal: bool = True) -> Mask:
        """Query i sees its own document only: from doc_start[i] up to itself, or to the document's end with ``causal=False``.

        ``doc_start`` is given with the call, as (seq,) or (batch, seq) integers; q_len must equal kv_len. How long documents are
        is not known to a plan. Where no document is longer than n, ``& Mask.window(n − 1, 0)`` (n − 1 to both sides with
        ``causal=False``) changes nothing but the tiled algorithm's scratch, which then goes by n and not by the sequence, and
        with it the time: a sixth on llvmpipe for 32768 positions in documents of 256.
        """
        return cls(documents_mode="causal" if causal else "whole")

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        modes = {self.documents_mode, other.documents_mode}
        documents: Documents = "causal" if "causal" in modes else "whole" if "whole" in modes else ""
        bands = []
        for align in ALIGNMENTS:
            same = [band for band in self.bands + other.bands if band.align == align]
            lefts = [band.left for band in same if band.left is not None]
            rights = [band.right for band in same if band.right is not None]
            if same:
                bands.append(Band(align=align, left=min(lefts, default=None), right=min(rights, default=None)))
        prefixes = []
        for align in ALIGNMENTS:
            lengths = [prefix.length for prefix in self.prefixes + other.prefixes if prefix.align == align]
            if lengths:
                prefixes.append(Prefix(align=align, length=min(lengths)))
        return Mask(documents_mode=documents, bands=tuple(bands), prefixes=tuple(prefixes))

    def interval(self, q_len: int, kv_len: int) -> Interval:
        """The interval form for these lengths; see ``Interval``.

        Raises ``ArgumentError`` for documents with q_len ≠ kv_len, and for two prefixes whose alignments differ there
        (their intersection is not of this form).
        """
        if self.documents_mode and q_len != kv_len:
            raise ArgumentError("mask", f"documents with q_len {q_len} and kv_len {kv_len}", "q_len equal to kv_len")
        shifts = {"bottom-right": kv_len - q_len, "top-left": 0}
        lo = max((shifts[b.align] - b.left for b in self.bands if b.left is not None), default=None)
        highs = [shifts[b.align] + b.right + 1 for b in self.bands if b.right is not None]
        if self.documents_mode == "causal":
            highs.append(1)
        by_shift: dict[int, int] = {}
        for prefix in self.prefixes:
            shift = shifts[prefix.align] + 1
            by_shift[shift] = min(by_shift.get(shift, prefix.length), prefix.length)
        remaining = []
        for shift, length in sorted(by_shift.items()):
            if length <= shift:  # the diagonal is past the prefix from the first query on
                highs.append(shift)
            elif length < kv_len:
                remaining.append((shift, length))
        hi = min(highs, default=None)
        remaining = [(shift, length) for shift, length in remaining if hi is None or hi > shift]
        if len(remaining) > 1:
            raise ArgumentError("mask", "two prefixes of different alignment", "one prefix, or one alignment")
        prefix_shift, prefix_length = remaining[0] if remaining else (0, None)
        return Interval(
            lo_shift=None if lo is None or lo <= -(q_len - 1) else lo,
            hi_shift=None if hi is None or hi >= kv_len else hi,
            prefix=prefix_length,
            prefix_shift=prefix_shift,
            doc_start=bool(self.documents_mode),
            doc_end=self.documents_mode == "whole" and (hi is None or hi > 1),
        )

    def shrunk(self, kv_len: int) -> Mask:
        """The same mask for a problem of only so many keys: windows and prefixes are narrowed, so that they still cut there."""

        def narrowed(width: int | None) -> int | None:
            return width if width is None else min(width, kv_len // 3)

        return replace(
            self,
            bands=tuple(replace(band, left=narrowed(band.left), right=narrowed(band.right)) for band in self.bands),
            prefixes=tuple(replace(prefix, length=min(prefix.length, kv_len // 2)) for prefix in self.prefixes),
        )

    def __str__(self) -> str:
        parts = {"": [], "causal": ["documents"], "whole": ["documents(causal=False)"]}[self.documents_mode]
        for band in self.bands:
            align = "" if band.align == "bottom-right" else f", {band.align}"
            causal = band.left is None and band.right == 0
            parts.append(f"causal{align and f'({band.align})'}" if causal else f"window({band.left}, {band.right}{align})")
        parts += [f"prefix({p.length}{'' if p.align == 'bottom-right' else ', ' + p.align})" for p in self.prefixes]
        return " & ".join(parts) or "full"


def _check_align(align: str) -> None:
    if align not in ALIGNMENTS:
        raise ArgumentError("align", repr(align), "'bottom-right' or 'top-left'")
