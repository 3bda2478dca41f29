"""What a device and its plans keep: bounded caches that let go of what is freed, and scratch that several plans share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Holder(Protocol):
    """What holds GPU objects of a device, and drops them when the device goes: all, or only those that hold scratch."""

    def release(self) -> None: ...

    def release_bindings(self) -> None: ...


class Bounded(Generic[K, V]):
    """The last ``limit`` values that were asked for, by key. Safe from several threads.

    A value may have owners, which it keeps no reference to: once one of them is freed, so is the value. That makes the
    owners' ids good keys, since an id is given to another object only after its first one's value is gone.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # A plain dict: a key can be taken out of it, by the garbage collector too, between any two steps of the others.
        self._items: dict[K, tuple[V, tuple[weakref.ref[Any], ...]]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> V | None:
        """The value, which becomes the last to be dropped; None where there is none."""
        found = self._items.get(key)
        if found is None:
            return None
        if 2 * len(self._items) > self.limit:  # before that, the order is not worth its time
            with self._lock:
                if self._items.pop(key, None) is not None:
                    self._items[key] = found
        return found[0]

    def keep(self, key: K, value: V, owners: Iterable[Any] = ()) -> V:
        """Keeps a value in place of those that were not asked for longest. Returns the key's own where it has one already."""
        cache = weakref.ref(self)

        def drop(_: weakref.ref[Any]) -> None:
            # Without the lock, which this thread may hold.
            held = cache()
            if held is not None:
                held._items.pop(key, None)

        references = tuple(weakref.ref(owner, drop) for owner in owners)
        with self._lock:
            kept = self._items.setdefault(key, (value, references))
            while len(self._items) > max(1, self.limit):
                self._items.pop(next(iter(self._items)), None)
        return kept[0]

    def clear(self) -> None:
        self._items.clear()


class Pool:
    """Scratch buffers by name, each as large as the largest that was asked for; ``make`` makes one, from bytes and name.

    ``replaced`` is called after a buffer has given way to a larger one.
    """

    def __init__(self, make: Callable[[int, str], Any], replaced: Callable[[], None] = lambda: None) -> None:
        self._make = make
        self._replaced = replaced
        self._buffers: dict[str, Any] = {}
        self._lock = threading.Lock()

    def take(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """A buffer of at least so many bytes for each name."""
        replaced = False
        with self._lock:
            for name, size in sizes.items():
                held = self._buffers.get(name)
                if held is None or held.size < size:
                    replaced |= held is not None
                    self._buffers[name] = self._make(size, name)
            taken = {name: self._buffers[name] for name in sizes}
        if replaced:
            self._replaced()
        return taken

    def clear(self) -> None:
        self._buffers.clear()
