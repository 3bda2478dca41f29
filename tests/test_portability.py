"""What one compiler accepts and the other refuses, as far as the kernels, the checks and the loaders rest on it.

Each entry is a fact about a compiler that something in the package is built on; where a new version changes it, the test of
that name fails, and what rests on it can be looked at again. Facts about limits and devices follow the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.compilers import COMPILERS, device, verdict
from wgsl_attention.errors import DeviceError
from wgsl_attention.gpu import backends
from wgsl_attention.profile import Limits

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

BODY = "@compute @workgroup_size(64)\nfn main(@builtin(local_invocation_index) tid: u32) {\n"
OUT = "@group(0) @binding(0) var<storage, read_write> out: array<f32>;\n"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A text, and the compilers that refuse it. ``note`` says what in the package depends on it."""

    wgsl: str
    refused_by: tuple[str, ...]
    note: str
    extensions: tuple[str, ...] = ()
    feature: str = ""


def body(statement: str, before: str = OUT) -> str:
    return f"{before}{BODY}{statement}\n}}"


NAGA, TINT = ("naga",), ("tint",)
FACTS = {
    "workgroup memory over the limit": Fact(
        wgsl=body("tile[tid] = 1.0; out[tid] = tile[tid];", OUT + "var<workgroup> tile: array<f32, 200000>;\n"),
        refused_by=TINT,
        note="wgsl.checks counts workgroup bytes itself",
    ),
    "workgroup memory at the default limit": Fact(
        wgsl=body("tile[tid] = 1.0; out[tid] = tile[tid];", OUT + "var<workgroup> tile: array<f32, 4096>;\n"),
        refused_by=(),
        note="each variable counts rounded up to 16 bytes",
    ),
    "a literal one digit past f32": Fact(
        wgsl=body("out[tid] = -3.4028235e38;"), refused_by=TINT, note="the rule on literals in wgsl.checks"
    ),
    "the largest literal that is fine": Fact(wgsl=body("out[tid] = -3.402823e38;"), refused_by=(), note="the same"),
    "a constant expression that is infinite": Fact(
        wgsl=body("out[tid] = 1.0 / 0.0;"), refused_by=NAGA + TINT, note="no template folds constants to infinity"
    ),
    "a constant expression that overflows": Fact(
        wgsl=body("out[tid] = 3.0e38 * 10.0;"), refused_by=NAGA + TINT, note="no template folds constants to infinity"
    ),
    "a pointer to workgroup memory as a parameter": Fact(
        wgsl=body(
            "tile[tid] = 1.0; out[tid] = first(&tile);",
            OUT
            + "var<workgroup> tile: array<f32, 64>;\nfn first(p: ptr<workgroup, array<f32, 64>>) -> f32 { return (*p)[0]; }\n",
        ),
        refused_by=NAGA,
        note="tile helpers are macros, one function for each operand",
    ),
    "a pointer to storage as a parameter": Fact(
        wgsl=body(
            "out[tid] = first(&source);",
            OUT
            + "@group(0) @binding(1) var<storage, read> source: array<f32>;\n"
            + "fn first(p: ptr<storage, array<f32>, read>) -> f32 { return (*p)[0]; }\n",
        ),
        refused_by=NAGA,
        note="tile helpers are macros, one function for each operand",
    ),
    "enable subgroups": Fact(
        wgsl="enable subgroups;\n" + body("out[tid] = subgroupAdd(1.0);"),
        refused_by=NAGA,
        note="no text carries an enable directive, loaders put it first",
        feature="subgroups",
    ),
    "subgroups without the directive": Fact(
        wgsl=body("out[tid] = subgroupAdd(1.0);"),
        refused_by=TINT,
        note="backends.shader_text leaves the directive out for naga alone",
        feature="subgroups",
    ),
    "f16 without the directive": Fact(
        wgsl=body("out[tid] = f32(f16(tid));"), refused_by=NAGA + TINT, note="both want enable f16", feature="shader-f16"
    ),
    "f16 with the directive": Fact(
        wgsl=body("out[tid] = f32(f16(tid));"), refused_by=(), note="both want it", extensions=("f16",), feature="shader-f16"
    ),
    "an array of words in a uniform": Fact(
        wgsl=body("out[tid] = f32(words[tid % 4u]);", OUT + "@group(0) @binding(1) var<uniform> words: array<u32, 4>;\n"),
        refused_by=NAGA,
        note="uniforms are vec4 and arrays of them",
    ),
    "const_assert (a) == b": Fact(
        wgsl=body("out[tid] = 1.0;", OUT + "const A = 3u;\nconst_assert (A) == 3u;\n"),
        refused_by=NAGA,
        note="rules render as const_assert(a == b);",
    ),
    "const_assert(a == b)": Fact(
        wgsl=body("out[tid] = 1.0;", OUT + "const A = 3u;\nconst_assert(A == 3u);\n"), refused_by=(), note="the same"
    ),
    "a const_assert that fails": Fact(
        wgsl=body("out[tid] = 1.0;", OUT + "const A = 3u;\nconst_assert(A == 4u);\n"),
        refused_by=NAGA + TINT,
        note="rules are checked by the compilers too",
    ),
    "an override-sized workgroup array": Fact(
        wgsl=body(
            "tile[tid] = 1.0; out[tid] = tile[tid];", OUT + "override N: u32 = 64u;\nvar<workgroup> tile: array<f32, N>;\n"
        ),
        refused_by=(),
        note="open to templates",
    ),
    "an override boolean": Fact(
        wgsl=body("if (wide) { out[tid] = 1.0; }", OUT + "override wide: bool = true;\n"),
        refused_by=(),
        note="open to templates",
    ),
    "a private array of 256": Fact(
        wgsl=body("var reg: array<f32, 256>;\n reg[tid] = 1.0; out[tid] = reg[255];"), refused_by=(), note="register tiles"
    ),
    **{
        f"a barrier decided by {case}": Fact(
            wgsl=HEAD + text + "\n}", refused_by=(), note="a loop with barriers reads its bound from such places"
        )
        for case, text in UNIFORM.items()
    },
    **{
        f"a barrier that is divergent by {case}": Fact(
            wgsl=HEAD + text + "\n}", refused_by=TINT, note="naga does not look, so every variant goes through Tint too"
        )
        for case, text in DIVERGENT.items()
    },
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", FACTS)
def test_what_each_compiler_makes_of_it(name: str, compiler: str) -> None:
    fact = FACTS[name]
    if fact.feature and fact.feature not in device(compiler).profile.features:
        pytest.skip(f"{compiler}'s adapter has no {fact.feature}")
    said = verdict(compiler, fact.wgsl, extensions=fact.extensions)
    assert bool(said) == (compiler in fact.refused_by), f"{fact.note}: {said or 'accepted'}"


@pytest.mark.parametrize("backend", ["wgpu", "dawn"])
def test_limits_that_are_not_named_are_the_adapters(backend: str) -> None:
    """``open_device`` names every limit because of it; so would a browser, where they are WebGPU's."""
    try:
        adapter = backends.choose(backend)
    except DeviceError as error:
        pytest.skip(str(error))
    mine = {key: value for key, value in adapter.raw.limits.items() if key.startswith("max-storage-buffers-per")}
    if Limits.from_webgpu(adapter.raw.limits) == Limits():
        pytest.skip("the adapter has no more than WebGPU's default limits")
    raw = adapter.raw.request_device_sync()
    assert {key: raw.limits[key] for key in mine} == mine
    one = backends.choose(backend).raw.request_device_sync(required_limits={"max-bind-groups": 4})
    assert {key: one.limits[key] for key in mine} == mine


def test_dawns_null_adapter_has_the_default_limits() -> None:
    """So larger variants are checked there only as a module, and with every feature."""
    profile = device("tint").profile
    assert profile.device == "null backend" and profile.limits == Limits()
    assert set(backends.FEATURES) <= profile.features


def test_dawn_uses_an_adapter_up() -> None:
    """``open_device`` asks for another adapter each time."""
    try:
        adapter = backends.choose("dawn")
    except DeviceError as error:
        pytest.skip(str(error))
    adapter.raw.request_device_sync()
    with pytest.raises(Exception, match=r"consumed|already|invalid"):
        adapter.raw.request_device_sync()


def test_wgpu_spells_subgroups_its_own_way() -> None:
    try:
        adapter = backends.choose("wgpu")
    except DeviceError as error:
        pytest.skip(str(error))
    if "subgroups" not in adapter.profile.features:
        pytest.skip("the adapter has no subgroups")
    assert "subgroup" in adapter.raw.features and "subgroups" not in adapter.raw.features
