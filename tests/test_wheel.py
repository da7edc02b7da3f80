"""What a user installs: built once, read, and used away from the checkout."""

import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_only_our_packages_are_at_the_top(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"specx", "specx_backends"}


def test_every_module_and_the_type_markers_are_in(names: list[str]) -> None:
    for package in (ROOT / "specx", ROOT / "backends" / "specx_backends"):
        files = {p.relative_to(package.parent).as_posix() for p in package.rglob("*.py")}
        assert files | {f"{package.name}/py.typed"} <= set(names)


def test_models_are_package_data_and_test_models_stay_out(wheel: Path, names: list[str]) -> None:
    assert "specx/_models/README.md" in names
    assert not [name for name in names if "models/test" in name]
    assert wheel.stat().st_size < 40_000_000


def test_the_prompt_suites_are_package_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = archive.read("specx/_models/suites/prompts.jsonl")
    assert shipped == (ROOT / "models" / "suites" / "prompts.jsonl").read_bytes()


def test_nothing_else_is_in(wheel: Path) -> None:
    command = [sys.executable, "-m", "check_wheel_contents", str(wheel)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_base_install_is_light(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    base = [r for r in headers.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert not [r for r in base if r.startswith(("torch", "transformers", "safetensors"))]
    assert all(">=" in requirement for requirement in base)


def test_it_runs_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    library, empty = tmp_path / "library", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(library)
    code = "import specx, specx_backends.toy as toy; print(specx.__file__, toy.__file__)"
    suites = "from specx.bench.suites import suite; print(*(prompt.id for prompt in suite('all')))"
    demo = ["-m", "specx", "run", "-p", "def fibonacci(n):", "-n", "16", "-s", "1", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(library)}
    for arguments in (["-c", code], ["-c", suites], ["-m", "specx", "run", "--help"], demo):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=empty,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip()
        if arguments[-1] == code:
            assert [str(library) in path for path in done.stdout.split()] == [True, True]
