"""The tiled algorithm at every length, head_dim, group and tile; and the property that every tile the rules allow is right.

``WGSL_ATTENTION_EXAMPLES=500`` draws as many combinations of tiles, problems and strips, and others each time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.attention import Run, sample, wgpu_device
from support.tiled_cases import check, problem, recipe, small
from wgsl_attention.algorithms.choice import Choice
from wgsl_attention.algorithms.recipe import Recipe
from wgsl_attention.algorithms.tiled import tiled
from wgsl_attention.algorithms.tiled_layouts import LAYOUTS, choice
from wgsl_attention.algorithms.tiled_split import rooms, strips
from wgsl_attention.errors import ArgumentError, VariantError
from wgsl_attention.gpu.device import Device
from wgsl_attention.kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from wgsl_attention.kernels.variant import Variant
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import Problem
from wgsl_attention.profile import PROFILES, DeviceProfile
from wgsl_attention.reference.samples import Sample
from wgsl_attention.selection.ranking import select

LISTED = {1, 2, 63, 64, 65, 127, 129, 255, 257, 1023, 1025}
TILES = {
    size
    for layout in LAYOUTS.values()
    for kernel in (layout.scores, *layout.dkdv, *layout.dq)
    for size in (kernel.rows, kernel.cols)
}
AROUND_TILES = {size + off for size in TILES | {2 * size for size in TILES} for off in (-1, 0, 1)}
HEAD_DIMS = (1, 8, 21, 32, 40, 59, 64, 72, 80, 96, 104, 111, 128, 160, 192, 203, 256)
V_HEAD_DIMS = ((192, 128), (64, 40), (21, 64), (40, 96), (128, 1))


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


@pytest.mark.parametrize("length", sorted(LISTED | AROUND_TILES))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lengths(wgpu: Device, layout: str, length: int) -> None:
    p = problem(Mask.causal(), length, heads=1 if length > 1000 else 2, kv_heads=1)
    check(wgpu, recipe(p, layout), sample(p))
    for q_len, kv_len in ((length, 20), (20, length)) if length < 300 else ():
        p = problem(Mask.full(), q_len, kv_len, heads=2, kv_heads=1)
        check(wgpu, recipe(p, layout), sample(p))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(wgpu: Device, head_dim: int) -> None:
    """As a constant, and by the kernels for any head_dim up to 256."""
    p = problem(Mask.causal(), 70, 75, heads=2, head_dim=head_dim)
    case = sample(p)
    for made in (recipe(p), recipe(p, at_most=256)):
        check(wgpu, made, case)


@pytest.mark.parametrize("head_dim", [32, 59])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(wgpu: Device, layout: str, head_dim: int) -> None:
    """Each as it is for one head_dim and for any up to 64, where the device has the workgroup memory."""
    p = problem(Mask.causal(), 150, heads=2, head_dim=head_dim)
    case = sample(p)
    check(wgpu, recipe(p, layout), case)
    if head_dim == 59:
        check(wgpu, recipe(p, layout, at_most=64), case)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_fit_what_they_are_for(name: str) -> None:
    """The smallest everywhere, compatibility mode included; the others where there is the workgroup memory they are named for."""
    profile = PROFILES["workgroup-48k" if name == "48k" else "webgpu-compat"]
    for head_dim, at_most in itertools.product((*HEAD_DIMS, *range(1, 257, 7)), (False, True)):
        made = choice(name, head_dim, form="at most" if at_most else "exact")
        for variant in made.kernels:
            assert not variant.shortfalls(profile), variant.name


@pytest.mark.parametrize(("head_dim", "v_head_dim"), V_HEAD_DIMS)
def test_v_head_dims(wgpu: Device, head_dim: int, v_head_dim: int) -> None:
    p = problem(Mask.causal(), 70, 75, heads=2, head_dim=head_dim, v_head_dim=v_head_dim)
    for case in (sample(p), sample(p).asking(given="o")):
        for made in (recipe(case.problem), recipe(case.problem, at_most=256)):
            check(wgpu, made, case)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (16, 1), (16, 4), (32, 8), (3, 1), (2, 2)])
@pytest.mark.parametrize("kind", ["16k", "small"])
def test_grouped_queries_and_batches(wgpu: Device, kind: str, heads: int, kv_heads: int, batch: int) -> None:
    p = problem(Mask.causal(), 70, heads=heads, kv_heads=kv_heads, batch=batch)
    check(wgpu, recipe(p, kind), sample(p))


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(ArgumentError, match="a multiple of kv_heads"):
        problem(Mask.full(), 8, heads=4, kv_heads=3)


@pytest.mark.parametrize("name", ["head_dim", "v_head_dim"])
def test_head_dims_past_256(name: str) -> None:
    with pytest.raises(ArgumentError, match="1 to 256"):
        problem(Mask.full(), 8, **{name: 257})
    with pytest.raises(VariantError, match="outside 1 to 256"):
        replace(choice("16k", 64, form="exact").kernels[1], **{name: 257})


# Strips and parts


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(
    batch=st.integers(1, 4),
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 8),
    q_len=st.integers(1, 3000),
    rows=st.sampled_from([16, 32, 64, 128]),
    cols=st.sampled_from([16, 64, 128]),
    mask=st.sampled_from([Mask.full(), Mask.causal(), Mask.window(100, 30), Mask.prefix(70)]),
    tiles=st.integers(1, 1 << 14),
    most_slots=st.integers(1, 40),
)
def test_strips_cover_everything_once(
    batch: int, kv_heads: int, group: int, q_len: int, rows: int, cols: int, mask: Mask, tiles: int, most_slots: int
) -> None:
    p = problem(mask, q_len, batch=batch, heads=group * kv_heads, kv_heads=kv_heads)
    room = rooms(p, rows, cols)
    covered = np.zeros((batch * p.heads, -(-q_len // rows)), int)
    first_of: set[int] = set()
    for strip in strips(p, rows, room, tiles, most_slots):
        assert strip.slots <= most_slots
        assert strip.row_first % rows == 0 and strip.rows % rows == 0 and strip.rows > 0 and strip.slots > 0
        covered[
            strip.slot_first : strip.slot_first + strip.slots, strip.row_first // rows : (strip.row_first + strip.rows) // rows
        ] += 1
        assert strip.row_first + strip.rows <= covered.shape[1] * rows
        own = room[strip.row_first // rows : (strip.row_first + strip.rows) // rows]
        assert strip.tiles == sum(own) and strip.widest == max(1, *own)
        assert strip.slots * strip.tiles <= tiles or (strip.slots, strip.rows) == (1, rows)
        # whole kv heads, or a divisor of one: dkdv has one workgroup for each kv head that the strip touches
        kv = range(strip.slot_first // group, (strip.slot_first + strip.slots - 1) // group + 1)
        assert len(kv) == -(-strip.slots // group) and (strip.slots % group == 0 or strip.slots < group)
        # `first` is the strip that overwrites: the first one in order that touches a kv head, and no other
        assert all((head not in first_of) == strip.first for head in kv)
        first_of |= set(kv)
    assert (covered == 1).all()


def facts(made: Recipe) -> dict[str, int]:
    """How a recipe goes about it: strips of rows and of slots, and parts."""
    sizes = [step.sizes for step in made.steps if isinstance(step.variant, AttentionScores)]
    return {
        "row strips": len({s["row_first"] for s in sizes}),
        "slot strips": len({s["slot_first"] for s in sizes}),
        **{name: sizes[0][name] for name in ("head_parts", "query_parts", "key_parts")},
    }


SPLIT = problem(Mask.causal(), 130, batch=2, heads=4, kv_heads=2)


@pytest.mark.parametrize("blocks", [1, 2, 5, 9, 14, 1000])
@pytest.mark.parametrize("accumulate", [False, True])
def test_strips_and_parts(wgpu: Device, blocks: int, accumulate: bool) -> None:
    case = sample(SPLIT)
    made = tiled(replace(SPLIT, accumulate=accumulate), small(16, blocks=blocks))
    before = {name: np.full(shape, 2, np.float32) for name, shape in case.problem.outputs.items()}
    got = Run(device=wgpu, recipe=made, before=before if accumulate else {})(case)
    if accumulate:
        for name, right in case.expected().outputs.items():
            # sums of up to 260 terms of about 1, on top of 2: each addition may round by 2⁻²³
            np.testing.assert_allclose(got[name] - 2, right, rtol=0, atol=260 * 2.0**-23, err_msg=name)
    else:
        verdict = case.expected().judge(got)
        assert verdict.ok, f"{facts(made)}: {verdict}"


def test_strips_and_parts_are_what_they_should_be() -> None:
    """Else the cases above prove nothing."""
    by_blocks = {blocks: facts(tiled(SPLIT, small(16, blocks=blocks))) for blocks in (1, 2, 5, 9, 14, 1000)}
    assert by_blocks[1]["row strips"] == 4 and by_blocks[1]["slot strips"] == 8
    assert by_blocks[2]["row strips"] == 3 and by_blocks[5]["row strips"] == 1
    assert by_blocks[9]["slot strips"] == 8 and by_blocks[14]["slot strips"] == 4
    assert by_blocks[1000] == {"row strips": 1, "slot strips": 1, "head_parts": 2, "query_parts": 2, "key_parts": 2}


def test_strips_of_all_slots(wgpu: Device) -> None:
    """512 rows of every slot at least, before the slots are divided."""
    p = problem(Mask.full(), 1100, 300, heads=2, kv_heads=1)
    made = tiled(p, small(16).replaced(budget=4 * 32 * 32 * 400))
    assert facts(made)["row strips"] == 2 and facts(made)["slot strips"] == 1
    check(wgpu, made, sample(p))


def test_layouts_in_strips(wgpu: Device) -> None:
    p = problem(Mask.causal(), 200, batch=2)
    chosen = choice("16k", 16).replaced(budget=4 * 64 * 64 * 3)
    made = tiled(p, chosen)
    assert facts(made)["row strips"] > 1 and facts(made)["slot strips"] > 1
    check(wgpu, made, sample(p))


# Every combination that the rules allow


LARGEST_TILE = 32
"""Numbers in a thread's registers, here: 64 are right too (a layout has them) and take llvmpipe three times as long to compile."""


@functools.cache
def allowed(family: type[Variant], **fixed: int) -> tuple[Variant, ...]:
    """Every variant of a family that its rules accept, over its parameters' values and some columns, for head_dim 8."""
    values: dict[str, tuple[Any, ...]] = {
        "rows": (16, 32, 64, 128),
        "cols": (8, 16, 24, 32, 40, 64, 80, 128),
        "row_reg": (2, 4, 8),
        "col_reg": (4, 8),
        "chunk": (8, 16, 32),
        "pipeline": ("", "ahead", "double"),
        "joint": (False, True),
        "span": (1, 2, 4),
    }
    names = [field.name for field in dataclasses.fields(family)]
    axes = [values[name] for name in names if name in values]
    found = []
    for drawn in itertools.product(*axes):
        params = dict(zip((name for name in names if name in values), drawn, strict=True))
        try:
            found.append(family(**params, **fixed))
        except VariantError:
            continue
    profile = PROFILES["webgpu-default"]
    return tuple(v for v in found if not v.shortfalls(profile) and v.params["row_reg"] * v.params["col_reg"] <= LARGEST_TILE)


@st.composite
def choices(draw: st.DrawFn, p: Problem) -> Choice:
    # dkdv has 16 keys at least, and they divide the scores' blocks
    scores = draw(st.sampled_from([v for v in allowed(AttentionScores) if v.params["cols"] % 16 == 0]))
    assert isinstance(scores, AttentionScores)
    of_scores = {"head_dim": 8, "query_rows": scores.rows, "key_cols": scores.cols}
    dkdv = draw(st.sampled_from(allowed(AttentionDkdv, **of_scores)))
    dq = draw(st.sampled_from(allowed(AttentionDq, **of_scores)))
    at_most = draw(st.booleans())
    dims: dict[str, Any] = {
        "head_dim": max(p.head_dim, p.v_head_dim, draw(st.integers(1, 40))) if at_most else p.head_dim,
        "v_head_dim": 0 if at_most or p.v_head_dim == p.head_dim else p.v_head_dim,
        "at_most": at_most,
    }
    guard = draw(st.sampled_from(["zero", "propagate"]))
    blocks = -(-p.kv_len // scores.cols)
    budget = 4 * blocks * scores.cols * scores.rows * draw(st.sampled_from([1, 2, 3, 5, 8, 1000]))
    return Choice(
        algorithm="tiled",
        kernels=(replace(scores, guard=guard), *(replace(variant, guard=guard, **dims) for variant in (dkdv, dq))),
        numbers={"parts": draw(st.sampled_from([1, 8, 4096])), "budget": budget},
    )


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    align = draw(st.sampled_from(["bottom-right", "top-left"]))
    width = st.none() | st.integers(0, 60)
    parts = {
        "full": st.just(Mask.full()),
        "causal": st.just(Mask.causal(align)),
        "window": st.builds(Mask.window, width, width, st.just(align)),
        "prefix": st.builds(Mask.prefix, st.integers(0, 150), st.just(align)),
        "documents": st.builds(Mask.documents, st.booleans()),
    }
    first, second = (draw(st.sampled_from(sorted(parts))) for _ in range(2))
    mask = draw(parts[first])
    return mask & draw(parts[second]) if {first, second} != {"prefix"} and draw(st.booleans()) else mask


@st.composite
def drawn_calls(draw: st.DrawFn) -> tuple[Sample, Choice]:
    mask = draw(masks())
    q_len = draw(st.integers(1, 150))
    p = Problem(
        batch=draw(st.integers(1, 3)),
        q_len=q_len,
        kv_len=q_len if mask.documents_mode else draw(st.integers(1, 150)),
        heads=(kv_heads := draw(st.integers(1, 2))) * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=(head_dim := draw(st.sampled_from([8, 16, 20, 5, 33]))),
        v_head_dim=draw(st.sampled_from([head_dim, head_dim, 12, 7])),
        mask=mask,
        given=draw(st.sampled_from(["none", "o", "delta"])),
        kv_lengths=draw(st.booleans()),
    )
    return sample(p, seed=draw(st.integers(0, 1000))), draw(choices(p))


EXAMPLES = int(os.environ.get("WGSL_ATTENTION_EXAMPLES", "0"))


@settings(
    max_examples=EXAMPLES or 25,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # each step of shrinking would compile six pipelines
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(drawn=drawn_calls())
def test_every_combination_that_the_rules_allow(drawn: tuple[Sample, Choice]) -> None:
    case, chosen = drawn
    made = tiled(case.problem, chosen)
    got = Run(device=wgpu_device(), recipe=made)(case)
    verdict = case.expected().judge(got)
    assert verdict.ok, f"{case.problem}: {facts(made)}: {chosen}: {verdict}"


def test_rules_keep_kernels_together() -> None:
    """Kernels that read what another has left must agree with its blocks."""
    _, dkdv, dq = choice("16k", 16).kernels
    for kernel, change in (
        (dkdv, {"key_cols": 32}),
        (dq, {"query_rows": 32}),
        (dq, {"key_cols": 8}),
        (dkdv, {"query_rows": 16, "chunk": 32}),
    ):
        with pytest.raises(VariantError, match="do not divide"):
            replace(kernel, **change)
    with pytest.raises(VariantError, match="take chunks of less than 32"):
        replace(dkdv, pipeline="double", chunk=32, query_rows=32)


# Long problems


def test_seventy_thousand_positions(wgpu: Device) -> None:
    """More than 65535, in documents of one position: every query sees itself, so d_q = d_k = 0 and d_v = d_o.

    The window keeps scratch narrow. Without it a block of queries has room for every key, and 365 strips take a CPU 40 s.
    """
    n = 70_000
    p = problem(Mask.documents() & Mask.window(0, 0), n, heads=1, kv_heads=1, head_dim=8)
    rng = np.random.default_rng(0)
    q, k, v, d_o = (rng.standard_normal((1, n, 1, 8), np.float32) for _ in range(4))
    lse = (np.sum(q.astype(float) * k, axis=3) / np.sqrt(8)).astype(np.float32)
    starts = np.arange(n, dtype=np.uint32)[None]
    case = Sample(problem=p, arrays={"q": q, "k": k, "v": v, "d_o": d_o, "lse": lse, "doc_start": starts})
    got = Run(device=wgpu, recipe=recipe(p))(case)
    np.testing.assert_allclose(got["d_v"], d_o, rtol=2e-7)
    # P·(dP − D), D being dP: what rounding leaves
    assert max(np.abs(got["d_q"]).max(), np.abs(got["d_k"]).max()) < 1e-5


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_many_heads_go_in_strips(profile: DeviceProfile) -> None:
    """70000 slots are past a dimension's limit, and the strips take them in turn."""
    p = problem(Mask.causal(), 5, heads=70_000, kv_heads=70_000, head_dim=4)
    assert select(p, profile, algorithm="tiled").best is not None


HUGE = replace(
    PROFILES["workgroup-48k"],
    limits=replace(PROFILES["workgroup-48k"].limits, max_buffer_size=1 << 60, max_storage_buffer_binding_size=1 << 60),
)
REFUSED: dict[str, tuple[Problem, DeviceProfile, str]] = {
    "q past 128 MiB": (
        problem(Mask.full(), 1 << 20, 8, heads=1, kv_heads=1, head_dim=64),
        PROFILES["webgpu-default"],
        "q takes",
    ),
    "keys past 128 MiB": (problem(Mask.full(), 8, 1 << 20, head_dim=64), PROFILES["webgpu-default"], "k takes"),
    "an index past 2³²": (problem(Mask.full(), 8, 1 << 29, head_dim=8), HUGE, "more than a 32-bit index reaches"),
    "queries past 2³²": (problem(Mask.full(), 1 << 29, 8, head_dim=8), HUGE, "more than a 32-bit index reaches"),
    "too many batch entries": (problem(Mask.full(), 1, batch=70_000), PROFILES["webgpu-default"], "65535 in a dimension"),
}


@pytest.mark.parametrize(("p", "profile", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(p: Problem, profile: DeviceProfile, reason: str) -> None:
    selection = select(p, profile, algorithm="tiled")
    assert selection.best is None
    assert any(reason in refusal for refusal in selection.refusals), selection.refusals
