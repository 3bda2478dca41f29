"""The ``tiled`` algorithm: five matrix products over strips of P and dP; no atomics, repeatable to the bit.

Scratch holds P and dP for one strip at a time, so it is bounded by the budget whatever the length. The algorithm and its words
are on one page, templates/tiled/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

from ..errors import VariantError
from ..kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from ..kernels.tiled_reductions import (
    MAX_ALIBI_HEADS,
    PACKED_ROWS,
    AttentionIntervals,
    AttentionPack,
    AttentionReduce,
    AttentionRows,
)
from ..kernels.variant import Variant
from ..problem.problem import MAX_HEAD_DIM, Problem
from ..problem.strides import Strides
from ..profile import DeviceProfile
from . import tiled_layouts, tiled_space, tiled_split
from .algorithm import Algorithm, Stage
from .choice import Choice
from .recipe import Recipe, Step

SCRATCH_SHARE = 16
"""A scratch buffer takes at most so many times what the call's own arrays take, and is worth having up to ``MAX_SCRATCH``:
on an H200, when P and dP still lay in one buffer, 2 GiB instead of 1 GiB were worth 4 % at 8192 positions, and 512 MiB cost 8 %."""
MIN_SCRATCH, MAX_SCRATCH = 128 << 20, 2 << 30
LARGE_GRID = 8192
"""From so many blocks of 128 queries × 128 keys × 64 channels on, the largest blocks are the fastest; below, small ones fill the
device. On an H200, at 2048 positions of 16 heads with head_dim 64 (4096 of them), small ones took 7 % less."""
MOST_EMPTY, MOST_EMPTY_CAPPED = 0.15, 0.25
"""A checked-in text goes before one for the very head_dim if no more of its blocks is empty: it runs without checks. With a
softcap, for which fewer blocks are checked in, a little more."""
SOFTWARE_PARTS = 16
"""Workgroups that keep a processor's cores busy."""


class Tiled(Algorithm):
    """Strips of scores, and three matrix kernels that are chosen and tuned; see the module."""

    name: ClassVar[str] = "tiled"
    roles: ClassVar[Mapping[str, type[Variant]]] = {"scores": AttentionScores, "dkdv": AttentionDkdv, "dq": AttentionDq}
    numbers: ClassVar[Mapping[str, int]] = {"parts": 1024, "budget": 1 << 30}

    def check(self, choice: Choice) -> None:
        scores, dkdv, dq = kernels_of(choice)
        for role, v in (("dkdv", dkdv), ("dq", dq)):
            if (v.query_rows, v.key_cols) != (scores.rows, scores.cols):
                raise VariantError(
                    self.name,
                    f"{role} reads blocks of {v.query_rows} × {v.key_cols}, scores writes {scores.rows} × {scores.cols}",
                )

    def _refusal(self, problem: Problem) -> str:
        if problem.alibi and problem.heads > MAX_ALIBI_HEADS:
            return f"tiled takes ALiBi slopes for up to {MAX_ALIBI_HEADS} heads, not {problem.heads}"
        return ""

    def candidates(self, problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Choice]:
        dims = (problem.head_dim, problem.v_head_dim)
        grid = problem.batch * problem.heads * -(-problem.q_len // 128) * -(-problem.kv_len // 128) * -(-max(dims) // 64)
        names: tuple[str, ...] = ("64x64", "16k", "48k")
        if profile.software or problem.softcap or problem.alibi:  # short texts; those for the terms are checked in
            names = ("16k", "64x64", "48k")
        if not profile.software and grid >= LARGE_GRID:
            names = ("48k", "64x64", "16k")
        most = MOST_EMPTY_CAPPED if problem.softcap else MOST_EMPTY
        found: tuple[list[Choice], list[Choice]] = [], []
        for name in names:
            exact = tiled_layouts.choice(name, *dims)
            if any(dim % 4 for dim in dims):
                found[0].append(exact)
                continue
            any_dim = tiled_layouts.choice(name, *dims, form="any", capped=problem.softcap)
            fits = tiled_layouts.empty(any_dim, *dims) <= most
            found[0].append(any_dim if fits else exact)
            found[1].append(exact if fits else any_dim)
        for choice in (*found[0], *found[1], tiled_layouts.choice("16k", MAX_HEAD_DIM, form="at most")):
            yield self.for_problem(choice, problem, profile, guard)

    def layout_of(self, choice: Choice) -> dict[str, Any]:
        scores, dkdv, dq = kernels_of(choice)
        plain = [replace(v, guard="zero", softcap=False, alibi=False) for v in (scores, dkdv, dq)]
        return dict(tiled_layouts.layout_of(tuple(plain)))

    def of_layout(self, layout: str, **dims: Any) -> Choice:
        if layout not in tiled_layouts.LAYOUTS:
            raise VariantError(self.name, f"it has no layout {layout!r}; want one of {', '.join(tiled_layouts.LAYOUTS)}")
        return tiled_layouts.choice(layout, **dims)

    def for_any_problem(self, choice: Choice) -> Choice:
        scores, *gradients = kernels_of(choice)
        if any(v.at_most or v.head_dim % 4 or v.v_dim % 4 for v in gradients):
            return choice
        return replace(choice, kernels=(scores, *(replace(v, head_dim=0, v_head_dim=0) for v in gradients)))

    def for_problem(self, choice: Choice, problem: Problem, profile: DeviceProfile, guard: str) -> Choice:
        """A layout's choice with the numbers for a problem on a device, and what the problem dictates."""
        parts = SOFTWARE_PARTS if profile.software else choice.number("parts")
        budget = min(scratch_budget(problem), binding_bytes(profile))
        return self.suited(choice.replaced(budget=budget, parts=parts), problem, guard)

    def suited(self, choice: Choice, problem: Problem, guard: str) -> Choice:
        v_dim = 0 if problem.v_head_dim == problem.head_dim else problem.v_head_dim
        kernels = []
        for v in kernels_of(choice):
            # the gradients' kernels need the bias to find S again, and only then
            alibi = problem.alibi and (problem.softcap or isinstance(v, AttentionScores))
            terms: dict[str, Any] = {"guard": guard, "softcap": problem.softcap, "alibi": alibi}
            for constant in v.constants:
                size = problem.sizes[constant.size]
                if not constant.takes(size):
                    raise VariantError(v.name, f"it is not for a {constant.size} of {size}; it takes {constant.taken}")
            if not isinstance(v, AttentionScores) and v.head_dim and not v.at_most and v.v_head_dim != v_dim:
                raise VariantError(v.name, f"it is not for a v_head_dim of {problem.v_head_dim}")
            kernels.append(replace(v, **terms) if terms != {name: getattr(v, name) for name in terms} else v)
        return replace(choice, kernels=tuple(kernels))

    def recipe(self, choice: Choice, problem: Problem, profile: DeviceProfile) -> Recipe:
        return tiled(problem, choice, binding_bytes(profile))

    def stages(self) -> tuple[Stage, ...]:
        return tiled_space.STAGES

    def checked_in(self) -> Iterator[Variant]:
        return tiled_layouts.checked_in()


def kernels_of(choice: Choice) -> tuple[AttentionScores, AttentionDkdv, AttentionDq]:
    """The kernels of a choice of ``tiled``, by their types."""
    return cast("tuple[AttentionScores, AttentionDkdv, AttentionDq]", choice.kernels)


def binding_bytes(profile: DeviceProfile) -> int:
    return profile.limits.binding_bytes


def scratch_budget(problem: Problem) -> int:
    """Bytes that each scratch buffer may take, as far as the device's limits allow."""
    own = sum(4 * math.prod(problem.shapes[name]) for name in ("q", "k", "v", "d_o", *problem.outputs))
    return min(MAX_SCRATCH, max(MIN_SCRATCH, SCRATCH_SHARE * own))


def tiled(problem: Problem, choice: Choice, limit: int | None = None) -> Recipe:
    """The recipe of a choice of ``tiled``; no scratch buffer for the scores is larger than ``limit`` bytes, if it can be."""
    scores, dkdv, dq = kernels_of(choice)
    p, mask = problem, problem.interval
    budget = min(choice.number("budget"), limit or choice.number("budget"))
    tile = 4 * scores.rows * scores.cols  # bytes of a block of P, or of dP
    rooms = tiled_split.rooms(p, scores.rows, scores.cols)
    channels, v_channels = (-(-dim // scores.chunk) * scores.chunk for dim in (p.head_dim, p.v_head_dim))
    query_vecs, key_vecs = _packed(p.q_len), _packed(p.kv_len)  # of one channel of a slot
    most_slots = budget // (16 * max(query_vecs, key_vecs) * (channels + v_channels))
    todo = list(tiled_split.strips(p, scores.rows, rooms, budget // tile, most_slots))
    rows = max(strip.slots * strip.rows for strip in todo)
    key_blocks = max(strip.widest for strip in todo)
    spans = -(-key_blocks // scores.span)

    head_parts, query_parts = tiled_split.key_parts(p, dkdv, todo[0], budget, choice.number("parts"))
    key_parts = tiled_split.query_parts(p, dq, todo[0], key_blocks, budget, choice.number("parts"))
    parts = head_parts * query_parts
    documents = "" if not mask.doc_start else "wholedocuments" if mask.doc_end else "documents"
    intervals = AttentionIntervals(rows=scores.rows, documents=documents, kv_lengths=p.kv_lengths)
    terms = AttentionRows(
        wg=64,
        given="" if p.given == "none" else p.given,
        softcap=p.softcap,
        alibi=p.softcap and p.alibi,
    )
    blocks = -(-p.q_len // scores.rows)
    counts = {name: math.prod(p.shapes[name]) for name in p.outputs}

    slots, kv_slots = todo[0].slots, -(-todo[0].slots // p.group)
    packed = {
        "channels": channels,
        "v_channels": v_channels,
        "d_o_tiles": slots * query_vecs * channels,
        "v_tiles": kv_slots * key_vecs * channels,
        "pack_threads": max(query_vecs, key_vecs) * max(channels, v_channels) // 4,
    }
    scratch = {
        "intervals": 8 * p.batch * p.q_len + 16 * p.batch * blocks + 8 * blocks,
        "query_tiles": 16 * slots * query_vecs * (channels + v_channels),
        "key_tiles": 16 * kv_slots * key_vecs * (channels + v_channels),
        **dict.fromkeys(("p_tiles", "d_p_tiles"), tile * max(1, *(strip.slots * strip.tiles for strip in todo))),
        "row_sums": 8 * rows * spans,
        "row_terms": (16 if p.softcap else 8) * rows,
    }
    split = {"d_q": key_parts, "d_k": parts, "d_v": parts}
    # dkdv binds d_k and d_v, and WebGPU has no kernel write one buffer through two bindings that overlap: where both may lie
    # interleaved in one, it writes them apart, and reduce puts them there.
    interleaved = all(p.strides_of(name).has_gaps(p.shapes[name]) for name in ("d_k", "d_v"))
    renamed = {name: f"{name} parts" for name, count in split.items() if count > 1 or (interleaved and name in ("d_k", "d_v"))}
    scratch |= {renamed[name]: 4 * split[name] * counts[name] for name in renamed}

    places: dict[str, int] = {}
    for name in renamed:
        places |= Strides.contiguous(p.shapes[name]).words(name, part=counts[name])
    steps = [Step(variant=intervals, sizes={"key_cols": scores.cols})]
    tensors = [p.strides_of(name) for name in ("q", "d_o", "k", "v") if name in dict(p.strides)]
    vectorised = p.head_dim % 4 == p.v_head_dim % 4 == 0 and all(strides.multiples_of(4) for strides in tensors)
    pack = AttentionPack(wg=128, vectorised=vectorised)
    for strip in todo:
        sizes = {
            "slot_first": strip.slot_first,
            "row_first": strip.row_first,
            "strip_rows": strip.rows,
            "strip_slots": strip.slots,
            "strip_kv_slots": -(-strip.slots // p.group),
            "strip_tiles": strip.tiles,
            "spans": -(-strip.widest // scores.span),
            "query_rows": scores.rows,
            "key_cols": scores.cols,
            "span_keys": scores.span * scores.cols,
            **packed,
            "widest_head_dim": max(p.head_dim, p.v_head_dim),
            "head_parts": head_parts,
            "query_parts": query_parts,
            "key_parts": key_parts,
        }
        adds = {name: int(not strip.first if name in renamed else not strip.first or name in p.accumulate) for name in counts}
        adds["d_q"] = int("d_q" not in renamed and "d_q" in p.accumulate)
        sizes |= {"add_q": adds["d_q"], "add_k": adds["d_k"], "add_v": adds["d_v"], **places}
        kernels = (scores, terms, dkdv, dq) if strip.row_first else (pack, scores, terms, dkdv, dq)
        steps += [Step(variant=v, buffers=renamed, sizes=sizes) for v in kernels]
    for name, buffer in renamed.items():
        _, length, heads, dim = p.shapes[name]
        sizes = {"count": counts[name], "parts": split[name], "add": int(name in p.accumulate)}
        sizes |= {"total_dim": dim, "total_heads": heads, "total_length": length, **p.strides_of(name).words("total")}
        strided = name in dict(p.strides)
        by_four = dim % 4 == 0 and (not strided or p.strides_of(name).multiples_of(4))
        reduce = AttentionReduce(wg=128, guard=dkdv.guard, strided=strided, vectorised=by_four)
        steps.append(Step(variant=reduce, buffers={"parts": buffer, "total": name}, sizes=sizes))
    return Recipe(algorithm="tiled", problem=p, steps=tuple(steps), scratch=scratch)


def _packed(length: int) -> int:
    """vec4 elements of one channel of so many positions, in packed tiles."""
    return -(-length // PACKED_ROWS) * PACKED_ROWS // 4
