"""What ``bench`` can time for a problem: recipes with labels, among them the original's kernels; and the work they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms import ALGORITHMS
from ..algorithms.algorithm import Algorithm
from ..algorithms.choice import Choice
from ..algorithms.original import Short, Streaming, mask_modes
from ..algorithms.recipe import Recipe
from ..algorithms.tiled import Tiled
from ..algorithms.tiled_layouts import LAYOUTS, Form
from ..errors import ArgumentError
from ..kernels.original import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from ..kernels.variant import Variant
from ..problem.mask import Interval
from ..problem.problem import MAX_HEAD_DIM, Problem
from ..profile import DeviceProfile
from ..reference import attention as reference
from ..selection import catalog
from ..selection.ranking import select

ORIGINAL_MAX_SEQ = 1024
ORIGINAL = ("original-short", "original-streaming")
NAMES = (*ORIGINAL, *ALGORITHMS)
"""What ``--algorithm`` takes, ``original`` apart, which is the first two."""
CAUSAL = Interval(hi_shift=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A recipe and what it is called, or the ``reason`` why there is none."""

    label: str
    recipe: Recipe | None = None
    reason: str = ""


def contenders(
    problem: Problem,
    profile: DeviceProfile,
    names: Iterable[str] = NAMES,
    *,
    candidates: int = 1,
    layouts: Iterable[str] = (),
    variants: Iterable[str] = (),
    guard: str = "zero",
) -> list[Contender]:
    """The contenders for a problem on a device, in the order named; then one for each layout and each variant.

    ``names`` are of ``NAMES``, or ``"original"``; of the package's own algorithms the best ``candidates`` recipes each.
    ``layouts`` are of ``tiled_layouts.LAYOUTS``, ``variants`` names of kernels: the best recipe that uses it. What the device
    cannot run is found out when it is prepared; what serves the problem nowhere has its reason here. Raises
    ``ArgumentError`` for unknown names.
    """
    found: list[Contender] = []
    for name in names:
        if name == "original":
            found += [_original(problem, profile, each) for each in ORIGINAL]
        elif name in ORIGINAL:
            found.append(_original(problem, profile, name))
        elif name in ALGORITHMS:
            found += _selected(problem, profile, name, candidates, guard)
        else:
            raise ArgumentError("--algorithm", repr(name), f"one of original, {', '.join(NAMES)}")
    found += [layout_contender(problem, profile, layout, guard) for layout in layouts]
    found += [_with_variant(problem, profile, variant, guard) for variant in variants]
    return list({contender.label: contender for contender in found}.values())


def _original(problem: Problem, profile: DeviceProfile, name: str) -> Contender:
    """The original's configuration: 256 threads, MAX_SEQ 1024, head_dim up to 256, documents whatever the mask."""
    label = name.replace("-", " ")
    shape: dict[str, Any] = {"wg": 256, "head_dim": MAX_HEAD_DIM, "at_most": True}
    algorithm: Algorithm = Short() if name == "original-short" else Streaming()
    reason = algorithm.refusal(problem)
    if not reason and not {"causal", "documents"} & set(mask_modes(problem)):
        reason = f"the original has no mask but causal, and documents; not {problem.mask}"
    if not reason and isinstance(algorithm, Short) and problem.kv_len > ORIGINAL_MAX_SEQ:
        reason = f"its MAX_SEQ is {ORIGINAL_MAX_SEQ}"
    if reason:
        return Contender(label=label, reason=reason)
    kernels: tuple[Variant, ...] = (AttentionBackward(mask="documents", **shape),)
    if isinstance(algorithm, Short):
        main = AttentionBackwardShort(max_seq=ORIGINAL_MAX_SEQ, mask="documents", **shape)
        kernels = (main, AttentionBackwardShortDkdv(mask="causal", **shape))
    return Contender(label=label, recipe=Choice(algorithm=algorithm.name, kernels=kernels).recipe(problem, profile))


def _selected(problem: Problem, profile: DeviceProfile, name: str, count: int, guard: str) -> Iterator[Contender]:
    selection = select(problem, profile, algorithm=name, guard=guard)
    if not selection.candidates:
        yield Contender(label=name, reason="; ".join(selection.refusals))
    for rank, recipe in enumerate(selection.candidates[:count], 1):
        yield Contender(label=name if rank == 1 else f"{name}, choice {rank}", recipe=recipe)


def layout_contender(problem: Problem, profile: DeviceProfile, layout: str, guard: str = "zero") -> Contender:
    """``tiled`` with one of ``tiled_layouts.LAYOUTS``, whatever selection would take."""
    if layout not in LAYOUTS:
        raise ArgumentError("--layout", repr(layout), f"one of {', '.join(LAYOUTS)}")
    algorithm = Tiled()
    form: Form = "exact" if problem.head_dim % 4 or problem.v_head_dim % 4 else "any"
    choice = algorithm.of_layout(layout, head_dim=problem.head_dim, v_head_dim=problem.v_head_dim, form=form)
    choice = algorithm.for_problem(choice, problem, profile, guard)
    return Contender(label=f"{algorithm.name} {layout}", recipe=choice.recipe(problem, profile))


def check_variant(name: str) -> None:
    """Raises ``ArgumentError`` where no checked-in kernel is called so."""
    if name not in catalog.checked_in():
        raise ArgumentError("--variant", repr(name), "the name of a checked-in kernel, as `wgsl-attention list` prints it")


def _with_variant(problem: Problem, profile: DeviceProfile, variant: str, guard: str) -> Contender:
    check_variant(variant)
    offered = list(select(problem, profile, guard=guard).candidates)
    offered += [c.recipe for c in (layout_contender(problem, profile, name, guard) for name in LAYOUTS) if c.recipe]
    for recipe in offered:
        if variant in (v.name for v in recipe.variants):
            return Contender(label=variant, recipe=recipe)
    return Contender(label=variant, reason="no recipe for this problem on this device uses it (see `wgsl-attention explain`)")


def visible_pairs(problem: Problem, doc_start: NDArray[np.uint32] | None = None) -> float:
    """Query-key pairs of one head that the mask shows, over all batch entries. A square causal mask counts as half of all.

    So are backward passes of causal attention counted everywhere, though the diagonal makes it S·(S + 1)/2.
    """
    if problem.interval == CAUSAL and problem.q_len == problem.kv_len:
        return problem.batch * problem.q_len * problem.kv_len / 2
    lo, hi = reference.key_intervals(problem, doc_start=doc_start)
    return float((hi - lo).sum())


def operations(problem: Problem, doc_start: NDArray[np.uint32] | None = None) -> float:
    """Floating-point operations of the five products: 5·2·S²·D·H for a full mask, the mask's area instead of S² otherwise.

    Three of the products (S, d_q, d_k) are as deep as head_dim, two (dP, d_v) as v_head_dim.
    """
    depth = 3 * problem.head_dim + 2 * problem.v_head_dim
    return 2.0 * depth * problem.heads * visible_pairs(problem, doc_start)
