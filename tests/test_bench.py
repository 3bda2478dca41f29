"""The benchmark: in which order things are timed, what counts as work, who takes part, and the command's output."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import skip_without
from support.attention import wgpu_device
from wgsl_attention import PROFILES, ArgumentError, Device, DeviceError, Mask, Problem
from wgsl_attention.__main__ import main
from wgsl_attention.algorithms.tiled_layouts import LAYOUTS
from wgsl_attention.benchmarking import timing
from wgsl_attention.benchmarking.bench import Report, Result, measure
from wgsl_attention.benchmarking.contenders import NAMES, contenders, operations, visible_pairs
from wgsl_attention.benchmarking.pytorch import TorchRunner
from wgsl_attention.benchmarking.timing import Timing, Workbench, race
from wgsl_attention.cli import plots
from wgsl_attention.gpu.device import Pipeline
from wgsl_attention.planning.plans import plan
from wgsl_attention.reference.samples import timed_sample

Out = pytest.CaptureFixture[str]
SHAPE = "40,2,1,16"


def problem(mask: Mask, seq: int = 64, kv: int = 0, **more: Any) -> Problem:
    return Problem(**{"q_len": seq, "kv_len": kv or seq, "heads": 4, "kv_heads": 2, "head_dim": 16, "mask": mask, **more})


# The order of timings, by a clock of our own


class Fake:
    """A runner whose every repetition takes ``cost`` seconds, or the next of several; writes down what it is asked."""

    def __init__(self, label: str, cost: float | list[float], log: list[Any], kernels: tuple[str, ...] = ()) -> None:
        self.label, self.cost, self.log, self.kernels = label, cost, log, kernels

    def time(self, repetitions: int = 1, kernel: str = "") -> float:
        self.log.append((self.label, repetitions, kernel))
        cost = self.cost.pop(0) if isinstance(self.cost, list) else self.cost
        if cost < 0:
            raise DeviceError("it broke")
        return repetitions * cost


def test_contenders_take_turns() -> None:
    log: list[Any] = []
    a, b, c = (Fake(label, 0.5, log) for label in "abc")
    timings = race([a, b, c], rounds=3, warm_up=0)
    assert "".join(label for label, *_ in log) == 4 * "abc"
    assert [t.label for t in timings] == ["a", "b", "c"] and all(t.seconds == (0.5,) * 3 for t in timings)


def test_each_timing_follows_on_work_of_its_own_kind() -> None:
    log: list[Any] = []
    race([Fake("short", 0.001, log), Fake("long", 0.4, log)], rounds=2, warm_up=0.25)
    turns = [list(turn) for _, turn in itertools.groupby(log, key=lambda entry: entry[0])]
    for *before, last in turns[2::2]:  # after the first runs
        assert last == ("short", 1, "")
        assert sum(repetitions * 0.001 for _, repetitions, _ in before) == pytest.approx(0.25, abs=2e-3)
        assert all(repetitions * 0.001 <= timing.PASS_SECONDS + 1e-9 for _, repetitions, _ in before)
    # what takes longer than that is its own warm-up, once
    assert [entry for entry in log if entry[0] == "long"] == [("long", 1, "")] * (1 + 2 * 2)


def test_a_clock_that_stands_still_does_not_keep_us() -> None:
    log: list[Any] = []
    assert race([Fake("a", 0.0, log)], rounds=1, warm_up=1e-5)[0].seconds == (0.0,)
    assert max(repetitions for _, repetitions, _ in log) == timing.MAX_REPETITIONS


def test_who_breaks_drops_out() -> None:
    log: list[Any] = []
    runners = [Fake("at once", [-1.0], log), Fake("later", [1.0, 2.0, -1.0], log), Fake("well", 1.0, log)]
    first, later, well = race(runners, rounds=3, warm_up=0, kernels=True)
    assert (first.ok, first.seconds, first.reason) == (False, (), "it broke")
    assert (later.ok, later.seconds) == (False, (2.0,))
    assert well.ok and well.seconds == (1.0,) * 3


def test_a_limit_ends_the_rounds() -> None:
    log: list[Any] = []
    slow, fast = race([Fake("slow", 3.0, log), Fake("fast", 0.1, log)], rounds=5, warm_up=0, limit=10)
    assert (len(slow.seconds), len(fast.seconds)) == (3, 5)
    assert len(race([Fake("slow", 3.0, log)], rounds=5, warm_up=0, limit=0)[0].seconds) == 1


def test_kernels_come_last_and_alone() -> None:
    log: list[Any] = []
    found = race([Fake("a", 1.0, log, ("x", "y")), Fake("b", 1.0, log)], rounds=2, warm_up=0, kernels=True)
    assert found[0].kernels == {"x": 1.0, "y": 1.0} and not found[1].kernels
    assert [entry[2] for entry in log[:6]] == [""] * 6 and [entry[2] for entry in log[6:]] == ["x"] * 3 + ["y"] * 3


def test_medians_and_quartiles() -> None:
    found = Timing(label="", seconds=(5.0, 1.0, 4.0, 2.0, 3.0))
    assert (found.median, found.quartiles) == (3.0, (2.0, 4.0))
    assert Timing(label="", seconds=(2.0,)).quartiles == (2.0, 2.0)


# What counts as work


@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        (Mask.full(), 64 * 64),
        (Mask.causal(), 64 * 64 / 2),  # as such figures are quoted, the diagonal notwithstanding
        (Mask.window(7, 0), 64 * 8 - 28),
        (Mask.window(2, 3), 64 * 6 - 3 - 6),
        (Mask.prefix(16), 16 * 16 + sum(range(17, 65))),
        (Mask.documents(), 8 * (8 * 9 // 2)),
        (Mask.documents() & Mask.window(1, 0), 64 * 2 - 8),
    ],
    ids=str,
)
def test_pairs_that_a_mask_shows(mask: Mask, pairs: float) -> None:
    p = problem(mask)
    starts = timed_sample(p).arrays.get("doc_start")
    assert visible_pairs(p, starts) == pairs
    assert visible_pairs(problem(mask, batch=3), None if starts is None else starts[0]) == 3 * pairs
    assert operations(p, starts) == 5 * 2 * pairs * 16 * 4


def test_pairs_and_operations_of_other_shapes() -> None:
    assert visible_pairs(problem(Mask.causal(), 10, 30)) == sum(range(21, 31))
    assert visible_pairs(problem(Mask.causal("top-left"), 30, 10)) == sum(min(10, i + 1) for i in range(30))
    assert operations(problem(Mask.full(), v_head_dim=8)) == 2 * (3 * 16 + 2 * 8) * 64 * 64 * 4


# Who takes part


def test_the_originals_configuration() -> None:
    found = {c.label: c for c in contenders(problem(Mask.causal()), PROFILES["workgroup-48k"], ["original"])}
    names = [v.name for label in ("original short", "original streaming") for v in found[label].recipe.variants]  # type: ignore[union-attr]
    assert names == [
        "attention_backward_short_wg256_maxseq1024_dmax256_documents",
        "attention_backward_short_dKdV_wg256_dmax256_causal",
        "attention_backward_wg256_dmax256_documents",
    ]


@pytest.mark.parametrize(
    ("p", "reason"),
    [
        (problem(Mask.causal(), 1025), "MAX_SEQ is 1024"),
        (problem(Mask.full()), "no mask but causal"),
        (problem(Mask.window(3, 0)), "no mask mode for window"),
        (problem(Mask.causal(), 10, 20), "no mask mode"),
        (problem(Mask.causal(), v_head_dim=8), "v_head_dim"),
    ],
    ids=str,
)
def test_where_the_original_does_not_serve(p: Problem, reason: str) -> None:
    (found,) = contenders(p, PROFILES["workgroup-48k"], ["original-short"])
    assert found.recipe is None and reason in found.reason


def test_contenders_are_named_apart() -> None:
    p, profile = problem(Mask.causal()), PROFILES["workgroup-48k"]
    assert [c.label for c in contenders(p, profile)] == [name.replace("-", " ") for name in NAMES]
    variant = "attention_backward_wg128_dmax256_causal"
    found = contenders(p, profile, ["streaming", "streaming"], candidates=2, layouts=["16k", "48k"], variants=[variant])
    assert [c.label for c in found] == ["streaming", "streaming, choice 2", "tiled 16k", "tiled 48k", variant]
    assert len({c.recipe.variants for c in found}) == 5 and variant in [v.name for v in found[-1].recipe.variants]  # type: ignore[union-attr]
    (unused,) = contenders(p, profile, [], variants=["attention_backward_wg256_dmax256_full"])
    assert unused.recipe is None and "no recipe" in unused.reason
    for options in ({"names": ["fast"]}, {"layouts": ["8k"]}, {"variants": ["x"]}):
        with pytest.raises(ArgumentError, match="want"):
            contenders(p, profile, **{"names": [], **options})


def test_a_layout_has_the_terms_that_the_problem_has() -> None:
    """All kernels of it, and those that read what another has left."""
    p = Problem(q_len=64, kv_len=64, heads=2, kv_heads=1, head_dim=32, mask=Mask.causal(), softcap=True, alibi=True)
    for layout in LAYOUTS:
        recipe = contenders(p, PROFILES["workgroup-48k"], [], layouts=[layout])[0].recipe
        assert recipe is not None
        told = {v.kernel: v.params["softcap"] for v in recipe.variants if "softcap" in v.params}
        assert len(told) == 4 and all(told.values()), told


# On a device


def test_the_workbench_shares_its_buffers() -> None:
    """What is timed computes what it should, from rows whose probabilities add up to about 1."""
    device = wgpu_device()
    p = problem(Mask.causal(), 32, given="o")
    bench = Workbench(device, timed_sample(p))
    runners = {}
    for name in ("short", "streaming"):
        recipe = contenders(p, device.profile, [name])[0].recipe
        assert recipe is not None
        runners[name] = bench.prepare(name, recipe)
    found = {}
    for name, runner in runners.items():
        for gradient in ("d_q", "d_k", "d_v"):
            device.write(bench._buffers[gradient], np.zeros(bench._buffers[gradient].size // 4, np.float32))
        assert runner.time() > 0
        found[name] = np.frombuffer(device.read(bench._buffers["d_v"]), np.float32)
    np.testing.assert_allclose(found["short"], found["streaming"], rtol=0, atol=1e-4)
    assert np.abs(found["short"]).max() > 0.1
    assert runners["short"].kernels == ("attention_backward_short", "attention_backward_short_dKdV")
    assert runners["short"].time(2, "attention_backward_short_dKdV") > 0
    lse = np.frombuffer(device.read(bench._buffers["lse"]), np.float32).reshape(32, 4)
    assert np.allclose(lse, np.log(np.arange(1, 33))[:, None] + 0.5)


def test_every_term_that_a_problem_can_have() -> None:
    device = wgpu_device()
    p = problem(Mask.causal(), 24, 40, softcap=True, alibi=True, kv_lengths=True, batch=2, v_head_dim=8, given="delta")
    (found,) = contenders(p, device.profile, ["tiled"])
    assert found.recipe is not None and Workbench(device, timed_sample(p)).prepare("tiled", found.recipe).time() > 0


def test_record_pass() -> None:
    """A plan in a pass of the caller's, where nothing has to happen before it; else an error that says what to do."""
    device = wgpu_device()
    p = problem(Mask.causal(), 24)
    made, cleared = plan(p, device, algorithm="short"), plan(p, device, algorithm="streaming")
    bench = Workbench(device, timed_sample(p))
    buffers = {name: bench._buffer(name) for name in made.buffers}
    assert made.first == () and cleared.first == ("d_q is cleared", "d_k is cleared", "d_v is cleared")
    device.run(lambda compute_pass: made.record_pass(compute_pass, buffers))
    once = device.read(buffers["d_q"])
    encoder = device.raw.create_command_encoder()
    encoder.clear_buffer(buffers["d_q"])
    made.record(encoder, buffers)
    device.raw.queue.submit([encoder.finish()])
    assert any(once) and device.read(buffers["d_q"]) == once
    with pytest.raises(ArgumentError, match=r"compute_pass: .*d_q is cleared.*record\(\) with a command encoder, or a problem"):
        device.run(lambda compute_pass: cleared.record_pass(compute_pass, buffers))
    added = plan(problem(Mask.causal(), 24, accumulate=True), device, algorithm="streaming")
    device.run(lambda compute_pass: added.record_pass(compute_pass, buffers))
    twice = np.frombuffer(device.read(buffers["d_q"]), np.float32)
    np.testing.assert_allclose(twice, 2 * np.frombuffer(once, np.float32), rtol=0, atol=1e-4)


def test_measured_from_python() -> None:
    told: list[str] = []
    device = wgpu_device()
    options: dict[str, Any] = {"rounds": 2, "warm_up": 0.0}
    report = measure(device, problem(Mask.causal(), 24), layouts=["16k"], progress=told.append, **options)
    (result,) = report.results
    assert report.ok and result.label == "tiled 16k" and result.variants and len(result.timing.seconds) == 2
    assert any("compiling tiled 16k" in line for line in told)
    report = measure(device, problem(Mask.full(), 24), algorithms=["original-short", "short"], **options)
    assert [result.status for result in report.results] == ["refused", "timed"]
    assert report.ok and report.timed == report.results[1:] and report.timed[0].ratio == 1


# The command


def run_bench(capsys: Out, *arguments: str, status: int = 0) -> Any:
    skip_without("wgpu")
    capsys.readouterr()
    assert main(["bench", "--backend", "wgpu", "--rounds", "2", "--warm-up", "0", *arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_json(capsys: Out, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bench.png"
    found = run_bench(capsys, "--shape", SHAPE, "--kernels", "--plot", str(picture))
    assert found["ok"] and found["backend"] == "wgpu" and (found["rounds"], found["warm_up"]) == (2, 0)
    assert [shape["shape"]["q_len"] for shape in found["shapes"]] == [40]
    for shape in found["shapes"]:
        assert (shape["mask"], shape["given"]) == ("causal", "o")
        assert [c["label"] for c in shape["contenders"]] == [name.replace("-", " ") for name in NAMES]
        for c in shape["contenders"]:
            if c["status"] == "refused":
                assert c["reason"] and c["median"] is None
                continue
            assert c["status"] == "timed" and len(c["seconds"]) == 2 and c["variants"]
            assert c["median"] == statistics.median(c["seconds"]) > 0
            assert c["quartiles"][0] <= c["median"] <= c["quartiles"][1]
            assert c["tflops"] == pytest.approx(shape["operations"] / c["median"] / 1e12)
            assert c["kernels"] and all(seconds > 0 for seconds in c["kernels"].values())
    ratios = [c["ratio"] for c in found["shapes"][0]["contenders"]]
    assert next(ratio for ratio in ratios if ratio) == 1
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_the_table(capsys: Out) -> None:
    skip_without("wgpu")
    shape = ["--seq", "20", "--heads", "2", "--head-dim", "8", "--window", "4", "0"]
    which = ["--algorithm", "original-short", "--algorithm", "streaming", "--kernels", "--checked"]
    assert main(["bench", "--backend", "wgpu", "--rounds", "1", *shape, *which]) == 0
    out = capsys.readouterr().out
    assert "length 20, heads 2, head_dim 8, window(4, 0)" in out and "  attention_backward " in out
    assert "not served" in out and "original short: short has no mask mode" in out
    assert max(map(len, out.splitlines())) <= 100 and "\x1b" not in out


def test_several_shapes_and_documents(capsys: Out) -> None:
    which = ["--algorithm", "streaming", "--algorithm", "original-streaming", "--mask", "documents", "--document-length", "5"]
    found = run_bench(capsys, "--shape", "20,2,2,8", "--shape", "40,2,2,8", *which)
    assert [shape["operations"] for shape in found["shapes"]] == [10 * 8 * 2 * count * 15 for count in (4, 8)]
    for shape in found["shapes"]:
        assert [c["status"] for c in shape["contenders"]] == ["timed", "timed"] and shape["contenders"][0]["ratio"] == 1


def test_nothing_that_serves_is_found_wanting(capsys: Out) -> None:
    found = run_bench(capsys, "--shape", SHAPE, "--mask", "full", "--algorithm", "original", status=1)
    assert not found["ok"] and {c["status"] for c in found["shapes"][0]["contenders"]} == {"refused"}


def test_what_does_not_compile_is_a_row(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Device.pipeline

    def broken(self: Device, rendered: Any, **options: Any) -> Pipeline:
        if "short" in rendered.name:
            raise DeviceError(f"{rendered.name}: the driver says no")
        return right(self, rendered, **options)

    monkeypatch.setattr(Device, "pipeline", broken)
    found = run_bench(capsys, "--shape", SHAPE, "--algorithm", "short", "--algorithm", "streaming", status=1)
    short, streaming = found["shapes"][0]["contenders"]
    assert short["status"] == "failed" and "driver says no" in short["reason"]
    assert streaming["status"] == "timed" and streaming["ratio"] == 1 and not found["ok"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--shape", "1,2,3"], "SEQ,HEADS,KV_HEADS,HEAD_DIM"),
        (["--shape", "64,3,2,16"], "heads"),
        (["--shape", SHAPE, "--seq", "3"], "--shape"),
        (["--algorithm", "fast"], "fast"),
        (["--layout", "8k"], "8k"),
        (["--variant", "attention"], "--variant"),
        (["--rounds", "0"], "--rounds"),
        (["--warm-up", "inf"], "--warm-up"),
        (["--limit", "nan"], "--limit"),
        (["--plot", "picture.txt"], "--plot"),
        (["--plot", "no/such/folder/a.png"], "--plot"),
    ],
)
def test_wrong_use(arguments: list[str], named: str, capsys: Out) -> None:
    skip_without("wgpu")
    assert main(["bench", "--backend", "wgpu", *arguments]) == 2
    shown = capsys.readouterr()
    assert named in shown.err and "Traceback" not in shown.err and not shown.out


@pytest.mark.parametrize(("package", "option"), [("matplotlib", "--plot"), ("torch", "--torch")])
def test_an_extra_that_is_missing(package: str, option: str, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (package, f"{package}.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["bench", option, *(["a.png"] if option == "--plot" else [])]) == 2
    assert "pip install 'wgsl-attention[" in capsys.readouterr().err


def test_a_picture_of_many(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = tuple(
        Result(label=f"contender {'long ' * 12}{i}", status="timed", timing=Timing(label="", seconds=(i + 1.0,)), tflops=1.0)
        for i in range(14)
    )
    reports = [Report(problem=problem(Mask.causal()), operations=1e12, results=r) for r in (results, (), results[:1])]
    plots.draw_bench(tmp_path / "a.svg", reports, "many")
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    plots.draw_bench(tmp_path / "b.png", [], "none")
    with pytest.raises(ArgumentError, match="--plot"):
        plots.draw_bench(tmp_path / "no" / "a.png", reports, "nowhere")


# PyTorch, where there is one


def test_torch_agrees_on_what_is_asked() -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    for mask in (Mask.full(), Mask.causal(), Mask.window(3, 0), Mask.documents()):
        p = problem(mask, 16)
        runner = TorchRunner(p, timed_sample(p).arrays.get("doc_start"))
        assert runner.time(2) > 0 and runner.label == f"PyTorch, {runner.on}"
