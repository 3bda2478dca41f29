"""A plan's uniform buffers: the words of each step, for the numbers that calls bring, and arrays that are copied in."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..algorithms.recipe import Recipe
from ..gpu.caches import Bounded
from ..gpu.device import Device
from ..kernels.uniform_words import pack_words
from ..problem.task import Scalars

MAX_NUMBERS = 4
"""Scales for which a plan keeps its uniform buffers."""


class Uniforms:
    """Made when they are first asked for, and kept. ``copied`` is name → bytes of arrays that a plan copies in."""

    def __init__(self, recipe: Recipe, device: Device) -> None:
        self.recipe = recipe
        self.device = device
        self.copied = {b.role: b.array_bytes for step in recipe.steps for b in step.variant.bindings if b.array_bytes}
        self._arrays: dict[str, Any] = {}
        self._words: Bounded[Scalars, tuple[dict[int, Any], ...]] = Bounded(MAX_NUMBERS)

    def words(self, numbers: Scalars) -> tuple[dict[int, Any], ...]:
        """For each step, its uniform buffers by binding."""
        found = self._words.get(numbers)
        if found is not None:
            return found
        values = {**self.recipe.problem.words, **numbers.words}
        made = []
        for step in self.recipe.steps:
            packed = {b: pack_words(b, {**values, **step.sizes}) for b in step.variant.bindings if b.words}
            made.append({b.binding: self.device.uniform(words, label=b.role) for b, words in packed.items()})
        return self._words.keep(numbers, tuple(made))

    def array(self, name: str) -> Any:
        """The buffer that an array of the caller's is copied into."""
        found = self._arrays.get(name)
        if found is None:
            made = self.device.uniform(np.zeros(self.copied[name] // 4, np.uint32), label=name)
            found = self._arrays.setdefault(name, made)
        return found

    def clear(self) -> None:
        self._words.clear()
        self._arrays.clear()
