from __future__ import annotations

import os
from pathlib import Path

import pytest

from specx.errors import UsageError
from specx.runtime.inputs import read_bytes, read_text


def test_text_loses_its_byte_order_mark_and_keeps_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "prompt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\n")
    assert read_text(path, "the prompt") == "a\r\nb\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    with pytest.raises(UsageError, match="cannot read the prompt from .*pipe.*regular file"):
        read_bytes(path, "the prompt")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (Path("/dev/zero"), "not a regular file"),
        (Path("/"), "a directory"),
        (Path("missing"), "no such file"),
        (Path("nul\0byte"), "null"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason(path: Path, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_bytes(path, "the trace")


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "large").write_bytes(b"12345")
    assert read_bytes(path, "the trace", most=5) == b"12345"
    with pytest.raises(UsageError, match="5 bytes, and 4 are the limit"):
        read_bytes(path, "the trace", most=4)


def test_text_that_is_no_utf8_names_its_byte(tmp_path: Path) -> None:
    (path := tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError, match="byte 3 is not UTF-8"):
        read_text(path, "the prompt")
