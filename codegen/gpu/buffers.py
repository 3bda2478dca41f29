"""The caller's GPU buffers: what stands for one, and the checks that every range passes before anything is recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import GpuBufferError

BufferLike: TypeAlias = Any
"""A GPU buffer of the device's package, or (buffer, offset, size) in bytes."""

COPY_SRC, COPY_DST, UNIFORM, STORAGE, QUERY_RESOLVE = 4, 8, 64, 128, 512
"""WebGPU's buffer usage flags, the same numbers in every implementation."""

_USAGES = {"COPY_SRC": COPY_SRC, "COPY_DST": COPY_DST, "UNIFORM": UNIFORM, "STORAGE": STORAGE}


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a buffer."""

    buffer: Any
    offset: int
    size: int

    def overlaps(self, other: Range) -> bool:
        ends = self.offset + self.size, other.offset + other.size
        return self.buffer is other.buffer and self.offset < ends[1] and other.offset < ends[0]


def ranged(name: str, given: BufferLike, need: int, alignment: int, usage: str = "STORAGE") -> Range:
    """The first ``need`` bytes of what was given for ``name``.

    Raises ``GpuBufferError`` unless the offset is a multiple of ``alignment``, the bytes are there, and the buffer was
    made with ``usage`` (names joined by `` | ``).
    """
    if isinstance(given, tuple) and len(given) != 3:
        want = "(buffer, offset, size) in bytes; strides are the problem's: Problem(strides=…)"
        raise GpuBufferError(name, f"a tuple of {len(given)}", want)
    buffer, offset, size = given if isinstance(given, tuple) else (given, 0, None)
    if buffer is None:
        raise GpuBufferError(name, "nothing", f"a buffer of at least {need} bytes")
    if not hasattr(buffer, "usage") or not hasattr(buffer, "size"):
        raise GpuBufferError(name, f"a {type(buffer).__name__}", "a GPU buffer, or (buffer, offset, size)")
    try:
        offset = operator.index(offset)
        size = buffer.size - offset if size is None else operator.index(size)
    except TypeError:
        raise GpuBufferError(name, f"offset {offset!r} and size {size!r}", "whole numbers of bytes") from None
    if offset < 0 or offset % alignment:
        raise GpuBufferError(name, f"an offset of {offset}", f"a multiple of {alignment}")
    if size < need or offset + need > buffer.size:
        raise GpuBufferError(name, f"{min(size, buffer.size - offset)} bytes", f"at least {need}")
    flags = sum(_USAGES[flag] for flag in usage.split(" | "))
    if buffer.usage & flags != flags:
        raise GpuBufferError(name, f"usage {buffer.usage}", f"a buffer made with {usage}")
    return Range(buffer, offset, need)


def all_ranged(
    given: Mapping[str, BufferLike],
    sizes: Mapping[str, int],
    wants: Mapping[str, tuple[int, str]],
    *,
    optional: Sequence[str],
    written: Sequence[str],
    clash: Callable[[str, int, str, int], str],
) -> dict[str, Range]:
    """A range of ``sizes[name]`` bytes for every name, checked as by ``ranged``; ``wants`` is alignment and usage.

    Names in ``optional`` may be given without being wanted. What is ``written`` must not lie in a buffer that is also read:
    WebGPU has no dispatch read and write one buffer. Where ranges of two that are ``written`` overlap, ``clash``, given
    their names and offsets, says what they need instead, or nothing.
    """
    unknown = sorted(set(given) - set(sizes) - set(optional))
    if unknown:
        raise GpuBufferError(unknown[0], "a buffer", f"only {', '.join(sizes)}")
    ranges = {name: ranged(name, given.get(name), need, *wants[name]) for name, need in sizes.items()}
    for name in written:
        for other, found in ranges.items():
            if other == name or found.buffer is not ranges[name].buffer:
                continue
            want = "a buffer of its own"
            if other in written:
                want = clash(name, ranges[name].offset, other, found.offset) if found.overlaps(ranges[name]) else ""
            if want:
                raise GpuBufferError(name, f"the buffer of {other!r} too", want)
    return ranges


def identity(given: Any) -> Hashable:
    """A key for buffers that stays theirs as long as they live; keeps no reference. Takes what ``ranged`` does, and groups."""
    if isinstance(given, Mapping):
        return tuple(given), *map(identity, given.values())
    if isinstance(given, list):
        return tuple(map(identity, given))
    if isinstance(given, tuple) and given:
        return id(given[0]), *given[1:]
    return id(given)
