"""Tuning tables without a device: keys and their reach, fall-backs, merging, files, and what selection makes of a row."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import wgsl_attention as wa
from wgsl_attention import PROFILES, Choice, DeviceProfile, Mask, Problem, TuningError, VariantError
from wgsl_attention.algorithms import ALGORITHMS, tiled_layouts
from wgsl_attention.algorithms.tiled import Tiled
from wgsl_attention.algorithms.tiled_space import STAGES, with_scores
from wgsl_attention.kernels import families
from wgsl_attention.kernels.original_masks import MODES
from wgsl_attention.kernels.tiled_products import AttentionDq, AttentionScores
from wgsl_attention.kernels.variant import param
from wgsl_attention.problem.mask import Interval
from wgsl_attention.rendering import manifest
from wgsl_attention.selection import catalog
from wgsl_attention.selection import table_files as tuning_files
from wgsl_attention.selection import tables as tuning
from wgsl_attention.selection.ranking import choices, select
from wgsl_attention.selection.table_files import VARIABLE
from wgsl_attention.selection.tables import EMPTY, Key, Row, Table
from wgsl_attention.tuning.space import distance, entries

GPU = replace(
    PROFILES["workgroup-48k"],
    name="a gpu",
    backend="wgpu",
    vendor="acme",
    architecture="anvil",
    device="acme one",
    driver="1",
)


def problem(seq: int = 1024, kv: int = 0, **more: Any) -> Problem:
    shape = {"q_len": seq, "kv_len": kv or seq, "heads": 16, "kv_heads": 4, "head_dim": 64, "mask": Mask.causal()}
    return Problem(**{**shape, **more})


def tuned_choice(of: Problem | None = None, rows: int = 32) -> Choice:
    """A choice that selection would not make by itself."""
    of = of or problem()
    default = choices(of, GPU)[0]
    scores: Any = default.kernels[0]
    found = with_scores(default, replace(scores, rows=rows, cols=64, row_reg=4, col_reg=4), of, GPU)
    assert found is not None and found not in choices(of, GPU)
    return found


def row(of: Problem | None = None, choice: Choice | None = None, profile: DeviceProfile = GPU, **more: Any) -> Row:
    of = of or problem()
    plain: dict[str, Any] = {
        "device": profile.identity,
        "vendor": profile.vendor,
        "architecture": profile.architecture,
        "backend": profile.backend,
        "key": Key.of(of),
        "problem": str(of),
        "choice": (choice or tuned_choice(of)).as_json(),
        "seconds": 0.001,
        "default_seconds": 0.0015,
        "measured": {"package": "1", "driver": "1", "date": "2026-01-01T00:00:00+00:00", "unchecked": False},
    }
    return Row(**{**plain, **more})


def table(*rows: Row) -> Table:
    return Table(rows=rows)


# Keys


@pytest.mark.parametrize(("seq", "bucket"), [(1, 1), (2, 2), (3, 4), (1024, 1024), (1448, 1024), (1449, 2048), (2896, 2048)])
def test_sizes_are_rounded_in_log2(seq: int, bucket: int) -> None:
    assert dict(Key.of(problem(seq)).sizes) == {"q_len": bucket, "kv_len": bucket, "slots": 16}


@pytest.mark.parametrize(("seq", "served"), [(255, False), (256, True), (1000, True), (4096, True), (4097, False)])
def test_a_row_reaches_a_factor_of_four(seq: int, served: bool) -> None:
    assert (Key.of(problem(1024)).distance(problem(seq)) is not None) == served


def test_the_nearest_row_serves_a_length_between() -> None:
    both = table(row(problem(1024), problem="small"), row(problem(4096), problem="large"))
    for seq, nearest in ((1500, "small"), (2000, "small"), (2100, "large"), (9000, "large")):
        assert next(both.lookup(problem(seq), GPU))[0].problem == nearest


@pytest.mark.parametrize(
    "other",
    [
        problem(head_dim=80),
        problem(v_head_dim=32),
        problem(kv_heads=8),
        problem(mask=Mask.full()),
        problem(mask=Mask.window(100, 0)),
        problem(softcap=True),
        problem(alibi=True),
        problem(1024, 8192),
        problem(batch=8),
    ],
    ids=str,
)
def test_what_must_match(other: Problem) -> None:
    assert Key.of(problem()).distance(other) is None


@pytest.mark.parametrize(
    "other", [problem(given="o"), problem(batch=4), problem(accumulate=True), problem(kv_lengths=True)], ids=str
)
def test_what_need_not(other: Problem) -> None:
    assert Key.of(problem()).distance(other) is not None


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (Mask.full(), "full"),
        (Mask.causal(), "causal"),
        (Mask.window(2000, 0), "causal"),  # wider than the sequence
        (Mask.window(64, 0), "window"),
        (Mask.window(64, 64), "window"),
        (Mask.prefix(100), "prefix"),
        (Mask.documents(), "documents"),
        (Mask.documents(causal=False), "wholedocuments"),
        (Mask.documents() & Mask.window(64, 0), "documents+window"),
    ],
    ids=str,
)
def test_masks_by_kind(mask: Mask, kind: str) -> None:
    of = problem(mask=mask)
    assert of.interval.kind == kind
    assert ("window" in dict(Key.of(of).sizes)) == ("window" in kind)


def test_windows_are_sizes_too() -> None:
    key = Key.of(problem(mask=Mask.window(511, 0)))
    assert dict(key.sizes)["window"] == 512
    assert key.distance(problem(mask=Mask.window(300, 0))) is not None
    assert key.distance(problem(mask=Mask.window(100, 0))) is None


# Devices


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, "device"),
        ({"driver": "2"}, "device"),
        ({"device": "acme two"}, "architecture"),
        ({"device": "rtx", "architecture": "tongs"}, "vendor"),
        ({"device": "rtx", "architecture": ""}, "vendor"),
        ({"device": "radeon", "vendor": "amd"}, None),
        ({"backend": "dawn"}, None),
    ],
)
def test_rows_fall_back(change: dict[str, str], level: str | None) -> None:
    assert row().level(replace(GPU, **change)) == level


def test_a_row_for_any_device_comes_last() -> None:
    anywhere = row(device="", vendor="", architecture="", backend="", problem="any")
    for profile in (PROFILES["webgpu-default"], replace(GPU, vendor="amd", device="radeon")):
        assert anywhere.level(profile) == "default"
    vendors = row(device="acme three (wgpu)", architecture="tongs", problem="vendor")
    order = [r.problem for r, _ in table(anywhere, vendors, row(problem="own")).lookup(problem(), GPU)]
    assert order == ["own", "vendor", "any"]


def test_a_closer_device_goes_before_a_nearer_size() -> None:
    other = row(device="acme two (wgpu)", problem="other device")
    own_ = row(problem(4096), problem="this device")
    assert [r.problem for r, _ in table(other, own_).lookup(problem(), GPU)] == ["this device", "other device"]


# Merging


def test_merge_keeps_the_newer_and_of_equals_the_faster() -> None:
    old, new = ({"package": "1", "driver": d, "date": f"2026-0{d}-01", "unchecked": False} for d in ("1", "2"))
    slow = row(seconds=0.002, measured=new)
    assert tuning.merge([table(row(measured=old)), table(slow)]).rows == (slow,)
    assert tuning.merge([table(slow), table(row(measured=old))]).rows == (slow,)
    fast = row(measured={**new, "date": "2026-01-01"})
    assert tuning.merge([table(slow), table(fast)]).rows == (fast,)
    assert tuning.merge([table(fast), table(slow)]).rows == (fast,)
    apart = row(problem(4096))
    assert len(tuning.merge([table(fast), table(apart)]).rows) == 2


# Files


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tuned.json"
    made = table(
        row(), row(problem(4096, mask=Mask.window(64, 0)), runner_up=tuned_choice().as_json(), runner_up_seconds=0.0012)
    )
    tuning.save(made, path)
    assert tuning.load(path).rows == made.rows
    assert [p.name for p in path.parent.iterdir()] == ["tuned.json"]


def test_a_failed_write_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuned.json"
    tuning.save(table(row()), path)

    def broken(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(TuningError, match="no space left"):
        tuning.save(EMPTY, path)
    assert tuning.load(path).rows == (row(),)
    assert [p.name for p in tmp_path.iterdir()] == ["tuned.json"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a tuning table"),
        ("{", "not a tuning table"),
        ("[]", "not a tuning table"),
        ('{"rows": []}', "not a tuning table"),
        ('{"schema": 2, "rows": []}', "schema 2; this package reads 1"),
        ('{"schema": 1, "rows": {}}', "schema"),
    ],
)
def test_what_is_no_table(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(TuningError, match=told):
        tuning.load(path)


def test_a_bad_row_costs_only_itself() -> None:
    good = row().as_json()
    bad = [{}, 3, {**good, "key": {}}, {**good, "seconds": "fast"}, {**good, "seconds": float("nan")}, {**good, "choice": 1}]
    found = tuning.parse(json.dumps({"schema": 1, "rows": [*bad, good]}), "it")
    assert found.rows == (row(),)
    assert len(found.faults) == len(bad) and found.faults[1].startswith("row 1 of it is not a row")
    assert any("is not a row" in line for line in select(problem(), GPU, tuning=found).refusals)


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="cannot be read"):
        tuning.load(tmp_path / "none.json")


# The tables in force


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "mine.json"
    monkeypatch.setenv(VARIABLE, str(path))
    yield path


def test_a_new_table_is_used_at_once(users: Path) -> None:
    before = select(problem(), GPU)
    assert not before.tuned and select(problem(), GPU) is before
    tuning.save(table(row()), users)
    after = select(problem(), GPU)
    assert after.tuned.startswith("tuned on acme one (wgpu): 1 ms for")
    assert select(problem(), GPU) is after
    tuning.save(EMPTY, users)
    assert select(problem(), GPU).candidates == before.candidates


def test_without_a_change_it_is_the_same_object(users: Path) -> None:
    tuning.save(table(row()), users)
    assert tuning_files.default_table() is tuning_files.default_table()


def test_a_broken_table_warns_and_counts_as_empty(users: Path) -> None:
    users.write_text("what")
    with pytest.warns(UserWarning, match="not a tuning table"):
        selection = select(problem(), GPU)
    assert not selection.tuned and any("not a tuning table" in line for line in selection.refusals)


def test_an_empty_variable_is_no_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert tuning_files.user_table() is None and tuning_files.default_table() is EMPTY


def test_the_users_rows_go_before_the_packages(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_files, "shipped", lambda: table(row(problem="shipped")))
    tuning.save(table(row(problem="mine")), users)
    assert [r.problem for r in tuning_files.default_table().rows] == ["mine", "shipped"]


def test_shipped_rows_hold() -> None:
    shipped = tuning_files.shipped()
    assert not shipped.faults
    for each in shipped.rows:
        choice = Choice.from_json(each.choice)
        assert all(variant.name in catalog.checked_in() for variant in choice.kernels)
        assert each.seconds <= each.default_seconds
        assert "layout" in each.choice, "a shipped row names a layout, and no kernels of its own"


def test_a_table_from_before_is_read() -> None:
    """The H200's as the first release wrote it. Its kernels are no more: they are refused by name."""
    old = tuning.load(Path(__file__).parent / "data" / "tuned" / "nvidia-h200-0.1.0.json")
    assert not old.faults and len(old.rows) == 5
    for row in old.rows:
        sizes = dict(row.key.sizes)
        asked = problem(sizes["q_len"], heads=4 * row.key.group, kv_heads=4, head_dim=row.key.head_dim)
        with pytest.raises(VariantError, match=r"no parameter head_dim|no layout"):
            tuning.restore(row, asked)


def test_a_column_that_comes_later_leaves_old_rows_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Wider(Key):
        sinks: bool = False

    stored = json.dumps({"schema": tuning.SCHEMA, "rows": [row().as_json()]})
    monkeypatch.setattr(tuning, "Key", Wider)
    monkeypatch.setattr(Problem, "sinks", False, raising=False)
    found = tuning.parse(stored, "before")
    assert not found.faults and [of for of, _ in found.lookup(problem(), GPU)] == list(found.rows)
    later = json.dumps({"schema": tuning.SCHEMA, "rows": [found.rows[0].as_json()]})
    assert json.loads(later)["rows"][0]["key"]["sinks"] is False
    monkeypatch.setattr(Problem, "sinks", True, raising=False)
    assert not list(found.lookup(problem(), GPU))
    monkeypatch.undo()
    assert "sinks" in tuning.parse(later, "later").faults[0], "what it tells apart is not known here"


# Selection


def test_a_tuned_choice_goes_first_and_says_so() -> None:
    plain = select(problem(), GPU, tuning=EMPTY)
    selection = select(problem(1100), GPU, tuning=table(row()))
    best, wanted = selection.best, tuned_choice().kernels
    assert best is not None and best.variants[2] == wanted[0] and best.problem == problem(1100)
    assert "tuned on acme one (wgpu): 1 ms for length 1024" in selection.explain()
    assert "1.5 ms without tuning" in selection.explain()
    assert len(selection.candidates) == len(select(problem(1100), GPU, tuning=EMPTY).candidates) + 1
    assert not plain.tuned and "tuned" not in plain.explain()


def test_deleting_the_row_changes_the_choice_back() -> None:
    near, other = row(), row(problem(head_dim=80))
    with_it, without = (select(problem(), GPU, tuning=t) for t in (table(near, other), table(other)))
    assert with_it.tuned and not without.tuned
    assert without.candidates == select(problem(), GPU, tuning=EMPTY).candidates != with_it.candidates


def test_a_tuned_default_is_not_named_twice() -> None:
    default = choices(problem(), GPU)[0]
    selection = select(problem(), GPU, tuning=table(row(choice=default)))
    assert selection.tuned and selection.candidates == select(problem(), GPU, tuning=EMPTY).candidates


def test_the_guard_and_the_rest_of_a_call_are_kept() -> None:
    of = problem(given="delta", accumulate=True)
    best = select(of, GPU, guard="propagate", tuning=table(row())).best
    assert best is not None and best.problem == of
    assert all(v.params.get("guard", "propagate") == "propagate" for v in best.variants)


def test_another_algorithm_is_left_out() -> None:
    assert not select(problem(), GPU, algorithm="streaming", tuning=table(row())).tuned
    assert select(problem(), GPU, algorithm="tiled", tuning=table(row())).tuned


def test_a_row_that_does_not_fit_is_refused_by_name_and_the_next_taken() -> None:
    small = replace(GPU, limits=PROFILES["webgpu-default"].limits)
    large = next(c for c in choices(problem(4096), GPU) if c.kernels[0].workgroup_bytes > 16384)
    found = select(problem(), small, tuning=table(row(choice=large), row(problem(2048), tuned_choice())))
    assert found.best is not None and found.best.variants[2] == tuned_choice().kernels[0]
    assert any("tuned on acme one" in line and "bytes of workgroup memory" in line for line in found.refusals)


def _without(choice: dict[str, Any], role: str, **params: Any) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(choice))
    changed["kernels"][role]["params"].update(params)
    return changed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: _without(c, "scores", rows=24), "rows is 24"),
        (lambda c: _without(c, "dkdv", chunk=64), "chunk is 64"),
        (lambda c: _without(c, "dq", gone=1), "no parameter gone"),
        (lambda c: _without(c, "scores", chunk=8), "is called attention_scores"),
        (lambda c: _without(c, "dq", query_rows=64), "dq reads blocks|is called"),
        (lambda c: {**c, "parts": 0}, "parts is 0; want"),
        (lambda c: {**c, "algorithm": "magic"}, "magic"),
        (lambda c: {**c, "kernels": {}}, "with the kernels"),
        (lambda c: {}, "incomplete"),
        (lambda c: json.loads(json.dumps(c).replace("attention_dq", "my_dq")), "no such kernel here"),
    ],
)
def test_rows_that_hold_no_longer(change: Any, told: str) -> None:
    stale = row(choice=None)
    stale = replace(stale, choice=change(dict(stale.choice)))
    with pytest.raises(VariantError, match=told):
        tuning.restore(stale, problem())
    selection = select(problem(), GPU, tuning=table(stale))
    assert not selection.tuned and "refused: tuned on acme one (wgpu) for" in selection.explain()


def test_times_without_bounds_checks_hold_for_checked_in_kernels_only() -> None:
    fast = {"unchecked": True}
    assert "not checked in" in select(problem(), GPU, tuning=table(row(measured=fast))).explain()
    default = choices(problem(), GPU)[0]
    assert select(problem(), GPU, tuning=table(row(choice=default, measured=fast))).tuned


# Choices and the space


@pytest.mark.parametrize("of", [problem(512), problem(512, head_dim=59, v_head_dim=40, softcap=True, alibi=True)], ids=str)
def test_choices_survive_json(of: Problem) -> None:
    found = choices(of, GPU)
    assert {choice.algorithm for choice in found} == (set(ALGORITHMS) if of.head_dim == 64 else {"tiled"})
    for choice in found:
        assert Choice.from_json(json.loads(json.dumps(choice.as_json()))).suited(of) == choice
        assert choice.suited(of) == choice


@pytest.mark.parametrize(
    ("form", "of", "told"),
    [
        ("exact", problem(head_dim=80), "not for a head_dim of 80"),
        ("exact", problem(v_head_dim=32), "not for a v_head_dim of 32"),
        ("any", problem(head_dim=62), "not for a head_dim of 62; it takes multiples of 4 from 4 to 256"),
        ("any", problem(v_head_dim=30), "not for a v_head_dim of 30; it takes"),
    ],
    ids=str,
)
def test_a_choice_refuses_what_it_cannot_serve(form: tiled_layouts.Form, of: Problem, told: str) -> None:
    with pytest.raises(VariantError, match=told):
        tiled_layouts.choice("16k", 64, form=form).suited(of)


def test_a_term_that_comes_later_is_refused_by_every_mask_mode() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Wider(Interval):
        every: int = 1

    for name, mode in MODES.items():
        wider = replace(mode, fixed=Wider(**dataclasses.asdict(mode.fixed)))
        plain = Wider(**{**dataclasses.asdict(mode.fixed), **dict.fromkeys(mode.terms, 3)})
        assert wider.expresses(plain, square=True), name
        assert not wider.expresses(replace(plain, every=2), square=True), name


def test_the_originals_algorithms_refuse_too() -> None:
    short = next(c for c in choices(problem(512), GPU, algorithm="short"))
    assert short.suited(problem(300)).algorithm == "short"
    for of, told in (
        (problem(600), "takes 512 positions"),
        (problem(softcap=True), "softcap"),
        (problem(mask=Mask.full()), "mask"),
    ):
        with pytest.raises(VariantError, match=told):
            short.suited(of)


@pytest.mark.parametrize("profile", ["webgpu-default", "workgroup-48k"])
@pytest.mark.parametrize("head_dim", [64, 59])
def test_the_space_fits_the_device_and_begins_nearby(profile: str, head_dim: int) -> None:
    device, of = PROFILES[profile], problem(head_dim=head_dim)
    around = choices(of, device)[0]
    stages = {stage.name: list(stage.neighbours(around, of, device)) for stage in STAGES}
    for found in stages.values():
        assert len(found) > 5 and around not in found and len(set(found)) == len(found)
        apart = [distance(choice, around) for choice in found]
        assert apart == sorted(apart) and apart[0] > 0
        assert not any(v.shortfalls(device) for choice in found for v in choice.kernels)
    assert {choice.kernels[1] for choice in stages["dq"]} == {around.kernels[1]}
    # a block that no checked-in kernel has
    assert any(choice.kernels[0].params["rows"] == 32 for choice in stages["scores"])


def test_workgroups_of_the_original_algorithms() -> None:
    for algorithm, least in (("short", 10), ("streaming", 4)):
        around = choices(problem(512), GPU, algorithm=algorithm)[0]
        (stage,) = ALGORITHMS[algorithm].stages()
        found = list(stage.neighbours(around, problem(512), GPU))
        assert len(found) >= least and around not in found


def test_a_space_of_ones_own() -> None:
    of, choice = problem(), tuned_choice()
    recipe = choice.recipe(of, GPU)
    elsewhere = choice.recipe(problem(512), GPU)
    assert entries([choice, recipe, elsewhere], of, GPU) == [choice, recipe]
    assert entries(lambda p, profile: [choice] if p == of and profile is GPU else [], of, GPU) == [choice]
    with pytest.raises(wa.ArgumentError, match="space: got a str"):
        entries(["tiled"], of, GPU)  # type: ignore[list-item]


def test_a_parameter_that_comes_later_is_tuned_named_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """One field on a kernel is all: its values are tried, and stand in the name, the manifest and the rows; old rows hold."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Unrolled(AttentionDq):
        unroll: int = param("unroll", "chunks written out", values=(1, 2, 4), default=1)

    before = tuned_choice()
    stored = before.as_json()
    monkeypatch.setitem(families.FAMILIES, "attention_dq", Unrolled)
    monkeypatch.setitem(Tiled.roles, "dq", Unrolled)  # type: ignore[index]
    monkeypatch.setattr(tiled_layouts, "AttentionDq", Unrolled)
    again = Choice.from_json(stored)
    assert type(again.kernels[2]) is Unrolled and again.kernels[2].name == before.kernels[2].name
    dq = next(stage for stage in again.of.stages() if stage.name == "dq")
    found = list(dq.neighbours(again, problem(), GPU))
    assert {choice.kernels[2].params["unroll"] for choice in found} == {1, 2, 4}
    assert len({choice.identity for choice in found}) == len(found) > 100
    other = next(choice for choice in found if choice.kernels[2].params["unroll"] == 2)
    assert "_unroll2" in other.kernels[2].name and "unroll 2" in str(other)
    assert other.as_json()["kernels"]["dq"]["params"]["unroll"] == 2 and Choice.from_json(other.as_json()) == other
    assert manifest.entry_of(wa.render(other.kernels[2]))["params"]["unroll"] == 2


def test_a_kernel_of_ones_own_can_be_named_by_a_table() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class MyDq(AttentionDq):
        kernel: ClassVar[str] = "my_own_dq"

    scores, dkdv, dq = tuned_choice().kernels
    mine = replace(tuned_choice(), kernels=(scores, dkdv, MyDq(**dq.params)))  # type: ignore[arg-type]
    stored = row(choice=mine)
    assert "no such kernel here" in select(problem(), GPU, tuning=table(stored)).explain()
    wa.register_kernel(MyDq)
    wa.register_kernel(MyDq)
    assert Choice.from_json(mine.as_json()) == mine

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Taken(AttentionDq):
        pass

    for wrong in (Taken, AttentionScores.__base__, int):
        with pytest.raises(wa.ArgumentError, match="family"):
            wa.register_kernel(wrong)


def test_a_row_is_plain_data() -> None:
    made = row()
    assert json.loads(json.dumps(made.as_json()))["choice"]["kernels"]["scores"]["name"] == tuned_choice().kernels[0].name
    assert {f.name for f in dataclasses.fields(Row)} == set(made.as_json())


def test_written_out_texts_are_tried_on_gpus_only() -> None:
    for profile, tried in ((GPU, {False, True}), (replace(GPU, software=True), {False})):
        stage = Tiled().stages()[0]
        around = choices(problem(), profile)[0]
        found = {choice.kernels[0].params["written_out"] for choice in stage.neighbours(around, problem(), profile)}
        assert found == tried
