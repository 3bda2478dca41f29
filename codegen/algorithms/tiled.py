"""The recipe of the ``tiled`` algorithm: strips that fit a budget of scratch, and parts that fill the device.

Scratch holds P and dP for one strip at a time, so it is bounded by the budget whatever the length. Small grids are split
into parts (query heads of a group, blocks of queries, blocks of keys) that are summed afterwards, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..kernels.tiled_products import AttentionScores
from ..kernels.tiled_reductions import AttentionIntervals, AttentionReduce, AttentionRows
from ..kernels.uniform_words import stride_values
from ..problem.problem import Problem
from ..problem.strides import Strides
from .recipe import Recipe, Step
from .tiled_layouts import TiledChoice

MIN_STRIP_ROWS = 512
"""A strip has at least so many rows of every slot before the slots are divided too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """``rows`` rows from ``row_first`` on, of ``slots`` slots from ``slot_first`` on; ``first`` for its keys' gradients."""

    slot_first: int
    slots: int
    row_first: int
    rows: int
    first: bool


def strips(problem: Problem, rows: int, row_bytes: int, budget: int) -> Iterator[Strip]:
    """Covers every row of every slot, in order. ``row_bytes`` is the scratch of one row of one slot, ``rows`` a strip's unit.

    Where one block of ``rows`` rows is past the budget, the strips are single blocks and overrun it.
    """
    slots, blocks = problem.batch * problem.heads, -(-problem.q_len // rows)
    fit = max(1, budget // (row_bytes * rows))  # blocks of one slot
    least = min(blocks, -(-MIN_STRIP_ROWS // rows))
    if fit >= slots * least:
        per_slots, per_blocks = slots, min(blocks, fit // slots)
    elif fit >= problem.group * least:
        per_slots = fit // least // problem.group * problem.group
        per_blocks = least
    else:
        per_slots = max(1, min(problem.group, fit // least))
        while problem.group % per_slots:
            per_slots -= 1
        per_blocks = min(blocks, max(1, fit // per_slots))
    per_blocks = -(-blocks // -(-blocks // per_blocks))  # even strips
    for slot in range(0, slots, per_slots):
        for block in range(0, blocks, per_blocks):
            yield Strip(
                slot_first=slot,
                slots=min(per_slots, slots - slot),
                row_first=block * rows,
                rows=min(per_blocks, blocks - block) * rows,
                first=block == 0 and slot % problem.group == 0,
            )


def tiled(problem: Problem, choice: TiledChoice) -> Recipe:
    """Five matrix products over strips of P and dP; repeatable to the bit."""
    scores, dkdv, dq = choice.scores, choice.dkdv, choice.dq
    p, mask = problem, problem.interval
    span_keys = scores.span * scores.cols
    key_stride = _key_stride(p, scores)
    spans = -(-key_stride // span_keys)
    todo = list(strips(p, scores.rows, 8 * key_stride, choice.budget))
    largest = max(strip.slots * strip.rows for strip in todo)

    head_parts, query_parts = _key_parts(p, choice, todo[0])
    key_parts = _query_parts(p, choice, todo[0], -(-key_stride // scores.cols))
    parts = head_parts * query_parts
    documents = "" if not mask.doc_start else "wholedocuments" if mask.doc_end else "documents"
    intervals = AttentionIntervals(rows=scores.rows, documents=documents, kv_lengths=p.kv_lengths)
    terms = AttentionRows(
        wg=64,
        rows=scores.rows,
        key_cols=scores.cols,
        span_keys=span_keys,
        given="" if p.given == "none" else p.given,
        softcap=p.softcap,
        alibi=p.softcap and p.alibi,
    )
    blocks = -(-p.q_len // scores.rows)
    counts = {name: math.prod(p.shapes[name]) for name in p.outputs}

    scratch = {
        "intervals": 8 * p.batch * p.q_len + 16 * p.batch * blocks,
        "scores": 8 * largest * key_stride,
        "row_sums": 8 * largest * spans,
        "row_terms": (16 if p.softcap else 8) * largest,
    }
    split = {"d_q": key_parts, "d_k": parts, "d_v": parts}
    # dkdv binds d_k and d_v, and WebGPU has no kernel write one buffer through two bindings that overlap: where both may lie
    # interleaved in one, it writes them apart, and reduce puts them there.
    interleaved = all(p.strides_of(name).has_gaps(p.shapes[name]) for name in ("d_k", "d_v"))
    renamed = {name: f"{name} parts" for name, count in split.items() if count > 1 or (interleaved and name in ("d_k", "d_v"))}
    scratch |= {renamed[name]: 4 * split[name] * counts[name] for name in renamed}

    places: dict[str, int] = {}
    for name in renamed:
        places |= stride_values(name, Strides.contiguous(p.shapes[name]), part=counts[name])
    steps = [Step(variant=intervals)]
    for strip in todo:
        sizes = {
            "slot_first": strip.slot_first,
            "row_first": strip.row_first,
            "strip_rows": strip.rows,
            "strip_slots": strip.slots,
            "strip_kv_slots": -(-strip.slots // p.group),
            "key_stride": key_stride,
            "spans": spans,
            "widest_head_dim": max(p.head_dim, p.v_head_dim),
            "head_parts": head_parts,
            "query_parts": query_parts,
            "key_parts": key_parts,
        }
        adds = {name: int(not strip.first if name in renamed else not strip.first or name in p.accumulate) for name in counts}
        adds["d_q"] = int("d_q" not in renamed and "d_q" in p.accumulate)
        sizes |= {"add_q": adds["d_q"], "add_k": adds["d_k"], "add_v": adds["d_v"], **places}
        steps += [Step(variant=v, buffers=renamed, sizes=sizes) for v in (scores, terms, dkdv, dq)]
    for name, buffer in renamed.items():
        _, length, heads, dim = p.shapes[name]
        sizes = {"count": counts[name], "parts": split[name], "add": int(name in p.accumulate)}
        sizes |= {"total_dim": dim, "total_heads": heads, "total_length": length, **stride_values("total", p.strides_of(name))}
        reduce = AttentionReduce(wg=128, guard=dkdv.guard, strided=name in dict(p.strides))
        steps.append(Step(variant=reduce, buffers={"parts": buffer, "total": name}, sizes=sizes))
    return Recipe(algorithm="tiled", problem=p, steps=tuple(steps), scratch=scratch)


def _key_stride(p: Problem, scores: AttentionScores) -> int:
    """Keys for which a row has room: all of them, or with a window as many as a block of queries can see, in whole blocks."""
    keys, mask = p.kv_len, p.interval
    if mask.lo_shift is not None and mask.hi_shift is not None:
        # a block's hull, and as much before it as there is between two blocks of keys
        keys = min(keys, max(0, mask.hi_shift - mask.lo_shift) + scores.rows - 1 + scores.cols - 1)
    return -(-keys // scores.cols) * scores.cols


def _key_parts(p: Problem, choice: TiledChoice, strip: Strip) -> tuple[int, int]:
    """Parts of the group's heads, and of a strip's blocks of queries, for dkdv."""
    dkdv = choice.dkdv
    dims = -(-max(p.head_dim, p.v_head_dim) // dkdv.cols)
    grid = -(-strip.slots // p.group) * -(-p.kv_len // dkdv.rows) * dims
    most = choice.budget // (4 * p.batch * p.kv_len * p.kv_heads * max(p.head_dim, p.v_head_dim))  # parts that the budget holds
    fitting = [n for n in _divisors(p.group) if n <= max(1, most)]
    heads = next((n for n in fitting if grid * n >= choice.parts), fitting[-1])
    blocks = strip.rows // dkdv.query_rows
    return heads, max(1, min(blocks // 2, math.ceil(choice.parts / (grid * heads)), 8, most // heads))


def _query_parts(p: Problem, choice: TiledChoice, strip: Strip, key_blocks: int) -> int:
    """Parts of the blocks of keys, for dq."""
    dq = choice.dq
    grid = strip.slots * -(-strip.rows // dq.rows) * -(-p.head_dim // dq.cols)
    most = choice.budget // (4 * p.batch * p.q_len * p.heads * p.head_dim)  # parts that the budget holds
    return max(1, min(key_blocks // 2, math.ceil(choice.parts / grid), 8, most))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
