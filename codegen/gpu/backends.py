"""The two WebGPU implementations underneath: "wgpu" (wgpu-native, whose compiler is naga) and "dawn" (wgpudawn, Tint).

Everything in which they differ is here: how they are imported and set up, what their adapters say, how a device is asked
for, which ``enable`` lines their compilers take, how a module is made without runtime checks, and how errors read.
Neither package is imported before one of these functions needs it, and a missing one is an error only for who names it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ArgumentError, DeviceError
from ..profile import DeviceProfile, Limits
from .buffers import COPY_SRC, QUERY_RESOLVE

BACKENDS = ("wgpu", "dawn")
"""In the order in which they are tried."""
NULL_ADAPTER = {"WGPU_BACKEND_TYPE": "Null"}
"""The environment in which Dawn gives its null adapter, as wgpudawn has it."""
PACKAGES = {"wgpu": "wgpu", "dawn": "wgpudawn"}
GIVES = {"wgpu": "it runs everything", "dawn": "optional: the second compiler of validate"}
"""What each is for, for who lacks it."""
INSTALL = {"wgpu": "pip install wgpu", "dawn": "pip install 'wgsl-attention[dawn]'"}
DRIVER_ADVICE = (
    "install the GPU's Vulkan driver, or on Debian the software driver: apt install mesa-vulkan-drivers libvulkan1 "
    "(where Dawn refuses that one, SwiftShader: apt install chromium, and name its vk_swiftshader_icd.json in VK_DRIVER_FILES)"
)

FEATURES = ("timestamp-query", "subgroups", "shader-f16", "chromium-experimental-subgroup-matrix")
"""What a device is asked for where its adapter has it."""

_NORMAL = {"subgroup": "subgroups"}
_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "microsoft basic render")
_KINDS = {"discretegpu": 0, "integratedgpu": 1, "cpu": 3}
_GRAPHICS = {"vulkan": 0, "metal": 0, "d3d12": 0}
# allow_unsafe_apis: subgroup matrices. vulkan_enable_f16_on_nvidia: f16, which Dawn holds back there.
_DAWN_ON = ("allow_unsafe_apis", "vulkan_enable_f16_on_nvidia")
# Dawn rounds timestamps to 65 µs otherwise.
_DAWN_OFF = ("timestamp_quantization",)
_dawn_lock = threading.Lock()
_dawn_is_set_up = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """One adapter of one backend.

    ``profile`` holds what it could give a device; ``description`` is what ``open_device(adapter=…)`` searches; ``kind`` is
    ``"DiscreteGPU"``, ``"IntegratedGPU"``, ``"CPU"`` or other; ``graphics`` the API below (``"Vulkan"``, ``"Metal"``, …).
    ``raw`` is the package's own object; Dawn's is used up by its first device.
    """

    profile: DeviceProfile
    description: str
    kind: str
    graphics: str
    raw: Any = field(compare=False, repr=False)


def load(backend: str) -> Any:
    """The backend's package, imported and set up. Raises ``DeviceError`` that says what to install."""
    if backend not in PACKAGES:
        raise ArgumentError("backend", repr(backend), " or ".join(map(repr, BACKENDS)))
    package = PACKAGES[backend]
    try:
        module = importlib.import_module(package)
        if module.__name__ != package:  # wgpudawn can stand in for wgpu, which would give us Dawn twice
            raise ImportError(f"{module.__name__} stands in for it in this process")
        if backend == "dawn":
            _set_up_dawn()
    except ModuleNotFoundError as error:
        if error.name != package:
            raise DeviceError(f"{backend}: the package {package} does not import: {error}") from error
        raise DeviceError(f"{backend}: the package {package} is not installed: {INSTALL[backend]}") from error
    except Exception as error:  # a native library that does not load raises what it likes
        raise DeviceError(f"{backend}: the package {package} does not import: {error}") from error
    return module


def _set_up_dawn() -> None:
    """Sets Dawn's toggles, once, before its first adapter."""
    global _dawn_is_set_up
    with _dawn_lock:
        if _dawn_is_set_up:
            return
        extras = importlib.import_module("wgpudawn.backends.dawn.extras")
        known = extras.all_toggles()
        # Where the caller has used wgpudawn already, its instance keeps the toggles that it has: fewer features, no fault.
        with contextlib.suppress(RuntimeError):
            extras.set_instance_extras(
                enable_toggles=[toggle for toggle in _DAWN_ON if toggle in known],
                disable_toggles=[toggle for toggle in _DAWN_OFF if toggle in known],
            )
        _dawn_is_set_up = True


def backend_of(raw: Any) -> str:
    """The backend that a device of the caller's belongs to. Raises ``ArgumentError``."""
    package = type(raw).__module__.partition(".")[0]
    for backend, name in PACKAGES.items():
        if name == package and hasattr(raw, "queue"):
            return backend
    raise ArgumentError("device", f"a {type(raw).__module__}.{type(raw).__qualname__}", "a GPUDevice of wgpu or wgpudawn")


def profile_of(backend: str, info: Mapping[str, Any], features: Iterable[str], limits: Mapping[str, int]) -> DeviceProfile:
    """An adapter's or a device's profile, from the ``info``, ``features`` and ``limits`` that both packages give."""
    vendor, architecture, device, driver = (
        str(info.get(key) or "").lower() for key in ("vendor", "architecture", "device", "description")
    )
    graphics = str(info.get("backend_type") or "").lower()
    software = str(info.get("adapter_type") or "").lower() == "cpu" or any(name in device for name in _SOFTWARE)
    return DeviceProfile(
        name=f"{device or vendor or 'device'} via {graphics or backend}",
        backend=backend,
        vendor=vendor,
        architecture=architecture,
        device=device,
        driver=driver,
        software=software,
        features=frozenset(_NORMAL.get(feature, feature) for feature in features),
        limits=Limits.from_webgpu(limits),
    )


def adapters(backend: str | None = None) -> list[AdapterInfo]:
    """Every adapter of every installed backend, or of one; made anew with each call.

    Dawn's null adapter, which needs no driver, compiles with Tint and executes nothing, is there only where the environment
    asks for it (``NULL_ADAPTER``), and then the only one of Dawn's. Raises ``DeviceError`` only where a backend is named and
    is not installed or does not work.
    """
    if backend is None:
        found = []
        for name in BACKENDS:
            try:
                found += adapters(name)
            except DeviceError:  # doctor() tells which, and why
                continue
        return found
    package = load(backend)
    try:
        null = backend == "dawn" and NULL_ADAPTER.items() <= os.environ.items()
        found = [package.gpu.request_adapter_sync()] if null else package.gpu.enumerate_adapters_sync()
        return [_describe(backend, raw) for raw in found]
    except Exception as error:
        raise DeviceError(f"{backend}: cannot list the adapters: {first_line(error)}") from error


def _describe(backend: str, raw: Any) -> AdapterInfo:
    info = raw.info
    kind, graphics = str(info.get("adapter_type") or "unknown"), str(info.get("backend_type") or "unknown")
    name = str(info.get("device") or info.get("vendor") or "unnamed adapter")
    return AdapterInfo(
        profile=profile_of(backend, info, raw.features, raw.limits),
        description=f"{name} ({kind}) via {graphics}",
        kind=kind,
        graphics=graphics,
        raw=raw,
    )


def preference(adapter: AdapterInfo) -> tuple[int, int, bool]:
    """Sorts the best adapter first. SwiftShader comes last, since it takes seconds where others take none to compile."""
    kind = 3 if adapter.profile.software else _KINDS.get(adapter.kind.lower(), 2)
    return kind, _GRAPHICS.get(adapter.graphics.lower(), 1), "swiftshader" in adapter.profile.device


def choose(backend: str | None = None, adapter: str | None = None) -> AdapterInfo:
    """The best adapter of the first backend that has one whose description holds ``adapter``. Raises ``DeviceError``."""
    reasons = []
    for name in BACKENDS if backend is None else (backend,):
        try:
            found = adapters(name)
        except DeviceError as error:
            reasons.append(str(error))
            continue
        matching = [a for a in found if adapter is None or adapter.lower() in a.description.lower()]
        if matching:
            return min(matching, key=preference)
        if found:
            there = "; ".join(a.description for a in found)
            reasons.append(f"{name}: no adapter's description holds {adapter!r}; there are: {there}")
        else:
            reasons.append(f"{name}: no adapter: {DRIVER_ADVICE}")
    raise DeviceError("no adapter to open:\n" + "\n".join(f"  - {reason}" for reason in reasons))


def request(adapter: AdapterInfo, features: Iterable[str], limits: Mapping[str, int], unchecked: bool = False) -> Any:
    """A device with these features (WebGPU's names) and limits. ``unchecked`` turns Dawn's robustness off for all of it."""
    # implicit-device-synchronization: without it, Dawn's objects belong to one thread at a time.
    wanted = {*features, "implicit-device-synchronization"}
    arguments: dict[str, Any] = {
        "label": "wgsl-attention",
        "required_features": sorted(name for name in adapter.raw.features if _NORMAL.get(name, name) in wanted),
        "required_limits": dict(limits),
    }
    try:
        if unchecked and adapter.profile.backend == "dawn":
            extras = importlib.import_module("wgpudawn.backends.dawn.extras")
            return extras.request_device_sync(adapter.raw, enable_toggles=["disable_robustness"], **arguments)
        return adapter.raw.request_device_sync(**arguments)
    except Exception as error:
        raise DeviceError(f"{adapter.description} ({adapter.profile.backend}) gives no device: {first_line(error)}") from error


def errors_of(backend: str) -> tuple[type[Exception], ...]:
    """What the package raises when the GPU or its compiler refuses."""
    package = load(backend)
    return package.GPUError, package.GPUPipelineError, RuntimeError


def shader_text(backend: str, wgsl: str, extensions: Iterable[str]) -> str:
    """The text with its ``enable`` directives, on its first line so that line numbers stay those of the file."""
    # naga has subgroups without the directive and refuses it, Tint wants it.
    names = [name for name in extensions if (backend, name) != ("wgpu", "subgroups")]
    return "".join(f"enable {name}; " for name in names) + wgsl


def create_module(backend: str, raw: Any, code: str, label: str, unchecked: bool = False) -> Any:
    """A shader module; ``unchecked`` leaves out wgpu-native's bounds checks and loop counters (elsewhere it says nothing)."""
    if not (unchecked and backend == "wgpu"):
        return raw.create_shader_module(label=label, code=code)
    # wgpu-py has no call for this; its private helpers are those that its own create_shader_module uses.
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    source = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(code))
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = api.lib.WGPUSType_ShaderSourceWGSL
    descriptor = api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=api.ffi.cast("WGPUChainedStruct *", source),
        label=api.to_c_string_view(label),
    )
    module = api.libf.wgpuDeviceCreateShaderModuleTrusted(raw._internal, descriptor, 0)
    return api.GPUShaderModule(label, module, raw)


def can_leave_out_checks() -> bool:
    """Whether this wgpu-py still has what ``create_module`` needs to leave the checks out."""
    try:
        api = importlib.import_module("wgpu.backends.wgpu_native._api")
    except ImportError:
        return False
    names = ("new_struct_p", "to_c_string_view", "ffi", "lib", "GPUShaderModule")
    return all(hasattr(api, name) for name in names) and hasattr(api.libf, "wgpuDeviceCreateShaderModuleTrusted")


def timed_pass(backend: str, raw: Any, record: Callable[[Any], None]) -> float | None:
    """Submits one compute pass that ``record`` fills; its seconds by the GPU's timestamps, None where those are no use."""
    queries = raw.create_query_set(type="timestamp", count=2)
    resolved = raw.create_buffer(size=16, usage=QUERY_RESOLVE | COPY_SRC)
    encoder = raw.create_command_encoder()
    stamps = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
    compute_pass = encoder.begin_compute_pass(timestamp_writes=stamps)
    record(compute_pass)
    compute_pass.end()
    encoder.resolve_query_set(queries, 0, 2, resolved, 0)
    raw.queue.submit([encoder.finish()])
    begin, end = struct.unpack("<2Q", bytes(raw.queue.read_buffer(resolved)))
    if not 0 < begin < end:  # some drivers give zeros, or clocks that step back
        return None
    tick = 1e-9
    if backend == "wgpu":  # Dawn resolves to WebGPU's nanoseconds, wgpu-native to the driver's own ticks
        api = importlib.import_module("wgpu.backends.wgpu_native._api")
        tick *= float(api.libf.wgpuQueueGetTimestampPeriod(raw.queue._internal)) or 1.0
    return float((end - begin) * tick)


def is_loss(error: object) -> bool:
    """Whether a package's error says that the device is lost."""
    return "is lost" in str(error) or "device lost" in str(error).lower()


def first_line(error: object) -> str:
    """The line of a package's error that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Validation Error", "Caused by", "In wgpu"))]
    return (telling or lines or [type(error).__name__])[0]


def compile_error(backend: str, name: str, code: str, error: Exception) -> DeviceError:
    """The compiler's first message, with the line of WGSL that it is about."""
    text = str(error)
    place = re.search(r"(?:┌─ \S*|parsing WGSL: \S*?):(\d+):(\d+)", text)
    message = re.search(r"error: (.*)", text)
    parts = [f"{name}: {backend}'s compiler refuses it: {message[1] if message else first_line(error)}"]
    parts += [f"  {line.strip()}" for line in re.findall(r"^ *= (?!.*is invalid)(.*)$", text, re.MULTILINE)[:1]]
    if place and 0 < int(place[1]) <= len(code.splitlines()):
        number, column = int(place[1]), int(place[2])
        parts.append(f"  line {number}, column {column}: {code.splitlines()[number - 1].strip()}")
    return DeviceError("\n".join(parts))
