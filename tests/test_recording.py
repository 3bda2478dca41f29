"""Plans on the caller's own terms: scratch, passes, caches, threads, a lost device."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import wgsl_attention as wa
from support.attention import SENTINEL, problem, rule, sample, wgpu_device
from wgsl_attention import ArgumentError, Device, DeviceError, GpuBufferError, Limits, Mask, Plan, Problem
from wgsl_attention.gpu.device import open_device
from wgsl_attention.planning.rope import rope_program
from wgsl_attention.problem.problem import GRADIENTS
from wgsl_attention.problem.rotation import Rotation
from wgsl_attention.reference.attention import Outputs
from wgsl_attention.reference.samples import Sample

SEQ = 150
"""Three blocks of the tiled kernels, so that parts of gradients are summed afterwards."""
CAUSAL = problem(Mask.causal(), SEQ, heads=4, kv_heads=2)


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


@pytest.fixture(scope="module")
def x() -> Sample:
    return sample(CAUSAL)


def caller_buffers(device: Device, x: Sample, fill: float = float(SENTINEL)) -> dict[str, Any]:
    buffers = {name: device.storage(x[name]) for name in x.problem.inputs}
    return buffers | {n: device.storage(np.full(shape, fill, np.float32)) for n, shape in x.problem.outputs.items()}


def read(device: Device, x: Sample, buffers: Mapping[str, Any]) -> Outputs:
    outputs = x.problem.outputs
    return {n: np.frombuffer(device.read(buffers[n]), np.float32).reshape(shape) for n, shape in outputs.items()}


def right(device: Device, x: Sample, made: Plan, buffers: Mapping[str, Any], **options: Any) -> bool:
    device.submit(lambda encoder: made.record(encoder, buffers, **options))
    return rule(x, made.recipe.algorithm).judge(read(device, x, buffers)).ok


def poisoned(device: Device, nbytes: int) -> Any:
    return device.storage(np.full(nbytes // 4, np.nan, np.float32), label="poisoned")


# Scratch


@pytest.mark.parametrize("algorithm", ["tiled", "short"])
def test_scratch_of_the_callers(device: Device, x: Sample, algorithm: str) -> None:
    """By name, at offsets, or in as few buffers as can be; whatever it holds, and nothing of the plan's own is made."""
    made = wa.plan(CAUSAL, device, algorithm=algorithm)
    device.release()
    named = {name: poisoned(device, size) for name, size in made.scratch.items()}
    offset = {name: (poisoned(device, size + 512), 256, size) for name, size in made.scratch.items()}
    few: Any = [poisoned(device, size) for size in made.scratch_bytes]
    assert sum(made.scratch_bytes) >= sum(made.scratch.values()) and len(few) < len(named)
    for scratch in (named, offset, few if len(few) > 1 else few[0]):
        assert right(device, x, made, caller_buffers(device, x), scratch=scratch)
    assert device.pool._buffers == {}
    assert right(device, x, made, caller_buffers(device, x)) and set(device.pool._buffers) == set(made.scratch)


def test_no_scratch(wgpu: Device, x: Sample) -> None:
    made = wa.plan(CAUSAL, wgpu, algorithm="streaming")
    assert made.scratch == {} and made.scratch_bytes == ()
    for scratch in ({}, []):
        assert right(wgpu, x, made, caller_buffers(wgpu, x), scratch=scratch)


BAD_SCRATCH: dict[str, tuple[Callable[[Device, dict[str, Any], list[Any], dict[str, Any]], Any], str, str]] = {
    "missing": (lambda d, n, f, b: {k: v for k, v in n.items() if k != "p_tiles"}, "p_tiles", "got nothing"),
    "unknown": (
        lambda d, n, f, b: {**n, "p": n["p_tiles"]},
        "p",
        "got scratch; want only intervals, query_tiles, key_tiles, p_tiles",
    ),
    "small": (lambda d, n, f, b: {**n, "p_tiles": d.zeros(64)}, "p_tiles", "got 64 bytes; want at least"),
    "misaligned": (lambda d, n, f, b: {**n, "row_sums": (n["row_sums"], 4, 1 << 20)}, "row_sums", "an offset of 4"),
    "usage": (lambda d, n, f, b: {**n, "intervals": d.raw.create_buffer(size=1 << 20, usage=8)}, "intervals", "STORAGE"),
    "a gradient": (lambda d, n, f, b: {**n, "row_terms": b["d_q"]}, "row_terms", "got the buffer of 'd_q' too|at least"),
    "read and written": (
        lambda d, n, f, b: (lambda y: {**n, "intervals": (y, 0, 1 << 20), "p_tiles": (y, 1 << 20, 2 << 20)})(d.zeros(3 << 20)),
        "intervals",
        "got the buffer of 'p_tiles' too",
    ),
    "too few": (lambda d, n, f, b: f[0], "scratch", "got 1 buffers; want "),
    "one twice": (lambda d, n, f, b: 2 * [d.zeros(4 << 20)] + f[2:], "scratch", "one buffer twice"),
    "strides": (
        lambda d, n, f, b: {**n, "p_tiles": (n["p_tiles"], 0, 1 << 20, 64)},
        "p_tiles",
        "tuple of 4.*strides are the problem",
    ),
}


@pytest.mark.parametrize(("change", "name", "message"), BAD_SCRATCH.values(), ids=BAD_SCRATCH)
def test_bad_scratch(wgpu: Device, x: Sample, change: Any, name: str, message: str) -> None:
    made = wa.plan(CAUSAL, wgpu, algorithm="tiled")
    assert len(made.scratch_bytes) == 4
    buffers = caller_buffers(wgpu, x)
    named = {name: wgpu.zeros(size) for name, size in made.scratch.items()}
    few = [wgpu.zeros(size) for size in made.scratch_bytes]
    with pytest.raises(GpuBufferError, match=f"(?s)buffer {name!r}: .*({message})"):
        made.record(wgpu.raw.create_command_encoder(), buffers, scratch=change(wgpu, named, few, buffers))


def test_plans_share_scratch(wgpu: Device, x: Sample) -> None:
    """One buffer of a name for all plans of a device, as large as the largest needs; recorded into one encoder."""
    wgpu.release()
    small = sample(problem(Mask.causal(), 70, heads=4, kv_heads=2), seed=3)
    plans = [wa.plan(given.problem, wgpu, algorithm="tiled") for given in (small, x)]
    buffers = [caller_buffers(wgpu, given) for given in (small, x)]

    def record(encoder: Any) -> None:
        for made, given in (*zip(plans, buffers, strict=True), (plans[0], buffers[0])):
            made.record(encoder, given)

    wgpu.submit(record)
    for given, held in zip((small, x), buffers, strict=True):
        assert rule(given, "tiled").judge(read(wgpu, given, held)).ok
    sizes = {name: max(made.scratch.get(name, 0) for made in plans) for made in plans for name in made.scratch}
    assert {name: buffer.size for name, buffer in wgpu.pool._buffers.items()} == {n: max(16, s) for n, s in sizes.items()}
    # the first plan's bind groups do not hold the smaller buffers any longer, beyond those that it was recorded with again
    assert len(plans[0]._bound) == len(plans[1]._bound) == 1


def test_scratch_given_to_several_plans(wgpu: Device, x: Sample) -> None:
    plans = [wa.plan(CAUSAL, wgpu, algorithm=name) for name in ("tiled", "short")]
    most = [max(sizes) for sizes in itertools.zip_longest(*(made.scratch_bytes for made in plans), fillvalue=0)]
    shared = [poisoned(wgpu, size) for size in most]
    for made in plans:
        assert right(wgpu, x, made, caller_buffers(wgpu, x), scratch=shared[: len(made.scratch_bytes)])


# Gradients, passes, devices


@pytest.mark.parametrize("algorithm", ["tiled", "streaming"])
@pytest.mark.parametrize("added", [{"d_q"}, {"d_k"}, {"d_v"}, {"d_q", "d_v"}], ids=lambda names: "+".join(sorted(names)))
def test_accumulate_or_overwrite_per_gradient(wgpu: Device, algorithm: str, added: set[str]) -> None:
    x = sample(problem(Mask.causal(), SEQ, heads=4, kv_heads=2, accumulate=frozenset(added)))
    made, buffers = wa.plan(x.problem, wgpu, algorithm=algorithm), caller_buffers(wgpu, x, fill=2.0)
    for _ in range(2):
        wgpu.submit(lambda encoder: made.record(encoder, buffers))
    found, expected = read(wgpu, x, buffers), x.expected().outputs
    for name in GRADIENTS:
        want = 2 + 2 * expected[name] if name in added else expected[name]
        np.testing.assert_allclose(found[name], want, rtol=0, atol=1e-4, err_msg=name)


def test_a_pass_of_the_callers(device: Device, x: Sample) -> None:
    made, buffers = wa.plan(CAUSAL, device, algorithm="tiled"), caller_buffers(device, x)
    assert made.first == ()

    def record(encoder: Any) -> None:
        compute_pass = encoder.begin_compute_pass()
        made.record_pass(compute_pass, buffers)
        made.record_pass(compute_pass, buffers)
        compute_pass.end()

    device.submit(record)
    assert rule(x, "tiled").judge(read(device, x, buffers)).ok
    cleared = wa.plan(CAUSAL, device, algorithm="streaming")
    encoder = device.raw.create_command_encoder()
    with pytest.raises(ArgumentError, match=r"d_k is cleared.*accumulates"):
        cleared.record_pass(encoder.begin_compute_pass(), buffers)


def test_a_device_with_webgpus_default_limits(wgpu: Device, x: Sample) -> None:
    limits = {name: value for name, value in Limits().to_webgpu().items() if name in dict(wgpu.raw.limits)}
    raw = wgpu.raw.adapter.request_device_sync(required_limits=limits)
    with Device.from_wgpu(raw) as device:
        for algorithm in ("tiled", "short", "streaming"):
            assert right(device, x, wa.plan(CAUSAL, device, algorithm=algorithm), caller_buffers(device, x))
    assert raw.create_buffer(size=16, usage=128) is not None, "the caller's device lives on"


# Caches


class Counted:
    """A device of the package's whose ``create_`` calls are counted."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("create_"):
            self.made.append(name)
        return getattr(self._raw, name)


@pytest.mark.parametrize("algorithm", ["tiled", "short", "streaming"])
def test_a_warm_record_makes_nothing(wgpu: Device, x: Sample, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    """Nor does it submit, write to the queue or read back: the raw device is touched by the caller's encoder only."""
    counted = Counted(wgpu.raw)
    for holder, name in ((wgpu, "raw"), (wgpu._memory, "_raw"), (wgpu._pipelines, "_raw")):
        monkeypatch.setattr(holder, name, counted)
    made = wa.plan(CAUSAL, wgpu, algorithm=algorithm)
    layers = [caller_buffers(wgpu, x) for _ in range(3)]
    shared = wgpu.zeros(4 * 16 * SEQ * 4 + 256)
    layers.append({**layers[0], "d_q": (shared, 256, 4 * 16 * SEQ * 4)})
    options: list[dict[str, Any]] = [{}, {"scale": 0.5}, {"scale": np.float32(0.25)}, {"scale": 1}]
    options.append({"scratch": {name: wgpu.zeros(size) for name, size in made.scratch.items()}})
    options.append({"scratch": [wgpu.zeros(size) for size in made.scratch_bytes]})

    def record(encoder: Any) -> None:
        for buffers in layers:
            for given in options[:4]:
                made.record(encoder, buffers, **given)
        for given in options[4:]:
            made.record(encoder, dict(reversed(layers[0].items())), **given)

    encoder = wgpu.raw.create_command_encoder()
    record(encoder)
    counted.made.clear()

    def touched(*arguments: Any) -> None:
        raise AssertionError("a warm record used the queue")

    queue = wgpu.raw.queue
    for name in ("submit", "write_buffer", "read_buffer"):
        monkeypatch.setattr(type(queue), name, touched)
    assert wa.plan(CAUSAL, wgpu, algorithm=algorithm) is made
    record(encoder)
    assert counted.made == []


def test_a_warm_rotation_makes_nothing(wgpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary embedding goes by the same caches, and its bind groups go with its buffers."""
    wgpu.release()
    buffers = [wgpu.zeros(4 * 2 * 5 * 3 * 8) for _ in range(2)]

    def record(encoder: Any) -> None:
        for tensor, base, offset in itertools.product(("q", "k"), (10000.0, 500), (0, 7, 100_000)):
            for buffer in buffers:
                given = {"batch": 2, "seq": 5, "heads": 3, "head_dim": 8, "base": base, "offset": offset, "tensor": tensor}
                wa.record_rope_backward(wgpu, encoder, buffer, **given)

    wgpu.submit(record)
    programs = [rope_program(Rotation(batch=2, seq=5, heads=3, head_dim=8), wgpu, tensor) for tensor in ("q", "k")]
    assert len(wgpu.plans) == 2 and [len(program._bound) for program in programs] == [12, 12]
    counted = Counted(wgpu.raw)
    for holder, name in ((wgpu, "raw"), (wgpu._memory, "_raw"), (wgpu._pipelines, "_raw")):
        monkeypatch.setattr(holder, name, counted)
    record(wgpu.raw.create_command_encoder())
    assert counted.made == ["create_command_encoder"]
    buffers.pop()
    assert [len(program._bound) for program in programs] == [6, 6]


def test_a_plan_is_for_a_problem(wgpu: Device) -> None:
    recipe = rope_program(Rotation(seq=5, heads=3, head_dim=8), wgpu).recipe
    with pytest.raises(ArgumentError, match="recipe: got one for a Rotation"):
        Plan(recipe, wgpu)
    given = wa.plan(CAUSAL, wgpu, algorithm="streaming").recipe
    assert Plan(given, wgpu).explain() == given.label and given.label.startswith("streaming: attention_backward_wg")


def test_plans_are_kept_by_problem_and_options(wgpu: Device) -> None:
    made = wa.plan(CAUSAL, wgpu)
    again = problem(Mask.causal(), SEQ, heads=4, kv_heads=2)
    assert again is not CAUSAL and wa.plan(again, wgpu) is made
    others = [wa.plan(CAUSAL, wgpu, algorithm="short"), wa.plan(CAUSAL, wgpu, guard="propagate")]
    others.append(wa.plan(problem(Mask.causal(), SEQ, heads=4, kv_heads=2, accumulate=True), wgpu))
    assert len({id(found) for found in (made, *others)}) == 4
    wgpu.release()
    assert wa.plan(CAUSAL, wgpu) is not made
    limit, wgpu.plans.limit = wgpu.plans.limit, 2
    try:
        for seq in range(40, 44):
            wa.plan(problem(Mask.causal(), seq), wgpu)
        assert len(wgpu.plans) == 2
    finally:
        wgpu.plans.limit = limit


def test_bind_groups_keep_no_buffer_alive(wgpu: Device, x: Sample) -> None:
    made = wa.plan(CAUSAL, wgpu)
    made.release()
    buffers, scratch = caller_buffers(wgpu, x), {name: wgpu.zeros(size) for name, size in made.scratch.items()}
    for given in ({}, {"scratch": scratch}):
        wgpu.submit(lambda encoder, given=given: made.record(encoder, buffers, **given))
    assert len(made._bound) == 2
    seen = weakref.ref(next(iter(scratch.values())))
    scratch.clear()
    gc.collect()
    assert seen() is None and len(made._bound) == 1
    buffers.pop("k")
    assert len(made._bound) == 0


def test_bind_groups_are_bounded(wgpu: Device, x: Sample) -> None:
    made = wa.plan(CAUSAL, wgpu)
    made._bound.limit = 4
    layers = [caller_buffers(wgpu, x) for _ in range(6)]
    for buffers in layers * 2:
        made.record(wgpu.raw.create_command_encoder(), buffers)
    assert len(made._bound) == 4
    for scale in range(1, 10):
        made.record(wgpu.raw.create_command_encoder(), layers[0], scale=scale)
    assert len(made._uniforms._words) <= 4


def test_a_changed_call_is_checked_again(wgpu: Device, x: Sample) -> None:
    made, buffers = wa.plan(CAUSAL, wgpu), caller_buffers(wgpu, x)
    encoder = wgpu.raw.create_command_encoder()
    made.record(encoder, buffers)
    for bad in ((buffers["q"], 4, 1 << 20), (buffers["q"], 0, 16), (buffers["q"],), (), (buffers["q"], [0], None), None):
        with pytest.raises(GpuBufferError, match="'q'"):
            made.record(encoder, {**buffers, "q": bad})
    for scale in ("x", float("nan"), [1.0, 2.0], np.inf):
        with pytest.raises(ArgumentError, match="scale"):
            made.record(encoder, buffers, scale=scale)


def test_plans_from_many_threads(wgpu: Device, x: Sample) -> None:
    wgpu.release()
    problems = [CAUSAL, problem(Mask.causal(), 70), problem(Mask.full(), 33)]
    given = {p: sample(p) for p in problems}
    plans: list[set[int]] = [set() for _ in problems]
    faults: list[object] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            start.wait()
            for turn in range(6):
                which = (number + turn) % len(problems)
                p = problems[which]
                made = wa.plan(p, wgpu)
                plans[which].add(id(made))
                buffers = caller_buffers(wgpu, given[p])
                for _ in range(3):
                    wgpu.submit(lambda encoder, made=made, buffers=buffers: made.record(encoder, buffers))
                if not rule(given[p], made.recipe.algorithm).judge(read(wgpu, given[p], buffers)).ok:
                    faults.append((number, p))
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == [] and [len(found) for found in plans] == [1, 1, 1]


def test_prepare_compiles_ahead(backend: str, x: Sample) -> None:
    problems = [CAUSAL, problem(Mask.causal(), SEQ, heads=4, kv_heads=2, accumulate=True)]
    with open_device(backend) as device:
        plans = wa.prepare(problems, device, algorithm="tiled")
        assert [made.problem for made in plans] == problems
        assert wa.prepare(problems, device, algorithm="tiled") == plans
        assert {v.name for made in plans for v in made.recipe.variants} == {key[0] for key in device._pipelines._made._items}
        assert right(device, x, plans[0], caller_buffers(device, x))
    with pytest.raises(DeviceError, match="is closed"):
        wa.prepare(problems, device)
    with pytest.raises(ArgumentError, match="Problems"):
        wa.prepare([{"q_len": 4}], wgpu_device())  # type: ignore[list-item]


# The end of a device


@pytest.fixture
def opened(backend: str) -> Iterator[Device]:
    with open_device(backend) as device:
        yield device


def test_closing_releases_everything(opened: Device, x: Sample) -> None:
    made, buffers = wa.plan(CAUSAL, opened, algorithm="short"), caller_buffers(opened, x)
    opened.submit(lambda encoder: made.record(encoder, buffers))
    scratch = [weakref.ref(buffer) for buffer in opened.pool._buffers.values()]
    assert len(scratch) == 2
    encoder = opened.raw.create_command_encoder()
    opened.close()
    gc.collect()
    assert all(reference() is None for reference in scratch)
    assert len(opened.plans) == len(made._bound) == len(made._uniforms._words) == len(opened._pipelines._made) == 0
    for use in (lambda: made.record(encoder, buffers), lambda: wa.plan(CAUSAL, opened), lambda: made.bind(buffers)):
        with pytest.raises(DeviceError, match="is closed; open another"):
            use()


def test_a_lost_device_and_a_new_one(opened: Device, x: Sample) -> None:
    """One clear error, at the latest when the results are read; then the same at once, for whatever is asked."""
    made, buffers = wa.plan(CAUSAL, opened, algorithm="short"), caller_buffers(opened, x)
    opened.submit(lambda encoder: made.record(encoder, buffers))
    opened.raw.destroy()
    with pytest.raises(DeviceError, match="was lost while"):
        with opened.guard("running the caller's program"):
            opened.submit(lambda encoder: made.record(encoder, buffers))
        opened.read(buffers["d_q"])
    assert not opened.usable and len(opened.plans) == len(made._bound) == 0
    for use in (lambda: made.bind(buffers), lambda: wa.plan(CAUSAL, opened), lambda: wa.prepare([CAUSAL], opened)):
        with pytest.raises(DeviceError, match="is lost; open another"):
            use()
    with open_device(opened.backend) as device:
        assert right(device, x, wa.plan(CAUSAL, device, algorithm="short"), caller_buffers(device, x))


def test_a_dropped_device_is_freed(x: Sample) -> None:
    """No module-wide cache holds a device, its plans or its pipelines."""
    device = open_device("wgpu")
    made, buffers = wa.plan(CAUSAL, device), caller_buffers(device, x)
    assert right(device, x, made, buffers)
    seen = weakref.ref(device), weakref.ref(made)
    device.close()
    del device, made, buffers
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


def test_problem_is_a_cheap_key() -> None:
    """What the caches rest on: equal problems are equal keys, whoever made them."""
    p, same = (Problem(q_len=8, kv_len=8, heads=1, kv_heads=1, head_dim=4, mask=Mask.window(3, 0)) for _ in range(2))
    assert p == same and hash(p) == hash(same) and len({p, same}) == 1
