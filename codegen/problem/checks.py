"""Checks of what a caller gave: whole numbers, finite numbers, arrays of either. Each raises ``ArgumentError`` with its name."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ArgumentError


def integer(name: str, value: SupportsIndex, least: int) -> int:
    """The value, once it is found to be a whole number of at least ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(name, repr(value), "an integer") from None
    if isinstance(value, bool) or number < least:
        raise ArgumentError(name, repr(value), f"an integer of at least {least}")
    return number


def finite(name: str, value: float) -> float:
    """The number as a float, once it is found to be one and finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentError(name, repr(value), "a number") from None
    if not math.isfinite(number):
        raise ArgumentError(name, number, "a finite number")
    return number


def integers(
    name: str, value: ArrayLike, *shapes: tuple[int, ...], least: int | None = None, most: int | None = None
) -> NDArray[np.int64]:
    """The array, once it is found to hold integers from ``least`` to ``most`` and, where shapes are given, to have one of them."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise ArgumentError(name, f"an array of {array.dtype}", "integers")
    if shapes and array.shape not in shapes:
        raise ArgumentError(name, f"shape {array.shape}", " or ".join(map(str, shapes)))
    array = array.astype(np.int64)
    if (least is not None and (array < least).any()) or (most is not None and (array > most).any()):
        want = f"{least} or more" if most is None else f"{least} to {most}" if least is not None else f"{most} at most"
        raise ArgumentError(name, f"{array.min()} to {array.max()}", want)
    return array


def floats(name: str, value: ArrayLike) -> NDArray[np.float32]:
    """The array as float32 without gaps, once it is found to hold floats or integers."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ArgumentError(name, f"an array of {array.dtype}", "floats or integers")
    return np.ascontiguousarray(array, dtype=np.float32)
