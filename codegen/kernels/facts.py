"""What a host has to know of a kernel, as plain data: bindings, uniform words, workgroup memory, dispatch, what it serves.

``RenderedVariant`` is a WGSL text with these facts. It is what becomes of a variant once templates are out of the picture,
and what ``generated/manifest.json`` holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, Protocol

from ..errors import ArgumentError
from ..plain import from_plain, to_plain
from ..profile import DeviceProfile, Limits
from .quirks import Described, quirks_of

MAX_WORKGROUPS = Limits().max_compute_workgroups_per_dimension


class HasSizes(Protocol):
    """What a dispatch is computed from: a ``Problem``, or anything with named sizes."""

    @property
    def sizes(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One 32-bit word of a uniform."""

    name: str
    type: Literal["u32", "i32", "f32"]

    def __str__(self) -> str:
        return f"{self.name}:{self.type}"


def u32(*names: str) -> tuple[Word, ...]:
    """Words that hold unsigned whole numbers."""
    return tuple(Word(name=name, type="u32") for name in names)


def i32(*names: str) -> tuple[Word, ...]:
    """Words that hold whole numbers with a sign."""
    return tuple(Word(name=name, type="i32") for name in names)


def f32(*names: str) -> tuple[Word, ...]:
    """Words that hold floats."""
    return tuple(Word(name=name, type="f32") for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One ``@group(0)`` variable. ``role`` is what a plan binds there; ``words`` names a uniform's 32-bit words in order."""

    group: int = 0
    binding: int
    name: str
    type: str
    access: Literal["read", "read_write", "uniform"]
    role: str
    words: tuple[Word, ...] = ()

    @property
    def array_bytes(self) -> int:
        """Bytes of a uniform that is an array of vec4; 0 for anything else."""
        count = self.type.removesuffix(">").rpartition(", ")[2]
        return 16 * int(count) if self.access == "uniform" and self.type.startswith("array<vec4") else 0

    @property
    def members(self) -> dict[str, str]:
        """The members of a uniform's struct, name → type: words with a dot in their names are those of a ``Rows``."""
        return {word.name.partition(".")[0]: "Rows" if "." in word.name else word.type for word in self.words}

    @property
    def address_space(self) -> str:
        """As WGSL writes it between ``var<`` and ``>``."""
        return "uniform" if self.access == "uniform" else f"storage, {self.access}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkgroupArray:
    """One ``var<workgroup>`` array of 4-byte or vec4 elements."""

    name: str
    type: str
    count: int

    @property
    def bytes(self) -> int:
        """Its size, rounded up to 16 as compilers lay it out."""
        size = 4 * {"vec2": 2, "vec4": 4}.get(self.type[:4], 1)
        return -(-size * self.count // 16) * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of workgroups as data: the product of named factors, divided by ``divisor``, rounded up, and ``times`` that."""

    factors: tuple[str, ...] = ()
    divisor: int = 1
    times: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        return self.times * -(-math.prod(sizes[factor] for factor in self.factors) // self.divisor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Workgroups in x, y and z. ``flat`` folds x over y, as evenly as it goes, where it is past a dimension's limit."""

    x: Count
    y: Count = Count()
    z: Count = Count()
    flat: bool = False

    def workgroups(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = self.x.of(sizes), self.y.of(sizes), self.z.of(sizes)
        if self.flat:
            y = -(-x // MAX_WORKGROUPS)
            x = -(-x // y)
        return x, y, z


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A pipeline-overridable constant of the text: which of a problem's sizes it is, and what that size may be.

    The text declares it without a default (``override HEAD_DIM: u32;``), so that a forgotten value is an error.
    """

    name: str
    size: str
    least: int
    most: int
    multiple: int

    @property
    def taken(self) -> str:
        """What the size may be, in words."""
        return f"multiples of {self.multiple} from {self.least} to {self.most}"

    def takes(self, value: object) -> bool:
        """Whether the text serves this size."""
        if not isinstance(value, Integral) or isinstance(value, bool):
            return False
        return self.least <= int(value) <= self.most and int(value) % self.multiple == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """Which problems a variant is for: mask modes, head dims from least to most, lengths up to ``max_seq``."""

    masks: tuple[str, ...]
    head_dim: tuple[int, int]
    max_seq: int | None = None

    @property
    def min_head_dim(self) -> int:
        return self.head_dim[0]

    @property
    def max_head_dim(self) -> int:
        return self.head_dim[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedVariant:
    """A variant's WGSL text with its facts, readable without Jinja2 and without a GPU. The name is its identity.

    A fact is declared here and computed by ``Variant``'s property of that name; ``as_json``, ``from_json``, the manifest and
    its TypeScript interface follow from the fields.
    """

    name: str
    wgsl: str
    kernel: str
    params: Mapping[str, int | str | bool]
    serves: Serves
    entry_point: str
    workgroup_size: tuple[int, int, int]
    workgroup_bytes: int
    bindings: tuple[Binding, ...]
    constants: tuple[Constant, ...] = ()
    extensions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    dispatch_data: Dispatch = field(metadata={"json": "dispatch"})
    values: Mapping[str, int] = field(default_factory=dict, metadata={"json": None})
    """Of the constants, by name; ``specialised`` gives them."""

    def __hash__(self) -> int:
        return hash((self.name, self.wgsl, *self.values.items()))

    def specialised(self, problem: HasSizes | Mapping[str, int]) -> RenderedVariant:
        """The same text with its constants' values for a ``Problem``, or for a mapping of sizes; without constants, itself.

        Raises ``ArgumentError`` that names a size that is missing, or that the text does not serve.
        """
        if not self.constants:
            return self
        sizes = problem if isinstance(problem, Mapping) else problem.sizes
        for constant in self.constants:
            given = sizes.get(constant.size)
            if not constant.takes(given):
                want = f"one of the {constant.taken}, for {constant.name} of {self.name}"
                raise ArgumentError(constant.size, "nothing" if given is None else given, want)
        return replace(self, values={constant.name: int(sizes[constant.size]) for constant in self.constants})

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return dict(to_plain(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RenderedVariant:
        """The reverse of ``as_json``; other keys are left out."""
        return from_plain(cls, data)

    def dispatch(self, problem: HasSizes | Mapping[str, int]) -> tuple[int, int, int]:
        """Workgroup counts in x, y, z for a ``Problem``, or for a mapping of the sizes that the formula names."""
        return self.dispatch_data.workgroups(problem if isinstance(problem, Mapping) else problem.sizes)

    @property
    def storage_buffers(self) -> int:
        return sum(binding.access != "uniform" for binding in self.bindings)

    def shortfalls(self, profile: DeviceProfile) -> tuple[str, ...]:
        """Why the device is not for this variant, one line each; empty where it is."""
        return shortfalls(self, math.prod(self.workgroup_size), profile)


class Needs(Described, Protocol):
    """What a device has to have for a kernel, as ``Variant`` and ``RenderedVariant`` both tell it."""

    @property
    def workgroup_bytes(self) -> int: ...
    @property
    def bindings(self) -> tuple[Binding, ...]: ...
    @property
    def features(self) -> tuple[str, ...]: ...


def shortfalls(variant: Needs, threads: int, profile: DeviceProfile) -> tuple[str, ...]:
    """Why the device is not for a kernel of so many threads a workgroup, one line each: what it lacks, and its driver's bugs."""
    limits = profile.limits
    storage_buffers = sum(binding.access != "uniform" for binding in variant.bindings)
    needs = (
        ("bytes of workgroup memory", variant.workgroup_bytes, limits.max_compute_workgroup_storage_size),
        ("threads", threads, min(limits.max_compute_invocations_per_workgroup, limits.max_compute_workgroup_size_x)),
        ("storage buffers", storage_buffers, limits.max_storage_buffers_per_shader_stage),
        ("bytes of a uniform", max(b.array_bytes for b in variant.bindings), limits.max_uniform_buffer_binding_size),
    )
    lines = [f"needs {need} {what}, the device has {have}" for what, need, have in needs if need > have]
    lines += [f"needs the feature {feature}" for feature in variant.features if feature not in profile.features]
    return (*lines, *quirks_of(variant, profile))
