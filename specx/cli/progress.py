"""A progress bar for what turns out to be slow, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

__all__ = ["Progress"]

PATIENCE = 0.7
"""Seconds before a bar appears: what is done by then needs none."""


class Progress:
    """Shows bars on standard error, when that is a terminal and `enabled`."""

    def __init__(self, enabled: bool) -> None:
        self._console = Console(stderr=True)
        self._enabled = enabled and self._console.is_terminal

    @contextmanager
    def task(self, label: str, total: float) -> Iterator[Callable[[float], None]]:
        """Yields a function to call with how much of `total` is done."""
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
        bar = Bar(*columns, TimeRemainingColumn(), console=self._console, transient=True)
        task = bar.add_task(label, total=total)
        timer = Timer(PATIENCE, bar.start)
        timer.daemon = True
        if self._enabled:
            timer.start()
        try:
            yield lambda done: bar.update(task, completed=done)
        finally:
            timer.cancel()
            if bar.live.is_started:
                bar.stop()
