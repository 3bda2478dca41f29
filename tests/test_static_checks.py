"""The checks that need no compiler: clean on everything that is checked in, and each breakage caught by the rule meant for it."""

from __future__ import annotations

import dataclasses

import pytest
from support.breakage import BREAKAGES
from wgsl_attention.errors import ArgumentError
from wgsl_attention.rendering import manifest
from wgsl_attention.wgsl.checks import RULES, check, count, workgroup_bytes
from wgsl_attention.wgsl.parser import evaluate, parse
from wgsl_attention.wgsl.uniformity import divergences

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


HEAD = """
@group(0) @binding(0) var<uniform> n: u32;
@group(0) @binding(1) var<storage, read> lengths: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
var<workgroup> shared_n: u32;
var<workgroup> tile: array<u32, 64>;
fn bound(x: u32) -> u32 { return x + n; }
fn shared_bound() -> u32 { return shared_n; }
fn meet() { workgroupBarrier(); }
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
"""

UNIFORM = {
    "a uniform": "for (var i = 0u; i < n; i++) { workgroupBarrier(); }",
    "read-only storage": "for (var i = 0u; i < lengths[wg.x]; i++) { workgroupBarrier(); }",
    "workgroup_id": "if (wg.x >= n) { return; } workgroupBarrier();",
    "workgroupUniformLoad": "let m = workgroupUniformLoad(&shared_n); for (var i = 0u; i < m; i++) { workgroupBarrier(); }",
    "a function of uniforms": "for (var i = 0u; i < bound(wg.x); i++) { meet(); }",
    "no barrier inside": "for (var i = tid; i < n; i += 64u) { tile[i] = i; } workgroupBarrier();",
    "a break that is uniform": "var i = 0u; loop { if (i >= n) { break; } workgroupBarrier(); i++; }",
    "a loop that threads leave apart and then meet": "loop { if (tid > 3u) { break; } } workgroupBarrier();",
    "a switch": "switch n { case 1u: { workgroupBarrier(); } default: { } }",
}
DIVERGENT = {
    "the thread's index": "for (var i = tid; i < n; i++) { workgroupBarrier(); }",
    "workgroup memory": "for (var i = 0u; i < shared_n; i++) { workgroupBarrier(); }",
    "workgroup memory in a function": "for (var i = 0u; i < shared_bound(); i++) { workgroupBarrier(); }",
    "read_write storage": "let m = out[0]; for (var i = 0u; i < m; i++) { workgroupBarrier(); }",
    "an if": "if (tid < 3u) { workgroupBarrier(); }",
    "an else": "if (tid < 3u) { } else { workgroupBarrier(); }",
    "an else if": "if (n < 3u) { } else if (tid < 3u) { workgroupBarrier(); }",
    "a function that meets": "if (tid < 3u) { meet(); }",
    "an argument": "if (bound(tid) < 3u) { meet(); }",
    "an early return": "if (tid == 0u) { return; } workgroupBarrier();",
    "a break": "loop { if (tid > 3u) { break; } workgroupBarrier(); }",
    "a break before the loop's end": "loop { workgroupBarrier(); if (tid > 3u) { break; } }",
    "a continue": "for (var i = 0u; i < n; i++) { if (tid == i) { continue; } workgroupBarrier(); }",
    "a break if": "var i = 0u; loop { workgroupBarrier(); continuing { i++; break if i > tid; } }",
    "an assignment under a condition": "var m = n; if (tid == 0u) { m = 1u; } while (m > 0u) { workgroupBarrier(); m--; }",
    "a chain": "let a = tid; let b = a + 1u; var c = n; c += b; if (c > 3u) { workgroupBarrier(); }",
    "a switch": "switch tid { case 1u: { workgroupBarrier(); } default: { } }",
    "a uniform load": "if (tid < 3u) { let m = workgroupUniformLoad(&shared_n); }",
}


@pytest.mark.parametrize("case", UNIFORM)
def test_uniform_control_flow_passes(case: str) -> None:
    assert divergences(parse(HEAD + UNIFORM[case] + "\n}")) == ()


@pytest.mark.parametrize("case", DIVERGENT)
def test_control_flow_that_is_not_uniform_is_found(case: str) -> None:
    found = divergences(parse(HEAD + DIVERGENT[case] + "\n}"))
    assert found and found[0].cause
