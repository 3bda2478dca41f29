"""The gradient check itself: it passes what is right, and does not pass what is wrong, missing or not finite."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import skip_without
from wgsl_attention.errors import ArgumentError, DeviceError
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.planning.program import Program
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import Problem
from wgsl_attention.reference.samples import LOSS_SIZE, Sample, random_sample, sample_from_file
from wgsl_attention.validation import gradcheck
from wgsl_attention.validation.gradcheck import Check, run_checks

REAL_STEP = Path(__file__).parent / "data" / "real_step.npz"


@pytest.fixture(scope="module")
def gpu() -> Device:
    skip_without("wgpu")
    return open_device("wgpu")


def small(mask: Mask | None = None) -> Sample:
    problem = Problem(q_len=40, kv_len=40, heads=2, kv_heads=1, head_dim=16, mask=mask or Mask.causal())
    return random_sample(problem, d_o_size=LOSS_SIZE, name="small")


def by_status(checks: list[Check]) -> dict[str, set[str]]:
    return {status: {c.algorithm for c in checks if c.status == status} for status in ("pass", "fail", "refused", "baseline")}


def test_the_real_step_passes(gpu: Device) -> None:
    checks = run_checks([sample_from_file(REAL_STEP)], device=gpu)
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
        if "d_k" in found:
            found["d_k"][:, 3] *= np.float32(1 + 1e-4)
        return found

    monkeypatch.setattr(gradcheck, "run_plan", wrong)
    checks = run_checks([small()], device=gpu, algorithm="streaming")
    failed = [check for check in checks if check.status == "fail"]
    assert len(failed) == 2 and all([j.name for j in c.judgements if not j.ok] == ["d_k"] for c in failed)


def test_a_kernel_that_does_not_compile_fails_and_the_rest_goes_on(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gradcheck.run_plan

    def broken(plan: Program, *arrays: object, **options: object) -> object:
        if plan.recipe.algorithm != "rope":
            raise DeviceError("compiling: the driver says no")
        return right(plan, *arrays, **options)

    monkeypatch.setattr(gradcheck, "run_plan", broken)
    checks = run_checks([small()], device=gpu)
    found = by_status(checks)
    assert found["fail"] and found["pass"] == {"rope"}
    assert all("driver says no" in check.reason for check in checks if check.status == "fail")


def test_what_stands_beside_is_judged_too() -> None:
    sample = small()
    zeros = {name: np.zeros(shape, np.float32) for name, shape in sample.problem.outputs.items()}
    skip_without("wgpu")
    with open_device("wgpu") as device:
        checks = run_checks([dataclasses.replace(sample, theirs=zeros)], device=device, algorithm="streaming")
    baseline = next(check for check in checks if check.status == "baseline")
    assert baseline.ok and all(judgement.relative_error == pytest.approx(1) for judgement in baseline.judgements)


def test_a_file_without_more_than_it_must_hold(tmp_path: Path, gpu: Device) -> None:
    """NumPy in float32 stands in for the lse and for the gradients beside ours."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "my_step.npz", scale=0.25, **{name: rng.standard_normal((20, 2, 8)) for name in ("q", "k", "v", "do")})
    checks = run_checks([sample_from_file(tmp_path / "my_step.npz", Mask.causal())], device=gpu, algorithm="streaming")
    assert all(check.ok for check in checks) and {check.case for check in checks} == {"my step"}
    assert [c.given for c in checks if c.algorithm == "streaming"] == ["float32 lse", "exact lse"]
    assert [c.algorithm for c in checks if c.status == "baseline"] == ["NumPy"]
