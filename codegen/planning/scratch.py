"""Scratch that the caller gives: how many buffers it takes, what lies where in them, and the checks of what was given.

WebGPU has no dispatch read a buffer in one binding and write it in another, wherever in the buffer those lie. So scratch
that a step reads cannot share a buffer with scratch that the step writes; everything else can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..algorithms.recipe import Recipe
from ..errors import GpuBufferError
from ..gpu.buffers import BufferLike, Range, ranged

ScratchLike: TypeAlias = "Mapping[str, BufferLike] | list[BufferLike] | BufferLike"
"""Buffers by the names in ``Plan.scratch``, or as many as ``Plan.scratch_bytes`` has, in a list (one may stand alone)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchLayout:
    """Where each of a recipe's scratch buffers lies: ``places`` is name → (which buffer, offset), ``sizes`` bytes of each."""

    places: Mapping[str, tuple[int, int]]
    sizes: tuple[int, ...]

    def give(self, scratch: Mapping[str, int], given: ScratchLike, alignment: int) -> dict[str, Range]:
        """A range for each name. Raises ``GpuBufferError``."""
        if isinstance(given, Mapping):
            unknown = sorted(set(given) - set(scratch))
            if unknown:
                raise GpuBufferError(unknown[0], "scratch", f"only {', '.join(scratch) or 'none'}")
            ranges = {name: ranged(name, given.get(name), size, alignment) for name, size in scratch.items()}
            self._check(ranges)
            return ranges
        parts = given if isinstance(given, list) else [given]
        if len(parts) != len(self.sizes):
            raise GpuBufferError("scratch", f"{len(parts)} buffers", f"{len(self.sizes)}, of {self.sizes} bytes")
        whole = [ranged("scratch", part, size, alignment) for part, size in zip(parts, self.sizes, strict=True)]
        for i, one in enumerate(whole):
            if any(one.buffer is other.buffer for other in whole[:i]):
                raise GpuBufferError("scratch", "one buffer twice", "different buffers")
        places = {name: (whole[which], offset) for name, (which, offset) in self.places.items()}
        return {name: Range(w.buffer, w.offset + offset, scratch[name]) for name, (w, offset) in places.items()}

    def _check(self, ranges: Mapping[str, Range]) -> None:
        for name, one in ranges.items():
            for other, two in ranges.items():
                together = self.places[name][0] == self.places[other][0]
                if other != name and one.buffer is two.buffer and (not together or one.overlaps(two)):
                    raise GpuBufferError(name, f"the buffer of {other!r} too", "a buffer of its own")


def layout(recipe: Recipe, alignment: int, max_buffer_size: int) -> ScratchLayout:
    """Puts a recipe's scratch into few buffers, in the recipe's order."""
    apart: set[tuple[str, str]] = set()
    for step in recipe.steps:
        access: dict[str, set[Any]] = {"read": set(), "read_write": set(), "uniform": set()}
        for binding in step.variant.bindings:
            access[binding.access].add(step.buffer_of(binding))
        apart |= {(one, other) for one in access["read"] for other in access["read_write"]}
    places: dict[str, tuple[int, int]] = {}
    sizes: list[int] = []
    for name, size in recipe.scratch.items():
        for which in range(len(sizes) + 1):
            there = [other for other, (place, _) in places.items() if place == which]
            offset = -(-sizes[which] // alignment) * alignment if there else 0
            clash = any((name, other) in apart or (other, name) in apart for other in there)
            if not there or (not clash and offset + size <= max_buffer_size):
                break
        places[name] = which, offset
        sizes[which:] = [offset + size, *sizes[which + 1 :]]
    return ScratchLayout(places=places, sizes=tuple(sizes))
