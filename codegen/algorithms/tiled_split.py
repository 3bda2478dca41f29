"""How the ``tiled`` algorithm divides its work: strips that fit a budget of scratch, and parts that fill the device.

Small grids are split into parts (query heads of a group, blocks of queries, blocks of keys) that are summed afterwards, in a
fixed order. ``parts`` is the number of workgroups that a kernel is to have at least, if splitting can give them; ``budget``
bounds each scratch buffer: the scores of a strip, and the parts of a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..kernels.tiled_products import AttentionDkdv, AttentionDq, AttentionScores
from ..problem.problem import Problem

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


def key_stride(p: Problem, scores: AttentionScores) -> int:
    """Keys for which a row has room: all of them, or with a window as many as a block of queries can see, in whole blocks."""
    keys, width = p.kv_len, p.interval.moving_width
    if width is not None:
        # a block's hull, and as much before it as there is between two blocks of keys
        keys = min(keys, width + scores.rows - 1 + scores.cols - 1)
    return -(-keys // scores.cols) * scores.cols


def key_parts(p: Problem, dkdv: AttentionDkdv, strip: Strip, budget: int, parts: int) -> tuple[int, int]:
    """Parts of the group's heads, and of a strip's blocks of queries, for dkdv."""
    dims = -(-max(p.head_dim, p.v_head_dim) // dkdv.cols)
    grid = -(-strip.slots // p.group) * -(-p.kv_len // dkdv.rows) * dims
    most = budget // (4 * p.batch * p.kv_len * p.kv_heads * max(p.head_dim, p.v_head_dim))  # parts that the budget holds
    fitting = [n for n in _divisors(p.group) if n <= max(1, most)]
    heads = next((n for n in fitting if grid * n >= parts), fitting[-1])
    blocks = strip.rows // dkdv.query_rows
    return heads, max(1, min(blocks // 2, math.ceil(parts / (grid * heads)), 8, most // heads))


def query_parts(p: Problem, dq: AttentionDq, strip: Strip, key_blocks: int, budget: int, parts: int) -> int:
    """Parts of the blocks of keys, for dq."""
    grid = strip.slots * -(-strip.rows // dq.rows) * -(-p.head_dim // dq.cols)
    most = budget // (4 * p.batch * p.q_len * p.heads * p.head_dim)  # parts that the budget holds
    return max(1, min(key_blocks // 2, math.ceil(parts / grid), 8, most))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
