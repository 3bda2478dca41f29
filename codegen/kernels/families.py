"""Every kernel family by its name: the package's own, and those that a program adds."""

from __future__ import annotations

from ..errors import ArgumentError
from .original import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from .rope import RopeKBackward, RopeQBackward
from .tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from .tiled_reductions import AttentionIntervals, AttentionPack, AttentionReduce, AttentionRows
from .variant import Variant

FAMILIES: dict[str, type[Variant]] = {
    family.kernel: family
    for family in (
        AttentionIntervals,
        AttentionPack,
        AttentionScores,
        AttentionRows,
        AttentionDkdv,
        AttentionDq,
        AttentionReduce,
        AttentionBackward,
        AttentionBackwardShort,
        AttentionBackwardShortDkdv,
        RopeQBackward,
        RopeKBackward,
    )
}
"""The package's own families."""

_added: dict[str, type[Variant]] = {}


def add(family: type[Variant]) -> None:
    """Makes a family of the caller's own known by its ``kernel`` name. Raises ``ArgumentError`` where another has the name."""
    known = find(family.kernel)
    if known not in (None, family):
        raise ArgumentError("family", f"the kernel name {family.kernel!r}, which {known.__name__} has", "a name of its own")
    if family.kernel not in FAMILIES:
        _added[family.kernel] = family


def find(kernel: str) -> type[Variant] | None:
    """The family of this name; None where there is none."""
    return FAMILIES.get(kernel) or _added.get(kernel)


def added() -> tuple[type[Variant], ...]:
    """The families that programs have added, in order."""
    return tuple(_added.values())
