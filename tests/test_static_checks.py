"""The checks that need no compiler: clean on everything that is checked in, and each breakage caught by the rule meant for it."""

from __future__ import annotations

import dataclasses

import pytest
from support.breakage import BREAKAGES
from wgsl_attention.errors import ArgumentError
from wgsl_attention.rendering import manifest
from wgsl_attention.wgsl.checks import RULES, check, count, workgroup_bytes
from wgsl_attention.wgsl.parser import evaluate

STATIC = {name: breakage for name, breakage in BREAKAGES.items() if breakage.static}
CAUSAL = "attention_backward_wg256_d64_causal"


@pytest.mark.parametrize("name", manifest.entries())
def test_what_is_checked_in_breaks_no_rule(name: str) -> None:
    rendered = manifest.load(name)
    assert check(rendered) == ()
    counts = count(rendered)
    assert counts.workgroup_bytes == rendered.workgroup_bytes
    assert counts.storage_buffers == rendered.storage_buffers
    assert counts.threads == rendered.workgroup_size[0]


@pytest.mark.parametrize("name", BREAKAGES)
def test_each_breakage_is_caught_by_its_rule_or_by_none(name: str) -> None:
    breakage = BREAKAGES[name]
    found = {finding.rule for finding in check(breakage.render())}
    assert found == ({breakage.static, *breakage.also} if breakage.static else set())


def test_every_rule_has_something_that_breaks_it() -> None:
    caught = {breakage.static for breakage in STATIC.values()}
    elsewhere = {"parses", "entry-point"}  # the two tests below
    assert caught | elsewhere == set(RULES)


def test_a_text_that_does_not_read_is_one_finding() -> None:
    rendered = dataclasses.replace(manifest.load(CAUSAL), wgsl="fn broken( {")
    assert [finding.rule for finding in check(rendered)] == ["parses"]


def test_an_entry_point_that_is_not_there() -> None:
    rendered = dataclasses.replace(manifest.load(CAUSAL), entry_point="other")
    assert [finding.rule for finding in check(rendered)] == ["entry-point"]


def test_a_finding_names_its_line() -> None:
    rendered = BREAKAGES["literal_past_f32"].render()
    (finding,) = check(rendered)
    assert "3.4028235e38" in rendered.wgsl.splitlines()[finding.line - 1]
    assert str(finding).startswith(f"literals: line {finding.line}: 3.4028235e38")


@pytest.mark.parametrize(
    ("declarations", "size"),
    [
        ("var<workgroup> a: f32;", 16),
        ("var<workgroup> a: array<f32, 5>;", 32),
        ("var<workgroup> a: array<vec3<f32>, 4>;", 64),
        ("var<workgroup> a: array<vec3f, 4>; var<workgroup> b: u32;", 80),
        ("var<workgroup> a: array<vec2<f16>, 3>;", 16),
        ("const N = 3u; const M = N * 2u + 1u; var<workgroup> a: array<array<f32, M>, N>;", 96),
        ("alias Tile = array<vec4<f32>, 8>; var<workgroup> a: Tile; var<private> b: Tile;", 128),
        ("struct S { a: f32, b: vec4<f32>, c: vec2<f32> } var<workgroup> a: array<S, 2>;", 96),
        ("var<workgroup> a: mat4x3<f32>;", 64),
        ("var<workgroup> a: atomic<u32>; /* var<workgroup> b: /* nested */ u32; */ // var<workgroup> c: u32;", 16),
    ],
)
def test_workgroup_bytes_follow_wgsl_layout(declarations: str, size: int) -> None:
    assert workgroup_bytes(declarations) == size


def test_constants() -> None:
    assert evaluate("(N + 7u) / 8u * 0x10u", {"N": 9}) == 32
    assert evaluate("1u << 4u", {}) == 16
    with pytest.raises(ArgumentError, match="UNKNOWN"):
        evaluate("UNKNOWN + 1", {})
