"""What tuning measured: ``Measurement``, and the journal that keeps each one from the moment it is made.

The journal is a file of one JSON object a line, appended to and forced to the disk before the next measurement begins. A
process that is killed leaves at most a torn last line, which readers pass over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import TuningError

MAX_ATTEMPTS = 2
"""A candidate that was begun so often, and never came back, is not begun again: it may have taken the process with it."""

Status = Literal["timed", "wrong", "failed", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One candidate at one problem, timed in turns with an incumbent; a list of them makes a ``pandas.DataFrame``.

    ``status`` is ``"timed"``, ``"wrong"`` (its gradients are, so it was not timed), ``"failed"`` (compiler or driver) or
    ``"refused"`` (it does not fit), with the ``reason``. ``seconds`` and ``incumbent_seconds`` are medians of ``rounds``
    passes each (on a processor the least), ``ratio`` is the one by the other, and ``score`` the time relative to the
    default's. ``label`` is for people, ``identity`` what the measurements of one candidate share. ``error`` is the largest
    error in its gradients as a multiple of the tolerance. ``params`` has every parameter as ``role.name``; ``choice`` is what
    a tuning table holds, None for a bare recipe. ``date`` is UTC, ISO 8601.
    """

    problem: str
    device: str
    driver: str
    package: str
    unchecked: bool
    stage: str
    algorithm: str
    label: str
    identity: str
    variants: tuple[str, ...]
    params: Mapping[str, Any]
    status: Status
    rounds: int = 0
    seconds: float | None = None
    incumbent: str = ""
    incumbent_seconds: float | None = None
    ratio: float | None = None
    score: float | None = None
    error: float | None = None
    reason: str = ""
    choice: Mapping[str, Any] | None = field(default=None, repr=False)
    date: str = ""

    @property
    def circumstances(self) -> dict[str, Any]:
        """What a tuning table's row keeps of how it was measured."""
        return {"date": self.date, "unchecked": self.unchecked}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Raises ``KeyError`` or ``TypeError`` for anything else."""
        known = {f.name: data[f.name] for f in dataclasses.fields(cls) if f.name in data}
        known.setdefault("identity", known["label"])  # a journal from before labels and identities were told apart
        return cls(**{**known, "variants": tuple(data["variants"])})


class Journal:
    """Measurements by fingerprint. With a ``path`` they are appended to that file; with ``resume`` what is there counts."""

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        """Raises ``TuningError`` where the file can be neither read nor written."""
        self.path = path
        self._known: dict[str, Measurement] = {}
        self._attempts: Counter[str] = Counter()
        self._file: Any = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for entry in _entries(path) if resume and path.exists() else ():
                self._learn(entry)
            self._file = open(path, "ab")  # noqa: SIM115  it stays open as long as the journal
            if self._file.tell() and not _ends_a_line(path):
                self._file.write(b"\n")  # after a line that a kill cut short
        except OSError as error:
            raise TuningError(f"{path} cannot be written ({error.strerror or error})") from None

    def __len__(self) -> int:
        return len(self._known)

    def find(self, fingerprint: str) -> Measurement | None:
        """The measurement that was made before, if one was."""
        return self._known.get(fingerprint)

    def gave_up(self, fingerprint: str) -> bool:
        """Whether the candidate was begun several times and never finished."""
        return self._attempts[fingerprint] >= MAX_ATTEMPTS

    def begin(self, fingerprint: str) -> None:
        self._append({"begun": fingerprint})

    def end(self, fingerprint: str, measurement: Measurement) -> None:
        self._known[fingerprint] = measurement
        self._append({"fingerprint": fingerprint, **dataclasses.asdict(measurement)})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise TuningError(f"{self.path} cannot be written ({error.strerror or error})") from None

    def _learn(self, entry: Mapping[str, Any]) -> None:
        if "begun" in entry:
            self._attempts[str(entry["begun"])] += 1
        else:
            with contextlib.suppress(KeyError, TypeError):  # of another version
                self._known[str(entry["fingerprint"])] = Measurement.from_json(entry)
                self._attempts[str(entry["fingerprint"])] = 0


def _entries(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:  # cut short
                continue
            if isinstance(entry, dict):
                yield entry


def read(path: Path) -> list[Measurement]:
    """The measurements in a journal's file, in order. Raises ``TuningError``."""
    found = []
    try:
        for entry in _entries(path):
            with contextlib.suppress(KeyError, TypeError):
                found.append(Measurement.from_json(entry))
    except OSError as error:
        raise TuningError(f"{path} cannot be read ({error.strerror or error})") from None
    return found


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
