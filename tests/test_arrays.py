"""The NumPy face: what it converts, what it refuses, ``check_lse``, and problems drawn from the whole space."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention import RECIPES, documents, problem, rule, sample, wgpu_device
from wgsl_attention import ArgumentError, Gradients, Mask, Problem, UnservedProblemError, attention_backward, rope_backward
from wgsl_attention.gpu.device import Device
from wgsl_attention.problem.problem import GRADIENTS
from wgsl_attention.reference import attention as float64
from wgsl_attention.reference.samples import Sample
from wgsl_attention.selection.ranking import select

Array = np.ndarray[Any, Any]
SEQ, HEADS, KV_HEADS, HEAD_DIM = 24, 4, 2, 16


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


@pytest.fixture(scope="module")
def causal() -> Sample:
    return sample(problem(Mask.causal(), SEQ, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM))


def call(x: Sample, device: Device, *, batched: bool = False, **changes: Any) -> Gradients:
    """The call that ``x`` describes, with changes; without a batch axis unless ``batched``."""
    arrays: dict[str, Any] = {name: x[name] if batched else x[name][0] for name in x.problem.inputs}
    arguments = {"mask": x.problem.mask, "scale": x.scale, "device": device, **arrays, **changes}
    return attention_backward(**arguments)


def outputs(found: Gradients) -> dict[str, Array]:
    """As the reference has them."""
    return {name: getattr(found, name) for name in GRADIENTS}


def batch_of_one(found: Gradients) -> dict[str, Array]:
    return {name: array[None] for name, array in outputs(found).items()}


class Untouched:
    """Stands for a device where the input must be refused before any device is used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the device's {name} was used")


NOBODY: Any = Untouched()


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


BAD_INPUT: dict[str, tuple[dict[str, Any], str, str]] = {
    "q of rank 2": ({"q": zeros(SEQ, 64)}, "q", r"shape \(24, 64\).*\(seq, heads, head_dim\)"),
    "q of rank 5": ({"q": zeros(1, 1, SEQ, HEADS, HEAD_DIM)}, "q", "batch, seq, heads, head_dim"),
    "a batch axis on k alone": ({"k": zeros(1, SEQ, KV_HEADS, HEAD_DIM)}, "k", "for all"),
    "an empty axis": ({"q": zeros(0, HEADS, HEAD_DIM)}, "q", "no empty axis"),
    "v shorter than k": ({"v": zeros(SEQ - 1, KV_HEADS, HEAD_DIM)}, "v", r"shape .*23.*want .*24"),
    "k of another head_dim": ({"k": zeros(SEQ, KV_HEADS, 8)}, "k", "want .*16"),
    "v of other heads": ({"v": zeros(SEQ, 1, HEAD_DIM)}, "v", "want .*2"),
    "d_o shorter than q": ({"d_o": zeros(SEQ - 1, HEADS, HEAD_DIM)}, "d_o", "want .*24"),
    "d_o of other heads": ({"d_o": zeros(SEQ, 2, HEAD_DIM)}, "d_o", "want .*4"),
    "heads not a multiple of kv_heads": (
        {"k": zeros(SEQ, 3, HEAD_DIM), "v": zeros(SEQ, 3, HEAD_DIM)},
        "heads",
        "4 with kv_heads 3; want a multiple of kv_heads",
    ),
    "head_dim 257": (
        {"q": zeros(SEQ, 4, 257), "k": zeros(SEQ, 2, 257), "v": zeros(SEQ, 2, 257), "d_o": zeros(SEQ, 4, 257)},
        "head_dim",
        "257; want 1 to 256",
    ),
    "complex q": ({"q": np.zeros((SEQ, HEADS, HEAD_DIM), np.complex64)}, "q", "complex64; want floats or integers"),
    "a boolean v": ({"v": np.zeros((SEQ, KV_HEADS, HEAD_DIM), bool)}, "v", "bool"),
    "text": ({"q": np.full((SEQ, HEADS, HEAD_DIM), "1")}, "q", "want floats or integers"),
    "objects": ({"d_o": np.full((SEQ, HEADS, HEAD_DIM), None)}, "d_o", "object"),
    "lse with heads first": ({"lse": zeros(HEADS, SEQ)}, "lse", r"\(4, 24\).*looks like.*swap the last two axes"),
    "lse of one axis": ({"lse": zeros(SEQ)}, "lse", r"\(24,\); want \(24, 4\)"),
    "lse with a batch axis": ({"lse": zeros(1, SEQ, HEADS)}, "lse", r"want \(24, 4\)"),
    "lse that is complex": ({"lse": np.zeros((SEQ, HEADS), complex)}, "lse", "complex128"),
    "o of another shape": ({"o": zeros(SEQ, HEADS, 8)}, "o", "want .*16"),
    "delta with heads first": ({"delta": zeros(HEADS, SEQ)}, "delta", "swap the last two axes"),
    "scale nan": ({"scale": float("nan")}, "scale", "nan; want a finite number"),
    "scale inf": ({"scale": float("inf")}, "scale", "inf; want a finite number"),
    "scale that is text": ({"scale": "x"}, "scale", "'x'; want a number"),
    "a mask by name": ({"mask": "causal"}, "mask", r"'causal'; want a Mask, such as Mask.causal\(\)"),
    "no mask at all": ({"mask": None}, "mask", "None; want a Mask"),
    "an algorithm that there is none of": ({"algorithm": "fast"}, "algorithm", "'fast'; want one of"),
    "a guard that there is none of": ({"guard": "none"}, "guard", "'none'; want 'zero' or 'propagate'"),
    "documents without doc_start": ({"mask": Mask.documents()}, "doc_start", "nothing; want"),
    "doc_start without documents": ({"doc_start": np.zeros(SEQ, int)}, "doc_start", "Mask.documents"),
    "documents on other keys": (
        {"mask": Mask.documents(), "doc_start": np.zeros(SEQ, int), "k": zeros(9, 2, 16), "v": zeros(9, 2, 16)},
        "mask",
        "q_len equal to kv_len",
    ),
}
DOCUMENTS = {"mask": Mask.documents()}
BAD_DOCUMENTS: dict[str, tuple[Any, str]] = {
    "floats": (np.zeros(SEQ), "float64; want integers"),
    "booleans": (np.zeros(SEQ, bool), "bool; want integers"),
    "too short": (np.zeros(SEQ - 1, int), r"shape \(23,\); want \(24,\) or \(1, 24\)"),
    "three axes": (np.zeros((1, 1, SEQ), int), "shape"),
    "below zero": (np.r_[0, -1, np.zeros(SEQ - 2, int)], "-1 at batch entry 0, position 1; want 0 to 1"),
    "past its own position": (np.r_[0, 2, np.zeros(SEQ - 2, int)], "2 at batch entry 0, position 1; want 0 to 1"),
    "past the end": (np.full(SEQ, SEQ), "24 at batch entry 0, position 0"),
}
BAD_INPUT |= {f"doc_start: {key}": ({**DOCUMENTS, "doc_start": v}, "doc_start", m) for key, (v, m) in BAD_DOCUMENTS.items()}
BAD_LENGTHS = {"floats": [24.0], "too many": [1, 2], "below zero": [-1], "past the keys": [SEQ + 1], "one number": 3}
BAD_INPUT |= {f"kv_lengths: {key}": ({"kv_lengths": v}, "kv_lengths", "want") for key, v in BAD_LENGTHS.items()}


@pytest.mark.parametrize(("changes", "argument", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(wgpu: Device, causal: Sample, changes: dict[str, Any], argument: str, message: str) -> None:
    """Each its own error, naming the argument, before a device is used (but for names that only ``select`` knows)."""
    device = wgpu if argument in ("algorithm", "guard") else NOBODY
    with pytest.raises(ArgumentError, match=message) as raised:
        call(causal, device, **changes)
    assert raised.value.argument == argument and isinstance(raised.value, ValueError)


def test_mask_is_required(causal: Sample) -> None:
    arrays = {name: causal[name][0] for name in causal.problem.inputs}
    with pytest.raises(TypeError, match="mask"):
        attention_backward(**arrays)


@pytest.mark.parametrize(
    ("changes", "argument", "message"),
    [
        ({"d_x": zeros(4, 8)}, "d_x", "shape"),
        ({"d_x": zeros(4, 0, 8)}, "d_x", "shape"),
        ({"d_x": zeros(4, 2, 7)}, "head_dim", "7; want an even number"),
        ({"d_x": zeros(4, 2, 258)}, "head_dim", "258"),
        ({"d_x": zeros(4, 2, 8).astype(complex)}, "d_x", "complex"),
        ({"base": 0}, "base", "positive"),
        ({"base": float("inf")}, "base", "finite"),
        ({"base": "x"}, "base", "'x'"),
        ({"offset": -1}, "offset", "-1"),
        ({"offset": 2**32}, "offset", "want"),
        ({"offset": 1.5}, "offset", "1.5"),
    ],
)
def test_bad_rope_input(changes: dict[str, Any], argument: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        rope_backward(**{"d_x": zeros(4, 2, 8), "device": NOBODY, **changes})
    assert raised.value.argument == argument


# Conversions


def test_shapes_and_dtypes_of_the_result(wgpu: Device, causal: Sample) -> None:
    found, batched = call(causal, wgpu), call(causal, wgpu, batched=True)
    for gradient, array in (("d_q", causal["q"]), ("d_k", causal["k"]), ("d_v", causal["v"])):
        one, four = getattr(found, gradient), getattr(batched, gradient)
        assert one.shape == array.shape[1:] and four.shape == array.shape and one.dtype == four.dtype == np.float32
        assert one.flags.writeable and one.tobytes() == four.tobytes()


CONVERSIONS = {
    "float64": lambda x: x.astype(np.float64),
    "Fortran order": np.asfortranarray,
    "every other element": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "transposed": lambda x: np.ascontiguousarray(np.moveaxis(x, 0, 1)).swapaxes(0, 1),
    "big-endian": lambda x: x.astype(">f4"),
    "a list": lambda x: x.tolist(),
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_conversions(wgpu: Device, causal: Sample, convert: Any) -> None:
    changed = {name: convert(causal[name][0]) for name in causal.problem.inputs}
    found, plain = call(causal, wgpu, **changed), call(causal, wgpu)
    for gradient in GRADIENTS:
        assert getattr(found, gradient).tobytes() == getattr(plain, gradient).tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.int64, np.uint16])
def test_narrow_and_whole_numbers(wgpu: Device, causal: Sample, dtype: Any) -> None:
    """Converted to float32, whatever they are."""
    low = 0 if np.dtype(dtype).kind == "u" else -2
    numbers = np.random.default_rng(0).integers(low, 3, (2, SEQ, HEADS, HEAD_DIM))
    x = sample(causal.problem, q=numbers[:1], k=numbers[1:, :, :KV_HEADS])
    found = call(x, wgpu, q=x["q"][0].astype(dtype), k=x["k"][0].astype(dtype))
    verdict = x.expected().judge(batch_of_one(found))
    assert verdict.ok, verdict


def test_inputs_are_left_alone(wgpu: Device, causal: Sample) -> None:
    before = {name: array.tobytes() for name, array in causal.arrays.items()}
    call(causal, wgpu)
    assert before == {name: array.tobytes() for name, array in causal.arrays.items()}


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int32])
def test_doc_start_of_any_integer(wgpu: Device, dtype: Any) -> None:
    x = sample(problem(Mask.documents(), SEQ, batch=2))
    same = sample(problem(Mask.documents(), SEQ, batch=2), doc_start=np.broadcast_to(x["doc_start"][0], (2, SEQ)))
    for given_, doc_start in ((x, x["doc_start"]), (same, x["doc_start"][0])):
        found = call(given_, wgpu, batched=True, doc_start=doc_start.astype(dtype))
        verdict = given_.expected().judge(outputs(found))
        assert verdict.ok, verdict


def test_rope_converts(wgpu: Device) -> None:
    d_x = np.random.default_rng(0).integers(-3, 4, (6, 2, 8))
    plain = rope_backward(d_x.astype(np.float32), device=wgpu)
    assert plain.dtype == np.float32 and plain.shape == d_x.shape
    for other in (d_x, np.asfortranarray(d_x.astype(float)), d_x.astype(np.float16)):
        assert rope_backward(other, device=wgpu).tobytes() == plain.tobytes()


@pytest.mark.parametrize("given_", ["o", "delta"])
def test_o_and_delta_change_nothing_wrong(wgpu: Device, causal: Sample, given_: str) -> None:
    """They save work where a kernel uses them; the gradients are as right."""
    o, _ = float64.forward(causal.problem, causal["q"], causal["k"], causal["v"])
    extra = {"o": o[0]} if given_ == "o" else {"delta": (o * causal["d_o"]).sum(axis=-1)[0]}
    found = call(causal, wgpu, **extra)
    verdict = causal.expected().judge(batch_of_one(found))
    assert verdict.ok, verdict


# The same for every recipe


@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.documents()], ids=["full", "causal", "documents"])
def test_result_is_the_same_for_both_recipes(device: Device, mask: Mask) -> None:
    """Streaming adds and short overwrites on the GPU; here neither shows, also the second time."""
    if device.backend == "dawn" and mask != Mask.causal():
        pytest.skip("each pipeline takes Dawn on SwiftShader seconds")
    x = sample(problem(mask, SEQ))
    for algorithm in RECIPES:
        for _ in range(2):
            verdict = rule(x, algorithm).judge(outputs(call(x, device, batched=True, algorithm=algorithm)))
            assert verdict.ok, verdict


def test_unserved_problem_says_why(wgpu: Device, causal: Sample) -> None:
    with pytest.raises(UnservedProblemError, match="short has no mask mode for") as raised:
        call(causal, wgpu, mask=Mask.window(2, 2), algorithm="short")
    assert raised.value.reasons


# check_lse


def test_check_lse_accepts_the_right_one(wgpu: Device) -> None:
    for mask in (Mask.full(), Mask.causal(), Mask.documents(), Mask.window(3, 1)):
        x = sample(problem(mask, SEQ, batch=2), scale=0.3)
        assert rule(x, "streaming").judge(outputs(call(x, wgpu, batched=True, check_lse=True))).ok
    empty = sample(problem(Mask.causal(), 30, 20))
    assert np.isposinf(empty["lse"]).any()
    call(empty, wgpu, check_lse=True)


def first_row(batch: int, position: int, head: int) -> str:
    return f"first at batch entry {batch}, position {position}, head {head}"


def test_check_lse_names_the_first_row(causal: Sample) -> None:
    x = sample(problem(Mask.causal(), SEQ, batch=2, heads=HEADS, kv_heads=KV_HEADS))
    lse = x["lse"].copy()
    lse[1, 7, 2] += 0.01
    lse[1, 9, 0] = np.nan
    with pytest.raises(ArgumentError, match=first_row(1, 7, 2)) as raised:
        call(x, NOBODY, batched=True, lse=lse, check_lse=True)
    assert raised.value.argument == "lse"


WRONG_LSE: dict[str, Any] = {
    "base 2": lambda x: {"lse": x["lse"][0] / np.float32(np.log(2))},
    "no scale": lambda x: {"scale": 1.0},
    "another mask": lambda x: {"mask": Mask.full()},
    "heads swapped": lambda x: {"lse": x["lse"][0, :, ::-1]},
    "zeros": lambda x: {"lse": np.zeros_like(x["lse"][0])},
    "nan": lambda x: {"lse": np.full_like(x["lse"][0], np.nan)},
    "infinite where something is visible": lambda x: {"lse": np.full_like(x["lse"][0], np.inf)},
    "a sink": lambda x: {"lse": x["lse"][0] + np.float32(0.05)},
}


@pytest.mark.parametrize("wrong", WRONG_LSE.values(), ids=WRONG_LSE)
def test_check_lse_finds(causal: Sample, wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"lse: got Σ P off from 1 .* first at batch entry 0, position \d+, head \d"):
        call(causal, NOBODY, check_lse=True, **wrong(causal))


@pytest.mark.parametrize("algorithm", RECIPES)
def test_lse_with_a_sink_is_right_without_the_check(wgpu: Device, causal: Sample, algorithm: str) -> None:
    lse = causal["lse"] + np.float32(0.05)
    found = call(causal, wgpu, lse=lse[0], algorithm=algorithm)
    verdict = rule(causal, algorithm, lse=lse).judge(batch_of_one(found))
    assert verdict.ok, verdict


# Problems from the whole space. The seed is fixed; WGSL_ATTENTION_EXAMPLES=1000 draws as many, and others each time.

EXAMPLES = int(os.environ.get("WGSL_ATTENTION_EXAMPLES", "0"))
DRAWN = settings(
    max_examples=EXAMPLES or 40,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    align = draw(st.sampled_from(["bottom-right", "top-left"]))
    width = st.none() | st.integers(0, 12)
    kinds = {
        "full": st.just(Mask.full()),
        "causal": st.just(Mask.causal(align)),
        "documents": st.just(Mask.documents()),
        "window": st.builds(Mask.window, width, width, st.just(align)),
        "prefix": st.builds(Mask.prefix, st.integers(0, 40), st.just(align)),
        "documents and window": st.builds(lambda left: Mask.documents() & Mask.window(left, 0), st.integers(0, 12)),
    }
    return draw(kinds[draw(st.sampled_from(sorted(kinds)))])


@st.composite
def calls(draw: st.DrawFn) -> tuple[Sample, float]:
    mask = draw(masks())
    q_len = draw(st.integers(1, 40))
    kv_len = q_len if mask.documents_mode else draw(st.integers(1, 40) | st.just(q_len))
    kv_heads = draw(st.integers(1, 3))
    p = Problem(
        batch=draw(st.integers(1, 2)),
        q_len=q_len,
        kv_len=kv_len,
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        # few, as each has kernels of its own to compile
        head_dim=draw(st.sampled_from([1, 6, 7, 16])),
        mask=mask,
    )
    seed, size = draw(st.integers(0, 1000)), draw(st.sampled_from([1.0, 5.0, 0.0]))
    doc_start = None
    if p.interval.doc_start:
        starts = st.lists(st.integers(0, 39), min_size=q_len, max_size=q_len)
        drawn = np.array([draw(starts) for _ in range(p.batch)])
        doc_start = np.minimum(drawn, np.arange(q_len)) if draw(st.booleans()) else documents(p, seed=seed)
    scale = draw(st.none() | st.sampled_from([0.0, 0.1, -0.5, 1.0]))
    q = size * sample(p, seed=seed, doc_start=doc_start)["q"]
    return sample(p, seed=seed, doc_start=doc_start, scale=scale, q=q), size


@DRAWN
@given(calls())
def test_any_problem(wgpu: Device, drawn: tuple[Sample, float]) -> None:
    """Every algorithm that serves the problem passes the rule, and one always does."""
    x, _ = drawn
    served = [name for name in RECIPES if select(x.problem, wgpu.profile, algorithm=name).candidates]
    assert "streaming" in served
    for algorithm in served:
        verdict = rule(x, algorithm).judge(outputs(call(x, wgpu, batched=True, algorithm=algorithm, check_lse=True)))
        assert verdict.ok, f"{algorithm}: {verdict}"
