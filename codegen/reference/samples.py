"""Inputs to prove and to time kernels with: a ``Sample`` from a file such as a captured training step, or made at random."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..problem.checks import floats
from ..problem.documents import doc_start_from_lengths
from ..problem.intervals import document_starts
from ..problem.mask import Mask
from ..problem.problem import Problem
from ..problem.scalars import Numbers, resolve_numbers
from . import accuracy
from . import attention as reference
from .attention import Array, Options

DRAWN = ("q", "k", "v", "d_o")
"""What is drawn at random, in this order; lse, o and delta follow from it."""
LOSS_SIZE = 1e-4
"""Of d_o, where a loss is the mean over many positions."""
SOFTCAP = 2.0
"""Well inside the scores of normal noise, so that the derivative of tanh counts for something."""
TIMED_SOFTCAP = 30.0
"""A bound such as models use."""
DOCUMENTS = 8
"""Documents of a sequence that is timed, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One call with its arrays, by the names and of the shapes that its problem gives them: float32, doc_start and kv_lengths
    uint32. There may be more of them than the problem asks for, and lse may be missing.

    ``theirs`` holds gradients that someone else computed in float32, to be shown beside ours.
    """

    problem: Problem
    arrays: Mapping[str, Array]
    scale: float | None = None
    softcap: float | None = None
    name: str = ""
    theirs: Mapping[str, Array] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def numbers(self) -> Numbers:
        return resolve_numbers(self.problem, self.scale, self.softcap)

    @property
    def options(self) -> Options:
        """As the functions of ``reference.attention`` take them."""
        return {
            "scale": self.scale,
            "doc_start": self.arrays.get("doc_start"),
            "kv_lengths": self.arrays.get("kv_lengths"),
            "softcap": self.softcap,
            "alibi": self.arrays.get("alibi_slopes"),
        }

    def changed(self, **arrays: npt.ArrayLike) -> Sample:
        """The same call with other arrays; what follows from them is not computed anew."""
        return replace(self, arrays={**self.arrays, **_typed(arrays)})

    def without(self, *names: str) -> Sample:
        return replace(self, arrays={name: array for name, array in self.arrays.items() if name not in names})

    def asking(self, **fields: Any) -> Sample:
        """The same arrays for a problem that differs in ``given``, ``accumulate`` or ``strides``."""
        return replace(self, problem=replace(self.problem, **fields))

    def forward(self, dtype: npt.DTypeLike = np.float64) -> tuple[Array, Array]:
        """o and lse, computed in this type."""
        return reference.forward(self.problem, *(self[name] for name in "qkv"), dtype=dtype, **self.options)

    def completed(self) -> Sample:
        """With lse, o and delta, exact but for rounding to float32, where they are missing."""
        o, lse = self.forward()
        return self.changed(**{"o": o, "lse": lse, "delta": np.sum(o * self["d_o"], axis=3), **self.arrays})

    def backward(self, dtype: npt.DTypeLike = np.float64) -> reference.Outputs:
        """The outputs, computed in this type from the rows' own softmax."""
        return reference.backward(self.problem, *(self[name] for name in DRAWN), dtype=dtype, **self.options)

    def expected(self, *, lse: Array | None = None, delta: Array | None = None, chained: bool = False) -> accuracy.Expected:
        """By ``accuracy.expected``: ``lse`` and ``delta`` only where they are not these rows' own on purpose."""
        drawn = (self[name] for name in DRAWN)
        return accuracy.expected(self.problem, *drawn, lse=lse, delta=delta, chained=chained, **self.options)


def _typed(arrays: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    whole = ("doc_start", "kv_lengths")
    return {name: np.ascontiguousarray(array, np.uint32 if name in whole else np.float32) for name, array in arrays.items()}


def random_sample(
    problem: Problem,
    *,
    seed: int = 0,
    q_size: float = 1.0,
    d_o_size: float = 1.0,
    scale: float | None = None,
    softcap: float | None = None,
    name: str = "",
    doc_start: npt.ArrayLike | None = None,
    kv_lengths: npt.ArrayLike | None = None,
    **given: npt.ArrayLike,
) -> Sample:
    """Normal noise of these sizes, the same for the same seed, with no lse, o or delta (see ``completed``).

    Where they are not given, documents masks get documents of many lengths, one position among them; each batch entry any
    number of keys; and a problem with a softcap one of ``SOFTCAP``. Heads get the slopes of the ALiBi paper. Other arrays
    that are ``given`` take the place of drawn ones, which changes nothing else.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, npt.ArrayLike] = {}
    if problem.interval.doc_start and doc_start is None:
        ends = rng.permutation(np.arange(1, problem.q_len))[: max(1, problem.q_len // 50)]
        ends = np.unique(np.concatenate([ends, ends[:1] + 1, [0, problem.q_len]]))
        doc_start = documents(problem.q_len, np.diff(ends))
    starts = document_starts(problem.interval, doc_start, problem.q_len, problem.batch)
    if starts is not None:
        arrays["doc_start"] = starts
    sizes = {"q": q_size, "d_o": d_o_size}
    for tensor in problem.inputs:
        if tensor in DRAWN:
            arrays[tensor] = _noise(rng, problem.shape_of(tensor), sizes.get(tensor, 1.0))
    if problem.kv_lengths:
        arrays["kv_lengths"] = rng.integers(0, problem.kv_len + 1, problem.batch) if kv_lengths is None else kv_lengths
    if problem.alibi:
        arrays["alibi_slopes"] = np.exp2(-8 * np.arange(1, problem.heads + 1) / problem.heads)
    cap = SOFTCAP if problem.softcap and softcap is None else softcap
    return Sample(problem=problem, arrays=_typed(arrays | given), scale=scale, softcap=cap, name=name)


def _noise(rng: np.random.Generator, shape: tuple[int, ...], size: float = 1.0) -> Array:
    array = rng.standard_normal(shape)
    array *= size
    return array.astype(np.float32)


def documents(q_len: int, lengths: Iterable[int]) -> npt.NDArray[np.uint32]:
    """(q_len,) doc_start of documents of these lengths in turn, again and again; the last is cut off where the sequence ends."""
    once = np.fromiter(lengths, np.int64)
    return doc_start_from_lengths(np.tile(once, -(-q_len // int(once.sum()))))[:q_len]


def timed_sample(problem: Problem, *, document_length: int | None = None, seed: int = 0) -> Sample:
    """All that kernels can want for a problem, made without a forward pass, which a large problem has no time for.

    Everything is normal noise but lse, which is what such rows have on average: probabilities are then ordinary ones (kernels
    can run faster on zeros). Documents are of ``document_length``, or an eighth of the sequence; all keys count.
    """
    each = max(1, problem.q_len // DOCUMENTS) if document_length is None else document_length
    sample = random_sample(
        problem,
        seed=seed,
        softcap=TIMED_SOFTCAP if problem.softcap else None,
        doc_start=documents(problem.q_len, [each]),
        kv_lengths=np.full(problem.batch, problem.kv_len),
    )
    options = sample.options
    lo, hi = reference.key_intervals(problem, doc_start=options["doc_start"], kv_lengths=options["kv_lengths"])
    with np.errstate(divide="ignore"):
        lse = np.where(hi > lo, np.log(hi - lo) + 0.5, np.inf)  # q·k/√d is normal: the mean of its exp is e^½
    rest = {"lse": np.broadcast_to(lse[..., None], problem.shape_of("lse"))}
    if problem.given != "none":
        rest[problem.given] = _noise(np.random.default_rng(seed + 1), problem.shape_of(problem.given))
    return sample.changed(**rest)


def sample_from_file(path: Path, mask: Mask | None = None) -> Sample:
    """A sample from an ``.npz``: q, k, v, do (or d_o), all (seq, heads, head_dim) or with a batch axis in front.

    It may also hold lse (…, seq, heads), o, scale (head_dim ** −0.5 otherwise), doc_start, which makes the mask
    ``documents``, and dq_autograd, dk_autograd, dv_autograd. ``mask`` is needed where there is no doc_start, and is met with
    ``documents`` where there is. Raises ``ArgumentError``.
    """
    data = _load(path)
    for name in DRAWN:
        if name not in data or data[name].ndim not in (3, 4) or 0 in data[name].shape:
            got = f"shape {data[name].shape}" if name in data else "nothing"
            raise ArgumentError(f"{name} in {path.name}", got, "(seq, heads, head_dim) or (batch, seq, heads, head_dim)")
    if mask is None and "doc_start" not in data:
        raise ArgumentError("mask", "nothing", f"the mask of {path.name}, which holds no doc_start")
    mask = Mask.full() if mask is None else mask
    if "doc_start" in data:
        mask = mask & Mask.documents()
    batched = data["q"].ndim == 4

    def read(name: str) -> Array:
        array = floats(f"{name} in {path.name}", data[name])
        return array if batched else array[None]

    given = {name: read(name) for name in (*DRAWN, "o", "lse") if name in data}
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
    for name, array in given.items():
        if array.shape != problem.shape_of(name):
            want = f"{problem.shape_of(name)}, the batch axis included"
            raise ArgumentError(f"{name} in {path.name}", f"shape {array.shape}", want)
    scale = float(data["scale"]) if "scale" in data else None
    starts = document_starts(problem.interval, data.get("doc_start"), q_len, batch)
    theirs = {name: f"{name.replace('_', '')}_autograd" for name in problem.outputs}
    return Sample(
        name=path.stem.replace("_", " "),
        problem=problem,
        arrays=_typed(given if starts is None else given | {"doc_start": starts}),
        scale=scale,
        theirs={name: read(own) for name, own in theirs.items()} if set(theirs.values()) <= set(data) else {},
    )


def _load(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ArgumentError("data", f"{path} ({reason})", "an .npz file of arrays") from None
    if "do" in data:
        data.setdefault("d_o", data["do"])
    return data


def assorted_samples() -> list[Sample]:
    """One sample of every mask, with shared kv heads, lengths that differ and head dims that no variant has for itself."""
    causal, packed = Mask.causal(), Mask.documents()
    shapes: dict[str, tuple[Mask, dict[str, Any]]] = {
        "full, more keys than queries": (Mask.full(), {"q_len": 96, "kv_len": 160, "heads": 4, "kv_heads": 4, "head_dim": 64}),
        "causal, four heads on one": (causal, {"q_len": 256, "kv_len": 256, "heads": 4, "kv_heads": 1, "head_dim": 128}),
        "packed documents": (packed, {"q_len": 200, "kv_len": 200, "heads": 4, "kv_heads": 2, "head_dim": 64, "batch": 2}),
        "sliding window": (Mask.window(64, 0), {"q_len": 300, "kv_len": 300, "heads": 3, "kv_heads": 1, "head_dim": 80}),
        "prefix": (Mask.prefix(48), {"q_len": 160, "kv_len": 160, "heads": 2, "kv_heads": 2, "head_dim": 32}),
        "documents and window": (
            packed & Mask.window(32, 0),
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
    return [
        random_sample(problem, seed=seed, d_o_size=LOSS_SIZE, name=name)
        for seed, (name, problem) in enumerate(problems.items())
    ]
