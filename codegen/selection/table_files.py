"""Which tuning tables are in force: the user's file, then those that the package ships. Read once, and again when changed."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from importlib.resources import files
from pathlib import Path

from ..errors import TuningError
from ..kernels import families
from .tables import EMPTY, Table, load, parse

VARIABLE = "WGSL_ATTENTION_TUNING"
"""Names the user's table; set but empty, no table is used at all, the shipped ones neither."""

_lock = threading.Lock()
_state: tuple[object, Table] = (None, EMPTY)


def user_table() -> Path | None:
    """The user's own table: ``WGSL_ATTENTION_TUNING``, or tuned.json in the platform's config directory; None where it is off."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return _config_table()
    return Path(named) if named else None


@functools.cache
def _config_table() -> Path:
    import platformdirs

    return Path(platformdirs.user_config_dir("wgsl-attention", appauthor=False)) / "tuned.json"


@functools.cache
def shipped() -> Table:
    """The tables in the package's folder tuned/, in the order of their names."""
    found = []
    folder = files("wgsl_attention.selection").joinpath("tuned")
    if folder.is_dir():
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".json"):
                found.append(parse(entry.read_text(encoding="utf-8"), entry.name))
    return Table(rows=tuple(row for table in found for row in table.rows), faults=tuple(f for t in found for f in t.faults))


def default_table() -> Table:
    """The rows in force, the user's before the package's. The same object for as long as nothing changes.

    Costs a look at the file's time and size, some microseconds. A user's file that is no table counts as empty, with a
    warning once.
    """
    global _state
    path = user_table()
    if path is None:
        return EMPTY
    try:
        stat = os.stat(path)
        stamp: object = (path, stat.st_mtime_ns, stat.st_size, stat.st_ino, len(families.added()))
    except OSError:
        stamp = (path, len(families.added()))
    seen, table = _state
    if seen == stamp:
        return table
    with _lock:
        seen, table = _state
        if seen != stamp:
            table = _combined(path)
            _state = (stamp, table)
    return table


def _combined(path: Path) -> Table:
    ours = shipped()
    if not path.exists():
        return ours
    try:
        own = load(path)
    except TuningError as error:
        warnings.warn(f"no tuning: {error}", stacklevel=4)
        own = Table(faults=(str(error),))
    return Table(rows=own.rows + ours.rows, faults=own.faults + ours.faults)
