"""What a warm call costs in Python: planning again, and recording next to wgpu-py written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import wgsl_attention as wa
from support.attention import problem, wgpu_device
from wgsl_attention import Device, Mask, Plan, Problem

PLAN_SECONDS = 20e-6
RECORD_RATIO = 1.2
TRIES = 20
"""Other programs on the machine only ever add time, so each bound has to hold in one of so many measurements."""


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


def seconds(action: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - start) / times


@pytest.mark.parametrize("strided", [False, True])
def test_planning_a_known_problem(wgpu: Device, strided: bool) -> None:
    """By the same problem, and by one that is only equal to it (made beforehand, as a training step would)."""
    terms: dict[str, Any] = {"q_len": 512, "kv_len": 512, "heads": 4, "kv_heads": 2, "head_dim": 64}
    same, equal = (Problem(**terms, mask=Mask.documents() & Mask.window(100, 0)) for _ in range(2))
    if strided:
        same, equal = same.heads_first(), equal.heads_first()
    made = wa.plan(same, wgpu)
    for p in (same, equal):
        best = min(seconds(lambda p=p: wa.plan(p, wgpu), 500) for _ in range(TRIES))
        print(f"warm plan(): {best * 1e6:.1f} µs")
        assert wa.plan(p, wgpu) is made and best < PLAN_SECONDS


def by_hand(made: Plan, buffers: dict[str, Any]) -> Callable[[Any], None]:
    """The same dispatches in wgpu-py, as one would write them once the bind groups are made."""
    calls = [(step.pipeline.raw, step.group, *step.workgroups) for step in made.bind(buffers)]

    def record(encoder: Any) -> None:
        compute_pass = encoder.begin_compute_pass(label="by hand")
        for pipeline, group, x, y, z in calls:
            compute_pass.set_pipeline(pipeline)
            compute_pass.set_bind_group(0, group)
            compute_pass.dispatch_workgroups(x, y, z)
        compute_pass.end()

    return record


@pytest.mark.parametrize("algorithm", ["tiled", "short", "streaming"])
def test_recording_against_wgpu_by_hand(wgpu: Device, algorithm: str) -> None:
    """From an encoder that is there to a pass that is ended; streaming adds, so that neither has to clear."""
    p = problem(Mask.causal(), 256, head_dim=64, accumulate=algorithm == "streaming")
    made = wa.plan(p, wgpu, algorithm=algorithm)
    buffers = {name: wgpu.zeros(size) for name, size in made.buffers.items()}
    recorders = by_hand(made, buffers), lambda encoder: made.record(encoder, buffers)
    ratios = []
    for _ in range(TRIES):
        times = []
        for record in recorders:
            encoder = wgpu.raw.create_command_encoder()
            times.append(min(seconds(lambda record=record, encoder=encoder: record(encoder), 20) for _ in range(5)))
        ratios.append(times[1] / times[0])
        if ratios[-1] <= RECORD_RATIO:
            break
    print(f"{algorithm}, {len(made.recipe.steps)} dispatches: {times[1] * 1e6:.1f} µs, by hand {times[0] * 1e6:.1f} µs")
    assert min(ratios) <= RECORD_RATIO, ratios
