"""How the package hangs together: which room imports which, what importing it costs, what a wheel must carry."""

from __future__ import annotations

import ast
import glob
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import wgsl_attention

ROOT = Path(__file__).resolve().parents[1]
CODEGEN = ROOT / "codegen"

HEAVY = {"jinja2", "wgpu", "wgpudawn"}
MAX_LINES = 320

MODULES = {
    ".".join(path.relative_to(CODEGEN).with_suffix("").parts): path
    for path in sorted(CODEGEN.rglob("*.py"))
    if path.stem != "__init__"
} | {"generated": ROOT / "generated" / "__init__.py", "__init__": CODEGEN / "__init__.py"}
ROOMS = sorted(path.parent.name for path in CODEGEN.glob("*/__init__.py"))


def lint(package_parent: Path | None = None) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict by the contracts in pyproject.toml, on the installed package or on one in another folder."""
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    path = {} if package_parent is None else {"PYTHONPATH": str(package_parent)}
    arguments = [sys.executable, "-c", program, str(ROOT / "pyproject.toml")]
    return subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        cwd=package_parent or ROOT,
        env={**os.environ, **path},
    )


def test_a_room_imports_only_rooms_below_it() -> None:
    done = lint()
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "source", "broken"),
    [
        ("problem/mask.py", "from ..kernels import variant", "a room imports only rooms below it"),
        ("gpu/device.py", "def f():\n    from ..planning import plans", "a room imports only rooms below it"),
        ("selection/ranking.py", "import jinja2", "only rendering.renderer knows Jinja2"),
        ("planning/plans.py", "import wgpu", "only gpu opens devices"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, broken: str, tmp_path: Path) -> None:
    copy = tmp_path / "wgsl_attention"
    shutil.copytree(CODEGEN, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("templates", "generated"):
        (copy / name).mkdir()
        shutil.copy(ROOT / name / "__init__.py", copy / name)
    with (copy / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{source}\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{broken} BROKEN" in done.stdout.replace("\n", " ")


def test_every_room_is_a_package_that_the_wheel_holds() -> None:
    """A folder that pyproject.toml does not list works in a checkout, and is missing from the wheel."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    rooms = {"wgsl_attention", "wgsl_attention.templates", "wgsl_attention.generated", *(f"wgsl_attention.{r}" for r in ROOMS)}
    assert set(setuptools["packages"]) == rooms
    folders = {path.parent.relative_to(CODEGEN).parts for path in CODEGEN.rglob("*.py")}
    assert folders == {(), *((room,) for room in ROOMS)}


def test_the_face_is_what_it_says() -> None:
    """``__all__`` names what the face imports, and nothing else."""
    face = ast.parse((CODEGEN / "__init__.py").read_text(encoding="utf-8"))
    imported = {alias.asname or alias.name for node in face.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(imported - {"annotations"}) == sorted(wgsl_attention.__all__)


def test_no_module_bears_the_name_of_a_public_function() -> None:
    """One word is one thing: a reader, and ``from wgsl_attention import it``, should not meet the module for the function.

    The command line's modules are named as its commands are.
    """
    parts = {part for name in MODULES if not name.startswith("cli.") for part in name.split(".")}
    assert parts.isdisjoint(wgsl_attention.__all__)


def absolute_imports(module: str, source: str) -> set[str]:
    """Every name that a module's source imports anywhere, made absolute; ``from a import b`` gives ``a.b``."""
    package = ["wgsl_attention", "generated"] if module == "generated" else ["wgsl_attention", *module.split(".")[:-1]]
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


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
    program = f"import sys, {name}; print(*sorted({{m.partition('.')[0] for m in sys.modules}} & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


PACKAGES = {
    "wgsl_attention": CODEGEN,
    "wgsl_attention.templates": ROOT / "templates",
    "wgsl_attention.generated": ROOT / "generated",
}
PACKAGES |= {f"wgsl_attention.{room}": CODEGEN / room for room in ROOMS}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_shipped(package: str) -> None:
    """Package data is a list of patterns: a file that none of them matches works in a checkout and is missing from a wheel."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    top = PACKAGES[package]
    assert setuptools["package-dir"].get(package, f"codegen/{top.name}") == top.relative_to(ROOT).as_posix()
    # setuptools ships the modules of the folder itself, and reads the patterns with glob.
    shipped = {path.name for path in top.glob("*.py")}
    for pattern in setuptools["package-data"].get(package, []):
        shipped.update(glob.glob(pattern, root_dir=top, recursive=True))
    within = {other for other in PACKAGES.values() if other != top and top in other.parents}
    files = {path for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    own = {path.relative_to(top).as_posix() for path in files if not within & set(path.parents)}
    assert own - shipped == set()
