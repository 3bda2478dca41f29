"""The tuner: how it searches, what it keeps when it is interrupted or killed, and that its tables change what is chosen."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import wgsl_attention as wa
from conftest import skip_without
from wgsl_attention import PROFILES, Choice, Mask, Measurement, Problem
from wgsl_attention.__main__ import main
from wgsl_attention.algorithms import tiled_layouts
from wgsl_attention.algorithms.tiled import Tiled
from wgsl_attention.algorithms.tiled_space import SOFTWARE_PARTS
from wgsl_attention.benchmarking.timing import Workbench, race
from wgsl_attention.cli.plots import draw_tuning
from wgsl_attention.gpu.device import Device, open_device
from wgsl_attention.kernels import families
from wgsl_attention.kernels.tiled_products import AttentionDq
from wgsl_attention.kernels.variant import param
from wgsl_attention.reference.samples import timed_sample
from wgsl_attention.rendering.renderer import environment
from wgsl_attention.selection import tables as tuning
from wgsl_attention.selection.ranking import choices, select
from wgsl_attention.tuning import journal as tune_log
from wgsl_attention.tuning.journal import MAX_ATTEMPTS, Journal
from wgsl_attention.tuning.miniature import Twin, twin_of
from wgsl_attention.tuning.search import RUNGS, Search
from wgsl_attention.tuning.trial import Candidate, UncheckedDevice
from wgsl_attention.tuning.tuner import PRESETS, Tuner, tune

Out = pytest.CaptureFixture[str]
SHAPES = ("48,2,1,16", "200,2,1,16")
COMMAND = [sys.executable, "-m", "wgsl_attention", "tune", "--backend", "wgpu", *(f"--shape={shape}" for shape in SHAPES)]


def problem(seq: int = 48, **more: Any) -> Problem:
    shape = {"q_len": seq, "kv_len": seq, "heads": 2, "kv_heads": 1, "head_dim": 16, "mask": Mask.causal(), "given": "o"}
    return Problem(**{**shape, **more})


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    skip_without("wgpu")
    with open_device("wgpu") as opened:
        yield opened


# The search, with times from a formula instead of a device


class Made:
    """Stands in for ``trial.Bench``: a candidate's time is ``cost(choice)``, and ``log`` tells who was measured how."""

    def __init__(self, of: Problem, cost: Any) -> None:
        self.problem, self.cost = of, cost
        self.device: Any = type("It", (), {"profile": PROFILES["workgroup-48k"]})
        self.log: list[tuple[str, str, int]] = []

    def candidate(self, entry: Any, guard: str) -> Candidate:
        return Candidate(entry, entry.recipe(self.problem, self.device.profile), None)

    def compile(self, candidates: Any) -> None: ...

    def forget(self) -> None: ...

    def trial(self, candidate: Any, incumbent: Any, *, stage: str, rounds: int, score: float) -> tuple[Measurement, bool]:
        self.log.append((stage, candidate.label, rounds))
        seconds, before = self.cost(candidate.choice), self.cost(incumbent.choice)
        ratio = seconds / before if seconds else None
        plain: dict[str, Any] = dict.fromkeys(("problem", "device", "driver", "package", "reason"), "")
        made = Measurement(
            **plain,
            unchecked=False,
            stage=stage,
            algorithm="tiled",
            label=candidate.label,
            identity=candidate.identity,
            variants=(),
            params={},
            status="timed" if seconds else "wrong",
            rounds=rounds,
            seconds=seconds or None,
            incumbent=incumbent.label,
            incumbent_seconds=before,
            ratio=ratio,
            score=None if ratio is None else ratio * score,
            choice=candidate.choice.as_json(),
        )
        return made, False


def searched(cost: Any, seconds: float = 4) -> tuple[Any, Made]:
    bench = Made(problem(2048, heads=8, head_dim=64), cost)
    return Search(bench, space=None).run(seconds), bench  # type: ignore[arg-type]


def test_each_kernel_is_improved_by_itself() -> None:
    def cost(choice: Any) -> float:
        if choice.algorithm != "tiled":
            return 9.0
        scores, dkdv, dq = choice.kernels
        return (
            1.0
            + 0.5 * (scores.chunk != 32)
            + 0.3 * (dkdv.pipeline != "ahead")
            + 0.2 * (dq.rows != 32)
            + 0.1 * (choice.number("parts") != 256)
        )

    outcome, bench = searched(cost)
    scores, dkdv, dq = Choice.from_json(outcome.best.choice).kernels
    assert (scores.chunk, dkdv.pipeline, dq.rows, outcome.best.choice["parts"]) == (32, "ahead", 32, 256)  # type: ignore[attr-defined]
    assert outcome.best.seconds == pytest.approx(1.0) and outcome.speed_up == pytest.approx(2.1, rel=0.1)
    assert outcome.final and [stage for stage, *_ in bench.log].index("final") > 10


def test_candidates_with_one_label_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label is for people, and may leave out what a kernel of one's own has: all values of it are tried all the same."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Plain(AttentionDq):
        order: int = param("order", "which threads are neighbours", values=(1, 2, 3), default=1)

        @property
        def summary(self) -> str:
            return "plain"

    of = problem(2048, heads=8, head_dim=64)
    monkeypatch.setitem(families.FAMILIES, "attention_dq", Plain)
    monkeypatch.setitem(Tiled.roles, "dq", Plain)  # type: ignore[index]
    plain = {of.name: replace(of, dq=tuple(Plain(**dq.params) for dq in of.dq)) for of in tiled_layouts.LAYOUTS.values()}
    monkeypatch.setattr(tiled_layouts, "LAYOUTS", plain)
    default = choices(of, PROFILES["workgroup-48k"])[0]
    others = [default.replaced(dq=replace(default.kernels[2], order=order)) for order in (2, 3)]  # type: ignore[call-arg]
    assert {str(choice) for choice in others} == {str(default)}
    measured: list[int] = []

    def cost(choice: Choice) -> float:
        measured.append(int(choice.kernels[2].params["order"]))
        return {1: 1.0, 2: 0.5, 3: 0.8}[measured[-1]]

    outcome = Search(Made(of, cost), space=others).run(4)  # type: ignore[arg-type]
    assert set(measured) == {1, 2, 3}
    assert outcome.best is not None and outcome.best.choice["kernels"]["dq"]["params"]["order"] == 2  # type: ignore[index]
    assert outcome.speed_up == pytest.approx(2.0)


def test_the_field_is_halved() -> None:
    _, bench = searched(lambda choice: 1.0 + sum(map(ord, str(choice))) % 97 / 500)
    for name in ("scores", "dq"):
        heats = [sum(stage == name and rounds == rung for stage, _, rounds in bench.log) for rung in RUNGS]
        assert heats[0] > 10 and heats[1] <= -(-heats[0] // 3) and heats[2] <= -(-heats[1] // 3)


def test_what_is_no_better_than_the_default_does_not_replace_it() -> None:
    default = choices(problem(2048, heads=8, head_dim=64), PROFILES["workgroup-48k"])[0]
    outcome, _ = searched(lambda choice: 1.0 if choice == default else 0.995, 0.5)
    assert outcome.best.label == str(default) and outcome.speed_up == 1 and outcome.runner_up is not None


def test_wrong_gradients_win_nothing() -> None:
    default = choices(problem(2048, heads=8, head_dim=64), PROFILES["workgroup-48k"])[0]
    outcome, _ = searched(lambda choice: 1.0 if choice == default else 0.0, 0.5)
    assert outcome.best.label == str(default)


def test_no_time_leaves_the_default() -> None:
    outcome, bench = searched(lambda choice: 1.0, 1e-9)
    assert outcome.final and {stage for stage, *_ in bench.log} == {"default", "final"}


# The journal


def measurement(label: str = "a") -> Measurement:
    plain: dict[str, Any] = dict.fromkeys(("problem", "device", "driver", "package", "stage", "algorithm"), "x")
    return Measurement(
        **plain, unchecked=False, label=label, identity=label, variants=("v",), params={"n": 1}, status="timed", seconds=1.0
    )


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    journal = Journal(path)
    for mark in "ab":
        journal.begin(mark)
        journal.end(mark, measurement(mark))
    journal.close()
    path.write_bytes(path.read_bytes()[:-20])  # as a kill leaves it
    again = Journal(path, resume=True)
    assert again.find("a") == measurement("a") and again.find("b") is None
    again.end("b", measurement("b"))
    again.close()
    assert [made.label for made in tune_log.read(path)] == ["a", "b"]
    assert Journal(path).find("a") is None  # not resumed


def test_what_never_came_back_is_not_begun_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for attempt in range(MAX_ATTEMPTS):
        journal = Journal(path, resume=True)
        assert journal.gave_up("a") == (attempt >= MAX_ATTEMPTS)
        journal.begin("a")
        journal.close()
    journal = Journal(path, resume=True)
    assert journal.gave_up("a") and not journal.gave_up("b")
    journal.end("a", measurement())
    journal.close()
    assert not Journal(path, resume=True).gave_up("a")


# On the device


@pytest.fixture(scope="module")
def tuned(gpu: Device, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuner, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    tuner = Tuner([problem(), problem(200)], gpu, budget=16, log=folder / "log.jsonl", table=folder / "tuned.json")
    tuner.run()
    return tuner, folder / "tuned.json"


def test_two_problems_leave_a_table_in_time(tuned: tuple[Tuner, Path], gpu: Device) -> None:
    tuner, path = tuned
    assert all(outcome.final and not outcome.reason for outcome in tuner.outcomes)
    rows = tuning.load(path).rows
    assert [dict(row.key.sizes)["q_len"] for row in rows] == [256, 64] or [dict(row.key.sizes)["q_len"] for row in rows] == [
        64,
        256,
    ]
    for row in rows:
        assert row.device == gpu.profile.identity and 0 < row.seconds <= row.default_seconds
        assert row.runner_up_seconds and row.measured["driver"] == gpu.profile.driver and row.date.endswith("+00:00")
    kept = tune_log.read(path.with_name("log.jsonl"))
    assert [made.label for made in kept] == [made.label for made in tuner.measurements]
    assert {made.status for made in kept} <= {"timed", "failed"}
    assert all(made.error is not None and made.error <= 1 for made in kept if made.status == "timed")
    assert {made.stage for made in kept} >= {"default", "final"}


def test_the_tuned_choice_is_not_slower_than_the_default(tuned: tuple[Tuner, Path], gpu: Device) -> None:
    found = tuning.load(tuned[1])
    for of in (problem(), problem(200)):
        bench = Workbench(gpu, timed_sample(of))
        best, default = (select(of, gpu.profile, tuning=table).best for table in (found, tuning.EMPTY))
        assert best is not None and default is not None
        runners = [bench.prepare("default", default), bench.prepare("tuned", best)]
        ratios = []
        for _ in range(5):  # times on a processor that others share swing by a third and more
            before, now = (min(timing.seconds) for timing in race(runners, rounds=9, warm_up=0))
            ratios.append(now / before)
            if ratios[-1] < 1.3:
                break
        assert min(ratios) < 1.3


def test_the_table_decides_and_deleting_a_row_changes_it_back(
    gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, of = tmp_path / "tuned.json", problem(200)
    monkeypatch.setenv("WGSL_ATTENTION_TUNING", str(path))
    default = wa.plan(of, gpu)
    slower = [choice.replaced(parts=4) for choice in choices(of, gpu.profile, algorithm="tiled")]
    tuner = Tuner([problem(), of], gpu, space=lambda p, profile: slower[:1], budget=4, table=path)
    tuner.run()
    other = replace(tuning.load(path).rows[0], key=tuning.Key.of(of), choice=slower[1].as_json())
    tuning.save(tuning.Table(rows=(other,)), path)
    assert wa.plan(of, gpu).recipe == slower[1].recipe(of, gpu.profile) != default.recipe
    assert "tuned on" in wa.plan(of, gpu).explain()
    tuning.save(tuning.EMPTY, path)
    assert wa.plan(of, gpu).recipe == default.recipe


def test_records_from_python(gpu: Device) -> None:
    default = choices(problem(), gpu.profile)[0]
    space = [default.replaced(parts=parts) for parts in SOFTWARE_PARTS[:3]]
    records = tune(problem(), space=space, device=gpu, budget=5)
    assert {record.stage for record in records} == {"default", "own", "final"}
    assert {record.params["parts"] for record in records} <= {*SOFTWARE_PARTS[:3], default.number("parts")}
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(records)
    assert len(frame) == len(records) and frame["score"].notna().all()


def test_a_bare_recipe_is_timed_but_no_table_names_it(gpu: Device, tmp_path: Path) -> None:
    recipe = choices(problem(), gpu.profile, algorithm="short")[0].recipe(problem(), gpu.profile)
    records = tune(problem(), space=[recipe], device=gpu, budget=3, table=tmp_path / "t.json")
    own = [record for record in records if record.stage == "own"]
    assert own and own[0].status == "timed" and own[0].choice is None and own[0].algorithm == "short"
    for row in tuning.load(tmp_path / "t.json").rows:
        assert row.choice["algorithm"] == "tiled"


@pytest.mark.parametrize(
    ("find", "put", "status", "told"),
    [
        ("dq_{{ r }}_{{ c }} * factor", "-dq_{{ r }}_{{ c }} * factor", "wrong", "FAIL: d_q"),
        ("fn attention_dq(", "fn attention_dq(what", "failed", ""),
    ],
    ids=["wrong", "broken"],
)
def test_a_wrong_kernel_is_not_timed(gpu: Device, tmp_path: Path, find: str, put: str, status: str, told: str) -> None:
    loader: Any = environment().loader
    text = loader.get_source(environment(), AttentionDq.template)[0]
    assert find in text
    path = tmp_path / "dq.wgsl.j2"
    path.write_text(text.replace(find, put), encoding="utf-8")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class WrongDq(AttentionDq):
        kernel: ClassVar[str] = f"{status}_dq"
        template: ClassVar[str] = str(path)

        @property
        def entry_point(self) -> str:
            return "attention_dq"

    default = choices(problem(), gpu.profile)[0]
    scores, dkdv, dq = default.kernels
    mine = replace(default, kernels=(scores, dkdv, WrongDq(**dq.params)))  # type: ignore[arg-type]
    records = tune(problem(), space=[mine], device=gpu, budget=3)
    own = [record for record in records if record.stage == "own"]
    assert [record.status for record in own] == [status] and told in own[0].reason and own[0].seconds is None
    assert records[-1].label == str(default)


@pytest.mark.parametrize(
    "of",
    [
        problem(5000, mask=Mask.window(1000, 0)),
        problem(5000, kv_len=6000, heads=32, kv_heads=4, softcap=True, alibi=True, given="delta"),
        problem(6000, kv_len=5000, mask=Mask.prefix(4000), batch=3, kv_lengths=True, accumulate=True),
        problem(5000, mask=Mask.documents() & Mask.window(300, 0)),
    ],
    ids=str,
)
def test_twins_are_small_and_of_the_same_kind(of: Problem, gpu: Device) -> None:
    small = twin_of(of)
    assert max(small.q_len, small.kv_len) < 500 and small.heads <= 4 and small.interval.kind == of.interval.kind
    assert (small.q_len < small.kv_len, small.q_len > small.kv_len) == (of.q_len < of.kv_len, of.q_len > of.kv_len)
    twin = Twin(gpu, of)
    choice = choices(of, gpu.profile)[0].suited(twin.problem)
    verdict = twin.judge(choice.recipe(twin.problem, gpu.profile))
    assert verdict.ok, verdict


def test_vouching_leaves_the_checks_out(gpu: Device) -> None:
    of = problem()
    bench = Workbench(UncheckedDevice(gpu), timed_sample(of))
    choice = choices(of, gpu.profile)[0]
    assert bench.prepare("it", choice.recipe(of, gpu.profile)).unchecked
    assert not Workbench(gpu, timed_sample(of)).prepare("it", choice.recipe(of, gpu.profile)).unchecked


def test_presets_are_problems() -> None:
    assert list(PRESETS) == ["gpt-small", "llama-1b", "llama-8b", "bert", "long-context"]
    for name, problems in PRESETS.items():
        assert len({tuning.Key.of(of) for of in problems}) == len(problems), name
        assert all(choices(of, PROFILES["workgroup-48k"]) for of in problems), name


def test_the_example_of_a_kernel_of_ones_own() -> None:
    skip_without("wgpu")
    example = Path(__file__).resolve().parents[1] / "examples" / "own_kernel.py"
    command = [sys.executable, str(example), "--seconds", "3", "--seq", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    tried = [line for line in done.stdout.splitlines() if line.startswith("own ") and " tiled: " in line]
    assert tried and not [line for line in tried if line.split()[1] != "timed" or "direct_dq" not in line]
    assert "tuned on" in done.stdout


# Killed, interrupted, resumed


def started(table: Path, *more: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "--table", str(table), "--budget", "60", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], log: Path, lines: int) -> None:
    end = time.monotonic() + 60
    while not (log.exists() and log.read_bytes().count(b'{"fingerprint"') >= lines):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_kill_loses_one_measurement_at_most_and_resume_goes_on(tmp_path: Path, gpu: Device) -> None:
    table, log = tmp_path / "tuned.json", tmp_path / "tuned.log.jsonl"
    for number, count in enumerate((2, 5)):  # at any moment
        process = started(table, *(["--resume"] if number else []))
        try:
            wait_for(process, log, count)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        begun = log.read_bytes().count(b'{"begun"')
        kept = tune_log.read(log)
        assert len(kept) >= count - 1 and len(kept) >= begun - 1 - number
        assert tuning.load(table).rows, "a table that can be read, with what was known"
        assert {p.suffix for p in tmp_path.iterdir() if not p.name.startswith(".")} == {".json", ".jsonl"}
    before = {(made.label, made.rounds, made.date) for made in kept}
    tuner = Tuner([problem(), problem(200)], gpu, budget=2, log=log, table=table, resume=True)
    tuner.run()
    again = {(made.label, made.rounds, made.date) for made in tuner.measurements}
    assert before & again, "taken from the log and not measured again"


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to others")
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    skip_without("wgpu")
    table = tmp_path / "tuned.json"
    process = started(table, "--json")
    wait_for(process, tmp_path / "tuned.log.jsonl", 3)  # the last of them may be in the log and not yet in the report
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    report = json.loads(out)
    assert report["interrupted"] and len(report["measurements"]) >= 2
    assert tuning.load(table).rows


# The command


def test_the_command_shows_merges_and_draws(tuned: tuple[Tuner, Path], tmp_path: Path, capsys: Out) -> None:
    _, path = tuned
    merged = tmp_path / "all.json"
    assert main(["tune", "--merge", str(path), str(path), "--table", str(merged), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    text = re.sub(r'"layout": "|"attention_dq_', r"\g<0>none", merged.read_text(), count=1)
    merged.write_text(text)
    assert main(["tune", "--show", "--table", str(merged)]) == 1
    assert "ignored: " in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    log = path.with_name("log.jsonl").read_bytes()
    merged.with_suffix(".log.jsonl").write_bytes(log)
    picture = tmp_path / "tuned.png"
    main(["tune", "--show", "--table", str(merged), "--plot", str(picture)])
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_the_command_reports(gpu: Device, tmp_path: Path, capsys: Out) -> None:
    table = tmp_path / "tuned.json"
    arguments = ["tune", "--backend", "wgpu", f"--shape={SHAPES[0]}", "--budget", "0.5", "--table", str(table)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "default" in printed and "speed-up" in printed and str(table) in printed
    assert main([*arguments, "--json", "--resume"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["problems"][0]["best"]["variants"]
    assert {f.name for f in dataclasses.fields(Measurement)} == set(report["measurements"][0])


def test_a_picture_has_every_parameter_that_was_varied(tmp_path: Path) -> None:
    """Kernels and parameters come from the records: one that is new is drawn without a word about it anywhere."""
    pytest.importorskip("matplotlib")
    varied = {"dq.rows": (32, 64), "woven.threads": (8, 16), "woven.folded": (False, True), "budget": (1 << 20, 1 << 22)}
    records = [
        replace(measurement(), params={"dq.cols": 7, **{name: pair[i] for name, pair in varied.items()}}, score=1.0 + i)
        for i in (0, 1)
    ]
    other = replace(measurement(), problem="y", params={"main.wg": 64}, score=0.5)
    draw_tuning(tmp_path / "a.svg", [*records, other], "new")
    drawn = (tmp_path / "a.svg").read_text()
    labels = ["dq", "woven", "rows 32", "rows 64", "threads 8", "folded true", "budget 1 Mi", "budget 4 Mi"]
    assert [label for label in labels if f"{label} -->" not in drawn] == []
    assert "cols 7" not in drawn and "wg 64" not in drawn  # always the same
    draw_tuning(tmp_path / "b.svg", [], "none")
    with pytest.raises(wa.ArgumentError, match="--plot"):
        draw_tuning(tmp_path / "no" / "a.svg", [], "nowhere")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gpt-huge"], "PRESET: got 'gpt-huge'"),
        (["--budget", "0"], "budget: got 0"),
        (["--budget", "nan"], "budget: got nan"),
        (["--shape", "1,2"], "--shape"),
        (["--plot", "it.txt"], "--plot"),
        (["--merge", "none.json"], "--merge: got none.json"),
    ],
)
def test_wrong_use(arguments: list[str], told: str, tmp_path: Path, capsys: Out) -> None:
    skip_without("wgpu")
    assert main(["tune", *arguments, "--table", str(tmp_path / "t.json")]) == 2
    assert told in capsys.readouterr().err
    assert main(["tune"]) == 2  # tuning is off in these tests, so there is no table to write
    assert "--table" in capsys.readouterr().err


def test_a_file_that_is_no_table_is_not_overwritten(tmp_path: Path, capsys: Out) -> None:
    skip_without("wgpu")
    path = tmp_path / "notes.json"
    path.write_text("mine")
    assert main(["tune", f"--shape={SHAPES[0]}", "--table", str(path)]) == 1
    assert "is not a tuning table" in capsys.readouterr().err and path.read_text() == "mine"
