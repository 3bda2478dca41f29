"""An opened device: its pipelines and caches, buffers checked against its limits, timing, loss.

A ``Device`` is what plans run on. ``open_device`` picks the best adapter, ``Device.from_wgpu`` takes a device of the
caller's, ``default_device`` is the one that calls without a device share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from numpy.typing import NDArray

from ..errors import DeviceError, GpuBufferError, WgslAttentionError
from ..kernels.facts import RenderedVariant
from ..profile import DeviceProfile, builtin_profile
from . import backends
from .backends import FEATURES, AdapterInfo, adapters
from .caches import Bounded, Holder, Pool
from .memory import Memory
from .pipelines import Pipeline, Pipelines

__all__ = ["FEATURES", "AdapterInfo", "Device", "Pipeline", "adapters", "default_device", "open_device"]

MAX_PLANS = 256


class Device:
    """A GPU device with its profile and caches; close it, or use it as a context manager. Safe to share between threads.

    ``profile`` has the limits and features that the *device* has, or, of an emulating device, those that are emulated;
    ``backend`` is ``"wgpu"`` or ``"dawn"``; ``raw`` the package's GPUDevice. ``unchecked`` is as for ``open_device``.
    ``plans`` and ``pool`` are the plans that were asked for last, and the scratch that they share. Every method raises
    ``DeviceError`` once the device is lost or closed.

    Dawn's objects belong to one thread at a time, so a Dawn device takes turns. A device that ``open_device`` made can
    also be used by the caller's own calls from several threads at once, where Dawn can synchronise by itself.
    """

    def __init__(self, raw: Any, profile: DeviceProfile, *, unchecked: bool | None = None, owned: bool = False) -> None:
        self.raw = raw
        self.profile = profile
        self.backend = profile.backend
        self.unchecked = unchecked
        self._owned = owned
        self.errors = backends.errors_of(self.backend)
        self.turn: AbstractContextManager[Any] = threading.RLock() if self.backend == "dawn" else contextlib.nullcontext()
        self.plans: Bounded[Hashable, Any] = Bounded(MAX_PLANS)
        self.pool = Pool(lambda size, name: self.zeros(size, label=name), self._pool_changed)
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._memory = Memory(raw, profile, self.guard)
        self._pipelines = Pipelines(raw, profile, self.guard, unchecked=unchecked)
        self._gone = ""

    @classmethod
    def from_wgpu(cls, raw: Any, *, unchecked: bool | None = None) -> Device:
        """Wraps a GPUDevice of wgpu or wgpudawn that the caller owns and keeps; ``close`` does not destroy it.

        Raises ``ArgumentError`` for anything else.
        """
        backend = backends.backend_of(raw)
        info = getattr(getattr(raw, "adapter", None), "info", None) or {}
        return cls(raw, backends.profile_of(backend, info, raw.features, raw.limits), unchecked=unchecked)

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
            closed, self._gone = self._gone == "closed", "closed"
        self.release()
        if self._owned and not closed:
            with contextlib.suppress(*self.errors), self.turn:
                self.raw.destroy()

    def release(self) -> None:
        """Drops what is kept for the next call: pipelines, plans, and of every plan its bind groups, uniforms and scratch.

        All of it comes back when it is next needed. Work that was submitted is not disturbed, but no other thread may be
        recording a plan meanwhile.
        """
        self._pipelines.clear()
        self.plans.clear()
        self.pool.clear()
        for holder in self._held():
            holder.release()

    def attach(self, holder: Holder) -> None:
        """Has ``release`` and ``close`` call the holder's; no reference to it is kept."""
        with self._lock:
            self._holders.add(holder)

    def _held(self) -> list[Holder]:
        with self._lock:
            return list(self._holders)

    def _pool_changed(self) -> None:
        for holder in self._held():  # bind groups would keep the smaller buffers
            holder.release_bindings()

    def check(self, doing: str) -> None:
        """Raises ``DeviceError`` where the device is known to be lost or closed."""
        if self._gone:
            raise DeviceError(f"cannot go on {doing}: the device {self.profile.name} is {self._gone}; open another")

    @contextlib.contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Turns what the package raises into a ``DeviceError`` that says what was being done, and notices a lost device."""
        self.check(doing)
        with self.turn:
            try:
                yield
            except WgslAttentionError:
                raise
            except self.errors as error:
                self.fail(doing, error)

    def fail(self, doing: str, error: Exception) -> NoReturn:
        """Raises the ``DeviceError`` for what the package raised."""
        # wgpudawn's errors hold, in a cycle with their frames, views of the memory that was being written; collecting
        # that cycle crashes CPython 3.11.
        traceback.clear_frames(error.__traceback__)
        if not backends.is_loss(error):
            raise DeviceError(f"{doing}: {backends.first_line(error)}") from error
        self._gone = self._gone or "lost"
        self.release()
        message = (
            f"the device {self.profile.name} was lost while {doing}; open another (a dispatch of seconds can be the cause)"
        )
        raise DeviceError(message) from error

    def storage(self, source: int | NDArray[Any], *, label: str = "storage") -> Any:
        """A new storage buffer: so many bytes of zeros, or the array's bytes in C order.

        Its size is rounded up to 4 bytes, and to 16 at least. Raises ``DeviceError`` that names the limit it is past.
        """
        return self._memory.storage(source, label)

    def zeros(self, nbytes: int, *, label: str = "zeros") -> Any:
        """A new storage buffer of that many bytes, which WebGPU fills with zeros."""
        return self._memory.storage(nbytes, label)

    def uniform(self, words: Sequence[int | float] | NDArray[Any], *, label: str = "uniform") -> Any:
        """A new uniform buffer of 32-bit words: ints as u32 (or, below zero, i32), floats as f32; or an array's bytes.

        Its size is rounded up to 16 bytes, a vec4. Raises ``ArgumentError`` for a word that does not fit.
        """
        return self._memory.uniform(words, label)

    def write(self, buffer: Any, source: NDArray[Any] | bytes, offset: int = 0) -> None:
        """Writes an array's bytes in C order, or bytes, from byte ``offset`` on, in whole words. Raises ``GpuBufferError``."""
        self._memory.write(buffer, source, offset)

    def read(self, buffer: Any, nbytes: int | None = None, offset: int = 0) -> bytes:
        """The buffer's bytes, or ``nbytes`` of them from ``offset`` (a multiple of 4) on; waits for the GPU."""
        return self._memory.read(buffer, nbytes, offset)

    def pipeline(self, rendered: RenderedVariant, *, unchecked: bool = False) -> Pipeline:
        """The compiled variant, from the cache where it was compiled before.

        ``unchecked`` says that this very text has passed validation, so that it may run without the compiler's bounds
        checks and loop counters: on wgpu, which decides module by module, it then does unless ``Device.unchecked`` is False.
        Raises ``DeviceError`` that names what the device lacks, before anything is compiled, since a kernel past the workgroup
        memory can hang a driver; or that gives the compiler's first message and its line.
        """
        self.check(f"compiling {rendered.name}")
        return self._pipelines.get(rendered, unchecked)

    def prepare(self, variants: Iterable[tuple[RenderedVariant, bool]], threads: int = 0) -> None:
        """Compiles (variant, unchecked) pairs ahead, several at a time; ``threads`` is how many with wgpu (0: by the machine).

        Returns when all are compiled. Raises as ``pipeline`` does.
        """
        self.check("compiling ahead")
        self._pipelines.prepare(variants, threads)

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

    def submit(self, record: Callable[[Any], None], *, doing: str = "submitting commands") -> None:
        """Submits what ``record`` records into the command encoder that it gets. Does not wait for the GPU.

        ``doing`` says in an error what was being done.
        """
        with self.guard(doing):
            encoder = self.raw.create_command_encoder()
            record(encoder)
            self.raw.queue.submit([encoder.finish()])

    def run(self, record: Callable[[Any], None]) -> None:
        """Submits one compute pass; ``record`` gets its encoder and records dispatches. Does not wait for the GPU."""

        def in_a_pass(encoder: Any) -> None:
            compute_pass = encoder.begin_compute_pass()
            record(compute_pass)
            compute_pass.end()

        self.submit(in_a_pass, doing="submitting a compute pass")

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


def open_device(
    backend: str | None = None,
    adapter: str | None = None,
    *,
    emulate: DeviceProfile | str | None = None,
    unchecked: bool | None = None,
) -> Device:
    """Opens the best adapter: discrete, integrated, other, then CPU; Vulkan, Metal and D3D12 before OpenGL.

    ``backend`` is ``"wgpu"`` or ``"dawn"`` (default: the environment's WGSL_ATTENTION_BACKEND, else the first that has an
    adapter); ``adapter`` a part of an adapter's description, in any case (default: WGSL_ATTENTION_ADAPTER). The device
    gets the adapter's own limits and those of ``FEATURES`` that it has; with ``emulate``, a profile or a built-in one's
    name, that profile's limits and features and no others.

    ``unchecked`` is which kernels run without the compiler's bounds checks: by default those that have passed validation,
    as far as the backend can tell one from another (wgpu), and with ``False`` none. With ``True`` Dawn's checks, which
    belong to the whole device, are off too, and the device, of either backend, compiles what has passed and nothing else.
    Raises ``DeviceError``, which says what to install or which limit is missing.
    """
    backend = backend or os.environ.get("WGSL_ATTENTION_BACKEND") or None
    adapter = adapter or os.environ.get("WGSL_ATTENTION_ADAPTER") or None
    asked = builtin_profile(emulate) if isinstance(emulate, str) else emulate
    found = backends.choose(backend, adapter)
    # Every limit is named: what an unnamed one becomes differs between packages, WebGPU's default or the adapter's.
    limits = dict(found.raw.limits)
    features = frozenset(FEATURES) & found.profile.features
    if asked is not None:
        lacking = found.profile.lacks(asked)
        if lacking:
            raise DeviceError(f"{found.description} ({found.profile.backend}) cannot be {asked.name}: {'; '.join(lacking)}")
        limits |= asked.limits.to_webgpu()
        features = asked.features
    raw = backends.request(found, features, limits, unchecked is True)
    profile = backends.profile_of(found.profile.backend, found.raw.info, raw.features, raw.limits)
    if asked is not None:
        # Implementations may raise a limit below WebGPU's default to it, and add features; what counts is what was asked.
        profile = dataclasses.replace(profile, name=f"{asked.name} on {profile.name}", limits=asked.limits, features=features)
    return Device(raw, profile, unchecked=unchecked, owned=True)


_default: Device | None = None
_default_lock = threading.Lock()


def default_device() -> Device:
    """The process's shared device, opened on first use, and again once it is lost or closed. Raises ``DeviceError``."""
    global _default
    with _default_lock:
        if _default is None or not _default.usable:
            _default = open_device()
        return _default
