"""A drafter without a model: the text so far is its own draft.

Copied text (code being edited, a passage being quoted) continues as it did before. "Prompt lookup
decoding" (Saxena 2023) and llama.cpp's lookup example do the same with shorter matches.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specx.core.sampling import Distribution
from specx.drafters.base import Draft, Drafter, GoOn, Models, Outlook, TextSettings

__all__ = ["MOST_PROPOSALS", "LookupDrafter", "LookupIndex", "Match", "factory"]

SIZES = (24, 12, 6, 3)
"""Lengths of the indexed runs. A run shorter than the last would propose more often, and mostly be
wrong. The longest match decides, and of equal ones the most recent."""
LONGEST = 48
"""Matches are measured up to this many tokens; longer ones hold no better."""
MOST_PROPOSALS = 32
LENGTHS = (3, 4, 6, 8, 12, 16, 24, 32)
"""The length of match at which each class begins."""
PRIOR = (0.45, 0.55, 0.65, 0.75, 0.82, 0.87, 0.9, 0.92)
"""A guess at how often matches of each class go on; every round of a text corrects it."""
MASKED = "token that the verifier cannot emit"
CLASSES = [max(0, bisect_right(LENGTHS, length) - 1) for length in range(LONGEST + MOST_PROPOSALS)]
"""The class by length of match; each accepted proposal makes the match longer by one."""


@dataclass(frozen=True)
class Match:
    """The text's last `length` tokens also end before position `at`."""

    at: int
    length: int


class LookupIndex:
    """Where each run of tokens last occurred; the cost per token does not grow with the text."""

    def __init__(self) -> None:
        self.n_tokens = 0
        """Tokens of the text read so far."""
        self._places: list[tuple[int, dict[int, int]]] = [(size, {}) for size in SIZES]
        self._found: Match | None = None
        self._last = -1

    def clear(self) -> None:
        """Forget the text."""
        self.n_tokens, self._last = 0, -1
        for _, places in self._places:
            places.clear()

    def find(self, tokens: Sequence[int]) -> Match | None:
        """Read what is new in `tokens`, and find the longest indexed run that ends them.

        Of several earlier occurrences, the most recent. A text that did not merely grow is read
        again.
        """
        end = len(tokens)
        if end == self.n_tokens and tokens[-1] == self._last:
            return self._found
        if end <= self.n_tokens:
            self.clear()
        for before in range(self.n_tokens + 1, end):
            for size, places in self._places:
                if size <= before:
                    places[_key(tokens, before, size)] = before
        self._found, self.n_tokens, self._last = self._search(tokens), end, tokens[-1]
        return self._found

    def _search(self, tokens: Sequence[int]) -> Match | None:
        """The match, found in the same step that records this place for later ones."""
        end, found = len(tokens), None
        for size, places in self._places:
            if size > end:
                continue
            key = _key(tokens, end, size)
            at = places.get(key) if found is None else None
            # A key is a hash: two runs may share one, so the length is always measured.
            if at is not None and (length := _common(tokens, at)) >= size:
                found = Match(at, length)
            places[key] = end
        return found


def _key(tokens: Sequence[int], end: int, size: int) -> int:
    return hash(tuple(tokens[end - size : end]))


def _common(tokens: Sequence[int], at: int) -> int:
    """How many tokens before `at` equal those before the end, up to `LONGEST`."""
    most, end, length = min(at, LONGEST), len(tokens), 0
    while length < most and tokens[at - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


class LookupDrafter:
    """Proposes what followed the last occurrence of the text's most recent tokens.

    Parameters
    ----------
    masked
        Ids that the verifier cannot emit: a proposal ends before them.
    eog_ids
        Tokens that end the text, after which nothing is worth proposing: `Stop.eog_ids`. They stay
        in the draft.
    """

    name = kind = "lookup"
    free = True
    prior = PRIOR

    def __init__(self, masked: Sequence[int] = (), eog_ids: frozenset[int] = frozenset()) -> None:
        self._masked = frozenset(int(token) for token in masked)
        self._eog_ids = eog_ids
        self._index = LookupIndex()

    def begin(self, settings: TextSettings) -> None:
        self._eog_ids = settings.eog_ids

    def feed(self, tokens: Sequence[int], size: int, report: Callable[[int], None]) -> None:
        """Nothing: the text is read when a proposal is asked for."""

    @property
    def n_past(self) -> int:
        return self._index.n_tokens

    @property
    def n_ctx(self) -> int:
        return sys.maxsize

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        """Which token follows the match, and how long the match is."""
        match = self._index.find(tokens)
        if match is None:
            return Outlook(limit=0, bound="no match")
        if tokens[match.at] in self._masked:
            return Outlook(limit=0, bound=MASKED)
        return Outlook(
            limit=MOST_PROPOSALS,
            classes=CLASSES[match.length : match.length + MOST_PROPOSALS],
            guess=tokens[match.at],
            bound="longest lookup",
        )

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        """At most `limit` tokens, each with probability 1.

        `go_on` is not asked, since a lookup learns nothing on the way; and it never lags, so there
        is nothing to look back at.
        """
        match = self._index.find(tokens)
        if match is None:
            return Draft()
        ids, ended = self._continuation(tokens, match.at, min(limit, MOST_PROPOSALS))
        certain = [Distribution(np.ones(1), np.array([token])) for token in ids]
        return Draft(ids, certain, ended=ended)

    def truncate(self, n_past: int) -> None:
        """Forget the whole text if part of the index goes; it is read again when next needed."""
        if n_past < self._index.n_tokens:
            self._index.clear()

    def restart(self, n_past: int) -> None:
        """Nothing: a lookup never lags."""

    def _continuation(self, tokens: Sequence[int], at: int, limit: int) -> tuple[list[int], str]:
        """What followed `at`, and why it ended early; past the text's end it continues itself."""
        ids: list[int] = []
        for place in range(at, at + limit):
            token = tokens[place] if place < len(tokens) else ids[place - len(tokens)]
            if token in self._masked:
                return ids, MASKED
            ids.append(token)
            if token in self._eog_ids and len(ids) < limit:
                return ids, "end token"
        return ids, ""


class _Factory:
    name = "lookup"
    needs_model = False

    def make(self, models: Models) -> Drafter:
        """Look proposals up in the text itself."""
        return LookupDrafter(models.masked.tolist())


factory = _Factory()
