"""The model that llama.cpp's and transformers' share: it feeds, rewinds, and undoes what failed.

A runtime supplies small steps on its own cache (`_run`, `_cut`, `_save`, ...). Where it cannot cut
its cache, going back is restoring a saved state and feeding again what came after it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError, SpecxError
from specx.runtime.backend import (
    Clock,
    LogitsBackend,
    ParkedState,
    Rollback,
    Tokenizer,
    check_forward,
    check_state,
    check_truncate,
)
from specx_backends.library import first_line

__all__ = ["NO_ROWS", "Ids", "RewindingModel", "Rows", "Snapshot", "calls"]

Ids: TypeAlias = NDArray[np.integer[Any]]
Rows: TypeAlias = NDArray[np.float32]
State = TypeVar("State")

NO_ROWS: Rows = np.empty((0, 0), np.float32)


@dataclass
class Snapshot(Generic[State]):
    """The state at `n_past`, None for an empty cache, and the tokens fed since."""

    n_past: int = 0
    state: State | None = None
    tokens_since: list[int] = field(default_factory=list)


class RewindingModel(LogitsBackend, ABC, Generic[State]):
    """A `specx.runtime.backend.LogitsBackend` over a runtime's own cache.

    A subclass calls `_find_rollback` at the end of its constructor.

    Parameters
    ----------
    n_batch
        Most tokens in one call to the runtime.
    most_rows
        Most rows of logits in one call; by default as many as it has tokens.
    """

    def __init__(
        self,
        *,
        name: str,
        n_vocab: int,
        n_ctx: int,
        tokenizer: Tokenizer,
        n_batch: int,
        most_rows: int | None = None,
    ) -> None:
        self.name = name
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.tokenizer = tokenizer
        self.clock: Clock = time.perf_counter
        self.rollback: Rollback = "none"
        self._n_batch = n_batch
        self._most_rows = n_batch if most_rows is None else most_rows
        self._together = True
        """Whether several tokens may be fed in one call after others."""
        self._n_past = 0
        self._snapshot: Snapshot[State] | None = None

    # The seam

    @property
    def n_past(self) -> int:
        return self._n_past

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> Rows:
        """Append `tokens`; return the logits of the last `n_logits`, as `LogitsBackend` says."""
        self._require_open()
        ids = check_forward(self, tokens, n_logits)
        rows = np.empty((n_logits, self.n_vocab), np.float32)
        n_past = self._n_past
        try:
            self._feed(ids, rows)
        except BaseException:  # Ctrl-C too: the cache may hold more than was counted
            self._undo(n_past)
            raise
        return rows

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on, as `LogitsBackend` says.

        Position 0 empties the runtime's cache even where nothing is counted: an interrupted call
        may have left something in it.
        """
        self._require_open()
        check_truncate(self, n_past)
        if n_past < self._n_past or n_past == 0:
            self._forget(n_past)

    def checkpoint(self) -> None:
        """From now on `truncate` can return to any position from `n_past` on.

        Raises
        ------
        BackendError
            If this model cannot forget at all (`rollback` is ``none``).
        """
        self._require_open()
        if self.rollback == "none":
            raise BackendError(f"{self.name} cannot forget tokens, so it cannot be rewound")
        if self.rollback == "checkpoint":
            self._snapshot = Snapshot(self._n_past, self._save() if self._n_past else None)

    def export_state(self) -> ParkedState:
        """A copy of the cache, as `Parkable` says."""
        self._require_open()
        self._synchronize()
        with self._in_one_line("its cache could not be copied out"):
            data, n_bytes = self._export() if self._n_past else (None, 0)
        return ParkedState(n_past=self._n_past, n_bytes=n_bytes, maker=self, data=data)

    def import_state(self, state: ParkedState) -> None:
        """Replace what the cache holds, as `Parkable` says."""
        self._require_open()
        check_state(self, state)
        self._empty()
        try:
            if state.n_past:
                with self._in_one_line("a parked cache could not be copied back"):
                    self._import(state.data, state.n_past)
            self._n_past = state.n_past
            if self.rollback == "checkpoint":
                self.checkpoint()
        except BaseException:  # Ctrl-C too: the cache may hold a part
            self._empty()
            raise

    @contextmanager
    def _in_one_line(self, failure: str) -> Iterator[None]:
        """Turn the runtime's own exceptions, such as no memory, into a BackendError."""
        try:
            yield
        except SpecxError:
            raise
        except Exception as error:
            raise BackendError(f"{self.name}: {failure} ({first_line(error)})") from error

    # The runtime's own steps

    @abstractmethod
    def _require_open(self) -> None:
        """Raise BackendError if the model was closed."""

    @abstractmethod
    def _run(self, ids: Ids, rows: Rows) -> None:
        """Append `ids` in one call, and fill `rows` with the logits of the last of them."""

    @abstractmethod
    def _synchronize(self) -> None:
        """Wait until what was fed is computed."""

    @abstractmethod
    def _clear(self) -> None:
        """Empty the cache, whatever it holds."""

    @abstractmethod
    def _cut(self, n_past: int) -> None:
        """Remove what the cache holds from `n_past` on; raise BackendError if it cannot."""

    @abstractmethod
    def _save(self) -> State:
        """A copy of the cache's state."""

    @abstractmethod
    def _restore(self, state: State, n_past: int) -> None:
        """Return to a `state` that was saved at `n_past`; it stays good for another time."""

    @abstractmethod
    def _export(self) -> tuple[State, int]:
        """A copy of all that the cache holds, and the bytes that the copy takes."""

    @abstractmethod
    def _import(self, state: State, n_past: int) -> None:
        """Fill the empty cache with an exported `state`, which stays good for another time."""

    @abstractmethod
    def _comes_back(self) -> bool:
        """Feed some tokens and take some back: whether `rollback`, as it is set now, works."""

    # Feeding

    def _feed(self, ids: Ids, rows: Rows = NO_ROWS) -> None:
        """Append `ids`, in as many calls as it takes, and fill `rows` with the last logits."""
        n_filled = 0
        rest = self._n_batch if self._together else 1
        first = rest if self._n_past else self._n_batch
        for start, stop, n_wanted in calls(ids.size, len(rows), first, rest, self._most_rows):
            self._call(ids[start:stop], rows[n_filled : n_filled + n_wanted])
            n_filled += n_wanted
        if not len(rows):
            self._synchronize()  # else the next call pays for it

    def _call(self, ids: Ids, rows: Rows = NO_ROWS) -> None:
        """One call to the runtime, counted."""
        self._run(ids, rows)
        self._n_past += ids.size
        if self._snapshot is not None:
            self._snapshot.tokens_since.extend(ids.tolist())

    # Forgetting

    def _forget(self, n_past: int) -> None:
        if n_past == 0:
            self._empty()
        elif self._snapshot is not None:
            self._replay(self._snapshot, n_past)
        elif self.rollback == "native":
            self._cut(n_past)
            self._n_past = n_past
        else:
            raise BackendError(f"{self.name} cannot forget tokens; it can only be emptied")

    def _empty(self) -> None:
        """Forget all: a model that can forget nothing else can do that."""
        self._n_past = 0  # first: whatever an interrupt leaves in the cache, nothing is counted
        self._clear()
        self._snapshot = Snapshot() if self.rollback == "checkpoint" else None

    def _undo(self, n_past: int) -> None:
        """After a failed call: back to `n_past`, or to an empty cache where that fails too."""
        try:
            self._forget(n_past)
        except Exception:  # the runtime's own too, such as no memory to copy a state
            self._empty()

    def _replay(self, snapshot: Snapshot[State], n_past: int) -> None:
        """Back to the snapshot, then feed again what came after it, up to `n_past`."""
        if n_past < snapshot.n_past:
            raise BackendError(
                f"{self.name}: cannot truncate to {n_past}, before the checkpoint at "
                f"{snapshot.n_past}"
            )
        tokens = snapshot.tokens_since[: n_past - snapshot.n_past]
        if snapshot.state is None:
            self._clear()
        else:
            self._restore(snapshot.state, snapshot.n_past)
        self._n_past = snapshot.n_past
        snapshot.tokens_since.clear()
        if tokens:
            self._feed(np.asarray(tokens))

    def _find_rollback(self) -> None:
        """Set `rollback` by trying: what a model can do shows best by doing it."""
        ways: tuple[Rollback, ...] = ("native", "checkpoint")
        for way in ways:
            self.rollback = way
            self._empty()
            if self._comes_back():
                break
        else:
            self.rollback = "none"
        self._empty()


def calls(
    n_tokens: int, n_logits: int, first: int, rest: int, most_rows: int
) -> Iterator[tuple[int, int, int]]:
    """Cut a feed into calls: (start, stop, wanted rows, which are the last of the call).

    The first is at most `first` tokens wide, the others at most `rest`; each asks for at most
    `most_rows` rows.
    """
    first_wanted = n_tokens - n_logits
    start = 0
    while start < n_tokens:
        width = rest if start else first
        stop = min(n_tokens, start + width, max(start, first_wanted) + most_rows)
        yield start, stop, max(0, stop - max(start, first_wanted))
        start = stop
