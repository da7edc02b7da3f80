"""Standard streams as the process ``specx`` needs them: there, and able to take any text."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

__all__ = ["finish", "is_terminal", "prepare", "say"]

FAILED = 2


def prepare() -> None:
    """Open the streams that are closed on the null device, and let no character fail.

    What is redirected is written as UTF-8, whatever the locale or PYTHONIOENCODING say; a lone
    surrogate, as in a file name that is not UTF-8, becomes its escape, which JSON reads back. A
    terminal keeps its encoding and shows ``?`` for what that lacks.
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
    """Write out what the streams still hold; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            # Python would try again at its end, fail, and say so in its own way.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or say(f"cannot write the output: {getattr(error, 'strerror', error)}")
    return code


def say(message: str) -> int:
    """Write one line about a failure to standard error, if that can be; the exit code."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"specx: {' '.join(message.split())}\n")
        sys.stderr.flush()
    return FAILED


def is_terminal(stream: Any) -> bool:
    """Whether `stream` is there, open, and a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _fill_descriptors() -> None:
    """A closed descriptor is given to the next file that is opened: C code would print into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
