"""The tiled algorithm's numbers: inputs that bring out errors, an lse that covers more, shards, repeatability, both guards."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attention import Array, Run, documents, sample, wgpu_device
from support.kinds import INPUTS
from support.tiled_cases import GUARDS, assert_same_bits, check, problem, recipe, small
from wgsl_attention.algorithms.tiled import tiled
from wgsl_attention.algorithms.tiled_layouts import choice
from wgsl_attention.gpu.device import Device
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.reference import attention as reference
from wgsl_attention.reference.attention import Outputs
from wgsl_attention.reference.samples import Sample
from wgsl_attention.rendering.renderer import render
from wgsl_attention.selection import catalog

KINDS = ("16k", "small")
GIVEN = ("none", "o", "delta")


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


@pytest.mark.parametrize("kind_of_input", INPUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", KINDS)
def test_inputs(wgpu: Device, kind: str, given: Any, kind_of_input: Callable[[Problem], Sample]) -> None:
    """The caller's delta is used as it is: no D that is made from the same P and dP, whose rounding it would have."""
    case = kind_of_input(problem(Mask.causal(), 140)).asking(given=given)
    check(wgpu, recipe(case.problem, kind), case, **({"delta": case["delta"]} if given == "delta" else {}))


@pytest.mark.parametrize("seed", range(3))
def test_long_sums(wgpu: Device, seed: int) -> None:
    """4100 terms for a key. In one chain of additions d_k and d_v were off by 2.1 times what the rule allows; here there are
    no parts that would break it up, as there are none on a GPU that is busy without them."""
    p = problem(Mask.causal(), 1025, heads=4, kv_heads=1)
    made = tiled(p, choice("16k", 16).replaced(parts=1))
    assert made.scratch.keys() == {"intervals", "query_tiles", "key_tiles", "p_tiles", "d_p_tiles", "row_sums", "row_terms"}
    check(wgpu, made, sample(p, seed=seed))


@pytest.mark.parametrize("terms", [{}, {"softcap": True, "alibi": True}], ids=["plain", "softcap, ALiBi"])
@pytest.mark.parametrize(("head_dim", "form"), [(64, "exact"), (72, "any"), (59, "at most")])
def test_written_out_texts_give_the_same_bits(wgpu: Device, head_dim: int, form: Any, terms: dict[str, bool]) -> None:
    """The same operations in the same order, whether a chunk's product is a loop or text."""
    case = sample(problem(Mask.causal(), 140, head_dim=head_dim, **terms))
    loop = choice("16k", head_dim, form=form)
    written = replace(loop, kernels=tuple(replace(kernel, written_out=True) for kernel in loop.kernels))
    made = [tiled(case.problem, each.suited(case.problem)) for each in (loop, written)]
    for old, new in zip(loop.kernels, written.kernels, strict=True):
        assert new.name == old.name.replace(f"_chunk{old.chunk}", f"_chunk{old.chunk}_wo")
        loops = [re.findall(r"< CHUNK(?: / 4u)?; (?:k|four)\+\+", render(kernel).wgsl) for kernel in (old, new)]
        assert loops[0] and not loops[1]
    assert_same_bits(*(Run(device=wgpu, recipe=each)(case) for each in made))


# An lse that is not quite these rows' own


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", KINDS)
def test_lse_with_a_sink(wgpu: Device, kind: str, given: Any) -> None:
    """Σ P of about 0.95 is legitimate and must stay so, and o and delta are then 0.95 of what they were."""
    p = problem(Mask.causal(), 90)
    own = sample(p)
    lse = (own["lse"] + np.float32(-math.log(0.95))).astype(np.float32)
    share = np.exp(own["lse"].astype(float) - lse)[..., None]
    o = own["o"] * share
    delta = (o * own["d_o"]).sum(axis=3).astype(np.float32)
    case = own.changed(lse=lse, o=o, delta=delta).asking(given=given)
    check(wgpu, recipe(case.problem, kind), case, lse=lse, delta=delta)
    assert not own.expected().judge(Run(device=wgpu, recipe=recipe(case.problem, kind))(case)).ok


@pytest.mark.parametrize("off", [1e-5, -1e-5])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", KINDS)
def test_lse_that_is_slightly_off(wgpu: Device, kind: str, given: Any, off: float) -> None:
    """Rounding of the lse is corrected: held against the rows' own softmax."""
    own = sample(problem(Mask.causal(), 90))
    case = own.changed(lse=own["lse"] + np.float32(off)).asking(given=given)
    check(wgpu, recipe(case.problem, kind), case)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", KINDS)
def test_infinite_lse_means_that_nothing_is_visible(wgpu: Device, kind: str, given: Any, guard: str) -> None:
    own = sample(problem(Mask.causal(), 90))
    rows = [0, 7, 33, 89]
    lse, d_o = own["lse"].copy(), own["d_o"].copy()
    lse[:, rows], d_o[:, rows] = np.inf, 0
    case = own.changed(lse=lse).asking(given=given)
    got = Run(device=wgpu, recipe=recipe(case.problem, kind, guard))(case)
    assert not got["d_q"][:, rows].view(np.uint32).any()
    assert not got["d_k"][:, 89].view(np.uint32).any() and not got["d_v"][:, 89].view(np.uint32).any()
    verdict = own.changed(d_o=d_o).expected().judge(got)
    assert verdict.ok, str(verdict)


# Shards


def in_shards(wgpu: Device, case: Sample, bounds: list[int], keys: list[int], given: Any, kind: str) -> Outputs:
    """One causal problem as calls over queries between ``bounds`` and keys between ``keys``, which are some of them; each call
    has the whole problem's lse and o or delta. The parts are added up in float64."""
    p = case.problem
    total = {name: np.zeros(shape) for name, shape in case.problem.outputs.items()}
    for q0, q1 in pairwise(bounds):
        for k0, k1 in pairwise(keys):
            if q1 <= k0:
                continue
            diagonal = Mask.window(None, q0 - k0, "top-left")
            shard = problem(diagonal, q1 - q0, k1 - k0, heads=p.heads, kv_heads=p.kv_heads, batch=p.batch, given=given)
            arrays = {name: x[:, k0:k1] if name in ("k", "v") else x[:, q0:q1] for name, x in case.arrays.items()}
            got = Run(device=wgpu, recipe=recipe(shard, kind))(Sample(problem=shard, arrays=arrays))
            total["d_q"][:, q0:q1] += got["d_q"]
            total["d_k"][:, k0:k1] += got["d_k"]
            total["d_v"][:, k0:k1] += got["d_v"]
    return {name: x.astype(np.float32) for name, x in total.items()}


@pytest.mark.parametrize("given", ["o", "delta"])
@pytest.mark.parametrize("kind", KINDS)
def test_shards_add_up_to_the_whole(wgpu: Device, kind: str, given: Any) -> None:
    case = sample(problem(Mask.causal(), 300, batch=2))
    verdict = case.expected(lse=case["lse"], delta=case["delta"]).judge(
        in_shards(wgpu, case, [0, 64, 170, 200, 300], [0, 64, 200, 300], given, kind)
    )
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("given", ["o", "delta"])
def test_shards_of_a_long_problem(wgpu: Device, given: Any) -> None:
    """Queries just past the first shard have nearly all of their weight in it: Σ P there is within 2⁻¹⁰ of 1 and is no
    rounding. Correcting it made d_q 353 times less accurate than the rule allows."""
    case = sample(problem(Mask.causal(), 2112, heads=1, kv_heads=1), seed=6)  # which has some such queries
    held = np.exp(reference_scores(case, 2048)).sum(axis=1)
    assert ((held < 1 - 2e-5) & (held > 1 - 2**-10)).sum() > 2
    verdict = case.expected(lse=case["lse"], delta=case["delta"]).judge(
        in_shards(wgpu, case, [0, 2048, 2112], [0, 2048, 2112], given, "16k")
    )
    assert verdict.ok, str(verdict)


def reference_scores(case: Sample, first: int) -> Array:
    """S − lse of the queries from ``first`` on and the keys before it."""
    q, k, lse = (case[name][0, :, 0].astype(float) for name in ("q", "k", "lse"))
    return np.asarray(q[first:] @ k[:first].T / math.sqrt(case.problem.head_dim) - lse[first:, None])


# What is written


ADDED = [(), ("d_q",), ("d_k",), ("d_v",), ("d_q", "d_v"), ("d_k", "d_v"), ("d_q", "d_k", "d_v")]


@pytest.mark.parametrize("added", ADDED, ids=lambda names: " ".join(names) or "none")
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.window(5, 0, "top-left")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_accumulate(wgpu: Device, kind: str, mask: Mask, added: tuple[str, ...]) -> None:
    """What is named is added to, the rest is overwritten, keys that nothing sees among them."""
    case = sample(problem(mask, 70, 130)).asking(accumulate=frozenset(added))
    rng = np.random.default_rng(9)
    before = {name: rng.integers(1, 4, shape).astype(np.float32) for name, shape in case.problem.outputs.items()}
    got = Run(device=wgpu, recipe=recipe(case.problem, kind), before=before)(case)
    right = case.expected().outputs
    for name in GRADIENTS:
        total = right[name] + (before[name] if name in added else 0)
        # Sums of up to 140 terms of about 1 on top of up to 3: each addition may round by 2⁻²³.
        np.testing.assert_allclose(got[name], total, rtol=0, atol=140 * 2.0**-23, err_msg=name)


# Repeatability


@pytest.mark.parametrize("kind", KINDS)
def test_repeats_itself(wgpu: Device, kind: str) -> None:
    """In one strip, and in strips by rows and slots with every kind of part."""
    case = sample(problem(Mask.documents(), 130, batch=2))
    again = Run(device=wgpu, recipe=recipe(case.problem, kind))
    first = again(case)
    for _ in range(50):
        assert_same_bits(again(case), first)


def test_repeats_itself_on_every_backend(device: Device) -> None:
    case = sample(problem(Mask.causal(), 70))
    again = Run(device=device, recipe=recipe(case.problem, "small"))
    first = again(case)
    for _ in range(20):
        assert_same_bits(again(case), first)


def test_nothing_is_atomic() -> None:
    variants = {v.name: v for v in catalog.checked_in().values() if v.template.startswith("tiled/")}
    for given in GIVEN:
        variants |= {v.name: v for v in tiled(problem(Mask.causal(), 130, given=given), small(16)).variants}
    assert len(variants) > 20
    assert not [name for name, v in variants.items() if re.search("atomic", render(v).wgsl, re.IGNORECASE)]


@pytest.mark.parametrize("scratch", [0.0, 1e30, np.nan], ids=["zeros", "1e30", "nan"])
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.window(9, 3), Mask.documents(), Mask.full()], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_scratch_held_before_is_not_read(wgpu: Device, kind: str, mask: Mask, scratch: float) -> None:
    case = sample(problem(mask, 130, batch=2))
    made = recipe(case.problem, kind)
    assert_same_bits(Run(device=wgpu, recipe=made, scratch=scratch)(case), Run(device=wgpu, recipe=made)(case))


# What is not finite


BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
BAD_ROWS = {f"{name} {key}": (name, bad) for name in ("q", "k", "v", "d_o", "lse", "delta", "o") for key, bad in BAD.items()}
del BAD_ROWS["lse inf"]  # a query that sees nothing
FINITE: dict[str, tuple[Problem, dict[str, Any]]] = {
    "documents": (problem(Mask.documents(), 73, batch=2), {"lengths": [10, 20, 43]}),
    "causal, in whole blocks": (problem(Mask.causal(), 140), {}),
    "window": (problem(Mask.window(30, 4), 100, 140), {}),
}


@pytest.mark.parametrize(("name", "bad"), BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(("p", "options"), FINITE.values(), ids=FINITE)
def test_one_row_that_is_not_finite(
    wgpu: Device, p: Problem, options: dict[str, Any], guard: str, name: str, bad: float
) -> None:
    """zero: every output is finite. propagate: every query that the bad row reaches is not. Either: what no visible pair
    connects with the bad row keeps every bit."""
    starts = {"doc_start": documents(p, options["lengths"])} if options else {}
    # One sign in the bad channel of k, so that q = inf gives scores that are all −inf, whose P = 0 hides where they came from.
    k = sample(p, **starts)["k"].copy()
    k[..., 5] = -np.abs(k[..., 5])
    given = name if name in ("o", "delta") else "none"
    case = sample(p, k=k, **starts).asking(given=given)
    array = case[name].copy()
    batch, position, head = p.batch - 1, 17, 1
    array[(batch, position, head) if name in ("lse", "delta") else (batch, position, head, 5)] = bad
    broken = case.changed(**{name: array})

    lo, hi = reference.key_intervals(case.problem, **starts)
    queries = np.zeros((p.batch, p.q_len, p.heads), bool)
    if name in ("k", "v"):
        sees = (lo[batch] <= position) & (position < hi[batch])
        queries[batch, sees, head * p.group : (head + 1) * p.group] = True
    else:
        queries[batch, position, head] = True
    keys = np.zeros((p.batch, p.kv_len, p.kv_heads), bool)
    for b, i, h in np.argwhere(queries):
        keys[b, lo[b, i] : hi[b, i], h // p.group] = True
    assert queries.any() and keys.any() and not queries.all() and not keys.all()
    for kind in KINDS:
        again = Run(device=wgpu, recipe=recipe(case.problem, kind, guard))
        clean, found = again(case), again(broken)
        assert_same_bits(found, clean, {"d_q": ~queries, "d_k": ~keys, "d_v": ~keys})
        if guard == "zero":
            assert all(np.isfinite(found[gradient]).all() for gradient in GRADIENTS)
        elif name != "o":  # which is not looked at where Σ P·dP is more accurate
            assert not np.isfinite(found["d_q"][queries]).all(axis=-1).any()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("head_dim", [16, 5])
@pytest.mark.parametrize("parts", [1, 512])
@pytest.mark.parametrize("layout", ["16k", "small"])
def test_zero_holds_for_sums_of_finite_parts(wgpu: Device, layout: str, parts: int, head_dim: int, accumulate: bool) -> None:
    """1025 terms of 1e36 are past float32, the sums of a few hundred are not: what they add up to is looked at again."""
    p = problem(Mask.full(), 1025, 1, heads=2, kv_heads=1, head_dim=head_dim, accumulate=accumulate)
    case = sample(p)
    case = case.changed(d_o=np.full_like(case["d_o"], 1e36))
    chosen = small(head_dim) if layout == "small" else choice(layout, head_dim)
    made = tiled(p, chosen.replaced(parts=parts, budget=8 * 64 * 64 * 9))
    before = dict.fromkeys(GRADIENTS, np.float32(1e38))
    found = Run(device=wgpu, recipe=made, before=before)(case)
    assert all(np.isfinite(found[gradient]).all() for gradient in GRADIENTS)


# The real training step


STEP = Problem(q_len=512, kv_len=512, heads=4, kv_heads=2, head_dim=64, mask=Mask.documents())
AT_MOST = 2e-6
"""The relative error (2-norm) that each gradient may have. On llvmpipe it is 1.6e-6 at most, and 3.5e-6 with delta."""


@pytest.fixture(scope="module")
def step() -> dict[str, Any]:
    with np.load(Path(__file__).parent / "data" / "real_step.npz") as file:
        arrays = {name: file[name] for name in file.files}
    exact = sample(STEP, doc_start=arrays["doc_start"][None], **{n: arrays[n][None] for n in "qkv"}, d_o=arrays["do"][None])
    own_delta = (arrays["o"] * arrays["do"]).sum(axis=2)
    own = exact.changed(lse=arrays["lse"][None], o=arrays["o"][None], delta=own_delta[None])
    expected = {
        "own": exact.expected(),
        **{f"{n} delta": c.expected(delta=c["delta"]) for n, c in (("exact", exact), ("own", own))},
    }
    return {"exact": exact, "own": own, "expected": expected}


@pytest.mark.parametrize("lse", ["own", "exact"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", ["16k", "64x64", "small"])
def test_real_step(wgpu: Device, step: dict[str, Any], kind: str, given: Any, lse: str) -> None:
    """With the step's own float32 lse (and o), and with the exact ones, rounded. A D that the caller gives is not made of the
    P and dP at hand and does not share their rounding, which costs d_q a factor of two."""
    case = step[lse].asking(given=given)
    verdict = step["expected"][f"{lse} delta" if given == "delta" else "own"].judge(
        Run(device=wgpu, recipe=recipe(case.problem, kind))(case)
    )
    assert verdict.ok, str(verdict)
    at_most = 2 * AT_MOST if given == "delta" else AT_MOST
    assert all(judgement.relative_error <= at_most for judgement in verdict.judgements), str(verdict)
