"""Where a tensor's rows lie in its buffer: strides of batch entries, positions and heads, and what can be said of them.

A tensor is (batch, length, heads, dim) here, channels always side by side; lse and delta have a dim of 1. Everything
counts elements of 4 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from .checks import integer

Shape: TypeAlias = tuple[int, int, int, int]
Axes: TypeAlias = "list[tuple[int, int]]"
"""(stride, entries), the widest first."""
MAX_NEAR = 8
"""Steps of one axis that ``apart`` looks into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strides:
    """Channel c of head h at position s of batch entry b is element ``offset`` + b·``batch`` + s·``row`` + h·``head`` + c.

    As PyTorch's ``stride()`` and ``storage_offset()`` have them, in elements. A stride of 0 repeats what is there, for
    inputs. Raises ``ArgumentError`` for what is not a whole number.
    """

    batch: int
    row: int
    head: int
    offset: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "row", "head", "offset"):
            called = name if name == "offset" else f"{name} stride"
            object.__setattr__(self, name, integer(called, getattr(self, name), 0))

    @classmethod
    def contiguous(cls, shape: Shape) -> Strides:
        """Row-major without gaps."""
        return cls(**_nested(shape, ("head", "row", "batch"), 0))

    def settled(self, shape: Shape) -> Strides:
        """The same places, with one way to say so: an axis of one entry has the stride that it would have without gaps."""
        batch, length, heads, _ = shape
        plain = Strides.contiguous(shape)
        return replace(
            self,
            batch=self.batch if batch > 1 else plain.batch,
            row=self.row if length > 1 else plain.row,
            head=self.head if heads > 1 else plain.head,
        )

    def moved(self, elements: int) -> Strides:
        """The same, so many elements further on."""
        return replace(self, offset=self.offset + elements)

    def words(self, role: str, part: int = 0) -> dict[str, int]:
        """The uniform words that place a tensor, by the names that kernels give them; ``part`` is from part to part."""
        numbers = {"offset": self.offset, "batch": self.batch, "row": self.row, "head": self.head}
        return {**{f"{role}.{name}": number for name, number in numbers.items()}, f"{role}_part": part}

    def axes(self, shape: Shape) -> Axes:
        """The axes that have more than one entry."""
        pairs = zip((self.batch, self.row, self.head), shape[:3], strict=True)
        return sorted(((stride, count) for stride, count in pairs if count > 1), reverse=True)

    def span(self, shape: Shape) -> int:
        """One past the last element, counted from the buffer's start."""
        return self.offset + _extent(self.axes(shape), shape[3])

    def has_gaps(self, shape: Shape) -> bool:
        """Whether something else can lie between its elements."""
        return _extent(self.axes(shape), shape[3]) > math.prod(shape)

    def is_distinct(self, shape: Shape) -> bool:
        """Whether no two elements are one: each axis steps past all that lies within it, as every usual layout does."""
        axes = self.axes(shape)
        return all(stride >= _extent(axes[i + 1 :], shape[3]) for i, (stride, _) in enumerate(axes))

    def multiples_of(self, n: int) -> bool:
        """Whether every row begins at a multiple of ``n`` elements."""
        return not any(stride % n for stride in (self.batch, self.row, self.head, self.offset))

    def like(self, old: Shape, shape: Shape) -> Strides:
        """Strides of the same kind for another shape: axes in the same order, gaps where there are some, as aligned."""
        unit = 4 if self.multiples_of(4) else 1
        order = sorted(("head", "row", "batch"), key=lambda name: getattr(self.settled(old), name))
        gap = unit if self.has_gaps(old) else 0
        return Strides(**_nested(shape, tuple(order), gap), offset=unit if self.offset else 0)


def _nested(shape: Shape, order: tuple[str, ...], gap: int) -> dict[str, int]:
    """Strides of the axes in ``order``, the narrowest first, with ``gap`` elements after each row of channels."""
    counts = dict(zip(("batch", "row", "head"), shape[:3], strict=True))
    found, stride = {}, shape[3] + gap
    for name in order:
        found[name] = stride
        stride *= counts[name]
    return found


def _extent(axes: Axes, dim: int) -> int:
    return sum(stride * (count - 1) for stride, count in axes) + dim


def apart(one: Strides, one_shape: Shape, other: Strides, other_shape: Shape) -> bool:
    """Whether two tensors in one buffer share no element. Each must be distinct in itself.

    Exact for tensors whose axes have the same strides, as those cut out of one array do; where telling would take long, False.
    """
    return _apart(one.axes(one_shape), one_shape[3], other.axes(other_shape), other_shape[3], other.offset - one.offset)


def _apart(a: Axes, a_dim: int, b: Axes, b_dim: int, shift: int) -> bool:
    """For a at 0 and b at ``shift``."""
    if shift >= _extent(a, a_dim) or -shift >= _extent(b, b_dim):
        return True
    if not a and not b:
        return False
    widest = max(axes[0][0] for axes in (a, b) if axes)
    (a_count, a), (b_count, b) = _split(a, widest), _split(b, widest)
    # Entry j of b against entry i of a is the inner axes alone, n = j − i steps further. Which n bring them together?
    first = max(1 - a_count, (-_extent(b, b_dim) - shift) // widest + 1)
    last = min(b_count - 1, (_extent(a, a_dim) - shift - 1) // widest)
    return last - first < MAX_NEAR and all(_apart(a, a_dim, b, b_dim, shift + n * widest) for n in range(first, last + 1))


def _split(axes: Axes, stride: int) -> tuple[int, Axes]:
    """The entries of the axis with this stride, and the axes within it."""
    return (axes[0][1], axes[1:]) if axes and axes[0][0] == stride else (1, axes)


def scatter(array: NDArray[Any], strides: Strides, fill: float = 0.0) -> NDArray[Any]:
    """A flat array of the tensor's span with ``array`` (batch, length, heads, dim) in its places, and ``fill`` between them."""
    shape = four_axes(array.shape)
    flat = np.full(strides.span(shape), fill, array.dtype)
    _view(flat, shape, strides)[...] = array.reshape(shape)
    return flat


def gather(flat: NDArray[Any], strides: Strides, shape: tuple[int, ...]) -> NDArray[Any]:
    """The tensor that lies in a flat array, as an array of its own of this shape."""
    return np.array(_view(flat, four_axes(shape), strides)).reshape(shape)


def four_axes(shape: tuple[int, ...]) -> Shape:
    """(batch, length, heads, dim) of an array of three axes too."""
    batch, length, heads, dim = shape if len(shape) == 4 else (*shape, 1)
    return batch, length, heads, dim


def _view(flat: NDArray[Any], shape: Shape, s: Strides) -> NDArray[Any]:
    if flat.size < s.span(shape):
        raise ArgumentError("flat", f"{flat.size} elements", f"at least {s.span(shape)}")
    step = flat.itemsize
    steps = (step * s.batch, step * s.row, step * s.head, step)
    return np.lib.stride_tricks.as_strided(flat[s.offset :], shape, steps)


def side_by_side(shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Strides]]:
    """Tensors packed into one array (batch, length, sum of heads·dim): each position has a row of all, in this order."""
    batches = {shape[:2] for shape in shapes.values()}
    if len(batches) > 1:
        raise ArgumentError("names", f"{' and '.join(shapes)}, which differ in length", "tensors of one length")
    row = sum(heads * dim for _, _, heads, dim in shapes.values())
    offset = 0
    for name, (_, length, heads, dim) in shapes.items():
        yield name, Strides(batch=length * row, row=row, head=dim, offset=offset)
        offset += heads * dim
