"""The recipes of the reference's kernels: which kernels, in which order, with which scratch, give d_q, d_k and d_v."""

from __future__ import annotations

from collections.abc import Callable

from ..kernels.original import AttentionBackward, AttentionBackwardShort, AttentionBackwardShortDkdv
from ..kernels.tiled_reductions import MAX_ALIBI_HEADS
from ..problem.problem import Problem
from .recipe import Recipe, Step


def mask_modes(problem: Problem) -> tuple[str, ...]:
    """The mask modes of the reference's kernels that serve a problem, the most special first; empty where none does."""
    mask = problem.interval
    square = problem.q_len == problem.kv_len
    band = () if mask.prefix is not None or mask.doc_end else (("documents_window",) if mask.doc_start else ("window",))
    if mask.doc_start:
        return (("documents",) if mask.lo_shift is None and mask.hi_shift == 1 and not mask.doc_end else ()) + band
    if mask.prefix is not None:
        return ("prefix",) if mask.lo_shift is None and mask.hi_shift is None else ()
    if square and mask.lo_shift is None and mask.hi_shift is None:
        return ("full", *band)
    if square and mask.lo_shift is None and mask.hi_shift == 1:
        return ("causal", *band)
    return band


def _common_refusal(problem: Problem) -> str:
    if problem.softcap or problem.alibi:
        return "a softcap or ALiBi slopes"
    if problem.head_dim != problem.v_head_dim:
        return f"a head_dim of {problem.head_dim} with a v_head_dim of {problem.v_head_dim}"
    if problem.kv_lengths:
        return "a number of keys for each batch entry (kv_lengths)"
    if problem.strides:
        return f"strides ({problem.strided})"
    return ""


def streaming(problem: Problem, main: AttentionBackward) -> Recipe:
    """One kernel; d_k and d_v by atomic addition, so not repeatable to the bit. No bound on the length, no scratch."""
    cleared = tuple(
        name for name in problem.outputs if name not in problem.accumulate and not (name == "d_q" and main.overwrite)
    )
    return Recipe(algorithm="streaming", problem=problem, steps=(Step(variant=main),), cleared=cleared)


def streaming_refusal(problem: Problem) -> str:
    """Why the streaming kernel cannot serve a problem on any device; empty where it can."""
    if reason := _common_refusal(problem):
        return f"streaming does not take {reason}"
    return "" if mask_modes(problem) else f"streaming has no mask mode for {problem.mask}"


def short(problem: Problem, main: AttentionBackwardShort, dkdv: AttentionBackwardShortDkdv) -> Recipe:
    """Two kernels with P and dS as scratch, 4·batch·seq²·heads bytes each; repeatable to the bit."""
    scratch = 4 * problem.batch * problem.q_len * problem.kv_len * problem.heads
    return Recipe(
        algorithm="short",
        problem=problem,
        steps=(Step(variant=main), Step(variant=dkdv)),
        scratch={"p": scratch, "d_s": scratch},
    )


def short_refusal(problem: Problem) -> str:
    """Why the short kernels cannot serve a problem on any device; empty where they can."""
    if reason := _common_refusal(problem):
        return f"short does not take {reason}"
    if len(problem.accumulate & {"d_k", "d_v"}) == 1:
        return "short adds to d_k and d_v or overwrites both"
    if not set(mask_modes(problem)) & {"full", "causal", "documents"}:
        return f"short has no mask mode for {problem.mask} with q_len {problem.q_len} and kv_len {problem.kv_len}"
    return ""


def tiled_refusal(problem: Problem) -> str:
    """Why the tiled kernels cannot serve a problem on any device; empty where they can."""
    if problem.alibi and problem.heads > MAX_ALIBI_HEADS:
        return f"tiled takes ALiBi slopes for up to {MAX_ALIBI_HEADS} heads, not {problem.heads}"
    return ""


REFUSALS: dict[str, Callable[[Problem], str]] = {"tiled": tiled_refusal, "short": short_refusal, "streaming": streaming_refusal}
"""Every algorithm, with what rules it out whatever the device."""
