"""Which compilers and drivers this machine has for validate, and the worker processes that put them to work.

A *column* is one compiler on one driver. Whether a column works is only known once its worker has answered; what is missing
is said with the package that would bring it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..errors import ArgumentError, DeviceError
from ..gpu.backends import NULL_ADAPTER

COMPILERS = ("naga", "tint")
DRIVERS = ("gpu", "llvmpipe", "swiftshader", "none")
BACKENDS = {"naga": "wgpu", "tint": "dawn"}
LIMITS = ("default", "adapter")
"""WebGPU's default limits, or for what needs more the smallest built-in profile that holds it; or the adapter's own for all."""
INSTALL_DRIVER = {
    "llvmpipe": "apt install mesa-vulkan-drivers libvulkan1",
    "swiftshader": "apt install chromium, which carries vk_swiftshader_icd.json, or name that file in WGSL_ATTENTION_SWIFTSHADER",
}
_ICD_FOLDERS = {
    "llvmpipe": (
        "/usr/share/vulkan/icd.d",
        "/usr/local/share/vulkan/icd.d",
        "/etc/vulkan/icd.d",
        "/opt/homebrew/share/vulkan/icd.d",
    ),
    "swiftshader": (
        "/usr/lib/chromium",
        "/usr/lib64/chromium-browser",
        "/usr/lib/chromium-browser",
        "/usr/lib64/chromium",
        "/snap/chromium/current/usr/lib/chromium-browser",
        "/opt/google/chrome",
        "/opt/microsoft/msedge",
        "/usr/share/vulkan/icd.d",
    ),
}
_ICD_PATTERNS = {"llvmpipe": "lvp_icd*.json", "swiftshader": "vk_swiftshader_icd.json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One compiler on one driver; ``missing`` says what to install where it is known not to be there."""

    compiler: str
    driver: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""

    @property
    def name(self) -> str:
        return f"{self.compiler}, no driver" if self.driver == "none" else f"{self.compiler} on {self.driver}"

    @property
    def executes(self) -> bool:
        return self.driver != "none"

    @property
    def slow(self) -> bool:
        """Executes so slowly that problems are kept brief."""
        return self.driver == "swiftshader"


def columns(
    compilers: Iterable[str] = (),
    drivers: Iterable[str] = (),
    limits: str = "default",
) -> list[Column]:
    """Every column that these compilers and drivers make (all of them by default), those that are missing included.

    ``limits`` is one of ``LIMITS``. Raises ``ArgumentError`` for a compiler, driver or limits that there are not.
    """
    compilers, drivers = tuple(compilers) or COMPILERS, tuple(drivers) or DRIVERS
    for argument, given, known in (("compiler", compilers, COMPILERS), ("driver", drivers, DRIVERS)):
        for name in given:
            if name not in known:
                raise ArgumentError(argument, repr(name), f"one of {', '.join(known)}")
    if limits not in LIMITS:
        raise ArgumentError("limits", repr(limits), f"one of {', '.join(LIMITS)}")
    pairs = [(compiler, driver) for driver in DRIVERS for compiler in COMPILERS if (compiler, driver) != ("naga", "none")]
    return [_column(compiler, driver, limits) for compiler, driver in pairs if compiler in compilers and driver in drivers]


def _column(compiler: str, driver: str, limits: str) -> Column:
    worker = (sys.executable, "-m", "wgsl_attention.validation.worker", BACKENDS[compiler])
    if driver == "gpu":
        return Column(compiler=compiler, driver=driver, command=(*worker, "", limits))
    if driver == "none":
        return Column(compiler=compiler, driver=driver, command=(*worker, "null", limits), environment=NULL_ADAPTER)
    icd = find_icd(driver)
    if icd is None:
        return Column(compiler=compiler, driver=driver, missing=INSTALL_DRIVER[driver])
    environment = {"VK_DRIVER_FILES": str(icd), "VK_ICD_FILENAMES": str(icd), "VK_ADD_DRIVER_FILES": ""}
    return Column(compiler=compiler, driver=driver, command=(*worker, driver, limits), environment=environment)


def find_icd(driver: str) -> Path | None:
    """The driver's ICD file: named by the environment's WGSL_ATTENTION_<DRIVER>, or in the usual folders."""
    named = os.environ.get(f"WGSL_ATTENTION_{driver.upper()}")
    if named:
        return Path(named) if Path(named).exists() else None
    folders = [Path(folder) for folder in _ICD_FOLDERS[driver]]
    folders += [Path(p) / "vulkan" / "icd.d" for p in os.environ.get("XDG_DATA_DIRS", "").split(":") if p]
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob(_ICD_PATTERNS[driver]))]
    # Mesa names the file after the machine's architecture where several are installed side by side.
    machine = os.uname().machine if hasattr(os, "uname") else ""
    return next((path for path in found if machine and machine in path.name), found[0] if found else None)


class WorkerEndedError(DeviceError):
    """A worker process that ended or was stopped before it answered; ``hung`` says which."""

    def __init__(self, message: str, hung: bool) -> None:
        super().__init__(message)
        self.hung = hung


class WorkerProcess:
    """A column's process. ``ask`` sends one request and waits for its answer; a process that does not answer is stopped."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.asked = 0
        environment = {**os.environ, "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())}
        environment |= column.environment
        # It lives as long as the process does: close() is where it ends.
        self._errors: IO[str] = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            column.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed while reading
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Raises ``WorkerEndedError`` for a crash, and after ``timeout`` seconds without an answer."""
        self.asked += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise WorkerEndedError(f"no answer in {timeout:.0f} s", hung=True) from None
        except OSError:
            line = ""
        if not line:
            raise WorkerEndedError(self._last_words(), hung=False)
        return dict(json.loads(line))

    def _last_words(self) -> str:
        self.close()
        code = self._process.returncode
        how = f"signal {-code}" if code and code < 0 else f"exit status {code}"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return f"the process ended with {how}{': ' if lines else ''}{lines[-1] if lines else ''}"

    def close(self) -> None:
        """Ends the process. May be called twice."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
