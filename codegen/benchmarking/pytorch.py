"""PyTorch's own backward pass of scaled_dot_product_attention, as one more runner in a race. Imports torch when it is made."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError, DeviceError
from ..problem.mask import Interval
from ..problem.problem import Problem
from ..reference import attention as reference


class TorchRunner:
    """float32, on CUDA where PyTorch has it and on the CPU otherwise; the kv heads expanded to as many as the query heads.

    Only the backward pass is timed: by CUDA's events, or by the wall clock. Square causal masks go as ``is_causal``, others
    as an array of q_len × kv_len booleans. Raises ``DeviceError`` where PyTorch cannot (too little memory, say).
    """

    kernels: Sequence[str] = ()

    def __init__(self, problem: Problem, doc_start: NDArray[Any] | None = None, seed: int = 0) -> None:
        self._torch = torch = load_torch()
        self.on = "CUDA" if torch.cuda.is_available() else "CPU"
        self.label = f"PyTorch, {self.on}"
        p, device = problem, self.on.lower()
        generator = torch.Generator(device=device).manual_seed(seed)

        def normal(length: int, dim: int) -> Any:
            return torch.randn((p.batch, p.heads, length, dim), generator=generator, device=device)

        try:
            self._inputs = [
                normal(length, dim).requires_grad_()
                for length, dim in ((p.q_len, p.head_dim), (p.kv_len, p.head_dim), (p.kv_len, p.v_head_dim))
            ]
            causal = p.interval == Interval(hi_shift=1) and p.q_len == p.kv_len
            seen = None
            if not causal and p.interval != Interval():
                lo, hi = (x[:, None, :, None] for x in reference.key_intervals(p, doc_start=doc_start))
                keys = np.arange(p.kv_len)
                seen = torch.from_numpy((keys >= lo) & (keys < hi)).to(device)
            attend = torch.nn.functional.scaled_dot_product_attention
            self._o = attend(*self._inputs, attn_mask=seen, is_causal=causal)
            self._d_o = normal(p.q_len, p.v_head_dim)
        except RuntimeError as error:
            raise DeviceError(f"PyTorch: {str(error).splitlines()[0]}") from error

    def time(self, repetitions: int = 1, kernel: str = "") -> float:
        torch = self._torch
        try:
            if self.on == "CUDA":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self._backward(repetitions)
                end.record()
                torch.cuda.synchronize()
                return float(begin.elapsed_time(end)) * 1e-3
            start = time.perf_counter()
            self._backward(repetitions)
            return time.perf_counter() - start
        except RuntimeError as error:
            raise DeviceError(f"PyTorch: {str(error).splitlines()[0]}") from error

    def _backward(self, repetitions: int) -> None:
        for _ in range(repetitions):
            self._torch.autograd.grad(self._o, self._inputs, self._d_o, retain_graph=True)


def load_torch() -> Any:
    """The module torch. Raises ``ArgumentError`` that says what to install."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        got = (
            "no PyTorch"
            if isinstance(error, ModuleNotFoundError) and error.name == "torch"
            else f"a PyTorch that fails: {error}"
        )
        raise ArgumentError("--torch", got, "pip install 'wgsl-attention[torch]'") from error
