"""Where proposals come from: a drafter proposes tokens, each with what it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specx.backend import LogitsBackend
from specx.sampling import Distribution, LogitsReader
from specx.vocabulary import readable

__all__ = ["Draft", "Drafter", "GoOn", "ModelDrafter"]

GoOn: TypeAlias = Callable[[int, NDArray[np.float32]], bool]
"""Asked before draw k with the logits it would be drawn from: go on? It is asked *before* the draw,
since dropping a token for what it turned out to be would change the law of the text."""


@dataclass
class Draft:
    """Proposed tokens and the distributions they were really drawn from, both of length g."""

    ids: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
    core_seconds: float = 0.0
    """Time that went into the sampling transform, not into the model."""


class Drafter(Protocol):
    """Proposes tokens after a text; knows nothing of how they are judged."""

    name: str

    @property
    def n_past(self) -> int:
        """Tokens of the text that it holds."""

    @property
    def n_ctx(self) -> int:
        """Tokens that it can hold."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
    ) -> Draft:
        """At most `limit` tokens to follow `tokens`; feeds itself what it lacks of them."""

    def truncate(self, n_past: int) -> None:
        """Forget everything from absolute position `n_past` on."""


class ModelDrafter:
    """A small model that draws its proposals one by one.

    Parameters
    ----------
    model
        Holds a prefix of the text.
    reader
        How its logits become distributions; must mask what the verifier cannot emit.
    eog_ids
        Tokens after which nothing is worth proposing. They stay in the draft.
    """

    def __init__(
        self, model: LogitsBackend, reader: LogitsReader, eog_ids: frozenset[int] = frozenset()
    ) -> None:
        self.name = model.name
        self.model = model
        self.reader = reader
        self.eog_ids = eog_ids

    @property
    def n_past(self) -> int:
        return self.model.n_past

    @property
    def n_ctx(self) -> int:
        return self.model.n_ctx

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
    ) -> Draft:
        draft, clock = Draft(), self.model.clock
        lacking = readable(tokens[self.n_past :], self.model.n_vocab)
        self.model.checkpoint()
        while len(draft.ids) < limit:
            logits = self.model.forward(lacking)
            answered = clock()
            if go_on is not None and not go_on(len(draft.ids), logits[0]):
                break
            (chances,) = self.reader.read(logits, len(tokens) + len(draft.ids))
            token = self.draw(chances, random)
            draft.ids.append(token)
            draft.distributions.append(chances)
            draft.core_seconds += clock() - answered
            if token in self.eog_ids:
                break
            lacking = [token]
        return draft

    def draw(self, chances: Distribution, random: np.random.Generator) -> int:
        """One proposal."""
        return chances.draw(random.random())

    def truncate(self, n_past: int) -> None:
        self.model.truncate(n_past)
