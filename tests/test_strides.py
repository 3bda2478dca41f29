"""Tensors whose rows lie where strides say: heads first, packed into one buffer, with gaps, repeated; and what is refused.

The kernels run on the same numbers, so their gradients must have the same bits as without strides; what lies between the
rows of inputs is NaN, and what lies between those of gradients must stay as it was.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention import SENTINEL, Array, Run, sample, wgpu_device
from support.tiled_cases import assert_same_bits, check, problem, recipe
from wgsl_attention import cli
from wgsl_attention.algorithms.recipe import Recipe
from wgsl_attention.cli.problems import problem_of
from wgsl_attention.errors import ArgumentError, GpuBufferError, UnservedProblemError
from wgsl_attention.gpu.device import Device
from wgsl_attention.kernels.facts import Binding
from wgsl_attention.kernels.tiled_products import AttentionDq
from wgsl_attention.planning.plans import Plan, plan
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import GRADIENTS, Problem
from wgsl_attention.problem.strides import Shape, Strides, apart, gather, scatter
from wgsl_attention.profile import PROFILES, Limits
from wgsl_attention.reference.attention import Outputs
from wgsl_attention.reference.samples import Sample, assorted_samples
from wgsl_attention.selection import tables as tuning
from wgsl_attention.selection.ranking import choices, select
from wgsl_attention.tuning.miniature import Twin, twin_of
from wgsl_attention.validation import coverage as cases
from wgsl_attention.validation.gradcheck import run_checks

QKV, D_QKV = ("q", "k", "v"), GRADIENTS
STEADY = settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SHAPES = st.tuples(*(st.integers(1, most) for most in (3, 5, 3, 6)))


@pytest.fixture(scope="module")
def wgpu() -> Device:
    return wgpu_device()


def strided(case: Sample, p: Problem) -> Sample:
    """The same arrays for the problem with strides."""
    return replace(case, problem=p)


def run(
    device: Device, made: Recipe, given: Sample, groups: tuple[tuple[str, ...], ...] = (), before: Any = SENTINEL
) -> Outputs:
    """The gradients, from buffers with NaN between the inputs' rows; each of ``groups`` shares one buffer.

    Raises where something but the gradients' own elements was written.
    """
    p = made.problem
    used = Plan(made, device)
    group_of = {name: group for group in groups for name in group}
    flats: dict[tuple[str, ...], Array] = {}
    for name in used.buffers:
        group = group_of.get(name, (name,))
        shape, strides = p.shapes.get(name), p.strides_of(name) if name in p.shapes else None
        if shape is None or strides is None:
            flats[group] = np.ascontiguousarray(given[name]).ravel()
            continue
        gradient = name in GRADIENTS
        array = np.full(shape, before, np.float32) if gradient else given[name]
        flat = scatter(array, strides, np.nan)
        there = flats.get(group, np.zeros(0, np.float32))
        size = max(len(flat), len(there))
        flat, there = (np.pad(x, (0, size - len(x)), constant_values=np.nan) for x in (flat, there))
        flats[group] = np.where(np.isnan(there), flat, there)
    for group in flats:
        if group[0] in GRADIENTS:
            flats[group] = np.where(np.isnan(flats[group]), SENTINEL, flats[group])
    made_buffers = {group: device.storage(flat, label=group[0]) for group, flat in flats.items()}
    buffers = {name: made_buffers[group_of.get(name, (name,))] for name in used.buffers}
    device.submit(lambda encoder: used.record(encoder, buffers, given.scale))
    found: dict[str, Array] = {}
    for group, flat in flats.items():
        if group[0] in GRADIENTS:
            got = np.frombuffer(device.read(made_buffers[group]), np.float32)[: len(flat)]
            own = np.zeros(len(flat), bool)
            for name in group:
                found[name] = gather(got, p.strides_of(name), given.problem.outputs[name])
                mine = scatter(np.ones(p.shapes[name], bool), p.strides_of(name), 0.0)
                own[: len(mine)] |= mine
            assert np.array_equal(got[~own], flat[~own], equal_nan=True), f"{group}: something between the rows was written"
    return found


def heads_first(p: Problem) -> Problem:
    return p.heads_first()


def packed(p: Problem) -> Problem:
    return p.packed(*QKV).packed(*D_QKV)


def spaced(p: Problem) -> Problem:
    """Rows with four elements between them, and an offset."""
    places = {name: Strides.contiguous((*shape[:3], shape[3] + 4)) for name, shape in p.shapes.items()}
    return replace(p, strides={name: replace(strides, offset=8) for name, strides in places.items()})


def odd(p: Problem) -> Problem:
    """Rows that begin anywhere, in another order of axes for each tensor."""
    found = {}
    for i, (name, (batch, length, heads, dim)) in enumerate(p.shapes.items()):
        counts = {"batch": batch, "row": length, "head": heads}
        steps, step = {}, dim + i % 3
        for axis in list(itertools.permutations(counts))[i % 6]:
            steps[axis] = step
            step = step * counts[axis] + 1
        found[name] = Strides(**steps, offset=i)
    return replace(p, strides=found)


KINDS = {"heads first": heads_first, "packed": packed, "spaced": spaced, "odd": odd}
SHARED = {"packed": (QKV, D_QKV)}


# What strides say


@settings(STEADY, max_examples=400)
@given(shape=SHAPES, data=st.data())
def test_places_are_told_apart_from_one_another(shape: Shape, data: st.DataObject) -> None:
    """Against every element's number, for strides of every kind."""
    small = st.integers(0, 40)
    one = Strides(batch=data.draw(small), row=data.draw(small), head=data.draw(small), offset=data.draw(small))
    flat = np.zeros(one.span(shape), int)
    b, s, h, c = np.indices(shape)
    at = one.offset + b * one.batch + s * one.row + h * one.head + c
    assert at.max() + 1 == one.span(shape)
    np.add.at(flat, at.ravel(), 1)
    if one.is_distinct(shape):
        assert flat.max() == 1
        assert one.has_gaps(shape) == (flat[one.offset :].min() == 0)
        other_shape = data.draw(SHAPES)
        other = data.draw(
            st.one_of(
                st.just(replace(one, offset=data.draw(small))),
                st.builds(Strides, batch=small, row=small, head=small, offset=small),
            )
        )
        if other.is_distinct(other_shape):
            b, s, h, c = np.indices(other_shape)
            there = other.offset + b * other.batch + s * other.row + h * other.head + c
            really = not np.isin(there, at).any()
            told = apart(one, shape, other, other_shape)
            same = (other.batch, other.row, other.head) == (one.batch, one.row, one.head)
            assert told == really or (really and not same)


@settings(STEADY)
@given(shape=SHAPES, data=st.data())
def test_scatter_and_gather(shape: Shape, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([Strides.contiguous(shape), Strides(batch=500, row=90, head=7, offset=3)]))
    array = np.random.default_rng(0).standard_normal(shape)
    flat = scatter(array, kind, np.nan)
    assert flat.size == kind.span(shape)
    assert np.isnan(flat).sum() == flat.size - array.size
    assert np.array_equal(gather(flat, kind, shape), array)


def test_contiguous_strides_are_none() -> None:
    """Equal problems are equal however they are put: an axis of one entry has any stride, and no gaps is no strides."""
    p = problem(Mask.causal(), 30)
    plain = {name: Strides.contiguous(shape) for name, shape in p.shapes.items()}
    assert replace(p, strides=plain) == p
    assert replace(p, strides={"q": replace(plain["q"], batch=77)}) == p
    one = replace(p, strides={"q": Strides(batch=1, row=128, head=16)})
    assert one != p
    assert one == replace(p, strides={"q": Strides(batch=9, row=128, head=16)})
    assert hash(one) == hash(replace(p, strides=one.strides))
    assert one.strides_of("q").row == 128
    assert one.strides_of("k") == plain["k"]
    assert str(one).endswith("strides of q")


def test_usual_places() -> None:
    p = problem(Mask.causal(), 30, batch=2)
    first = p.heads_first()
    assert first.strides_of("k") == Strides(batch=2 * 30 * 16, head=30 * 16, row=16)
    assert first.strides_of("lse") == Strides(batch=4 * 30, head=30, row=1)
    one = p.packed("q", "k", "v")
    assert [one.strides_of(name).offset for name in QKV] == [0, 64, 96]
    assert {one.strides_of(name).row for name in QKV} == {128}
    assert {one.strides_of(name).batch for name in QKV} == {30 * 128}
    assert apart(one.strides_of("k"), one.shapes["k"], one.strides_of("v"), one.shapes["v"])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: replace(p, strides={"x": Strides(batch=0, row=1, head=1)}), "x"),
        (lambda p: replace(p, strides={"q": (1, 2, 3)}), "q"),
        (lambda p: replace(p, strides=5), "5"),
        (lambda p: replace(p, strides=None), "None"),
        (lambda p: replace(p, strides=("q", "k")), "a mapping"),
        (lambda p: replace(p, strides={"d_k": Strides(batch=0, row=16, head=16)}), "d_k"),
        (lambda p: replace(p, strides={"d_q": Strides(batch=0, row=63, head=16)}), "d_q"),
        (lambda p: Strides(batch=-1, row=1, head=1), "-1"),
        (lambda p: Strides(batch=1, row=1.5, head=1), "1.5"),
        (lambda p: Strides(batch=1, row=True, head=1), "True"),
        (lambda p: p.packed(), "nothing"),
        (lambda p: p.packed("q", "q"), "'q', 'q'"),
        (lambda p: p.packed("q", "bias"), "bias"),
        (lambda p: replace(p, kv_len=31, mask=Mask.full()).packed("q", "k"), "length"),
    ],
)
def test_what_cannot_be(make: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        make(problem(Mask.causal(), 30))


# On a device


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", [(16, 16), (40, 24), (21, 21)])
@pytest.mark.parametrize("layout", ["16k", "small"])
def test_same_gradients(wgpu: Device, kind: str, head_dim: tuple[int, int], layout: str) -> None:
    """The bits are those of the problem without strides; by vec4 and by single elements, in one strip and in many with parts."""
    p = problem(Mask.causal(), 70, batch=2, head_dim=head_dim[0], v_head_dim=head_dim[1], given="o")
    case = sample(p)
    q = KINDS[kind](p)
    made = recipe(q, layout)
    if kind == "odd" and head_dim[0] % 4 == 0:
        assert any("multiple of 4" in line for line in made.refusals(wgpu.profile))
        made = recipe(q, at_most=256)
        right = check(wgpu, recipe(p, at_most=256), case)
    else:
        assert not made.refusals(wgpu.profile)
        right = check(wgpu, recipe(p, layout), case)
    assert_same_bits(right, run(wgpu, made, strided(case, q), SHARED.get(kind, ())))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mask", "terms"),
    [
        (Mask.documents() & Mask.window(20, 0), {}),
        (Mask.window(9, 4), {"given": "delta", "kv_lengths": True}),
        (Mask.prefix(20), {"given": "none", "heads": 3, "kv_heads": 3}),
    ],
)
def test_masks_and_what_is_given(wgpu: Device, kind: str, mask: Mask, terms: dict[str, Any]) -> None:
    p = problem(mask, 75, batch=2, **terms)
    q = KINDS[kind](p)
    best = select(q, wgpu.profile, tuning=tuning.EMPTY).best
    assert best is not None
    assert best.algorithm == "tiled"
    case = sample(p)
    got = run(wgpu, best, strided(case, q), SHARED.get(kind, ()))
    own = {"delta": case["delta"]} if p.given == "delta" else {}
    verdict = case.expected(**own).judge(got)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["16k", "small"])
def test_an_lse_that_covers_more_keys(wgpu: Device, kind: str, layout: str) -> None:
    """Only then are the rows of o read, for D."""
    p = problem(Mask.causal(), 70, batch=2, given="o")
    q = KINDS[kind](p)
    at_most = 256 if kind == "odd" else 0
    layout = "16k" if at_most else layout
    whole = sample(p)
    case = whole.changed(lse=whole["lse"] + np.float32(0.5))
    right = Run(device=wgpu, recipe=recipe(p, layout, at_most=at_most))(case)
    assert_same_bits(right, run(wgpu, recipe(q, layout, at_most=at_most), strided(case, q), SHARED.get(kind, ())))
    other = case.changed(o=2 * case["o"])
    assert Run(device=wgpu, recipe=recipe(p, layout, at_most=at_most))(other)["d_q"].tobytes() != right["d_q"].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_accumulation(wgpu: Device, kind: str) -> None:
    """Added to what is there, and nothing else of the buffer touched."""
    p = problem(Mask.causal(), 40, batch=2, accumulate=frozenset(GRADIENTS))
    q = KINDS[kind](p)
    made = recipe(q, at_most=256 if kind == "odd" else 0)
    plain = recipe(p, at_most=256 if kind == "odd" else 0)
    case = sample(p)
    before = {name: np.full(shape, 0.5, np.float32) for name, shape in case.problem.outputs.items()}
    right = Run(device=wgpu, recipe=plain, before=before)(case)
    assert_same_bits(right, run(wgpu, made, strided(case, q), SHARED.get(kind, ()), before=0.5))


@pytest.mark.parametrize("kind", ["heads first", "packed"])
def test_every_backend(device: Device, kind: str) -> None:
    """Dawn refuses a kernel whose written bindings overlap, wherever in the buffer the kernel writes."""
    p = problem(Mask.causal(), 40, batch=2, head_dim=64, given="o")
    q = KINDS[kind](p)
    case = sample(p)
    verdict = case.expected().judge(run(device, recipe(q), strided(case, q), SHARED.get(kind, ())))
    assert verdict.ok, str(verdict)


def test_repeated_inputs(wgpu: Device) -> None:
    """k and v of one batch entry for all, as an expanded array has them: a stride of 0."""
    p = problem(Mask.full(), 33, 40, batch=3)
    whole = sample(p)
    case = sample(p, k=np.repeat(whole["k"][:1], 3, axis=0), v=np.repeat(whole["v"][:1], 3, axis=0))
    q = replace(p, strides={name: replace(p.strides_of(name), batch=0) for name in ("k", "v")})
    assert q.strides_of("k").span(q.shapes["k"]) == 40 * 2 * 16
    assert_same_bits(check(wgpu, recipe(p), case), run(wgpu, recipe(q), strided(case, q)))


def test_a_device_with_bounds_checks_needs_no_more_than_the_span(wgpu: Device) -> None:
    """What ``Plan.buffers`` asks for is enough, and one element less is refused."""
    p = problem(Mask.causal(), 40)
    q = p.packed(*QKV)
    made = plan(q, wgpu)
    row = 8 * 16
    assert made.buffers["q"] == 4 * (39 * row + 4 * 16)
    assert made.buffers["v"] == 4 * 40 * row
    buffers = {name: wgpu.zeros(size) for name, size in made.buffers.items()}
    buffers["v"] = wgpu.zeros(made.buffers["v"] - 4)
    with pytest.raises(GpuBufferError, match="v"):
        made.bind(buffers)


def test_an_index_past_32_bits_is_refused() -> None:
    p = problem(Mask.causal(), 100, batch=2)
    q = replace(p, strides={"k": Strides(batch=1 << 32, row=32, head=16)})
    profile = replace(
        PROFILES["workgroup-48k"], limits=Limits(max_storage_buffer_binding_size=1 << 40, max_buffer_size=1 << 40)
    )
    found = select(q, profile)
    assert found.best is None
    assert any(line.startswith("k has 4294970496 elements") for line in found.refusals)


def test_other_algorithms_refuse_by_name(wgpu: Device) -> None:
    q = problem(Mask.causal(), 40).packed(*QKV)
    for algorithm in ("short", "streaming"):
        with pytest.raises(UnservedProblemError, match=rf"{algorithm} does not take strides \(q, k, v\)"):
            plan(q, wgpu, algorithm=algorithm)
    told = select(q, wgpu.profile).explain()
    assert "short does not take strides" in told


def test_gradients_that_overlap_are_refused(wgpu: Device) -> None:
    p = problem(Mask.causal(), 40)
    q = packed(p)
    made = plan(q, wgpu)
    buffers = {name: wgpu.zeros(size) for name, size in made.buffers.items()}
    shared = wgpu.zeros(4 * made.buffers["d_v"])

    def bound(**own: Any) -> None:
        made.bind({**buffers, **own})

    bound(d_q=shared, d_k=shared, d_v=shared)
    size = made.buffers["d_q"]
    with pytest.raises(GpuBufferError, match="places of its own"):
        bound(d_q=(shared, 256, size), d_k=shared, d_v=shared)  # d_q's third head lies where d_k's first does
    with pytest.raises(GpuBufferError, match="d_q"):
        bound(d_q=buffers["q"])  # an input is no place for a gradient
    # Without strides for d_k and d_v, one kernel writes both, and their ranges must not overlap
    twice = plan(replace(p, strides={"d_k": Strides(batch=0, row=64, head=16)}), wgpu)
    buffers = {name: wgpu.zeros(size) for name, size in twice.buffers.items()}
    both = wgpu.zeros(8 * twice.buffers["d_k"])
    with pytest.raises(GpuBufferError, match="places of its own"):
        bound_twice = {**buffers, "d_k": both, "d_v": both}
        twice.bind(bound_twice)


def test_interleaved_by_the_buffers_offset(wgpu: Device) -> None:
    """d_k and d_v in one array, d_v's place said by the binding's offset and not by the strides'."""
    p = problem(Mask.causal(), 40, head_dim=64)
    row = 2 * 2 * 64
    place = Strides(batch=0, row=row, head=64)
    q = replace(p, strides={"d_k": place, "d_v": place})
    case = sample(p)
    made = plan(q, wgpu)
    buffers = {name: wgpu.storage(np.ascontiguousarray(case[name])) for name in made.buffers if name not in GRADIENTS}
    buffers["d_q"] = wgpu.zeros(made.buffers["d_q"])
    both = wgpu.zeros(4 * 40 * row)
    size = made.buffers["d_k"]
    buffers |= {"d_k": (both, 0, size), "d_v": (both, 4 * 2 * 64, size)}
    wgpu.submit(lambda encoder: made.record(encoder, buffers))
    flat = np.frombuffer(wgpu.read(both), np.float32)
    d_q = np.frombuffer(wgpu.read(buffers["d_q"]), np.float32).reshape(case["q"].shape)
    d_k, d_v = gather(flat, place, case["k"].shape), gather(flat[2 * 64 :], place, case["v"].shape)
    got = {"d_q": d_q, "d_k": d_k, "d_v": d_v}
    verdict = case.expected().judge(got)
    assert verdict.ok, str(verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stubborn(AttentionDq):
    """A kernel of one's own that knows nothing of strides, and whose bindings say so."""

    kernel: ClassVar[str] = "stubborn_dq"

    @property
    def bindings(self) -> tuple[Binding, ...]:
        *rest, words = AttentionDq.bindings.fget(self)  # type: ignore[attr-defined]
        return (*rest, replace(words, words=tuple(w for w in words.words if not w.name.startswith(("k.", "d_q")))))


def test_a_kernel_without_the_words_is_refused(wgpu: Device) -> None:
    q = problem(Mask.causal(), 40).heads_first()
    best = select(q, wgpu.profile).best
    assert best is not None
    steps = tuple(
        replace(step, variant=Stubborn(**step.variant.params)) if isinstance(step.variant, AttentionDq) else step
        for step in best.steps
    )
    lines = replace(best, steps=steps).refusals(wgpu.profile)
    assert [line.split(": it takes ")[1].split(" ")[0] for line in lines] == ["k", "d_q"]


@settings(STEADY, max_examples=12)
@given(data=st.data())
def test_any_strides(wgpu: Device, data: st.DataObject) -> None:
    """Axes in any order, with gaps anywhere, for any of the tensors."""
    p = problem(Mask.causal(), data.draw(st.sampled_from([1, 33, 50])), batch=data.draw(st.integers(1, 2)), given="o")
    unit = data.draw(st.sampled_from([4, 1]))
    places: dict[str, Strides] = {}
    for name, (batch, length, heads, dim) in p.shapes.items():
        if data.draw(st.booleans()):
            step, steps = dim, {}
            for axis, count in data.draw(st.permutations([("batch", batch), ("row", length), ("head", heads)])):
                step += unit * data.draw(st.integers(0, 2))
                steps[axis] = step
                step *= count
            places[name] = Strides(**steps, offset=unit * data.draw(st.integers(0, 3)))
    q = replace(p, strides=places)
    aligned = all(strides.multiples_of(4) for strides in places.values())
    at_most = 0 if aligned or q == p else 256
    case = sample(p)
    right = Run(device=wgpu, recipe=recipe(p, at_most=at_most))(case)
    assert_same_bits(right, run(wgpu, recipe(q, at_most=at_most), strided(case, q)))


# Around it


def test_the_twin_has_strides_of_the_same_kind(wgpu: Device) -> None:
    """A candidate proves its gradients with strides too."""
    large = Problem(q_len=4096, kv_len=4096, heads=32, kv_heads=8, head_dim=64, mask=Mask.causal(), given="o", batch=4)
    for kind, make in KINDS.items():
        small = twin_of(make(large), 100)
        for name, shape in small.shapes.items():
            theirs, ours = make(large).strides_of(name), small.strides_of(name)
            assert ours.multiples_of(4) == theirs.multiples_of(4), (kind, name)
            assert ours.has_gaps(shape) == theirs.has_gaps(large.shapes[name]), (kind, name)
            assert not (name in GRADIENTS and not ours.is_distinct(shape))
    twin = Twin(wgpu, packed(large))
    best = select(twin.problem, wgpu.profile).best
    assert best is not None
    assert twin.judge(best).ok


def test_tuned_choices_serve_strides(wgpu: Device) -> None:
    """A row is for any strides, unless its kernels read by vec4 what does not lie so."""
    p = problem(Mask.causal(), 256, head_dim=64)
    best = choices(p, wgpu.profile, algorithm="tiled")[0]
    row = tuning.Row(
        device=wgpu.profile.identity,
        vendor=wgpu.profile.vendor,
        architecture=wgpu.profile.architecture,
        backend=wgpu.profile.backend,
        key=tuning.Key.of(p),
        problem=str(p),
        choice=best.as_json(),
        seconds=1.0,
        default_seconds=2.0,
    )
    table = tuning.Table(rows=(row,))
    assert select(packed(p), wgpu.profile, tuning=table).tuned
    found = select(odd(p), wgpu.profile, tuning=table)
    assert not found.tuned
    assert any("multiple of 4" in line for line in found.refusals)
    assert found.best is not None


def test_gradcheck_proves_strides(wgpu: Device) -> None:
    """Its set has problems with strides, and each runs with them."""
    with_strides = [each for each in assorted_samples() if each.problem.strides]
    assert len(with_strides) == 2
    checks = run_checks(with_strides, device=wgpu)
    ran = [check for check in checks if check.algorithm == "tiled"]
    assert {check.status for check in ran} == {"pass"}
    assert any("attention_reduce_wg128_strided_vec4" in check.variants for check in ran)


@pytest.mark.parametrize("command", ["explain", "bench", "gradcheck", "tune"])
def test_commands_take_strides(command: str) -> None:
    parser = argparse.ArgumentParser()
    cli.load(command).add_arguments(parser)
    for text, want in (("heads-first", Problem.heads_first), ("packed", lambda p: p.packed(*QKV).packed(*D_QKV))):
        args = parser.parse_args(["--seq", "64", "--heads", "4", "--head-dim", "64", "--mask", "causal", "--strides", text])
        plain = problem_of(argparse.Namespace(**{**vars(args), "strides": None}))
        assert problem_of(args) == want(plain)


def test_every_checked_in_strided_kernel_is_executed() -> None:
    names: Mapping[str, Any] = {name: v for name, v in cases.catalog.checked_in().items() if v.params.get("strided")}
    assert names
    runs, missing = cases.runs(names)
    assert not missing
    assert all(run.recipe is not None and run.recipe.problem.strides for run in runs)
