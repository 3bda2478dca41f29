"""Tokens of WGSL with their lines, and a reader that walks over them by brackets."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import ArgumentError

_TOKEN = re.compile(
    r"0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?[iufh]?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[iufh]?|[A-Za-z_]\w*"
    r"|<<=|>>=|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|[^\s\w]"
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    text: str
    line: int


def tokenize(wgsl: str) -> tuple[Token, ...]:
    """The tokens with their lines, comments left out."""
    blank = _without_comments(wgsl)
    tokens, line, at = [], 1, 0
    for match in _TOKEN.finditer(blank):
        line += blank.count("\n", at, match.start())
        at = match.start()
        tokens.append(Token(match[0], line))
    return tuple(tokens)


def spell(tokens: tuple[Token, ...] | list[Token]) -> str:
    """Tokens as text, spaced in one way, so that texts can be compared."""
    return re.sub(r",", ", ", "".join(token.text for token in tokens))


def split(tokens: tuple[Token, ...], separator: str = ",") -> list[tuple[Token, ...]]:
    """The parts between separators that stand in no bracket and in no template list."""
    parts, depth, current = [], 0, list[Token]()
    for token in tokens:
        depth += (token.text in "([{<") - (token.text in ")]}>")
        if token.text == separator and depth == 0:
            parts.append(tuple(current))
            current = []
        else:
            current.append(token)
    return [*parts, tuple(current)] if current else parts


def _without_comments(wgsl: str) -> str:
    """The text with spaces for comments; block comments nest."""
    out, depth, at = [], 0, 0
    while at < len(wgsl):
        two = wgsl[at : at + 2]
        if two == "/*" or (two == "*/" and depth):
            depth += 1 if two == "/*" else -1
            out.append("  ")
            at += 2
        elif two == "//" and not depth:
            end = wgsl.find("\n", at)
            at = len(wgsl) if end < 0 else end
        else:
            out.append(wgsl[at] if not depth or wgsl[at] == "\n" else " ")
            at += 1
    return "".join(out)


class Reader:
    """Walks over tokens. Every method raises ``ArgumentError`` with the line where what it wants is not there."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def more(self) -> bool:
        return self.at < len(self.tokens)

    @property
    def text(self) -> str:
        return self.tokens[self.at].text if self.more else ""

    def take(self, want: str = "") -> Token:
        if not self.more or (want and self.text != want):
            line = self.tokens[min(self.at, len(self.tokens) - 1)].line if self.tokens else 1
            raise ArgumentError("wgsl", f"{self.text or 'the end'!r} in line {line}", repr(want) if want else "more text")
        self.at += 1
        return self.tokens[self.at - 1]

    def group(self, opening: str) -> tuple[Token, ...]:
        """What stands between the bracket here and the one that closes it."""
        self.take(opening)
        start, depth = self.at, 1
        while depth:
            text = self.take().text
            depth += (text == opening) - (text == _CLOSING[opening])
        return self.tokens[start : self.at - 1]

    def until(self, *ends: str) -> tuple[Token, ...]:
        """The tokens before the first of ``ends`` outside brackets; ``;`` is taken too, ``{`` is not."""
        start, depth = self.at, 0
        while depth or self.text not in ends:
            text = self.take().text
            depth += (text in "([{") - (text in ")]}")
        found = self.tokens[start : self.at]
        if self.text == ";":
            self.at += 1
        return found

    def template(self) -> tuple[Token, ...]:
        """What stands in the template list here, if there is one."""
        if self.text != "<":
            return ()
        start, depth = self.at + 1, 0
        while True:
            text = self.take().text
            depth += (text == "<") - (text == ">")
            if not depth:
                return self.tokens[start : self.at - 1]

    def attributes(self) -> dict[str, tuple[Token, ...]]:
        found = {}
        while self.text == "@":
            self.take()
            name = self.take().text
            found[name] = self.group("(") if self.text == "(" else ()
        return found
