"""Prepares the standard streams of the process ``specx``: open, and able to carry any text."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

__all__ = ["finish", "is_terminal", "prepare", "printable", "say"]

FAILED = 2


def prepare() -> None:
    """Open closed streams on the null device, and make every character writable.

    Redirected output is UTF-8, regardless of the locale and PYTHONIOENCODING; a lone surrogate, as
    in a file name that is not UTF-8, becomes its escape, which JSON reads back. A terminal keeps
    its encoding and shows ``?`` for characters that it lacks.
    """
    _fill_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and is_terminal(stream):
            stream.reconfigure(errors="replace")
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def finish(code: int) -> int:
    """Flush the streams; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            # Python would try again at exit, fail, and print its own message.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or say(f"cannot write the output: {getattr(error, 'strerror', error)}")
    return code


def say(message: str) -> int:
    """Write one line about a failure to standard error, if possible; return the exit code."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"specx: {printable(' '.join(message.split()))}\n")
        sys.stderr.flush()
    return FAILED


def printable(text: str) -> str:
    """`text` on one line, with what is not printable escaped as in Python.

    Files and runtimes bring their own text into messages; it must not control a terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_terminal(stream: Any) -> bool:
    """True if `stream` exists, is open, and is a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _fill_descriptors() -> None:
    """Open descriptors 0 to 2: else the next file would get one, and C code print into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
