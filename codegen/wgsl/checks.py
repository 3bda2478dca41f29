"""What can be told about a rendered kernel without a compiler: that it says what its manifest entry says, and that neither
compiler can stumble over how it says it.

Each compiler accepts things that the other refuses, and naga does not count what a kernel takes at all, so bindings, threads
and workgroup bytes are counted here, from the text. ``check`` returns findings; each names the rule that it breaks.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from ..errors import ArgumentError
from ..kernels.facts import RenderedVariant
from .lexer import Token, spell, tokenize
from .parser import Module, parse, round_up

MAX_F32 = Fraction(2**24 - 1) * 2**104
MAX_F16 = Fraction(65504)
_MAX_INTEGER = {"u": 2**32 - 1, "i": 2**31 - 1, "": 2**63 - 1}

RULES = {
    "parses": "the text reads as WGSL",
    "bindings": "the text's bindings are the manifest's: number, name, address space, access and type",
    "words": "a uniform struct's members are the manifest's words, without padding, and a struct in it begins at a multiple of 16",
    "constants": "the text's overrides are the manifest's constants: u32, without a default, so that a forgotten value is an error",
    "names": "no name is declared twice, and no binding number",
    "entry-point": "the entry point is there, and it is a compute shader",
    "threads": "@workgroup_size is the manifest's",
    "workgroup-bytes": "the bytes of all var<workgroup>, each rounded up to 16, are the manifest's",
    "literals": "no literal lies past its type's range (Tint refuses 3.4028235e38)",
    "enable": "no enable directive: each loader puts those that its compiler wants first",
    "const-assert": "const_assert(a == b); with the parentheses around all of it (naga cannot parse it otherwise)",
    "pointers": "no parameter points to workgroup, storage or uniform memory (naga refuses it)",
    "uniform-stride": "the elements of an array in a uniform are a multiple of 16 bytes apart (naga refuses others)",
}
"""Every rule and what it asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A broken rule; ``line`` is the text's, 0 where it is about the text as a whole."""

    rule: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {f'line {self.line}: ' if self.line else ''}{self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the text itself takes: workgroup bytes, storage buffers, threads of a workgroup."""

    workgroup_bytes: int
    storage_buffers: int
    threads: int


def count(rendered: RenderedVariant) -> Counts:
    """Counted from the text and nothing else. Raises ``ArgumentError`` where it does not read as WGSL."""
    module = parse(rendered.wgsl)
    entry = module.functions.get(rendered.entry_point)
    return Counts(
        workgroup_bytes=workgroup_bytes(module),
        storage_buffers=sum(v.space == "storage" for v in module.variables),
        threads=math.prod(entry.workgroup_size) if entry and entry.workgroup_size else 0,
    )


def workgroup_bytes(module: Module | str) -> int:
    """The bytes of every ``var<workgroup>`` of a module or of a text, each rounded up to 16 as Tint counts them."""
    read = parse(module) if isinstance(module, str) else module
    return sum(round_up(read.layout(v.type)[0], 16) for v in read.variables if v.space == "workgroup")


def check(rendered: RenderedVariant) -> tuple[Finding, ...]:
    """Every rule that the text breaks, in the order of ``RULES``; empty where it breaks none."""
    try:
        module = parse(rendered.wgsl)
        findings = [
            *_bindings(rendered, module),
            *_words(rendered, module),
            *_constants(rendered, module),
            *_names(module),
            *_entry_point(rendered, module),
            *_workgroup_bytes(rendered, module),
            *_literals(module),
            *_forms(module),
            *_uniform_strides(module),
        ]
    except ArgumentError as error:
        return (Finding(rule="parses", line=0, message=str(error)),)
    order = list(RULES)
    return tuple(sorted(findings, key=lambda finding: (order.index(finding.rule), finding.line)))


def _bindings(rendered: RenderedVariant, module: Module) -> list[Finding]:
    listed = {(b.group, b.binding): (b.name, b.address_space, spell(tokenize(b.type))) for b in rendered.bindings}
    found = {}
    lines = {}
    findings = []
    for v in module.variables:
        if v.group is None or v.binding is None:
            if v.space in ("storage", "uniform", "handle"):
                findings.append(Finding(rule="bindings", line=v.line, message=f"{v.name} has no @group or no @binding"))
            continue
        space = f"{v.space}, {v.access}" if v.space == "storage" else v.space
        found[v.group, v.binding] = (v.name, space, v.type)
        lines[v.group, v.binding] = v.line
    for place in sorted(listed.keys() | found.keys()):
        have, want = found.get(place), listed.get(place)
        if have != want:
            message = f"@group({place[0]}) @binding({place[1]}) is {_show(have)} in the text and {_show(want)} in the manifest"
            findings.append(Finding(rule="bindings", line=lines.get(place, 0), message=message))
    return findings


def _show(binding: tuple[str, str, str] | None) -> str:
    return f"var<{binding[1]}> {binding[0]}: {binding[2]}" if binding else "missing"


def _words(rendered: RenderedVariant, module: Module) -> list[Finding]:
    findings = []
    lines = {v.name: v.line for v in module.variables}
    for b in rendered.bindings:
        if not b.words or b.type not in module.structs:
            continue
        listed = [(word.name, word.type, 4 * i) for i, word in enumerate(b.words)]
        found = list(module.words(b.type))
        for have, want in itertools.zip_longest(found, listed, fillvalue=("nothing", "", 0)):
            if have != want:
                message = f"{b.name} holds {_word(have)} in the text and {_word(want)} in the manifest"
                findings.append(Finding(rule="words", line=lines.get(b.name, 0), message=message))
                break
        for name, type_text in module.structs[b.type]:
            first = next((at for path, _, at in found if path.startswith(f"{name}.")), 0)
            if type_text in module.structs and first % 16:
                message = f"{name} of {b.type} begins at byte {first}"
                findings.append(Finding(rule="words", line=lines.get(b.name, 0), message=message))
    return findings


def _word(word: tuple[str, str, int]) -> str:
    return f"{word[0]}: {word[1]} at byte {word[2]}" if word[1] else word[0]


def _constants(rendered: RenderedVariant, module: Module) -> list[Finding]:
    listed = {constant.name for constant in rendered.constants}
    findings = [
        Finding(rule="constants", line=0, message=f"{name} is a constant of the manifest, and no override of the text")
        for name in sorted(listed - {override.name for override in module.overrides})
    ]
    for override in module.overrides:
        faults = (
            "is no constant of the manifest" if override.name not in listed else "",
            f"is a {override.type or 'number without a type'}" if override.type != "u32" else "",
            f"has the default {override.default}" if override.default else "",
        )
        said = ", and ".join(filter(None, faults))
        if said:
            findings.append(Finding(rule="constants", line=override.line, message=f"the override {override.name} {said}"))
    return findings


def _names(module: Module) -> list[Finding]:
    counts = Counter(token.text for token in module.names)
    findings = [
        Finding(rule="names", line=token.line, message=f"{token.text} is declared {counts[token.text]} times")
        for i, token in enumerate(module.names)
        if counts[token.text] > 1 and token.text in {earlier.text for earlier in module.names[:i]}
    ]
    places = Counter((v.group, v.binding) for v in module.variables if v.binding is not None)
    for v in module.variables:
        if v.binding is not None and places[v.group, v.binding] > 1:
            message = f"{v.name} shares @group({v.group}) @binding({v.binding})"
            findings.append(Finding(rule="names", line=v.line, message=message))
    return findings


def _entry_point(rendered: RenderedVariant, module: Module) -> list[Finding]:
    entry = module.functions.get(rendered.entry_point)
    if entry is None or not entry.compute:
        return [Finding(rule="entry-point", line=0, message=f"there is no @compute fn {rendered.entry_point}")]
    if entry.workgroup_size != tuple(rendered.workgroup_size):
        message = f"@workgroup_size{entry.workgroup_size} in the text and {tuple(rendered.workgroup_size)} in the manifest"
        return [Finding(rule="threads", line=entry.line, message=message)]
    return []


def _workgroup_bytes(rendered: RenderedVariant, module: Module) -> list[Finding]:
    counted = workgroup_bytes(module)
    if counted == rendered.workgroup_bytes:
        return []
    message = f"{counted} bytes counted in the text and {rendered.workgroup_bytes} in the manifest"
    return [Finding(rule="workgroup-bytes", line=0, message=message)]


def _literals(module: Module) -> list[Finding]:
    findings = []
    for token in module.tokens:
        if token.text[0].isdigit() or (token.text[0] == "." and len(token.text) > 1):
            reason = _literal_fault(token.text)
            if reason:
                findings.append(Finding(rule="literals", line=token.line, message=f"{token.text} {reason}"))
    return findings


def _literal_fault(text: str) -> str:
    hexadecimal = text[:2].lower() == "0x"
    is_float = "p" in text.lower() if hexadecimal else bool(re.search(r"[.eE]|[fh]$", text))
    suffix = text[-1] if text[-1] in ("uifh" if is_float or not hexadecimal else "ui") else ""
    digits = text[: len(text) - len(suffix)]
    if not is_float:
        return "is past its type's range" if int(digits, 16 if hexadecimal else 10) > _MAX_INTEGER[suffix] else ""
    value = _hex_float(digits) if hexadecimal else Fraction(digits)
    most, name = (MAX_F16, "f16") if suffix == "h" else (MAX_F32, "f32")
    return f"is past the largest {name}" if value > most else ""


def _hex_float(digits: str) -> Fraction:
    mantissa, _, exponent = digits[2:].lower().partition("p")
    whole, _, part = mantissa.partition(".")
    power = int(exponent) - 4 * len(part)
    return Fraction(int(f"{whole}{part}" or "0", 16)) * (Fraction(2**power) if power >= 0 else Fraction(1, 2**-power))


def _forms(module: Module) -> list[Finding]:
    findings = [
        Finding(rule="enable", line=directive[0].line, message=f"{' '.join(token.text for token in directive)};")
        for directive in module.directives
        if directive[0].text == "enable"
    ]
    findings += [
        Finding(rule="const-assert", line=a[0].line, message=" ".join(token.text for token in a))
        for a in module.asserts
        if not _enclosed(a[1:])
    ]
    for function in module.functions.values():
        for p in function.parameters:
            if match := re.match(r"ptr<(workgroup|storage|uniform)\b", module.aliases.get(p.type, p.type)):
                message = f"{p.name} of {function.name} is a pointer to {match[1]} memory"
                findings.append(Finding(rule="pointers", line=function.line, message=message))
    return findings


def _enclosed(tokens: tuple[Token, ...]) -> bool:
    """Whether the first token is a parenthesis that the last one closes."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return i == len(tokens) - 1 and i > 0
    return False


def _uniform_strides(module: Module) -> list[Finding]:
    findings = []
    for v in module.variables:
        if v.space != "uniform":
            continue
        types = [v.type, *(member for _, member in module.structs.get(module.aliases.get(v.type, v.type), ()))]
        for type_text in types:
            stride = module.stride(type_text)
            if stride is not None and stride % 16:
                message = f"{v.name} holds {type_text}, whose elements are {stride} bytes apart"
                findings.append(Finding(rule="uniform-stride", line=v.line, message=message))
    return findings
