"""`specx trim`: writes a model whole or not at all, and says in one line what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from inprocess import specx

from specx.bench.suites import suite
from specx.cli.files import InputFile, Model, OutputPath
from specx.cli.trim import trim
from specx.errors import UsageError
from specx.output import OutputFile
from specx.records.kinds import kind_of
from specx.runtime.metadata import read_metadata


@pytest.fixture
def drafter(demo_drafter: Path, tmp_path: Path) -> Path:
    path = tmp_path / "drafter.gguf"
    path.write_bytes(demo_drafter.read_bytes())
    return path


def n_tokens(path: Path) -> int:
    return read_metadata(path).arrays["tokenizer.ggml.tokens"].count


def test_the_trimmed_drafter_runs(drafter: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.gguf"
    done = specx("trim", str(drafter), "-o", str(small), "--keep", "1024")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r".*small\.gguf: 1,024 of 2,048 vocabulary entries; \d MB of \d MB\n", done.stdout
    )
    assert n_tokens(small) == 1024
    assert sorted(os.listdir(tmp_path)) == ["drafter.gguf", "small.gguf"]
    run = specx("run", "-m", str(small), "-p", "import ", "-n", "8", "--temp", "0")
    assert run.returncode == 0
    assert run.stdout.strip()


def test_a_corpus_and_a_suite_rank_the_entries(drafter: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(prompt.text for prompt in suite("code")), encoding="utf-8")
    by = {"corpus": ["--corpus", str(corpus)], "suite": ["--suite", "code"], "order": []}
    tokens = {}
    for name, options in by.items():
        small = tmp_path / f"{name}.gguf"
        done = specx("trim", str(drafter), "-o", str(small), "--keep", "700", *options)
        assert done.returncode == 0
        assert ("of the text's tokens" in done.stdout) == (name != "order")
        tokens[name] = small.read_bytes()
    assert tokens["corpus"] != tokens["order"]
    assert tokens["suite"] != tokens["order"]


def test_a_trimmed_model_is_replaced_and_another_file_only_by_force(
    drafter: Path, tmp_path: Path
) -> None:
    small, own = tmp_path / "small.gguf", tmp_path / "own.gguf"
    own.write_bytes(drafter.read_bytes())
    for keep in (1024, 600):
        assert specx("trim", str(drafter), "-o", str(small), "--keep", str(keep)).returncode == 0
    assert n_tokens(small) == 600
    assert kind_of(small) == "trimmed model"
    refused = specx("trim", str(drafter), "-o", str(own), "--keep", "600")
    assert refused.returncode == 2
    assert "not a result of specx" in refused.stderr
    assert n_tokens(own) == 2048
    forced = specx("trim", str(drafter), "-o", str(own), "--keep", "600", "--force", "-q")
    assert (forced.returncode, forced.stdout, n_tokens(own)) == (0, "", 600)


def test_the_input_is_never_the_output(drafter: Path, tmp_path: Path) -> None:
    before = drafter.read_bytes()
    (tmp_path / "link.gguf").symlink_to(drafter)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("text")
    for output in ("drafter.gguf", "link.gguf", "corpus.txt"):
        args = ["-o", str(tmp_path / output), "--keep", "600", "--corpus", str(corpus), "--force"]
        done = specx("trim", str(drafter), *args)
        assert done.returncode == 2
        assert "reads; name another file" in done.stderr
    assert drafter.read_bytes() == before
    kinds = [type(param.type) for param in trim.params]
    assert {Model, InputFile, OutputPath} <= set(kinds)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["drafter.gguf", "--keep", "9999"], "has 2,048 vocabulary entries; pass fewer"),
        (["drafter.gguf", "--keep", "9"], r"the 257 special and byte tokens .* pass 257 or more"),
        (["drafter.gguf", "--keep", "0"], "--keep"),
        (["text.gguf", "--keep", "600"], "is not a GGUF file"),
        (["none.gguf", "--keep", "600"], "no such file"),
        ([".", "--keep", "600"], "is a directory"),
        (["drafter.gguf", "--keep", "600", "-o", "no/such.gguf"], "No such file or directory"),
        (["drafter.gguf", "--keep", "600", "--corpus", "none.txt"], "cannot read --corpus"),
        (["drafter.gguf", "--keep", "600", "--corpus", "."], "cannot read --corpus"),
        (["drafter.gguf", "--keep", "600", "--corpus", "empty.txt"], "are empty"),
        (["drafter.gguf", "--keep", "600", "--suite", "poems"], "unknown kind of prompt 'poems'"),
        (["drafter.gguf", "--keep", "600", "--suite", "all", "--corpus", "empty.txt"], "exclude"),
        (["drafter.gguf", "--keep", "600", "--backend", "toy"], "cannot trim models"),
        (["drafter.gguf", "--keep", "600", "--backend", "x"], "unknown backend 'x'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    drafter: Path, tmp_path: Path, args: list[str], reason: str
) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "empty.txt").touch()
    before = sorted(os.listdir(tmp_path))
    output = [] if "-o" in args else ["-o", "small.gguf"]
    done = specx("trim", *args, *output, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(reason, done.stderr)
    assert done.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before


def failing(error: BaseException) -> Iterator[bytes]:
    yield b"new" * 1000
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("x")])
def test_an_output_that_is_interrupted_leaves_the_old_file(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "small.gguf"
    path.write_text("old")
    output = OutputFile(path)
    with pytest.raises(type(error)):
        output.write_chunks(failing(error))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["small.gguf"]
    output.write_chunks([b"a", b"b"])
    assert path.read_bytes() == b"ab"


def test_a_disk_that_fills_up_is_told_in_one_line(tmp_path: Path) -> None:
    output = OutputFile(tmp_path / "small.gguf")
    with pytest.raises(UsageError, match=r"cannot write -o .*small\.gguf: No space left"):
        output.write_chunks(failing(OSError(28, "No space left on device")))
    assert os.listdir(tmp_path) == []
