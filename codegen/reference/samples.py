"""Backward passes to prove a device with: a ``Case`` from a file such as a captured training step, or made up for a problem."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..problem.checks import floats
from ..problem.documents import doc_start_from_lengths
from ..problem.mask import Mask
from ..problem.problem import Problem
from . import attention as reference
from .attention import Outputs

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One backward pass to check. Arrays are 4-D float32, as ``Problem`` says; ``doc_start`` is (seq,) or (batch, seq).

    ``lse`` and ``o`` are what the forward pass handed on, with ``lse_name`` for whose they are; ``float32`` holds
    gradients that someone else computed in float32, to be shown beside ours, with ``float32_name``.
    """

    name: str
    problem: Problem
    q: F32
    k: F32
    v: F32
    d_o: F32
    lse: F32
    lse_name: str
    float32: Outputs
    float32_name: str
    o: F32 | None = None
    doc_start: NDArray[Any] | None = None
    scale: float | None = None

    @property
    def options(self) -> reference.Options:
        return {"scale": self.scale, "doc_start": self.doc_start}


def case_from_file(path: Path, mask: Mask | None = None) -> Case:
    """A case from an ``.npz``: q, k, v, do (or d_o), all (seq, heads, head_dim) or with a batch axis in front.

    It may also hold lse (…, seq, heads), o, scale (head_dim ** −0.5 otherwise), doc_start, which makes the mask
    ``documents``, and dq_autograd, dk_autograd, dv_autograd. ``mask`` is needed where there is no doc_start, and is met with
    ``documents`` where there is. Raises ``ArgumentError``.
    """
    data = _load(path)
    for name in ("q", "k", "v", "d_o"):
        if name not in data or data[name].ndim not in (3, 4) or 0 in data[name].shape:
            got = f"shape {data[name].shape}" if name in data else "nothing"
            raise ArgumentError(f"{name} in {path.name}", got, "(seq, heads, head_dim) or (batch, seq, heads, head_dim)")
    if mask is None and "doc_start" not in data:
        raise ArgumentError("mask", "nothing", f"the mask of {path.name}, which holds no doc_start")
    mask = Mask.full() if mask is None else mask
    if "doc_start" in data:
        mask = mask & Mask.documents()
    batched = data["q"].ndim == 4
    given = {name: floats(f"{name} in {path.name}", data[name]) for name in ("q", "k", "v", "d_o", "o", "lse") if name in data}
    given = given if batched else {name: array[None] for name, array in given.items()}
    if any(given[name].ndim != 4 for name in ("k", "v", "d_o")):
        raise ArgumentError(f"k, v and do in {path.name}", "another number of axes than q's", "a batch axis for all or none")
    (batch, q_len, heads, head_dim), (_, kv_len, kv_heads, _) = given["q"].shape, given["k"].shape
    problem = Problem(
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=given["v"].shape[-1],
        mask=mask,
    )
    for name, want in (("o", given["d_o"].shape), ("lse", (batch, q_len, heads))):
        if name in given and given[name].shape != want:
            raise ArgumentError(f"{name} in {path.name}", f"shape {given[name].shape}", f"{want}, the batch axis included")
    autograd: Outputs | None = None
    if all(f"d{x}_autograd" in data for x in "qkv"):
        found = {f"d_{x}": floats(f"d{x}_autograd in {path.name}", data[f"d{x}_autograd"]) for x in "qkv"}
        autograd = found if batched else {name: array[None] for name, array in found.items()}
    scale = float(data["scale"]) if "scale" in data else None
    name = path.stem.replace("_", " ")
    return make_case(name, problem, **given, doc_start=data.get("doc_start"), scale=scale, autograd=autograd)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ArgumentError("data", f"{path} ({reason})", "an .npz file of arrays") from None
    if "do" in data:
        data.setdefault("d_o", data["do"])
    return data


def make_case(
    name: str,
    problem: Problem,
    q: F32,
    k: F32,
    v: F32,
    d_o: F32,
    *,
    lse: F32 | None = None,
    o: F32 | None = None,
    doc_start: NDArray[Any] | None = None,
    scale: float | None = None,
    autograd: Outputs | None = None,
) -> Case:
    """A case from arrays; NumPy in float32 stands in for an lse and for gradients that are not given."""
    options: reference.Options = {"scale": scale, "doc_start": doc_start}
    lse_name = "given lse"
    if lse is None:
        lse_name = "float32 lse"
        lse = reference.forward(problem, q, k, v, dtype=np.float32, **options)[1]
    float32 = autograd or reference.backward(problem, q, k, v, d_o, dtype=np.float32, **options)
    return Case(
        name=name,
        problem=problem,
        q=q,
        k=k,
        v=v,
        d_o=d_o,
        lse=lse,
        lse_name=lse_name,
        float32=float32,
        float32_name="autograd" if autograd else "NumPy",
        o=o,
        doc_start=doc_start,
        scale=scale,
    )


def synthetic_case(name: str, problem: Problem, seed: int = 0) -> Case:
    """Random arrays for a problem, the same for the same seed: normal noise, and a d_o of 1e-4.

    Documents masks get documents of many lengths, one position among them.
    """
    p, rng = problem, np.random.default_rng(seed)

    def normal(seq: int, heads: int, dim: int, size: float = 1.0) -> F32:
        return (size * rng.standard_normal((p.batch, seq, heads, dim))).astype(np.float32)

    doc_start = None
    if p.mask.documents_mode:
        ends = rng.permutation(np.arange(1, p.q_len))[: max(1, p.q_len // 50)]
        ends = np.unique(np.concatenate([ends, ends[:1] + 1, [0, p.q_len]]))
        doc_start = doc_start_from_lengths(np.diff(ends))
    q, k = normal(p.q_len, p.heads, p.head_dim), normal(p.kv_len, p.kv_heads, p.head_dim)
    v, d_o = normal(p.kv_len, p.kv_heads, p.v_head_dim), normal(p.q_len, p.heads, p.v_head_dim, 1e-4)
    return make_case(name, problem, q, k, v, d_o, doc_start=doc_start)


def synthetic_cases() -> list[Case]:
    """One case of every mask, with shared kv heads, lengths that differ and head dims that no variant has for itself."""
    causal, documents = Mask.causal(), Mask.documents()
    shapes: dict[str, tuple[Mask, dict[str, Any]]] = {
        "full, more keys than queries": (Mask.full(), {"q_len": 96, "kv_len": 160, "heads": 4, "kv_heads": 4, "head_dim": 64}),
        "causal, four heads on one": (causal, {"q_len": 256, "kv_len": 256, "heads": 4, "kv_heads": 1, "head_dim": 128}),
        "packed documents": (documents, {"q_len": 200, "kv_len": 200, "heads": 4, "kv_heads": 2, "head_dim": 64, "batch": 2}),
        "sliding window": (Mask.window(64, 0), {"q_len": 300, "kv_len": 300, "heads": 3, "kv_heads": 1, "head_dim": 80}),
        "prefix": (Mask.prefix(48), {"q_len": 160, "kv_len": 160, "heads": 2, "kv_heads": 2, "head_dim": 32}),
        "documents and window": (
            documents & Mask.window(32, 0),
            {"q_len": 257, "kv_len": 257, "heads": 4, "kv_heads": 2, "head_dim": 96},
        ),
        "an odd head_dim": (causal, {"q_len": 65, "kv_len": 65, "heads": 2, "kv_heads": 2, "head_dim": 59}),
        "q, k, v in one array": (
            causal,
            {"q_len": 150, "kv_len": 150, "heads": 4, "kv_heads": 2, "head_dim": 64, "batch": 2},
        ),
        "heads first": (causal, {"q_len": 100, "kv_len": 130, "heads": 4, "kv_heads": 2, "head_dim": 40, "batch": 2}),
        "the largest head_dim": (causal, {"q_len": 64, "kv_len": 64, "heads": 2, "kv_heads": 1, "head_dim": 256}),
    }
    problems = {name: Problem(mask=mask, **shape) for name, (mask, shape) in shapes.items()}
    fused = problems["q, k, v in one array"]
    problems["q, k, v in one array"] = fused.packed("q", "k", "v").packed(*fused.outputs)
    problems["heads first"] = problems["heads first"].heads_first()
    return [synthetic_case(name, problem, seed=seed) for seed, (name, problem) in enumerate(problems.items())]
