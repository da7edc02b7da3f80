"""The speed-up of paired runs, with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

__all__ = ["Speedup", "median_speedup"]

CONFIDENCE, RESAMPLES = 0.95, 4000


@dataclass(frozen=True)
class Speedup:
    """A median of paired ratios and its bootstrap interval."""

    value: float
    low: float
    high: float
    units: int
    """Independent ratios behind it: prompts, or the repetitions of a single prompt."""


def median_speedup(
    ratios: Mapping[str, Sequence[float]], *, confidence: float = CONFIDENCE, seed: int = 0
) -> Speedup | None:
    """Median over prompts of the median of each prompt's ratios; None without a ratio.

    Parameters
    ----------
    ratios
        By prompt: tokens a second of the arm over those of its baseline, one a repetition.

    Notes
    -----
    Bootstrap over prompts: the repetitions of a prompt share its text and are no independent
    witnesses. With one prompt only, its repetitions are resampled, and the interval speaks for that
    prompt alone. The percentiles are the expanded ones of Hesterberg 2015 (arXiv 1411.5279):
    the plain ones cover the median of 8 or of 15 units at 93% only, these at 97%.
    """
    given = {prompt: list(each) for prompt, each in ratios.items() if each}
    if not given:
        return None
    (first, *others) = given.values()
    units = np.array([np.median(each) for each in given.values()] if others else first)
    low, high = _interval(units, confidence, seed)
    return Speedup(float(np.median(units)), low, high, len(units))


def _interval(units: NDArray[np.float64], confidence: float, seed: int) -> tuple[float, float]:
    drawn = np.random.default_rng(seed).choice(units, (RESAMPLES, len(units)))
    tail = _expanded((1 - confidence) / 2, len(units))
    low, high = np.quantile(np.median(drawn, axis=1), [tail, 1 - tail])
    return float(low), float(high)


def _expanded(tail: float, units: int) -> float:
    """The tail to cut off from means of `units` resampled values, which spread too little."""
    if units == 1:
        return tail
    return float(norm.cdf(t.ppf(tail, units - 1) * np.sqrt(units / (units - 1))))
