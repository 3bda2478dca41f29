"""A driver's bug that is entered as a quirk: selection goes round it, ``explain`` and ``validate`` say why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from wgsl_attention import PROFILES, DeviceError, Mask, Problem
from wgsl_attention.gpu.device import Device
from wgsl_attention.kernels import quirks
from wgsl_attention.kernels.families import FAMILIES
from wgsl_attention.kernels.quirks import Quirk
from wgsl_attention.kernels.variant import Variant
from wgsl_attention.rendering import manifest
from wgsl_attention.selection import ranking
from wgsl_attention.selection.ranking import select
from wgsl_attention.selection.tables import EMPTY
from wgsl_attention.validation import matrix, toolchains

ACME = replace(PROFILES["webgpu-default"], name="acme via vulkan", backend="wgpu", device="acme one", driver="acme 1.2")
PROBLEM = Problem(q_len=1024, kv_len=1024, heads=8, kv_heads=2, head_dim=64, mask=Mask.causal())
ROPE = "rope_k_backward_wg64"
EVERYWHERE = """
import sys
from wgsl_attention.kernels import quirks
from wgsl_attention.validation import worker
quirks.QUIRKS = (
    quirks.Quirk(kernel="rope_k_backward", holds=lambda v, profile: profile.software, reason="turns left", link="issue 7"),
)
worker.main(sys.argv[1:])
"""


@pytest.fixture
def quirk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Variant]:
    """The dq kernel that would be chosen on ACME is wrong there."""
    best = select(PROBLEM, ACME, tuning=EMPTY).best
    assert best is not None
    bad = next(variant for variant in best.variants if variant.kernel == "attention_dq")
    entry = Quirk(
        kernel="attention_dq",
        holds=lambda variant, profile: "acme" in profile.device and variant.params == bad.params,
        reason="d_q is zero in every fourth row",
        link="https://example.com/issues/7",
    )
    monkeypatch.setattr(quirks, "QUIRKS", (entry,))
    ranking._select.cache_clear()
    yield bad
    ranking._select.cache_clear()


def test_selection_goes_round_it_and_says_why(quirk: Variant) -> None:
    reason = "d_q is zero in every fourth row (https://example.com/issues/7)"
    assert quirk.shortfalls(ACME) == (reason,) and quirk.shortfalls(PROFILES["webgpu-default"]) == ()
    found = select(PROBLEM, ACME, tuning=EMPTY)
    assert found.candidates and not any(quirk in recipe.variants for recipe in found.candidates)
    assert f"refused: {quirk.name}: {reason}" in found.explain()
    elsewhere = select(PROBLEM, replace(ACME, device="other one"), tuning=EMPTY).best
    assert elsewhere is not None and quirk in elsewhere.variants


def test_what_was_rendered_knows_it_too(quirk: Variant) -> None:
    rendered = manifest.load(quirk.name)
    assert rendered.shortfalls(ACME) == quirk.shortfalls(ACME)
    assert manifest.smallest_profile(rendered) == manifest.entries()[quirk.name]["profile"]  # a profile has no driver


def test_a_device_refuses_it_by_name(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Quirk(kernel="rope_k_backward", holds=lambda variant, profile: True, reason="turns left", link="issue 7")
    monkeypatch.setattr(quirks, "QUIRKS", (entry,))
    with pytest.raises(DeviceError, match=rf"{ROPE}.*: turns left \(issue 7\)"):
        device.pipeline(manifest.load(ROPE))


def test_validate_lists_it_and_does_not_run_it() -> None:
    (column,) = toolchains.columns(["naga"], ["llvmpipe"])
    if column.missing:
        pytest.skip(column.missing)
    worker = replace(column, command=(sys.executable, "-c", EVERYWHERE, *column.command[3:]))
    names = [ROPE, "rope_q_backward_wg64"]
    report = matrix.validate([manifest.load(name) for name in names], [worker], executed=False, timeout=60)
    assert {name: row.compiles[column.name].status for name, row in report.rows.items()} == {
        names[0]: "quirk",
        names[1]: "pipeline",
    }
    assert f"{ROPE} is not for naga on llvmpipe: turns left (issue 7)" in report.notes()
    assert report.faults() == []
    report.executed = True
    assert [fault.partition(":")[0] for fault in report.faults()] == [names[1]]  # that one has not been run


def test_quirks_name_kernels_and_say_why() -> None:
    for entry in quirks.QUIRKS:
        assert entry.kernel in FAMILIES and entry.reason and entry.link
