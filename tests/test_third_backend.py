"""A runtime that specx has never heard of: a module and an entry point are all it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TABLES = Path(__file__).parent.parent / "models" / "toy"
PAIR = ["-m", str(TABLES / "verifier.toml"), "-md", str(TABLES / "drafter.toml")]

PLAIN = """
from specx_backends.toy import backend as toy

class Factory:
    name = "third"
    options = toy.options

    def load(self, model, options):
        return toy.load(model, options)

    def about(self):
        return {"third": "3.0"}

backend = Factory()
"""
TALKATIVE = (
    PLAIN
    + """
Factory.title = "The Third"
Factory.counterpart = "toy"
"""
)
GREEDY = (
    PLAIN
    + """
from specx.runtime.memory import MemoryNeeded

def memory_needed(self, model, options):
    return MemoryNeeded(name="third.bin", n_ctx=options.n_ctx or 512, bytes_per_position=1e15)

def load(self, model, options):
    raise SystemExit("it was loaded")

Factory.memory_needed, Factory.load = memory_needed, load
"""
)


def specx(
    folder: Path, code: str, *args: str, requires: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command beside an installed distribution whose backend is `code`."""
    (folder / "third.py").write_text(code)
    about = folder / "third-1.2.dist-info"
    about.mkdir(exist_ok=True)
    extra = "Provides-Extra: third\n" + "".join(
        f'Requires-Dist: {name}>=1; extra == "third"\n' for name in requires
    )
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: third\nVersion: 1.2\n{extra if requires else ''}"
    )
    (about / "entry_points.txt").write_text("[specx.backends]\nthird = third:backend\n")
    paths = [str(folder), *sys.path]
    return subprocess.run(
        [sys.executable, "-m", "specx", *args],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def test_it_is_listed_with_the_version_of_what_registered_it(tmp_path: Path) -> None:
    assert "third: third 1.2\n" in specx(tmp_path, PLAIN, "--version").stdout
    assert "third: third 3.0\n" in specx(tmp_path, PLAIN, "--devices").stdout


def test_it_says_itself_what_it_is_made_of(tmp_path: Path) -> None:
    done = specx(tmp_path, TALKATIVE, "--version", requires=("numpy", "third"))
    lines = done.stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("third: ")]
    assert line.startswith("third: numpy ")
    assert line.endswith(", third 1.2")


def test_one_that_cannot_be_imported_hides_no_other(tmp_path: Path) -> None:
    done = specx(tmp_path, "import third_runtime", "--devices")
    assert "third: backend 'third' (third:backend) cannot be imported: No module" in done.stdout
    assert "toy: " in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_it_writes_what_its_model_says(tmp_path: Path) -> None:
    args = [*PAIR, "-p", "", "-n", "12", "-s", "1", "--json"]
    third, toy = (
        specx(tmp_path, PLAIN, "run", "--backend", name, *args) for name in ("third", "toy")
    )
    assert third.returncode == 0, third.stderr
    assert json.loads(third.stdout)["text"] == json.loads(toy.stdout)["text"]


def compare(folder: Path, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "abba", "id": "one"}\n')
    short = ["-f", str(prompts), "-n", "20", "-r", "2", "--ignore-eos"]
    return specx(folder, code, "compare", "--backend", "third", *PAIR, *short, *args)


def test_it_is_compared_under_its_title_with_the_backend_it_names(tmp_path: Path) -> None:
    done = compare(tmp_path, TALKATIVE)
    assert done.returncode == 0, done.stderr
    assert "The Third" in done.stdout
    assert "toy" in done.stdout


def test_one_that_names_no_other_is_compared_with_what_is_asked_for(tmp_path: Path) -> None:
    done = compare(tmp_path, PLAIN)
    assert done.returncode == 2
    assert "nothing to compare backend 'third' with" in done.stderr
    done = compare(tmp_path, PLAIN, "--against-backend", "toy")
    assert done.returncode == 0, done.stderr
    assert "third" in done.stdout


@pytest.mark.parametrize("extra", [[], ["--draft-backend", "toy"]])
def test_its_memory_is_counted_before_anything_is_loaded(tmp_path: Path, extra: list[str]) -> None:
    args = ["run", "--backend", "third", *extra, *PAIR, "-p", "", "-c", "300"]
    done = specx(tmp_path, GREEDY, *args)
    assert done.returncode == 2
    assert done.stderr.startswith("specx: the KV cache of third.bin at 300 positions ")
    assert done.stderr.count("third.bin") == (1 if extra else 2)
    assert "free some memory" in done.stderr
