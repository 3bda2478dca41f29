"""The base of all kernels: parameters, rules, name, bindings, footprint, dispatch.

A kernel is a frozen dataclass derived from ``Variant``; a variant is an instance of it. The variant's name, its template
context and its manifest entry all come from its fields, so a new parameter is added in one place. ``RenderedVariant`` is
what a rendered text and its facts become once templates are out of the picture.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from ..errors import VariantError
from ..profile import DeviceProfile, Limits

WORKGROUP_SIZES = (32, 64, 128, 256, 512, 1024)
MAX_WORKGROUPS = Limits().max_compute_workgroups_per_dimension


class HasSizes(Protocol):
    """What a dispatch is computed from: a ``Problem``, or anything with named sizes."""

    @property
    def sizes(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One ``@group(0)`` variable. ``role`` is what a plan binds there; ``words`` names a uniform's 32-bit words in order."""

    binding: int
    name: str
    type: str
    access: Literal["read", "read_write", "uniform"]
    role: str
    words: tuple[str, ...] = ()
    group: int = 0

    @property
    def array_bytes(self) -> int:
        """Bytes of a uniform that is an array of vec4; 0 for anything else."""
        count = self.type.removesuffix(">").rpartition(", ")[2]
        return 16 * int(count) if self.access == "uniform" and self.type.startswith("array<vec4") else 0

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
    """A number of workgroups as data: the product of named factors, divided by ``divisor``, rounded up."""

    factors: tuple[str, ...] = ()
    divisor: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        return -(-math.prod(sizes[factor] for factor in self.factors) // self.divisor)


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
class Serves:
    """Which problems a variant is for: mask modes, head dims from least to most, lengths up to ``max_seq``."""

    masks: tuple[str, ...]
    min_head_dim: int
    max_head_dim: int
    max_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint on a kernel's parameters, as data.

    ``holds`` tells whether a variant keeps it; ``message`` may name fields in braces; ``const_assert`` is the same check
    in WGSL, over the constants at the rendered file's head, where it can be said there.
    """

    holds: Callable[[Any], bool]
    message: str
    const_assert: str = ""


def param(
    tag: str,
    doc: str,
    *,
    values: tuple[Any, ...] = (),
    default: Any = dataclasses.MISSING,
    tuned: bool = True,
    follows: bool = False,
) -> Any:
    """A template parameter.

    ``tag`` goes before an integer in the name, and is the name of a true flag; text values name
    themselves. A value equal to ``default`` is left out of the name. ``values``, where given, lists what is allowed.
    Tuning tries them all, unless ``tuned`` is false: where the problem decides, or, with ``follows``, another kernel.
    """
    return dataclasses.field(
        default=default, metadata={"tag": tag, "doc": doc, "values": values, "tuned": tuned and not follows, "follows": follows}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Base of the kernels; see the module's docstring for how a derived class is read."""

    kernel: ClassVar[str]
    """The first part of every variant's name."""
    template: ClassVar[str]
    """The template's path below ``templates/``; an absolute one for a kernel that is not the package's."""
    rules: ClassVar[tuple[Rule, ...]] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, values = getattr(self, field.name), field.metadata["values"]
            if values and (value not in values or isinstance(value, bool) != isinstance(values[0], bool)):
                raise VariantError(self.kernel, f"{field.name} is {value!r}; want one of {', '.join(map(repr, values))}")
            if not values and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise VariantError(self.kernel, f"{field.name} is {value!r}; want a whole number")
        for rule in self.rules:
            if not rule.holds(self):
                raise VariantError(self.kernel, rule.message.format(**self.params))

    @property
    def entry_point(self) -> str:
        """The WGSL function that a pipeline names; the kernel's name unless a family says otherwise."""
        return self.kernel

    @property
    def params(self) -> dict[str, int | str | bool]:
        """Every parameter, in declaration order."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def name(self) -> str:
        """File stem, manifest key, shader label, test id and tuning value; never parsed."""
        parts = [self.kernel]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is not dataclasses.MISSING and value == field.default:
                continue
            tag = self.tag(field.name, field.metadata["tag"])
            parts.append(value if isinstance(value, str) else tag if value is True else f"{tag}{value}" if tag else "")
        return "_".join(part for part in parts if part)

    def tag(self, field: str, tag: str) -> str:
        """The tag of a field in this variant's name; a kernel may let it depend on another field."""
        return tag

    def in_words(self, *told: str) -> str:
        """Every parameter that tuning chooses but those already ``told``: ``wg 256 max_seq 512``, or the name of a true flag."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in told and field.metadata["tuned"] and value != field.default:
                words.append(field.name if value is True else f"{field.name} {value}")
        return " ".join(words)

    @property
    def summary(self) -> str:
        """The parameters by which tuned variants differ, in a few words."""
        return self.in_words()

    @property
    def context(self) -> dict[str, object]:
        """What the template reads beside the parameters: constants derived from them."""
        return {}

    @property
    def workgroup_size(self) -> int:
        """Threads of one workgroup, all in x."""
        raise NotImplementedError

    @property
    def bindings(self) -> tuple[Binding, ...]:
        raise NotImplementedError

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        """Workgroup memory as data; the template declares these and nothing else."""
        return ()

    @property
    def dispatch(self) -> Dispatch:
        raise NotImplementedError

    @property
    def serves(self) -> Serves:
        raise NotImplementedError

    @property
    def features(self) -> tuple[str, ...]:
        """WebGPU features that the device must have."""
        return ()

    @property
    def extensions(self) -> tuple[str, ...]:
        """WGSL extensions that a loader enables, as its compiler spells them."""
        return ()

    @property
    def workgroup_bytes(self) -> int:
        return sum(array.bytes for array in self.workgroup_arrays)

    def shortfalls(self, profile: DeviceProfile) -> tuple[str, ...]:
        """What the device lacks for this variant, one line each; empty where it fits."""
        return _shortfalls(self, self.workgroup_size, profile)

    @property
    def const_asserts(self) -> tuple[str, ...]:
        return tuple(rule.const_assert for rule in self.rules if rule.const_assert)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedVariant:
    """A variant's WGSL text with its facts, readable without Jinja2 and without a GPU. The name is its identity."""

    name: str
    kernel: str
    wgsl: str
    entry_point: str
    workgroup_size: tuple[int, int, int]
    workgroup_bytes: int
    bindings: tuple[Binding, ...]
    params: Mapping[str, int | str | bool]
    serves: Serves
    dispatch_data: Dispatch
    features: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.wgsl))

    def dispatch(self, problem: HasSizes | Mapping[str, int]) -> tuple[int, int, int]:
        """Workgroup counts in x, y, z for a ``Problem``, or for a mapping of the sizes that the formula names."""
        return self.dispatch_data.workgroups(problem if isinstance(problem, Mapping) else problem.sizes)

    @property
    def storage_buffers(self) -> int:
        return sum(binding.access != "uniform" for binding in self.bindings)

    def shortfalls(self, profile: DeviceProfile) -> tuple[str, ...]:
        """What the device lacks for this variant, one line each; empty where it fits."""
        return _shortfalls(self, math.prod(self.workgroup_size), profile)


def _shortfalls(variant: Variant | RenderedVariant, threads: int, profile: DeviceProfile) -> tuple[str, ...]:
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
    return tuple(lines)
