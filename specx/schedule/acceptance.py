"""Acceptance rates of drafted tokens, from discounted sums of soft labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Acceptance", "logit", "sigmoid"]

RATE = 0.02
"""How fast the past is forgotten: a label of weight 1 leaves 1 - RATE of what was known."""
WEIGHT = 3.0
"""Labels that the prior counts as."""
FADES = 8.0
"""Labels after which the prior's weight is halved."""
SUREST = 0.995
MOST_HOPED = 0.97
"""Highest rate to hope for unseen: what pays only above it is not worth a search."""
CAUTION = 1.5
"""Standard errors subtracted from a rate where waiting teaches as much as trying."""


class Acceptance:
    """The rate at which tokens are accepted given that all before them in the draft were, by class.

    The drafter says which class a token belongs to: its position in the draft, or the length of a
    match. A class with few labels follows the classes before it, since classes of one text differ
    less than texts do.

    Parameters
    ----------
    prior
        The rate of each class before any label.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        self._prior = [logit(chance) for chance in prior]
        self._stayed = [0.0] * len(prior)
        self._seen = [0.0] * len(prior)
        self._rates: list[float] | None = None
        self._known: list[float] = []

    def rates(self) -> list[float]:
        """The rate by class."""
        if self._rates is None:
            self._rates, self._known = self._estimate()
        return self._rates

    def hopeful_rates(self) -> list[float]:
        """The rate by class plus two standard errors: the fewer the labels, the higher."""
        hopes = []
        for rate, known in zip(self.rates(), self._known, strict=True):
            hope = rate + 2 * math.sqrt(rate * (1 - rate) / known)
            hopes.append(max(rate, min(hope, MOST_HOPED)))
        return hopes

    def cautious_rates(self) -> list[float]:
        """The rate by class minus some standard errors: the fewer the labels, the lower."""
        return [
            max(rate - CAUTION * math.sqrt(rate * (1 - rate) / known), 0.0)
            for rate, known in zip(self.rates(), self._known, strict=True)
        ]

    def learn(self, classes: Sequence[int], survival: Sequence[float]) -> None:
        """Take in a verified draft: the class of each token, and `Rule.survival` of it.

        a_i = E[s_i] / E[s_(i-1)], so each label is weighted by the probability that its position
        was reached; an earlier rejection hides nothing.
        """
        before = 1.0
        for place, after in zip(classes, survival, strict=True):
            self.label(place, after, before)
            before = after

    def label(self, place: int, stayed: float, weight: float = 1.0) -> None:
        """Take in one label: of `weight` tokens, `stayed` were accepted."""
        keep = 1 - RATE * weight
        self._stayed[place] = keep * self._stayed[place] + stayed
        self._seen[place] = keep * self._seen[place] + weight
        self._rates = None

    def age(self, keep: float) -> None:
        """Multiply the weight of all labels so far by `keep`."""
        self._stayed = [keep * stayed for stayed in self._stayed]
        self._seen = [keep * seen for seen in self._seen]
        self._rates = None

    def _estimate(self) -> tuple[list[float], list[float]]:
        """Rates, and how many labels stand behind each."""
        rates, known = [], []
        # The prior fades: at a true rate of .95, a remainder of .7 would misjudge whole stairs.
        shifts, total = 0.0, WEIGHT / (1 + sum(self._seen) / FADES)
        for prior, stayed, seen in zip(self._prior, self._stayed, self._seen, strict=True):
            expected = sigmoid(prior + shifts / total)
            weight = min(WEIGHT, total)
            rate = min((stayed + weight * expected) / (seen + weight), SUREST)
            shifts += seen * (logit(rate) - prior)
            total += seen
            rates.append(rate)
            known.append(total)
        return rates, known


def logit(chance: float) -> float:
    """ln(p / (1 - p)), finite also for 0 and 1."""
    chance = min(max(chance, 1e-3), 1 - 1e-3)
    return math.log(chance / (1 - chance))


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-x))
