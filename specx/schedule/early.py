"""Early stop: a draft ends where the drafter is unsure, before the token in doubt is drawn.

Both tests look at the softmax of the drafter's logits before temperature and filters, since at
temperature 0 every draw is certain and tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specx.core.logits import best_probability, normalised_entropy
from specx.drafters.base import Drafter
from specx.errors import UsageError
from specx.schedule.base import Decision, Outcome, Schedule

__all__ = ["EarlyStop"]


class EarlyStop:
    """Another schedule, whose drafts also end where the drafter is unsure.

    Parameters
    ----------
    schedule
        Decides everything else.
    entropy
        Stop before the draw when entropy / ln(n_vocab) exceeds this; one token is always proposed.
    p_min
        Stop before the draw when the best probability is under this, even before the first draw.
        llama.cpp compares the drawn token's probability, which is exact only for greedy drafts.
    """

    def __init__(
        self, schedule: Schedule, *, entropy: float | None = None, p_min: float | None = None
    ) -> None:
        for name, value in (("entropy-stop", entropy), ("draft-p-min", p_min)):
            if value is not None and not 0 <= value <= 1:
                raise UsageError(f"{name} is {value}; it must lie in [0, 1]")
        self.inner = schedule
        self.costs = schedule.costs
        self._entropy, self._p_min = entropy, p_min

    def begin(self) -> None:
        self.inner.begin()

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Decision:
        decision = self.inner.plan(tokens, drafters, room)
        return replace(decision, reason=f"{decision.reason}, with early stop")

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        return self.inner.go_on(k, logits) and (logits is None or self._sure(k, logits))

    def learn(self, outcome: Outcome) -> None:
        self.inner.learn(outcome)

    def _sure(self, k: int, logits: NDArray[np.float32]) -> bool:
        if self._p_min is not None and best_probability(logits) < self._p_min:
            return False
        return self._entropy is None or k == 0 or normalised_entropy(logits) <= self._entropy
