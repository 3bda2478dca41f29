"""How the package hangs together: the ranks of its modules, what importing it costs, what a wheel must carry."""

from __future__ import annotations

import ast
import glob
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODEGEN = ROOT / "codegen"

# A module imports only modules of a lower rank. A new one gets the lowest rank that its imports allow.
RANKS = {
    "caches": 0,
    "errors": 0,
    "buffers": 1,
    "documents": 1,
    "mask": 1,
    "profile": 1,
    "strides": 1,
    "toolchains": 1,
    "tune_log": 1,
    "wgsl_lexer": 1,
    "backends": 2,
    "memory": 2,
    "problem": 2,
    "variant": 2,
    "wgsl_text": 2,
    "cli_common": 3,
    "doctor": 3,
    "intervals": 3,
    "kernels": 3,
    "manifest": 3,
    "pipelines": 3,
    "recipe": 3,
    "render": 3,
    "rope_kernels": 3,
    "tiled_rows": 3,
    "uniformity": 3,
    "words": 3,
    "algorithms": 4,
    "device": 4,
    "generated": 4,
    "reference": 4,
    "scratch": 4,
    "static_checks": 4,
    "tiled": 4,
    "accuracy": 5,
    "gradcases": 5,
    "tiles": 5,
    "torch_runner": 5,
    "uniforms": 5,
    "validate_report": 5,
    "catalog": 6,
    "tiled_recipe": 6,
    "build": 7,
    "choices": 7,
    "cli_catalog": 7,
    "texts": 7,
    "rope": 8,
    "space": 8,
    "tuning": 8,
    "tuning_files": 9,
    "select": 10,
    "cases": 11,
    "contenders": 11,
    "plan": 11,
    "run": 12,
    "timing": 12,
    "validate_matrix": 12,
    "arrays": 13,
    "bench_report": 13,
    "gradcheck": 13,
    "validate": 13,
    "validate_worker": 13,
    "bench_plot": 14,
    "cli_gradcheck": 14,
    "twin": 14,
    "bench": 15,
    "cli": 15,
    "trial": 15,
    "tune_plot": 15,
    "search": 16,
    "tuner": 17,
    "__init__": 18,
    "tune_report": 18,
    "cli_tune": 19,
    "__main__": 19,
}

# Heavy or optional packages, and the modules that may import them, at their head or inside a function.
IMPORTERS = {
    "jinja2": {"render"},
    "wgpu": {"device", "backends"},
    "wgpudawn": {"device", "backends"},
}
MAX_LINES = 320

MODULES = {path.stem: path for path in sorted(CODEGEN.glob("*.py"))} | {"generated": ROOT / "generated" / "__init__.py"}


def absolute_imports(module: str, source: str) -> set[str]:
    """Every name that a module's source imports anywhere, made absolute; ``from a import b`` gives ``a.b``."""
    package = ["wgsl_attention", "generated"] if module == "generated" else ["wgsl_attention"]
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def own_modules(module: str, source: str) -> set[str]:
    """The package's modules that a module's source imports: ``from . import x`` and ``from .x import y`` both give ``x``."""
    found = set()
    for name in absolute_imports(module, source):
        first, _, rest = name.partition(".")
        if first == "wgsl_attention":
            imported = rest.partition(".")[0]
            # `import wgsl_attention` and `from . import some_function` read the face.
            is_module = imported == "templates" or imported in MODULES
            found.add(imported if is_module else "__init__")
    return found


def rank_faults(module: str, source: str) -> list[str]:
    """What a module imports and must not, one line each."""
    faults = []
    for name in [module, *sorted(own_modules(module, source) - {"templates"})]:
        if name not in RANKS:
            faults.append(f"{name} has no rank: add it to RANKS in tests/{Path(__file__).name}")
        elif module in RANKS and name != module and RANKS[name] >= RANKS[module]:
            faults.append(f"{module} (rank {RANKS[module]}) imports {name} (rank {RANKS[name]})")
    return faults


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_lower_ranks(module: str) -> None:
    assert rank_faults(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "from .profile import Limits"),
        ("problem", "from .variant import Variant"),
        ("profile", "def f():\n    from wgsl_attention import variant"),
        ("generated", "from .. import attention_backward"),
        ("plan", "import wgsl_attention"),
        ("plan", "from . import attention_backward"),
        ("surprise", ""),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(rank_faults(module, source)) == 1


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_where_they_belong(module: str) -> None:
    packages = {name.partition(".")[0] for name in absolute_imports(module, MODULES[module].read_text(encoding="utf-8"))}
    assert [name for name, importers in IMPORTERS.items() if name in packages and module not in importers] == []


@pytest.mark.parametrize("module", MODULES)
def test_the_package_has_one_name(module: str) -> None:
    """From the repository's root ``import codegen`` works too, and gives a second copy of every class."""
    packages = {name.partition(".")[0] for name in absolute_imports(module, MODULES[module].read_text(encoding="utf-8"))}
    assert packages.isdisjoint({"codegen", "templates", "generated"})


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_one_thing(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, "more than about 300 lines is usually two things"
    assert ast.get_docstring(ast.parse(text)), "its docstring says what the module is for"


@pytest.mark.parametrize("name", ["wgsl_attention", "wgsl_attention.generated"])
def test_importing_needs_no_gpu_and_no_templates(name: str) -> None:
    program = f"import sys, {name}; print(*sorted({{m.partition('.')[0] for m in sys.modules}} & {set(IMPORTERS)!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("package", "folder"),
    [("wgsl_attention", "codegen"), ("wgsl_attention.templates", "templates"), ("wgsl_attention.generated", "generated")],
)
def test_every_file_of_a_package_is_shipped(package: str, folder: str) -> None:
    """Package data is a list of patterns: a file that none of them matches works in a checkout and is missing from a wheel."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert setuptools["package-dir"][package] == folder
    top = ROOT / folder
    # setuptools ships the modules of the folder itself, and reads the patterns with glob.
    shipped = {path.name for path in top.glob("*.py")}
    for pattern in setuptools["package-data"][package]:
        shipped.update(glob.glob(pattern, root_dir=top, recursive=True))
    files = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert files - shipped == set()
