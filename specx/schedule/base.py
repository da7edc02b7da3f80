"""What the loop asks of a schedule, and the simplest one.

A choice keeps the text's distribution if it depends on nothing but the past (texts, verdicts,
times), the tokens drawn so far in this draft, and the distributions that they and the next one are
drawn from. No token may be dropped for what it turned out to be, nor a draft for what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specx.drafters.base import Drafter, Outlook
from specx.schedule.costs.live import Costs

__all__ = ["Decision", "Fixed", "Outcome", "Schedule", "most_proposals"]


@dataclass(frozen=True)
class Decision:
    """Which drafter proposes in a round, how many tokens at most, and why."""

    drafter: Drafter
    limit: int
    reason: str
    hindsight: int = 0
    """How many of the text's last tokens the drafter must look back at."""
    restarted: int | None = None
    """The position from which the drafter was made to read the text anew, if it was."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a round."""

    survival: Sequence[float]
    """`Rule.survival` of each proposed token; also known beyond a rejection."""
    decided: int
    """Tokens that the round added to the text: accepted ones and one more."""
    token: int
    """The first of them."""
    prob: Callable[[int], float]
    """The verifier's probability of a token in the first one's place."""
    hindsight: Sequence[float] = ()
    """`Draft.hindsight`."""
    draft_seconds: float = 0.0
    """The drafter's forward passes, without its sampling."""
    verify_seconds: float = 0.0
    core_seconds: float = 0.0


class Schedule(Protocol):
    """Decides before and within each round how far to draft."""

    @property
    def costs(self) -> Costs | None:
        """Costs that it goes by, if it does."""

    def begin(self) -> None:
        """A new text begins: forget what belongs to the last one, keep what was learned."""

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Decision:
        """Which drafter proposes after `tokens`, and at most how many, `room` being the limit."""

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        """`specx.drafters.base.GoOn`: draw one more than the `k` tokens drawn?"""

    def learn(self, outcome: Outcome) -> None:
        """Take in the result of the round."""


def most_proposals(outlook: Outlook, room: int) -> int:
    """Most tokens that can be proposed in the round."""
    return max(0, min(outlook.limit, room))


class Fixed:
    """The first drafter proposes `gamma` tokens in every round."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma
        self.costs = None

    def begin(self) -> None:
        """Nothing to forget."""

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Decision:
        outlook = drafters[0].outlook(tokens)
        limit = min(self.gamma, most_proposals(outlook, room))
        if limit == self.gamma:
            return Decision(drafters[0], limit, "fixed")
        return Decision(drafters[0], limit, "no room" if limit == room else outlook.bound)

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        return True

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""
