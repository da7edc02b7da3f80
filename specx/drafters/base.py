"""Where proposals come from: a drafter proposes tokens, each with what it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specx.core.sampling import Distribution, LogitsReader
from specx.runtime.backend import LogitsBackend
from specx.runtime.vocabulary import readable

__all__ = ["POSITIONS", "Draft", "Drafter", "GoOn", "ModelDrafter", "Outlook"]

POSITIONS = range(16)
"""The classes of a drafter whose acceptance depends on a token's position in the draft."""

GoOn: TypeAlias = "Callable[[int, NDArray[np.float32] | None], bool]"
"""Asked after k draws whether to go on: with None before the drafter's next step is paid for, then
with the logits that draw k + 1 would be made from. It is asked *before* the draw, since dropping a
token for what it turned out to be would change the law of the text."""


@dataclass
class Draft:
    """Proposed tokens and the distributions they were really drawn from, both of length g."""

    ids: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
    core_seconds: float = 0.0
    """Time that went into the sampling transform, not into the model."""
    hindsight: list[float] = field(default_factory=list)
    """The chances it would have given the text's last tokens, read off its catching up."""
    ended: str = ""
    """Why it is shorter than its limit, unless the schedule ended it."""


@dataclass(frozen=True)
class Outlook:
    """What is known of a draft before it is made."""

    limit: int
    """Most tokens that could be proposed."""
    lag: int = 0
    """Tokens of the text that must be fed before the last one."""
    classes: Sequence[int] = POSITIONS
    """The class of each proposal, an index into `Drafter.prior`: tokens of one class are expected
    to be accepted equally often. `--gamma auto` proposes no more tokens than are classed here."""
    guess: int | None = None
    """The first proposal, if it is known before the draft. The text then shows whether it would
    have been right, so that nothing has to be proposed to find out."""
    bound: str = "no room"
    """What allows no more than `limit`."""


class Drafter(Protocol):
    """Proposes tokens after a text; knows nothing of how they are judged."""

    name: str
    kind: str
    """What it is called on the command line: ``model`` or ``lookup``."""
    free: bool
    """Whether its proposals cost no time; if not, each costs a step of the draft model."""

    @property
    def prior(self) -> Sequence[float]:
        """By class, the acceptance rate to assume before any proposal has been tested.

        Of a token given that all before it in the draft were accepted; see `Outlook.classes`.
        """

    @property
    def n_past(self) -> int:
        """Tokens of the text that it holds."""

    @property
    def n_ctx(self) -> int:
        """Tokens that it can hold."""

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        """What a draft after `tokens` would be like."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        """At most `limit` tokens to follow `tokens`; feeds itself what it lacks of them.

        `hindsight` is how many of the text's last tokens to look back at, if it lacks them.
        """

    def truncate(self, n_past: int) -> None:
        """Forget everything from absolute position `n_past` on."""

    def restart(self, n_past: int) -> None:
        """Forget everything, and read the text from absolute position `n_past` on."""


class ModelDrafter:
    """A small model that draws its proposals one by one.

    Parameters
    ----------
    model
        Holds a prefix of the text, or after a restart a piece of it.
    reader
        How its logits become distributions; must mask what the verifier cannot emit.
    eog_ids
        Tokens that end the text, after which nothing is worth proposing: `Stop.eog_ids`. They stay
        in the draft.
    """

    kind = "model"
    free = False
    prior = (0.75,) * len(POSITIONS)

    def __init__(
        self, model: LogitsBackend, reader: LogitsReader, eog_ids: frozenset[int] = frozenset()
    ) -> None:
        self.name = model.name
        self.model = model
        self.reader = reader
        self.eog_ids = eog_ids
        self._first = 0
        """Position of the text that the model's own position 0 stands for."""

    @property
    def n_past(self) -> int:
        return self._first + self.model.n_past

    @property
    def n_ctx(self) -> int:
        return self._first + self.model.n_ctx

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        """How far it lags, and what its context has room for."""
        return Outlook(self.n_ctx - len(tokens) + 1, len(tokens) - 1 - self.n_past)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        draft, clock = Draft(), self.model.clock
        lacking = readable(tokens[self.n_past :], self.model.n_vocab)
        self.model.checkpoint()
        while len(draft.ids) < limit:
            if go_on is not None and not go_on(len(draft.ids), None):
                break
            rows = self.model.forward(lacking, 1 + min(hindsight, len(lacking) - 1))
            answered = clock()
            self.reader.mask(rows)
            if len(rows) > 1:
                draft.hindsight = self._hindsight(rows[:-1], tokens)
            if go_on is not None and not go_on(len(draft.ids), rows[-1]):
                draft.core_seconds += clock() - answered
                break
            (chances,) = self.reader.read(rows[-1:], len(tokens) + len(draft.ids))
            token = self.draw(chances, random)
            draft.ids.append(token)
            draft.distributions.append(chances)
            draft.core_seconds += clock() - answered
            if token in self.eog_ids and len(draft.ids) < limit:
                draft.ended = "end token"
                break
            lacking = [token]
        return draft

    def draw(self, chances: Distribution, random: np.random.Generator) -> int:
        """One proposal."""
        return chances.draw(random.random())

    def truncate(self, n_past: int) -> None:
        if n_past < self._first:
            self.restart(n_past)
        else:
            self.model.truncate(n_past - self._first)

    def restart(self, n_past: int) -> None:
        """Forget everything, and read the text from absolute position `n_past` on.

        What it proposes then follows another Q, which it is really drawn from: the law stays.
        """
        self.model.truncate(0)
        self._first = n_past

    def _hindsight(self, rows: NDArray[np.float32], tokens: Sequence[int]) -> list[float]:
        """Its probabilities of the text's last tokens, one for each of `rows`."""
        known = self.reader.read(rows, len(tokens) - len(rows))
        last = tokens[len(tokens) - len(rows) :]
        return [float(row.prob(token)) for row, token in zip(known, last, strict=True)]
