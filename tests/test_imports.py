"""Imports run one way; the order is design.md's."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPECX = ROOT / "specx"
BACKENDS = ROOT / "backends" / "specx_backends"

FLOORS = [
    floor.split()
    for floor in (
        "closing errors interrupts",
        "core",
        "runtime",
        "codec output shipped",
        "library",
        "drafters",
        "schedule",
        "session",
        "records",
        "bench check compare report serve tune verify",
        "specx",  # the package itself: what it offers to a library's user
        "cli __main__",
    )
]
"""From the ground up: a module imports from its own floor (never in a circle) and below."""

RUNTIMES = {"torch", "transformers", "llama_cpp", "gguf", "specx_backends"}
COMMAND_LINE = {"click", "prompt_toolkit", "rich"}
# tomli: before Python 3.11; typing_extensions: for type checkers alone.
CORE_USES = set("numpy jinja2 msgspec platformdirs psutil scipy tomli typing_extensions".split())
DRAWING = {"matplotlib"}
HUB = {"huggingface_hub"}
WEB = {"prometheus_client", "starlette", "uvicorn"}


def name_of(file: Path, package: Path) -> str:
    """``specx/cli/run.py`` -> ``specx.cli.run``."""
    parts = [package.name, *file.relative_to(package).with_suffix("").parts]
    return ".".join(part for part in parts if part != "__init__")


def imports_of(file: Path) -> set[str]:
    """Names of all modules that a file imports, also within functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            assert node.module is not None
            found.update(resolve(node.module, alias.name) for alias in node.names)
    return found


def resolve(module: str, name: str) -> str:
    """``from specx import pair`` imports a module, ``from specx.pair import Pair`` does not."""
    package = ROOT.joinpath(*module.split("."))
    is_module = (package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file()
    return f"{module}.{name}" if is_module else module


SPECX_IMPORTS = {name_of(file, SPECX): imports_of(file) for file in SPECX.rglob("*.py")}
BACKEND_IMPORTS = {name_of(file, BACKENDS): imports_of(file) for file in BACKENDS.rglob("*.py")}


def top(module: str) -> str:
    return module.split(".")[0]


def floor(module: str) -> int:
    """Of a module of specx, by the part of its name below the package."""
    part = module.split(".")[1] if "." in module else module
    floors = [i for i, names in enumerate(FLOORS) if part in names]
    assert floors, f"{module} has no floor: give it one, here and in design.md"
    return floors[0]


@pytest.mark.parametrize("module", sorted(SPECX_IMPORTS))
def test_a_module_imports_from_no_floor_above(module: str) -> None:
    own = {name for name in SPECX_IMPORTS[module] if top(name) == "specx"}
    assert {name for name in own if floor(name) > floor(module)} == set()


def test_no_module_imports_itself_through_others() -> None:
    TopologicalSorter(
        {
            module: {name for name in imported if top(name) == "specx" and name != module}
            for module, imported in SPECX_IMPORTS.items()
        }
    ).prepare()


@pytest.mark.parametrize("module", sorted(SPECX_IMPORTS))
def test_the_algorithm_knows_no_runtime(module: str) -> None:
    others = {top(name) for name in SPECX_IMPORTS[module]} - sys.stdlib_module_names - {"specx"}
    allowed = CORE_USES | COMMAND_LINE if floor(module) == floor("specx.cli") else CORE_USES
    if module == "specx.report.plots":
        allowed = allowed | DRAWING
    if module.startswith("specx.library."):
        allowed = allowed | HUB
    if module.startswith("specx.serve."):
        allowed = allowed | WEB
    assert others <= allowed


@pytest.mark.parametrize("module", sorted(BACKEND_IMPORTS))
def test_a_backend_knows_only_the_seam(module: str) -> None:
    own = {name for name in BACKEND_IMPORTS[module] if top(name) == "specx"}
    assert all(name == "specx.errors" or name.startswith("specx.runtime.") for name in own)


def test_importing_specx_loads_no_runtime() -> None:
    code = f"import sys, specx, specx.cli; print(*sorted({RUNTIMES!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
