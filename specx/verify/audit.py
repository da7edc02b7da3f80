"""Floating-point differences of a loaded model: a batch against single rows, a used cache against
a fresh one.

They come from the runtime, whose kernels add in an order that depends on the number of rows. They
are measured here so that an exactness check refutes only what exceeds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specx.core.logits import log_softmax
from specx.runtime.backend import LogitsBackend

__all__ = ["Deviation", "batch_deviation", "rollback_deviation"]


@dataclass(frozen=True)
class Deviation:
    """The distance between two computations of the same logits, by position."""

    logits: NDArray[np.float64]
    """Largest absolute difference of a logit, shape (n,), in nats."""
    total_variation: NDArray[np.float64]
    """Total variation of the plain softmax at temperature 1, shape (n,)."""

    @property
    def largest(self) -> float:
        """The largest difference of a logit at any position."""
        return float(self.logits.max())


def batch_deviation(model: LogitsBackend, tokens: Sequence[int], width: int) -> Deviation:
    """Compare the logits of `tokens` fed `width` at a time with those fed one at a time.

    The first token is fed alone in both; the model's cache is emptied before and after.
    """
    single = _feed(model, tokens, 1)
    batched = _feed(model, tokens, width)
    model.truncate(0)
    return _compare(single, batched)


def rollback_deviation(
    model: LogitsBackend, tokens: Sequence[int], wrong: Sequence[int], width: int
) -> Deviation:
    """Compare the logits after feeding and forgetting `wrong` with a run that never saw it.

    Both runs feed `tokens` in the same portions of `width`, so a sound cache on a deterministic
    runtime gives a deviation of 0.
    """
    fresh = _feed(model, tokens, width)
    used = _feed(model, tokens, width, wrong)
    model.truncate(0)
    return _compare(fresh, used)


def _feed(
    model: LogitsBackend, tokens: Sequence[int], width: int, wrong: Sequence[int] = ()
) -> NDArray[np.float32]:
    """Logits after each token; `wrong` is fed and forgotten before each portion."""
    model.truncate(0)
    rows = [model.forward(tokens[:1])]
    for start in range(1, len(tokens), width):
        model.checkpoint()
        if wrong:
            model.forward(wrong)
            model.truncate(start)
        portion = tokens[start : start + width]
        rows.append(model.forward(portion, n_logits=len(portion)))
    return np.concatenate(rows)


def _compare(one: NDArray[np.float32], other: NDArray[np.float32]) -> Deviation:
    """Absolute differences; a logit that is -inf on both sides counts as equal."""
    equal = one == other
    apart = np.where(equal, 0.0, np.abs(np.where(equal, 0, one) - np.where(equal, 0, other)))
    return Deviation(
        apart.max(axis=1).astype(np.float64),
        np.abs(np.exp(log_softmax(one)) - np.exp(log_softmax(other))).sum(axis=1) / 2,
    )
