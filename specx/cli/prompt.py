"""The prompt of a run: the same text whether it is typed, read from a file, or piped in."""

from __future__ import annotations

import sys
from pathlib import Path

from specx.errors import UsageError
from specx.runtime.inputs import read_bytes

__all__ = ["from_argument", "from_file", "from_input", "text_of"]

MOST_BYTES = 1 << 26
"""Maximum size of a prompt; longer than any context."""
MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""A byte order mark, which some editors put before a text."""


def from_argument(text: str) -> str:
    """The text of an argument; a final newline is kept."""
    try:
        data = text.encode("utf-8", errors="surrogateescape")  # the bytes that were typed
    except UnicodeEncodeError as error:
        raise UsageError(
            f"-p contains half a character, {text[error.start]!a}; pass valid text"
        ) from error
    return text_of(data, "-p")


def from_file(path: Path) -> str:
    """The content of a file, without one final newline."""
    return _unended(text_of(read_bytes(path, "the prompt", most=MOST_BYTES), f"-f {path}"))


def from_input() -> str:
    """The content of standard input, without one final newline."""
    try:
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read the prompt from standard input: {error.strerror}; use -p or -f"
        ) from error
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"standard input has more than {MOST_BYTES:,} bytes, the limit of a prompt; shorten it"
        )
    return _unended(text_of(data, "standard input"))


def text_of(data: bytes, source: str) -> str:
    """UTF-8 as text, with lines that end in a newline alone; `source` is named in the error."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not UTF-8: byte {error.start} is {data[error.start]:#04x}; "
            "convert it to UTF-8"
        ) from error
    return text.removeprefix(MARK).replace("\r\n", "\n")


def _unended(text: str) -> str:
    return text.removesuffix("\n")
