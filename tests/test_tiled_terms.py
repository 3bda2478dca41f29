"""Softcap and ALiBi: their gradients, together and apart, and the refusals of what does not take them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import wgsl_attention as wa
from support.attention import sample, wgpu_device
from wgsl_attention.gpu.device import Device
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import Problem
from wgsl_attention.reference import accuracy
from wgsl_attention.reference import attention as reference
from wgsl_attention.rendering import kernel_text, renderer
from wgsl_attention.selection.tables import EMPTY

SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)


@pytest.fixture(scope="module")
def device() -> Device:
    return wgpu_device()


def run(
    device: Device, mask: Mask, q_len: int, kv_len: int, head_dim: int, spread: float = 1.0, **terms: Any
) -> accuracy.Verdict:
    p = Problem(
        q_len=q_len,
        kv_len=kv_len,
        heads=4,
        kv_heads=2,
        head_dim=head_dim,
        mask=mask,
        softcap="softcap" in terms,
        alibi="alibi_slopes" in terms,
    )
    given = sample(p, seed=3, q_size=spread, **terms)
    arrays = {name: given[name] for name in p.inputs}
    found = wa.attention_backward(**arrays, mask=mask, softcap=given.softcap, device=device, check_lse=True)
    return given.expected().judge({name: getattr(found, name) for name in p.outputs})


@pytest.mark.parametrize(
    ("mask", "q_len", "kv_len", "head_dim", "terms"),
    [
        (Mask.causal(), 130, 130, 64, {"softcap": 2.0}),
        (Mask.window(40, 3), 70, 100, 21, {"softcap": 0.5}),
        (Mask.causal(), 130, 130, 64, {"softcap": 30.0}),
        (Mask.full(), 65, 140, 64, {"alibi_slopes": SLOPES}),
        (Mask.causal(), 140, 65, 40, {"alibi_slopes": SLOPES}),
        (Mask.causal(), 100, 130, 40, {"alibi_slopes": SLOPES, "softcap": 1.5}),
    ],
    ids=["softcap", "softcap, window", "a cap far out", "alibi, full", "alibi, first rows empty", "both"],
)
def test_gradients(device: Device, mask: Mask, q_len: int, kv_len: int, head_dim: int, terms: dict[str, Any]) -> None:
    verdict = run(device, mask, q_len, kv_len, head_dim, **terms)
    assert verdict.ok, str(verdict)


def test_a_softcap_far_inside_the_scores_saturates(device: Device) -> None:
    """Scores of tens to a hundred under a cap of 3: tanh is 1 almost everywhere, its slope 0, and nothing overflows.

    Further out only a few pairs count, whose slope float32 hardly knows: 1.3 of the tolerance at ten times as far.
    """
    verdict = run(device, Mask.causal(), 70, 70, 64, spread=30.0, softcap=3.0)
    assert verdict.ok, str(verdict)


def test_the_slope_of_a_head_counts(device: Device) -> None:
    """A check that cannot fail is none: the reference without the term is far off."""
    rng = np.random.default_rng(0)
    q, k, v, d_o = (rng.standard_normal((40, heads, 16), np.float32) for heads in (4, 2, 2, 4))
    p = Problem(q_len=40, kv_len=40, heads=4, kv_heads=2, head_dim=16, mask=Mask.causal())
    _, lse = reference.forward(p, q[None], k[None], v[None], alibi=SLOPES)
    call = {"mask": Mask.causal(), "device": device}
    found = wa.attention_backward(q, k, v, d_o, lse[0].astype(np.float32), alibi_slopes=SLOPES, **call)
    plain = wa.attention_backward(q, k, v, d_o, lse[0].astype(np.float32), **call)
    assert np.abs(found.d_q - plain.d_q).max() > 1e-3
    with pytest.raises(wa.ArgumentError, match="lse"):
        wa.attention_backward(q, k, v, d_o, lse[0].astype(np.float32), check_lse=True, **call)


@pytest.mark.parametrize("profile", ["webgpu-compat", "webgpu-default"])
@pytest.mark.parametrize(
    ("dims", "terms"),
    [
        *itertools.product(
            [(32, 32), (48, 48), (64, 64), (72, 72), (80, 80), (96, 96), (128, 128), (256, 256)],
            [{"softcap": True}, {"alibi": True}, {"softcap": True, "alibi": True}],
        ),
        *itertools.product([(64, 32), (128, 64), (64, 128), (96, 64), (192, 128)], [{}, {"softcap": True, "alibi": True}]),
    ],
    ids=str,
)
def test_texts_are_checked_in(
    profile: str, dims: tuple[int, int], terms: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With WebGPU's default limits, and in compatibility mode, nothing is rendered for what is selected."""
    monkeypatch.setattr(renderer, "render", lambda variant: pytest.fail(f"{variant.name} is rendered"))
    for given, causal in itertools.product(("o", "none", "delta"), (True, False)):
        p = Problem(
            q_len=300,
            kv_len=300,
            heads=4,
            kv_heads=2,
            head_dim=dims[0],
            v_head_dim=dims[1],
            mask=Mask.causal() if causal else Mask.documents(),
            given=given,  # type: ignore[arg-type]
            **terms,
        )
        best = wa.select(p, wa.PROFILES[profile], algorithm="tiled", tuning=EMPTY).best
        assert best is not None
        for variant in best.variants:
            assert kernel_text.may_run_unchecked(variant)
            text = kernel_text.rendered(variant, p)
            assert set(text.values) == {constant.name for constant in text.constants}


@pytest.mark.parametrize("algorithm", ["short", "streaming"])
def test_the_others_refuse_them_by_name(algorithm: str) -> None:
    p = Problem(q_len=8, kv_len=8, heads=1, kv_heads=1, head_dim=8, mask=Mask.causal(), softcap=True)
    found = wa.select(p, wa.PROFILES["webgpu-default"], algorithm=algorithm)
    assert not found.candidates and "softcap" in found.refusals[0]


def test_wrong_terms_are_refused(device: Device) -> None:
    x, lse = np.ones((8, 2, 8), np.float32), np.ones((8, 2), np.float32)
    for terms, name in (
        ({"softcap": 0.0}, "softcap"),
        ({"softcap": float("nan")}, "softcap"),
        ({"alibi_slopes": np.ones(3)}, "alibi_slopes"),
        ({"alibi_slopes": np.array([np.inf, 1.0])}, "alibi_slopes"),
    ):
        with pytest.raises(wa.ArgumentError, match=name):
            wa.attention_backward(x, x, x, x, lse, mask=Mask.causal(), device=device, **terms)
    many = Problem(q_len=8, kv_len=8, heads=300, kv_heads=1, head_dim=8, mask=Mask.causal(), alibi=True)
    assert any("256 heads" in line for line in wa.select(many, wa.PROFILES["webgpu-default"]).refusals)
