"""What a recipe is made for, as far as recipes, plans and uniforms look at it: a ``Problem``, or a ``Rotation``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .strides import Shape, Strides

MAX_INDEX = 1 << 32
"""Kernels index elements in u32."""


class Task(Protocol):
    """The arrays of a call and the sizes of its dispatches. Equal tasks are equal keys."""

    def __hash__(self) -> int: ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """The named factors that dispatch formulas are made of."""
        ...

    @property
    def words(self) -> Mapping[str, float | int]:
        """The values of uniform words, by name."""
        ...

    @property
    def outputs(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the arrays that a call gets, by name."""
        ...

    @property
    def optional(self) -> tuple[str, ...]:
        """The inputs that a call may bring whether they are wanted or not."""
        ...

    @property
    def accumulate(self) -> frozenset[str]:
        """The outputs that are added to what is there."""
        ...

    @property
    def buffer_bytes(self) -> Mapping[str, int]:
        """Bytes of the buffer of every array that a kernel may bind, by name."""
        ...

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """(batch, length, heads, dim) of every tensor."""
        ...

    @property
    def strides(self) -> Mapping[str, Strides] | tuple[tuple[str, Strides], ...]:
        """Where tensors' rows lie that do not follow one another without gaps."""
        ...

    def strides_of(self, name: str) -> Strides:
        """Where a tensor's rows lie, whether that was said or not."""
        ...


class Scalars(Protocol):
    """The numbers of one call, as a key, and by the names of uniform words."""

    def __hash__(self) -> int: ...

    @property
    def words(self) -> Mapping[str, float | int]: ...
