"""The five kernels against float64: every checked-in variant, and the shapes, masks and inputs that break such kernels.

Run on wgpu's best adapter; a few cases run on every backend. ``attention.py`` has the inputs and the runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest
from support.attention import (
    RECIPES,
    SENTINEL,
    Array,
    Run,
    documents,
    problem,
    rule,
    run,
    sample,
    short,
    streaming,
    wgpu_device,
)
from support.kinds import INPUTS
from wgsl_attention.algorithms.recipe import Recipe
from wgsl_attention.errors import VariantError
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.kernels.facts import RenderedVariant
from wgsl_attention.kernels.families import FAMILIES
from wgsl_attention.kernels.original import SHORT_MASKS, AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from wgsl_attention.kernels.rope import RopeKBackward, RopeQBackward
from wgsl_attention.kernels.variant import WORKGROUP_SIZES, Variant
from wgsl_attention.problem.mask import Align, Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.problem.rotation import rope_ratio
from wgsl_attention.reference import attention as reference
from wgsl_attention.reference.attention import Outputs
from wgsl_attention.reference.samples import Sample
from wgsl_attention.rendering.kernel_text import rendered
from wgsl_attention.rendering.renderer import render
from wgsl_attention.selection import catalog

ALGORITHMS = tuple(RECIPES)
GUARDS = ("zero", "propagate")
MODES: dict[str, tuple[Mask, int, int]] = {
    "full": (Mask.full(), 67, 67),
    "causal": (Mask.causal(), 67, 67),
    "documents": (Mask.documents(), 67, 67),
    "window": (Mask.window(7, 2), 50, 67),
    "prefix": (Mask.prefix(40), 67, 67),
    "documents_window": (Mask.documents() & Mask.window(9, 0), 67, 67),
}
"""A mask for each of the kernels' mask modes, with q_len and kv_len."""


@pytest.fixture(scope="session")
def wgpu() -> Device:
    return wgpu_device()


def check(device: Device, recipe: Recipe, given: Sample, lse: Array | None = None) -> None:
    """The recipe's gradients pass the rule; every element is written, as the buffers held something else."""
    verdict = rule(given, recipe.algorithm, lse).judge(run(device, recipe, given))
    assert verdict.ok, f"{' + '.join(v.name for v in recipe.variants)}: {verdict}"


# Every checked-in variant

CONTRACT = (AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv, RopeQBackward, RopeKBackward)
NAMES = [name for name, variant in catalog.checked_in().items() if isinstance(variant, CONTRACT)]
"""The checked-in variants of the original's five kernels."""


def variant_recipes(variant: Variant) -> list[Recipe]:
    """Recipes that run an attention variant, on a problem of each mask that it serves; partners are like it."""
    params = dict(variant.params)
    recipes = []
    for mask in variant.serves.masks:
        visible, q_len, kv_len = MODES[mask]
        head_dim = 59 if params["at_most"] else params["head_dim"]
        p = problem(visible, q_len, kv_len, head_dim=head_dim, batch=2 if mask != "window" else 1)
        if isinstance(variant, AttentionBackward):
            recipes.append(streaming(p, **params))
        elif isinstance(variant, AttentionBackwardShort):
            recipes.append(short(p, **params))
        else:
            recipes.append(short(p, **{**params, "mask": mask, "max_seq": 128}))
    return recipes


@pytest.mark.parametrize("name", NAMES)
def test_variant(wgpu: Device, name: str) -> None:
    variant = catalog.checked_in()[name]
    if isinstance(variant, RopeQBackward | RopeKBackward):
        check_rope(wgpu, variant, heads=3, seq=5, head_dim=64, offset=7)
        return
    recipes = variant_recipes(variant)
    assert recipes and all(variant in recipe.variants for recipe in recipes)
    for recipe in recipes:
        check(wgpu, recipe, sample(recipe.problem))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_backend(device: Device, algorithm: str) -> None:
    p = problem(Mask.documents(), 70, heads=4, kv_heads=2)
    check(device, RECIPES[algorithm](p, mask="documents", seg_uniform=True), sample(p))


def test_unchecked_modules_give_the_same_bits(wgpu: Device) -> None:
    p = problem(Mask.causal(), 65)
    given = sample(p)
    with open_device("wgpu", unchecked=False) as checked:
        assert_same_bits(run(wgpu, short(p, mask="causal"), given), run(checked, short(p, mask="causal"), given))


# Shapes


@pytest.mark.parametrize("seq", [1, 2, 63, 64, 65, 127, 129, 255, 257, 1023, 1025])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lengths(wgpu: Device, algorithm: str, seq: int) -> None:
    p = problem(Mask.causal(), seq)
    limit = {} if algorithm == "streaming" else {"max_seq": 1088}
    check(wgpu, RECIPES[algorithm](p, wg=64, mask="causal", **limit), sample(p))


@pytest.mark.parametrize("head_dim", [1, 8, 21, 32, 40, 59, 64, 72, 80, 96, 104, 111, 128, 160, 192, 203, 256])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_head_dims_exact_and_at_most(wgpu: Device, algorithm: str, head_dim: int) -> None:
    """With 64 threads, so that most head dims are above the workgroup size."""
    p = problem(Mask.causal(), 33, head_dim=head_dim)
    given, recipe = sample(p), RECIPES[algorithm]
    check(wgpu, recipe(p, mask="causal", head_dim=256, at_most=True), given)
    # llvmpipe unrolls a loop of up to 32 turns, which takes it seconds for each streaming kernel; test_variant has these.
    if not (algorithm == "streaming" and 64 <= head_dim <= 128 and head_dim % 4 == 0):
        check(wgpu, recipe(p, mask="causal"), given)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (16, 1), (16, 4), (32, 8), (3, 1), (2, 2)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_grouped_queries_and_batches(wgpu: Device, algorithm: str, heads: int, kv_heads: int, batch: int) -> None:
    p = problem(Mask.documents(), 19, heads=heads, kv_heads=kv_heads, batch=batch, head_dim=8)
    check(wgpu, RECIPES[algorithm](p, mask="documents"), sample(p))


@pytest.mark.parametrize("wg", WORKGROUP_SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_workgroup_sizes(wgpu: Device, algorithm: str, wg: int) -> None:
    limits = wgpu.profile.limits
    if wg > min(limits.max_compute_invocations_per_workgroup, limits.max_compute_workgroup_size_x):
        pytest.skip(f"{wgpu} has no {wg} threads")
    for head_dim, bound in ((201, {}), (40, {"head_dim": 256, "at_most": True})):
        p = problem(Mask.causal(), 131, head_dim=head_dim, heads=1)
        check(wgpu, RECIPES[algorithm](p, mask="causal", wg=wg, **bound), sample(p))


@pytest.mark.parametrize("align", ["bottom-right", "top-left"])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 239), (239, 1), (3, 799), (799, 3), (127, 512), (512, 127)])
def test_causal_with_other_keys(wgpu: Device, q_len: int, kv_len: int, align: Align) -> None:
    """With bottom-right and q_len > kv_len the first rows are empty, and their lse is +inf."""
    p = problem(Mask.causal(align), q_len, kv_len, heads=2, kv_heads=1)
    given = sample(p)
    assert np.isposinf(given["lse"]).any() == (q_len > kv_len and align == "bottom-right")
    check(wgpu, streaming(p, mask="window"), given)


@pytest.mark.parametrize("q_len", [1, 40, 90])
def test_full_with_other_keys(wgpu: Device, q_len: int) -> None:
    p = problem(Mask.full(), q_len, 70, batch=2)
    check(wgpu, streaming(p, mask="window"), sample(p))


SEQ = 100


@pytest.mark.parametrize(
    "window", [(0, 0), (1, 0), (64, 0), (SEQ - 1, 0), (16, 16), (0, 5), (1000, 1000), (None, 3), (3, None)]
)
@pytest.mark.parametrize("lengths", [(SEQ, SEQ), (60, SEQ), (SEQ, 60)])
def test_windows(wgpu: Device, lengths: tuple[int, int], window: tuple[int | None, int | None]) -> None:
    p = problem(Mask.window(*window), *lengths)
    check(wgpu, streaming(p, mask="window"), sample(p))


def test_widest_window_is_causal(wgpu: Device) -> None:
    assert problem(Mask.window(SEQ - 1, 0), SEQ).interval == problem(Mask.causal(), SEQ).interval
    p = problem(Mask.causal(), SEQ)
    given = sample(p)
    both = [run(wgpu, streaming(p, mask=mask), given) for mask in ("window", "causal")]
    assert both[0]["d_q"].tobytes() == both[1]["d_q"].tobytes()


def test_window_keeps_one_more_than_its_width(wgpu: Device) -> None:
    """A window of (8, 0) has nine keys: the gradient of the last query reaches back to key 91 - 8 and not to the one before."""
    p = problem(Mask.window(8, 0), 92)
    d_o = np.zeros((1, 92, 2, 16), np.float32)
    d_o[:, -1] = 1
    d_v = run(wgpu, streaming(p, mask="window"), sample(p, d_o=d_o))["d_v"]
    assert np.flatnonzero(d_v.any(axis=(0, 2, 3))).tolist() == list(range(83, 92))


DOCUMENTS = {
    "one for each position": [1] * 96,
    "a boundary on the tile's edge": [64, 32],
    "boundaries off it": [63, 2, 31],
    "one for all": [96],
    "a boundary in the last position": [95, 1],
    "a boundary in the first position": [1, 95],
}


@pytest.mark.parametrize("seg_uniform", [False, True])
@pytest.mark.parametrize("lengths", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_documents(wgpu: Device, algorithm: str, lengths: list[int], seg_uniform: bool) -> None:
    p = problem(Mask.documents(), 96)
    given = sample(p, doc_start=documents(p, lengths))
    check(wgpu, RECIPES[algorithm](p, mask="documents", seg_uniform=seg_uniform), given)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_documents_that_change_from_call_to_call(wgpu: Device, algorithm: str) -> None:
    """The scratch of the call before is still there, and held P and dS where there now are none."""
    p = problem(Mask.documents(), 70)
    again = Run(device=wgpu, recipe=RECIPES[algorithm](p, mask="documents"))
    for lengths in ([70], [1, 69], [35, 1, 34], [70]):
        given = sample(p, doc_start=documents(p, lengths))
        verdict = rule(given, algorithm).judge(again(given))
        assert verdict.ok, verdict


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_doc_start_that_is_not_monotone(wgpu: Device, algorithm: str) -> None:
    p = problem(Mask.documents(), 70, batch=2)
    rng = np.random.default_rng(5)
    given = sample(p, doc_start=rng.integers(0, np.arange(70) + 1, (2, 70)).astype(np.uint32))
    assert (np.diff(given["doc_start"].astype(int), axis=1) < 0).any()
    check(wgpu, RECIPES[algorithm](p, mask="documents"), given)


@pytest.mark.parametrize("window", [(0, 0), (5, 0), (200, 0), (4, 4)])
@pytest.mark.parametrize("seg_uniform", [False, True])
def test_documents_and_window(wgpu: Device, window: tuple[int, int], seg_uniform: bool) -> None:
    p = problem(Mask.documents() & Mask.window(*window), 70, batch=2)
    check(wgpu, streaming(p, mask="documents_window", seg_uniform=seg_uniform), sample(p))


@pytest.mark.parametrize("length", [0, 1, 33, 70])
@pytest.mark.parametrize(("q_len", "kv_len"), [(70, 70), (40, 70), (70, 40)])
def test_prefixes(wgpu: Device, length: int, q_len: int, kv_len: int) -> None:
    """A prefix that is no prefix resolves to causal or full, which the window mode serves at any lengths."""
    p = problem(Mask.prefix(length), q_len, kv_len)
    check(wgpu, streaming(p, mask="window" if p.interval.prefix is None else "prefix"), sample(p))


# Inputs


@pytest.mark.parametrize("kind", INPUTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_inputs(wgpu: Device, algorithm: str, kind: Callable[[Problem], Sample]) -> None:
    p = problem(Mask.causal(), 140)
    check(wgpu, RECIPES[algorithm](p, mask="causal"), kind(p))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lse_with_a_sink(wgpu: Device, algorithm: str) -> None:
    """Σ P of about 0.95 is legitimate and must stay so: P and D are used as they are."""
    p = problem(Mask.causal(), 90)
    own = sample(p)
    lse = (own["lse"] + np.float32(-math.log(0.95))).astype(np.float32)
    given = sample(p, lse=lse)
    check(wgpu, RECIPES[algorithm](p, mask="causal"), given, lse=lse)
    wrong = rule(own, algorithm).judge(run(wgpu, RECIPES[algorithm](p, mask="causal"), given))
    assert not wrong.ok


@pytest.mark.parametrize("off", [1e-5, -1e-5, 5e-4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lse_that_is_slightly_off(wgpu: Device, algorithm: str, off: float) -> None:
    """Rounding of the lse is corrected: held against the rows' own softmax."""
    p = problem(Mask.causal(), 90)
    given = sample(p, lse=sample(p)["lse"] + np.float32(off))
    check(wgpu, RECIPES[algorithm](p, mask="causal"), given)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_infinite_lse_means_that_nothing_is_visible(wgpu: Device, algorithm: str, guard: str) -> None:
    p = problem(Mask.causal(), 40)
    lse = sample(p)["lse"].copy()
    lse[:, [0, 7, 39]] = np.inf
    given = sample(p, lse=lse)
    got = run(wgpu, RECIPES[algorithm](p, mask="causal", guard=guard), given)
    for rows in (got["d_q"][:, [0, 7, 39]], got["d_k"][:, 39], got["d_v"][:, 39]):
        assert not rows.any()
    d_o = given["d_o"].copy()
    d_o[:, [0, 7, 39]] = 0
    assert rule(sample(p, d_o=d_o), algorithm).judge(got).ok


# What is written, and what is not


def assert_same_bits(a: Outputs, b: Outputs) -> None:
    for name in GRADIENTS:
        assert a[name].tobytes() == b[name].tobytes(), name


def assert_untouched(algorithm: str, a: Outputs, b: Outputs, where: dict[str, Array] | None = None) -> None:
    """The same bits (``where`` says in which rows). Streaming's d_k and d_v are sums in an order that differs from run to
    run, on llvmpipe too, so there a rounding error is let pass; poison that was read would be more than that."""
    for name in GRADIENTS:
        x, y = (g[name] if where is None else g[name][where[name]] for g in (a, b))
        if algorithm == "streaming" and name != "d_q":
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * max(1.0, np.abs(y).max(initial=0)), err_msg=name)
        else:
            assert x.tobytes() == y.tobytes(), name


def test_short_repeats_itself(wgpu: Device) -> None:
    p = problem(Mask.documents(), 65, heads=4, kv_heads=2)
    given, again = sample(p), Run(device=wgpu, recipe=short(p, mask="documents"))
    first = again(given)
    for _ in range(50):
        assert_same_bits(again(given), first)


def test_short_repeats_itself_on_every_backend(device: Device) -> None:
    p = problem(Mask.causal(), 40)
    given, again = sample(p), Run(device=device, recipe=short(p, mask="causal"))
    first = again(given)
    for _ in range(9):
        assert_same_bits(again(given), first)


@pytest.mark.parametrize("name", catalog.checked_in())
def test_only_streaming_is_atomic(name: str) -> None:
    variant = catalog.checked_in()[name]
    assert bool(re.search("atomic", render(variant).wgsl, re.IGNORECASE)) == isinstance(variant, AttentionBackward)


def prior(given: Sample) -> dict[str, Array]:
    """Whole numbers, of the gradients' size, so that the sum's rounding is known."""
    rng = np.random.default_rng(9)
    return {name: rng.integers(1, 4, shape).astype(np.float32) for name, shape in given.problem.outputs.items()}


@pytest.mark.parametrize("added", [(), ("d_q",), ("d_k", "d_v"), ("d_q", "d_k", "d_v")])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_accumulate(wgpu: Device, algorithm: str, added: tuple[str, ...]) -> None:
    p = problem(Mask.causal(), 40, accumulate=frozenset(added))
    given = sample(p)
    before = prior(given)
    if algorithm == "short":
        recipe = short(p, mask="causal", accumulate="d_q" in added)
        companion = short(p, mask="causal", accumulate="d_k" in added).steps[1]
        recipe = Recipe(algorithm="short", problem=p, steps=(recipe.steps[0], companion), scratch=recipe.scratch)
    else:
        recipe = streaming(p, mask="causal", overwrite="d_q" not in added)
    got = Run(device=wgpu, recipe=recipe, before=before)(given)
    right = given.expected().outputs
    for name in GRADIENTS:
        total = right[name] + (before[name] if name in added else 0)
        # Sums of up to 80 terms of about 1 on top of up to 3: each addition may round by 2⁻²³.
        np.testing.assert_allclose(got[name], total, rtol=0, atol=80 * 2.0**-23, err_msg=name)


def test_adding_and_overwriting_streaming_agree(wgpu: Device) -> None:
    p = problem(Mask.causal(), 40)
    given = sample(p)
    adding, overwriting = (streaming(p, mask="causal", overwrite=overwrite) for overwrite in (False, True))
    assert adding.cleared == ("d_q", "d_k", "d_v") and overwriting.cleared == ("d_k", "d_v")
    assert run(wgpu, adding, given)["d_q"].tobytes() == run(wgpu, overwriting, given)["d_q"].tobytes()


def test_seg_as_a_uniform_gives_the_same_bits(wgpu: Device) -> None:
    p = problem(Mask.documents(), 70, batch=2)
    given = sample(p)
    both = [run(wgpu, short(p, mask="documents", seg_uniform=uniform), given) for uniform in (False, True)]
    assert_same_bits(*both)


def dispatch(
    device: Device, variant: RenderedVariant, buffers: dict[str, Array], words: dict[str, Any], counts: tuple[int, int, int]
) -> dict[str, Array]:
    """One dispatch with these arrays and uniforms by role; returns what its writable buffers then hold."""
    pipeline = device.pipeline(variant)
    bound = {}
    for binding in variant.bindings:
        made = device.uniform(words[binding.role]) if binding.words else device.storage(buffers[binding.role])
        bound[binding.binding] = made
    group = device.bind_group(pipeline, bound)

    def record(compute_pass: Any) -> None:
        compute_pass.set_pipeline(pipeline.raw)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(*counts)

    device.run(record)
    return {
        b.role: np.frombuffer(device.read(bound[b.binding]), np.float32) for b in variant.bindings if b.access == "read_write"
    }


WRONG_SIZES: dict[str, tuple[Variant, tuple[int, int, int, int]]] = {
    "streaming, head_dim is not the constant": (AttentionBackward(wg=64, head_dim=16, mask="causal"), (8, 2, 1, 12)),
    "streaming, head_dim is above the bound": (
        AttentionBackward(wg=64, head_dim=16, at_most=True, mask="causal"),
        (8, 2, 1, 20),
    ),
    "short, head_dim is not the constant": (AttentionBackwardShort(wg=64, max_seq=8, head_dim=16, mask="full"), (8, 2, 1, 12)),
    "short, longer than MAX_SEQ": (AttentionBackwardShort(wg=64, max_seq=8, head_dim=16, mask="full"), (9, 2, 1, 16)),
    "dKdV, head_dim is not the constant": (AttentionBackwardShortDkdv(wg=64, head_dim=16, mask="full"), (8, 2, 1, 20)),
    "dKdV, head_dim is above the bound": (
        AttentionBackwardShortDkdv(wg=64, head_dim=16, at_most=True, mask="full"),
        (8, 2, 1, 20),
    ),
}


@pytest.mark.parametrize(("variant", "dims"), WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_wrong_sizes_write_nothing(wgpu: Device, variant: Variant, dims: tuple[int, int, int, int]) -> None:
    """A host that dispatches a variant for what it is not made for gets its buffers back as they were."""
    rendered_variant = render(variant)
    buffers = {b.role: np.full(2000, SENTINEL) for b in variant.bindings if not b.words}
    words = {"dims": dims, "params": (0.25, 0, 0, 0)}
    for role, after in dispatch(wgpu, rendered_variant, buffers, words, (dims[0], dims[1], 1)).items():
        assert (after == SENTINEL).all(), role


# Poison


@pytest.mark.parametrize("poison", [1e30, np.nan], ids=["1e30", "nan"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_padding_is_not_read(wgpu: Device, algorithm: str, guard: str, poison: float) -> None:
    p = problem(Mask.documents(), 37)
    given, again = sample(p), Run(device=wgpu, recipe=RECIPES[algorithm](p, mask="documents", guard=guard))
    assert_untouched(algorithm, again(given, padding=poison), again(given))


@pytest.mark.parametrize("poison", [1e30, np.nan], ids=["1e30", "nan"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(
    ("mask", "q_len", "kv_len", "rows", "keys"),
    [
        (Mask.window(3, 0), 20, 50, [], range(27)),  # keys before the first query's window
        (Mask.window(3, 0, "top-left"), 20, 50, [], range(20, 50)),  # and past the last one's
        (Mask.causal(), 50, 20, range(30), []),  # queries that see nothing
    ],
    ids=["keys before", "keys past", "empty rows"],
)
def test_what_is_invisible_changes_no_bit(
    wgpu: Device, guard: str, poison: float, mask: Mask, q_len: int, kv_len: int, rows: Any, keys: Any
) -> None:
    p = problem(mask, q_len, kv_len)
    given, again = sample(p), Run(device=wgpu, recipe=streaming(p, mask="window", guard=guard))
    poisoned = {name: given[name].copy() for name in ("q", "k", "v", "d_o")}
    for name, places in (("q", rows), ("d_o", rows), ("k", keys), ("v", keys)):
        poisoned[name][:, list(places)] = poison
    clean = again(given)
    assert (
        not clean["d_q"][:, list(rows)].any()
        and not clean["d_k"][:, list(keys)].any()
        and not clean["d_v"][:, list(keys)].any()
    )
    assert_untouched("streaming", again(given.changed(**poisoned)), clean)


@pytest.mark.parametrize("poison", [1e30, np.nan], ids=["1e30", "nan"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_document_changes_no_bit(wgpu: Device, algorithm: str, guard: str, poison: float) -> None:
    p = problem(Mask.documents(), 60, batch=2)
    given = sample(p, doc_start=documents(p, [20, 25, 15]))
    poisoned = {name: given[name].copy() for name in ("q", "k", "v", "d_o", "lse")}
    for array in poisoned.values():
        array[0, 20:45] = poison
    again = Run(device=wgpu, recipe=RECIPES[algorithm](p, mask="documents", guard=guard))
    clean, found = again(given), again(given.changed(**poisoned))
    keep = np.ones((2, 60), bool)
    keep[0, 20:45] = False
    assert_untouched(algorithm, found, clean, dict.fromkeys(GRADIENTS, keep))
    if guard == "zero":
        assert all(np.isfinite(found[name]).all() for name in GRADIENTS)


BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
BAD_ROWS = {f"{name} {key}": (name, bad) for name in ("q", "k", "v", "d_o", "lse") for key, bad in BAD.items()}
del BAD_ROWS["lse inf"]  # a query that sees nothing


@pytest.mark.parametrize(("name", "bad"), BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_row_that_is_not_finite(wgpu: Device, algorithm: str, guard: str, name: str, bad: float) -> None:
    """zero: every output is finite. propagate: something non-finite comes out. Either: what no visible pair connects with
    the bad row keeps every bit."""
    p = problem(Mask.documents(), 41, heads=4, kv_heads=2, batch=2)
    # One sign in the bad channel of k, so that q = inf gives scores that are all −inf, whose P = 0 hides where they came from.
    k = sample(p, doc_start=documents(p, [10, 20, 11]))["k"].copy()
    k[..., 5] = -np.abs(k[..., 5])
    given = sample(p, doc_start=documents(p, [10, 20, 11]), k=k)
    array = given[name].copy()
    batch, position, head = 1, 17, 1
    at = (batch, position, head) if name == "lse" else (batch, position, head, 5)
    array[at] = bad
    broken = given.changed(**{name: array})
    again = Run(device=wgpu, recipe=RECIPES[algorithm](p, mask="documents", guard=guard))
    clean, found = again(given), again(broken)

    lo, hi = reference.key_intervals(p, doc_start=given["doc_start"])
    queries = np.zeros((2, 41, 4), bool)
    if name in ("k", "v"):
        sees = (lo[batch] <= position) & (position < hi[batch])
        queries[batch, sees, head * p.group : (head + 1) * p.group] = True
    else:
        queries[batch, position, head] = True
    keys = np.zeros((2, 41, 2), bool)
    for b, i, h in np.argwhere(queries):
        keys[b, lo[b, i] : hi[b, i], h // p.group] = True
    touched = {"d_q": queries, "d_k": keys, "d_v": keys}
    assert_untouched(algorithm, found, clean, {gradient: ~rows for gradient, rows in touched.items()})
    outputs = [found[gradient] for gradient in GRADIENTS]
    if guard == "zero":
        assert all(np.isfinite(x).all() for x in outputs)
    else:
        assert not np.isfinite(found["d_q"][queries]).all(axis=-1).any()


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_zero_makes_only_the_bad_probability_nothing(wgpu: Device, algorithm: str, bad: float) -> None:
    """A key with a bad channel has P = 0 for every query: the other keys' gradients, and the other channels of d_q, are what
    they are without it (under the lse that counts it)."""
    p = problem(Mask.full(), 20, heads=1, head_dim=8)
    given = sample(p)
    k = given["k"].copy()
    k[0, 7, 0, 5] = bad
    found = run(wgpu, RECIPES[algorithm](p, mask="full"), given.changed(k=k))
    q, k, v, d_o, lse = (x[0, :, 0].astype(float) for x in (given["q"], given["k"], given["v"], given["d_o"], given["lse"]))
    probability = np.exp(q @ k.T / math.sqrt(8) - lse[:, None])
    probability[:, 7] = 0
    d_p = d_o @ v.T
    d_s = probability * (d_p - (probability * d_p).sum(axis=1, keepdims=True)) / math.sqrt(8)
    d_q = d_s @ k
    d_q[:, 5] = 0
    for name, right in (("d_q", d_q), ("d_k", d_s.T @ q), ("d_v", probability.T @ d_o)):
        np.testing.assert_allclose(found[name][0, :, 0], right, rtol=0, atol=1e-5, err_msg=name)


# Rules


WRONG_VARIANTS: dict[str, tuple[type[Variant], dict[str, Any], str]] = {
    "head_dim 0": (AttentionBackward, {"head_dim": 0}, "head_dim 0 is outside 1 to 256"),
    "head_dim 257": (AttentionBackward, {"head_dim": 257}, "head_dim 257 is outside 1 to 256"),
    "head_dim 257, at most": (AttentionBackwardShort, {"head_dim": 257, "at_most": True}, "outside 1 to 256"),
    "head_dim 257, dKdV": (AttentionBackwardShortDkdv, {"head_dim": 257}, "outside 1 to 256"),
    "head_dim that is a flag": (AttentionBackward, {"head_dim": True}, "want a whole number"),
    "head_dim that is text": (AttentionBackward, {"head_dim": "64"}, "want a whole number"),
    "48 threads": (AttentionBackward, {"wg": 48}, "wg is 48; want one of 32, 64"),
    "2048 threads": (RopeQBackward, {"wg": 2048}, "wg is 2048"),
    "a mask that there is none of": (AttentionBackward, {"mask": "sliding"}, "mask is 'sliding'; want one of 'full'"),
    "short with a window": (AttentionBackwardShort, {"mask": "window"}, "mask is 'window'; want one of"),
    "dKdV with documents, which causal serves": (
        AttentionBackwardShortDkdv,
        {"mask": "documents"},
        "want one of 'full', 'causal'",
    ),
    "seg without documents": (AttentionBackward, {"seg_uniform": True}, "seg_uniform without a documents mask"),
    "seg without documents, short": (AttentionBackwardShort, {"seg_uniform": True}, "seg_uniform without a documents mask"),
    "a guard that there is none of": (AttentionBackward, {"guard": "ignore"}, "guard is 'ignore'"),
    "a flag that is a number": (AttentionBackward, {"overwrite": 1}, "overwrite is 1; want one of False, True"),
    "max_seq 0": (AttentionBackwardShort, {"max_seq": 0}, "max_seq 0 is outside 1 to 8192"),
    "max_seq 8193": (AttentionBackwardShort, {"max_seq": 8193}, "max_seq 8193 is outside 1 to 8192"),
    "max_seq below zero": (AttentionBackwardShort, {"max_seq": -1}, "max_seq is -1; want a whole number"),
}


@pytest.mark.parametrize(("family", "params", "message"), WRONG_VARIANTS.values(), ids=WRONG_VARIANTS)
def test_rules_refuse(family: type[Variant], params: dict[str, Any], message: str) -> None:
    fields = family.__dataclass_fields__
    right = {"wg": 64, "head_dim": 64, "mask": "causal", "max_seq": 64}
    with pytest.raises(VariantError, match=re.escape(message)) as raised:
        family(**{**{name: value for name, value in right.items() if name in fields}, **params})
    assert raised.value.kernel == family.kernel


def test_rules_are_said_in_wgsl_too() -> None:
    assert (
        "const_assert(MAX_SEQ >= 1u && MAX_SEQ <= 8192u);"
        in render(short(problem(Mask.full(), 4), mask="full").variants[0]).wgsl
    )


def test_rendering_is_a_function_of_the_variant() -> None:
    for family in (AttentionBackward, AttentionBackwardShort):
        more = {"max_seq": 64} if family is AttentionBackwardShort else {}
        for mask in SHORT_MASKS:
            texts = {render(family(wg=64, head_dim=24, mask=mask, **more)).wgsl for _ in range(2)}
            assert len(texts) == 1 and "{{" not in texts.pop()
    assert set(FAMILIES) >= {
        "attention_backward",
        "attention_backward_short",
        "attention_backward_short_dKdV",
        "rope_q_backward",
        "rope_k_backward",
    }


# Rotary embedding


def exact_rotation(position: int, base: float, pair: int, head_dim: int) -> tuple[float, float]:
    """cos and sin of position·base^(−2·pair/head_dim), in 60 digits until the angle is reduced."""
    getcontext().prec = 60
    two_pi = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281")
    angle = Decimal(position) * (Decimal(base) ** (Decimal(-2 * pair) / Decimal(head_dim))) % two_pi
    return math.cos(angle), math.sin(angle)


def check_rope(
    device: Device,
    variant: Variant,
    *,
    heads: int,
    seq: int,
    head_dim: int,
    offset: int,
    base: float = 10000.0,
    batch: int = 1,
) -> None:
    """One dispatch against an exact rotation; f32 rounding of a sum of two products is all that may differ."""
    d_x = np.random.default_rng(head_dim).standard_normal((batch, seq, heads, head_dim), np.float32)
    ratio = rope_ratio(base, head_dim)
    family = rendered(variant)
    role = family.bindings[0].role
    words = {
        "dims": (seq, heads, head_dim, offset),
        "params": (float(base), ratio & 0xFFFFFFFF, ratio >> 32, 0),
    }
    count = "heads" if variant.kernel == "rope_q_backward" else "kv_heads"
    counts = family.dispatch({"seq_len": seq, count: heads, "half_head_dim": head_dim // 2, "batch": batch})
    got = dispatch(device, family, {role: d_x}, words, counts)[role][: d_x.size].reshape(d_x.shape)
    table = np.array([[exact_rotation(s + offset, base, pair, head_dim) for pair in range(head_dim // 2)] for s in range(seq)])
    cos, sin = table[None, :, None, :, 0], table[None, :, None, :, 1]
    x0, x1 = d_x[..., ::2].astype(float), d_x[..., 1::2].astype(float)
    size = np.hypot(x0, x1)
    for found, right in ((got[..., ::2], x0 * cos + x1 * sin), (got[..., 1::2], x1 * cos - x0 * sin)):
        # cos and sin are right to about 2⁻²⁴, and two products and a sum round
        assert (np.abs(found - right) <= 4e-7 * size).all()


@pytest.mark.parametrize("head_dim", [2, 4, 6, 64, 106, 128, 256])
@pytest.mark.parametrize("offset", [0, 100_000, 2**31])
@pytest.mark.parametrize("family", [RopeQBackward, RopeKBackward])
def test_rope(wgpu: Device, family: type[Variant], offset: int, head_dim: int) -> None:
    check_rope(wgpu, family(wg=64), heads=3, seq=4, head_dim=head_dim, offset=offset, batch=2)


@pytest.mark.parametrize("base", [1.5, 500_000.0, 1e8])
def test_rope_bases(wgpu: Device, base: float) -> None:
    check_rope(wgpu, RopeQBackward(wg=64), heads=1, seq=5, head_dim=64, offset=123_456, base=base)


def test_rope_to_the_last_position(wgpu: Device) -> None:
    check_rope(wgpu, RopeQBackward(wg=64), heads=1, seq=3, head_dim=32, offset=2**32 - 3)


def test_rope_agrees_with_the_float64_reference(wgpu: Device) -> None:
    from wgsl_attention import rope_backward

    d_x = np.random.default_rng(0).standard_normal((2, 300, 3, 64), np.float32)
    right = reference.rope_backward(d_x, offset=1000)
    got = rope_backward(d_x, offset=1000, device=wgpu)
    assert np.abs(got - right).max() <= 2e-6 and np.linalg.norm(got - right) <= 1e-7 * np.linalg.norm(right)


def test_rope_folds_what_is_past_65535_workgroups(wgpu: Device) -> None:
    """70000 positions, 64 pairs each, 64 threads to a workgroup."""
    variant = rendered(RopeQBackward(wg=64))
    sizes = {"seq_len": 70_000, "heads": 1, "half_head_dim": 64, "batch": 1}
    x, y, z = variant.dispatch(sizes)
    assert x <= 65535 and y == 2 and z == 1 and x * y >= 70_000
    d_x = np.ones((1, 70_000, 1, 128), np.float32)
    ratio = rope_ratio(10000.0, 128)
    words = {"dims": (70_000, 1, 128, 0), "params": (10000.0, ratio & 0xFFFFFFFF, ratio >> 32, 0)}
    got = dispatch(wgpu, variant, {"d_q": d_x}, words, (x, y, z))["d_q"].reshape(d_x.shape)
    for rows in (slice(0, 3), slice(65_530, 65_540), slice(69_990, 70_000)):
        right = reference.rope_backward(d_x[:, rows], offset=rows.start)
        np.testing.assert_allclose(got[:, rows], right, rtol=0, atol=1e-6)
