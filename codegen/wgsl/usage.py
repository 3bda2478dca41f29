"""What a text declares and what it uses of it, by WGSL's scopes: constants, functions, structs and members, variables, lets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .lexer import Token
from .parser import Function, Module, Statement

THREAD = "thread!"
"""Stands in an expression for the thread's own index."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_THREAD_BUILTINS = ("local_invocation_id", "local_invocation_index", "global_invocation_id")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unused:
    line: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop whose clauses have every ``let`` written out, so that they are made of constants, parameters and variables."""

    statement: Statement
    setup: tuple[Token, ...]
    head: tuple[Token, ...]
    step: tuple[Token, ...]


@dataclass(slots=True, kw_only=True)
class _Local:
    """A parameter or variable of a function. ``value`` is what a ``let`` stands for, written out."""

    line: int
    value: tuple[Token, ...] = ()
    used: bool = False


_Scope = list[dict[str, _Local]]


@dataclass(slots=True)
class Usage:
    """Walks a module's functions once; ``unused`` and ``loops`` are what it finds."""

    module: Module
    unused: list[Unused] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    """Module-scope names that functions use."""
    _members: set[tuple[str, str]] = field(default_factory=set)
    """(struct, member); the struct is empty where the expression's type is not known."""
    _inside: Counter[str] = field(default_factory=Counter)
    """How often each name stands inside a function's body."""
    _types: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._types = {v.name: v.type for v in self.module.variables}
        for function in self.module.functions.values():
            self._function(function)
        self.unused = sorted([*self.unused, *self._of_module()])

    def _function(self, function: Function) -> None:
        locals_ = {}
        for p in function.parameters:
            thread = (Token(THREAD, function.line),) if p.builtin in _THREAD_BUILTINS else ()
            locals_[p.name] = _Local(line=function.line, value=thread)
        self._block(function.body, [locals_])
        self._close(locals_)

    def _of_module(self) -> Iterator[Unused]:
        outside = Counter(token.text for token in self.module.tokens) - self._inside
        outside.subtract(p.name for function in self.module.functions.values() for p in function.parameters)
        outside.subtract(member for members in self.module.structs.values() for member, _ in members)
        for token in self.module.names:
            entry = token.text in self.module.functions and self.module.functions[token.text].compute
            if not entry and outside[token.text] < 2 and token.text not in self._names:
                yield Unused(line=token.line, name=token.text)
            for member, _ in self.module.structs.get(token.text, ()):
                if not {(token.text, member), ("", member)} & self._members:
                    yield Unused(line=token.line, name=f"{token.text}.{member}")

    def _close(self, ended: dict[str, _Local]) -> None:
        self.unused += [Unused(line=local.line, name=name) for name, local in ended.items() if not local.used]

    def _block(self, statements: tuple[Statement, ...], scope: _Scope) -> None:
        inner: dict[str, _Local] = {}
        for s in statements:
            if s.kind == "simple":
                self._simple(s.head, [*scope, inner])
                continue
            head: dict[str, _Local] = {}
            around = [*scope, inner, head]
            self._simple(s.setup, around)
            if s.kind == "loop":
                clauses = (_written_out(tokens, around) for tokens in (s.setup, s.head, s.step))
                self.loops.append(Loop(statement=s, **dict(zip(("setup", "head", "step"), clauses, strict=True))))
            for tokens in (s.head, s.step):
                self._scan(tokens, around)
            for body in (s.body, s.otherwise):
                self._block(body, around)
            self._close(head)
        self._close(inner)

    def _simple(self, tokens: tuple[Token, ...], scope: _Scope) -> None:
        if not tokens or tokens[0].text not in ("let", "var", "const"):
            self._scan(tokens, scope)
            return
        name, assign = tokens[1], next((i for i, token in enumerate(tokens) if token.text == "="), len(tokens))
        self._scan(tokens[2:], scope)
        self._inside[name.text] += 1
        value = _written_out(tokens[assign + 1 :], scope) if tokens[0].text != "var" else ()
        scope[-1][name.text] = _Local(line=name.line, value=value)

    def _scan(self, tokens: tuple[Token, ...], scope: _Scope) -> None:
        struct = ""  # the type of what stands before a dot
        for i, token in enumerate(tokens):
            if not _NAME.fullmatch(token.text):
                struct = struct if token.text == "." else ""
                continue
            self._inside[token.text] += 1
            if i and tokens[i - 1].text == ".":
                self._members.add((struct, token.text))
                struct = dict(self.module.structs.get(struct, ())).get(token.text, "")
            elif local := _find(token.text, scope):
                local.used, struct = True, ""
            else:
                self._names.add(token.text)
                struct = self._types.get(token.text, "")


def _find(name: str, scope: _Scope) -> _Local | None:
    return next((level[name] for level in reversed(scope) if name in level), None)


def _written_out(tokens: tuple[Token, ...], scope: _Scope) -> tuple[Token, ...]:
    found: list[Token] = []
    for i, token in enumerate(tokens):
        local = None if i and tokens[i - 1].text == "." else _find(token.text, scope)
        found += [Token("(", token.line), *local.value, Token(")", token.line)] if local and local.value else [token]
    return tuple(found)
