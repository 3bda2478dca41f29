"""``generated/``: reproducible, without drift, small, and the same to Python and to JavaScript."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wgsl_attention as wa
from wgsl_attention import generated
from wgsl_attention.errors import ArgumentError, ManifestError
from wgsl_attention.kernels.facts import MAX_WORKGROUPS, RenderedVariant
from wgsl_attention.kernels.families import FAMILIES
from wgsl_attention.kernels.original import AttentionBackward
from wgsl_attention.problem.mask import Mask
from wgsl_attention.problem.problem import Problem
from wgsl_attention.rendering import build, manifest, typescript
from wgsl_attention.rendering.renderer import render
from wgsl_attention.selection import catalog

FOLDER = Path(generated.__file__).parent
DATA = Path(__file__).parent / "data"
MAX_TEXTS, MAX_BYTES = 110, 3 << 20


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return build.build()


def test_no_drift(files: dict[str, str]) -> None:
    found = build.drift(FOLDER, files)
    assert not found, f"{found[0].kind}: {found[0].path}; run `{build.MEND}`\n{found[0].diff}"


def test_every_file_is_built(files: dict[str, str]) -> None:
    """Nothing lies in the folder that ``build`` does not name, whatever its name."""
    present = {p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert present == set(files)


def test_another_process_builds_the_same_bytes(files: dict[str, str], tmp_path: Path) -> None:
    """With another hash seed, locale, time zone and working directory."""
    code = """
import hashlib, json
from wgsl_attention.rendering.build import build
print(hashlib.sha256(json.dumps(build()).encode()).hexdigest())
"""
    env = {"PYTHONHASHSEED": "12345", "LC_ALL": "C", "TZ": "Asia/Tokyo", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == hashlib.sha256(json.dumps(files).encode()).hexdigest()


def test_size(files: dict[str, str]) -> None:
    assert len(generated.NAMES) <= MAX_TEXTS and sum(len(text.encode()) for text in files.values()) <= MAX_BYTES


def test_texts_are_clean(files: dict[str, str]) -> None:
    for path, text in files.items():
        assert text.endswith("\n") and not text.endswith("\n\n") and "\r" not in text and "\t" not in text, path
        assert not re.search(r"[ ]+$|\n\n\n|\{\{|\{%", text, re.MULTILINE), path


def test_write_makes_the_folder_and_then_changes_nothing(files: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    assert set(build.write(folder, files)) == set(files)
    assert build.write(folder, files) == () and build.drift(folder, files) == ()
    assert {p.relative_to(folder).as_posix(): p.read_bytes().decode() for p in folder.rglob("*") if p.is_file()} == files


def test_drift_finds_what_is_wrong(files: dict[str, str], tmp_path: Path) -> None:
    build.write(tmp_path / "k", files)
    wgsl = sorted((tmp_path / "k" / "wgsl").iterdir())
    wgsl[0].write_text(wgsl[0].read_text() + "// by hand\n")
    wgsl[1].unlink()
    (tmp_path / "k" / "wgsl" / "orphan.wgsl").write_text("")
    found = {drift.path: drift for drift in build.drift(tmp_path / "k", files)}
    changed, missing = f"wgsl/{wgsl[0].name}", f"wgsl/{wgsl[1].name}"
    assert {path: drift.kind for path, drift in found.items()} == {
        changed: "changed",
        missing: "missing",
        "wgsl/orphan.wgsl": "orphaned",
    }
    assert "-// by hand" in found[changed].diff and f"+++ generated/{missing} as rendered" in found[missing].diff
    assert set(build.write(tmp_path / "k", files)) == set(found)
    assert build.drift(tmp_path / "k", files) == ()


def test_write_leaves_a_folder_of_others_alone(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ArgumentError, match=r"which holds thesis\.txt"):
        build.write(tmp_path, files)
    with pytest.raises(ArgumentError, match="want a folder"):
        build.write(tmp_path / "thesis.txt", files)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


# Names


def test_names() -> None:
    names = list(catalog.checked_in())
    assert names == sorted(set(names)) and list(generated.NAMES) == names
    assert len({name.lower() for name in names}) == len(names), "some file systems do not tell cases apart"
    for name, variant in catalog.checked_in().items():
        assert variant.name == name and name.startswith(variant.kernel)
        assert re.fullmatch(r"[a-z0-9_]*", name.removeprefix(variant.kernel)), name
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variant.entry_point) and "__" not in name


def test_a_name_has_every_parameter_that_is_not_its_default() -> None:
    made = AttentionBackward(
        wg=64, head_dim=40, at_most=True, mask="documents_window", guard="propagate", overwrite=True, seg_uniform=True
    )
    assert made.name == "attention_backward_wg64_dmax40_documents_window_propagate_overwrite_seguniform"
    assert AttentionBackward(wg=64, head_dim=40, mask="full").name == "attention_backward_wg64_d40_full"


def test_every_family_is_checked_in() -> None:
    assert {variant.kernel for variant in catalog.checked_in().values()} >= set(FAMILIES)


# The manifest


@pytest.mark.parametrize("name", catalog.checked_in())
def test_entry(name: str) -> None:
    """Manifest and variant say the same, through JSON and back; the text is what the sum is of."""
    rendered = render(catalog.checked_in()[name])
    entry = json.loads(json.dumps(manifest.entry_of(rendered)))
    assert manifest.entries()[name] == entry
    assert RenderedVariant.from_json({**entry, "name": name, "wgsl": rendered.wgsl}) == rendered
    assert generated.load(name) == rendered and hash(generated.load(name)) == hash(rendered)
    assert entry["sha256"] == hashlib.sha256((FOLDER / entry["file"]).read_bytes()).hexdigest()
    assert entry["profile"] in wa.PROFILES and rendered.shortfalls(wa.PROFILES[entry["profile"]]) == ()


@pytest.mark.parametrize("name", catalog.checked_in())
def test_facts_are_the_texts(name: str) -> None:
    """What a loader reads in the manifest is what the WGSL says."""
    variant = generated.load(name)
    text = re.sub(r"//.*", "", variant.wgsl)
    found = re.findall(r"@group\((\d+)\)\s*@binding\((\d+)\)\s*var<([^>]*)>\s*(\w+)\s*:\s*([^;]+);", text)
    assert found == [(str(b.group), str(b.binding), b.address_space, b.name, b.type) for b in variant.bindings]
    assert len(re.findall(r"@compute", text)) == 1
    x, y, z = variant.workgroup_size
    assert re.search(rf"@compute\s*@workgroup_size\({x}, {y}, {z}\)\s*fn {variant.entry_point}\(", text)
    assert (y, z) == (1, 1) and "enable " not in text
    arrays = re.findall(r"var<workgroup>\s*\w+\s*:\s*array<(.+),\s*(\w+)>;", text)
    assert len(arrays) == len(re.findall(r"var<workgroup>", text))
    constants = dict(re.findall(r"const (\w+): u32 = (\d+)u;", text))
    # elements are 32 bits wide, or vectors of two or four of them
    widths = {kind: 4 * int(re.sub(r"^vec([24])<.*|^.*", lambda found: found[1] or "1", kind)) for kind, _ in arrays}
    total = sum(-(-widths[kind] * int(constants.get(count, count)) // 16) * 16 for kind, count in arrays)
    assert total == variant.workgroup_bytes
    assert f"{variant.workgroup_bytes} bytes" in variant.wgsl or not arrays


CONTRACT = {
    "attention_backward": (7, 4, 2),
    "attention_backward_short": (7, 4, 2),
    "attention_backward_short_dKdV": (9, 2, 2),
}
"""The kernels of the original's contract whose dispatch is queries or keys, heads and batch."""


@pytest.mark.parametrize("name", [name for name, variant in catalog.checked_in().items() if variant.kernel in CONTRACT])
def test_dispatch_of_attention(name: str) -> None:
    variant = generated.load(name)
    problem = Problem(batch=2, q_len=7, kv_len=9, heads=4, kv_heads=2, head_dim=64, mask=Mask.causal())
    assert variant.dispatch(problem) == variant.dispatch(problem.sizes) == CONTRACT[variant.kernel]


@pytest.mark.parametrize("heads", ["q", "k"])
@pytest.mark.parametrize("wg", [64, 256])
def test_dispatch_of_rope(heads: str, wg: int) -> None:
    variant = generated.load(f"rope_{heads}_backward_wg{wg}")
    sizes = {"batch": 2, "seq_len": 7, "heads": 4, "kv_heads": 2, "half_head_dim": 16}
    assert variant.dispatch(sizes) == (-(-7 * (4 if heads == "q" else 2) * 16 // wg), 1, 2)


# Loading


def test_load_refuses_other_names() -> None:
    with pytest.raises(ArgumentError, match=r"one of the checked-in names, such as .*attention_backward_wg256_d64_causal"):
        generated.load("attention_backward_wg256_d64_casual")
    with pytest.raises(ArgumentError, match=r"name: got 'x'; want a checked-in name \(wgsl-attention list\)"):
        generated.load("x")


LEFT = [name for name in (DATA / "names-0.1.0.txt").read_text(encoding="utf-8").split() if name not in manifest.entries()]
"""The names that generated/ had in the first release, and has no more."""


@pytest.mark.parametrize("name", LEFT)
def test_a_name_that_left_tells_what_took_its_place(name: str) -> None:
    with pytest.raises(ArgumentError, match=r"want \w+( with the constants \{[^}]+\})?, which took its place") as refused:
        generated.load(name)
    told = generated.load(str(refused.value).partition("want ")[2].partition(",")[0].split()[0])
    head_dim = int((re.search(r"_d(\d+)", name) or ["", "64"])[1])
    assert name.startswith(f"{told.kernel}_") and told.serves.min_head_dim <= head_dim <= told.serves.max_head_dim
    assert {"softcap", "alibi", "documents", "causal", "delta", "o"} & (
        set(name.split("_")) ^ set(told.name.split("_"))
    ) == set()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("attention_backward_wg256_d64_full", "attention_backward_wg256_dmax256_full"),
        ("attention_rows_wg64_rows64_kcols32_span32_o", "attention_rows_wg64_o"),
        ("attention_scores_rows64_cols64_rr8_cr4_chunk16_d30_span1", "attention_scores_rows64_cols64_rr8_cr4_chunk16"),
        (
            "attention_dq_rows64_cols64_rr8_cr4_chunk16_d30_qrows64_kcols64",
            "attention_dq_rows64_cols64_rr8_cr4_chunk16_dmax256_qrows64_kcols64",
        ),
        ("attention_scores_rows64_cols64_rr8_cr4_chunk16_d300_span1", ""),
        ("attention_scores_rows64_cols64_rr8_cr4_chunk16_d64_propagate_span1", ""),
        ("attention_backward_short_wg256_maxseq2048_d64_full", ""),
        ("attention_backward_wg32_d64_full", "attention_backward_wg128_dmax256_full"),
        ("x", ""),
    ],
)
def test_a_place_is_taken_only_by_what_does_the_same(name: str, told: str) -> None:
    assert manifest.successor(name) == told


def forget() -> None:
    manifest.entries.cache_clear()
    manifest.load.cache_clear()


@pytest.fixture
def other_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy that ``load`` reads in place of ``generated/``."""
    folder = tmp_path / "generated"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(manifest, "files", lambda package: folder)
    forget()
    yield folder
    forget()


NAME = "attention_backward_wg256_d64_causal"


def test_load_finds_a_missing_file(other_folder: Path) -> None:
    assert generated.load(NAME).name == NAME
    forget()
    (other_folder / "wgsl" / f"{NAME}.wgsl").unlink()
    with pytest.raises(ManifestError, match=f"generated/wgsl/{NAME}.wgsl is missing: run `wgsl-attention generate`"):
        generated.load(NAME)


def test_load_finds_a_file_changed_by_hand(other_folder: Path) -> None:
    path = other_folder / "wgsl" / f"{NAME}.wgsl"
    path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    with pytest.raises(ManifestError, match="was changed by hand: run `wgsl-attention generate`"):
        generated.load(NAME)


def test_load_finds_another_schema(other_folder: Path) -> None:
    (other_folder / "manifest.json").write_text('{"schema": 99, "variants": {}}')
    with pytest.raises(ManifestError, match="has schema 99; this package reads 2"):
        generated.load(NAME)


def test_load_finds_a_missing_manifest(other_folder: Path) -> None:
    (other_folder / "manifest.json").unlink()
    with pytest.raises(ManifestError, match=r"manifest\.json is missing: run `wgsl-attention generate`"):
        generated.load(NAME)


def test_loading_needs_neither_jinja_nor_a_gpu() -> None:
    code = f"""
import sys
from wgsl_attention import generated
variant = generated.load({NAME!r})
assert variant.wgsl and variant.bindings and variant.params["mask"] == "causal"
print(sorted({{"wgpu", "wgpudawn", "jinja2"}} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_other_variants_render_on_demand() -> None:
    for _ in range(2):  # importing the module of that name must not take the function's place
        variant = wa.render(AttentionBackward(wg=64, head_dim=7, mask="window"))
    assert isinstance(variant, RenderedVariant) and variant.name not in generated.NAMES
    assert variant.params == {
        "wg": 64,
        "head_dim": 7,
        "at_most": False,
        "mask": "window",
        "guard": "zero",
        "overwrite": False,
        "seg_uniform": False,
    }


# Constants of the pipeline

DKDV = "attention_dkdv_rows64_cols64_rr8_cr4_chunk16_qrows64_kcols64_joint"
OPEN = "attention_dq_rows64_cols64_rr8_cr4_chunk16_qrows64_kcols64"
RIGHT: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    (DKDV, {"head_dim": 128, "v_head_dim": 64}, {"HEAD_DIM": 128, "V_HEAD_DIM": 64}),
    (DKDV, {"head_dim": 4, "v_head_dim": 256, "heads": 0.5}, {"HEAD_DIM": 4, "V_HEAD_DIM": 256}),
    (OPEN, {"head_dim": 72}, {"HEAD_DIM": 72}),
    (NAME, {}, {}),
]
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (DKDV, {"head_dim": 64}, "v_head_dim: got nothing"),
    (DKDV, {"v_head_dim": 64}, "head_dim: got nothing"),
    (DKDV, {"head_dim": 64, "v_head_dim": 30}, "v_head_dim: got 30"),
    (OPEN, {"head_dim": None}, "head_dim: got nothing"),
    (OPEN, {"head_dim": 0}, "head_dim: got 0"),
    (OPEN, {"head_dim": -4}, "head_dim: got -4"),
    (OPEN, {"head_dim": 260}, "head_dim: got 260"),
    (OPEN, {"head_dim": 64.5}, "head_dim: got 64.5"),
    (OPEN, {"head_dim": "64"}, "head_dim: got 64"),
]


@pytest.mark.parametrize(("name", "sizes", "values"), RIGHT)
def test_constants(name: str, sizes: dict[str, Any], values: dict[str, int]) -> None:
    assert generated.constants(generated.load(name), sizes) == values


@pytest.mark.parametrize(("name", "sizes", "told"), WRONG)
def test_constants_refuse_by_name(name: str, sizes: dict[str, Any], told: str) -> None:
    with pytest.raises(
        ArgumentError, match=rf"^{told}; want one of the multiples of 4 from 4 to 256, for V?_?HEAD_DIM of {name}$"
    ):
        generated.constants(generated.load(name), sizes)


def test_constants_of_a_problem() -> None:
    problem = Problem(q_len=64, kv_len=64, heads=1, kv_heads=1, head_dim=72, mask=Mask.full())
    assert generated.constants(generated.load(DKDV), problem) == {"HEAD_DIM": 72, "V_HEAD_DIM": 72}


# JavaScript

JS = """
import * as kernels from MODULE;
const sizes = %(sizes)s;
const found = {};
for (const name of kernels.NAMES) {
  const variant = await kernels.load(name);
  found[name] = { dispatches: sizes.map((each) => kernels.dispatch(variant, each)), wgsl: variant.wgsl, name: variant.name };
}
let refused = "";
try { await kernels.load("x"); } catch (error) { refused = `${error.name}: ${error.message}`; }
let incomplete = "";
try {
  kernels.dispatch(await kernels.load(%(name)s), { q_len: 4 });
} catch (error) { incomplete = `${error.name}: ${error.message}`; }
console.log(JSON.stringify({ found, refused, incomplete, same: JSON.stringify(await kernels.manifest()) }));
"""


def run_js(program: str, tmp_path: Path) -> Any:
    """What a program prints, as JSON; ``MODULE`` in it is where the ES module is."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    script = tmp_path / "check.mjs"
    script.write_text(program.replace("MODULE", json.dumps((FOLDER / "index.mjs").as_uri())))
    ran = subprocess.run([node, str(script)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


JS_CONSTANTS = """
import * as kernels from MODULE;
const said = [];
for (const [name, sizes] of CASES) {
  try {
    said.push(kernels.constants(await kernels.load(name), sizes));
  } catch (error) {
    said.push(`${error.name}: ${error.message}`);
  }
}
console.log(JSON.stringify(said));
"""


def test_constants_are_the_same_in_javascript(tmp_path: Path) -> None:
    cases = [case[:2] for case in (*RIGHT, *WRONG)]
    wanted: list[Any] = [values for _, _, values in RIGHT]
    for name, sizes, _ in WRONG:
        with pytest.raises(ArgumentError) as refused:
            generated.constants(generated.load(name), sizes)
        wanted.append(f"RangeError: {refused.value}")
    assert run_js(JS_CONSTANTS.replace("CASES", json.dumps(cases)), tmp_path) == wanted


def test_names_that_left_are_the_same_in_javascript(tmp_path: Path) -> None:
    names = [*LEFT, "attention_scores_rows64_cols64_rr8_cr4_chunk16_d30_span1", "attention_backward_wg32_d64_full", "x", ""]
    wanted = []
    for name in names:
        now = manifest.successor(name)
        wanted.append(f"RangeError: {name} is {f'now {now}' if now else 'not a checked-in variant; NAMES lists them'}")
    assert run_js(JS_CONSTANTS.replace("CASES", json.dumps([[name, {}] for name in names])), tmp_path) == wanted


def test_es_module(tmp_path: Path) -> None:
    every = {factor for v in catalog.checked_in().values() for axis in "xyz" for factor in getattr(v.dispatch, axis).factors}
    sizes = [
        {
            **dict.fromkeys(sorted(every), 3),
            "seq_len": 5000,
            "heads": 32,
            "kv_heads": 8,
            "half_head_dim": 64,
            "q_len": 1025,
            "kv_len": 77,
        },
        {**dict.fromkeys(sorted(every), 1), "seq_len": 2_000_000, "half_head_dim": 128, "batch": 2},
    ]
    said = run_js(JS % {"sizes": json.dumps(sizes), "name": json.dumps(NAME)}, tmp_path)
    assert list(said["found"]) == list(generated.NAMES) and json.loads(said["same"]) == manifest.entries()
    folded = 0
    for name, found in said["found"].items():
        variant = generated.load(name)
        assert found["dispatches"] == [list(variant.dispatch(each)) for each in sizes], name
        assert found["name"] == name and found["wgsl"].endswith(variant.wgsl)
        assert found["wgsl"].count("enable ") == len(variant.extensions)
        folded += any(max(counts) > 1 and counts[1] > 1 and variant.dispatch_data.flat for counts in found["dispatches"])
        if variant.dispatch_data.flat:
            assert all(max(counts) <= MAX_WORKGROUPS for counts in found["dispatches"])
    assert folded, "no dispatch was folded over y"
    assert said["refused"] == "RangeError: x is not a checked-in variant; NAMES lists them"
    assert said["incomplete"].startswith(f"RangeError: {NAME}: sizes.heads is undefined")


def test_typescript_knows_every_name(files: dict[str, str]) -> None:
    names = files["index.d.ts"].partition("export type Name =")[2].partition(";")[0]
    assert re.findall(r'"(\w+)"', names) == list(generated.NAMES)
    assert json.loads(files["package.json"])["main"] == "index.mjs"


def test_typescript_knows_every_fact(files: dict[str, str]) -> None:
    """The interfaces have the members that the manifest has, in its order."""
    found = dict(re.findall(r"export interface (\w+) \{\n(.*?)\n\}", files["index.d.ts"], re.DOTALL))
    members = {name: re.findall(r"^  (\w+): ", text, re.MULTILINE) for name, text in found.items()}
    entry = manifest.entries()[NAME]
    words = next(binding["words"] for binding in entry["bindings"] if binding["words"])
    for name, said in {
        "Entry": entry,
        "Binding": entry["bindings"][0],
        "Constant": manifest.entries()[OPEN]["constants"][0],
        "Word": words[0],
        "Serves": entry["serves"],
        "Dispatch": entry["dispatch"],
        "Count": entry["dispatch"]["x"],
    }.items():
        assert members[name] == list(said), name
    assert "  max_seq: number | null;" in found["Serves"] and '  type: "u32" | "i32" | "f32";' in found["Word"]
    assert "  head_dim: [number, number];" in found["Serves"] and "  words: Word[];" in found["Binding"]
    with pytest.raises(TypeError, match="no type for"):
        typescript.type_of(set[int])
