"""Entropy and margin of a row of logits as a trace records them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specx.core.logits import entropy, lead
from specx.core.sampling import SamplingParams
from specx.records.trace.records import Uncertainty

__all__ = ["uncertainty"]


def uncertainty(logits: NDArray[np.float32], params: SamplingParams) -> Uncertainty:
    """The uncertainty of a row of logits, before filters.

    Parameters
    ----------
    logits
        Shape (n_vocab,); -inf for tokens that cannot be drawn, at least one of them finite. Left
        as it was.
    """
    raw = entropy(logits)
    tempered = 0.0 if params.greedy else raw
    if not params.greedy and params.temperature != 1:
        tempered = entropy(logits, params.temperature)
    most = math.log(len(logits)) or 1.0
    margin = lead(logits)
    return Uncertainty(
        entropy=_six_digits(tempered),
        entropy_normalised=_six_digits(tempered / most),
        raw_entropy=_six_digits(raw),
        raw_entropy_normalised=_six_digits(raw / most),
        margin=_six_digits(margin) if math.isfinite(margin) else None,
    )


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
