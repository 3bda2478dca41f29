"""The reference against finite differences, a second formulation, and autograd where PyTorch is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wgsl_attention.errors import ArgumentError
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.reference import attention as reference
from wgsl_attention.reference.attention import Outputs

DOCUMENTS = np.array([0, 0, 0, 3, 3, 5, 6])
NOT_MONOTONE = np.array([0, 1, 0, 2, 1, 5, 3])
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full": ({"mask": Mask.full(), "kv_len": 5}, {}),
    "causal": ({"mask": Mask.causal(), "v_head_dim": 3}, {}),
    "one_position": ({"mask": Mask.causal(), "q_len": 1, "kv_len": 1}, {}),
    "empty_rows": ({"mask": Mask.causal(), "kv_len": 4, "heads": 2, "kv_heads": 2}, {"scale": 1.5}),
    "top_left": ({"mask": Mask.causal("top-left"), "kv_len": 9}, {}),
    "documents": ({"mask": Mask.documents(), "kv_heads": 1}, {"doc_start": DOCUMENTS}),
    "whole_documents": ({"mask": Mask.documents(causal=False)}, {"doc_start": DOCUMENTS}),
    "not_monotone": ({"mask": Mask.documents()}, {"doc_start": np.stack([NOT_MONOTONE, DOCUMENTS])}),
    "window": ({"mask": Mask.window(2, 1), "kv_len": 6}, {}),
    "prefix": ({"mask": Mask.prefix(3)}, {"scale": -0.3}),
    "padding": ({"mask": Mask.causal(), "kv_lengths": True}, {"kv_lengths": np.array([7, 3])}),
    "all_padding": ({"mask": Mask.full(), "kv_lengths": True}, {"kv_lengths": np.array([0, 2])}),
    "softcap": ({"mask": Mask.causal()}, {"softcap": 0.7, "scale": 1.0}),
    "alibi": ({"mask": Mask.full(), "kv_len": 9}, {"alibi": SLOPES}),
    "everything": ({"mask": Mask.prefix(2) & Mask.window(3, 3), "kv_len": 8}, {"alibi": SLOPES, "softcap": 2.0, "scale": 0.9}),
}


def make(case: str) -> tuple[Problem, list[np.ndarray], dict[str, Any]]:
    shape, options = CASES[case]
    problem = Problem(**({"batch": 2, "q_len": 7, "kv_len": 7, "heads": 4, "kv_heads": 2, "head_dim": 5} | shape))
    return problem, inputs(problem), options


def inputs(problem: Problem, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    query, key = (problem.batch, problem.q_len, problem.heads), (problem.batch, problem.kv_len, problem.kv_heads)
    dims = [(*query, problem.head_dim), (*key, problem.head_dim), (*key, problem.v_head_dim), (*query, problem.v_head_dim)]
    return [rng.standard_normal(shape) for shape in dims]


def pairs(problem: Problem, options: dict[str, Any]) -> np.ndarray:
    lo, hi = reference.key_intervals(problem, doc_start=options.get("doc_start"), kv_lengths=options.get("kv_lengths"))
    j = np.arange(problem.kv_len)
    return (j >= lo[:, :, None]) & (j < hi[:, :, None])


def dense(problem: Problem, q: Any, k: Any, v: Any, d_o: Any, options: dict[str, Any]) -> tuple[np.ndarray, Outputs]:
    """All heads at once, by the Jacobian of the softmax: ∂P_j/∂S_l = P_j·(δ_jl − P_l)."""
    scale = options.get("scale") or problem.head_dim**-0.5
    k_heads, v_heads = np.repeat(k, problem.group, axis=2), np.repeat(v, problem.group, axis=2)
    s = scale * np.einsum("bihd,bjhd->bhij", q, k_heads)
    inner = np.ones_like(s)
    if cap := options.get("softcap"):
        s, inner = cap * np.tanh(s / cap), np.cosh(s / cap) ** -2.0
    if "alibi" in options:
        i, j = np.arange(problem.q_len)[:, None], np.arange(problem.kv_len)
        s = s - options["alibi"][:, None, None] * np.abs(j - i - (problem.kv_len - problem.q_len))
    e = np.exp(s) * pairs(problem, options)[:, None]
    total = e.sum(axis=-1, keepdims=True)
    p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    jacobian = np.einsum("bhij,jl->bhijl", p, np.eye(problem.kv_len)) - np.einsum("bhij,bhil->bhijl", p, p)
    d_p = np.einsum("bihd,bjhd->bhij", d_o, v_heads)
    d_s = scale * inner * np.einsum("bhij,bhijl->bhil", d_p, jacobian)
    groups = (problem.batch, problem.kv_len, problem.kv_heads, problem.group, -1)
    gradients = {
        "d_q": np.einsum("bhij,bjhd->bihd", d_s, k_heads),
        "d_k": np.einsum("bhij,bihd->bjhd", d_s, q).reshape(groups).sum(axis=3),
        "d_v": np.einsum("bhij,bihd->bjhd", p, d_o).reshape(groups).sum(axis=3),
    }
    return np.einsum("bhij,bjhd->bihd", p, v_heads), gradients


@pytest.mark.parametrize("case", CASES)
def test_against_a_second_formulation(case: str) -> None:
    problem, arrays, options = make(case)
    o, want = dense(problem, *arrays, options)
    got = reference.backward(problem, *arrays, **options)
    assert np.allclose(reference.forward(problem, *arrays[:3], **options)[0], o, rtol=1e-12, atol=1e-13)
    for name in GRADIENTS:
        assert np.allclose(got[name], want[name], rtol=1e-11, atol=1e-12), name


@pytest.mark.parametrize("case", CASES)
def test_against_finite_differences(case: str) -> None:
    problem, arrays, options = make(case)
    got = reference.backward(problem, *arrays, **options)
    rng = np.random.default_rng(1)
    for name, index in zip(GRADIENTS, range(3), strict=True):
        for element in rng.choice(arrays[index].size, min(12, arrays[index].size), replace=False):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [array.copy() for array in arrays]
                moved[index].flat[element] += step
                ends.append(np.sum(reference.forward(problem, *moved[:3], **options)[0] * arrays[3]))
            assert got[name].flat[element] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("case", CASES)
def test_against_autograd(case: str) -> None:
    torch = pytest.importorskip("torch")
    problem, arrays, options = make(case)
    q, k, v = (torch.tensor(array, requires_grad=True) for array in arrays[:3])
    k_heads, v_heads = (x.repeat_interleave(problem.group, dim=2) for x in (k, v))
    s = (options.get("scale") or problem.head_dim**-0.5) * torch.einsum("bihd,bjhd->bhij", q, k_heads)
    if cap := options.get("softcap"):
        s = cap * torch.tanh(s / cap)
    if "alibi" in options:
        i, j = torch.arange(problem.q_len)[:, None], torch.arange(problem.kv_len)
        s = s - torch.tensor(options["alibi"])[:, None, None] * abs(j - i - (problem.kv_len - problem.q_len))
    visible = torch.tensor(pairs(problem, options))[:, None]
    # a finite fill: rows without any visible pair become uniform, and are then masked
    p = torch.softmax(s.masked_fill(~visible, -1e30), dim=-1).masked_fill(~visible, 0)
    torch.einsum("bhij,bjhd->bihd", p, v_heads).backward(torch.tensor(arrays[3]))
    got = reference.backward(problem, *arrays, **options)
    for name, leaf in zip(GRADIENTS, (q, k, v), strict=True):
        assert np.allclose(got[name], leaf.grad.numpy(), rtol=1e-10, atol=1e-12), name


def test_blocks_join_without_a_seam() -> None:
    problem = Problem(q_len=150, kv_len=171, heads=2, kv_heads=1, head_dim=4, mask=Mask.window(40, 30))
    arrays = inputs(problem)
    _, want = dense(problem, *arrays, {})
    got = reference.backward(problem, *arrays)
    for name in GRADIENTS:
        assert np.allclose(got[name], want[name], rtol=1e-11, atol=1e-12), name


@pytest.mark.parametrize("case", ["empty_rows", "all_padding", "padding"])
def test_what_takes_part_in_nothing_is_exactly_zero(case: str) -> None:
    problem, arrays, options = make(case)
    visible = pairs(problem, options)
    rows, keys = ~visible.any(axis=2), ~visible.any(axis=1)
    assert rows.any() or keys.any()
    o, lse = reference.forward(problem, *arrays[:3], **options)
    assert (lse[rows] == np.inf).all()
    assert not o[rows].any()
    assert np.isfinite(lse[~rows]).all()
    clean = reference.backward(problem, *arrays, **options)
    assert not clean["d_q"][rows].any()
    assert not clean["d_k"][keys].any()
    assert not clean["d_v"][keys].any()
    for poison in (np.nan, np.inf, 1e30):
        q, k, v, d_o = (array.copy() for array in arrays)
        q[rows], d_o[rows], k[keys], v[keys] = poison, poison, poison, poison
        with np.errstate(all="raise"):
            got = reference.backward(problem, q, k, v, d_o, **options)
        for name in GRADIENTS:
            assert np.allclose(got[name], clean[name], rtol=1e-12, atol=1e-14), (name, poison)


def test_a_nan_reaches_only_what_sees_it() -> None:
    problem = Problem(q_len=9, kv_len=9, heads=2, kv_heads=2, head_dim=4, mask=Mask.causal())
    q, k, v, d_o = inputs(problem)
    k[0, 5, 1, 2] = np.nan
    got = reference.backward(problem, q, k, v, d_o)
    bad = np.isnan(got["d_q"]).any(axis=3)[0]
    assert not bad[:, 0].any()
    assert bad[:, 1].tolist() == [False] * 5 + [True] * 4
    assert np.isnan(got["d_k"][0, :, 1]).any(axis=1).all()  # rows 5 to 8 see every key
    assert not np.isnan(got["d_k"][0, :, 0]).any()


def test_an_lse_with_a_sink_is_taken_as_it_stands() -> None:
    """A sink is one more logit with a value of zero, so it can be written as one more key."""
    problem = Problem(q_len=6, kv_len=6, heads=2, kv_heads=2, head_dim=4, mask=Mask.full())
    q, k, v, d_o = inputs(problem)
    own = reference.forward(problem, q, k, v)[1]
    sink = np.array([0.3, -0.8])
    lse = np.logaddexp(own, sink)
    got = reference.backward(problem, q, k, v, d_o, lse=lse)
    s = 0.5 * np.einsum("bihd,bjhd->bhij", q, k)
    s = np.concatenate([s, np.broadcast_to(sink[:, None, None], (1, 2, 6, 1))], axis=-1)
    p = np.exp(s - np.log(np.exp(s).sum(axis=-1, keepdims=True)))
    d_p = np.concatenate([np.einsum("bihd,bjhd->bhij", d_o, v), np.zeros((1, 2, 6, 1))], axis=-1)
    d_s = (0.5 * p * (d_p - (p * d_p).sum(axis=-1, keepdims=True)))[..., :6]
    assert np.allclose(got["d_q"], np.einsum("bhij,bjhd->bihd", d_s, k), rtol=1e-12)
    assert np.allclose(got["d_v"], np.einsum("bhij,bihd->bjhd", p[..., :6], d_o), rtol=1e-12)


def test_keys_in_two_shards_add_up_with_the_whole_delta() -> None:
    whole = Problem(q_len=6, kv_len=8, heads=2, kv_heads=2, head_dim=4, mask=Mask.full())
    half = Problem(q_len=6, kv_len=4, heads=2, kv_heads=2, head_dim=4, mask=Mask.full())
    q, k, v, d_o = inputs(whole)
    o, lse = reference.forward(whole, q, k, v)
    delta = (d_o * o).sum(axis=3)
    want = reference.backward(whole, q, k, v, d_o)
    shards = [reference.backward(half, q, k[:, s], v[:, s], d_o, lse=lse, delta=delta) for s in (slice(4), slice(4, 8))]
    assert np.allclose(shards[0]["d_q"] + shards[1]["d_q"], want["d_q"], rtol=1e-11, atol=1e-14)
    assert np.allclose(np.concatenate([shard["d_k"] for shard in shards], axis=1), want["d_k"], rtol=1e-11, atol=1e-14)


def test_float32_is_close_and_sums_in_one_order() -> None:
    problem, arrays, options = make("everything")
    want = reference.backward(problem, *arrays, **options)
    got = reference.backward(problem, *arrays, dtype=np.float32, **options)
    for name in GRADIENTS:
        assert got[name].dtype == np.float32
        assert np.allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
        assert not np.array_equal(got[name], want[name])
    a, b = (np.random.default_rng(n).standard_normal((5, 5)).astype(np.float32) for n in range(2))
    by_hand = np.zeros((5, 5), np.float32)
    for i, j, t in np.ndindex(5, 5, 5):
        by_hand[i, j] += a[i, t] * b[t, j]
    assert np.array_equal(reference._product(a, b), by_hand)


@pytest.mark.parametrize("case", ["causal", "padding", "empty_rows", "everything"])
def test_row_sums_find_a_foreign_lse(case: str) -> None:
    problem, (q, k, v, _), options = make(case)
    lse = reference.forward(problem, q, k, v, **options)[1]
    some = pairs(problem, options).any(axis=2)
    sums = reference.row_sums(problem, q, k, lse, **options)
    assert np.allclose(sums[some], 1, rtol=1e-13)
    assert not sums[~some].any()
    assert reference.first_bad_row(problem, q, k, lse + 1e-5, **options) is None
    assert reference.first_bad_row(problem, q, k, lse.astype(np.float32), **options) is None
    assert reference.first_bad_row(problem, q, k, lse, **options | {"scale": 3.0}) is not None
    for wrong in (np.nan, lse[1, -1, 1] + 0.01, lse[1, -1, 1] - 0.01, np.inf, -np.inf):
        changed = lse.copy()
        changed[1, -1, 1] = wrong
        with np.errstate(over="ignore"):
            assert reference.first_bad_row(problem, q, k, changed, **options) == (1, problem.q_len - 1, 1)
    if not some.all():
        entry, row = (int(n) for n in np.argwhere(~some)[0])
        changed = lse.copy()
        changed[entry, row, 0] = 0
        assert reference.first_bad_row(problem, q, k, changed, **options) == (entry, row, 0)


def test_the_real_step() -> None:
    step = np.load(Path(__file__).parent / "data" / "real_step.npz")
    problem = Problem(q_len=512, kv_len=512, heads=4, kv_heads=2, head_dim=64, mask=Mask.documents())
    q, k, v, o, d_o, lse = (step[name][None] for name in ("q", "k", "v", "o", "do", "lse"))
    got_o, got_lse = reference.forward(problem, q, k, v, doc_start=step["doc_start"])
    assert np.abs(got_lse - lse).max() < 2e-5
    assert np.abs(got_o - o).max() < 2e-5
    got = reference.backward(problem, q, k, v, d_o, doc_start=step["doc_start"])
    for name in GRADIENTS:
        want = step[f"{name.replace('_', '')}_autograd"][None]
        assert np.linalg.norm(got[name] - want) < 5e-6 * np.linalg.norm(want)
    assert reference.first_bad_row(problem, q, k, lse, doc_start=step["doc_start"]) is None
    assert reference.first_bad_row(problem, q, k, lse[:, :, ::-1], doc_start=step["doc_start"]) is not None


def test_rope_backward_is_the_transpose_of_the_rotation() -> None:
    rng = np.random.default_rng(0)
    x, d_y = rng.standard_normal((2, 2, 5, 3, 8))
    y = np.empty_like(x)
    for s, p in np.ndindex(5, 4):
        angle = (s + 7) * 100.0 ** (-2 * p / 8)
        turned = (x[:, s, :, 2 * p] + 1j * x[:, s, :, 2 * p + 1]) * np.exp(1j * angle)
        y[:, s, :, 2 * p], y[:, s, :, 2 * p + 1] = turned.real, turned.imag
    d_x = reference.rope_backward(d_y, 100.0, 7)
    assert np.sum(d_x * x) == pytest.approx(np.sum(d_y * y), rel=1e-13)
    assert np.allclose(reference.rope_backward(y, 100.0, 7), x, rtol=1e-13)
    single = reference.rope_backward(d_y, 100.0, 7, np.float32)
    assert single.dtype == np.float32
    assert np.allclose(single, d_x, rtol=1e-5, atol=1e-6)
    far = reference.rope_backward(reference.rope_backward(x, offset=100_000), offset=-100_008)[:, 4]
    assert np.allclose(far, x[:, 4], rtol=1e-9)  # position 4: angles that cancel


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("q", {"q": np.zeros((2, 7, 4, 6))}),
        ("k", {"k": np.zeros((2, 7, 4, 5))}),
        ("v", {"v": np.zeros((7, 2, 5))}),
        ("d_o", {"d_o": np.zeros((2, 4, 7, 5))}),
        ("lse", {"lse": np.zeros((2, 4, 7))}),
        ("delta", {"delta": np.zeros((2, 7))}),
        ("doc_start", {"doc_start": None}),
        ("doc_start", {"doc_start": np.zeros(7)}),
        ("doc_start", {"doc_start": np.zeros(8, int)}),
        ("doc_start", {"doc_start": np.full(7, -1)}),
        ("doc_start", {"doc_start": NOT_MONOTONE}),
        ("kv_lengths", {"kv_lengths": np.array([7, 7])}),
        ("softcap", {"softcap": 0.0}),
        ("alibi", {"alibi": np.zeros(2)}),
    ],
)
def test_bad_arguments_are_refused_by_name(argument: str, change: dict[str, Any]) -> None:
    problem, (q, k, v, d_o), options = make("whole_documents")
    with pytest.raises(ArgumentError) as caught:
        reference.backward(problem, **{"q": q, "k": k, "v": v, "d_o": d_o} | options | change)
    assert caught.value.argument == argument


def test_bad_lengths_and_rotations_are_refused() -> None:
    problem, (q, *_), _ = make("padding")
    for bad in (None, np.array([8, 1]), np.array([-1, 1]), np.array([1.0, 2.0]), np.array([3])):
        with pytest.raises(ArgumentError, match="kv_lengths"):
            reference.key_intervals(problem, kv_lengths=bad)
    with pytest.raises(ArgumentError, match="d_x"):
        reference.rope_backward(q)
    with pytest.raises(ArgumentError, match="base"):
        reference.rope_backward(q[..., :4], base=0)
