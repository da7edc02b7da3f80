"""Signals that ask this process to end: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closed.

Python raises KeyboardInterrupt at any instruction: within an import, where it may leave a traceback
or be taken for another error; within a callback from C, where it is printed and lost; between the
two halves of a change that must not be split. So the process ``specx`` handles signals itself:

- before anything has `begun`, one line is written and the process ends at once;
- later, KeyboardInterrupt is raised, but within a `held` block only at its end;
- one that Python swallowed, as it does in callbacks and destructors, is raised again;
- while the first signal is handled, a second is ignored for some seconds; a later one, or a third,
  ends the process at once;
- after a Ctrl-C that ended only what was being done, `resumed` goes on, and the next is the first.

A program that imports specx keeps its own handlers; `held` then does nothing.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = [
    "begun",
    "deafen",
    "exit_code",
    "held",
    "listen",
    "message",
    "received",
    "resumed",
    "taken",
]

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
PATIENCE = 2.0
"""Maximum seconds that a `held` block delays a signal: a write to a full pipe may never end."""
PAUSE = 0.005
"""Seconds until a swallowed interrupt is raised again; by then the callback has mostly ended."""


class _State:
    """Signal state of the process; only the main thread, which runs the handlers, changes it."""

    def __init__(self) -> None:
        self.main: int | None = None
        """The thread that handles signals; None before `listen`."""
        self.received: int | None = None
        """The first signal."""
        self.last = False
        """True once a signal other than Ctrl-C came: no work is to follow."""
        self.since = 0.0
        self.count = 0
        self.begun = False
        self.held = 0
        self.raised = False
        self.reminded = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if self.reminded:
            self.reminded = False
            if self.received is None:
                return  # of a signal that the process has gone on from
        else:
            self.count += 1
        self.last |= number != signal.SIGINT
        if self.received is None:
            self.received, self.since = number, time.monotonic()
            remind(PATIENCE)
        soon = time.monotonic() < self.since + PATIENCE
        if not self.begun or self.count > (2 if soon else 1):
            end_at_once()
        if self.held and soon:
            return
        self.interrupt()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt, once."""
        if not self.raised:
            self.raised = True
            raise KeyboardInterrupt


_state = _State()


def listen() -> None:
    """Handle the signals from now on; one that is ignored (``nohup``, a shell's ``&``) stays so."""
    _state.main = _thread.get_ident()
    for name in SIGNALS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _state.handle)
    sys.unraisablehook = _swallowed


def deafen() -> None:
    """Ignore Ctrl-C from now on: the work is done, and Python is only cleaning up."""
    for name in SIGNALS:
        if signal.getsignal(getattr(signal, name, signal.SIGINT)) == _state.handle:
            ignored = name == "SIGINT"
            number = getattr(signal, name)
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)


def begun() -> None:
    """Record that something has begun that must be cleaned up before the process ends."""
    _state.begun = True


def received() -> bool:
    """True if a signal has asked this process to end."""
    return _state.received is not None


def taken() -> None:
    """Record that the signal was seen and the work is ending, so that it is not raised again."""
    _state.raised = True


def resumed() -> bool:
    """Go on after a Ctrl-C, if one came, and listen for the next; False if the process is to end.

    For work that a Ctrl-C ends without ending the process, as an answer within a chat. To be called
    once that work is over. A Ctrl-C that arrives meanwhile belongs to the same; a later one is
    raised when this returns.
    """
    if _state.last:
        return False
    with held():
        _state.raised = False
        _state.received = None
        _state.count, _state.since = 0, 0.0
    return not _state.last


def exit_code() -> int:
    """The exit code of a process that a signal ended; that of Ctrl-C if none was received."""
    return 128 + (_state.received or signal.SIGINT)


def message() -> str:
    """The line to print for an interrupted run."""
    if _state.received in (None, signal.SIGINT):
        return "specx: interrupted"
    return f"specx: ended by {signal.Signals(_state.received).name}"


class held:
    """A block that must not be split: a signal that arrives within it is raised at its end."""

    def __enter__(self) -> None:
        if _state.main == _thread.get_ident():
            _state.held += 1
            _state.begun = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _state.main != _thread.get_ident():
            return
        _state.held -= 1
        if error is None and not _state.held and received():
            _state.interrupt()


def remind(seconds: float) -> None:
    """Run the handler again after `seconds`, in the main thread."""
    since = _state.since

    def wait() -> None:
        time.sleep(seconds)
        if _state.since != since:
            return  # of a signal that the process has gone on from
        _state.reminded = True
        number = signal.Signals(_state.received or signal.SIGINT)
        if hasattr(signal, "pthread_kill") and _state.main is not None:
            signal.pthread_kill(_state.main, number)  # also wakes it from a read or a write
        else:
            _thread.interrupt_main(number)

    # Not threading.Thread: the handler may have stopped the main thread within its locks.
    _thread.start_new_thread(wait, ())


def _swallowed(lost: Any) -> None:
    """Handle an exception that Python cannot raise."""
    if not received():
        sys.__unraisablehook__(lost)
    elif isinstance(lost.exc_value, KeyboardInterrupt):
        _state.raised = False
        remind(PAUSE)


def end_at_once() -> None:
    """Write the line and end, without unwinding: nothing began, or unwinding takes too long."""
    try:
        start = "\n" if os.isatty(2) else ""  # after the ^C that a terminal shows
        os.write(2, f"{start}{message()}\n".encode())
    finally:
        os._exit(exit_code())
