"""The drafter's confidence as a predictor: the margin between its two largest logits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specx.core.logits import lead
from specx.schedule.acceptance import logit, sigmoid

__all__ = ["Margin", "margin_of"]

STEP = 0.15
CLIP = 2.5
FORGET = 0.98
TRUST_FROM = 8.0
"""Labels needed to tell whether the margin can be trusted."""
SLOPE, BIAS = 0.5, 0.3
MEAN, SD = 1.5, 0.8
WEIGHT = 8.0
"""Assumed before any label: a fifth of the slope and bias that fit real pairs at temperature 0,
and the mean and standard deviation of ln(1 + margin), which count as `WEIGHT` labels."""
ERRORS = (1.0, 1.1)
"""Brier scores before any label, with the margin and without: a little trust, soon lost."""


class Margin:
    """Adjusts a position's acceptance rate by the margin, as long as that predicts better.

    An online logistic regression with the rate's logit as its offset. Its Brier score and that of
    the rate alone, over the same labels, decide which of the two is used.
    """

    def __init__(self) -> None:
        self._bias, self._slope = BIAS, SLOPE
        self._mean, self._square, self._n = MEAN, MEAN**2 + SD**2, WEIGHT
        self._errors = [*ERRORS]
        self._seen = WEIGHT

    @property
    def trusted(self) -> bool:
        """Whether it predicts better than the rate alone."""
        with_margin, without = self._errors
        return self._seen >= TRUST_FROM and with_margin < 0.97 * without

    def predict(self, rate: float, margin: float) -> float:
        """The probability that a token is accepted: adjusted by `margin` if that is trusted."""
        return self._moved(rate, margin) if self.trusted else rate

    def learn(self, rate: float, margin: float, stayed: float, weight: float) -> None:
        """Take in a verified position: its rate, its margin, and its label of some weight."""
        if weight <= 0:
            return
        guess = self._moved(rate, margin)
        self._score(guess, rate, stayed, weight)
        x, error = self._standard(margin), weight * (stayed - guess)
        self._bias += 0.3 * STEP * error
        self._slope += STEP * error * x
        self._observe(margin)

    def age(self, keep: float) -> None:
        """Multiply the weight of all labels so far by `keep`."""
        self._errors = [keep * error for error in self._errors]
        self._seen *= keep

    def _moved(self, rate: float, margin: float) -> float:
        return sigmoid(logit(rate) + self._bias + self._slope * self._standard(margin))

    def _score(self, guess: float, rate: float, stayed: float, weight: float) -> None:
        keep = 1 - (1 - FORGET) * weight
        squares = (weight * (p - stayed) ** 2 for p in (guess, rate))
        self._errors = [keep * e + s for e, s in zip(self._errors, squares, strict=True)]
        self._seen = keep * self._seen + weight

    def _standard(self, margin: float) -> float:
        spread = math.sqrt(max(self._square - self._mean**2, 1e-3))
        return min(max((math.log1p(margin) - self._mean) / spread, -CLIP), CLIP)

    def _observe(self, margin: float) -> None:
        x = math.log1p(margin)
        self._n = min(self._n + 1, 100.0)
        self._mean += (x - self._mean) / self._n
        self._square += (x * x - self._square) / self._n


def margin_of(logits: NDArray[np.float32]) -> float:
    """The lead of the largest logit, capped at what tells anything."""
    return min(lead(logits), 50.0)
