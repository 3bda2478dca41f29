"""Asks a compiler about a text of WGSL: naga on the adapter that is there, Tint on Dawn's null adapter, which needs none."""

from __future__ import annotations

import functools

import pytest
from wgsl_attention.errors import DeviceError
from wgsl_attention.gpu import backends
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.profile import DeviceProfile
from wgsl_attention.validation.toolchains import BACKENDS, COMPILERS

__all__ = ["COMPILERS", "device", "verdict"]


def verdict(compiler: str, wgsl: str, *, extensions: tuple[str, ...] = ()) -> str:
    """Empty where the compiler accepts the text, with a pipeline of its entry point ``main``; else what it says."""
    opened = device(compiler)
    code = backends.shader_text(opened.backend, wgsl, extensions)
    try:
        module = opened.raw.create_shader_module(label="test", code=code)
        opened.raw.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    except backends.errors_of(opened.backend) as error:
        return str(error)
    return ""


@functools.cache
def device(compiler: str) -> Device:
    """A device under WebGPU's default limits with every feature that its adapter has; skips the test without one."""
    backend = BACKENDS[compiler]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in backends.NULL_ADAPTER.items() if compiler == "tint" else ():
            patch.setenv(name, value)
        try:
            features = backends.choose(backend).profile.features & frozenset(backends.FEATURES)
            return open_device(backend, emulate=DeviceProfile(name="default limits", features=features), unchecked=False)
        except DeviceError as error:
            pytest.skip(str(error))
