"""Tuning tables: what was measured to be the fastest choice for problems like this one on a device like this one.

A table is JSON: ``{"schema": 1, "rows": [...]}``. A row names a device, a ``Key`` (what must match, and what may be near),
the choice with its time, the runner-up with its time, and what they were measured with. Look-up falls back from the very
device to its architecture, its vendor and rows for any device. Files: the package's own (``tuned/*.json``) and the user's
(``user_table``). Reading never needs a GPU.

The rule for lengths between measured ones. A row's key has the mask's kind, head dims, group, softcap and ALiBi, which
must be the problem's, and the *sizes* q_len, kv_len, slots (batch·heads) and, for windows, the keys of a window, each
rounded to the nearest power of two (in log2, so 1448 goes to 1024 and 1449 to 2048). A row counts for a problem if each of
the problem's own sizes is within a factor of ``REACH`` of the row's; of those that count, the one with the least sum of
|log2| distances is the nearest. What only a small kernel reads (given, kv_lengths, guard, accumulate) is no part of the key,
nor are strides, which cost next to nothing (1 to 3 % on an H200); a row whose kernels cannot take a problem's is passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ..algorithms.choice import Choice
from ..errors import TuningError, VariantError
from ..problem.problem import Problem
from ..profile import DeviceProfile

SCHEMA = 1
REACH = 4
"""A row serves sizes up to so many times its own, and down to that part of them."""
Level = Literal["device", "architecture", "vendor", "default"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What of a problem decides which choice is the fastest. ``sizes`` are powers of two; see the module's docstring.

    The other columns are attributes of ``Problem`` (``mask`` is ``Interval.kind``). One that comes later has a default, the
    value that all problems had until then, so that older tables stay readable.
    """

    mask: str
    head_dim: int
    v_head_dim: int
    group: int
    softcap: bool = False
    alibi: bool = False
    dtype: str = "f32"
    computes: str = "backward"
    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, problem: Problem) -> Key:
        exact = exact_sizes(problem)
        return cls(**_fixed(problem), sizes=tuple((name, 1 << round(math.log2(size))) for name, size in exact.items()))

    def distance(self, problem: Problem) -> float | None:
        """The sum of the sizes' distances in log2; None where something differs that must match, or is out of reach."""
        exact = exact_sizes(problem)
        if _fixed(problem) != {name: getattr(self, name) for name in _columns()} or not exact.keys() >= {
            n for n, _ in self.sizes
        }:
            return None
        distances = [abs(math.log2(exact[name]) - math.log2(size)) for name, size in self.sizes]
        return sum(distances) if max(distances, default=0.0) <= math.log2(REACH) else None

    def as_json(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in _columns()}, "sizes": dict(self.sizes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Key:
        sizes = tuple((str(name), int(size)) for name, size in data["sizes"].items())
        if any(size < 1 for _, size in sizes):
            raise ValueError(f"sizes of {dict(sizes)}")
        if unknown := data.keys() - {*_columns(), "sizes"}:  # of a later version: what it tells apart is not known here
            raise ValueError(f"columns {', '.join(sorted(unknown))}")
        return cls(**{name: data[name] for name in _columns() if name in data}, sizes=sizes)

    def __str__(self) -> str:
        dims = f"{self.head_dim}" if self.head_dim == self.v_head_dim else f"{self.head_dim} and {self.v_head_dim}"
        more = f"{', softcap' if self.softcap else ''}{', alibi' if self.alibi else ''}"
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes)
        return f"{self.mask}, head_dim {dims}, group {self.group}{more}; {sizes}"


def _fixed(problem: Problem) -> dict[str, Any]:
    """What must match: a key's columns but the sizes."""
    return {name: getattr(problem, name) for name in _columns() if name != "mask"} | {"mask": problem.interval.kind}


def _columns() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Key) if field.name != "sizes")


def exact_sizes(problem: Problem) -> dict[str, int]:
    """The sizes that a key rounds: q_len, kv_len, slots and, with a window, the keys that a query sees at most."""
    sizes = {"q_len": problem.q_len, "kv_len": problem.kv_len, "slots": problem.batch * problem.heads}
    width = problem.interval.width(problem.kv_len)
    return sizes if width is None else {**sizes, "window": width}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement that counts. Times are seconds of one backward pass of ``problem`` (in words), medians.

    ``device`` is ``DeviceProfile.identity``; empty words serve any. ``default_seconds`` is what selection takes without a
    table, in the same run. ``measured`` says with what: package, backend, driver, date (UTC, ISO 8601), and ``unchecked``,
    whether kernels ran without the compiler's bounds checks. ``choice`` and ``runner_up`` are as ``Choice.as_json``.
    """

    device: str
    vendor: str
    architecture: str
    backend: str
    key: Key
    problem: str
    choice: Mapping[str, Any]
    seconds: float
    default_seconds: float
    runner_up: Mapping[str, Any] | None = None
    runner_up_seconds: float | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def date(self) -> str:
        return str(self.measured.get("date", ""))

    @property
    def identity(self) -> tuple[str, str, Key]:
        """Of two rows with the same identity a table keeps one."""
        return self.device, self.backend, self.key

    def level(self, profile: DeviceProfile) -> Level | None:
        """How closely the row's device is this one; None where it says nothing about it."""
        if self.backend and self.backend != profile.backend:
            return None
        if not self.vendor and not self.device:
            return "default"
        if self.device == profile.identity:
            return "device"
        if not self.vendor or self.vendor != profile.vendor:
            return None
        same = bool(self.architecture) and self.architecture == profile.architecture
        return "architecture" if same else "vendor"

    def as_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**plain, "key": self.key.as_json(), "measured": dict(self.measured)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything but a row."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        row = cls(**{**known, "key": Key.from_json(data["key"])})
        numbers = (row.seconds, row.default_seconds, row.runner_up_seconds or 0.0)
        if not all(isinstance(x, (int, float)) and math.isfinite(x) and x >= 0 for x in numbers):
            raise ValueError(f"times of {numbers}")
        if not isinstance(row.choice, Mapping) or not isinstance(row.measured, Mapping):
            raise TypeError("choice and measured are objects")
        return row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Rows, in the order of their files; ``faults`` say what could not be read. Tables are equal only to themselves, so that
    selection can remember what it made of one."""

    rows: tuple[Row, ...] = ()
    faults: tuple[str, ...] = ()

    def lookup(self, problem: Problem, profile: DeviceProfile) -> Iterator[tuple[Row, Level]]:
        """The rows that say something about this problem on this device, the most telling first.

        Closer levels first, then nearer sizes, then the order of the rows.
        """
        found = []
        for place, row in enumerate(self.rows):
            level = row.level(profile)
            distance = row.key.distance(problem) if level else None
            if level and distance is not None:
                found.append((LEVELS.index(level), distance, place, row))
        for rank, _, _, row in sorted(found, key=lambda entry: entry[:3]):
            yield row, LEVELS[rank]


EMPTY = Table()
"""No rows: what selection takes by itself."""


def merge(tables: Iterable[Table]) -> Table:
    """One row for each device, backend and key.

    Where two tables have one, the newer measurement wins, since drivers and kernels change; but of two that were measured
    at the very same problem with the same package and driver (and checks), the faster.
    """
    kept: dict[tuple[str, str, Key], Row] = {}
    faults: dict[str, None] = {}
    for table in tables:
        faults.update(dict.fromkeys(table.faults))
        for row in table.rows:
            other = kept.get(row.identity)
            if other is None or _wins(row, other):
                kept[row.identity] = row
    rows = sorted(kept.values(), key=lambda row: (row.device, str(row.key)))
    return Table(rows=tuple(rows), faults=tuple(faults))


def _wins(row: Row, other: Row) -> bool:
    def setting(r: Row) -> tuple[Any, ...]:
        return (r.problem, *(r.measured.get(name) for name in ("package", "driver", "unchecked")))

    return row.seconds < other.seconds if setting(row) == setting(other) else row.date >= other.date


def parse(text: str, name: str) -> Table:
    """A table from its text; ``name`` is for messages. A row that is not one is left out, and is a fault.

    Raises ``TuningError`` where the text is no table at all, or one of another schema.
    """
    try:
        data = json.loads(text)
        schema, found = data["schema"], data["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise TuningError(f"{name} is not a tuning table ({type(error).__name__}: {error})") from None
    if schema != SCHEMA or not isinstance(found, list):
        raise TuningError(f"{name} has schema {schema!r}; this package reads {SCHEMA}")
    rows, faults = [], []
    for number, entry in enumerate(found):
        try:
            rows.append(Row.from_json(entry))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            faults.append(f"row {number} of {name} is not a row ({type(error).__name__}: {error})")
    return Table(rows=tuple(rows), faults=tuple(faults))


def load(path: Path | str) -> Table:
    """The table in a file. Raises ``TuningError`` where it is missing, unreadable or no table."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return parse(text, str(path))


def save(table: Table, path: Path | str) -> None:
    """Writes a table in one step: whoever reads the file, whenever, finds the old one or the new one. Raises ``TuningError``."""
    target = Path(path)
    rows = [row.as_json() for row in table.rows]
    text = json.dumps({"schema": SCHEMA, "rows": rows}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise TuningError(f"{target} cannot be written ({error.strerror or error})") from None


def restore(row: Row, problem: Problem, guard: str = "zero", *, checked_in: Iterable[str] | None = None) -> Choice:
    """The row's choice, made to suit a problem. Raises ``VariantError`` that says why the row does not hold (any more).

    ``checked_in`` names the kernels that may run without bounds checks: a row that was measured so holds for those only.
    """
    choice = Choice.from_json(row.choice)
    if row.measured.get("unchecked") and checked_in is not None:
        known = set(checked_in)
        forms = (choice, choice.of.for_any_problem(choice))
        fitting = [form for form in forms if known.issuperset(variant.name for variant in form.kernels)]
        if not fitting:
            strange = next(variant.name for variant in choice.kernels if variant.name not in known)
            raise VariantError(strange, "it was timed without bounds checks, but is not checked in and would run with them")
        choice = fitting[0]
    return choice.suited(problem, guard)
