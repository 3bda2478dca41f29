"""A conservative check that every barrier is reached by all threads of a workgroup or by none, from the text alone.

A value is *uniform* when it is built from constants, uniforms, read-only storage, workgroup_id, num_workgroups and
``workgroupUniformLoad``. It is not once a thread's id, workgroup memory, read_write storage or a private variable has
entered it, or an assignment under a condition that is not uniform. naga checks none of this, and Tint does: what passes here
passes there, and what does not is a loop whose bound a reader cannot see to be the same for all threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .lexer import Token, split
from .parser import Function, Module, Statement

BARRIERS = frozenset({"workgroupBarrier", "storageBarrier", "textureBarrier", "workgroupUniformLoad"})
UNIFORM_BUILTINS = frozenset({"workgroup_id", "num_workgroups"})
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Divergence:
    """A barrier in ``line`` that not every thread may reach; ``cause`` says what decides about it."""

    line: int
    cause: str


def divergences(module: Module) -> tuple[Divergence, ...]:
    """Every barrier of the module's entry points that is not uniform by construction, sorted by line."""
    analysis = _Analysis(module)
    for function in module.functions.values():
        if function.compute:
            varying = frozenset(p.name for p in function.parameters if p.builtin not in UNIFORM_BUILTINS)
            analysis.varies(function, varying)
    return tuple(sorted(analysis.found))


class _Analysis:
    """Walks every function once for each set of parameters that vary; ``found`` collects what is wrong."""

    def __init__(self, module: Module) -> None:
        self.functions = module.functions
        self.found: set[Divergence] = set()
        self.varying_variables = frozenset(
            v.name for v in module.variables if v.space in ("workgroup", "private") or v.access == "read_write"
        )
        self._results: dict[tuple[str, frozenset[str]], bool] = {}

    def varies(self, function: Function, varying: frozenset[str], cause: str = "") -> bool:
        """Whether the function's result varies from thread to thread, when these parameters do and, with a cause, the call."""
        key = function.name, varying | {f"call: {cause}"} if cause else varying
        if key not in self._results:
            self._results[key] = True  # WGSL has no recursion; this only stops the walk of a text that has
            self._results[key] = _Walk(self, function, varying, cause).result()
        return self._results[key]


@dataclass(slots=True)
class _Walk:
    """One function's body, walked until no more names vary. A ``cause`` is why not all threads may be here; empty is uniform."""

    analysis: _Analysis
    function: Function
    varying: frozenset[str]
    cause: str
    names: set[str] = field(default_factory=set)
    returns: bool = False
    left: str = ""
    """Why some threads may have returned already."""
    loops: dict[int, str] = field(default_factory=dict)
    """Why some threads may leave a loop before others, by the loop's identity."""

    def result(self) -> bool:
        self.names |= self.varying
        before = -1
        while before != (before := len(self.names) + len(self.loops)):
            self.left = ""
            self.block(self.function.body, self.cause, None)
        return self.returns

    def block(self, statements: tuple[Statement, ...], cause: str, loop: Statement | None) -> None:
        for statement in statements:
            self.statement(statement, cause or self.left, loop)

    def statement(self, s: Statement, cause: str, loop: Statement | None) -> None:
        if s.kind == "simple":
            self.simple(s, cause, loop)
        elif s.kind == "block":
            self.block(s.body, cause, loop)
        elif s.kind == "loop":
            self.assign(s.setup, cause)
            for _ in range(2):  # what the end of the body finds out holds for its beginning too
                inside = cause or self.left or self.loops.get(id(s), "")
                if self.scan(s.head, inside):
                    inside = inside or self.loops.setdefault(id(s), self.why(s))
                self.block(s.body, inside, s)
                self.assign(s.step, inside)
        else:
            varies = self.scan(s.head, cause)
            inside = cause or (self.why(s) if varies else "")
            self.block(s.body, inside, loop)
            self.block(s.otherwise, inside, loop)

    def why(self, s: Statement) -> str:
        what = "loop's bound" if s.kind == "loop" else "condition"
        return f"the {what} in line {s.line} ({' '.join(token.text for token in s.head)}) is not the same for all threads"

    def simple(self, s: Statement, cause: str, loop: Statement | None) -> None:
        first = s.head[0].text
        if first == "return":
            varies = self.scan(s.head[1:], cause)
            self.returns = self.returns or varies or bool(cause)
            self.left = self.left or cause
            self.leave(loop, cause)
        elif first == "break" and len(s.head) > 2:  # break if …;
            if self.scan(s.head[2:], cause):
                self.leave(loop, cause or self.why(s))
        elif first in ("break", "continue"):
            self.leave(loop, cause)
        else:
            self.assign(s.head, cause)

    def leave(self, loop: Statement | None, cause: str) -> None:
        if loop is not None and cause:
            self.loops.setdefault(id(loop), cause)

    def assign(self, tokens: tuple[Token, ...], cause: str) -> None:
        """A declaration, an assignment or a call: whether the name on its left varies from now on."""
        if not tokens:
            return
        at = next((i for i, token in enumerate(tokens) if token.text in _ASSIGNMENTS), len(tokens))
        declared = tokens[0].text in ("let", "var", "const")
        left, right = tokens[:at], tokens[at + 1 :]
        varies = self.scan(right, cause)
        if at == len(tokens) and tokens[-1].text not in ("++", "--"):
            if not declared:
                self.scan(left, cause)
            return
        identifiers = [t.text for t in left if t.text[0].isalpha() or t.text[0] == "_"]
        names = [name for name in identifiers if name not in ("let", "var", "const", "function")]
        if not names:
            return
        if not declared:  # an index that varies makes the array vary
            varies = self.scan(left[1:], cause) or varies
        if varies or cause:
            self.names.add(names[0])

    def scan(self, tokens: tuple[Token, ...], cause: str) -> bool:
        """Whether an expression varies; every call in it is looked into on the way."""
        varies, at = False, 0
        while at < len(tokens):
            token = tokens[at]
            member = at > 0 and tokens[at - 1].text == "."
            called = at + 1 < len(tokens) and tokens[at + 1].text == "("
            if called and token.text in BARRIERS and cause:
                self.analysis.found.add(Divergence(line=token.line, cause=cause))
            if called and (token.text in self.analysis.functions or token.text == "workgroupUniformLoad"):
                arguments, end = _arguments(tokens, at + 1)
                if token.text in self.analysis.functions:
                    varies = self.call(self.analysis.functions[token.text], arguments, cause) or varies
                at = end
                continue
            if not member and (token.text in self.names or token.text in self.analysis.varying_variables):
                varies = True
            at += 1
        return varies

    def call(self, function: Function, arguments: list[tuple[Token, ...]], cause: str) -> bool:
        varying = {p.name for p, a in zip(function.parameters, arguments, strict=False) if self.scan(a, cause)}
        for argument in arguments:  # what is handed over by pointer may be written with anything that went in
            if argument and argument[0].text == "&" and (varying or cause):
                self.names.add(argument[1].text)
        return self.analysis.varies(function, frozenset(varying), cause)


def _arguments(tokens: tuple[Token, ...], opening: int) -> tuple[list[tuple[Token, ...]], int]:
    """A call's arguments, and where its closing parenthesis is passed."""
    depth, at = 0, opening
    while at < len(tokens):
        depth += (tokens[at].text == "(") - (tokens[at].text == ")")
        at += 1
        if not depth:
            break
    return _split_call(tokens[opening + 1 : at - 1]), at


def _split_call(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    """Arguments between commas outside round and square brackets; ``<`` may be a comparison here, so it is not a bracket
    unless a template list is what follows a type's name."""
    plain = [t for t in tokens if t.text in ("<", ">")]
    if not plain or sum(t.text == "<" for t in plain) == sum(t.text == ">" for t in plain):
        return split(tokens)
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in "([") - (token.text in ")]")
        if token.text == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts]
