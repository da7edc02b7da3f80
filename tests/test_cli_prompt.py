"""A prompt is the same text whether it is typed, read from a file, or piped in."""

from __future__ import annotations

import os
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from inprocess import specx

from specx.cli import prompt
from specx.cli.prompt import from_argument, from_file, from_input
from specx.errors import UsageError
from specx.records.trace import read_trace

TABLE = """
vocabulary = ["<s>", "</s>", "one", "\\n", "\\r", "é", "\ufeff"]
bos = "<s>"
eog = ["</s>"]
[[row]]
next = { one = 1.0 }
"""


def ways(data: bytes, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The text of `data` by each way that takes bytes."""
    path.write_bytes(data)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data)))
    return {"-f": from_file(path), "standard input": from_input()}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"one", "one"),
        (b"one\n", "one"),
        (b"one\r\n", "one"),
        (b"one\n\n", "one\n"),
        (b"\n", ""),
        (b"", ""),
        ("\ufeffé\r\none\r\n".encode(), "é\none"),
        ("\ufeff\ufeffone".encode(), "\ufeffone"),
        (b"a\rb", "a\rb"),
    ],
)
def test_a_file_and_a_pipe_hold_the_same_text(
    data: bytes, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(ways(data, tmp_path / "p", monkeypatch).values()) == {text}
    assert from_argument(text) == text.removeprefix("\ufeff")


def test_a_typed_prompt_is_cleaned_alike_and_keeps_its_last_newline() -> None:
    assert from_argument("\ufeffone\r\ntwo\n") == "one\ntwo\n"


def test_bytes_that_are_not_utf8_are_named_whichever_way_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"caf\xe9 noir")
    reason = "is not UTF-8: byte 3 is 0xe9; convert it to UTF-8"
    with pytest.raises(UsageError, match=f"^-f .*p {reason}"):
        from_file(path)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(path.read_bytes())))
    with pytest.raises(UsageError, match=f"^standard input {reason}"):
        from_input()
    with pytest.raises(UsageError, match=f"^-p {reason}"):
        from_argument("caf\udce9 noir")
    with pytest.raises(UsageError, match=r"-p contains half a character, '\\ud83d'"):
        from_argument("\ud83d")


def test_a_prompt_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "MOST_BYTES", 4)
    with pytest.raises(UsageError, match="5 bytes, and 4 are the limit"):
        ways(b"12345", tmp_path / "p", monkeypatch)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"12345")))
    with pytest.raises(UsageError, match="standard input has more than 4 bytes"):
        from_input()
    assert set(ways(b"1234", tmp_path / "p", monkeypatch).values()) == {"1234"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_devices_pipes_and_folders_are_no_prompt_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="cannot read the prompt from"):
            from_file(path)


def test_a_run_sees_the_same_tokens_by_every_way(tmp_path: Path) -> None:
    (tmp_path / "v.toml").write_text(TABLE, encoding="utf-8")
    data = "\ufeffone\r\né\n".encode()
    (tmp_path / "prompt").write_bytes(data)
    given: dict[str, tuple[list[str], bytes]] = {
        "typed": (["-p", "one\né"], b""),
        "file": (["-f", "prompt"], b""),
        "piped": ([], data),
    }
    for name, (args, stdin) in given.items():
        command = ["run", "--backend", "toy", "-m", "v.toml", "-n", "1", "--trace", name, *args]
        done = specx(*command, stdin=stdin, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    headers = [read_trace(tmp_path / name).header for name in given]
    assert [header.prompt_ids for header in headers] == [[0, 2, 3, 5]] * 3
    assert [header.prompt for header in headers] == ["one\né"] * 3
