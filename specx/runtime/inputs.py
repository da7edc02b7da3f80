"""Files that a user names, read whole: regular ones of a bearable size, else one line says why not.

A device or a pipe would be read for ever, or waited for; what is read here is text and records.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from specx.errors import UsageError

__all__ = ["read_bytes", "read_text", "require_regular"]

MOST_BYTES = 1 << 30
"""Larger than any record that specx writes in practice."""


def read_bytes(path: Path, what: str, *, most: int = MOST_BYTES) -> bytes:
    """The content of the file at `path`.

    Parameters
    ----------
    path
        Links are followed.
    what
        Names it in errors: ``the prompt``, ``the trace``.
    most
        Bytes that such a file may have.

    Raises
    ------
    UsageError
        If there is no such file, it is not a regular one, it is larger than `most`, or it cannot
        be read.
    """
    require_regular(path, what, most=most)
    try:
        return path.read_bytes()
    except OSError as error:
        raise _cannot(path, what, error.strerror or str(error)) from error


def read_text(path: Path, what: str, *, most: int = MOST_BYTES) -> str:
    """Like `read_bytes`, as UTF-8 text; a byte order mark is dropped, line ends stay.

    Raises
    ------
    UsageError
        As `read_bytes`; also if the bytes are not UTF-8.
    """
    data = read_bytes(path, what, most=most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8; save it as UTF-8"
        raise _cannot(path, what, reason) from error


def require_regular(path: Path, what: str, *, most: int | None = None) -> None:
    """Raise UsageError unless `path` names a regular file of at most `most` bytes."""
    try:
        facts = os.stat(path)
    except OSError as error:
        raise _cannot(path, what, (error.strerror or str(error)).lower()) from error
    except ValueError as error:  # a NUL byte within the name
        raise _cannot(path, what, str(error)) from error
    if not stat.S_ISREG(facts.st_mode):
        kind = "a directory" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
        raise _cannot(path, what, f"it is {kind}; name a file")
    if most is not None and facts.st_size > most:
        raise _cannot(path, what, f"it has {facts.st_size:,} bytes, and {most:,} are the limit")


def _cannot(path: Path, what: str, reason: str) -> UsageError:
    return UsageError(f"cannot read {what} from {str(path)!r}: {reason}")
