"""The command line: every command in process, its exit status, its JSON, and what it says to somebody who is wrong."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wgsl_attention
from conftest import skip_without
from rich.console import Console
from wgsl_attention import __version__, cli, generated
from wgsl_attention.__main__ import main
from wgsl_attention.cli import generate, gradcheck
from wgsl_attention.cli.common import print_table, table
from wgsl_attention.gpu import doctor
from wgsl_attention.kernels.families import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
SHAPE = ["--heads", "4", "--kv-heads", "2", "--head-dim", "64"]

Out = pytest.CaptureFixture[str]


def run_json(capsys: Out, *arguments: str, status: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_no_command_and_the_version(capsys: Out) -> None:
    assert main([]) == 2
    assert "gradcheck" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_command_is_a_module(command: str) -> None:
    module = cli.load(command)
    assert module.__name__ == f"wgsl_attention.cli.{command}"  # type: ignore[attr-defined]
    assert len(module.SUMMARY) <= 80 and module.SUMMARY[0].islower() and not module.SUMMARY.endswith(".")
    assert list(inspect.signature(module.add_arguments).parameters) == ["parser"]
    assert list(inspect.signature(module.run).parameters) == ["args"]


def test_every_module_that_is_a_command_is_listed() -> None:
    """A new verb is a module and its name in ``COMMANDS``; the other modules have nothing that a verb has."""
    modules = {path.stem: f"wgsl_attention.cli.{path.stem}" for path in Path(cli.__file__).parent.glob("[!_]*.py")}
    marks = ("SUMMARY", "add_arguments", "run")
    verbs = {name for name, path in modules.items() if any(hasattr(importlib.import_module(path), mark) for mark in marks)}
    assert verbs == set(cli.COMMANDS)


def test_the_overview_has_every_command(capsys: Out) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in cli.COMMANDS:
        assert any(line.split() == [command, *cli.load(command).SUMMARY.split()] for line in lines), command


def test_a_command_imports_no_other_and_nothing_slow() -> None:
    program = (
        "import sys; from wgsl_attention import cli; from wgsl_attention.__main__ import main; main(sys.argv[1:]);"
        "print(*(m.removeprefix('wgsl_attention.cli.') for m in sys.modules if m.startswith('wgsl_attention.cli.')));"
        "print(*({m.partition('.')[0] for m in sys.modules} & {'jinja2', 'wgpu', 'wgpudawn', 'matplotlib', 'torch', 'pandas'}))"
    )
    for arguments, loaded in ((["list", "--json"], {"list"}), (["--help"], set(cli.COMMANDS))):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        *_, modules, slow = done.stdout.splitlines()
        assert set(modules.split()) & set(cli.COMMANDS) == loaded and not slow


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help(command: str, capsys: Out) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"wgsl-attention {command}" in out and "--json" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["bogus"], "bogus"),
        (["--bogus"], "bogus"),
        (["list", "--bogus"], "See wgsl-attention list --help"),
        (["list", "--mask", "diagonal"], "diagonal"),
        (["list", "--kernel", "attention"], "attention"),
        (["show"], "NAME"),
        (["show", "attention_backward_wg256_d64"], "attention_backward_wg256_d64_causal"),
        (["show", "attention_backward", "--set", "wg=64", "--set", "mask=full"], "head_dim"),
        (["show", "attention_backward", "--set", "wg"], "PARAM=VALUE"),
        (["show", "attention_backward", "--set", "size=1"], "seg_uniform"),
        (["show", "attention_backward", "--set", "wg=many"], "whole number"),
        (["show", "attention_backward", "--set", "overwrite=1"], "true or false"),
        (["show", "attention_backward", "--set", "wg=7", "--set", "head_dim=8", "--set", "mask=full"], "one of 32, 64"),
        (["show", "rope_q_backward_wg64", "--set", "wg=64"], "family"),
        (["explain", *SHAPE, "--mask", "full"], "--q-len"),
        (["explain", *SHAPE, "--q-len", "64"], "--mask"),
        (["explain", *SHAPE, "--q-len", "0", "--mask", "full"], "--q-len: got 0"),
        (["explain", *SHAPE, "--q-len", "64", "--window", "1"], "--window"),
        (["explain", *SHAPE, "--q-len", "64", "--window", "-3", "0"], "left"),
        (["explain", *SHAPE, "--q-len", "64", "--window", "a", "0"], "--window: got 'a'; want a number or none"),
        (["generate", "--check", "--out", __file__], "--out"),
        (["explain", *SHAPE, "--q-len", "64", "--mask", "full", "--profile", "toaster"], "webgpu-compat"),
        (
            ["explain", *SHAPE, "--q-len", "64", "--mask", "full", "--profile", "webgpu-compat", "--backend", "wgpu"],
            "--profile",
        ),
        (["explain", *SHAPE, "--q-len", "64", "--mask", "full", "--profile", "webgpu-compat", "--algorithm", "x"], "streaming"),
        (["gradcheck", "--data", "nowhere.npz"], "nowhere.npz"),
        (["gradcheck", "--data", "nowhere.npz", "--seq", "3"], "several"),
        (["gradcheck", "--synthetic", "--mask", "full"], "--synthetic"),
    ],
)
def test_wrong_use(arguments: list[str], named: str, capsys: Out) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert named in shown.err and "Traceback" not in shown.err and not shown.out


def test_list(capsys: Out) -> None:
    everything = run_json(capsys, "list")
    assert [entry["name"] for entry in everything] == list(generated.NAMES)
    rope = run_json(capsys, "list", "--kernel", "rope_q_backward")
    assert {entry["kernel"] for entry in rope} == {"rope_q_backward"}
    prefix = run_json(capsys, "list", "--mask", "prefix")
    assert prefix and all("prefix" in entry["serves"]["masks"] for entry in prefix)
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in generated.NAMES) and f"{len(generated.NAMES)} kernels" in out
    assert "\x1b" not in out and all(family in out for family in FAMILIES)


def test_show_a_checked_in_kernel(capsys: Out) -> None:
    name = "attention_backward_wg256_d64_causal"
    wgsl = generated.load(name).wgsl
    assert main(["show", name, "--wgsl"]) == 0
    assert capsys.readouterr().out == wgsl
    assert main(["show", name]) == 0
    out = capsys.readouterr().out
    assert wgsl in out and "q_len, heads, batch workgroups" in out and "array<atomic<u32>>" in out
    shown = run_json(capsys, "show", name)
    assert (shown["name"], shown["wgsl"], shown["file"]) == (name, wgsl, f"wgsl/{name}.wgsl")


def test_show_renders_on_demand(capsys: Out) -> None:
    arguments = ["show", "attention_backward", "--set", "wg=64", "--set", "head_dim=72", "--set", "mask=window"]
    shown = run_json(capsys, *arguments, "--set", "overwrite=true")
    assert shown["name"] == "attention_backward_wg64_d72_window_overwrite" and shown["file"] is None
    assert "@workgroup_size(64" in shown["wgsl"]
    assert main(arguments) == 0
    assert "no, rendered on demand" in capsys.readouterr().out


@pytest.mark.parametrize("family", FAMILIES)
def test_show_a_family(family: str, capsys: Out) -> None:
    assert main(["show", family]) == 0
    assert "needed" in capsys.readouterr().out
    shown = run_json(capsys, "show", family)
    assert shown["kernel"] == family and shown["checked_in"]
    assert {"wg", "rows"} & {parameter["name"] for parameter in shown["parameters"]}


def test_explain_without_a_gpu(capsys: Out) -> None:
    arguments = ["explain", "--q-len", "512", *SHAPE, "--mask", "causal", "--profile", "webgpu-default"]
    report = run_json(capsys, *arguments)
    assert report["served"] and report["candidates"][0]["algorithm"] == "tiled"
    short = next(candidate for candidate in report["candidates"] if candidate["algorithm"] == "short")
    assert short["steps"][0]["workgroups"] == [512, 4, 1]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "chosen: " in out and "length 512" in out
    only = run_json(capsys, *arguments, "--algorithm", "streaming")
    assert {candidate["algorithm"] for candidate in only["candidates"]} == {"streaming"}


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (["--mask", "full"], "full"),
        (["--window", "512", "0"], "window(512, 0)"),
        (["--window", "none", "3", "--align", "top-left"], "window(None, 3, top-left)"),
        (["--window", "-1", "0"], "causal"),
        (["--prefix", "9"], "prefix(9)"),
        (["--mask", "documents"], "documents"),
        (["--mask", "causal", "--documents"], "documents & causal"),
        (["--documents", "--window", "8", "0"], "documents & window(8, 0)"),
    ],
)
def test_masks(mask: list[str], shown: str, capsys: Out) -> None:
    report = run_json(capsys, "explain", "--seq", "64", *SHAPE, "--profile", "webgpu-default", *mask)
    assert report["problem"].endswith(f"head_dim 64, {shown}")


def test_explain_what_nothing_serves(capsys: Out) -> None:
    arguments = ["explain", "--q-len", str(1 << 22), *SHAPE, "--mask", "full", "--profile", "webgpu-compat"]
    report = run_json(capsys, *arguments, status=1)
    assert not report["served"] and report["refusals"]
    assert main(arguments) == 1
    assert "nothing serves it" in capsys.readouterr().out


def test_explain_on_the_machines_gpu(capsys: Out) -> None:
    skip_without("wgpu")
    report = run_json(capsys, "explain", "--seq", "64", *SHAPE, "--mask", "causal", "--backend", "wgpu")
    assert report["served"] and " via " in report["profile"]


def test_no_adapter_is_one_clear_message(capsys: Out) -> None:
    skip_without("wgpu")
    assert main(["explain", "--seq", "64", *SHAPE, "--mask", "causal", "--adapter", "no such thing"]) == 1
    shown = capsys.readouterr()
    assert "wgsl-attention explain: no adapter to open" in shown.err and "Traceback" not in shown.err


def test_doctor(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    report = doctor.doctor()
    found = any(backend["adapters"] for backend in report["backends"])
    assert run_json(capsys, "doctor", status=0 if found else 1).keys() == {"backends", "advice"}
    assert main(["doctor"]) == (0 if found else 1)
    out = capsys.readouterr().out
    assert all(adapter["description"] in out for backend in report["backends"] for adapter in backend["adapters"])
    nothing = {"name": "wgpu", "package": "wgpu", "installed": True, "version": "1", "error": "it is broken", "adapters": []}
    monkeypatch.setattr(doctor, "doctor", lambda: {"backends": [nothing], "advice": ["mend it"]})
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "it is broken" in out and "no adapter" in out and "mend it" in out


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of generated/ that may be spoilt."""
    return Path(shutil.copytree(ROOT / "generated", tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__")))


def test_generated_is_up_to_date(capsys: Out) -> None:
    assert main(["generate", "--check"]) == 0
    assert "is what the templates give" in capsys.readouterr().out


def test_generate_check_finds_everything(copy: Path, capsys: Out) -> None:
    assert main(["generate", "--check", "--out", str(copy)]) == 0
    changed, missing, *_ = sorted((copy / "wgsl").iterdir())
    changed.write_text(changed.read_text(encoding="utf-8").replace("a", "b"), encoding="utf-8")
    missing.unlink()
    orphan = copy / "wgsl" / "orphan.wgsl"
    orphan.write_text("// nobody's\n")
    report = run_json(capsys, "generate", "--check", "--out", str(copy), status=1)
    kinds = {item["path"]: item["kind"] for item in report["drift"]}
    assert kinds == {f"wgsl/{changed.name}": "changed", f"wgsl/{missing.name}": "missing", "wgsl/orphan.wgsl": "orphaned"}
    whole = next(item["diff"] for item in report["drift"] if item["kind"] == "changed").splitlines()
    assert main(["generate", "--check", "--out", str(copy)]) == 1
    out = capsys.readouterr().out
    assert all(path in out for path in kinds) and f"wgsl-attention generate --out {copy}" in out
    assert whole[generate.MAX_DIFF_LINES - 1] in out and f"and {len(whole) - generate.MAX_DIFF_LINES} more lines" in out
    assert orphan.exists(), "--check writes nothing"
    mended = run_json(capsys, "generate", "--out", str(copy))
    assert sorted(mended["changed"]) == sorted(kinds)
    assert main(["generate", "--check", "--out", str(copy)]) == 0


def test_the_checkouts_own_drift_is_mended_by_make(copy: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy.rename(copy.parent / "generated") / "manifest.json").write_text("{}\n")
    monkeypatch.setattr(generate, "checkout", lambda: copy.parent)
    assert main(["generate", "--check"]) == 1
    assert "make generate" in capsys.readouterr().out
    assert main(["generate"]) == 0
    assert "wrote   manifest.json" in capsys.readouterr().out


def test_generate_gives_the_same_bytes_twice(tmp_path: Path, capsys: Out) -> None:
    folders = [tmp_path / "one", tmp_path / "two" / "deep"]
    for folder in folders:
        assert main(["generate", "--out", str(folder)]) == 0
        assert "files" in capsys.readouterr().out
    one, two = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders)
    assert one == two and len(one) > 50
    checked_in = {p.relative_to(ROOT / "generated"): p.read_bytes() for p in (ROOT / "generated").rglob("*") if p.is_file()}
    assert {path: text for path, text in checked_in.items() if "__pycache__" not in path.parts} == one
    assert main(["generate", "--out", str(folders[0])]) == 0
    assert "none changed" in capsys.readouterr().out


def test_generate_from_an_installed_package(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "checkout", lambda: None)
    for arguments in ([], ["--check"], ["--out", str(Path(wgsl_attention.__file__).parent / "generated")]):
        assert main(["generate", *arguments]) == 2
        assert "--out" in capsys.readouterr().err
    assert main(["generate", "--out", str(tmp_path / "fresh")]) == 0


def test_generate_spares_a_folder_that_is_not_its_own(tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["generate", "--out", str(tmp_path)]) == 2
    assert "thesis.tex" in capsys.readouterr().err and len(list(tmp_path.iterdir())) == 1
    assert main(["generate", "--out", str(tmp_path / "thesis.tex")]) == 2
    blocked = tmp_path / "thesis.tex" / "below"
    assert main(["generate", "--out", str(blocked)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_gradcheck_of_the_real_step(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("wgpu")
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["gradcheck", "--backend", "wgpu"]) == 0
    out = capsys.readouterr().out
    assert "real step" in out and "autograd" in out and "Nearer to float64" in out and "All " in out
    assert "attention_backward_short_wg256_maxseq512_d64_documents" in out
    assert max(map(len, out.splitlines())) <= 100


def test_gradcheck_of_a_shape(capsys: Out) -> None:
    skip_without("wgpu")
    shape = ["--seq", "33", "--heads", "2", "--head-dim", "16", "--window", "4", "0"]
    report = run_json(capsys, "gradcheck", "--backend", "wgpu", *shape)
    assert report["ok"] and report["backend"] == "wgpu" and report["adapter"]
    statuses = {(check["algorithm"], check["status"]) for check in report["checks"]}
    assert {("short", "refused"), ("streaming", "pass"), ("NumPy", "baseline"), ("rope", "pass")} <= statuses
    streaming = next(check for check in report["checks"] if check["algorithm"] == "streaming")
    assert 0 < streaming["gradients"]["d_q"]["multiple"] <= 1
    assert main(["gradcheck", "--backend", "wgpu", *shape]) == 0
    assert "short does not serve this" in capsys.readouterr().out


def test_gradcheck_that_fails(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("wgpu")
    data = {name: np.ones((8, 2, 4)) for name in ("q", "k", "v", "do")}
    # An lse of another scale: what comes out is finite, and wrong.
    np.savez(tmp_path / "wrong.npz", **data, lse=np.full((8, 2), 9.0))
    arguments = ["gradcheck", "--backend", "wgpu", "--data", str(tmp_path / "wrong.npz"), "--mask", "causal"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out and "d_v" in out and "runs pass" in out
    report = run_json(capsys, *arguments, status=1)
    assert not report["ok"]
    assert main(["gradcheck", "--data", str(tmp_path / "wrong.npz")]) == 2  # no mask


def test_gradcheck_without_a_checkout_makes_its_own_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradcheck, "checkout", lambda: None)
    parsed: list[Any] = []
    monkeypatch.setattr(gradcheck, "_print_case", lambda *_: None)
    monkeypatch.setattr("wgsl_attention.validation.gradcheck.run_checks", lambda cases, **_: parsed.extend(cases) or [])
    skip_without("wgpu")
    main(["gradcheck", "--backend", "wgpu"])
    assert len(parsed) > 5 and "packed documents" in [case.name for case in parsed]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (60, ["kernel  what it does  time in ms", "matmul  multiplies       1.5e-07"]),
        (28, ["        what it      time in", "kernel  does              ms", "matmul  multiplies   1.5e-07"]),
        (20, ["kernel  what it does  time in ms", "matmul  multiplies       1.5e-07"]),
    ],
)
def test_a_table_keeps_its_words_whole(width: int, lines: list[str]) -> None:
    """Columns give way to the terminal's width, and where words would have to be broken, the lines run on."""
    out = Console(file=io.StringIO(), width=width)
    rows = table(out, "kernel", "what it does", ">time in ms")
    rows.add_row("matmul", "multiplies", "1.5e-07")
    print_table(out, rows)
    printed = [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert printed == lines


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m wgsl_attention list --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=os.environ)
    assert (done.stdout, done.stderr) == ("[\n", "")


ASCII = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "COLUMNS": "80"}


@pytest.mark.parametrize(
    "arguments",
    [["list", "--kernel", "rope_k_backward"], ["show", "attention_dq"], *([command, "--help"] for command in cli.COMMANDS)],
    ids=" ".join,
)
def test_a_terminal_that_lacks_the_signs(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "wgsl_attention", *arguments], capture_output=True, check=False, env=ASCII)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.isascii() and arguments[-1].encode() in done.stdout


def test_json_and_wgsl_lose_nothing_where_signs_are_lacking() -> None:
    name = "attention_backward_wg256_d64_causal"
    wgsl = generated.load(name).wgsl
    assert not wgsl.isascii()
    command = [sys.executable, "-m", "wgsl_attention", "show", name]
    shown = subprocess.run([*command, "--json"], capture_output=True, check=True, env=ASCII).stdout
    assert shown.isascii() and json.loads(shown)["wgsl"] == wgsl
    assert subprocess.run([*command, "--wgsl"], capture_output=True, check=True, env=ASCII).stdout.decode() == wgsl
