"""Drivers and devices for the tests.

Dawn refuses some versions of Mesa's llvmpipe, so SwiftShader, where chromium has brought it, is added to the drivers that
the Vulkan loader finds by itself. This must happen before the process first uses Vulkan. A GPU stays visible and is then
what the tests run on; a list of the user's own in VK_DRIVER_FILES has precedence over all of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
if SWIFTSHADER.exists():
    os.environ.setdefault("VK_ADD_DRIVER_FILES", str(SWIFTSHADER))
os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # EGL complains without it
os.environ["WGSL_ATTENTION_TUNING"] = ""  # what is chosen must not depend on who has tuned what on this machine

from wgsl_attention.errors import DeviceError  # noqa: E402
from wgsl_attention.gpu.backends import BACKENDS, adapters  # noqa: E402
from wgsl_attention.gpu.device import Device, open_device  # noqa: E402


def skip_without(backend: str) -> None:
    """Skips the test where the backend is not installed or has no adapter; nothing else is a reason to skip."""
    try:
        found = adapters(backend)
    except DeviceError as error:
        pytest.skip(str(error))
    if not found:
        pytest.skip(f"{backend} finds no adapter")


@pytest.fixture(scope="session", params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The best device of each backend, shared by the session: a test that loses or closes one opens its own."""
    skip_without(request.param)
    with open_device(request.param) as opened:
        yield opened


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that has an adapter, for tests that open devices themselves."""
    skip_without(request.param)
    return str(request.param)
