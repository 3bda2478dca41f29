"""Adds a kernel of one's own, with a parameter of its own, to the tunable space, and tunes over it.

``DirectDq`` takes the place of ``AttentionDq`` in the tiled algorithm: the same job and the same bindings, so that the
recipe needs no change, but another template, which lies next to this file, and a parameter ``order`` that the template reads
and that becomes a part of the variant's name. Nothing else has to be told about it: the rules, the name, the footprint and
what a tuning table holds all come from the class.

    python examples/own_kernel.py [--seconds 20] [--seq 256]
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import wgsl_attention as wa
from wgsl_attention import VariantError
from wgsl_attention.kernels.facts import WorkgroupArray
from wgsl_attention.kernels.tiled_products import AttentionDq
from wgsl_attention.kernels.variant import param
from wgsl_attention.selection import tables as tuning
from wgsl_attention.selection.ranking import choices


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectDq(AttentionDq):
    """d_q of a strip, read straight from storage: no workgroup memory and no barriers. What a workgroup owns is the same."""

    kernel: ClassVar[str] = "direct_dq"  # a name of its own; the template's entry point is called so too
    template: ClassVar[str] = str(Path(__file__).resolve().with_name("direct_dq.wgsl.j2"))

    order: str = param("", "what neighbouring threads have", values=("channels", "queries"), default="channels")

    @property
    def workgroup_arrays(self) -> tuple[WorkgroupArray, ...]:
        return ()


wa.register_kernel(DirectDq)  # so that a tuning table may name it


def space(problem: wa.Problem, profile: wa.DeviceProfile) -> Iterator[wa.Choice]:
    """What is tried for a problem: the default's scores and dkdv with every shape of the new kernel that fits them."""
    default = choices(problem, profile, algorithm="tiled")[0]
    scores, dkdv, dq = default.kernels
    known = {name: value for name, value in dq.params.items() if name not in ("rows", "row_reg", "col_reg")}
    for order in ("channels", "queries"):
        for rows in (16, 32, 64):
            for row_reg, col_reg in ((2, 4), (4, 4), (8, 4)):
                try:
                    shape: dict[str, Any] = {"rows": rows, "row_reg": row_reg, "col_reg": col_reg}
                    yield replace(default, kernels=(scores, dkdv, DirectDq(**known, **shape, order=order)))
                except VariantError:  # a rule of the kernel refuses it
                    continue


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune over a kernel of one's own.")
    parser.add_argument("--seconds", type=float, default=20, help="budget; default: 20")
    parser.add_argument("--seq", type=int, default=256, help="positions; default: 256")
    args = parser.parse_args()
    problem = wa.Problem(q_len=args.seq, kv_len=args.seq, heads=4, kv_heads=2, head_dim=64, mask=wa.Mask.causal(), given="o")
    device = wa.default_device()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "tuned.json")
        records = wa.tune(problem, space=space, device=device, budget=args.seconds, log=Path(folder, "log.jsonl"), table=table)
        for record in sorted(records, key=lambda r: (r.stage != "final", r.score or float("inf"))):
            score = f"{record.score:.2f} × the default's time" if record.score else record.reason
            print(f"{record.stage:8} {record.status:8} {score:28} {record.label}")
        try:  # the records are all that a table in pandas needs
            import pandas

            frame = pandas.DataFrame([dataclasses.asdict(record) for record in records])
            print(frame.groupby("stage")["score"].describe()[["count", "min", "max"]])
        except ImportError:
            pass
        plan = wa.plan(problem, device, tuning=tuning.load(table))
        print(plan.explain())


if __name__ == "__main__":
    main()
