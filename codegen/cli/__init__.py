"""The command line: a module for each verb, named like it, and beside them how they print.

A verb's module has ``SUMMARY``, a line for the overview; ``add_arguments(parser)``; and ``run(args)``, which returns the exit
status: 0, or 1 where something was found wanting. Wrong use is an ``ArgumentError``. It is imported when it is asked for;
the overview imports them all, so what is slow to import (a GPU, templates, pictures) is imported where it is used.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

COMMANDS = ("generate", "validate", "list", "show", "explain", "gradcheck", "tune", "bench", "doctor")
"""The verbs, in the order of the overview."""


class Command(Protocol):
    """What the module of a verb has."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def load(name: str) -> Command:
    """The module of one verb."""
    return cast(Command, importlib.import_module(f".{name}", __package__))
