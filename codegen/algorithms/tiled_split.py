"""How the ``tiled`` algorithm divides its work: strips that fit a budget of scratch, and parts that fill the device.

Small grids are split into parts (query heads of a group, blocks of queries, blocks of keys) that are summed afterwards, in a
fixed order. ``parts`` is the number of workgroups that a kernel is to have at least, if splitting can give them; ``budget``
bounds each scratch buffer: the scores of a strip, and the parts of a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..kernels.tiled_products import AttentionDkdv, AttentionDq
from ..problem.problem import Problem

MIN_STRIP_ROWS = 512
"""A strip has at least so many rows of every slot before the slots are divided too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """``rows`` rows from ``row_first`` on, of ``slots`` slots from ``slot_first`` on; ``first`` for its keys' gradients.

    The scores of one slot take ``tiles`` blocks, those of one block of queries at most ``widest``.
    """

    slot_first: int
    slots: int
    row_first: int
    rows: int
    tiles: int
    widest: int
    first: bool


def rooms(p: Problem, rows: int, cols: int) -> list[int]:
    """Blocks of ``cols`` keys that the scores of each block of ``rows`` queries may take, whatever documents and kv_lengths say.

    The same as attention_intervals counts.
    """
    words = p.interval.words
    found = []
    for first in range(0, p.q_len, rows):
        last = min(first + rows, p.q_len) - 1
        lo = max(0, first + words["lo_shift"])
        hi = min(p.kv_len, last + words["hi_shift"], max(words["prefix"], last + words["prefix_shift"]))
        found.append(-(-hi // cols) - lo // cols if lo < hi else 0)
    return found


def strips(problem: Problem, rows: int, rooms: Sequence[int], tiles: int, most_slots: int) -> Iterator[Strip]:
    """Covers every row of every slot, in order, with at most ``tiles`` blocks of scores and ``most_slots`` slots in a strip.

    ``rooms`` has those of each block of ``rows`` queries. Where one block of queries has more, it is a strip, and overruns.
    All strips but the last have as many slots as the first.
    """
    slots, blocks = problem.batch * problem.heads, len(rooms)
    short = max(1, max(rooms)) * min(blocks, -(-MIN_STRIP_ROWS // rows))  # tiles of one slot's shortest strip, at most
    per_slots = max(1, min(slots, most_slots, tiles // short if tiles < slots * min(short, sum(rooms)) else slots))
    if per_slots >= problem.group:  # whole kv heads, or an even share of one
        per_slots -= per_slots % problem.group
    while per_slots < problem.group and problem.group % per_slots:
        per_slots -= 1
    ranges = list(_even(rooms, tiles // per_slots))
    for slot in range(0, slots, per_slots):
        for first, end in ranges:
            yield Strip(
                slot_first=slot,
                slots=min(per_slots, slots - slot),
                row_first=first * rows,
                rows=(end - first) * rows,
                tiles=sum(rooms[first:end]),
                widest=max(1, *rooms[first:end]),
                first=first == 0 and slot % problem.group == 0,
            )


def _even(rooms: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks with at most ``most`` tiles each, as even as they go; a block that has more is a range."""
    share = sum(rooms) / max(1, -(-sum(rooms) // max(1, most)))
    first = total = 0
    for end, room in enumerate(rooms, 1):
        total += room
        if end == len(rooms) or total + rooms[end] > most or total >= share:
            yield first, end
            first, total = end, 0


def key_parts(p: Problem, dkdv: AttentionDkdv, strip: Strip, budget: int, parts: int) -> tuple[int, int]:
    """Parts of the group's heads, and of a strip's blocks of queries, for dkdv."""
    dims = -(-max(p.head_dim, p.v_head_dim) // dkdv.cols)
    grid = -(-strip.slots // p.group) * -(-p.kv_len // dkdv.rows) * dims * (1 if dkdv.joint else 2)
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
