"""Reads a WGSL text as far as the static checks need it: module-scope declarations, sizes of types, statements.

No compiler is involved and nothing is judged here. The grammar covered is what kernels are written in; what it cannot read
raises ``ArgumentError`` with the line.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import ArgumentError
from .lexer import Reader, Token, spell, split, tokenize

_SCALARS = {"f32": 4, "u32": 4, "i32": 4, "bool": 4, "f16": 2}
_SHORT = {"f": "f32", "u": "u32", "i": "i32", "h": "f16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A module-scope ``var``: its address space, access (storage only, ``"read"`` by default) and type as written."""

    name: str
    space: str
    access: str
    type: str
    line: int
    group: int | None = None
    binding: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A constant that the pipeline may give; its type and its default as written, empty where there is none."""

    name: str
    type: str
    default: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A function's parameter: its builtin (empty where it has none) and its type as written."""

    name: str
    type: str
    builtin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """``kind`` is simple, if, loop, switch or block.

    ``head`` holds the tokens of a simple statement, or those that decide whether ``body`` runs (again); ``setup`` and
    ``step`` are a ``for``'s; ``otherwise`` is an ``if``'s else.
    """

    kind: str
    line: int
    head: tuple[Token, ...] = ()
    setup: tuple[Token, ...] = ()
    step: tuple[Token, ...] = ()
    body: tuple[Statement, ...] = ()
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    name: str
    line: int
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    compute: bool = False
    workgroup_size: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Module:
    """The declarations of a text. ``names`` lists every module-scope name with its line, repeated ones too."""

    tokens: tuple[Token, ...]
    directives: list[tuple[Token, ...]] = field(default_factory=list)
    constants: dict[str, float | int] = field(default_factory=dict)
    overrides: list[Override] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    structs: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    asserts: list[tuple[Token, ...]] = field(default_factory=list)
    names: list[Token] = field(default_factory=list)

    def layout(self, text: str) -> tuple[int, int]:
        """Size and alignment in bytes of a type, by WGSL's rules. Raises ``ArgumentError`` for one without a fixed size."""
        head, arguments = _template(self.aliases.get(text, text))
        if head in self.aliases:
            return self.layout(self.aliases[head])
        if head in _SCALARS:
            return _SCALARS[head], _SCALARS[head]
        if head == "atomic":
            return 4, 4
        if vector := re.fullmatch(r"vec([234])([fuih]?)", head):
            count, size = int(vector[1]), _SCALARS[_SHORT.get(vector[2]) or arguments[0]]
            return count * size, (4 if count == 3 else count) * size
        if matrix := re.fullmatch(r"mat([234])x([234])([fh]?)", head):
            column = f"vec{matrix[2]}<{_SHORT.get(matrix[3]) or arguments[0]}>"
            return self.layout(f"array<{column}, {matrix[1]}>")
        if head == "array" and len(arguments) == 2:
            size, align = self.layout(arguments[0])
            return round_up(size, align) * int(evaluate(arguments[1], self.constants)), align
        if head in self.structs:
            end, largest = 0, 1
            for _, member in self.structs[head]:
                size, align = self.layout(member)
                end, largest = round_up(end, align) + size, max(largest, align)
            return round_up(end, largest), largest
        raise ArgumentError("type", repr(text), "a type of fixed size")

    def words(self, struct: str, path: str = "", start: int = 0) -> Iterator[tuple[str, str, int]]:
        """What a struct holds in the end: path, type and byte of each member, those of structs in it one by one."""
        end = start
        for name, member in self.structs[struct]:
            size, align = self.layout(member)
            at = round_up(end, align)
            if member in self.structs:
                yield from self.words(member, f"{path}{name}.", at)
            else:
                yield f"{path}{name}", member, at
            end = at + size

    def stride(self, text: str) -> int | None:
        """Bytes from one element of an array type to the next; None for another type."""
        head, arguments = _template(self.aliases.get(text, text))
        if head != "array":
            return None
        size, align = self.layout(arguments[0])
        return round_up(size, align)


def round_up(size: int, to: int) -> int:
    return -(-size // to) * to


def parse(wgsl: str) -> Module:
    """The module's declarations. Raises ``ArgumentError`` where the text does not read as WGSL."""
    module = Module(tokens=tokenize(wgsl))
    reader = Reader(module.tokens)
    while reader.more:
        attributes = reader.attributes()
        token = reader.take()
        if token.text == "fn":
            _function(reader, attributes, module)
        elif token.text == "struct":
            name = reader.take()
            module.names.append(name)
            module.structs[name.text] = tuple((p.name, p.type) for p in _parameters(reader.group("{")))
        elif token.text in ("enable", "requires", "diagnostic"):
            module.directives.append((token, *reader.until(";")))
        elif token.text == "const_assert":
            module.asserts.append((token, *reader.until(";")))
        elif token.text in ("var", "const", "override", "alias"):
            _declaration(token, reader.template(), reader.until(";"), attributes, module)
        elif token.text != ";":
            raise ArgumentError("wgsl", f"{token.text!r} in line {token.line}", "a declaration")
    return module


def evaluate(text: str, constants: Mapping[str, float | int]) -> float | int:
    """A constant expression of numbers, named constants, + − * / % and parentheses. Raises ``ArgumentError``."""
    plain = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d[\d.]*(?:[eE][+-]?\d+)?)[iufh]?\b", r"\1", text)
    try:
        return _value(ast.parse(plain.strip(), mode="eval").body, constants)
    except (SyntaxError, KeyError, ZeroDivisionError):
        raise ArgumentError("expression", repr(text), "a constant expression of known constants") from None


def _value(node: ast.expr, constants: Mapping[str, float | int]) -> float | int:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name):
        return constants[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, constants)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, constants), _value(node.right, constants)
        if isinstance(node.op, ast.Div):
            return left // right if isinstance(left, int) and isinstance(right, int) else left / right
        known = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod}
        known |= {ast.LShift: operator.lshift, ast.RShift: operator.rshift}
        if type(node.op) in known:
            return known[type(node.op)](left, right)  # type: ignore[no-any-return]
    raise KeyError(ast.dump(node))


def _template(text: str) -> tuple[str, list[str]]:
    """``array<vec4<f32>, 16>`` → ``array`` and its arguments as text."""
    tokens = tokenize(text)
    if len(tokens) < 2:
        return text.strip(), []
    return tokens[0].text, [spell(part) for part in split(tokens[2:-1])]


def _declaration(
    token: Token,
    template: tuple[Token, ...],
    rest: tuple[Token, ...],
    attributes: dict[str, tuple[Token, ...]],
    module: Module,
) -> None:
    name = rest[0]
    module.names.append(name)
    assign = next((i for i, t in enumerate(rest) if t.text == "="), len(rest))
    if token.text == "alias":
        module.aliases[name.text] = spell(rest[assign + 1 :])
    elif token.text == "override":
        kind, default = spell(rest[2:assign]), spell(rest[assign + 1 :])
        module.overrides.append(Override(name=name.text, type=kind, default=default, line=name.line))
    elif token.text == "const":
        try:
            module.constants[name.text] = evaluate(spell(rest[assign + 1 :]), module.constants)
        except ArgumentError:
            return  # not a number: nothing that a size is made of
    else:
        words = [t.text for t in template if t.text != ","] + ["", ""]
        space, access = words[0] or "handle", words[1]
        numbers = {
            key: int(evaluate(spell(attributes[key]), module.constants)) for key in ("group", "binding") if key in attributes
        }
        module.variables.append(
            Variable(
                name=name.text,
                space=space,
                access=access or ("read" if space == "storage" else ""),
                type=spell(rest[2:assign]),
                line=name.line,
                **numbers,
            )
        )


def _function(reader: Reader, attributes: dict[str, tuple[Token, ...]], module: Module) -> None:
    name = reader.take()
    module.names.append(name)
    parameters = _parameters(reader.group("("))
    reader.until("{")  # the type of the result
    size = tuple(int(evaluate(spell(part), module.constants)) for part in split(attributes.get("workgroup_size", ())))
    module.functions[name.text] = Function(
        name=name.text,
        line=name.line,
        parameters=tuple(parameters),
        body=_statements(Reader(reader.group("{"))),
        compute="compute" in attributes,
        workgroup_size=(*size, 1, 1)[:3] if size else (),
    )


def _parameters(tokens: tuple[Token, ...]) -> list[Parameter]:
    found = []
    for part in split(tokens):
        reader = Reader(part)
        builtin = spell(reader.attributes().get("builtin", ()))
        name = reader.take().text
        reader.take(":")
        found.append(Parameter(name=name, type=spell(part[reader.at :]), builtin=builtin))
    return found


def _statements(reader: Reader) -> tuple[Statement, ...]:
    found = []
    while reader.more:
        reader.attributes()
        if reader.text == ";":
            reader.take()
            continue
        found.append(_statement(reader))
    return tuple(found)


def _block(reader: Reader) -> tuple[Statement, ...]:
    return _statements(Reader(reader.group("{")))


def _statement(reader: Reader) -> Statement:
    first = reader.tokens[reader.at]
    line = first.line
    if first.text == "{":
        return Statement(kind="block", line=line, body=_block(reader))
    if first.text not in ("if", "for", "while", "loop", "continuing", "switch", "case", "default"):
        return Statement(kind="simple", line=line, head=reader.until(";"))
    reader.take()
    if first.text == "for":
        setup, condition, step = (*_clauses(reader.group("(")), (), ())[:3]
        return Statement(kind="loop", line=line, head=condition, setup=setup, step=step, body=_block(reader))
    head = reader.until("{")
    if first.text == "switch":
        return Statement(kind="switch", line=line, head=head, body=_block(reader))
    kind = {"if": "if", "while": "loop", "loop": "loop"}.get(first.text, "block")
    body = _block(reader)
    otherwise: tuple[Statement, ...] = ()
    if kind == "if" and reader.text == "else":
        reader.take()
        otherwise = (_statement(reader),)
    return Statement(kind=kind, line=line, head=head if kind != "block" else (), body=body, otherwise=otherwise)


def _clauses(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    """A ``for``'s three clauses, any of which may be empty."""
    clauses: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == ";":
            clauses.append([])
        else:
            clauses[-1].append(token)
    return [tuple(clause) for clause in clauses]
