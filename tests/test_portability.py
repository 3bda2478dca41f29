"""What one compiler accepts and the other refuses, as far as the kernels, the checks and the loaders rest on it.

Each entry is a fact about a compiler that something in the package is built on; where a new version changes it, the test of
that name fails, and what rests on it can be looked at again. Facts about limits and devices follow the table.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.compilers import COMPILERS, device, verdict
from test_static_checks import DIVERGENT, HEAD, UNIFORM
from wgsl_attention.errors import DeviceError
from wgsl_attention.gpu import backends
from wgsl_attention.profile import Limits
from wgsl_attention.validation import toolchains

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


NAGA, TINT = ("naga",), ("tint", "tint-null")
FACTS = {
    "workgroup memory over the limit": Fact(
        wgsl=body("tile[tid] = 1.0; out[tid] = tile[tid];", OUT + "var<workgroup> tile: array<f32, 200000>;\n"),
        refused_by=TINT,
        note="static_checks counts workgroup bytes itself",
    ),
    "workgroup memory at the default limit": Fact(
        wgsl=body("tile[tid] = 1.0; out[tid] = tile[tid];", OUT + "var<workgroup> tile: array<f32, 4096>;\n"),
        refused_by=(),
        note="each variable counts rounded up to 16 bytes",
    ),
    "a literal one digit past f32": Fact(
        wgsl=body("out[tid] = -3.4028235e38;"), refused_by=TINT, note="the rule on literals in static_checks"
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
            wgsl=HEAD + text + "\n}", refused_by=(), note="uniform by construction: what uniformity.py lets pass, all accept"
        )
        for case, text in UNIFORM.items()
    },
    **{
        f"a barrier that is divergent by {case}": Fact(
            wgsl=HEAD + text + "\n}", refused_by=TINT, note="naga does not look, so uniformity.py and Tint have to"
        )
        for case, text in DIVERGENT.items()
    },
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", FACTS)
def test_what_each_compiler_makes_of_it(name: str, compiler: str) -> None:
    fact = FACTS[name]
    if fact.feature and compiler != "tint-null" and fact.feature not in device(compiler).profile.features:
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


def test_dawn_through_node_gives_the_default_limits() -> None:
    package = toolchains.find_node_package()
    node = shutil.which("node")
    if package is None or node is None:
        pytest.skip("Tint without a driver is not there")
    script = f"""
import {{ create }} from {str((package / "index.js").as_uri())!r};
const gpu = create(["backend=null", "enable-dawn-features=allow_unsafe_apis"]);
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice();
const names = ["maxStorageBuffersPerShaderStage", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup"];
for (const owner of [adapter, device]) console.log(names.map((name) => owner.limits[name]).join(" "));
process.exit(0);
"""
    done = subprocess.run(
        [node, "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60, check=True, cwd=Path.cwd()
    )
    adapter, opened = done.stdout.split("\n")[:2]
    # The null adapter stops at the defaults, so larger variants are checked there only as a module.
    assert adapter == opened == "8 16384 256"


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
