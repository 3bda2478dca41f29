"""The base of all kernels: parameters and rules, and the name and the facts that follow from them.

A kernel is a frozen dataclass derived from ``Variant``; a variant is an instance of it. The variant's name, its template
context and its manifest entry all come from its fields, so a new parameter is added in one place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import VariantError
from ..profile import DeviceProfile
from .facts import Binding, Constant, Dispatch, Serves, WorkgroupArray, shortfalls

WORKGROUP_SIZES = (32, 64, 128, 256, 512, 1024)


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
    def constants(self) -> tuple[Constant, ...]:
        """What the text leaves to the pipeline; see ``Constant``."""
        return ()

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
        """Why the device is not for this variant, one line each; empty where it is."""
        return shortfalls(self, self.workgroup_size, profile)

    @property
    def const_asserts(self) -> tuple[str, ...]:
        return tuple(rule.const_assert for rule in self.rules if rule.const_assert)
