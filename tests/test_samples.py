"""Sample inputs: what is drawn, what follows from it, what is read from a file, and what a file must hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wgsl_attention.algorithms import ALGORITHMS
from wgsl_attention.errors import ArgumentError
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import Problem
from wgsl_attention.reference import attention as reference
from wgsl_attention.reference.samples import (
    LOSS_SIZE,
    assorted_samples,
    documents,
    random_sample,
    sample_from_file,
    timed_sample,
)

EVERY = Problem(
    batch=2,
    q_len=70,
    kv_len=70,
    heads=4,
    kv_heads=2,
    head_dim=16,
    v_head_dim=8,
    mask=Mask.documents(),
    given="delta",
    kv_lengths=True,
    softcap=True,
    alibi=True,
)


@pytest.mark.parametrize("given", ["none", "o", "delta"])
def test_a_sample_has_what_the_problem_asks_for(given: Any) -> None:
    """Of its shapes and in the types that buffers hold, whoever makes it."""
    problem = replace(EVERY, given=given)
    for made in (random_sample(problem).completed(), timed_sample(problem)):
        for name, shape in problem.inputs.items():
            assert made[name].shape == shape, name
            assert made[name].dtype == (np.uint32 if name in ("doc_start", "kv_lengths") else np.float32), name
        assert made.numbers.scale == 0.25 and made.numbers.softcap == made.softcap
        assert (made["kv_lengths"] <= 70).all() and (made["doc_start"] <= np.arange(70)).all()
        assert made["alibi_slopes"].tolist() == [0.25, 0.0625, 0.015625, 0.00390625]


def test_samples_are_the_same_for_the_same_seed() -> None:
    one, same, other = (random_sample(EVERY, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(one[name], same[name]) for name in one.arrays)
    assert not np.array_equal(one["q"], other["q"]) and set(one.arrays) == set(same.arrays)


def test_what_is_given_stays() -> None:
    q = 2 * random_sample(EVERY)["q"]
    lse = np.zeros((2, 70, 4))
    made = random_sample(EVERY, q=q, lse=lse, doc_start=np.arange(70), kv_lengths=[1, 70], scale=0.5, softcap=9.0).completed()
    assert np.array_equal(made["q"], q) and not made["lse"].any() and made["kv_lengths"].tolist() == [1, 70]
    assert made["doc_start"].shape == (2, 70) and made["doc_start"].dtype == np.uint32
    assert np.array_equal(made["k"], random_sample(EVERY, doc_start=np.arange(70))["k"])
    assert (made.scale, made.softcap) == (0.5, 9.0) == made.numbers


def test_what_follows_is_the_definitions() -> None:
    made = random_sample(EVERY, seed=1).completed()
    o, lse = reference.forward(EVERY, made["q"], made["k"], made["v"], **made.options)
    assert np.array_equal(made["lse"], lse.astype(np.float32)) and np.array_equal(made["o"], o.astype(np.float32))
    assert np.array_equal(made["delta"], np.sum(o * made["d_o"], axis=3).astype(np.float32))
    assert made.expected().judge(made.backward(np.float32)).ok
    assert made.changed(lse=lse + 0.5).expected(lse=lse + 0.5).outputs["d_v"].max() < made.expected().outputs["d_v"].max()


def test_timed_rows_have_probabilities_that_add_up_to_about_one() -> None:
    problem = Problem(q_len=200, kv_len=300, heads=8, kv_heads=2, head_dim=64, mask=Mask.window(50, 9), given="o")
    made = timed_sample(problem)
    sums = reference.row_sums(problem, made["q"], made["k"], made["lse"], **made.options)
    assert 0.8 < sums.mean() < 1.2


def test_documents() -> None:
    assert documents(9, [4]).tolist() == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    assert documents(9, [1, 3]).tolist() == [0, 1, 1, 1, 4, 5, 5, 5, 8]
    packed = Problem(q_len=10, kv_len=10, heads=1, kv_heads=1, head_dim=4, mask=Mask.documents())
    assert timed_sample(packed, document_length=4)["doc_start"].tolist() == [documents(10, [4]).tolist()]
    assert timed_sample(packed)["doc_start"].tolist() == [list(range(10))]  # an eighth, and one position at least


def test_assorted_samples_cover_what_they_say() -> None:
    samples = assorted_samples()
    problems = [sample.problem for sample in samples]
    masks = {str(p.mask) for p in problems}
    assert {"full", "causal", "documents", "window(64, 0)", "prefix(48)", "documents & window(32, 0)"} <= masks
    assert any(p.head_dim % 2 for p in problems) and any(p.group > 1 for p in problems)
    assert any(p.q_len != p.kv_len for p in problems) and any(p.batch > 1 for p in problems)
    for seed, sample in enumerate(samples):
        again = random_sample(sample.problem, seed=seed, d_o_size=LOSS_SIZE)
        assert all(np.array_equal(sample[name], again[name]) for name in again.arrays)
        assert ("doc_start" in sample.arrays) == bool(sample.problem.mask.documents_mode)
        if "doc_start" in sample.arrays:
            assert 1 in np.diff(np.unique(sample["doc_start"]))  # a document of one position
        # Any of them has an algorithm that no problem of its kind rules out.
        assert any(not algorithm.refusal(sample.problem) for algorithm in ALGORITHMS.values())


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_random_documents_of_the_shortest_sequences(seq: int) -> None:
    problem = Problem(q_len=seq, kv_len=seq, heads=1, kv_heads=1, head_dim=4, mask=Mask.documents())
    assert (random_sample(problem)["doc_start"] <= np.arange(seq)).all()


def saved(path: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    data: dict[str, object] = {name: rng.standard_normal((20, 2, 8)) for name in ("q", "k", "v", "do")}
    data |= changes
    np.savez(path, **{name: array for name, array in data.items() if array is not None})
    return path


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    made = sample_from_file(saved(tmp_path / "my_step.npz", scale=0.25), Mask.causal())
    assert (made.name, made.scale, set(made.arrays), made.theirs) == ("my step", 0.25, {"q", "k", "v", "d_o"}, {})
    four = {name: np.ones((3, 9, 2, 8)) for name in ("q", "k", "v", "do")}
    more = {"lse": np.ones((3, 9, 2)), "doc_start": np.arange(9), **{f"d{x}_autograd": four["q"] for x in "qkv"}}
    batched = sample_from_file(saved(tmp_path / "b.npz", **four, **more), Mask.window(3, 3))
    assert batched.problem.batch == 3 and batched["q"].shape == (3, 9, 2, 8) and batched["q"].dtype == np.float32
    assert batched["doc_start"].shape == (3, 9) and str(batched.problem.mask) == "documents & window(3, 3)"
    assert set(batched.theirs) == set(batched.problem.outputs) and batched["lse"].shape == (3, 9, 2)


@pytest.mark.parametrize(
    ("changes", "mask", "named"),
    [
        ({"k": None}, Mask.full(), "k in f.npz"),
        ({}, None, "mask"),
        ({"q": np.ones((20, 16))}, Mask.full(), "q in f.npz"),
        ({"k": np.ones((1, 20, 2, 8))}, Mask.full(), "k, v and do"),
        ({"lse": np.ones((2, 20))}, Mask.full(), "lse in f.npz"),
        ({"o": np.ones((20, 2, 4))}, Mask.full(), "o in f.npz"),
        ({"v": np.array(["a"] * 320).reshape(20, 2, 8)}, Mask.full(), "v in f.npz"),
        ({"k": np.ones((20, 3, 8))}, Mask.full(), "heads"),
        ({"v": np.ones((19, 2, 8))}, Mask.full(), "v in f.npz"),
        ({"doc_start": np.zeros(20)}, None, "doc_start"),
        ({"doc_start": np.zeros(19, int)}, None, "doc_start"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, changes: dict[str, object], mask: Mask | None, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        sample_from_file(saved(tmp_path / "f.npz", **changes), mask)


@pytest.mark.parametrize("content", [None, b"", b"not a zip", b"PK\x03\x04"])
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "step.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArgumentError, match="data"):
        sample_from_file(path, Mask.full())
