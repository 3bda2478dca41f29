"""Masks and problems: the interval form against masks written out pair by pair, and what is refused."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wgsl_attention.algorithms import ALGORITHMS
from wgsl_attention.errors import ArgumentError, WgslAttentionError
from wgsl_attention.problem.mask import ALIGNMENTS, MASK_KINDS, Align, Interval, Mask
from wgsl_attention.problem.problem import GRADIENTS, MAX_HEAD_DIM, MAX_LENGTH, Problem
from wgsl_attention.problem.scalars import resolve_numbers
from wgsl_attention.reference.attention import key_intervals
from wgsl_attention.validation import coverage

FIXED = settings(
    derandomize=True, database=None, deadline=None, max_examples=400, suppress_health_check=[HealthCheck.filter_too_much]
)
LENGTHS = [(1, 1), (1, 5), (5, 1), (4, 4), (3, 8), (8, 3), (7, 7), (2, 9)]


@dataclass(frozen=True, kw_only=True)
class Atom:
    """One mask made by one class method, and its meaning pair by pair, straight from the method's docstring."""

    kind: str
    align: Align = "bottom-right"
    left: int | None = None
    right: int | None = None

    def mask(self) -> Mask:
        if self.kind == "causal":
            return Mask.causal(self.align)
        if self.kind == "window":
            return Mask.window(self.left, self.right, self.align)
        if self.kind == "prefix":
            assert self.left is not None
            return Mask.prefix(self.left, self.align)
        return {"full": Mask.full(), "documents": Mask.documents(), "whole": Mask.documents(causal=False)}[self.kind]

    def visible(self, q_len: int, kv_len: int, doc_start: np.ndarray) -> np.ndarray:
        i, j = np.arange(q_len)[:, None], np.arange(kv_len)[None]
        diagonal = i + (kv_len - q_len if self.align == "bottom-right" else 0)
        every = np.ones((q_len, kv_len), bool)
        if self.kind == "causal":
            return every & (j <= diagonal)
        if self.kind == "window":
            after = every if self.left is None else j >= diagonal - self.left
            return every & after & (every if self.right is None else j <= diagonal + self.right)
        if self.kind == "prefix":
            return every & ((j < self.left) | (j <= diagonal))
        if self.kind == "documents":
            return every & (j >= doc_start[:, None]) & (j <= i)
        if self.kind == "whole":
            return every & (doc_start[:, None] == doc_start[None]) & (j >= doc_start[:, None])
        return every


def as_pairs(interval: Interval, q_len: int, kv_len: int, doc_start: np.ndarray) -> np.ndarray:
    lo, hi = key_intervals(interval, q_len, kv_len, doc_start=doc_start)
    assert ((lo >= 0) & (hi >= lo) & (hi <= kv_len)).all()
    j = np.arange(kv_len)
    return (j >= lo[0][:, None]) & (j < hi[0][:, None])


def starts_of(boundaries: list[bool]) -> np.ndarray:
    """doc_start from whether a document starts at each position."""
    starts = np.where([True, *boundaries[1:]], np.arange(len(boundaries)), 0)
    return np.maximum.accumulate(starts)


def atoms_for(q_len: int, kv_len: int) -> list[Atom]:
    widths = (None, 0, 1, 3, 20)
    atoms = [Atom(kind="full")]
    for align in ALIGNMENTS:
        atoms.append(Atom(kind="causal", align=align))
        atoms += [Atom(kind="window", align=align, left=a, right=b) for a, b in itertools.product(widths, widths)]
        atoms += [Atom(kind="prefix", align=align, left=n) for n in (0, 1, 2, kv_len, kv_len + 3)]
    if q_len == kv_len:
        atoms += [Atom(kind="documents"), Atom(kind="whole")]
    return atoms


@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_each_mask_and_each_pair_of_masks_is_what_it_says(q_len: int, kv_len: int) -> None:
    doc_start = starts_of([n in (2, 3, q_len - 1) for n in range(q_len)])
    known = {atom: atom.visible(q_len, kv_len, doc_start) for atom in atoms_for(q_len, kv_len)}
    for atom, pairs in known.items():
        assert np.array_equal(as_pairs(atom.mask().interval(q_len, kv_len), q_len, kv_len, doc_start), pairs), atom
    for a, b in itertools.combinations(known, 2):
        both = a.mask() & b.mask()
        if {a.kind, b.kind} == {"prefix"} and a.align != b.align and q_len != kv_len:
            continue
        pairs = as_pairs(both.interval(q_len, kv_len), q_len, kv_len, doc_start)
        assert np.array_equal(pairs, known[a] & known[b]), (a, b)
        assert hash(both) == hash(b.mask() & a.mask())
        assert both == b.mask() & a.mask()


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Atom], int, int, np.ndarray]:
    length = st.integers(1, 12)
    documents = draw(st.booleans())
    q_len = draw(length)
    kv_len = q_len if documents else draw(length)
    width = st.none() | st.integers(0, 14)
    kinds = ["full", "causal", "window", "prefix", *(["documents", "whole"] if documents else [])]
    atoms = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(kinds))
        left = draw(st.integers(0, 14)) if kind == "prefix" else draw(width)
        atoms.append(Atom(kind=kind, align=draw(st.sampled_from(ALIGNMENTS)), left=left, right=draw(width)))
    boundaries = draw(st.lists(st.booleans(), min_size=q_len, max_size=q_len))
    return atoms, q_len, kv_len, starts_of(boundaries)


@FIXED
@given(cases())
def test_any_conjunction_is_the_conjunction(case: tuple[list[Atom], int, int, np.ndarray]) -> None:
    atoms, q_len, kv_len, doc_start = case
    mask, pairs = Mask.full(), np.ones((q_len, kv_len), bool)
    for atom in atoms:
        mask, pairs = mask & atom.mask(), pairs & atom.visible(q_len, kv_len, doc_start)
    try:
        interval = mask.interval(q_len, kv_len)
    except ArgumentError:
        assert len({atom.align for atom in atoms if atom.kind == "prefix"}) == 2
        assert q_len != kv_len
        return
    assert np.array_equal(as_pairs(interval, q_len, kv_len, doc_start), pairs)


@FIXED
@given(st.integers(1, 12), st.data())
def test_causal_documents_take_any_doc_start(length: int, data: st.DataObject) -> None:
    doc_start = np.array(data.draw(st.lists(st.integers(0, 15), min_size=length, max_size=length)))
    pairs = as_pairs(Mask.documents().interval(length, length), length, length, doc_start)
    assert np.array_equal(pairs, Atom(kind="documents").visible(length, length, doc_start))


def test_masks_that_mean_the_same_resolve_to_the_same_interval() -> None:
    causal = Mask.causal().interval(64, 64)
    assert Mask.window(63, 0).interval(64, 64) == causal == Mask.causal("top-left").interval(64, 64)
    assert Mask.prefix(0, "top-left").interval(64, 64) == causal == Mask.prefix(1).interval(64, 64)
    assert Mask.window(64, 64).interval(64, 64) == Mask.full().interval(64, 64) == Mask.prefix(64).interval(64, 64)
    assert Mask.documents().interval(9, 9) == (Mask.documents(causal=False) & Mask.causal()).interval(9, 9)
    assert Mask.window(None, None) == Mask.full() == Mask()


def test_a_window_of_2048_keeps_2049_keys() -> None:
    lo, hi = key_intervals(Mask.window(2048, 0).interval(4096, 4096), 4096, 4096)
    assert hi[0, -1] - lo[0, -1] == 2049


def test_str_names_the_masks() -> None:
    mask = Mask.documents() & Mask.window(512, 0) & Mask.prefix(3, "top-left")
    assert str(mask) == "documents & window(512, 0) & prefix(3, top-left)"
    assert str(Mask.causal("top-left")) == "causal(top-left)"
    assert str(Mask.full()) == "full"


@pytest.mark.parametrize("width", [-1, 1.5, True, "3"])
def test_bad_widths_are_refused_by_name(width: object) -> None:
    for argument, make in (("left", lambda: Mask.window(width, 0)), ("length", lambda: Mask.prefix(width))):  # type: ignore[arg-type]
        with pytest.raises(ArgumentError) as caught:
            make()
        assert caught.value.argument == argument


def test_numpy_integers_are_integers() -> None:
    assert Mask.window(np.int64(3), np.uint8(0)) == Mask.window(3, 0)


def test_bad_masks_are_refused() -> None:
    with pytest.raises(ArgumentError, match="align"):
        Mask.causal("bottom-left")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="q_len equal to kv_len"):
        Mask.documents().interval(3, 4)
    with pytest.raises(ArgumentError, match="two prefixes"):
        (Mask.prefix(7) & Mask.prefix(5, "top-left")).interval(4, 8)
    with pytest.raises(TypeError):
        Mask.causal() & 3  # type: ignore[operator]


PROBLEM = Problem(q_len=8, kv_len=8, heads=4, kv_heads=2, head_dim=16, mask=Mask.causal())


def test_problem_fills_in_and_derives() -> None:
    assert PROBLEM.v_head_dim == 16
    assert PROBLEM.group == 2
    assert hash(PROBLEM) == hash(replace(PROBLEM))
    assert replace(PROBLEM, accumulate=True).accumulate == {"d_q", "d_k", "d_v"}  # type: ignore[arg-type]
    assert replace(PROBLEM, accumulate="d_k").accumulate == {"d_k"}  # type: ignore[arg-type]
    assert str(PROBLEM) == "length 8, heads 4 over 2, head_dim 16, causal"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("q_len", 0),
        ("q_len", MAX_LENGTH + 1),
        ("kv_len", -1),
        ("kv_len", 2.0),
        ("heads", 3),
        ("kv_heads", 0),
        ("head_dim", MAX_HEAD_DIM + 1),
        ("v_head_dim", MAX_HEAD_DIM + 1),
        ("batch", True),
        ("mask", "causal"),
        ("dtype", "f64"),
        ("given", "lse"),
        ("accumulate", {"d_x"}),
        ("computes", "sideways"),
    ],
)
def test_bad_problems_are_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(ArgumentError) as caught:
        replace(PROBLEM, **{argument: value})  # type: ignore[arg-type]
    assert caught.value.argument == argument
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, WgslAttentionError)


def test_a_problem_refuses_a_mask_its_lengths_cannot_have() -> None:
    with pytest.raises(ArgumentError, match="documents"):
        replace(PROBLEM, kv_len=9, mask=Mask.documents())


def test_a_problem_says_what_a_call_brings_and_gets() -> None:
    assert list(PROBLEM.inputs) == ["q", "k", "v", "d_o", "lse"]
    assert tuple(PROBLEM.outputs) == GRADIENTS
    assert PROBLEM.inputs["lse"] == (1, 8, 4)
    assert PROBLEM.outputs["d_k"] == PROBLEM.inputs["k"] == (1, 8, 2, 16)
    every = replace(PROBLEM, mask=Mask.documents(), batch=2, v_head_dim=8, given="delta", kv_lengths=True, alibi=True)
    assert list(every.inputs)[5:] == ["delta", "doc_start", "kv_lengths", "alibi_slopes"]
    assert [every.inputs[name] for name in ("delta", "doc_start", "kv_lengths", "alibi_slopes")] == [
        (2, 8, 4),
        (2, 8),
        (2,),
        (4,),
    ]
    assert every.outputs["d_v"] == (2, 8, 2, 8)
    assert every.optional == ("o", "delta")


def test_numbers_have_defaults_and_are_judged() -> None:
    capped = replace(PROBLEM, softcap=True)
    assert resolve_numbers(PROBLEM, None, None).scale == 0.25
    assert resolve_numbers(capped, np.float32(0.5), np.array(3)) == (0.5, 3.0)
    assert resolve_numbers(capped, 1, 3).words == {"scale": 1.0, "softcap": 3.0}
    for problem, scale, softcap, argument in (
        (PROBLEM, np.nan, None, "scale"),
        (PROBLEM, [1.0, 2.0], None, "scale"),
        (PROBLEM, None, 2.0, "softcap"),
        (capped, None, None, "softcap"),
        (capped, None, 0.0, "softcap"),
        (capped, None, "x", "softcap"),
    ):
        with pytest.raises(ArgumentError) as caught:
            resolve_numbers(problem, scale, softcap)  # type: ignore[arg-type]
        assert caught.value.argument == argument


def outside(room: str) -> dict[str, ast.Module]:
    """Every module of the package but a room's, parsed."""
    package = Path(__file__).parents[1] / "codegen"
    modules = (path for path in package.rglob("*.py") if path.parent.name != room)
    return {str(path.relative_to(package)): ast.parse(path.read_text(encoding="utf-8")) for path in modules}


def test_only_problem_lists_what_a_computation_gives() -> None:
    """Everyone else asks a problem, so that another computation needs no other list."""
    named, listed = [], []
    for name, module in outside("problem").items():
        for node in ast.walk(module):
            imported = {alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)}
            names = {getattr(node, "id", ""), getattr(node, "attr", "")} | imported
            if "GRADIENTS" in names:
                named.append(f"{name}:{node.lineno}")
            if isinstance(node, ast.Tuple | ast.List | ast.Set):
                texts = {item.value for item in node.elts if isinstance(item, ast.Constant)}
                if set(GRADIENTS) <= texts:
                    listed.append(f"{name}:{node.lineno}")
    assert (named, listed) == ([], [])


def test_validation_has_a_mask_of_every_kind():
    """A kind that a kernel claims to serve and that no run covers would never be proven."""
    assert set(MASK_KINDS) <= set(coverage.MASKS)
    for kind in MASK_KINDS:
        assert hasattr(Mask, kind)


def test_a_mask_knows_the_width_that_moves_along_with_its_queries():
    assert Mask.window(7, 3).interval(100, 100).moving_width == 11
    assert Mask.causal().interval(100, 100).moving_width is None
    assert Mask.window(None, 5).interval(100, 100).moving_width is None


def test_an_algorithm_refuses_what_it_does_not_compute(monkeypatch):
    """Before it reads an input that such a problem does not have."""
    backward = Problem(q_len=4, kv_len=4, heads=1, kv_heads=1, head_dim=4, mask=Mask.full())
    for algorithm in ALGORITHMS.values():
        assert not algorithm.refusal(backward)
        monkeypatch.setattr(type(algorithm), "computes", ("something else",))
        assert algorithm.refusal(backward) == f"{algorithm.name} computes something else, not backward"
