"""Selection, which is pure and gives reasons, and plans recorded into the caller's own buffers, encoder and device."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import wgsl_attention as wa
from conftest import skip_without
from support.attention import RECIPES, SENTINEL, documents, problem, rule, sample, wgpu_device
from wgsl_attention import PROFILES, ArgumentError, Device, GpuBufferError, Limits, Mask, Plan, Problem, UnservedProblemError
from wgsl_attention.gpu.device import open_device
from wgsl_attention.kernels.original import AttentionBackwardShort
from wgsl_attention.problem.problem import GRADIENTS
from wgsl_attention.reference.attention import Outputs
from wgsl_attention.reference.samples import Sample
from wgsl_attention.selection.ranking import select

Array = np.ndarray[Any, Any]
COPY_SRC, COPY_DST, UNIFORM, STORAGE = 4, 8, 64, 128
SEQ = 40


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


# Selection, for devices that are not there

MASKS = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "documents": Mask.documents(),
    "window": Mask.window(9, 2),
    "prefix": Mask.prefix(12),
    "documents & window": Mask.documents() & Mask.window(9, 0),
}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("length", [1, 512, 1024, 16384])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_profile_serves_every_mask(mask: Mask, length: int, profile: wa.DeviceProfile) -> None:
    for head_dim in (1, 64, 100, 256):
        p = problem(mask, length, head_dim=head_dim)
        selection = select(p, profile)
        assert selection.candidates, selection.explain()
        for recipe in selection.candidates:
            assert recipe.problem == p and recipe.refusals(profile) == ()
        assert all(reason.strip() for reason in selection.refusals)
        # streaming takes them too, but where nine storage buffers are too many, doc_start comes as a uniform of 64 KiB
        uniform = profile.limits.max_storage_buffers_per_shader_stage < 9
        short = 4 * length <= 65536 <= profile.limits.max_uniform_buffer_binding_size
        served = select(p, profile, algorithm="streaming").best is not None
        assert served == (not mask.documents_mode or not uniform or short)


def test_selection_is_pure() -> None:
    """The same for the same arguments, and nothing of a GPU or of the templates is touched."""
    code = """
import sys
import wgsl_attention as wa
for mask in (wa.Mask.full(), wa.Mask.documents(), wa.Mask.window(3, 3)):
    problem = wa.Problem(q_len=300, kv_len=300, heads=4, kv_heads=2, head_dim=77, mask=mask)
    for profile in wa.PROFILES.values():
        print(wa.select(problem, profile).explain())
print(sorted({"wgpu", "wgpudawn", "jinja2"} & set(sys.modules)))
"""
    texts = {subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout for _ in range(2)}
    assert len(texts) == 1 and texts.pop().endswith("[]\n")


def test_short_is_chosen_up_to_its_length() -> None:
    profile = PROFILES["workgroup-32k"]
    for length, served in ((1, True), (512, True), (513, True), (1024, True), (1025, False)):
        selection = select(problem(Mask.causal(), length), profile, algorithm="short")
        assert bool(selection.candidates) == served
        for recipe in selection.candidates:
            main = recipe.variants[0]
            assert isinstance(main, AttentionBackwardShort) and main.max_seq >= length
        if not served:
            assert selection.refusals == ("short has no variant for these lengths",)


REFUSED: dict[str, tuple[Problem, str, str]] = {
    "short, window": (problem(Mask.window(2, 2), SEQ), "short", "short has no mask mode for"),
    "short, other keys": (problem(Mask.causal(), SEQ, 50), "short", "with q_len 40 and kv_len 50"),
    "short, d_k added alone": (
        problem(Mask.causal(), SEQ, accumulate=frozenset({"d_k"})),
        "short",
        "short adds to d_k and d_v or overwrites both",
    ),
    "streaming, v_head_dim": (problem(Mask.causal(), SEQ, v_head_dim=8), "streaming", "v_head_dim"),
    "short, v_head_dim": (problem(Mask.causal(), SEQ, v_head_dim=8), "short", "v_head_dim"),
    "streaming, kv_lengths": (problem(Mask.causal(), SEQ, kv_lengths=True), "streaming", "kv_lengths"),
    "streaming, documents both ways": (
        problem(Mask.documents(causal=False), SEQ),
        "streaming",
        "streaming has no mask mode for",
    ),
    "streaming, prefix in a window": (
        problem(Mask.prefix(20) & Mask.window(30, 10), SEQ),
        "streaming",
        "streaming has no mask mode for",
    ),
    "streaming, too many queries": (problem(Mask.causal(), 65536), "streaming", "workgroups, the device takes 65535"),
    "streaming, too many batch entries": (problem(Mask.causal(), 2, batch=65536), "streaming", "the device takes 65535"),
    "short, scratch past a binding": (problem(Mask.full(), 1024, heads=40), "short", "the device binds 134217728"),
    "streaming, buffers past a binding": (
        problem(Mask.causal(), 60_000, heads=16, head_dim=64),
        "streaming",
        "q takes 245760000 bytes, the device binds 134217728",
    ),
    "streaming, documents past the uniform": (
        problem(Mask.documents(), 16385),
        "streaming",
        "needs 9 storage buffers, the device has 8",
    ),
}


@pytest.mark.parametrize(("p", "algorithm", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals_have_reasons(p: Problem, algorithm: str, reason: str) -> None:
    selection = select(p, PROFILES["webgpu-default"], algorithm=algorithm)
    assert not selection.candidates and selection.best is None
    assert any(reason in line for line in selection.refusals), selection.refusals
    assert f"refused: {selection.refusals[0]}" in selection.explain()


@pytest.mark.parametrize("algorithm", RECIPES)
def test_an_index_past_32_bits_is_refused_by_name(algorithm: str) -> None:
    """On a device that could bind it all, so that it is the index that is in the way."""
    huge = dataclasses.replace(
        PROFILES["workgroup-32k"],
        limits=dataclasses.replace(
            PROFILES["workgroup-32k"].limits, max_storage_buffer_binding_size=1 << 50, max_buffer_size=1 << 50
        ),
    )
    length = 1024 if algorithm == "short" else 65535
    served = problem(Mask.causal(), length, heads=1, batch=4)
    assert select(served, huge, algorithm=algorithm).candidates
    p = problem(Mask.causal(), length, heads=256, kv_heads=1, head_dim=256, batch=64)
    selection = select(p, huge, algorithm=algorithm)
    assert not selection.candidates
    assert f"q has {p.batch * length * 256 * 256} elements, more than a 32-bit index reaches" in selection.refusals
    assert not any(line.startswith("k has") for line in selection.refusals)


def test_bad_selections() -> None:
    profile = PROFILES["webgpu-default"]
    for options in ({"algorithm": "fast"}, {"guard": "none"}):
        with pytest.raises(ArgumentError, match="want"):
            select(problem(Mask.full(), 4), profile, **options)
    with pytest.raises(ArgumentError, match="problem: got a dict; want a Problem"):
        wa.plan({"q_len": 4}, wgpu_device())


def test_explain_says_what_and_why() -> None:
    p = problem(Mask.documents(), 300, head_dim=64)
    text = select(p, PROFILES["webgpu-default"], algorithm="short").explain()
    for part in (
        str(p),
        "on webgpu-default",
        "chosen: short: attention_backward_short_wg256_maxseq512_d64_documents_seguniform + attention_backward_short_dKdV_wg",
        "attention_backward_short: 300 × 2 × 1 workgroups of 256 threads",
        "bytes of workgroup memory (of 16384)",
        f"scratch: {2 * 4 * 300 * 300 * 2 / 2**20:.1f} MiB",
        "next: short: ",
        "refused: attention_backward_short_wg256_maxseq512_d64_documents: needs 9 storage buffers, the device has 8",
    ):
        assert part in text, f"{part!r} is not in:\n{text}"
    assert "scratch: none" in select(p, PROFILES["webgpu-default"], algorithm="streaming").explain()


def test_plan_explains_itself(wgpu: Device) -> None:
    made = wa.plan(problem(Mask.causal(), SEQ), wgpu, algorithm="short")
    assert made.explain() == made.selection.explain() and f"on {wgpu.profile.name}" in made.explain()
    assert made.scratch == {"p": 4 * SEQ * SEQ * 2, "d_s": 4 * SEQ * SEQ * 2}
    assert made.buffers == {
        name: 4 * SEQ * size
        for name, size in {"d_k": 16, "d_o": 32, "d_q": 32, "d_v": 16, "k": 16, "lse": 2, "q": 32, "v": 16}.items()
    }


def test_unserved_problem_raises_with_reasons(wgpu: Device) -> None:
    with pytest.raises(UnservedProblemError, match=r"nothing serves length 40 on 50") as raised:
        wa.plan(problem(Mask.causal(), SEQ, 50), wgpu, algorithm="short")
    assert len(raised.value.reasons) == 1 and raised.value.reasons[0] in str(raised.value)
    assert isinstance(raised.value, RuntimeError)


def test_more_queries_than_workgroups(wgpu: Device) -> None:
    """Refused by name, where a kernel has a workgroup for each query; nothing that is chosen asks for more than there are."""
    seq = 65_537
    ones = np.ones((seq, 1, 1), np.float32)
    with pytest.raises(UnservedProblemError, match=r"attention_backward_wg\S+: \(65537, 1, 1\) workgroups"):
        wa.attention_backward(
            *(ones, ones, ones, ones, ones[..., 0]),
            mask=Mask.documents(),
            doc_start=np.arange(seq),
            device=wgpu,
            algorithm="streaming",
        )
    p = problem(Mask.documents(), seq)
    for recipe in select(p, wgpu.profile).candidates:
        assert all(max(step.workgroups(p)) <= 65535 for step in recipe.steps)


# Recording


def buffer(device: Device, nbytes: int, usage: int = STORAGE | COPY_SRC | COPY_DST) -> Any:
    return device.raw.create_buffer(size=nbytes, usage=usage)


def caller_buffers(device: Device, x: Sample) -> dict[str, Any]:
    """A buffer for each input, and gradients that hold the sentinel."""
    buffers = {name: device.storage(x[name]) for name in x.problem.inputs}
    return buffers | {name: device.storage(np.full(shape, SENTINEL)) for name, shape in x.problem.outputs.items()}


def read(device: Device, x: Sample, buffers: dict[str, Any]) -> Outputs:
    found = {}
    for name, shape in x.problem.outputs.items():
        given = buffers[name]
        raw, offset = given[:2] if isinstance(given, tuple) else (given, 0)
        found[name] = np.frombuffer(device.read(raw, 4 * math.prod(shape), offset), np.float32).reshape(shape)
    return found


@pytest.mark.parametrize("algorithm", RECIPES)
def test_record_on_the_callers_buffers_and_encoder(device: Device, algorithm: str) -> None:
    """Between work of the caller's own in the same encoder, twice, with another scale the second time."""
    x = sample(problem(Mask.causal(), SEQ))
    other = sample(x.problem, scale=0.7)
    made = wa.plan(x.problem, device, algorithm=algorithm)
    first, second = caller_buffers(device, x), caller_buffers(device, other)
    first["q"] = buffer(device, x["q"].nbytes)
    staged = device.storage(x["q"])

    def record(encoder: Any) -> None:
        encoder.copy_buffer_to_buffer(staged, 0, first["q"], 0, x["q"].nbytes)
        made.record(encoder, first)
        made.record(encoder, second, scale=0.7)
        encoder.clear_buffer(first["lse"], 0, x["lse"].nbytes)

    device.submit(record)
    for given, buffers in ((x, first), (other, second)):
        verdict = rule(given, algorithm).judge(read(device, given, buffers))
        assert verdict.ok, verdict
    assert not any(device.read(first["lse"])) and device.read(first["k"]) == x["k"].tobytes()


def arena(device: Device, arrays: dict[str, Array], gap: int = 256) -> dict[str, Any]:
    """All arrays in one buffer, at aligned offsets, with gaps that hold the sentinel."""
    spans, end = {}, gap
    for name, array in arrays.items():
        spans[name] = (end, array.nbytes)
        end += -(-array.nbytes // 256) * 256 + gap
    data = np.full(end // 4, SENTINEL)
    for name, array in arrays.items():
        start = spans[name][0] // 4
        data[start : start + array.size] = array.ravel().view(np.float32)
    made = device.storage(data)
    return {name: (made, offset, size) for name, (offset, size) in spans.items()}


@pytest.mark.parametrize("algorithm", RECIPES)
def test_offsets(wgpu: Device, algorithm: str) -> None:
    """Inputs from one buffer, gradients into another: what lies between them is not touched."""
    p = problem(Mask.documents(), 37, batch=2)
    x = sample(p)
    read_from = arena(wgpu, {name: x[name] for name in p.inputs})
    gradients = {name: np.full(shape, SENTINEL) for name, shape in p.outputs.items()}
    written = arena(wgpu, gradients)
    made = wa.plan(p, wgpu, algorithm=algorithm)
    wgpu.submit(lambda encoder: made.record(encoder, {**read_from, **written}))
    verdict = rule(x, algorithm).judge(read(wgpu, x, written))
    assert verdict.ok, verdict
    raw = written["d_q"][0]
    after = np.frombuffer(wgpu.read(raw), np.float32)
    outside = np.ones(after.size, bool)
    for _, offset, size in written.values():
        outside[offset // 4 : (offset + size) // 4] = False
    assert outside.any() and (after[outside] == SENTINEL).all()


@pytest.mark.parametrize("algorithm", RECIPES)
def test_accumulate(wgpu: Device, algorithm: str) -> None:
    p = problem(Mask.causal(), SEQ, accumulate=frozenset(GRADIENTS))
    x = sample(p)
    made, buffers = wa.plan(p, wgpu, algorithm=algorithm), caller_buffers(wgpu, x)
    before = {name: np.full(shape, 2, np.float32) for name, shape in p.outputs.items()}
    for name, array in before.items():
        wgpu.write(buffers[name], array)
    for _ in range(3):
        wgpu.submit(lambda encoder: made.record(encoder, buffers))
    found, right = read(wgpu, x, buffers), x.expected().outputs
    for name in GRADIENTS:
        np.testing.assert_allclose(found[name], 2 + 3 * right[name], rtol=0, atol=1e-4, err_msg=name)


def test_the_callers_own_device(wgpu: Device) -> None:
    raw = wgpu.raw.adapter.request_device_sync()
    device = Device.from_wgpu(raw)
    x = sample(problem(Mask.documents(), SEQ))
    for algorithm in RECIPES:
        made, buffers = wa.plan(x.problem, device, algorithm=algorithm), caller_buffers(device, x)
        device.submit(lambda encoder, made=made, buffers=buffers: made.record(encoder, buffers))
        assert rule(x, algorithm).judge(read(device, x, buffers)).ok
    device.close()
    assert raw.create_buffer(size=16, usage=STORAGE) is not None


@pytest.fixture(scope="module")
def made(wgpu: Device) -> Plan:
    return wa.plan(problem(Mask.documents(), 32, head_dim=64), wgpu, algorithm="streaming")


def changed(name: str, new: Any) -> Callable[[Device, dict[str, Any]], dict[str, Any]]:
    """A change to one buffer: ``new`` makes it from the device and the right one."""
    return lambda device, buffers: {**buffers, name: new(device, buffers[name])}


BAD_BUFFERS: dict[str, tuple[str, Callable[[Device, dict[str, Any]], dict[str, Any]], str]] = {
    "missing": (
        "lse",
        lambda d, b: {n: x for n, x in b.items() if n != "lse"},
        "got nothing; want a buffer of at least 256 bytes",
    ),
    "missing gradient": ("d_v", lambda d, b: {n: x for n, x in b.items() if n != "d_v"}, "got nothing"),
    "none": ("q", changed("q", lambda d, b: None), "got nothing"),
    "missing doc_start": ("doc_start", lambda d, b: {n: x for n, x in b.items() if n != "doc_start"}, "got nothing"),
    "unknown": ("dq", lambda d, b: {**b, "dq": b["d_q"]}, "got a buffer; want only d_k, "),
    "not a buffer": ("k", changed("k", lambda d, b: np.zeros(4096, np.float32)), "got a ndarray; want a GPU buffer"),
    "too small": ("q", changed("q", lambda d, b: buffer(d, b.size - 4)), "got 16380 bytes; want at least 16384"),
    "too small gradient": ("d_q", changed("d_q", lambda d, b: buffer(d, b.size - 256)), "want at least 16384"),
    "too small range": ("k", changed("k", lambda d, b: (b, 0, b.size - 4)), "got 8188 bytes; want at least 8192"),
    "range past the end": ("k", changed("k", lambda d, b: (b, 256, b.size)), "got 7936 bytes; want at least 8192"),
    "offset past the end": ("k", changed("k", lambda d, b: (b, b.size + 256, b.size)), "want at least 8192"),
    "misaligned": (
        "v",
        changed("v", lambda d, b: (buffer(d, b.size + 512), 12, b.size)),
        "got an offset of 12; want a multiple of",
    ),
    "offset below zero": ("v", changed("v", lambda d, b: (b, -256, b.size)), "got an offset of -256"),
    "no storage usage": (
        "q",
        changed("q", lambda d, b: buffer(d, b.size, COPY_DST)),
        "got usage 8; want a buffer made with STORAGE",
    ),
    "uniform": ("lse", changed("lse", lambda d, b: buffer(d, b.size, UNIFORM)), "want a buffer made with STORAGE"),
    "gradient that cannot be cleared": (
        "d_k",
        changed("d_k", lambda d, b: buffer(d, b.size, STORAGE | COPY_SRC)),
        r"want a buffer made with STORAGE \| COPY_DST",
    ),
    "gradient in an input": ("d_q", lambda d, b: {**b, "d_q": b["q"]}, "got the buffer of 'q' too; want a buffer of its own"),
    "gradient in d_o, beside it": (
        "d_q",
        lambda d, b: (lambda x: {**b, "d_q": (x, 0, 16384), "d_o": (x, 16384, 16384)})(buffer(d, 32768)),
        "got the buffer of 'd_o' too",
    ),
    "two gradients in one place": ("d_k", lambda d, b: {**b, "d_k": b["d_v"]}, "got the buffer of 'd_v' too"),
    "two gradients that overlap": (
        "d_k",
        lambda d, b: (lambda x: {**b, "d_k": (x, 0, 8192), "d_v": (x, 4096, 8192)})(buffer(d, 16384)),
        "got the buffer of 'd_v' too",
    ),
}


@pytest.mark.parametrize(("name", "change", "message"), BAD_BUFFERS.values(), ids=BAD_BUFFERS)
def test_bad_buffers(wgpu: Device, made: Plan, name: str, change: Any, message: str) -> None:
    """Each its own error before anything is recorded: the encoder is still good, and submitting it writes nothing."""
    x = sample(made.problem)
    buffers = caller_buffers(wgpu, x)
    encoder = wgpu.raw.create_command_encoder()
    with pytest.raises(GpuBufferError, match=f"buffer {name!r}: .*{message}") as raised:
        made.record(encoder, change(wgpu, buffers))
    assert raised.value.name == name and isinstance(raised.value, ValueError)
    wgpu.raw.queue.submit([encoder.finish()])
    for gradient in GRADIENTS:
        assert (np.frombuffer(wgpu.read(buffers[gradient]), np.float32) == SENTINEL).all()
    assert wgpu.read(buffers["q"]) == x["q"].tobytes()


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "x"])
def test_bad_scale(wgpu: Device, made: Plan, scale: Any) -> None:
    with pytest.raises(ArgumentError, match="scale"):
        made.record(wgpu.raw.create_command_encoder(), caller_buffers(wgpu, sample(made.problem)), scale=scale)


def test_rope_on_the_callers_buffer(wgpu: Device) -> None:
    d_x = np.random.default_rng(0).standard_normal((2, 5, 3, 8), np.float32)
    sizes = {"batch": 2, "seq": 5, "heads": 3, "head_dim": 8}
    right = wa.rope_backward(d_x, offset=3, device=wgpu)
    for tensor in ("q", "k"):
        spans = arena(wgpu, {"d_x": d_x})
        wgpu.submit(
            lambda encoder, spans=spans, tensor=tensor: wa.record_rope_backward(
                wgpu, encoder, spans["d_x"], offset=3, tensor=tensor, **sizes
            ),
        )
        raw, offset, size = spans["d_x"]
        assert wgpu.read(raw, size, offset) == right.tobytes()
        assert (np.frombuffer(wgpu.read(raw, offset), np.float32) == SENTINEL).all()
    encoder = wgpu.raw.create_command_encoder()
    for bad, message in (
        (buffer(wgpu, d_x.nbytes - 4), "want at least 960"),
        (buffer(wgpu, d_x.nbytes, COPY_DST), "STORAGE"),
        ((buffer(wgpu, d_x.nbytes), 256, d_x.nbytes), "want at least 960"),
        ((buffer(wgpu, 4096), 12, d_x.nbytes), "offset of 12"),
        ((buffer(wgpu, 4096), -256, d_x.nbytes), "offset of -256"),
        (None, "got nothing"),
        (d_x, "ndarray"),
    ):
        with pytest.raises(GpuBufferError, match=f"'d_x': .*{message}"):
            wa.record_rope_backward(wgpu, encoder, bad, **sizes)
    good = buffer(wgpu, d_x.nbytes)
    for name, wrong in (("seq", 0), ("heads", 1.5), ("batch", True), ("head_dim", 7), ("tensor", "v"), ("base", -1.0)):
        with pytest.raises(ArgumentError, match=name):
            wa.record_rope_backward(wgpu, encoder, good, **{**sizes, name: wrong})
    with pytest.raises(ArgumentError, match="buffer: got 4294967296 elements"):
        wa.record_rope_backward(wgpu, encoder, good, seq=1 << 16, heads=1 << 8, head_dim=256)


# A device with WebGPU's defaults, and less


@pytest.fixture(scope="module", params=["webgpu-default", "webgpu-compat"])
def emulated(request: pytest.FixtureRequest) -> Iterator[Device]:
    skip_without("wgpu")
    with open_device("wgpu", emulate=request.param) as device:
        yield device


@pytest.mark.parametrize("algorithm", RECIPES)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_emulated_devices(emulated: Device, mask: Mask, algorithm: str) -> None:
    """Eight storage buffers: doc_start comes as a uniform, which the plan fills from the caller's buffer."""
    p = problem(mask, SEQ, batch=2)
    if algorithm == "short" and mask not in (Mask.full(), Mask.causal(), Mask.documents()):
        assert not select(p, emulated.profile, algorithm=algorithm).candidates
        return
    if mask.documents_mode and emulated.profile.limits.max_uniform_buffer_binding_size < 65536:
        found = select(p, emulated.profile, algorithm=algorithm)
        assert not found.candidates and any("bytes of a uniform" in reason for reason in found.refusals)
        assert select(p, emulated.profile).best, "tiled takes doc_start in a kernel of its own, with room to spare"
        return
    x = sample(p, doc_start=documents(p, [1, 20, 19]) if mask.documents_mode else None)
    made, buffers = wa.plan(p, emulated, algorithm=algorithm), caller_buffers(emulated, x)
    main = made.recipe.variants[0]
    assert main.params["seg_uniform"] == bool(mask.documents_mode)
    assert main.workgroup_size <= emulated.profile.limits.max_compute_invocations_per_workgroup
    emulated.submit(lambda encoder: made.record(encoder, buffers))
    verdict = rule(x, algorithm).judge(read(emulated, x, buffers))
    assert verdict.ok, f"{main.name}: {verdict}"


def test_limits_of_the_default_profile_are_webgpus() -> None:
    assert PROFILES["webgpu-default"].limits == Limits()
