"""Bugs of drivers as data: which variants a device gets wrong, cannot compile, or takes minutes over.

``shortfalls`` asks here, so that selection and tuning pass over such a variant there, ``explain`` says why, and ``validate``
lists it in place of running it. A quirk is taken out again once no driver that people still have shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..profile import DeviceProfile


class Described(Protocol):
    """What a quirk can tell a variant by: ``Variant`` and ``RenderedVariant`` both have it."""

    @property
    def name(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def params(self) -> Mapping[str, int | str | bool]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """One bug: the kernel that it strikes, on which variants and devices, what happens, and where it is reported."""

    kernel: str
    holds: Callable[[Described, DeviceProfile], bool]
    reason: str
    link: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.link})"


QUIRKS: tuple[Quirk, ...] = ()
"""None is known. Such an entry reads: ``Quirk(kernel="attention_dq", holds=lambda variant, profile: "llvmpipe" in
profile.device and variant.params["row_reg"] == 8, reason="d_q is zero", link="the driver's issue")``."""


def quirks_of(variant: Described, profile: DeviceProfile) -> tuple[str, ...]:
    """The bugs that keep a variant from a device, one line each."""
    return tuple(str(quirk) for quirk in QUIRKS if quirk.kernel == variant.kernel and quirk.holds(variant, profile))
