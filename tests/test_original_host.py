"""A host that was written for the original file runs a rendered variant in the file's place, for each of its entry points.

``original_host.py`` is that host; the same tests run the file itself, so what the two promise is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import skip_without
from support import original_host
from support.attention import SENTINEL, documents, problem, rule, sample
from support.original_host import CONTRACT, Host, modules
from wgsl_attention import generated
from wgsl_attention.kernels.original import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from wgsl_attention.problem.mask import Mask
from wgsl_attention.reference import attention as reference
from wgsl_attention.reference.accuracy import Expected
from wgsl_attention.reference.samples import Sample
from wgsl_attention.rendering import manifest
from wgsl_attention.rendering.renderer import render

Array = np.ndarray[Any, Any]
SEQ, HEAD_DIM = 70, 64
SCALE = HEAD_DIM**-0.5


def checked_in(entry_point: str) -> list[str]:
    """The checked-in variants that such a host can run at this head_dim: not those with a mask's constants."""
    names = []
    for name, entry in manifest.entries().items():
        params, (least, most) = entry["params"], entry["serves"]["head_dim"]
        if entry["entry_point"] != entry_point or not least <= HEAD_DIM <= most or params["wg"] != 256:
            continue
        if params["mask"] in ("causal", "documents") and not params.get("seg_uniform"):
            names.append(name)
    return names


STREAMING = checked_in("attention_backward")
SHORT = checked_in("attention_backward_short")
DKDV = checked_in("attention_backward_short_dKdV")


def test_there_are_variants_to_swap_in() -> None:
    """With the head_dim as a constant and as a bound, with documents and without."""
    for names in (STREAMING, SHORT):
        made = [generated.load(name).params for name in names]
        assert {params["at_most"] for params in made} == {True, False}
        assert {params["mask"] for params in made} == {"causal", "documents"}
    assert len(DKDV) == 2


@pytest.fixture(scope="module", autouse=True)
def _needs_wgpu() -> None:
    skip_without("wgpu")


def host(entry_point: str, name: str = "") -> Host:
    """The host with the file's own module, or with a checked-in variant in its place."""
    return Host(entry_point, generated.load(name).wgsl if name else modules()[entry_point])


def call(name: str) -> tuple[Sample, dict[str, Array]]:
    """A sample, and its arrays without a batch axis, as the file has them. For a causal variant, the file's seg is all zeros."""
    p = problem(Mask.documents(), SEQ, heads=4, kv_heads=2, head_dim=HEAD_DIM)
    given = sample(p, doc_start=documents(p, [SEQ] if name.endswith("causal") else [1, 30, 17, 22]))
    return given, {key: array[0] for key, array in given.arrays.items()}


def judge(expected: Expected, found: dict[str, Array]) -> None:
    verdict = expected.judge({name: found[name][None] for name in ("d_q", "d_k", "d_v")})
    assert verdict.ok, verdict


def test_file_is_whole() -> None:
    assert set(modules()) == set(CONTRACT)


@pytest.mark.parametrize("entry_point", CONTRACT)
def test_variants_keep_the_bindings_of_the_file(entry_point: str) -> None:
    """Same group, numbers and address spaces, for every variant that binds no mask's constants; seg alone may be left out."""
    space = {"read": original_host.READ, "read_write": original_host.WRITE, "uniform": original_host.UNIFORM}
    for name in generated.NAMES:
        variant = generated.load(name)
        if variant.entry_point != entry_point:
            continue
        found = {b.binding: space[b.access] for b in variant.bindings}
        if variant.params.get("seg_uniform"):
            assert found.pop(10) == original_host.UNIFORM
        want = {n: kind for n, kind in CONTRACT[entry_point].items() if n in found or n != 10}
        assert found == want and all(b.group == 0 for b in variant.bindings), name


@pytest.mark.parametrize("name", ["", *STREAMING])
def test_attention_backward(name: str) -> None:
    given, x = call(name)
    zeros = {f"d_{n}": np.zeros_like(x[n]) for n in "qkv"}
    found = original_host.streaming(host("attention_backward", name), x, SCALE, zeros)
    judge(rule(given, "streaming"), found)


@pytest.mark.parametrize("name", ["", *STREAMING])
def test_attention_backward_adds(name: str) -> None:
    """dQ += …, and dK and dV accumulate: what the buffers held before is still in them."""
    given, x = call(name)
    rng = np.random.default_rng(3)
    before = {f"d_{n}": rng.integers(-3, 4, x[n].shape).astype(np.float32) for n in "qkv"}
    found = original_host.streaming(host("attention_backward", name), x, SCALE, before)
    right = given.expected().outputs
    for key, array in before.items():
        assert np.abs(array).max() == 3
        # up to 140 additions to a sum below 16, each rounded by at most 2⁻²¹ and mostly by far less
        np.testing.assert_allclose(found[key], array + right[key][0], rtol=0, atol=140 * 2.0**-23, err_msg=key)


@pytest.mark.parametrize(("main", "dkdv"), [("", ""), *((main, dkdv) for main in SHORT for dkdv in DKDV)])
def test_attention_backward_short_overwrites(main: str, dkdv: str) -> None:
    """Both kernels of the pair: no element of dQ, dK, dV keeps what it held, nor does the scratch for j ≤ s."""
    given, x = call(main)
    found = original_host.short(
        host("attention_backward_short", main), host("attention_backward_short_dKdV", dkdv), x, SCALE, float(SENTINEL)
    )
    judge(given.expected(), found)
    past = np.triu(np.ones((SEQ, SEQ), bool), 1)[:, None, :].repeat(4, axis=1)
    for scratch in (found["p"], found["d_s"]):
        assert (scratch[past] == SENTINEL).all() and not (scratch[~past] == SENTINEL).any()


def test_the_pair_may_be_mixed() -> None:
    """The scratch between the two kernels is the file's: one of them may be rendered and the other the file's own."""
    given, x = call("documents")
    rendered = next(name for name in SHORT if name.endswith("documents"))
    for main, dkdv in (("", DKDV[0]), (rendered, "")):
        found = original_host.short(
            host("attention_backward_short", main), host("attention_backward_short_dKdV", dkdv), x, SCALE, float(SENTINEL)
        )
        judge(given.expected(), found)


@pytest.mark.parametrize("wg", [32, 64, 128, 256])
def test_other_workgroup_sizes_need_no_other_host(wg: int) -> None:
    """The attention kernels dispatch by query or key, so that their number of threads is nobody's business."""
    given, x = call("documents")
    common = {"wg": wg, "head_dim": HEAD_DIM}
    main = render(AttentionBackwardShort(max_seq=SEQ, mask="documents", **common)).wgsl
    dkdv = render(AttentionBackwardShortDkdv(mask="causal", **common)).wgsl
    found = original_host.short(
        Host("attention_backward_short", main), Host("attention_backward_short_dKdV", dkdv), x, SCALE, float(SENTINEL)
    )
    judge(given.expected(), found)
    streaming = Host("attention_backward", render(AttentionBackward(mask="documents", **common)).wgsl)
    zeros = {f"d_{n}": np.zeros_like(x[n]) for n in "qkv"}
    judge(rule(given, "streaming"), original_host.streaming(streaming, x, SCALE, zeros))


def float32_angles(seq: int, head_dim: int, base: float, offset: int) -> Array:
    """The file's own formula, in float32: exp(−log(base)·2p/head_dim), times the position."""
    p = np.arange(head_dim // 2, dtype=np.float32)
    frequency = np.exp(-np.log(np.float32(base)) * (2 * p) / np.float32(head_dim))
    return np.outer(np.arange(offset, offset + seq).astype(np.float32), frequency)


@pytest.mark.parametrize("heads", ["q", "k"])
@pytest.mark.parametrize("threads", [0, 64, 256])
def test_rope(heads: str, threads: int) -> None:
    """A host of the file leaves the last three words of params zero; the angle is then what the file makes it."""
    entry_point = f"rope_{heads}_backward"
    x = np.random.default_rng(1).standard_normal((45, 4 if heads == "q" else 2, 32), np.float32)
    base, offset = 10000.0, 11
    got = original_host.rope(
        host(entry_point, f"{entry_point}_wg{threads}" if threads else ""), x, base, offset, threads or 256
    )
    angle = float32_angles(45, 32, base, offset)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    right = np.stack([x[..., ::2] * cos + x[..., 1::2] * sin, x[..., 1::2] * cos - x[..., ::2] * sin], axis=-1).reshape(x.shape)
    # An angle of up to 55 in float32 is off by 55·(a few units of 2⁻²⁴), and WGSL bounds sin and cos loosely there.
    np.testing.assert_allclose(got, right, rtol=0, atol=1e-4)
    np.testing.assert_allclose(got, reference.rope_backward(x[None], base, offset)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("heads", ["q", "k"])
def test_rope_has_the_bits_of_the_file(heads: str) -> None:
    entry_point = f"rope_{heads}_backward"
    x = np.random.default_rng(1).standard_normal((30, 3, 64), np.float32)
    both = [original_host.rope(host(entry_point, name), x, 10000.0, 1000, 256) for name in ("", f"{entry_point}_wg256")]
    np.testing.assert_allclose(*both, rtol=0, atol=1e-6)
