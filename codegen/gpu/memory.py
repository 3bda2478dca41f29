"""The memory of one device: buffers made and filled within its limits, written and read with checks that name the buffer."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, DeviceError, GpuBufferError
from ..profile import DeviceProfile
from .buffers import COPY_DST, COPY_SRC, STORAGE, UNIFORM


class Memory(ABC):
    """The part of ``Device`` that makes buffers; ``raw`` is the package's GPUDevice."""

    raw: Any
    profile: DeviceProfile

    @abstractmethod
    def guard(self, doing: str) -> AbstractContextManager[None]:
        """Turns what the package raises into a ``DeviceError`` that says what was being done."""

    def storage(self, source: int | NDArray[Any], *, label: str = "storage") -> Any:
        """A new storage buffer: so many bytes of zeros, or the array's bytes in C order.

        Its size is rounded up to 4 bytes, and to 16 at least. Raises ``DeviceError`` that names the limit it is past.
        """
        if not isinstance(source, np.ndarray):
            return self._buffer(source, STORAGE | COPY_SRC | COPY_DST, "max_storage_buffer_binding_size", label)
        buffer = self.storage(source.nbytes, label=label)
        self._fill(buffer, source.tobytes() + bytes(-source.nbytes % 4) if source.nbytes % 4 else source)
        return buffer

    def zeros(self, nbytes: int, *, label: str = "zeros") -> Any:
        """A new storage buffer of that many bytes, which WebGPU fills with zeros."""
        return self.storage(nbytes, label=label)

    def uniform(self, words: Sequence[int | float] | NDArray[Any], *, label: str = "uniform") -> Any:
        """A new uniform buffer of 32-bit words: ints as u32 (or, below zero, i32), floats as f32; or an array's bytes.

        Its size is rounded up to 16 bytes, a vec4. Raises ``ArgumentError`` for a word that does not fit.
        """
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
            allowed = getattr(self.profile.limits, name)
            if size > allowed:
                raise DeviceError(f"buffer {label!r}: {size} bytes, past {self.profile.name}'s {name} of {allowed}")
        with self.guard(f"making the buffer {label!r} of {size} bytes"):
            return self.raw.create_buffer(label=label, size=size, usage=usage)

    def _fill(self, buffer: Any, data: Any, offset: int = 0) -> None:
        if len(data):
            with self.guard(f"writing the buffer {buffer.label!r}"):
                self.raw.queue.write_buffer(
                    buffer, offset, np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data
                )

    def write(self, buffer: Any, source: NDArray[Any] | bytes, offset: int = 0) -> None:
        """Writes an array's bytes in C order, or bytes, from byte ``offset`` on, in whole words. Raises ``GpuBufferError``."""
        nbytes = source.nbytes if isinstance(source, np.ndarray) else len(source)
        if nbytes % 4 or offset % 4 or offset < 0 or offset + nbytes > buffer.size:
            raise GpuBufferError(buffer.label, f"{nbytes} bytes at {offset}", f"multiples of 4 within its {buffer.size} bytes")
        self._fill(buffer, source, offset)

    def read(self, buffer: Any, nbytes: int | None = None, offset: int = 0) -> bytes:
        """The buffer's bytes, or ``nbytes`` of them from ``offset`` (a multiple of 4) on; waits for the GPU."""
        size = buffer.size - offset if nbytes is None else nbytes
        if offset % 4 or offset < 0 or size < 0 or offset + size > buffer.size:
            raise GpuBufferError(buffer.label, f"a read of {size} bytes at {offset}", f"one within its {buffer.size} bytes")
        if not size:
            return b""
        with self.guard(f"reading the buffer {buffer.label!r}"):
            return bytes(self.raw.queue.read_buffer(buffer, offset, -(-size // 4) * 4)[:size])


def _word(word: float) -> bytes:
    try:
        if isinstance(word, (float, np.floating)):
            return struct.pack("<f", word)
        return struct.pack("<i" if word < 0 else "<I", word)
    except (struct.error, OverflowError):
        raise ArgumentError("words", repr(word), "numbers that fit 32 bits") from None
