"""An opened device: pipelines compiled once per rendered variant, buffers checked against its limits, timing, loss.

A ``Device`` is what plans run on. ``open_device`` picks the best adapter, ``Device.from_wgpu`` takes a device of the
caller's, ``default_device`` is the one that calls without a device share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import backends
from .backends import FEATURES, AdapterInfo, adapters
from .errors import ArgumentError, DeviceError, GpuBufferError, WgslAttentionError
from .profile import DeviceProfile, builtin_profile
from .variant import Binding, RenderedVariant

__all__ = ["FEATURES", "AdapterInfo", "Device", "Pipeline", "adapters", "default_device", "open_device"]

MAX_PIPELINES = 256
_LAYOUT = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
# WebGPU's flags have the same numbers in both packages (and in every browser).
_COPY_SRC, _COPY_DST, _UNIFORM, _STORAGE = 4, 8, 64, 128
_COMPUTE_STAGE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A compiled variant: ``raw`` is the compute pipeline; ``unchecked`` says that it runs without bounds checks."""

    name: str
    raw: Any
    bind_group_layout: Any
    bindings: tuple[Binding, ...]
    unchecked: bool


class Device:
    """A GPU device with its profile and caches; close it, or use it as a context manager. Safe to share between threads.

    ``profile`` has the limits and features that the *device* has, or, of an emulating device, those that are emulated;
    ``backend`` is ``"wgpu"`` or ``"dawn"``; ``raw`` the package's GPUDevice. ``trusted`` says whether ``pipeline``'s
    argument of that name is heeded. Every method raises ``DeviceError`` once the device is lost or closed.
    """

    def __init__(
        self, raw: Any, profile: DeviceProfile, *, trusted: bool = True, unchecked: bool = False, owned: bool = False
    ) -> None:
        self.raw = raw
        self.profile = profile
        self.backend = profile.backend
        self.trusted = trusted
        self.unchecked = unchecked
        self._modules_can_be_trusted = self.backend == "wgpu" and backends.can_trust_modules()
        self._owned = owned
        self._errors = backends.errors_of(self.backend)
        self._lock = threading.RLock()
        self._pipelines: OrderedDict[tuple[str, str, bool], Pipeline] = OrderedDict()
        self._gone = ""

    @classmethod
    def from_wgpu(cls, raw: Any, *, trusted: bool = True) -> Device:
        """Wraps a GPUDevice of wgpu or wgpudawn that the caller owns and keeps; ``close`` does not destroy it.

        Raises ``ArgumentError`` for anything else.
        """
        backend = backends.backend_of(raw)
        info = getattr(getattr(raw, "adapter", None), "info", None) or {}
        return cls(raw, backends.profile_of(backend, info, raw.features, raw.limits), trusted=trusted)

    def __repr__(self) -> str:
        return f"<Device {self.profile.name} ({self.backend}){', ' + self._gone if self._gone else ''}>"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def usable(self) -> bool:
        """False once the device is lost or closed."""
        return not self._gone

    def close(self) -> None:
        """Drops the caches and, of a device that ``open_device`` made, the device with its buffers. May be called twice."""
        with self._lock:
            self._pipelines.clear()
            if self._owned and self._gone != "closed":
                with contextlib.suppress(*self._errors):
                    self.raw.destroy()
            self._gone = "closed"

    @contextlib.contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Turns what the package raises into a ``DeviceError`` that says what was being done, and notices a lost device."""
        if self._gone:
            raise DeviceError(f"cannot go on {doing}: the device {self.profile.name} is {self._gone}; open another")
        try:
            yield
        except WgslAttentionError:
            raise
        except self._errors as error:
            # wgpudawn's errors hold, in a cycle with their frames, views of the memory that was being written; collecting
            # that cycle crashes CPython 3.11.
            traceback.clear_frames(error.__traceback__)
            self._raise_if_lost(doing, error)
            raise DeviceError(f"{doing}: {backends.first_line(error)}") from error

    def _raise_if_lost(self, doing: str, error: Exception) -> None:
        if "is lost" in str(error) or "device lost" in str(error).lower():
            self._gone = "lost"
            message = (
                f"the device {self.profile.name} was lost while {doing}; open another (a dispatch of seconds can be the cause)"
            )
            raise DeviceError(message) from error

    def pipeline(self, rendered: RenderedVariant, *, trusted: bool = False) -> Pipeline:
        """The compiled variant, from the cache where it was compiled before.

        ``trusted`` says that this very text has passed validation, so that it may run without the compiler's bounds
        checks and loop counters; it is heeded where ``Device.trusted`` is true and the backend decides module by module
        (wgpu). Raises ``DeviceError`` that names what the device lacks, before anything is compiled, since a kernel past
        the workgroup memory can hang a driver; or that gives the compiler's first message and its line.
        """
        if self.unchecked and not trusted:
            raise DeviceError(f"{rendered.name}: this device runs without checks, and the variant is not vouched for")
        trust = trusted and self.trusted and self._modules_can_be_trusted
        key = rendered.name, rendered.wgsl, trust
        with self._lock, self.guard(f"compiling {rendered.name}"):
            if key in self._pipelines:
                self._pipelines.move_to_end(key)
                return self._pipelines[key]
            lacking = rendered.shortfalls(self.profile)
            if lacking:
                raise DeviceError(f"{rendered.name} does not fit {self.profile.name}: {'; '.join(lacking)}")
            made = self._pipelines[key] = self._compile(rendered, trust)
            while len(self._pipelines) > MAX_PIPELINES:
                self._pipelines.popitem(last=False)
            return made

    def _compile(self, rendered: RenderedVariant, trust: bool) -> Pipeline:
        code = backends.shader_text(self.backend, rendered.wgsl, rendered.extensions)
        try:
            module = backends.create_module(self.backend, self.raw, code, rendered.name, trust)
            # Explicit layouts: "auto" drops a binding that a variant declares and does not use.
            layout = self.raw.create_bind_group_layout(
                label=rendered.name,
                entries=[
                    {"binding": b.binding, "visibility": _COMPUTE_STAGE, "buffer": {"type": _LAYOUT[b.access]}}
                    for b in rendered.bindings
                ],
            )
            raw = self.raw.create_compute_pipeline(
                label=rendered.name,
                layout=self.raw.create_pipeline_layout(label=rendered.name, bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": rendered.entry_point},
            )
        except self._errors as error:
            self._raise_if_lost(f"compiling {rendered.name}", error)
            raise backends.compile_error(self.backend, rendered.name, code, error) from error
        unchecked = trust or self.unchecked
        return Pipeline(name=rendered.name, raw=raw, bind_group_layout=layout, bindings=rendered.bindings, unchecked=unchecked)

    def bind_group(self, pipeline: Pipeline, buffers: Mapping[int, Any]) -> Any:
        """A bind group: binding number → GPU buffer, or (buffer, offset, size) in bytes. Raises ``GpuBufferError``."""
        entries = []
        for binding in pipeline.bindings:
            if binding.binding not in buffers:
                raise GpuBufferError(binding.name, "nothing", f"a buffer for binding {binding.binding} of {pipeline.name}")
            given = buffers[binding.binding]
            buffer, offset, size = given if isinstance(given, tuple) else (given, 0, given.size)
            entries.append({"binding": binding.binding, "resource": {"buffer": buffer, "offset": offset, "size": size}})
        with self.guard(f"binding the buffers of {pipeline.name}"):
            return self.raw.create_bind_group(label=pipeline.name, layout=pipeline.bind_group_layout, entries=entries)

    def storage(self, source: int | NDArray[Any], *, label: str = "storage") -> Any:
        """A new storage buffer: so many bytes of zeros, or the array's bytes in C order.

        Its size is rounded up to 4 bytes, and to 16 at least. Raises ``DeviceError`` that names the limit it is past.
        """
        if not isinstance(source, np.ndarray):
            return self._buffer(source, _STORAGE | _COPY_SRC | _COPY_DST, "max_storage_buffer_binding_size", label)
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
        buffer = self._buffer(len(data), _UNIFORM | _COPY_DST, "max_uniform_buffer_binding_size", label)
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

    def run(self, record: Callable[[Any], None]) -> None:
        """Submits one compute pass; ``record`` gets its encoder and records dispatches. Does not wait for the GPU."""
        with self.guard("submitting a compute pass"):
            encoder = self.raw.create_command_encoder()
            compute_pass = encoder.begin_compute_pass()
            record(compute_pass)
            compute_pass.end()
            self.raw.queue.submit([encoder.finish()])

    def time(self, record: Callable[[Any], None]) -> float:
        """As ``run``, and the seconds that the pass took: by the GPU's timestamps, or without them by the wall clock.

        The wall clock includes submitting, and reading 16 bytes back. Neither warms the GPU up first.
        """
        stamps = self.storage(16, label="timestamps")
        self.read(stamps)  # what was submitted before is not this pass's time
        start = time.perf_counter()
        if "timestamp-query" not in self.profile.features:
            self.run(record)
            self.read(stamps)
            return time.perf_counter() - start
        with self.guard("timing a compute pass"):
            seconds = backends.timed_pass(self.backend, self.raw, record)
        wall = time.perf_counter() - start
        return wall if seconds is None else seconds


def _word(word: float) -> bytes:
    try:
        if isinstance(word, (float, np.floating)):
            return struct.pack("<f", word)
        return struct.pack("<i" if word < 0 else "<I", word)
    except (struct.error, OverflowError):
        raise ArgumentError("words", repr(word), "numbers that fit 32 bits") from None


def open_device(
    backend: str | None = None,
    adapter: str | None = None,
    *,
    emulate: DeviceProfile | str | None = None,
    trusted: bool = True,
    unchecked: bool = False,
) -> Device:
    """Opens the best adapter: discrete, integrated, other, then CPU; Vulkan, Metal and D3D12 before OpenGL.

    ``backend`` is ``"wgpu"`` or ``"dawn"`` (default: the environment's WGSL_ATTENTION_BACKEND, else the first that has an
    adapter); ``adapter`` a part of an adapter's description, in any case (default: WGSL_ATTENTION_ADAPTER). The device
    gets the adapter's own limits and those of ``FEATURES`` that it has; with ``emulate``, a profile or a built-in one's
    name, that profile's limits and features and no others. ``trusted`` is ``Device.trusted``. Dawn's checks belong to the
    whole device: ``unchecked`` turns them off there, and such a device, of either backend, refuses to compile what its
    caller does not vouch for. Raises ``DeviceError``, which says what to install or which limit is missing.
    """
    backend = backend or os.environ.get("WGSL_ATTENTION_BACKEND") or None
    adapter = adapter or os.environ.get("WGSL_ATTENTION_ADAPTER") or None
    if unchecked and not trusted:
        raise ArgumentError("unchecked", "True with trusted=False", "one of them")
    asked = builtin_profile(emulate) if isinstance(emulate, str) else emulate
    found = backends.choose(backend, adapter)
    # Every limit is named: what an unnamed one becomes differs between packages, WebGPU's default or the adapter's.
    limits = dict(found.raw.limits)
    features = frozenset(FEATURES) & found.profile.features
    if asked is not None:
        lacking = backends.lacking(asked, found.profile)
        if lacking:
            raise DeviceError(f"{found.description} ({found.profile.backend}) cannot be {asked.name}: {'; '.join(lacking)}")
        limits |= asked.limits.to_webgpu()
        features = asked.features
    raw = backends.request(found, features, limits, unchecked)
    profile = backends.profile_of(found.profile.backend, found.raw.info, raw.features, raw.limits)
    if asked is not None:
        # Implementations may raise a limit below WebGPU's default to it, and add features; what counts is what was asked.
        profile = dataclasses.replace(profile, name=f"{asked.name} on {profile.name}", limits=asked.limits, features=features)
    return Device(raw, profile, trusted=trusted, unchecked=unchecked, owned=True)


_default: Device | None = None
_default_lock = threading.Lock()


def default_device() -> Device:
    """The process's shared device, opened on first use, and again once it is lost or closed. Raises ``DeviceError``."""
    global _default
    with _default_lock:
        if _default is None or not _default.usable:
            _default = open_device()
        return _default
