"""The tiled algorithm's masks against float64: every mode, their compositions, and what a mask must keep out.

Each case runs with the layout that fits everywhere, and with ``small``'s blocks, whose edges lie in the middle of every case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.attention import Array, Run, documents, sample, wgpu_device
from support.tiled_cases import GUARDS, assert_same_bits, check, problem, recipe
from wgsl_attention.algorithms.tiled_split import rooms
from wgsl_attention.gpu.device import Device
from wgsl_attention.kernels.tiled_products import AttentionScores
from wgsl_attention.problem.mask import Align, Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.reference.attention import key_intervals
from wgsl_attention.reference.samples import Sample

KINDS = ("16k", "small")
CAUSAL, WHOLE = Mask.documents(), Mask.documents(causal=False)


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


@pytest.mark.parametrize("align", ["bottom-right", "top-left"])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 239), (239, 1), (3, 799), (799, 3), (127, 512), (512, 127)])
@pytest.mark.parametrize("kind", KINDS)
def test_causal_with_other_keys(wgpu: Device, kind: str, q_len: int, kv_len: int, align: Align) -> None:
    p = problem(Mask.causal(align), q_len, kv_len, heads=2, kv_heads=1)
    got = check(wgpu, recipe(p, kind), sample(p))
    if align == "bottom-right" and q_len > kv_len:
        empty = got["d_q"][:, : q_len - kv_len]
        assert empty.size and not empty.view(np.uint32).any()


@pytest.mark.parametrize("window", [(0, 0), (1, 0), (64, 0), (129, 0), (16, 16), (500, 500), (None, 7), (40, None)], ids=str)
@pytest.mark.parametrize(("q_len", "kv_len"), [(130, 130), (60, 130), (130, 60)])
@pytest.mark.parametrize("kind", KINDS)
def test_windows(wgpu: Device, kind: str, q_len: int, kv_len: int, window: tuple[int | None, int | None]) -> None:
    for align in ("bottom-right", "top-left"):
        p = problem(Mask.window(*window, align), q_len, kv_len)
        check(wgpu, recipe(p, kind), sample(p))


def test_widest_window_is_causal(wgpu: Device) -> None:
    wide, causal = (problem(mask, 130) for mask in (Mask.window(129, 0), Mask.causal()))
    assert wide.interval == causal.interval
    given = sample(causal)
    assert_same_bits(*(Run(device=wgpu, recipe=recipe(p))(given) for p in (wide, causal)))


def test_window_keeps_one_more_than_its_width(wgpu: Device) -> None:
    """Query 2048 is the last that sees key 0: of a window of 2048, 2049 keys are kept. Query 2049 does not see it."""
    p = problem(Mask.window(2048, 0), 2050, heads=1, kv_heads=1, head_dim=8)
    given = sample(p)
    d_o = np.zeros_like(given["d_o"])
    d_o[:, 2048] = 1
    seen = Run(device=wgpu, recipe=recipe(p))(given.changed(d_o=d_o))["d_v"][0, :, 0, 0]
    assert (seen[:2049] > 0).all() and seen[2049] == 0
    d_o = np.roll(d_o, 1, axis=1)
    seen = Run(device=wgpu, recipe=recipe(p))(given.changed(d_o=d_o))["d_v"][0, :, 0, 0]
    assert seen[0] == 0 and (seen[1:] > 0).all()


DOCUMENTS = {
    "one": [130],
    "as many as positions": [1] * 130,
    "edges on tiles": [32, 32, 64, 2],
    "edges off tiles": [31, 2, 63, 34],
    "of length 1 between long ones": [64, 1, 1, 63, 1],
    "a boundary in the last position": [129, 1],
    "long, then short": [100, 1, 2, 3, 24],
}
COMPOSED: dict[str, Mask] = {
    "documents & window": CAUSAL & Mask.window(20, 0),
    "documents & a narrow window": CAUSAL & Mask.window(0, 0),
    "documents & a window ahead": CAUSAL & Mask.window(5, 9),
    "documents & prefix": CAUSAL & Mask.prefix(50),
    "whole documents & causal": WHOLE & Mask.causal(),
    "whole documents & window": WHOLE & Mask.window(12, 20),
    "whole documents & prefix": WHOLE & Mask.prefix(40),
}


@pytest.mark.parametrize("mask", [CAUSAL, WHOLE], ids=str)
@pytest.mark.parametrize("lengths", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_documents(wgpu: Device, kind: str, lengths: list[int], mask: Mask) -> None:
    p = problem(mask, 130)
    check(wgpu, recipe(p, kind), sample(p, doc_start=documents(p, lengths)))


@pytest.mark.parametrize("mask", COMPOSED.values(), ids=COMPOSED)
@pytest.mark.parametrize("kind", KINDS)
def test_documents_with_other_masks(wgpu: Device, kind: str, mask: Mask) -> None:
    """And other documents in each batch entry."""
    p = problem(mask, 130, batch=3)
    check(wgpu, recipe(p, kind), sample(p, doc_start=documents(p, seed=4)))


@pytest.mark.parametrize("mask", [Mask.causal("top-left"), Mask.full(), Mask.window(40, 9), Mask.prefix(50)], ids=str)
@pytest.mark.parametrize(("q_len", "kv_len"), [(300, 300), (77, 500), (500, 77)])
@pytest.mark.parametrize("kind", KINDS)
def test_room_is_counted_alike_on_both_sides(wgpu: Device, kind: str, q_len: int, kv_len: int, mask: Mask) -> None:
    """The tiles before each block of queries: as attention_intervals leaves them, and as scratch is made for them."""
    p = problem(mask, q_len, kv_len, heads=2, kv_heads=1, batch=2)
    made = recipe(p, kind)
    scores = next(variant for variant in made.variants if isinstance(variant, AttentionScores))
    room = rooms(p, scores.rows, scores.cols)
    runner = Run(device=wgpu, recipe=made, scratch=float("nan"))
    runner(sample(p))
    assert runner.buffers is not None
    left = np.frombuffer(wgpu.read(runner.buffers["intervals"]), np.int32).reshape(-1, 2)[-len(room) :, 0]
    assert left.tolist() == [sum(room[:block]) for block in range(len(room))]


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_as_long_as_the_longest_document(wgpu: Device, causal: bool) -> None:
    """Changes nothing that is seen, and takes scratch by its own length."""
    lengths = [40, 1, 33, 40, 26, *9 * [40]]
    longest = max(lengths)
    p = problem(Mask.documents(causal=causal), sum(lengths))
    case = sample(p, doc_start=documents(p, lengths))
    bounded = replace(p, mask=p.mask & Mask.window(longest - 1, 0 if causal else longest - 1))
    want = case.expected()
    for q in (p, bounded):
        verdict = want.judge(Run(device=wgpu, recipe=recipe(q))(replace(case, problem=q)))
        assert verdict.ok, str(verdict)
    assert recipe(bounded).scratch["p_tiles"] <= recipe(p).scratch["p_tiles"] / 2


@pytest.mark.parametrize("mask", [CAUSAL, CAUSAL & Mask.window(30, 0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_doc_start_that_is_not_monotone(wgpu: Device, kind: str, mask: Mask) -> None:
    p = problem(mask, 130, batch=2)
    starts = np.random.default_rng(3).integers(0, np.arange(130) + 1, (2, 130))
    check(wgpu, recipe(p, kind), sample(p, doc_start=starts))


BANDS: dict[str, Mask] = {
    "causal & causal(top-left)": Mask.causal() & Mask.causal("top-left"),
    "window & window(top-left)": Mask.window(40, 5) & Mask.window(3, 30, "top-left"),
    "window & prefix": Mask.window(40, None) & Mask.prefix(50),
    "window & prefix(top-left)": Mask.window(25, 60) & Mask.prefix(50, "top-left"),
    "prefix & prefix": Mask.prefix(50) & Mask.prefix(70),
    "two windows without a common key": Mask.window(0, 0) & Mask.window(0, 0, "top-left"),
}


@pytest.mark.parametrize("mask", BANDS.values(), ids=BANDS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(100, 100), (100, 70), (70, 100)])
@pytest.mark.parametrize("kind", KINDS)
def test_compositions(wgpu: Device, kind: str, q_len: int, kv_len: int, mask: Mask) -> None:
    p = problem(mask, q_len, kv_len)
    check(wgpu, recipe(p, kind), sample(p))


@pytest.mark.parametrize("length", [0, 1, 33, 100], ids="prefix {}".format)
@pytest.mark.parametrize(("q_len", "kv_len"), [(100, 100), (60, 100), (100, 60)])
@pytest.mark.parametrize("kind", KINDS)
def test_prefixes(wgpu: Device, kind: str, q_len: int, kv_len: int, length: int) -> None:
    for align in ("bottom-right", "top-left"):
        p = problem(Mask.prefix(length, align), q_len, kv_len)
        check(wgpu, recipe(p, kind), sample(p))


KEY_LENGTHS: dict[str, Mask] = {
    "full": Mask.full(),
    "causal": Mask.causal(),
    "causal(top-left)": Mask.causal("top-left"),
    "window": Mask.window(9, 20),
    "prefix": Mask.prefix(40),
    "documents": CAUSAL,
    "whole documents": WHOLE,
}


@pytest.mark.parametrize("mask", KEY_LENGTHS.values(), ids=KEY_LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_key_lengths(wgpu: Device, kind: str, mask: Mask) -> None:
    """None, one, a tile's edge, one past it, some, and all of the keys of a batch entry count."""
    for q_len in (100,) if mask.documents_mode else (100, 37):
        p = problem(mask, q_len, 100, batch=6, heads=2, kv_heads=1, kv_lengths=True)
        got = check(wgpu, recipe(p, kind), sample(p, kv_lengths=[0, 1, 64, 65, 83, 100]))
        assert not any(got[name][0].view(np.uint32).any() for name in GRADIENTS)


@pytest.mark.parametrize(
    "p",
    [
        problem(Mask.causal(), 70, 60, kv_lengths=True, batch=2),
        problem(WHOLE & Mask.window(20, 9), 70, batch=2),
    ],
    ids=lambda p: str(p.mask),
)
def test_every_backend(device: Device, p: Problem) -> None:
    check(device, recipe(p, "small"), sample(p))


# What is not visible


def poisoned(given: Sample, poison: float, rows: Array, keys: Array) -> Sample:
    """``rows`` (batch, q_len) and ``keys`` (batch, kv_len) say which positions hold the poison, in every array."""
    arrays: dict[str, Array] = {}
    for name, where in (("q", rows), ("d_o", rows), ("o", rows), ("delta", rows), ("k", keys), ("v", keys)):
        arrays[name] = given[name].copy()
        arrays[name][where] = poison
    return given.changed(**arrays)


INVISIBLE: dict[str, tuple[Problem, dict[str, Any]]] = {
    "keys before every window": (problem(Mask.window(3, 0), 70, 150), {}),
    "keys past every window": (problem(Mask.window(3, 0, "top-left"), 70, 150), {}),
    "queries that see nothing": (problem(Mask.causal(), 150, 70), {}),
    "queries between those that do": (problem(Mask.window(0, 0) & Mask.window(0, 0, "top-left"), 70, 100), {}),
    "keys past kv_lengths": (problem(Mask.full(), 70, 100, batch=4, kv_lengths=True), {"kv_lengths": [0, 40, 64, 99]}),
    "keys past kv_lengths, causal": (problem(Mask.causal(), 100, batch=4, kv_lengths=True), {"kv_lengths": [0, 40, 64, 99]}),
    "documents cut off by kv_lengths": (
        problem(CAUSAL, 100, batch=2, kv_lengths=True),
        {"kv_lengths": [40, 65], "doc_start": np.repeat([[0, 50]], 50, axis=1).repeat(2, axis=0)},
    ),
}


@pytest.mark.parametrize("poison", [1e30, np.nan], ids=["1e30", "nan"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("given", ["none", "o", "delta"])
@pytest.mark.parametrize(("p", "options"), INVISIBLE.values(), ids=INVISIBLE)
def test_what_is_invisible_changes_no_bit(
    wgpu: Device, p: Problem, options: dict[str, Any], given: Any, guard: str, poison: float
) -> None:
    """Neither does what the scratch held before: blocks outside every interval are not read."""
    clean = sample(p, **options).asking(given=given)
    lo, hi = key_intervals(clean.problem, **{n: clean[n] for n in ("doc_start", "kv_lengths") if n in clean.arrays})
    keys = np.ones((p.batch, p.kv_len), bool)
    for b, i in np.ndindex(lo.shape):
        keys[b, lo[b, i] : hi[b, i]] = False
    rows = lo >= hi
    assert rows.any() or keys.any()
    dirty = poisoned(clean, poison, rows, keys)
    for kind in KINDS:
        made = recipe(clean.problem, kind, guard)
        want = Run(device=wgpu, recipe=made)(clean)
        assert_same_bits(Run(device=wgpu, recipe=made, scratch=poison)(dirty, padding=poison), want)
        for where, names in ((rows, ["d_q"]), (keys, ["d_k", "d_v"])):
            assert not any(want[name][where].view(np.uint32).any() for name in names)
