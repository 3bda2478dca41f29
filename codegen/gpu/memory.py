"""The memory of one device: buffers made and filled within its limits, written and read with checks that name the buffer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, DeviceError, GpuBufferError
from ..profile import DeviceProfile
from .buffers import COPY_DST, COPY_SRC, STORAGE, UNIFORM


class Memory:
    """The buffers behind ``Device.storage``, ``uniform``, ``write`` and ``read``; ``guard`` is the device's."""

    def __init__(self, raw: Any, profile: DeviceProfile, guard: Callable[[str], AbstractContextManager[None]]) -> None:
        self._raw = raw
        self._profile = profile
        self._guard = guard

    def storage(self, source: int | NDArray[Any], label: str) -> Any:
        """As ``Device.storage``."""
        if not isinstance(source, np.ndarray):
            return self._buffer(source, STORAGE | COPY_SRC | COPY_DST, "max_storage_buffer_binding_size", label)
        buffer = self.storage(source.nbytes, label)
        self._fill(buffer, source.tobytes() + bytes(-source.nbytes % 4) if source.nbytes % 4 else source)
        return buffer

    def uniform(self, words: Sequence[int | float] | NDArray[Any], label: str) -> Any:
        """As ``Device.uniform``."""
        data = words.tobytes() if isinstance(words, np.ndarray) else b"".join(map(_word, words))
        data += bytes(-len(data) % 16)
        buffer = self._buffer(len(data), UNIFORM | COPY_DST, "max_uniform_buffer_binding_size", label)
        self._fill(buffer, data)
        return buffer

    def _buffer(self, nbytes: int, usage: int, limit: str, label: str) -> Any:
        if nbytes < 0:
            raise ArgumentError("nbytes", nbytes, "zero or more")
        size = max(16, -(-int(nbytes) // 4) * 4)
        for name in (limit, "max_buffer_size"):
            allowed = getattr(self._profile.limits, name)
            if size > allowed:
                raise DeviceError(f"buffer {label!r}: {size} bytes, past {self._profile.name}'s {name} of {allowed}")
        with self._guard(f"making the buffer {label!r} of {size} bytes"):
            return self._raw.create_buffer(label=label, size=size, usage=usage)

    def _fill(self, buffer: Any, data: Any, offset: int = 0) -> None:
        if len(data):
            with self._guard(f"writing the buffer {buffer.label!r}"):
                self._raw.queue.write_buffer(
                    buffer, offset, np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data
                )

    def write(self, buffer: Any, source: NDArray[Any] | bytes, offset: int) -> None:
        """As ``Device.write``."""
        nbytes = source.nbytes if isinstance(source, np.ndarray) else len(source)
        if nbytes % 4 or offset % 4 or offset < 0 or offset + nbytes > buffer.size:
            raise GpuBufferError(buffer.label, f"{nbytes} bytes at {offset}", f"multiples of 4 within its {buffer.size} bytes")
        self._fill(buffer, source, offset)

    def read(self, buffer: Any, nbytes: int | None, offset: int) -> bytes:
        """As ``Device.read``."""
        size = buffer.size - offset if nbytes is None else nbytes
        if offset % 4 or offset < 0 or size < 0 or offset + size > buffer.size:
            raise GpuBufferError(buffer.label, f"a read of {size} bytes at {offset}", f"one within its {buffer.size} bytes")
        if not size:
            return b""
        with self._guard(f"reading the buffer {buffer.label!r}"):
            return bytes(self._raw.queue.read_buffer(buffer, offset, -(-size // 4) * 4)[:size])


def _word(word: float) -> bytes:
    try:
        if isinstance(word, (float, np.floating)):
            return struct.pack("<f", word)
        return struct.pack("<i" if word < 0 else "<I", word)
    except (struct.error, OverflowError):
        raise ArgumentError("words", repr(word), "numbers that fit 32 bits") from None
