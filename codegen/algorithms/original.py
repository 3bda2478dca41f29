"""The two algorithms of the original file's kernels: ``short``, with P and dS in scratch, and ``streaming``, without any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ..errors import VariantError
from ..kernels.original import (
    SEG_UNIFORM_POSITIONS,
    AttentionBackward,
    AttentionBackwardShort,
    AttentionBackwardShortDkdv,
)
from ..kernels.original_masks import MODES, SHORT_MASKS
from ..kernels.variant import Variant
from ..problem.problem import MAX_HEAD_DIM, Problem
from ..profile import DeviceProfile
from .algorithm import Algorithm
from .choice import Choice
from .recipe import Recipe, Step

BOUNDS: tuple[tuple[int, bool], ...] = ((64, False), (128, False), (MAX_HEAD_DIM, True))
"""(head_dim, at most) of the checked-in variants of the causal mask; the other masks have the last alone."""
COMPAT_WG = 128
"""Compatibility mode allows 128 threads."""
MAX_SEQS = (512, 1024)


def mask_modes(problem: Problem) -> tuple[str, ...]:
    """The mask modes that express a problem's mask exactly, the most special first; empty where none does."""
    square = problem.q_len == problem.kv_len
    return tuple(name for name, mode in MODES.items() if mode.expresses(problem.interval, square=square))


class _Original(Algorithm):
    """What both share: which problems the kernels take, and which variants are candidates."""

    def _refusal(self, problem: Problem) -> str:
        if problem.softcap or problem.alibi:
            return f"{self.name} does not take a softcap or ALiBi slopes"
        if problem.head_dim != problem.v_head_dim:
            return f"{self.name} does not take a head_dim of {problem.head_dim} with a v_head_dim of {problem.v_head_dim}"
        if problem.kv_lengths:
            return f"{self.name} does not take a number of keys for each batch entry (kv_lengths)"
        if problem.strides:
            return f"{self.name} does not take strides ({problem.strided})"
        return ""

    def suited(self, choice: Choice, problem: Problem, guard: str) -> Choice:
        main: Any = choice.kernels[0]
        if main.mask not in mask_modes(problem):
            raise VariantError(main.name, f"it does not have the mask {problem.mask}")
        longest = main.serves.max_seq
        if longest is not None and problem.kv_len > longest:
            raise VariantError(main.name, f"it takes {longest} positions, not {problem.kv_len}")
        if main.seg_uniform and problem.batch * problem.q_len > SEG_UNIFORM_POSITIONS:
            raise VariantError(main.name, f"it takes documents of {SEG_UNIFORM_POSITIONS} positions")
        return choice

    def _forms(self, problem: Problem, masks: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Parameters in the order they are tried: the head_dim as a constant (checked in or not), then *at most*."""
        bounds = ((problem.head_dim, False), *((d, at_most) for d, at_most in BOUNDS if at_most and d >= problem.head_dim))
        for mask in mask_modes(problem):
            if mask in masks:
                for head_dim, at_most in bounds:
                    for wg in (256, COMPAT_WG):
                        for seg_uniform in (False, True) if mask.startswith("documents") else (False,):
                            if not seg_uniform or problem.batch * problem.q_len <= SEG_UNIFORM_POSITIONS:
                                yield {
                                    "mask": mask,
                                    "head_dim": head_dim,
                                    "at_most": at_most,
                                    "wg": wg,
                                    "seg_uniform": seg_uniform,
                                }


class Streaming(_Original):
    """One kernel; d_k and d_v by atomic addition, so not repeatable to the bit. No bound on the length, no scratch."""

    name: ClassVar[str] = "streaming"
    roles: ClassVar[Mapping[str, type[Variant]]] = {"main": AttentionBackward}
    chained: ClassVar[bool] = True
    tuned_up_to: ClassVar[int | None] = 1024

    def _refusal(self, problem: Problem) -> str:
        return super()._refusal(problem) or ("" if mask_modes(problem) else f"streaming has no mask mode for {problem.mask}")

    def candidates(self, problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Choice]:
        for form in self._forms(problem, tuple(MODES)):
            yield Choice(algorithm=self.name, kernels=(AttentionBackward(guard=guard, **form),))

    def suited(self, choice: Choice, problem: Problem, guard: str) -> Choice:
        (main,) = super().suited(choice, problem, guard).kernels
        return replace(choice, kernels=(replace(main, guard=guard),))  # type: ignore[call-arg]

    def recipe(self, choice: Choice, problem: Problem, profile: DeviceProfile) -> Recipe:
        main: Any = choice.kernels[0]
        written = {"d_q"} if main.overwrite else set()
        cleared = tuple(name for name in problem.outputs if name not in problem.accumulate | written)
        return Recipe(algorithm=self.name, problem=problem, steps=(Step(variant=main),), cleared=cleared)

    def checked_in(self) -> Iterator[Variant]:
        for mask in MODES:
            documents = mask.startswith("documents")
            for head_dim, at_most in BOUNDS if mask == "causal" else BOUNDS[-1:]:
                for seg_uniform in (False, True) if documents else (False,):
                    yield AttentionBackward(wg=256, head_dim=head_dim, at_most=at_most, mask=mask, seg_uniform=seg_uniform)
            if not documents:  # nine storage buffers, or a 64 KiB uniform, are more than compatibility mode has
                yield AttentionBackward(wg=COMPAT_WG, head_dim=MAX_HEAD_DIM, at_most=True, mask=mask)


class Short(_Original):
    """Two kernels with P and dS as scratch, 4·batch·seq²·heads bytes each; repeatable to the bit."""

    name: ClassVar[str] = "short"
    roles: ClassVar[Mapping[str, type[Variant]]] = {"main": AttentionBackwardShort, "dkdv": AttentionBackwardShortDkdv}
    tuned_up_to: ClassVar[int | None] = 1024

    def _refusal(self, problem: Problem) -> str:
        if reason := super()._refusal(problem):
            return reason
        if len(problem.accumulate & {"d_k", "d_v"}) == 1:
            return "short adds to d_k and d_v or overwrites both"
        if not set(mask_modes(problem)) & set(SHORT_MASKS):
            return f"short has no mask mode for {problem.mask} with q_len {problem.q_len} and kv_len {problem.kv_len}"
        return ""

    def candidates(self, problem: Problem, profile: DeviceProfile, guard: str) -> Iterator[Choice]:
        for max_seq in (length for length in MAX_SEQS if length >= problem.kv_len):
            for form in self._forms(problem, SHORT_MASKS):
                main = AttentionBackwardShort(max_seq=max_seq, **form)
                dkdv = AttentionBackwardShortDkdv(
                    wg=form["wg"], head_dim=form["head_dim"], at_most=form["at_most"], mask=_key_mask(form["mask"])
                )
                yield self._for(Choice(algorithm=self.name, kernels=(main, dkdv)), problem, guard)

    def suited(self, choice: Choice, problem: Problem, guard: str) -> Choice:
        return self._for(super().suited(choice, problem, guard), problem, guard)

    def _for(self, choice: Choice, problem: Problem, guard: str) -> Choice:
        main: Any
        dkdv: Any
        main, dkdv = choice.kernels
        main = replace(main, guard=guard, accumulate="d_q" in problem.accumulate)
        return replace(choice, kernels=(main, replace(dkdv, guard=guard, accumulate="d_k" in problem.accumulate)))

    def recipe(self, choice: Choice, problem: Problem, profile: DeviceProfile) -> Recipe:
        scratch = 4 * problem.batch * problem.q_len * problem.kv_len * problem.heads
        return Recipe(
            algorithm=self.name,
            problem=problem,
            steps=tuple(Step(variant=variant) for variant in choice.kernels),
            scratch={"p": scratch, "d_s": scratch},
        )

    def checked_in(self) -> Iterator[Variant]:
        for mask in SHORT_MASKS:
            for head_dim, at_most in BOUNDS if mask == "causal" else BOUNDS[-1:]:
                for max_seq in MAX_SEQS:
                    for seg_uniform in (False, True) if mask == "documents" else (False,):
                        yield AttentionBackwardShort(
                            wg=256, max_seq=max_seq, head_dim=head_dim, at_most=at_most, mask=mask, seg_uniform=seg_uniform
                        )
        for mask in ("full", "causal"):
            for head_dim, at_most in BOUNDS if mask == "causal" else BOUNDS[-1:]:
                yield AttentionBackwardShortDkdv(wg=256, head_dim=head_dim, at_most=at_most, mask=mask)


def _key_mask(mask: str) -> str:
    """Which queries the key-major kernel visits: all, or none before the key."""
    return "full" if mask == "full" else "causal"
