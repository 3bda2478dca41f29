"""Rendered kernels read as if they were written by hand, and a text with each fault is found."""

from __future__ import annotations

import dataclasses

import pytest
from support.grid import others
from wgsl_attention.kernels.facts import RenderedVariant
from wgsl_attention.rendering import manifest
from wgsl_attention.rendering.renderer import render
from wgsl_attention.wgsl.hygiene import RULES, check

OTHERS = others()


@pytest.mark.parametrize("name", manifest.entries())
def test_what_is_checked_in_is_clean(name: str) -> None:
    assert check(manifest.load(name)) == ()


@pytest.mark.parametrize("kernel", sorted({variant.kernel for variant in OTHERS.values()}))
def test_other_variants_are_clean(kernel: str) -> None:
    for variant in OTHERS.values():
        if variant.kernel == kernel:
            assert check(render(variant)) == (), variant.name


CLEAN = """
struct Rows {
    offset: u32,
    head: u32,
}

struct Call {
    q: Rows,
    length: u32,
}

@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<uniform> call: Call;

var<workgroup> tile: array<f32, 64>;

const STEP: u32 = 64u;  // a comment on + 0u

fn twice(x: f32) -> f32 {
    return 2.0 * x;
}

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let start = call.q.offset + call.q.head * workgroup.x;
    tile[tid] = 1.0;
    workgroupBarrier();
    for (var i = start; i < call.length; i += STEP) {
        // What a long expression
        out[i] = twice(tile[tid])
            + f32(i);
    }
}
""".lstrip()

FAULTS: dict[str, dict[str, tuple[str, str, str]]] = {
    "unused": {
        "a constant": ("const STEP", "const OTHER: u32 = 7u;\nconst STEP", "OTHER"),
        "a constant that a local hides": ("i += STEP) {", "i++) {\n        let STEP = i;\n        out[STEP] = 0.0;", "STEP"),
        "a function": ("fn twice", "fn thrice(x: f32) -> f32 {\n    return 3.0 * x;\n}\n\nfn twice", "thrice"),
        "a parameter": ("fn twice(x: f32)", "fn twice(x: f32, y: f32)", "y"),
        "a builtin": ("tid: u32) {", "tid: u32, @builtin(num_workgroups) all: vec3<u32>) {", "all"),
        "a let": ("    tile[tid] = 1.0;", "    let x = 2.0;\n    tile[tid] = 1.0;", "x"),
        "a let that an inner one hides": (
            "    tile[tid] = 1.0;",
            "    let x = 2.0;\n    {\n        let x = 3.0;\n        tile[tid] = x;\n    }",
            "x",
        ),
        "a binding": ("var<workgroup> tile", "@group(0) @binding(2) var<storage> k: array<f32>;\nvar<workgroup> tile", "k"),
        "a binding whose name a parameter has": (
            "var<workgroup> tile",
            "@group(0) @binding(2) var<storage> x: array<f32>;\nvar<workgroup> tile",
            "x",
        ),
        "workgroup memory": ("var<workgroup> tile", "var<workgroup> more: array<f32, 4>;\nvar<workgroup> tile", "more"),
        "a uniform's word": ("    length: u32,", "    length: u32,\n    width: u32,", "Call.width"),
        "a word whose name another struct's has": ("    length: u32,", "    length: u32,\n    head: u32,", "Call.head"),
        "a nested struct's word": ("    head: u32,", "    head: u32,\n    row: u32,", "Rows.row"),
        "a struct": ("struct Call", "struct Other {\n    x: u32,\n}\n\nstruct Call", "Other"),
    },
    "idle": {
        "+ 0": ("array<f32, 64>", "array<f32, 64 + 0>", "+ 0 >"),
        "+ 0u": ("= call.q.offset", "= call.q.offset + 0u", "+ 0u +"),
        "0u *": ("= call.q.offset", "= 0u * call.q.offset", "= 0u *"),
        "* 0u": ("call.q.head *", "call.q.head * 0u *", "* 0u *"),
        "+ 0.0": ("2.0 * x", "2.0 * x + 0.0", "+ 0.0 ;"),
        "- 0": ("2.0 * x", "2.0 * x - 0.0", "- 0.0 ;"),
        "1u *": ("= call.q.offset", "= 1u * call.q.offset", "= 1u *"),
        "* 1.0": ("2.0 * x", "2.0 * x * 1.0", "* 1.0 ;"),
        "/ 1u": ("* workgroup.x", "* workgroup.x / 1u", "/ 1u ;"),
        "% 1u": ("* workgroup.x", "* workgroup.x % 1u", "% 1u ;"),
    },
    "once": {
        "a loop over one": ("var i = start; i < call.length; i += STEP", "var i = 0u; i < 1u; i++", "i < 1u"),
        "a loop over one step": ("var i = start; i < call.length", "var i = 0u; i <= STEP - 1u", "i <= STEP - 1u"),
        "a loop over one step, at most": ("i < call.length", "i < min(start + STEP, call.length)", "i < min"),
        "a loop to a bound that is a let": (
            "    for (var i = start; i < call.length",
            "    let end = min(call.length, STEP + start);\n    for (var i = start; i < end",
            "i < end",
        ),
        "a loop over one row of a table": (
            "var i = start; i < call.length",
            "var i = workgroup.x * STEP; i < (workgroup.x + 1u) * STEP",
            "workgroup . x + 1u",
        ),
    },
    "columns": {"a comment": ("// a comment on + 0u", "// " + "a comment that goes on " * 6, "columns")},
    "blank-lines": {
        "two": ("fn twice", "\nfn twice", "before 'fn twice"),
        "one after a brace": ("    return 2.0", "\n    return 2.0", "before 'return"),
        "one before a brace": ("2.0 * x;\n", "2.0 * x;\n\n", "before '}'"),
        "one where a macro was": ("        out[i]", "\n        out[i]", "before 'out"),
    },
    "indentation": {
        "too little": ("    return 2.0", "  return 2.0", "wants 4 spaces"),
        "too much": ("    tile[tid] = 1.0", "        tile[tid] = 1.0", "wants 4 spaces"),
        "a comment at the margin": ("        // What", "// What", "wants 8 spaces"),
        "a statement that goes on in its own column": ("            + f32(i)", "        + f32(i)", "wants 12"),
    },
}
"""For each rule, what is replaced in ``CLEAN`` by what, and words of the finding."""

RIGHT: dict[str, dict[str, tuple[str, str]]] = {
    "unused": {"a let in another's name": ("    tile[tid] = 1.0;", "    let x = 2.0;\n    tile[tid] = x;")},
    "idle": {
        "numbers that are no operands": ("2.0 * x", "select(0.0, x, x != 0.0)"),
        "operands that matter": ("2.0 * x", "(1.0 - x) * (1.0 + x) / 10.0"),
    },
    "once": {
        "two steps": ("var i = start; i < call.length", "var i = 0u; i < 2u * STEP"),
        "as many as the call says": ("i < call.length", "i < start + call.length"),
        "a row of a wider table": ("var i = start; i < call.length", "var i = workgroup.x * 99u; i < (workgroup.x + 1u) * 99u"),
        "what threads share": ("var i = start; i < call.length", "var i = tid; i < 10u"),
        "a thread's own": ("    for (var i = start; i < call.length", "    let a = tid + 3u;\n    for (var i = a; i < a + 1u"),
    },
    "blank-lines": {"one before a step": ("        // What", "        tile[i] = 2.0;\n\n        // What")},
}
"""Near each rule, what is no fault."""


def rendered(text: str, extensions: tuple[str, ...] = ()) -> RenderedVariant:
    return dataclasses.replace(manifest.load("attention_reduce_wg128"), wgsl=text, extensions=extensions)


def found(rule: str, old: str, new: str) -> list[str]:
    assert old in CLEAN
    return [finding.message for finding in check(rendered(CLEAN.replace(old, new, 1))) if finding.rule == rule]


def test_the_clean_text_is_clean() -> None:
    assert check(rendered(CLEAN)) == ()


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in FAULTS.items() for case in cases])
def test_each_fault_is_found(rule: str, case: str) -> None:
    old, new, words = FAULTS[rule][case]
    messages = found(rule, old, new)
    assert any(words in message for message in messages), messages


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in RIGHT.items() for case in cases])
def test_what_is_no_fault_is_not_found(rule: str, case: str) -> None:
    assert found(rule, *RIGHT[rule][case]) == []


def test_every_rule_has_something_that_breaks_it() -> None:
    assert set(FAULTS) == set(RULES)


@pytest.mark.parametrize(
    ("extension", "statement"),
    [("f16", "let x = f16(2.0);"), ("f16", "let x = 2.0h;"), ("subgroups", "let x = subgroupAdd(2.0);")],
)
def test_an_extension_that_nothing_needs_is_found(extension: str, statement: str) -> None:
    (finding,) = check(rendered(CLEAN, (extension,)))
    assert str(finding) == f"unused: the extension {extension}"
    using = CLEAN.replace("    tile[tid] = 1.0;", f"    {statement}\n    tile[tid] = f32(x);")
    assert check(rendered(using, (extension,))) == ()
