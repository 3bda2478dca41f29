"""Adapters, devices, pipelines, buffers, timing, loss, and the report, on every backend that has an adapter."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from wgsl_attention.errors import ArgumentError, DeviceError, GpuBufferError
from wgsl_attention.gpu import backends
from wgsl_attention.gpu import device as device_module
from wgsl_attention.gpu.backends import AdapterInfo, adapters
from wgsl_attention.gpu.device import Device, default_device, open_device
from wgsl_attention.gpu.doctor import doctor
from wgsl_attention.kernels.facts import Binding, Count, Dispatch, RenderedVariant, Serves
from wgsl_attention.profile import PROFILES, DeviceProfile, Limits

DOUBLE = """// Doubles every element and adds a constant.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> words: vec4<u32>;
@group(0) @binding(3) var<storage, read> unused: array<f32>;

@compute @workgroup_size(64)
fn double(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < words.x) {
        y[id.x] = 2.0 * x[id.x] + bitcast<f32>(words.y);
    }
}
"""
BINDINGS = (
    Binding(binding=0, name="x", type="array<f32>", access="read", role="x"),
    Binding(binding=1, name="y", type="array<f32>", access="read_write", role="y"),
    Binding(binding=2, name="words", type="vec4<u32>", access="uniform", role="words"),
    Binding(binding=3, name="unused", type="array<f32>", access="read", role="unused"),
)


def rendered(wgsl: str = DOUBLE, **changes: Any) -> RenderedVariant:
    variant = RenderedVariant(
        name="double_wg64",
        kernel="double",
        wgsl=wgsl,
        entry_point="double",
        workgroup_size=(64, 1, 1),
        workgroup_bytes=0,
        bindings=BINDINGS,
        params={},
        serves=Serves(masks=("full",), head_dim=(1, 1)),
        dispatch_data=Dispatch(x=Count(factors=("q_len",), divisor=64)),
    )
    return dataclasses.replace(variant, **changes)


def dispatch(device: Device, variant: RenderedVariant, count: int = 100, **options: bool) -> tuple[Callable[[Any], None], Any]:
    """A recorder of one dispatch over 0, 1, 2, …, and the buffer that it writes."""
    pipeline = device.pipeline(variant, **options)
    x, y = device.storage(np.arange(count, dtype=np.float32)), device.zeros(4 * count)
    group = device.bind_group(pipeline, {0: x, 1: y, 2: device.uniform([count, 0.5]), 3: (device.zeros(16), 0, 16)})

    def record(compute_pass: Any) -> None:
        compute_pass.set_pipeline(pipeline.raw)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(*variant.dispatch({"q_len": count}))

    return record, y


def result(device: Device, buffer: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(device.read(buffer), np.float32)


EXPECTED = 2 * np.arange(100, dtype=np.float32) + 0.5


@pytest.mark.parametrize("unchecked", [False, True])
def test_runs_a_kernel(device: Device, unchecked: bool) -> None:
    record, y = dispatch(device, rendered(), unchecked=unchecked)
    device.run(record)
    assert np.array_equal(result(device, y), EXPECTED)


def test_both_backends_at_once() -> None:
    have = [name for name in backends.BACKENDS if any(a.profile.backend == name for a in adapters())]
    if len(have) < 2:
        pytest.skip(f"only {have} here")
    with open_device("wgpu") as one, open_device("dawn") as other:
        for device in (one, other, one):
            record, y = dispatch(device, rendered())
            device.run(record)
            assert np.array_equal(result(device, y), EXPECTED)


def test_pipelines_are_cached_by_name_text_and_checks(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    first = device.pipeline(rendered())
    assert device.pipeline(rendered()) is first
    assert device.pipeline(rendered(DOUBLE + "// other text\n")) is not first
    assert (device.pipeline(rendered(), unchecked=True) is first) == (device.backend == "dawn")
    monkeypatch.setattr(device._pipelines._made, "limit", 1)
    device.pipeline(rendered(name="evicts"))
    assert device.pipeline(rendered()) is not first


def test_pipelines_from_many_threads(device: Device) -> None:
    made: list[object] = []
    variant = rendered(name="threads")
    threads = [threading.Thread(target=lambda: made.append(device.pipeline(variant))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len(set(map(id, made))) == 1


def test_checks_are_the_devices_to_keep(backend: str) -> None:
    with open_device(backend, unchecked=False) as device:
        assert not device.pipeline(rendered(), unchecked=True).unchecked
    with open_device(backend) as device:
        assert device.pipeline(rendered(), unchecked=True).unchecked == (backend == "wgpu")
        assert not device.pipeline(rendered()).unchecked


def test_an_unchecked_device_runs_only_what_has_passed(backend: str) -> None:
    with open_device(backend, unchecked=True) as device:
        with pytest.raises(DeviceError, match="has not passed validation"):
            device.pipeline(rendered())
        record, y = dispatch(device, rendered(), unchecked=True)
        device.run(record)
        assert np.array_equal(result(device, y), EXPECTED)
        if backend == "dawn":
            extras = importlib.import_module("wgpudawn.backends.dawn.extras")
            assert "disable_robustness" in extras.get_toggles(device.raw)


@pytest.mark.parametrize("unchecked", [False, True])
def test_a_compile_error_has_the_message_and_the_line(device: Device, unchecked: bool) -> None:
    broken = DOUBLE.replace("2.0 * x[id.x]", "2.0 * missing[id.x]")
    with pytest.raises(DeviceError, match=r"double_wg64(.|\n)*missing(.|\n)*line 10, column 25: y\[id.x\] = 2.0 \* missing"):
        device.pipeline(rendered(broken), unchecked=unchecked)
    with pytest.raises(DeviceError, match=r"(.|\n)*line 10, column .*1.5f"):
        device.pipeline(rendered(DOUBLE.replace("2.0 * x[id.x]", "f32(1u + 1.5f)")), unchecked=unchecked)
    with pytest.raises(DeviceError, match="double_wg64"):
        device.pipeline(rendered(name="double_wg64_absent", entry_point="absent"), unchecked=unchecked)
    record, y = dispatch(device, rendered())  # and the device lives on
    device.run(record)
    assert np.array_equal(result(device, y), EXPECTED)


def test_what_the_device_lacks_is_said_before_compiling(device: Device) -> None:
    limits = device.profile.limits
    for changes, message in (
        ({"workgroup_bytes": limits.max_compute_workgroup_storage_size + 16}, "bytes of workgroup memory"),
        ({"workgroup_size": (limits.max_compute_invocations_per_workgroup + 1, 1, 1)}, "threads"),
        ({"features": ("no-such-feature",)}, "no-such-feature"),
    ):
        with pytest.raises(DeviceError, match=message):
            device.pipeline(rendered("not WGSL at all", **changes))


def test_extensions_are_enabled_as_each_compiler_wants(device: Device) -> None:
    assert backends.shader_text("wgpu", "text", ("f16", "subgroups")) == "enable f16; text"
    assert backends.shader_text("dawn", "text", ("f16", "subgroups")) == "enable f16; enable subgroups; text"
    for feature, extension, expression in (
        ("subgroups", "subgroups", "(subgroupAdd(x[id.x] - x[id.x]) + x[id.x])"),
        ("shader-f16", "f16", "f32(f16(x[id.x]))"),
    ):
        if feature in device.profile.features:
            # A subgroup operation wants uniform control flow, so the test of the index goes.
            wgsl = DOUBLE.replace("if (id.x < words.x) {", "{").replace("x[id.x] +", f"{expression} +")
            record, y = dispatch(device, rendered(wgsl, features=(feature,), extensions=(extension,)))
            device.run(record)
            assert np.array_equal(result(device, y), EXPECTED), feature


def test_buffers(device: Device) -> None:
    assert device.zeros(5).size == 16 and device.zeros(21).size == 24
    assert device.read(device.zeros(21)) == bytes(24)
    odd = np.arange(5, dtype=np.float16)
    assert device.read(device.storage(odd), 10) == odd.tobytes()
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
    buffer = device.storage(turned)
    assert device.read(buffer) == np.ascontiguousarray(turned).tobytes()
    device.write(buffer, turned[::2], 8)
    assert device.read(buffer, 24, 8) == np.ascontiguousarray(turned[::2]).tobytes()
    device.write(buffer, b"abcd", 44)
    assert device.read(buffer, 3, 44) == b"abc"
    assert device.read(device.storage(np.empty((0, 4), np.float32)), 0) == b""
    for bad in (
        lambda: device.write(buffer, b"abc"),
        lambda: device.write(buffer, b"abcd", 48),
        lambda: device.read(buffer, 8, 44),
    ):
        with pytest.raises(GpuBufferError, match="storage"):
            bad()
    with pytest.raises(ArgumentError, match="nbytes"):
        device.zeros(-1)


def test_uniform_words(device: Device) -> None:
    assert device.uniform([1]).size == 16 and device.uniform([1, 2, 3, 4, 5]).size == 32
    pipeline = device.pipeline(
        rendered(DOUBLE.replace("2.0 * x[id.x] + bitcast<f32>(words.y)", "bitcast<f32>(words[id.x])"), name="words")
    )
    for words in ([4, -2, 1.5, 2**32 - 1], np.array([4, 2**32 - 2, 0x3FC00000, 2**32 - 1], np.uint32)):
        x, y = device.zeros(16), device.zeros(16)
        group = device.bind_group(pipeline, {0: x, 1: y, 2: device.uniform(words), 3: x})

        def record(compute_pass: Any, group: Any = group) -> None:
            compute_pass.set_pipeline(pipeline.raw)
            compute_pass.set_bind_group(0, group)
            compute_pass.dispatch_workgroups(1)

        device.run(record)
        assert np.frombuffer(device.read(y), np.uint32).tolist() == [4, 2**32 - 2, 0x3FC00000, 2**32 - 1]
    for word in (2**32, -(2**31) - 1, 1e300):
        with pytest.raises(ArgumentError, match="words"):
            device.uniform([word])


def test_buffers_past_a_limit_are_refused_by_name(backend: str) -> None:
    with open_device(backend, emulate="webgpu-default") as device:
        with pytest.raises(DeviceError, match=r"'scores'.*134217732.*max_storage_buffer_binding_size of 134217728"):
            device.zeros((128 << 20) + 1, label="scores")
        with pytest.raises(DeviceError, match=r"'uniform'.*max_uniform_buffer_binding_size of 65536"):
            device.uniform(np.zeros(16385, np.uint32))


def test_a_missing_binding_is_named(device: Device) -> None:
    with pytest.raises(GpuBufferError, match="words"):
        device.bind_group(device.pipeline(rendered()), {0: device.zeros(16), 1: device.zeros(16)})


def test_timing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    record, y = dispatch(device, rendered())
    assert 0 < device.time(record) < 60
    assert np.array_equal(result(device, y), EXPECTED)
    monkeypatch.setattr(device, "profile", dataclasses.replace(device.profile, features=frozenset()))
    assert 0 < device.time(record) < 60


def test_limits_and_features_are_the_adapters(device: Device) -> None:
    adapter = backends.choose(device.backend, os.environ.get("WGSL_ATTENTION_ADAPTER"))
    assert device.profile.limits == adapter.profile.limits
    assert device.profile.features >= adapter.profile.features & set(backends.FEATURES)
    assert "subgroup" not in device.profile.features
    for words in (device.profile.vendor, device.profile.device, device.profile.driver):
        assert words == words.lower()
    assert device.profile.software == ("CPU" in adapter.description)
    assert device.profile.identity.endswith(f"({device.backend})")


def test_emulation(backend: str) -> None:
    profile = dataclasses.replace(PROFILES["webgpu-compat"], name="mine", features=frozenset({"timestamp-query"}))
    for asked, want in (("webgpu-default", PROFILES["webgpu-default"]), (profile, profile)):
        with open_device(backend, emulate=asked) as device:
            assert device.profile.limits == want.limits and device.profile.features == want.features
            assert device.profile.name.startswith(f"{want.name} on ")
            assert dict(device.raw.limits)["max-storage-buffers-per-shader-stage"] == 8
    huge = DeviceProfile(name="huge", features=frozenset({"telepathy"}), limits=Limits(max_buffer_size=1 << 60))
    with pytest.raises(
        DeviceError, match=r"cannot be huge: the feature telepathy; max_buffer_size 1152921504606846976, the adapter has"
    ):
        open_device(backend, emulate=huge)
    with pytest.raises(ArgumentError, match="webgpu-default"):
        open_device(backend, emulate="no-such-profile")


def test_wrapping_a_device_of_the_callers(device: Device) -> None:
    wrapped = Device.from_wgpu(device.raw)
    assert wrapped.profile == device.profile and wrapped.backend == device.backend
    wrapped.close()
    record, y = dispatch(device, rendered())  # closing the wrapper leaves the caller's device alone
    device.run(record)
    assert np.array_equal(result(device, y), EXPECTED)
    with pytest.raises(ArgumentError, match="GPUDevice"):
        Device.from_wgpu(device)


def test_a_closed_device_says_so(backend: str) -> None:
    with open_device(backend) as device:
        buffer = device.zeros(16)
    device.close()
    assert not device.usable
    for use in (
        lambda: device.zeros(16),
        lambda: device.read(buffer),
        lambda: device.pipeline(rendered()),
        lambda: device.run(print),
    ):
        with pytest.raises(DeviceError, match="is closed; open another"):
            use()


def test_a_lost_device_says_so(backend: str) -> None:
    uses: list[Callable[[Device, Any], object]] = [
        lambda device, buffer: device.zeros(16),
        lambda device, buffer: device.read(buffer),
        lambda device, buffer: device.write(buffer, b"abcd"),
        lambda device, buffer: device.pipeline(rendered()),
        lambda device, buffer: device.time(lambda compute_pass: None),
        lambda device, buffer: device.submit(lambda encoder: encoder.clear_buffer(buffer)),
    ]
    for number, use in enumerate(uses):
        with open_device(backend) as device:
            buffer = device.zeros(16)
            device.raw.destroy()  # the nearest thing to a loss that can be had on purpose
            try:
                use(device, buffer)
            except DeviceError as error:
                assert "was lost while" in str(error), (number, error)
                assert not device.usable
                with pytest.raises(DeviceError, match="is lost; open another"):
                    device.zeros(16)
            else:
                assert number == 2, "only writing may go unnoticed"


def test_the_default_device_is_shared_and_replaced(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setenv("WGSL_ATTENTION_BACKEND", backend)
    monkeypatch.setattr(device_module, "_default", None)
    first = default_device()
    assert first.backend == backend and default_device() is first
    first.close()
    second = default_device()
    assert second is not first and second.usable
    second.close()


def test_choosing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"no adapter's description holds 'no such card'; there are: .+ via "):
        open_device(backend, "no such card")
    monkeypatch.setenv("WGSL_ATTENTION_ADAPTER", "no such card")
    with pytest.raises(DeviceError, match="no such card"):
        open_device(backend)
    with pytest.raises(ArgumentError, match="backend"):
        open_device("directx")


def test_preference() -> None:
    def fake(device: str, kind: str, graphics: str) -> AdapterInfo:
        profile = backends.profile_of("wgpu", {"device": device, "adapter_type": kind, "backend_type": graphics}, (), {})
        return AdapterInfo(profile=profile, description=device, kind=kind, graphics=graphics, raw=None)

    best_first = [
        fake("card", "DiscreteGPU", "Vulkan"),
        fake("card", "DiscreteGPU", "OpenGL"),
        fake("chip", "IntegratedGPU", "Metal"),
        fake("virtual", "unknown", "Vulkan"),
        fake("llvmpipe", "CPU", "Vulkan"),
        fake("SwiftShader Device", "CPU", "Vulkan"),
        fake("llvmpipe", "unknown", "OpenGL"),
    ]
    worst_first = best_first[::-1]
    assert sorted(worst_first, key=backends.preference) == best_first


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package look as if it were not installed."""
    real = importlib.import_module

    def hide(package: str) -> None:
        def missing(name: str, *rest: Any) -> Any:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            return real(name, *rest)

        monkeypatch.setattr(importlib, "import_module", missing)

    return hide


@pytest.mark.parametrize(("name", "hint"), [("wgpu", "pip install wgpu"), ("dawn", r"pip install 'wgsl-attention\[dawn\]'")])
def test_a_missing_package_is_an_error_only_for_who_names_it(without: Callable[[str], None], name: str, hint: str) -> None:
    without(backends.PACKAGES[name])
    assert all(adapter.profile.backend != name for adapter in adapters())
    for use in (lambda: adapters(name), lambda: open_device(name)):
        with pytest.raises(DeviceError, match=hint):
            use()
    report = doctor()
    missing = next(entry for entry in report["backends"] if entry["name"] == name)
    assert not missing["installed"] and missing["adapters"] == []
    assert any(hint.replace("\\", "") in line for line in report["advice"])


def test_a_package_that_breaks_on_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise OSError("libsomething.so: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", broken)
    assert adapters() == []
    with pytest.raises(DeviceError, match="cannot open shared object"):
        open_device()
    assert "cannot open shared object" in doctor()["backends"][0]["error"]


def test_doctor_is_plain_data() -> None:
    report = doctor()
    assert json.loads(json.dumps(report)) == report
    assert [entry["name"] for entry in report["backends"]] == list(backends.BACKENDS)
    for entry in report["backends"]:
        assert entry["installed"] == (entry["version"] is not None)
        for adapter in entry["adapters"]:
            assert set(adapter["features"]) <= set(backends.FEATURES)
            assert set(adapter["fits"]) <= set(PROFILES)


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def test_no_adapter_says_what_to_install() -> None:
    code = """
from wgsl_attention.gpu import device, doctor
assert device.adapters() == []
try:
    device.open_device()
except device.DeviceError as error:
    print(error)
print(*doctor.doctor()["advice"], sep="\\n")
"""
    nothing = os.devnull
    printed = run_python(code, VK_DRIVER_FILES=nothing, VK_ADD_DRIVER_FILES="", __EGL_VENDOR_LIBRARY_FILENAMES=nothing)
    assert printed.count("mesa-vulkan-drivers libvulkan1") >= 2
    assert "no adapter" in printed


def test_importing_is_cheap() -> None:
    code = """
import sys, wgsl_attention.gpu.device, wgsl_attention.gpu.doctor
print(sorted({"wgpu", "wgpudawn", "jinja2"} & set(sys.modules)))
"""
    assert run_python(code).strip() == "[]"
