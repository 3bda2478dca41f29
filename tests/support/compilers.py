"""Asks each compiler that is there about a text of WGSL: naga and Tint through their Python packages, Tint through Node."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from wgsl_attention.errors import DeviceError
from wgsl_attention.gpu import backends
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.validation import toolchains
from wgsl_attention.validation.toolchains import WorkerProcess

COMPILERS = ("naga", "tint", "tint-null")


def verdict(compiler: str, wgsl: str, *, extensions: tuple[str, ...] = (), pipeline: bool = True) -> str:
    """Empty where the compiler accepts the text (with a pipeline of its entry point ``main``), else what it says."""
    if compiler == "tint-null":
        return _node(wgsl, extensions, pipeline)
    opened = device(compiler)
    code = backends.shader_text(opened.backend, wgsl, extensions)
    try:
        module = opened.raw.create_shader_module(label="test", code=code)
        if pipeline:
            opened.raw.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    except backends.errors_of(opened.backend) as error:
        return str(error)
    return ""


@functools.cache
def device(compiler: str) -> Device:
    """A device under WebGPU's default limits with every feature that its adapter has; skips the test without one."""
    backend = toolchains.BACKENDS[compiler]
    try:
        found = backends.choose(backend)
        from wgsl_attention.profile import DeviceProfile

        features = found.profile.features & frozenset(backends.FEATURES)
        return open_device(backend, emulate=DeviceProfile(name="default limits", features=features), trusted=False)
    except DeviceError as error:
        pytest.skip(str(error))


@functools.cache
def node_worker() -> WorkerProcess:
    """Tint without a driver; skips the test without Node or its package."""
    (column,) = toolchains.columns(["tint"], ["none"])
    if column.missing:
        pytest.skip(f"Tint without a driver is not there: {column.missing}")
    return WorkerProcess(column)


def _node(wgsl: str, extensions: tuple[str, ...], pipeline: bool) -> str:
    variant: dict[str, Any] = {
        "name": "test",
        "wgsl": wgsl,
        "extensions": list(extensions),
        "bindings": [],
        "workgroup_size": [1, 1, 1],
        "workgroup_bytes": 0,
        "entry_point": "main",
        "layout": "auto",
        "module_only": not pipeline,
    }
    answer = node_worker().ask({"op": "compile", "variant": variant}, 30)
    return "" if answer["ok"] else str(answer["message"])
