"""Pearson's chi-square against a law that is known exactly, with what it can and cannot see."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChiSquare", "chi_square"]

MOST_CELLS = 64
LEAST_EXPECTED = 5.0
POWER = 0.99


@dataclass(frozen=True)
class ChiSquare:
    """The outcome of one test."""

    statistic: float
    degrees: int
    """Of freedom: cells less one."""
    critical: float
    """The statistic exceeds it with the stated false-positive rate when the law holds."""
    total_variation: float
    """Between what was seen and the law, over the cells; noise included."""
    visible: float
    """A bias of this total variation over the cells is refuted with power .99."""

    @property
    def holds(self) -> bool:
        """True where the law is not refuted."""
        return self.statistic <= self.critical


def chi_square(
    seen: Mapping[Any, int], law: Mapping[Any, float], false_positive: float
) -> ChiSquare:
    """Test counts against the probabilities of `law`.

    At most 64 cells are kept, each expecting 5 or more; the rest are one cell. An outcome that the
    law excludes refutes it outright.
    """
    from scipy.stats import chi2

    trials = sum(seen.values())
    if any(count and not law.get(key) for key, count in seen.items()):
        return ChiSquare(np.inf, 0, 0.0, 1.0, 0.0)
    counts, expected = _cells(seen, law, trials)
    statistic = float((((counts - expected) ** 2) / expected).sum())
    degrees = max(len(expected) - 1, 1)
    critical = float(chi2.isf(false_positive, degrees))
    return ChiSquare(
        statistic,
        degrees,
        critical,
        float(np.abs(counts - expected).sum() / 2 / trials),
        _visible(degrees, critical, trials),
    )


def _cells(
    seen: Mapping[Any, int], law: Mapping[Any, float], trials: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Counts and expectations of the cells, the merged one last."""
    keys: list[Hashable] = sorted(law, key=lambda key: -law[key])
    kept = [key for key in keys[: MOST_CELLS - 1] if law[key] * trials >= LEAST_EXPECTED]
    counts = [float(seen.get(key, 0)) for key in kept]
    expected = [float(law[key]) * trials for key in kept]
    rest = max(trials - sum(expected), 0.0)
    if rest >= LEAST_EXPECTED or not kept:
        counts.append(trials - sum(counts))
        expected.append(rest)
    else:  # too little for a cell of its own
        counts[-1] += trials - sum(counts)
        expected[-1] += rest
    return np.array(counts), np.array(expected)


def _visible(degrees: int, critical: float, trials: int) -> float:
    """Total variation t whose noncentrality is at least trials * (2t)^2, by Cauchy-Schwarz."""
    from scipy.optimize import brentq
    from scipy.stats import ncx2

    def lacking(noncentrality: float) -> float:
        return float(ncx2.sf(critical, degrees, noncentrality)) - POWER

    return float(np.sqrt(brentq(lacking, 1e-3, 100 * critical + 1000) / trials) / 2)
