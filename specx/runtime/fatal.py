"""Last words: what is still done when a runtime's native code is about to end the process.

An assertion in C aborts, and an exception of C++ cannot cross into Python; neither comes back. A
backend is told beforehand in a callback, and calls `die`: whoever has something unsaved (a text, a
trace) has registered with `last_words`, and the command line has said with which code to exit.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

__all__ = ["die", "exit_code_when_dying", "last_words"]

_handlers: list[Callable[[str], None]] = []
_exit_codes: list[int] = []
_dead: list[str] = []
_dying = threading.RLock()  # a handler that dies itself must not wait for itself


@contextlib.contextmanager
def last_words(handler: Callable[[str], None]) -> Iterator[None]:
    """Within the block, `handler` is called with the reason before the process ends.

    It may run in any thread and must not call the runtime.
    """
    _handlers.append(handler)
    try:
        yield
    finally:
        _handlers.remove(handler)


@contextlib.contextmanager
def exit_code_when_dying(code: int) -> Iterator[None]:
    """Within the block the process ends with `code` instead of a signal, after one line."""
    _exit_codes.append(code)
    try:
        yield
    finally:
        _exit_codes.pop()


def die(reason: str) -> None:
    """Say why, let everybody finish, and end the process if the command line asked for that.

    Otherwise it returns, and the caller's process ends as its runtime has it. Several threads may
    die of one fault: the first speaks, the others wait for it.
    """
    with _dying:
        if not _dead:
            _dead.append(reason)
            _speak(reason)
        if _exit_codes:
            os._exit(_exit_codes[-1])


def _speak(reason: str) -> None:
    handlers, _handlers[:] = list(_handlers), []  # whoever dies here too is not asked again
    for handler in reversed(handlers):
        with contextlib.suppress(BaseException):
            handler(reason)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    with contextlib.suppress(BaseException):
        os.write(2, f"specx: {' '.join(reason.split())}\n".encode("utf-8", "replace"))
