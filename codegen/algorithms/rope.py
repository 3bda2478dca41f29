"""Rotary embedding, backward: a recipe of one step, in place on the gradient of q or of k. Nothing about it is chosen but the
workgroup size, so it is no ``Algorithm``."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ArgumentError
from ..kernels.rope import RopeBackward, RopeKBackward, RopeQBackward
from ..problem.rotation import Rotation
from ..profile import DeviceProfile
from .recipe import Recipe, Step

KERNELS: dict[str, type[RopeBackward]] = {"q": RopeQBackward, "k": RopeKBackward}
"""By the tensor whose gradient is turned back; the two differ in their bindings' names."""
WORKGROUPS = (256, 64)
"""Threads, the best first; compatibility mode has no 256."""


def rotate(rotation: Rotation, variant: RopeBackward) -> Recipe:
    """The recipe of a rotary kernel."""
    return Recipe(algorithm="rope", problem=rotation, steps=(Step(variant=variant, buffers={variant.role: "d_x"}),))


def suited(tensor: str, profile: DeviceProfile) -> RopeBackward:
    """The kernel for the gradient of ``"q"`` or ``"k"`` on a device. Raises ``ArgumentError`` for another tensor."""
    if tensor not in KERNELS:
        raise ArgumentError("tensor", repr(tensor), "'q' or 'k'")
    variants = [KERNELS[tensor](wg=wg) for wg in WORKGROUPS]
    return next((variant for variant in variants if not variant.shortfalls(profile)), variants[-1])


def checked_in() -> Iterator[RopeBackward]:
    """The variants in ``generated/``."""
    for family in KERNELS.values():
        for wg in WORKGROUPS:
            yield family(wg=wg)
