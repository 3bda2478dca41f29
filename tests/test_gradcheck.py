"""The gradient check itself: it passes what is right, and does not pass what is wrong, missing or not finite."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import skip_without
from wgsl_attention.algorithms import ALGORITHMS
from wgsl_attention.errors import ArgumentError, DeviceError
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import Problem
from wgsl_attention.reference.accuracy import expected, judge_rope
from wgsl_attention.reference.attention import rope_backward
from wgsl_attention.reference.samples import Case, case_from_file, synthetic_case, synthetic_cases
from wgsl_attention.validation import gradcheck
from wgsl_attention.validation.gradcheck import Check, run_checks

REAL_STEP = Path(__file__).parent / "data" / "real_step.npz"


@pytest.fixture(scope="module")
def gpu() -> Device:
    skip_without("wgpu")
    return open_device("wgpu")


def small(mask: Mask | None = None, **sizes: int) -> Case:
    shape = {"q_len": 40, "kv_len": 40, "heads": 2, "kv_heads": 1, "head_dim": 16, **sizes}
    return synthetic_case("small", Problem(mask=mask or Mask.causal(), **shape))


def by_status(checks: list[Check]) -> dict[str, set[str]]:
    return {status: {c.algorithm for c in checks if c.status == status} for status in ("pass", "fail", "refused", "baseline")}


def test_the_real_step_passes(gpu: Device) -> None:
    checks = run_checks([case_from_file(REAL_STEP)], device=gpu)
    assert all(check.ok for check in checks), [str(j) for c in checks for j in c.judgements]
    found = by_status(checks)
    assert found["baseline"] == {"autograd"} and {"short", "streaming", "rope"} <= found["pass"]
    for name in found["pass"] - {"rope"}:
        assert [c.given for c in checks if c.algorithm == name] == ["given lse", "exact lse"]
    baseline = next(c for c in checks if c.status == "baseline")
    # The numbers the data came with: autograd is right to about 1e-6, and the kernels are nearer.
    assert baseline.judgements[0].relative_error == pytest.approx(3.3e-6, rel=0.1)
    for check in checks:
        if check.algorithm == "short":
            assert check.variants and check.judgements[0].relative_error < baseline.judgements[0].relative_error


def test_an_algorithm_that_does_not_serve_is_said_to_be_refused(gpu: Device) -> None:
    progress: list[str] = []
    checks = run_checks([small(Mask.window(5, 0))], device=gpu, progress=progress.append)
    refused = [check for check in checks if check.algorithm == "short"]
    assert [check.status for check in refused] == ["refused"] and "window" in refused[0].reason and refused[0].ok
    assert "streaming" in by_status(checks)["pass"] and any("streaming" in line for line in progress)


def test_nothing_that_serves_is_a_failure(gpu: Device) -> None:
    checks = run_checks([small(Mask.window(5, 0))], device=gpu, algorithm="short")
    assert by_status(checks)["fail"] == {"short"} and not all(check.ok for check in checks)


def test_an_unknown_algorithm(gpu: Device) -> None:
    with pytest.raises(ArgumentError, match="algorithm"):
        run_checks([small()], device=gpu, algorithm="fast")


def test_a_wrong_kernel_fails(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gradcheck.run_plan

    def wrong(*arrays: object, **options: object) -> object:
        found = right(*arrays, **options)
        found["d_k"][:, 3] *= np.float32(1 + 1e-4)
        return found

    monkeypatch.setattr(gradcheck, "run_plan", wrong)
    checks = run_checks([small()], device=gpu, algorithm="streaming")
    failed = [check for check in checks if check.status == "fail"]
    assert len(failed) == 2 and all([j.name for j in c.judgements if not j.ok] == ["d_k"] for c in failed)


def test_a_kernel_that_does_not_compile_fails_and_the_rest_goes_on(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise DeviceError("compiling: the driver says no")

    monkeypatch.setattr(gradcheck, "run_plan", broken)
    checks = run_checks([small()], device=gpu)
    found = by_status(checks)
    assert found["fail"] and found["pass"] == {"rope"}
    assert all("driver says no" in check.reason for check in checks if check.status == "fail")


def test_rope_is_judged() -> None:
    d_x = np.random.default_rng(0).standard_normal((1, 70, 2, 8)).astype(np.float32)
    right = rope_backward(d_x, offset=100_000).astype(np.float32)
    assert judge_rope("d_q", right, d_x, 100_000).ok
    assert not judge_rope("d_q", rope_backward(d_x, offset=99_999).astype(np.float32), d_x, 100_000).ok
    right[0, 3, 1, 2] = np.nan
    judged = judge_rope("d_q", right, d_x, 100_000)
    assert (judged.ok, judged.head, judged.rows, judged.reason) == (False, 1, (3, 4), "not finite")
    zeros = np.zeros_like(d_x)
    assert judge_rope("d_q", zeros, zeros, 0).multiple == 0


def test_the_chain_only_widens_what_the_streaming_kernel_adds_up() -> None:
    case = small(Mask.window(0, 0), q_len=70, kv_len=90)
    right, wider = (expected(case.problem, case.q, case.k, case.v, case.d_o, chained=chained) for chained in (False, True))
    assert np.array_equal(wider.tolerances["d_q"], right.tolerances["d_q"])
    for name in ("d_k", "d_v"):
        before, after = right.tolerances[name], wider.tolerances[name]
        assert (after >= before).all() and (after <= 3 * before).all()
        assert ((after == 0) == (before == 0)).all() and (before == 0).any()  # keys that nobody sees stay at zero


def test_the_synthetic_cases_cover_what_they_say() -> None:
    cases = synthetic_cases()
    masks = {str(case.problem.mask) for case in cases}
    assert {"full", "causal", "documents", "window(64, 0)", "prefix(48)", "documents & window(32, 0)"} <= masks
    assert any(case.problem.head_dim % 2 for case in cases) and any(case.problem.group > 1 for case in cases)
    assert any(case.problem.q_len != case.problem.kv_len for case in cases) and any(case.problem.batch > 1 for case in cases)
    for case in cases:
        again = synthetic_case(case.name, case.problem, seed=cases.index(case))
        assert np.array_equal(case.q, again.q) and np.array_equal(case.lse, again.lse)
        assert (case.doc_start is None) == (not case.problem.mask.documents_mode)
        if case.doc_start is not None:
            assert 1 in np.diff(np.unique(case.doc_start))  # a document of one position
        # Any case has an algorithm that no problem of its kind rules out.
        assert any(not algorithm.refusal(case.problem) for algorithm in ALGORITHMS.values())


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_synthetic_documents_of_the_shortest_sequences(seq: int) -> None:
    case = small(Mask.documents(), q_len=seq, kv_len=seq)
    assert case.doc_start is not None and case.doc_start.shape == (seq,)


def saved(path: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    data: dict[str, object] = {name: rng.standard_normal((20, 2, 8)) for name in ("q", "k", "v", "do")}
    data |= changes
    np.savez(path, **{name: array for name, array in data.items() if array is not None})
    return path


def test_a_file_of_the_users_own(tmp_path: Path, gpu: Device) -> None:
    case = case_from_file(saved(tmp_path / "my_step.npz", scale=0.25), Mask.causal())
    assert (case.name, case.scale, case.lse_name, case.float32_name) == ("my step", 0.25, "float32 lse", "NumPy")
    assert all(check.ok for check in run_checks([case], device=gpu, algorithm="streaming"))
    batched = case_from_file(
        saved(tmp_path / "b.npz", **{n: np.ones((3, 9, 2, 8)) for n in ("q", "k", "v", "do")}), Mask.full()
    )
    assert batched.problem.batch == 3 and batched.q.shape == (3, 9, 2, 8) and batched.q.dtype == np.float32


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
        ({"v": np.ones((19, 2, 8))}, Mask.full(), "v"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, changes: dict[str, object], mask: Mask | None, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        case_from_file(saved(tmp_path / "f.npz", **changes), mask)


@pytest.mark.parametrize("content", [None, b"", b"not a zip", b"PK\x03\x04"])
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "step.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArgumentError, match="data"):
        case_from_file(path, Mask.full())


def test_what_stands_beside_is_judged_too() -> None:
    case = dataclasses.replace(small(), float32={f"d_{x}": np.zeros_like(getattr(small(), x)) for x in "qkv"})
    skip_without("wgpu")
    with open_device("wgpu") as device:
        baseline = next(c for c in run_checks([case], device=device, algorithm="streaming") if c.status == "baseline")
    assert baseline.ok and all(judgement.relative_error == pytest.approx(1) for judgement in baseline.judgements)
