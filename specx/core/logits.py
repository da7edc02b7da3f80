"""Arithmetic on rows of logits: softmax, entropy, and the lead of the first choice. In nats."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_probability", "entropy", "lead", "log_softmax", "normalised_entropy"]

FLOOR = np.float32(-80)
"""exp(-80) is 1e-35: lower logits add nothing to a sum, and below -87 arithmetic is slow."""
LEAST = 1e-25
"""What a vocabulary of masked tokens at `FLOOR` could add to an entropy of 0 lies below this."""


ENTROPY_STEPS = (0.5, 1.5, 3.0)
"""In nats at temperature 1, where shading begins and deepens: as unsure as between 1.6, 4.5 and 20
equally likely tokens."""


def log_softmax(logits: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
    """Logs of the softmax along the last axis, in float64; -inf where a logit is."""
    tempered = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    tempered /= temperature
    logs: NDArray[np.float64] = tempered - np.log(np.exp(tempered).sum(axis=-1, keepdims=True))
    return logs


def best_probability(logits: NDArray[np.float32]) -> float:
    """The largest entry of the softmax of one row."""
    return 1 / float(np.exp(logits - logits.max()).sum(dtype=np.float64))


def entropy(logits: NDArray[np.float32], temperature: float = 1.0) -> float:
    """Entropy of the softmax of one row, at least one of its logits finite.

    Notes
    -----
    With x = (l - max l) / T and Z = sum exp(x), it is ln Z - sum x exp(x) / Z. In float32, one
    exponential over the vocabulary, it is good to about 1e-5.
    """
    x = logits - logits.max()
    if temperature != 1:
        x *= np.float32(1 / temperature)
    np.maximum(x, FLOOR, out=x)
    weights = np.exp(x)
    total = float(weights.sum(dtype=np.float64))
    found = math.log(total) - float(np.dot(weights, x)) / total
    return found if found > LEAST else 0.0


def normalised_entropy(logits: NDArray[np.float32]) -> float:
    """`entropy` over that of a uniform distribution, in [0, 1]."""
    return entropy(logits) / (math.log(len(logits)) or 1.0)


def lead(logits: NDArray[np.float32]) -> float:
    """Largest logit of one row less the second largest; inf where only one is finite, 0 where none.

    Takes two passes, which cost a fiftieth of a partition.
    """
    place = int(logits.argmax())
    best = logits[place]
    logits[place] = -np.inf
    second = logits.max()
    logits[place] = best
    return float(best - second) if np.isfinite(best) else 0.0


def entropy_level(nats: float) -> int:
    """Shade of an entropy, 0 to 3: how many of `ENTROPY_STEPS` it reaches."""
    return sum(nats >= step for step in ENTROPY_STEPS)
