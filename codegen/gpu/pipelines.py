"""The pipelines of one device: each variant compiled once, several at a time where the backend allows it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import DeviceError
from ..kernels.facts import Binding, RenderedVariant
from ..profile import DeviceProfile
from . import backends
from .caches import Bounded

MAX_PIPELINES = 256
_LAYOUT = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
_COMPUTE_STAGE = 4

Key = tuple[str, str, bool, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A compiled variant: ``raw`` is the compute pipeline; ``unchecked`` says that it runs without bounds checks."""

    name: str
    raw: Any
    bind_group_layout: Any
    bindings: tuple[Binding, ...]
    unchecked: bool


class Pipelines:
    """The cache behind ``Device.pipeline`` and ``Device.prepare``; ``guard`` is the device's."""

    def __init__(
        self,
        raw: Any,
        profile: DeviceProfile,
        guard: Callable[[str], AbstractContextManager[None]],
        *,
        unchecked: bool | None,
    ) -> None:
        self._raw = raw
        self._profile = profile
        self._guard = guard
        self._by_module = unchecked is not False and profile.backend == "wgpu" and backends.can_leave_out_checks()
        self._all_unchecked = unchecked is True
        self._errors = backends.errors_of(profile.backend)
        self._made: Bounded[Key, Pipeline] = Bounded(MAX_PIPELINES)
        self._lock = threading.Lock()
        self._compiling: dict[Key, threading.Lock] = {}

    def clear(self) -> None:
        self._made.clear()

    def get(self, rendered: RenderedVariant, unchecked: bool) -> Pipeline:
        """As ``Device.pipeline``. Threads that ask for different variants compile them at the same time."""
        key = self._key(rendered, unchecked)
        with self._lock:
            turn = self._compiling.setdefault(key, threading.Lock())
        try:
            with turn:
                found = self._made.get(key)
                if found is None:
                    self._check(rendered)
                    with self._guard(f"compiling {rendered.name}"):
                        found = self._finish(rendered, key, *self._start(rendered, key))
                return found
        finally:
            with self._lock:
                self._compiling.pop(key, None)

    def prepare(self, variants: Iterable[tuple[RenderedVariant, bool]], threads: int = 0) -> None:
        """Compiles (variant, unchecked) pairs ahead: wgpu's in threads, Dawn's in the threads that it has itself."""
        wanted = {self._key(rendered, unchecked): rendered for rendered, unchecked in variants}
        missing = {key: rendered for key, rendered in wanted.items() if self._made.get(key) is None}
        for rendered in missing.values():
            self._check(rendered)
        if self._profile.backend == "dawn":  # whose objects belong to one thread at a time
            started = []
            for key, rendered in missing.items():
                with self._guard(f"compiling {rendered.name}"):
                    started.append((rendered, key, *self._start(rendered, key, "_async")))
            for rendered, key, layout, code, promise in started:
                with self._guard(f"compiling {rendered.name}"):
                    self._finish(rendered, key, layout, code, promise)
        elif missing:
            with ThreadPoolExecutor(threads or min(8, len(missing), os.cpu_count() or 1)) as pool:
                for _ in pool.map(lambda item: self.get(item[1], item[0][2]), missing.items()):
                    pass

    def _key(self, rendered: RenderedVariant, unchecked: bool) -> Key:
        if self._all_unchecked and not unchecked:
            raise DeviceError(
                f"{rendered.name}: everything on this device is unchecked, and the variant has not passed validation"
            )
        return rendered.name, rendered.wgsl, unchecked and self._by_module, tuple(rendered.values.items())

    def _check(self, rendered: RenderedVariant) -> None:
        missing = [constant.name for constant in rendered.constants if constant.name not in rendered.values]
        if missing:
            raise DeviceError(f"{rendered.name} has no value for {', '.join(missing)}: specialised(problem) gives it one")
        lacking = rendered.shortfalls(self._profile)
        if lacking:
            raise DeviceError(f"{rendered.name} does not fit {self._profile.name}: {'; '.join(lacking)}")

    def _start(self, rendered: RenderedVariant, key: Key, how: str = "") -> tuple[Any, str, Any]:
        """The layout, the text as compiled, and the pipeline, or with ``how="_async"`` a promise of it."""
        backend, raw = self._profile.backend, self._raw
        code = backends.shader_text(backend, rendered.wgsl, rendered.extensions)
        try:
            module = backends.create_module(backend, raw, code, rendered.name, key[2])
            # Explicit layouts: "auto" drops a binding that a variant declares and does not use.
            layout = raw.create_bind_group_layout(
                label=rendered.name,
                entries=[
                    {"binding": b.binding, "visibility": _COMPUTE_STAGE, "buffer": {"type": _LAYOUT[b.access]}}
                    for b in rendered.bindings
                ],
            )
            made = getattr(raw, f"create_compute_pipeline{how}")(
                label=rendered.name,
                layout=raw.create_pipeline_layout(label=rendered.name, bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": rendered.entry_point, "constants": dict(rendered.values)},
            )
        except self._errors as error:
            self._refused(rendered, code, error)
        return layout, code, made

    def _finish(self, rendered: RenderedVariant, key: Key, layout: Any, code: str, made: Any) -> Pipeline:
        if hasattr(made, "sync_wait"):
            try:
                made = made.sync_wait()
            except self._errors as error:
                self._refused(rendered, code, error)
        pipeline = Pipeline(
            name=rendered.name,
            raw=made,
            bind_group_layout=layout,
            bindings=rendered.bindings,
            unchecked=key[2] or self._all_unchecked,
        )
        return self._made.keep(key, pipeline)

    def _refused(self, rendered: RenderedVariant, code: str, error: Exception) -> NoReturn:
        if backends.is_loss(error):
            raise error  # which the guard turns into an error about the device
        raise backends.compile_error(self._profile.backend, rendered.name, code, error) from error
