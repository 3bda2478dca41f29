"""The command line: ``wgsl-attention``, or ``python -m wgsl_attention``. The verbs are the modules of ``cli``.

Exit status 0: all is well; 1: something was found wanting (and what, on stderr or in the report); 2: wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from . import __version__, cli
from .errors import ArgumentError, VariantError, WgslAttentionError

PROG = "wgsl-attention"
MAX_WIDTH = 100
"""Columns of the help, where the terminal has more."""


class _Help(argparse.HelpFormatter):
    """Wraps each line of a description by itself, as a paragraph; a line that is indented, an example, stays as it is."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(MAX_WIDTH, shutil.get_terminal_size().columns) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrap = textwrap.TextWrapper(width, initial_indent=indent, subsequent_indent=indent).fill
        return "\n".join(f"{indent}{line}" if line.startswith(" ") else wrap(line) for line in text.splitlines())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """In the form of every other error; argparse's own prints the whole usage first."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\nSee {self.prog} --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status; ``argv`` defaults to the process's arguments."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # EGL, which wgpu asks too, complains without it
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that lacks × or √ gets ? for it
    try:
        if not arguments or arguments[0] not in cli.COMMANDS:
            return _overview(arguments)
        command = cli.load(arguments[0])
        parser = _Parser(prog=f"{PROG} {arguments[0]}", description=_sentence(command.SUMMARY), formatter_class=_Help)
        command.add_arguments(parser)
        args = parser.parse_args(arguments[1:])
    except SystemExit as done:  # argparse has printed the help, or what is wrong
        return int(done.code or 0)
    try:
        status = command.run(args)
        sys.stdout.flush()
        return status
    except WgslAttentionError as error:
        print(f"{parser.prog}: {_told(error, args)}", file=sys.stderr)
        return 2 if isinstance(error, (ArgumentError, VariantError)) else 1
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def _overview(arguments: Sequence[str]) -> int:
    """The help that lists the commands, the version, or what is wrong with something else."""
    width = max(map(len, cli.COMMANDS))
    summaries = (f"  {name:<{width}}  {cli.load(name).SUMMARY}" for name in cli.COMMANDS)
    parser = _Parser(
        prog=PROG,
        usage=f"{PROG} [-h] [--version] COMMAND ...",
        description="WGSL kernels for the backward pass of attention: generate them, look at them, prove them on your GPU.",
        epilog="\n".join(
            (
                "commands:",
                *summaries,
                "",
                f"{PROG} COMMAND --help says more about one of them.",
                "Exit status: 0 all is well, 1 something was found wanting, 2 wrong use.",
            )
        ),
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument("command", nargs="?", choices=cli.COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.parse_args(arguments)
    parser.print_help()
    return 2


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _told(error: WgslAttentionError, args: argparse.Namespace) -> str:
    """The message; an argument of the package's is called what the command line calls it, where it came from there."""
    if isinstance(error, ArgumentError) and getattr(args, error.argument, None) is not None:
        return f"--{error.argument.replace('_', '-')}{str(error).removeprefix(error.argument)}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
