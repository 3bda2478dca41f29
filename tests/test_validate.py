"""The matrix: each breakage is caught by the compiler or the execution that should catch it, and a worker that crashes or
hangs is a line in the report. Columns whose compiler or driver is not there are skipped with the reason that validate gives."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from support.breakage import BREAKAGES
from wgsl_attention.__main__ import main
from wgsl_attention.cli import validate
from wgsl_attention.errors import ArgumentError
from wgsl_attention.kernels.facts import Binding, RenderedVariant
from wgsl_attention.rendering import manifest
from wgsl_attention.selection import catalog
from wgsl_attention.validation import coverage, matrix, toolchains
from wgsl_attention.validation.report import DEFAULT_PROFILES, Report
from wgsl_attention.validation.toolchains import Column

CAUSAL = "attention_backward_wg256_d64_causal"
COMPILING = [("naga", "llvmpipe"), ("tint", "none")]


def column(compiler: str, driver: str) -> Column:
    (found,) = toolchains.columns([compiler], [driver])
    if found.missing:
        pytest.skip(f"{found.name}: {found.missing}")
    return found


def validated(variants: list[RenderedVariant], where: Column, *, execute: bool = False, timeout: float = 60.0) -> Report:
    names = [variant.name for variant in variants]
    runs = coverage.runs(names, brief=True)[0] if execute else ()
    report = matrix.validate(variants, [where], runs=runs, brief_runs=runs, executed=execute, timeout=timeout)
    if where.name in report.missing:
        pytest.skip(f"{where.name}: {report.missing[where.name]}")
    return report


@pytest.mark.parametrize(("compiler", "driver"), COMPILING)
@pytest.mark.parametrize("name", BREAKAGES)
def test_each_breakage_is_refused_by_the_compilers_that_look(name: str, compiler: str, driver: str) -> None:
    breakage, where = BREAKAGES[name], column(compiler, driver)
    if name == "too_much_workgroup_memory" and compiler == "naga":
        pytest.skip("naga accepts it, and the driver may then do anything; test_portability asks for the pipeline alone")
    outcome = validated([breakage.render()], where).rows[breakage.variant].compiles[where.name]
    assert outcome.status == ("refused" if compiler in breakage.refused_by else "pipeline"), outcome.message


@pytest.mark.parametrize("name", [name for name, breakage in BREAKAGES.items() if breakage.wrong])
def test_gradients_of_a_wrong_template_are_caught_by_executing_it(name: str) -> None:
    breakage, where = BREAKAGES[name], column("naga", "llvmpipe")
    report = validated([breakage.render()], where, execute=True)
    outcomes = report.rows[breakage.variant].runs[where.name]
    assert outcomes
    for outcome in outcomes:
        assert outcome.status == "fail" and outcome.multiple is not None and outcome.multiple > 10, outcome.message
    assert any("run" in fault and "fail" in fault for fault in report.faults())


def test_every_breakage_is_caught_by_something() -> None:
    for breakage in BREAKAGES.values():
        assert breakage.static or breakage.refused_by or breakage.wrong, breakage.name


def test_a_refusal_gives_the_line() -> None:
    where = column("tint", "none")
    rendered = BREAKAGES["literal_past_f32"].render()
    outcome = validated([rendered], where).rows[rendered.name].compiles[where.name]
    assert outcome.line is not None and "3.4028235e38" in rendered.wgsl.splitlines()[outcome.line - 1]


def test_a_listed_ninth_storage_buffer_does_not_fit_the_default_limits() -> None:
    where, right = column("tint", "none"), manifest.load(CAUSAL)
    extra = Binding(binding=20, name="extra", type="array<f32>", access="read", role="extra")
    nine = dataclasses.replace(BREAKAGES["ninth_storage_buffer"].render(), bindings=(*right.bindings, extra))
    row = validated([nine], where).rows[CAUSAL]
    assert [finding.message for finding in row.findings] == ["extra"] and not row.fits_default
    assert row.compiles[where.name].status == "module" and "needs 9 storage buffers" in row.compiles[where.name].message


def test_every_variant_passes_tint_without_a_driver() -> None:
    """Which looks for barriers that not every thread reaches, as naga does not."""
    where = column("tint", "none")
    report = validated([manifest.load(name) for name in manifest.entries()], where)
    assert report.faults() == []
    for row in report.rows.values():
        assert row.compiles[where.name].status == ("pipeline" if row.fits_default else "module")


@pytest.mark.parametrize("where", toolchains.columns(), ids=lambda c: c.name)
def test_right_variants_pass_on_every_column(where: Column) -> None:
    if where.missing:
        pytest.skip(where.missing)
    names = ["attention_backward_wg128_dmax256_causal", "rope_k_backward_wg64"]
    report = validated([manifest.load(name) for name in names], where, execute=where.executes, timeout=120)
    assert report.faults() == []
    for row in report.rows.values():
        assert row.compiles[where.name].status == "pipeline"
        assert row.right_on == ([where.name] if where.executes else [])


FAKE = """
import json, sys, time, os
for line in sys.stdin:
    request = json.loads(line)
    answer = {"ok": True, "device": "fake", "driver": "", "kind": "pipeline", "seconds": 0.1}
    if request.get("variant", {"name": ""})["name"].startswith("attention_backward_wg128_dmax256_causal"):
        BEHAVIOUR
    print(json.dumps(answer), flush=True)
"""


def fake(behaviour: str) -> Column:
    return Column(compiler="naga", driver="gpu", command=(sys.executable, "-c", FAKE.replace("BEHAVIOUR", behaviour)))


@pytest.mark.parametrize(
    ("behaviour", "status", "message"),
    [
        ("os._exit(7)", "crashed", "exit status 7"),
        ("os.kill(os.getpid(), 11)", "crashed", "signal 11"),
        ("print('the reason', file=sys.stderr); os._exit(1)", "crashed", "the reason"),
        ("time.sleep(60)", "hung", "no answer in 1 s"),
    ],
)
def test_a_worker_that_dies_is_a_line_and_not_the_end(behaviour: str, status: str, message: str) -> None:
    names = [name for name in manifest.entries() if name.startswith("attention_backward_wg128")]
    report = matrix.validate([manifest.load(name) for name in names], [fake(behaviour)], timeout=1.0)
    found = {name: row.compiles["naga on gpu"] for name, row in report.rows.items()}
    assert [name for name, outcome in found.items() if outcome.status != "pipeline"] == [
        "attention_backward_wg128_dmax256_causal"
    ]
    dead = found["attention_backward_wg128_dmax256_causal"]
    assert dead.status == status and message in dead.message
    assert len(report.faults()) == 1


def test_a_crash_is_tried_again_in_a_process_of_its_own(tmp_path: Path) -> None:
    """What an earlier variant left behind is not blamed on this one."""
    mark = tmp_path / "crashed"
    behaviour = f"p = {str(mark)!r}; first = not os.path.exists(p); open(p, 'w').close(); first and os._exit(1)"
    names = [name for name in manifest.entries() if name.startswith("attention_backward_wg128")]
    names.remove("attention_backward_wg128_dmax256_causal")
    names.insert(1, "attention_backward_wg128_dmax256_causal")
    report = matrix.validate([manifest.load(name) for name in names], [fake(behaviour)], timeout=10.0)
    assert mark.exists() and report.faults() == []


def test_no_compiler_at_all_is_a_fault() -> None:
    broken = Column(compiler="tint", driver="swiftshader", missing="apt install chromium")
    report = matrix.validate([manifest.load(CAUSAL)], [broken])
    assert report.missing == {"tint on swiftshader": "apt install chromium"}
    assert report.faults() == ["no compiler is there to validate with"]


@pytest.mark.parametrize("brief", [False, True])
def test_every_variant_has_a_run_for_every_mask_it_serves(brief: bool) -> None:
    runs, missing = coverage.runs(catalog.checked_in(), brief=brief)
    assert missing == {}
    alone = [coverage.runs([name], brief=brief)[0] for name in catalog.checked_in()]
    assert all(
        found and {run.proves[0][0] for run in found} == {name} for name, found in zip(catalog.checked_in(), alone, strict=True)
    )
    proven = {pair for run in runs for pair in run.proves}
    for name, variant in catalog.checked_in().items():
        for mode in variant.serves.masks or ("",):
            assert (name, mode) in proven
    for run in runs:
        assert run.proves[0][0] in catalog.checked_in() and run.proves[0][0] in {v.name for v in run.recipe.variants}
        assert run.recipe.problem.sizes["batch"] > 1 and run.recipe.problem.sizes["heads"] > 1
        assert run.recipe.algorithm == "rope" or run.recipe.problem.group > 1


def test_a_variant_that_no_problem_reaches_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "ALGORITHMS", {})
    coverage.recipes.cache_clear()
    try:
        runs, missing = coverage.runs([CAUSAL])
    finally:
        coverage.recipes.cache_clear()
    assert runs == () and CAUSAL in missing
    report = matrix.validate([manifest.load(CAUSAL)], [fake("pass")], not_run=missing, executed=True)
    assert any("not run" in fault for fault in report.faults())


def test_every_mask_has_a_variant_within_the_default_limits() -> None:
    entries = manifest.entries().values()
    modes = {mode for entry in entries for mode in entry["serves"]["masks"]}
    fitting = {mode for entry in entries if entry["profile"] in DEFAULT_PROFILES for mode in entry["serves"]["masks"]}
    assert fitting == modes >= {"full", "causal", "documents", "window", "prefix"}


def test_quick_takes_one_of_each_kind() -> None:
    chosen, everything = validate.choose([], quick=True), validate.choose([], quick=False)
    kinds = [(manifest.entries()[name]["kernel"], manifest.entries()[name]["params"].get("mask")) for name in chosen]
    assert len(kinds) == len(set(kinds)) < len(everything)
    assert {kind for kind, _ in kinds} == {entry["kernel"] for entry in manifest.entries().values()}


def test_patterns() -> None:
    assert validate.choose([CAUSAL], quick=False) == [CAUSAL]
    assert validate.choose(["rope_q*", "rope_k"], quick=False) == [n for n in manifest.entries() if n.startswith("rope")]
    with pytest.raises(ArgumentError, match="no_such"):
        validate.choose(["rope", "no_such"], quick=False)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["--only", "no_such_variant"], "--only: got 'no_such_variant'"),
        (["--static", "--jobs", "0"], "--jobs: got 0"),
        (["--static", "--timeout", "nan"], "--timeout: got nan"),
    ):
        assert main(["validate", *arguments]) == 2
        assert capsys.readouterr().err.startswith(f"wgsl-attention validate: {told}")
    assert main(["validate", "--static"]) == 0
    out = capsys.readouterr().out
    assert CAUSAL in out and "no faults in" in out and "\x1b" not in out
    column("tint", "none")
    assert main(["validate", "--compiler", "tint", "--driver", "none", "--only", CAUSAL, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["variants"][CAUSAL]["compiles"]["tint, no driver"]["status"] == "pipeline"
    assert report["variants"][CAUSAL]["workgroup_bytes"] == {"declared": 8704, "counted": 8704}


def test_unknown_columns_are_refused_and_missing_ones_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match="naga, tint"):
        toolchains.columns(["fxc"])
    with pytest.raises(ArgumentError, match="llvmpipe"):
        toolchains.columns([], ["opengl"])
    monkeypatch.setenv("WGSL_ATTENTION_SWIFTSHADER", str(tmp_path / "missing.json"))
    (found,) = toolchains.columns(["tint"], ["swiftshader"])
    assert "apt install chromium" in found.missing
    assert toolchains.columns(["naga"], ["none"]) == []
    named = tmp_path / "icd.json"
    named.touch()
    monkeypatch.setenv("WGSL_ATTENTION_SWIFTSHADER", str(named))
    (found,) = toolchains.columns(["naga"], ["swiftshader"])
    assert found.environment["VK_DRIVER_FILES"] == str(named)


def test_a_driver_that_is_not_there_is_left_out() -> None:
    nothing = Column(
        compiler="naga",
        driver="llvmpipe",
        command=(sys.executable, "-m", "wgsl_attention.validation.worker", "wgpu", "llvmpipe", "default"),
        environment={"VK_DRIVER_FILES": os.devnull, "VK_ADD_DRIVER_FILES": "", "__EGL_VENDOR_LIBRARY_FILENAMES": os.devnull},
    )
    report = matrix.validate([manifest.load(CAUSAL)], [nothing])
    assert report.missing["naga on llvmpipe"] and report.devices == {}
