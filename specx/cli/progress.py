"""A progress bar for slow tasks, shown on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Timer

from specx import interrupts
from specx.cli.streams import is_terminal
from specx.session.generation import Generation, Observer
from specx.session.result import Result

__all__ = ["Progress", "Reading"]

PATIENCE = 0.7
"""Seconds before a bar appears; shorter tasks need none."""


class Progress:
    """Shows bars on standard error, when that is a terminal and `enabled`."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled and is_terminal(sys.stderr)

    @contextmanager
    def task(self, label: str, total: float) -> Iterator[Callable[[float], None]]:
        """Yield a function to call with the amount of `total` that is done."""
        interrupts.begun()  # a task this long is unwound in order
        if not self._enabled:
            yield lambda done: None
            return
        from rich.console import Console  # slow to import, and only a terminal needs them
        from rich.markup import escape
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
        console = Console(stderr=True)
        bar = Bar(*columns, TimeRemainingColumn(), console=console, transient=True)
        task = bar.add_task(escape(label), total=total)
        timer = Timer(PATIENCE, bar.start)
        timer.daemon = True
        timer.start()
        try:
            yield lambda done: bar.update(task, completed=done)
        finally:
            with interrupts.held():  # else the terminal may stay without its cursor
                timer.cancel()
                if bar.live.is_started:
                    bar.stop()


class Reading(Observer):
    """Shows how far the prompt has been read."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = ExitStack()
        self._report: Callable[[float], None] = lambda done: None

    def begin(self, generation: Generation) -> None:
        task = self._progress.task("reading the prompt", generation.n_prompt - 1)
        self._report = self._bar.enter_context(task)

    def fed(self, n_tokens: int) -> None:
        self._report(n_tokens)

    def prefilled(self) -> None:
        self._bar.close()

    def end(self, result: Result) -> None:
        self._bar.close()
