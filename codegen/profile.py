"""What a device can do, as plain data: limits, features and identity.

Selection works on profiles alone, so it can be tested, and explained, for devices that are not there.
Limits carry WebGPU's names in snake case and WebGPU's units (bytes, invocations, workgroups).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that decide what a kernel may use. The defaults are WebGPU's own."""

    max_compute_workgroup_storage_size: int = 16384
    max_compute_invocations_per_workgroup: int = 256
    max_compute_workgroup_size_x: int = 256
    max_compute_workgroups_per_dimension: int = 65535
    max_storage_buffers_per_shader_stage: int = 8
    max_storage_buffer_binding_size: int = 128 << 20
    max_uniform_buffer_binding_size: int = 64 << 10
    max_buffer_size: int = 256 << 20
    min_storage_buffer_offset_alignment: int = 256
    min_uniform_buffer_offset_alignment: int = 256

    @classmethod
    def from_webgpu(cls, limits: Mapping[str, int]) -> Limits:
        """From an adapter's or a device's limits, keyed as ``max-buffer-size`` or ``max_buffer_size``; extra keys are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        found = {key.replace("-", "_"): int(value) for key, value in limits.items()}
        return cls(**{key: value for key, value in found.items() if key in known})

    def to_webgpu(self) -> dict[str, int]:
        """Keyed as WebGPU's descriptors in Python are: ``max-buffer-size``."""
        return {field.name.replace("_", "-"): getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def binding_bytes(self) -> int:
        """What one storage buffer may hold where it is bound whole."""
        return min(self.max_storage_buffer_binding_size, self.max_buffer_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One device, as plain data.

    ``backend`` is ``"wgpu"``, ``"dawn"`` or empty for a profile that belongs to no backend; ``vendor``, ``architecture``
    and ``device`` are the adapter's own words, lower-cased; ``features`` are WebGPU's names (``"subgroups"``, not ``"subgroup"``).
    """

    name: str
    backend: str = ""
    vendor: str = ""
    architecture: str = ""
    device: str = ""
    driver: str = ""
    software: bool = False
    features: frozenset[str] = frozenset()
    limits: Limits = Limits()

    @property
    def identity(self) -> str:
        """What tuning tables are keyed by: ``"nvidia h200 (wgpu)"``."""
        return f"{self.device or self.name} ({self.backend or 'any backend'})"

    def lacks(self, asked: DeviceProfile) -> list[str]:
        """What keeps it from being another profile, one line each."""
        lines = [f"the feature {feature}" for feature in sorted(asked.features - self.features)]
        for limit in dataclasses.fields(Limits):
            want, have = getattr(asked.limits, limit.name), getattr(self.limits, limit.name)
            if want < have if limit.name.startswith("min_") else want > have:
                lines.append(f"{limit.name} {want}, the adapter has {have}")
        return lines


def _profiles(profiles: Iterable[DeviceProfile]) -> dict[str, DeviceProfile]:
    return {profile.name: profile for profile in profiles}


_COMPAT = Limits(
    max_compute_invocations_per_workgroup=128,
    max_compute_workgroup_size_x=128,
    max_uniform_buffer_binding_size=16 << 10,
)
_LARGE = Limits(
    max_compute_workgroup_storage_size=32768,
    max_compute_invocations_per_workgroup=1024,
    max_compute_workgroup_size_x=1024,
    max_storage_buffers_per_shader_stage=16,
    max_storage_buffer_binding_size=(1 << 31) - 4,
    max_buffer_size=1 << 32,
)

PROFILES: dict[str, DeviceProfile] = _profiles(
    (
        DeviceProfile(name="webgpu-compat", limits=_COMPAT),
        DeviceProfile(name="webgpu-default"),
        DeviceProfile(name="workgroup-32k", limits=_LARGE),
        DeviceProfile(
            name="workgroup-48k",
            limits=dataclasses.replace(_LARGE, max_compute_workgroup_storage_size=49152),
        ),
    )
)
"""Built-in profiles, from the smallest to the largest."""


def builtin_profile(name: str) -> DeviceProfile:
    """The built-in profile of that name; raises ``ArgumentError`` and lists the names if there is none."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ArgumentError("profile", repr(name), f"one of {', '.join(PROFILES)}") from None
