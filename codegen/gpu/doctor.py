"""What is there and what is missing: a report on backends, adapters and profiles, as plain data for others to print."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Any

from ..errors import DeviceError
from ..profile import PROFILES
from .backends import DRIVER_ADVICE, FEATURES, GIVES, INSTALL, PACKAGES, AdapterInfo, adapters, load

# Features whose absence costs something; no kernel wants the others yet.
_FOR_WHAT = {"timestamp-query": "bench and tune take times from the wall clock"}


def doctor() -> dict[str, Any]:
    """``{"backends": [...], "advice": [...]}``, of lists, dicts, strings, numbers, booleans and None only; never raises.

    A backend has name, package, installed, version, error (why it does not work, or None) and adapters. An adapter has
    description, kind, graphics, software, driver, ``limits`` (WebGPU's names in snake case), ``features`` (those that the
    package uses), and ``fits``: the built-in profiles that it can serve.
    """
    reports = [_backend(name) for name in PACKAGES]
    return {"backends": reports, "advice": _advice(reports)}


def _backend(name: str) -> dict[str, Any]:
    report: dict[str, Any] = {"name": name, "package": PACKAGES[name], "installed": False, "version": None, "error": None}
    report["adapters"] = []
    try:
        load(name)
        report["installed"] = True
        report["version"] = importlib.metadata.version(PACKAGES[name])
        report["adapters"] = [_adapter(adapter) for adapter in adapters(name)]
    except importlib.metadata.PackageNotFoundError:  # imported from somewhere else than an installation
        report["adapters"] = [_adapter(adapter) for adapter in adapters(name)]
    except DeviceError as error:
        report["error"] = str(error)
    return report


def _adapter(adapter: AdapterInfo) -> dict[str, Any]:
    profile = adapter.profile
    return {
        "description": adapter.description,
        "kind": adapter.kind,
        "graphics": adapter.graphics,
        "software": profile.software,
        "driver": profile.driver,
        "limits": dataclasses.asdict(profile.limits),
        "features": [feature for feature in FEATURES if feature in profile.features],
        "fits": [name for name, builtin in PROFILES.items() if not profile.lacks(builtin)],
    }


def _advice(reports: list[dict[str, Any]]) -> list[str]:
    lines = []
    for report in reports:
        name, found = report["name"], report["adapters"]
        if not report["installed"]:
            lines.append(f"{report['error'] or name}  ({GIVES[name]})")
        elif report["error"]:
            lines.append(f"{report['error']}; reinstalling may help: {INSTALL[name]}")
        elif not found:
            lines.append(f"{name} finds no adapter: {DRIVER_ADVICE}")
        elif all(adapter["software"] for adapter in found):
            lines.append(f"{name} finds software adapters only, which are right and slow: install the GPU's Vulkan driver")
        if found:
            seen = {feature for adapter in found for feature in adapter["features"]}
            lines += [
                f"no adapter of {name} has {feature}: {what}" for feature, what in _FOR_WHAT.items() if feature not in seen
            ]
    return lines
