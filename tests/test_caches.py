"""Bounded caches that keep nothing alive, and scratch that grows."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

from wgsl_attention.gpu.caches import Bounded, Pool


class Owner:
    """Something that can be referred to weakly, as GPU buffers can."""


def test_the_longest_unused_goes_first() -> None:
    cache: Bounded[str, int] = Bounded(3)
    for number, key in enumerate("abc"):
        assert cache.keep(key, number) == number
    assert cache.get("a") == 0
    cache.keep("d", 3)
    assert [cache.get(key) for key in "abcd"] == [0, None, 2, 3]
    assert len(cache) == 3 and cache.get("no") is None
    cache.clear()
    assert len(cache) == 0 and cache.get("a") is None


def test_the_first_value_of_a_key_stays() -> None:
    """So that threads which make one at the same time all get the same."""
    cache: Bounded[str, object] = Bounded(4)
    first = cache.keep("a", object())
    assert cache.keep("a", object()) is first and cache.get("a") is first


def test_a_value_goes_with_its_owners() -> None:
    cache: Bounded[object, Owner] = Bounded(100)
    kept, freed = Owner(), Owner()
    value = Owner()
    seen = weakref.ref(value)
    key = (id(kept), id(freed))
    cache.keep(key, value, [kept, freed])
    cache.keep(id(kept), Owner(), [kept])
    del value
    assert cache.get(key) is seen()
    del freed
    assert cache.get(key) is None and seen() is None
    assert cache.get(id(kept)) is not None and len(cache) == 1


def test_no_cycle_keeps_a_dropped_cache() -> None:
    gc.disable()
    try:
        cache: Bounded[int, Owner] = Bounded(4)
        owner, value = Owner(), Owner()
        seen = weakref.ref(value)
        cache.keep(1, value, [owner])
        del value, cache
        assert seen() is None
    finally:
        gc.enable()


def test_many_threads() -> None:
    cache: Bounded[int, int] = Bounded(8)
    faults: list[Any] = []

    def work(seed: int) -> None:
        for step in range(3000):
            key = (seed * 7 + step) % 20
            owner = Owner()
            if cache.keep(key, key, [owner]) != key or cache.get(key) not in (key, None) or len(cache) > 20:
                faults.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == [] and len(cache) <= 8


def test_a_pool_grows_and_says_so() -> None:
    told: list[int] = []
    pool = Pool(lambda size, name: SimpleNamespace(size=size, name=name), lambda: told.append(1))
    first = pool.take({"a": 100, "b": 10})
    assert pool.take({"a": 50}) == {"a": first["a"]} and not told
    larger = pool.take({"a": 200, "b": 10})
    assert larger["a"].size == 200 and larger["b"] is first["b"] and told == [1]
    assert pool.take({"c": 1})["c"].size == 1 and told == [1]
    pool.clear()
    assert pool.take({"a": 1})["a"].size == 1
