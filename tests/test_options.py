"""Any options of `specx run`: the run, or one line; and no file is left half written.

The options are those that the command declares, so that a new one is tried without a change here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import click
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from inprocess import specx

from specx.cli.files import InputFile, Model, OutputPath
from specx.cli.run import run
from specx.records.kinds import kind_of
from specx.records.trace import read_trace
from specx.schedule import read_steps

TABLE = """
vocabulary = ["<s>", "</s>", "one", " two", "a", "b", "é"]
bos = "<s>"
eog = ["</s>"]
context = 64
[[row]]
next = { one = 0.5, " two" = 0.2, a = 0.1, b = 0.1, "</s>" = 0.1 }
[[row]]
after = [" two"]
next = { a = 0.6, b = 0.4 }
"""
FILES = {
    "v.toml": TABLE,
    "d.toml": TABLE.replace("0.5", "0.3").replace("0.2", "0.4"),
    "prompt.txt": "one two",
    "not.utf8": "caf\udce9",
    "empty": "",
    "notes": "notes of mine\n",
    "no.json": '{"specx_profile": "?"}',
}
PAIR = ["--backend", "toy", "-m", "v.toml", "-md", "d.toml"]
WHERE = [
    "trace.jsonl",
    "steps.jsonl",
    "new",
    "folder",
    "folder/new",
    "no/such/folder",
    "sub/../new",
]
WORDS = [
    "auto",
    "model",
    "lookup",
    "model,lookup",
    "toy",
    "llamacpp",
    "f16",
    "cpu",
    "a=1",
    "a=[",
    "|",
]
ODD = ["", " ", ",", ",,", "1,2", "0-4", "²", "１２", "é→😀", "a\nb", "-", "--", "-1", "\0", "a\0b",
       "\ud83d", "\udce9", "\u2028", "\x1b[31m", "x" * 5000, "9" * 5000, "1_000", "0x10", "true",
       "nan", "inf", "-inf", "1e999", "1e-320", "-0.0", ".5", "2024-02-30"]  # fmt: skip
HUGE = [-(2**63), -1, 1025, 2**31, 2**32 - 1, 2**53, 2**64, 10**30]
EDGES = [-1.0, -0.5, 0.0, 1e-9, 1.0, 1.01, 1e6, 1e308]

Words: TypeAlias = st.SearchStrategy[list[str]]


def usual(kind: click.ParamType[Any]) -> st.SearchStrategy[str]:
    """Values as an option of this kind may have them, in its range and out of it."""
    if isinstance(kind, click.Choice):
        return st.sampled_from([str(choice) for choice in kind.choices])
    if isinstance(kind, click.types.IntParamType):
        return (st.integers(0, 20) | st.integers(1, 99) | st.sampled_from(HUGE)).map(str)
    if isinstance(kind, click.types.FloatParamType):
        return (st.floats(0, 1) | st.floats(0.01, 1) | st.sampled_from(EDGES)).map(str)
    if isinstance(kind, click.DateTime):
        return st.dates().map(str)
    if isinstance(kind, OutputPath):
        return st.sampled_from([*WHERE, *FILES])
    if isinstance(kind, InputFile | Model):
        return st.sampled_from([*FILES, *WHERE])
    return st.sampled_from(WORDS) | st.integers(0, 20).map(str)


def spelled(option: click.Parameter) -> Words:
    """One option with a value, by any of its names."""
    names = st.sampled_from(option.opts)
    if isinstance(option, click.Option) and option.is_flag:
        return names.map(lambda name: [name])
    odd = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=()), max_size=4)
    values = st.one_of(*[usual(option.type)] * 7, odd)  # one in eight is odd
    return st.tuples(names, values).map(list)


# "hf" is no word here: it would ask the network for a model that is no file.
OPTIONS = [option for option in run.params if isinstance(option, click.Option)]
WRITTEN = [option for option in OPTIONS if isinstance(option.type, OutputPath)]
MODELS = {name for option in OPTIONS if isinstance(option.type, Model) for name in option.opts}
ANY, OUTPUT = (st.one_of(*map(spelled, options)) for options in (OPTIONS, WRITTEN))
FORCE = st.sampled_from([[], [], ["--force"]])
GIVEN: Words = st.tuples(
    st.lists(ANY, max_size=2), st.lists(OUTPUT, max_size=2), FORCE, st.lists(ANY, max_size=1)
).map(lambda parts: [*chain(*parts[0], *parts[1], parts[2], *parts[3])])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files in which each example begins, results of an earlier run among them."""
    folder = tmp_path_factory.mktemp("sound")
    begin(folder, {name: text.encode(errors="surrogateescape") for name, text in FILES.items()})
    results = ["--trace", "trace.jsonl", "--gamma-trace", "steps.jsonl"]
    done = specx("run", *PAIR, "-p", "one", "-n", "20", "-s", "1", *results, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(contents(folder))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


def begin(folder: Path, files: dict[str, bytes]) -> None:
    """Make `folder` hold these files, a folder, and nothing else."""
    for name in dict(contents(folder)).keys() - files.keys():
        (folder / name).unlink()
    (folder / "folder").mkdir(exist_ok=True)
    (folder / "sub").mkdir(exist_ok=True)
    for name, data in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


@settings(max_examples=500, deadline=None, derandomize=True)
@example(args=["--temp", "nan"])
@example(args=["--trace", "a\0b"])
@example(args=["-p", "\ud83d"])
@example(args=["--gamma-trace", "new", "--trace", "new"])
@example(args=["--trace", "v.toml", "--force"])
@given(args=GIVEN)
def test_any_options_give_a_run_or_one_line(
    args: list[str], sound: dict[str, bytes], place: Path
) -> None:
    begin(place, sound)
    done = specx("run", *PAIR, *args, stdin="one", cwd=place)
    event(f"exit code {done.returncode}")
    assert done.returncode in (0, 2), done
    assert "Traceback" not in done.stdout + done.stderr
    if done.returncode == 2:
        assert done.stderr.startswith("specx: "), done
        assert done.stderr.count("\n") == 1, done
        assert done.stdout == ""
    found = dict(contents(place))
    assert sound.keys() <= found.keys()
    changed = {name for name, data in found.items() if data != sound.get(name)}
    assert done.returncode == 0 or not changed, f"{changed} was written, and then: {done}"
    if not MODELS.intersection(args):
        assert not changed & {"v.toml", "d.toml"}, "a file was read and overwritten"
    if "--force" not in args:
        foreign = changed & sound.keys() - {"trace.jsonl", "steps.jsonl", "empty"}
        assert not foreign, "another's work was overwritten"
    for name in changed:
        assert_whole(place / name)


def assert_whole(path: Path) -> None:
    """Assert that a trace has its summary, or that the choices of a run can be read."""
    if kind_of(path) == "trace":
        assert read_trace(path).summary is not None
    else:
        read_steps(path)


def test_every_option_is_tried() -> None:
    """A parameter of another sort would be left out above."""
    assert len(OPTIONS) == len(run.params) > 40
