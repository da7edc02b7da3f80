"""Parked texts: copies of caches in memory, so that a session's clients may take turns.

A session has one cache per model. When another client's text takes its place, what the caches held
is copied out; when the first client comes back, it is copied in again, and only what is new is
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specx.errors import whole_number
from specx.runtime.backend import ParkedState

__all__ = ["PARK_LEAST", "VERIFIER", "ParkedText", "Parking", "common_length"]

PARK_LEAST = 16
"""A text is parked if more tokens than this would have to be read again: so few take one narrow
pass, and a copy takes the memory of the whole text."""
VERIFIER = ""
"""The verifier's key in `ParkedText.states`; a drafter's is its name."""


@dataclass(frozen=True, eq=False)
class ParkedText:
    """A text, and by model or drafter a copy of the cache that holds it or a part of it."""

    tokens: Sequence[int]
    """What the verifier's copy holds."""
    states: Mapping[str, ParkedState]

    @property
    def n_bytes(self) -> int:
        """Memory of the copies."""
        return sum(state.n_bytes for state in self.states.values())


class Parking:
    """The texts that one session parked most recently, as many as fit.

    The budget bounds what is parked; while a text is being parked, its copy comes on top.

    Parameters
    ----------
    most_bytes
        Memory that all copies may take together. A text that needs more is not parked.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = whole_number("most_bytes", most_bytes, 0)
        self.n_hits = 0
        """Times that a text went on from a parked one."""
        self.n_dropped = 0
        """Texts that were dropped for lack of room."""
        self._texts: tuple[ParkedText, ...] = ()
        """The least recently used first. Replaced as a whole: an interrupt leaves the old ones or
        the new ones, and another thread may read the figures."""

    @property
    def n_texts(self) -> int:
        """Texts that are parked."""
        return len(self._texts)

    @property
    def n_bytes(self) -> int:
        """Memory that they take."""
        return sum(text.n_bytes for text in self._texts)

    def add(self, new: ParkedText) -> None:
        """Park `new` in place of any text that it continues; drop others until it fits."""
        if new.n_bytes > self.most_bytes:
            return
        others = [
            text
            for text in self._texts
            if common_length(text.tokens, new.tokens) < len(text.tokens)
        ]
        room, n_dropped = self.most_bytes - new.n_bytes, 0
        while sum(text.n_bytes for text in others[n_dropped:]) > room:
            n_dropped += 1
        self._texts = (*others[n_dropped:], new)
        self.n_dropped += n_dropped

    def take(
        self, tokens: Sequence[int], more_than: int, *, whole: bool
    ) -> tuple[ParkedText | None, int]:
        """The text that holds the most of `tokens`, and how many; none if not `more_than` so many.

        Of equals the most recently used. If `tokens` continue all of it, it leaves: the caches are
        about to hold it. If not it stays, dropped last, as others may branch off from it too.

        Parameters
        ----------
        whole
            Whether a copy is of use only where `tokens` continue all of it, as for a model that
            cannot be rolled back to any position.
        """
        best, most = None, more_than
        for text in reversed(self._texts):
            shared = common_length(text.tokens, tokens)
            if shared > most and not (whole and shared < len(text.tokens)):
                best, most = text, shared
        if best is not None:
            others = tuple(text for text in self._texts if text is not best)
            self._texts = others if most == len(best.tokens) else (*others, best)
            self.n_hits += 1
        return best, most

    def remove(self, text: ParkedText) -> None:
        """Drop `text`, whose copies turned out to be of no use."""
        self._texts = tuple(each for each in self._texts if each is not text)

    def clear(self) -> None:
        """Drop all texts."""
        self._texts = ()


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
