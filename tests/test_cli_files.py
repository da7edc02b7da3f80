"""No command overwrites what it reads, what another output writes, or what is not its own."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from specx.cli import COMMANDS, cli, main
from specx.cli.files import READ, CacheFolder, Command, HubModel, Model, OutputPath
from specx.errors import UsageError
from specx.output import LineFile
from specx.records.kinds import BEGINNINGS, kind_of
from specx.records.trace import TraceWriter, read_trace
from specx.shipped import demo_pair, packaged

DOCS = Path(__file__).parent.parent / "docs"

TABLE = """
vocabulary = ["<s>", "</s>", "one", " two", " three", "\\n", "é"]
bos = "<s>"
eog = ["</s>"]
[[row]]
next = { one = 0.5, " two" = 0.5 }
"""

PLAIN_TEXT = {
    "prompt", "system_prompt", "stop", "suite", "backend", "draft_backend", "gamma", "rule",
    "temp", "top_p", "widths", "draft", "dtype", "dtype_draft", "device", "cache_type_k",
    "cache_type_v", "cache_type_k_draft", "cache_type_v_draft", "against_backend",
    "against_draft_backend", "against_ctk", "against_ctv", "against_dtype", "template_arg",
    "host", "api_key", "cors_origin",
    "thread_counts", "what_if", "remove",
}  # fmt: skip
"""Options whose text names no file."""


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for param in command.params:
            yield name, param


@pytest.mark.parametrize(("command", "param"), list(parameters()))
def test_every_option_says_whether_it_is_read_or_written(
    command: str, param: click.Parameter
) -> None:
    known = isinstance(param.type, (*READ, OutputPath, HubModel))
    raw = isinstance(param.type, click.Path | click.File)
    if raw or (param.metavar or "").strip("[].") in ("FILE", "DIR", "FILES", "TRACE"):
        assert known, f"{command} {param.name}: use a type of specx.cli.files"
    if type(param.type) is click.types.StringParamType:
        assert param.name in PLAIN_TEXT, f"{command} {param.name}: does it name a file?"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_checks_its_files(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, Command)
    writes = any(isinstance(param.type, OutputPath) for param in command.params)
    assert writes == ("force" in [param.name for param in command.params])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each thing that a command can read, which is also the working one."""
    for name in ("v.toml", "d.toml"):
        (tmp_path / name).write_text(TABLE)
    (tmp_path / "prompt.txt").write_text("one")
    (tmp_path / "suite.jsonl").write_text('{"prompt": "one"}\n')
    (tmp_path / "steps.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


PAIR = ["--backend", "toy", "-m", "v.toml", "-md", "d.toml"]
RUN = ["run", *PAIR, "-p", "one", "-n", "3"]


def specx(*args: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(args)
    return exit_.value.code


Output = pytest.CaptureFixture[str]


def assert_refused(capsys: Output, *words: str) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("specx: ")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([*RUN, "--trace", "v.toml"], "--trace v.toml is the file that -m v.toml reads"),
        ([*RUN, "--trace", "d.toml"], "--trace d.toml is the file that -md d.toml reads"),
        ([*RUN, "--gamma-trace", "v.toml"], "--gamma-trace v.toml is the file that -m v.toml"),
        (
            ["run", *PAIR, "-f", "prompt.txt", "--trace", "./prompt.txt"],
            "--trace prompt.txt is the file that -f prompt.txt reads",
        ),
        (
            [*RUN, "--gamma-replay", "steps.jsonl", "--gamma-trace", "steps.jsonl"],
            "--gamma-trace steps.jsonl is the file that --gamma-replay steps.jsonl reads",
        ),
        ([*RUN, "--profile", "p.json", "--trace", "p.json"], "file that --profile p.json reads"),
        (
            [*RUN, "--trace", "new.jsonl", "--gamma-trace", "../{name}/new.jsonl"],
            "--gamma-trace new.jsonl",
        ),
        (["bench", *PAIR, "-f", "suite.jsonl", "-o", "suite.jsonl"], "that -f suite.jsonl reads"),
        (["bench", *PAIR, "--trace", "v.toml"], "that -m v.toml reads"),
        (["bench", *PAIR, "--curve", "-o", "v.toml"], "that -m v.toml reads"),
        (["bench", *PAIR, "--resume", "-o", "v.toml"], "that -m v.toml reads"),
        (["bench", *PAIR, "-o", "b.json", "--trace", "b.json"], "the file that -o b.json writes"),
        (["compare", *PAIR, "--against", "v.gguf", "-o", "v.gguf"], "that --against v.gguf reads"),
        (["report", "t.jsonl", "-o", "t.jsonl"], "-o t.jsonl is the file that t.jsonl reads"),
        (["run", "--trace", demo_pair()[0]], "a file that came with specx"),
        (["bench", "-o", str(packaged("suites/prompts.jsonl"))], "a file that came with specx"),
    ],
)  # fmt: skip
def test_what_is_read_is_not_overwritten_even_by_force(
    place: Path, capsys: Output, args: list[str], words: str
) -> None:
    before = contents(place)
    args = [arg.format(name=place.name) for arg in args]
    words = words.replace("--gamma-trace new.jsonl", f"--gamma-trace ../{place.name}/new.jsonl")
    for more in ([], ["--force"]):
        assert specx(*args, *more) == 2
        assert_refused(capsys, words)
    assert contents(place) == before


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("spelling", ["link", "hard", "sub/../v.toml", "sub/v.toml"])
def test_another_name_of_a_file_is_that_file(place: Path, capsys: Output, spelling: str) -> None:
    (place / "sub").mkdir()
    (place / "link").symlink_to("v.toml")
    (place / "hard").hardlink_to("v.toml")
    (place / "sub" / "v.toml").symlink_to("../link")
    assert specx(*RUN, "--force", "--trace", spelling) == 2
    assert_refused(capsys, f"--trace {spelling} is the file that -m v.toml reads")
    assert (place / "v.toml").read_text() == TABLE


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_two_names_of_a_file_that_is_not_there_yet_are_one(place: Path, capsys: Output) -> None:
    (place / "link").symlink_to("new.jsonl")
    assert specx(*RUN, "--trace", "new.jsonl", "--gamma-trace", "link") == 2
    assert_refused(capsys, "--trace new.jsonl is the file that --gamma-trace link writes")


def test_a_model_is_all_its_files(place: Path, capsys: Output) -> None:
    shards = [f"m[1]-0000{i}-of-00002.gguf" for i in (1, 2)]
    for name in shards:
        (place / name).write_bytes(b"GGUF")
    assert specx("run", "-m", shards[0], "-p", "x", "--force", "--trace", shards[1]) == 2
    assert_refused(capsys, f"that -m {shards[0]} reads")
    (place / "folder").mkdir()
    (place / "folder" / "config.json").write_text("{}")
    (place / "cache" / "key").mkdir(parents=True)
    (place / "cache" / "key" / "model.safetensors").write_text("weights")
    hf = ["bench", "--backend", "hf", "-m", "folder", "--force"]
    assert specx(*hf, "-o", "folder/config.json") == 2
    assert_refused(capsys, "-o folder/config.json is the file that -m folder reads")
    assert specx(*hf, "--weights-cache", "cache", "-o", "cache/key/model.safetensors") == 2
    assert_refused(capsys, "is the file that --weights-cache cache reads")


def test_results_in_a_models_folder_are_no_part_of_it(place: Path) -> None:
    assert specx(*RUN, "--trace", "t.jsonl") == 0
    (place / "sub").mkdir()
    (place / "t.jsonl").rename(place / "sub" / "t.jsonl")
    (place / "sub" / "config.json").write_text("{}")
    assert list(Model().files("sub")) == [Path("sub/config.json")]
    assert list(CacheFolder().files(".")) == [Path("sub/config.json")]


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell")
@pytest.mark.parametrize(
    ("redirection", "words"),
    [
        ("< prompt.txt", "the file that standard input reads"),
        (">> prompt.txt", "the file that standard output goes to"),
    ],
)
def test_files_that_the_shell_opened_count(place: Path, redirection: str, words: str) -> None:
    command = f"{sys.executable} -m specx run --backend toy -m v.toml -n 3 --force"
    done = subprocess.run(
        f"{command} --trace prompt.txt {redirection}", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert (place / "prompt.txt").read_text() == "one"


# What is not specx's own


@pytest.mark.parametrize(
    "content", [b"notes of mine\n", b"\x89PNG\r\n\x1a\n", b'{"prompt": "x"}\n']
)
@pytest.mark.parametrize(
    ("args", "option"),
    [
        ([*RUN, "--trace"], "--trace"),
        ([*RUN, "--gamma-trace"], "--gamma-trace"),
        (["bench", *PAIR, "-n", "3", "-r", "1", "-f", "suite.jsonl", "--raw", "-o"], "-o"),
    ],
)
def test_a_foreign_file_is_overwritten_by_force_only(
    place: Path, capsys: Output, content: bytes, args: list[str], option: str
) -> None:
    (place / "a.json").write_bytes(content)
    assert specx(*args, "a.json") == 2
    assert_refused(
        capsys, f"{option} a.json would overwrite a file that is not a result", "--force"
    )
    assert (place / "a.json").read_bytes() == content
    assert specx(*args, "a.json", "--force") == 0
    assert kind_of(place / "a.json") in ("trace", "gamma trace", "bench result")
    assert specx(*args, "a.json") == 0  # now it is a result


def test_a_result_of_another_kind_is_not_overwritten(place: Path, capsys: Output) -> None:
    assert specx(*RUN, "--trace", "t.json") == 0
    capsys.readouterr()
    assert specx("bench", *PAIR, "--curve", "-o", "t.json") == 2
    assert_refused(capsys, "-o t.json would overwrite a file that holds a trace, not a profile")
    assert read_trace(place / "t.json").summary is not None


def test_an_empty_file_is_written_to(place: Path) -> None:
    (place / "t.jsonl").touch()
    assert specx(*RUN, "--trace", "t.jsonl") == 0
    assert kind_of(place / "t.jsonl") == "trace"


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("benchmarks/gamma-f16.json", "bench result"),
        ("benchmarks/curve-f16.json", "profile"),
        ("benchmarks/compare-runtime.json", "comparison"),
        ("benchmarks.md", None),
        ("study/words.md", None),
    ],
)
def test_results_of_earlier_versions_are_recognised(file: str, kind: str | None) -> None:
    assert kind_of(DOCS / file) == kind


def test_every_format_is_recognised(place: Path) -> None:
    bench = ["bench", *PAIR, "-n", "4", "-r", "1", "-f", "suite.jsonl", "--raw", "--gamma", "2"]
    written = {
        "b.json": bench, "b.jsonl": bench, "b.csv": bench, "b.md": bench,
        "p.json": [*bench, "--curve", "--widths", "1-3"],
        "c.json": ["compare", *bench[1:], "--against-draft", "v.toml"],
        "c.md": ["compare", *bench[1:], "--against-draft", "v.toml"],
        "r.html": ["report", "t.jsonl"],
    }  # fmt: skip
    kinds = {"b": "bench result", "p": "profile", "c": "comparison", "r": "report"}
    trace = ["--gamma", "2", "--rule", "token", "--trace", "t.jsonl", "--gamma-trace", "g.jsonl"]
    assert specx(*RUN, "-n", "30", *trace) == 0
    for file, args in written.items():
        assert specx(*args, "-o", file) == 0
    found = {file: kind_of(place / file) for file in [*written, "t.jsonl", "g.jsonl"]}
    expected = {file: kinds[file[0]] for file in written}
    assert found == {**expected, "t.jsonl": "trace", "g.jsonl": "gamma trace"}
    # scripts/study.py writes the first, /save in specx chat the second, specx trim the third
    assert set(found.values()) == set(BEGINNINGS) - {"study", "chat", "trimmed model"}


# Devices, locks and full disks


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("option", ["--trace", "--gamma-trace"])
def test_a_pipe_or_a_device_is_no_output(place: Path, capsys: Output, option: str) -> None:
    os.mkfifo(place / "pipe")
    for target in ("pipe", "/dev/null", "."):
        assert specx(*RUN, option, target, "--force") == 2
        assert_refused(capsys, f"cannot write {option} {target}")
    with pytest.raises(UsageError, match="not a regular file"):
        TraceWriter(place / "pipe")


def test_a_trace_that_is_being_written_is_refused_to_others(place: Path, capsys: Output) -> None:
    with TraceWriter(place / "t.jsonl", argv=[]):
        assert specx(*RUN, "--trace", "t.jsonl") == 2
        assert_refused(capsys, "t.jsonl", "another process is writing it")
        assert (place / "t.jsonl").exists()
    assert specx(*RUN, "--trace", "t.jsonl") == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows removes no open file")
def test_a_file_removed_by_its_writer_meanwhile_is_busy(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(_: object) -> None:
        (place / "t.jsonl").unlink()
        (place / "t.jsonl").touch()

    monkeypatch.setattr("specx.output._lock", late)
    with pytest.raises(OSError, match="another process"):
        LineFile(place / "t.jsonl")


def limited(bytes_: int, *args: str) -> subprocess.CompletedProcess[str]:
    import resource  # not on Windows

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))

    return subprocess.run(
        [sys.executable, "-m", "specx", *args],
        capture_output=True, text=True, encoding="utf-8", preexec_fn=limit,
    )  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
@pytest.mark.parametrize("shown", [[], ["--json"], ["--no-stream"]])
def test_a_trace_that_outgrows_the_disk_costs_no_text(place: Path, shown: list[str]) -> None:
    args = [*RUN, "-s", "1", "-n", "200", "--gamma", "4", *shown]
    whole = limited(2**24, *args, "--trace", "whole.jsonl")
    assert whole.returncode == 0, whole.stderr
    size = (place / "whole.jsonl").stat().st_size
    for bytes_ in (size // 2, size - 100):  # amid the rounds, and amid the summary
        done = limited(bytes_, *args, "--trace", "t.jsonl")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith("specx: cannot write the trace to t.jsonl")
        assert text_of(done.stdout, shown) == text_of(whole.stdout, shown)
        assert read_trace(place / "t.jsonl").summary is None


def text_of(stdout: str, shown: list[str]) -> Any:
    return json.loads(stdout)["text"] if shown == ["--json"] else stdout


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
def test_a_disk_that_is_full_from_the_start_leaves_nothing(place: Path) -> None:
    done = limited(20, *RUN, "--trace", "t.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("specx: cannot write the trace to t.jsonl: File too large")
    assert not (place / "t.jsonl").exists()


def test_a_part_of_a_line_that_was_taken_is_continued(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, taken = LineFile(place / "t.jsonl"), list[bytes]()

    class Short:
        def write(self, data: memoryview) -> int:
            taken.append(bytes(data[:3]))
            return min(3, len(data))

    with monkeypatch.context() as patch:
        patch.setattr(file, "_file", Short())
        file.write(b"abcdefgh")
    file.close()
    assert taken == [b"abc", b"def", b"gh"]


def test_a_gamma_trace_that_cannot_be_written_costs_no_text(
    place: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("specx.output.os.replace", full)
    (place / "g.jsonl").write_text('{"length": 1, "drafter": "old"}\n')
    assert specx(*RUN, "--json", "--gamma-trace", "g.jsonl") == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["n_tokens"] == 3
    assert "cannot write --gamma-trace g.jsonl" in err
    assert (place / "g.jsonl").read_text() == '{"length": 1, "drafter": "old"}\n'
    assert len(list(place.glob("*g.jsonl*"))) == 1
