"""The package's exceptions. Each names the argument or the rule that failed, what was got and what would be right."""

from __future__ import annotations

from collections.abc import Sequence


class WgslAttentionError(Exception):
    """Base of every error that this package raises on purpose."""


class ArgumentError(WgslAttentionError, ValueError):
    """An argument that cannot be right whatever the device.

    ``argument`` is its name; the message says what was got and what would be right.
    """

    def __init__(self, argument: str, got: object, want: str) -> None:
        super().__init__(f"{argument}: got {got}; want {want}")
        self.argument = argument


class VariantError(WgslAttentionError, ValueError):
    """A combination of template parameters that a rule of its kernel refuses. ``rule`` is the rule's message."""

    def __init__(self, kernel: str, rule: str) -> None:
        super().__init__(f"{kernel}: {rule}")
        self.kernel = kernel
        self.rule = rule


class UnservedProblemError(WgslAttentionError, RuntimeError):
    """No algorithm serves this problem on this device. ``reasons`` holds one line for each that was refused."""

    def __init__(self, problem: object, device: str, reasons: Sequence[str]) -> None:
        lines = "\n".join(f"  - {reason}" for reason in reasons)
        super().__init__(f"nothing serves {problem} on {device}:\n{lines}")
        self.reasons = tuple(reasons)


class DeviceError(WgslAttentionError, RuntimeError):
    """No adapter, a missing package or driver, a lost device, or a shader that the device's compiler refused."""


class GpuBufferError(WgslAttentionError, ValueError):
    """A caller's GPU buffer that is missing, too small, misaligned, or without the usage that the plan needs."""

    def __init__(self, name: str, got: object, want: str) -> None:
        super().__init__(f"buffer {name!r}: got {got}; want {want}")
        self.name = name


class ManifestError(WgslAttentionError, RuntimeError):
    """``generated/`` is missing a file, or disagrees with the package."""


class TuningError(WgslAttentionError, ValueError):
    """A tuning table that cannot be read or written, or that is none."""
