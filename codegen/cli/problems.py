"""The arguments that describe problems, and the problems that they describe."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ..errors import ArgumentError
from ..problem.mask import ALIGNMENTS, Mask
from ..problem.problem import Problem
from ..profile import DeviceProfile

MASKS = ("full", "causal", "documents")
STRIDES = ("heads-first", "packed")
SHAPES = ((512, 4, 2, 128), (1024, 16, 4, 64), (2048, 16, 4, 64), (4096, 32, 8, 128), (8192, 16, 4, 64))
"""(seq, heads, kv_heads, head_dim) that a GPU is measured at where nothing else is asked for."""
SOFTWARE_SHAPES = ((256, 4, 2, 64), (512, 4, 2, 64))


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """The shape and the mask of a problem. Everything is None until it is given; see ``problem_of``."""
    shape = parser.add_argument_group("shape")
    shape.add_argument("--q-len", "--seq", type=int, metavar="N", help="queries (with --kv-len left out: keys too)")
    shape.add_argument("--kv-len", type=int, metavar="N", help="keys, where their number differs")
    shape.add_argument("--heads", type=int, metavar="N", help="query heads")
    shape.add_argument(
        "--kv-heads", type=int, metavar="N", help="heads of k and v, of which heads is a multiple; default: as many"
    )
    shape.add_argument("--head-dim", type=int, metavar="N", help="channels of a head")
    shape.add_argument("--v-head-dim", type=int, metavar="N", help="channels of a head of v, where they differ")
    shape.add_argument("--batch", type=int, metavar="N", help="sequences at once; default: 1")
    shape.add_argument(
        "--strides",
        choices=STRIDES,
        help="heads-first: (batch, heads, seq, dim), as in PyTorch; packed: q, k and v in one array, and their gradients in "
        "another; default: (batch, seq, heads, dim) each",
    )
    mask = parser.add_argument_group("mask", "Which keys a query sees; where several are given, those that all of them show.")
    mask.add_argument("--mask", choices=MASKS, help="documents: several texts in one sequence, causal inside each")
    mask.add_argument("--documents", action="store_true", help="the same as --mask documents, to go with another --mask")
    mask.add_argument(
        "--window",
        nargs=2,
        type=_width,
        metavar=("LEFT", "RIGHT"),
        help="so many keys to either side, both ends inclusive; none is unbounded: --window 512 0",
    )
    mask.add_argument("--prefix", type=int, metavar="N", help="the first N keys, and beyond them causal")
    mask.add_argument(
        "--align",
        choices=ALIGNMENTS,
        default="bottom-right",
        help="where the diagonal lies if --kv-len differs: bottom-right (default; FlashAttention) or top-left (PyTorch)",
    )


def _width(text: str) -> int | None:
    if text in ("none", "-1"):
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}; want a number or none") from None


def mask_of(args: argparse.Namespace) -> Mask | None:
    """The mask that the arguments of ``add_problem_arguments`` describe; None where there are none. Raises ``ArgumentError``."""
    masks = []
    if args.mask == "full":
        masks.append(Mask.full())
    if args.mask == "causal":
        masks.append(Mask.causal(args.align))
    if args.mask == "documents" or args.documents:
        masks.append(Mask.documents())
    if args.window:
        left, right = args.window
        masks.append(Mask.window(left, right, args.align))
    if args.prefix is not None:
        masks.append(Mask.prefix(args.prefix, args.align))
    if not masks:
        return None
    met = masks[0]
    for mask in masks[1:]:
        met = met & mask
    return met


def problem_of(args: argparse.Namespace, **defaults: Any) -> Problem:
    """The problem that the arguments describe, ``defaults`` (q_len, heads, head_dim, mask) standing in for what is missing.

    Raises ``ArgumentError`` that names the option for what is missing still.
    """
    mask = mask_of(args) or defaults.get("mask")
    if mask is None:
        raise ArgumentError("--mask", "nothing", f"--mask {' or '.join(MASKS)}, --window LEFT RIGHT or --prefix N")
    shape: dict[str, Any] = {}
    for name in ("q_len", "heads", "head_dim"):
        given = getattr(args, name)
        given = defaults.get(name) if given is None else given
        if given is None:
            raise ArgumentError(f"--{name.replace('_', '-')}", "nothing", "a number")
        shape[name] = given
    problem = Problem(
        **shape,
        kv_len=shape["q_len"] if args.kv_len is None else args.kv_len,
        kv_heads=shape["heads"] if args.kv_heads is None else args.kv_heads,
        v_head_dim=args.v_head_dim or 0,
        batch=1 if args.batch is None else args.batch,
        mask=mask,
    )
    return with_strides(problem, args.strides)


def with_strides(problem: Problem, strides: str | None) -> Problem:
    """The problem with what ``--strides`` says. Raises ``ArgumentError`` where its tensors cannot lie so."""
    if strides == "heads-first":
        return problem.heads_first()
    if strides == "packed":
        return problem.packed("q", "k", "v").packed(*problem.outputs)
    return problem


def has_shape(args: argparse.Namespace) -> bool:
    """Whether any argument of the shape group was given."""
    names = ("q_len", "kv_len", "heads", "kv_heads", "head_dim", "v_head_dim", "batch")
    return any(getattr(args, name) is not None for name in names)


def add_measured_problem_arguments(parser: argparse.ArgumentParser, what: argparse._ArgumentGroup) -> None:
    """Several shapes, or one in full, for what is measured; ``what`` is the group of ``--shape`` and ``--given``."""
    what.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="SEQ,HEADS,KV_HEADS,HEAD_DIM",
        help="may be repeated; default: five shapes of training, or two small ones on a software adapter",
    )
    what.add_argument(
        "--given", choices=("o", "delta", "none"), default="o", help="what the caller has: o (default), rowsum(do∘o) or neither"
    )
    add_problem_arguments(parser)


def measured_problems(args: argparse.Namespace) -> list[Problem]:
    """The problems of the shapes that are given; empty where none is. Raises ``ArgumentError``."""
    if not has_shape(args):
        return [_measured(args, _sizes(text)) for text in args.shape]
    if args.shape:
        raise ArgumentError("--shape", "--seq, --heads, … too", "one way or the other")
    return [replace(problem_of(args, mask=Mask.causal()), given=args.given)]


def usual_problems(args: argparse.Namespace, profile: DeviceProfile) -> list[Problem]:
    """Those that a device is measured at where no shape is given, with the mask and the strides that are."""
    return [_measured(args, sizes) for sizes in (SOFTWARE_SHAPES if profile.software else SHAPES)]


def _sizes(text: str) -> tuple[int, ...]:
    try:
        seq, heads, kv_heads, head_dim = map(int, text.split(","))
    except ValueError:
        raise ArgumentError("--shape", repr(text), "SEQ,HEADS,KV_HEADS,HEAD_DIM, such as 4096,32,8,128") from None
    return seq, heads, kv_heads, head_dim


def _measured(args: argparse.Namespace, sizes: tuple[int, ...]) -> Problem:
    seq, heads, kv_heads, head_dim = sizes
    mask = mask_of(args) or Mask.causal()
    problem = Problem(q_len=seq, kv_len=seq, heads=heads, kv_heads=kv_heads, head_dim=head_dim, mask=mask, given=args.given)
    return with_strides(problem, args.strides)
