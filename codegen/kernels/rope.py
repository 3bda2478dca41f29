"""The two rotary-embedding kernels that keep the original file's contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..problem.problem import MAX_HEAD_DIM
from .facts import Binding, Count, Dispatch, Serves, f32, u32
from .variant import WORKGROUP_SIZES, Variant, param

ONE_OVER_TWO_PI = 2935890503282001226
"""1/2π as a 64-bit fraction, rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeBackward(Variant):
    """The inverse rotation of interleaved pairs, in place. One thread owns one pair.

    The angle is position · base^(−2·pair/head_dim). Where ``params`` carries the ratio base^(−2/head_dim) as a 64-bit
    fraction, it is exact to 2⁻³² of a turn at any position; where those words are zero (a host of the original), it is
    computed in f32 as the original does.
    """

    template: ClassVar[str] = "rope/rope_backward.wgsl.j2"
    tensor: ClassVar[str]
    role: ClassVar[str]
    heads: ClassVar[str]

    wg: int = param("wg", "threads of a workgroup", values=WORKGROUP_SIZES)

    @property
    def context(self) -> dict[str, object]:
        return {"tensor": self.tensor, "one_over_two_pi": ONE_OVER_TWO_PI}

    @property
    def workgroup_size(self) -> int:
        return self.wg

    @property
    def bindings(self) -> tuple[Binding, ...]:
        dims = u32("seq_len", self.heads, "head_dim", "pos_offset")
        params = (*f32("rope_base"), *u32("ratio_low", "ratio_high"))
        return (
            Binding(binding=0, name=self.tensor, type="array<f32>", access="read_write", role=self.role),
            Binding(binding=1, name="dims", type="vec4<u32>", access="uniform", role="dims", words=dims),
            Binding(binding=2, name="params", type="vec4<u32>", access="uniform", role="params", words=params),
        )

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(
            x=Count(factors=("seq_len", self.heads, "half_head_dim"), divisor=self.wg), z=Count(factors=("batch",)), flat=True
        )

    @property
    def serves(self) -> Serves:
        return Serves(masks=(), head_dim=(2, MAX_HEAD_DIM))


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeQBackward(RopeBackward):
    """Rotary embedding, backward, on d_q: (batch, seq, heads, head_dim)."""

    kernel: ClassVar[str] = "rope_q_backward"
    tensor: ClassVar[str] = "dQ"
    role: ClassVar[str] = "d_q"
    heads: ClassVar[str] = "heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKBackward(RopeBackward):
    """Rotary embedding, backward, on d_k: (batch, seq, kv_heads, head_dim)."""

    kernel: ClassVar[str] = "rope_k_backward"
    tensor: ClassVar[str] = "dK"
    role: ClassVar[str] = "d_k"
    heads: ClassVar[str] = "kv_heads"
