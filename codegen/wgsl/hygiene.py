"""Whether a rendered text reads as if it were written by hand. No compiler asks for this: readers do.

A template that serves many variants easily leaves behind what one of them has no use for: a constant, a ``+ 0u``, a loop over
a single block. ``check`` finds that. It is apart from ``checks``, whose findings are faults in what a kernel does.
"""

from __future__ import annotations

import ast
import itertools
import operator
import random
import re
from collections.abc import Iterator, Mapping

from ..kernels.facts import RenderedVariant
from .checks import Finding
from .lexer import Token
from .parser import parse
from .usage import THREAD, Loop, Usage

RULES = {
    "unused": "what is declared is used: constants, functions, variables, structs and their members, parameters, extensions",
    "idle": "no arithmetic that changes nothing, such as + 0u, or that always gives zero",
    "once": "no loop that runs once at most, whatever the call",
    "columns": "no line is past 132 columns",
    "blank-lines": "blank lines come alone, not at a block's begin or end, and deep inside a function only before a comment",
    "indentation": "four spaces for each open bracket, and four more where a statement goes on",
}
"""Every rule and what it asks for."""

MAX_COLUMNS = 132
TRIALS = 8
"""Chance numbers that a loop's bounds are tried with; each has a few values, so that equal expressions are equal."""
EXTENSIONS = {"f16": r"f16|(vec|mat)\w+h|\d[\d.]*h", "subgroups": r"subgroup\w+"}
"""A word that a text with the extension holds. Others are not judged."""
_ZERO, _ONE = re.compile(r"0+(\.0*)?[iufh]?|\.0+[fh]?"), re.compile(r"1(\.0*)?[iufh]?")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv}


def check(rendered: RenderedVariant) -> tuple[Finding, ...]:
    """Every rule that the text breaks, in the order of ``RULES``. Raises ``ArgumentError`` where it does not read as WGSL."""
    module = parse(rendered.wgsl)
    usage = Usage(module)
    found = [Finding(rule="unused", line=unused.line, message=unused.name) for unused in usage.unused]
    for extension in rendered.extensions:
        word = EXTENSIONS.get(extension, "")
        if word and not any(re.fullmatch(word, token.text) for token in module.tokens):
            found.append(Finding(rule="unused", line=0, message=f"the extension {extension}"))
    found += _idle(module.tokens)
    for loop in usage.loops:
        if _runs_once(loop, module.constants):
            message = " ".join(token.text for token in loop.statement.head)
            found.append(Finding(rule="once", line=loop.statement.line, message=message))
    found += _layout(rendered.wgsl.splitlines())
    order = list(RULES)
    return tuple(sorted(found, key=lambda finding: (order.index(finding.rule), finding.line)))


def _idle(tokens: tuple[Token, ...]) -> Iterator[Finding]:
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        zero, one = _ZERO.fullmatch(token.text), _ONE.fullmatch(token.text)
        left, right = ("+", "-", "*") if zero else ("*", "/", "%"), ("+", "*") if zero else ("*",)
        if (zero or one) and (before.text in left or after.text in right):
            yield Finding(rule="idle", line=token.line, message=f"{before.text} {token.text} {after.text}")


def _runs_once(loop: Loop, constants: Mapping[str, float | int]) -> bool:
    """Whether a ``for`` from a to b makes one step at most. What is not constant is tried with chance numbers.

    A loop that starts at the thread's own index is not judged: so a workgroup shares out what may be less than its threads.
    """
    setup, head, step = ([token.text for token in tokens] for tokens in (loop.setup, loop.head, loop.step))
    if len(setup) < 4 or setup[2] != "=" or head[:1] != setup[1:2] or step[:1] != setup[1:2] or THREAD in (*setup, *head):
        return False
    first, end, by = " ".join(setup[3:]), " ".join(head[2:]), " ".join(step[2:]) if step[1] == "+=" else "1"
    try:
        for pick in (0, -1):  # the end is no more than either argument of min
            spans = [_Chance(trial, pick, constants) for trial in range(TRIALS)]
            if all(0 < c.number(end) + (head[1] == "<=") - c.number(first) <= c.number(by) for c in spans):
                return head[1] in ("<", "<=")
    except (SyntaxError, ZeroDivisionError):
        pass  # an expression that Python does not read
    return False


class _Chance:
    """Values of expressions, with a chance number for whatever is not known; ``pick`` says which argument min gives."""

    def __init__(self, trial: int, pick: int, constants: Mapping[str, float | int]) -> None:
        self.trial, self.pick, self.constants = trial, pick, constants

    def number(self, text: str) -> float | int:
        return self._value(ast.parse(re.sub(r"\b(0[xX][0-9a-fA-F]+|\d[\d.]*)[iufh]\b", r"\1", text), mode="eval").body)

    def _value(self, node: ast.expr) -> float | int:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in self.constants:
                return self.constants[name]
            case ast.BinOp() if type(node.op) in _OPERATORS:
                return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))  # type: ignore[no-any-return]
            case ast.Call(func=ast.Name(id="u32" | "i32")):
                return self._value(node.args[0])
            case ast.Call(func=ast.Name(id="min")):
                return self._value(node.args[self.pick])
        return random.Random(f"{self.trial} {ast.dump(node)}").randint(1, 1 << 16)


def _layout(lines: list[str]) -> Iterator[Finding]:
    depth, goes_on = 0, False
    for number, (before, line, after) in enumerate(zip(["{", *lines], lines, [*lines[1:], "}"], strict=False), 1):
        if len(line) > MAX_COLUMNS:
            yield Finding(rule="columns", line=number, message=f"{len(line)} columns")
        if not line:
            after = after.strip()
            if not before or before.endswith("{") or after.startswith("}") or (depth > 1 and not after.startswith("//")):
                yield Finding(rule="blank-lines", line=number, message=f"before {after[:40]!r}")
            continue
        code = line.partition("//")[0].strip()
        closing = len(list(itertools.takewhile(lambda c: c in ")]}", code)))
        want = 4 * (depth - closing + (goes_on and depth > 0 and bool(code)))
        if len(line) - len(line.lstrip(" ")) != want:
            yield Finding(rule="indentation", line=number, message=f"{line.strip()[:40]!r} wants {want} spaces")
        depth += sum((c in "([{") - (c in ")]}") for c in code)
        goes_on = code[-1] not in ";{},([" if code else goes_on
