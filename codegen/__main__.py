"""The command line: ``wgsl-attention``, or ``python -m wgsl_attention``.

Exit status 0: all is well; 1: something was found wanting (and what, on stderr or in the report); 2: wrong use.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence

from . import __version__
from .cli.commands import COMMANDS
from .errors import ArgumentError, VariantError, WgslAttentionError

PROG = "wgsl-attention"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status; ``argv`` defaults to the process's arguments."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # EGL, which wgpu asks too, complains without it
    try:
        parser = _parser(arguments)
        args = parser.parse_args(arguments)
    except SystemExit as done:  # argparse has printed the help, or what is wrong
        return int(done.code or 0)
    if args.command is None:
        parser.print_help()
        return 2
    command = next(command for command in COMMANDS if command.name == args.command)
    try:
        status = command.run(args)
        sys.stdout.flush()
        return status
    except WgslAttentionError as error:
        print(f"{PROG} {command.name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, (ArgumentError, VariantError)) else 1
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="WGSL kernels for the backward pass of attention: generate them, look at them, prove them on your GPU.",
        epilog="Exit status: 0 all is well, 1 something was found wanting, 2 wrong use.",
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if command.name == asked:  # the others' arguments may take an import that is not needed
            command.add_arguments(sub)
            sub.description = _wrapped(sub.description or f"{command.summary[0].upper()}{command.summary[1:]}.")
    return parser


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 100)


if __name__ == "__main__":
    sys.exit(main())
