"""Pearson's chi-square against a distribution that is known exactly, and its power."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["ChiSquare", "chi_square"]

MOST_CELLS = 64
LEAST_EXPECTED = 5.0
POWER = 0.99


@dataclass(frozen=True, kw_only=True)
class ChiSquare:
    """The outcome of one test.

    Outcomes too rare for a cell of their own share the last one, where an error could hide; so
    their number is tested separately, and the false-positive rate is split between the two tests.
    """

    trials: int
    statistic: float
    degrees: int
    """Degrees of freedom: the number of cells minus one; 0 if one outcome is almost certain."""
    critical: float
    total_variation: float
    """Total variation between counts and distribution over the cells, including noise."""
    rare: int
    """The number of draws of outcomes too rare for a cell."""
    rare_expected: float
    most_rare: int
    """The largest number of them that is allowed."""
    excluded: int
    """The number of draws of probability 0; a single one refutes the distribution."""
    false_positive: float
    """The probability that a sound decoder is refuted."""

    @property
    def holds(self) -> bool:
        """True where the distribution is not refuted."""
        alike = self.statistic <= self.critical and self.rare <= self.most_rare
        return alike and not self.excluded

    @cached_property
    def visible(self) -> float:
        """A bias of this total variation over the cells is refuted with power .99."""
        if not self.degrees:
            return _visible_rare(self.most_rare, self.trials) - self.rare_expected / self.trials
        return _visible(self.degrees, self.critical, self.trials)

    def as_json(self) -> dict[str, Any]:
        """A record of JSON values."""
        return {**asdict(self), "visible": self.visible}


def chi_square(
    seen: Mapping[Any, int], law: Mapping[Any, float], false_positive: float
) -> ChiSquare:
    """Test counts against the probabilities of `law`.

    Outcomes are merged by falling probability into at most 64 cells that each expect 5 draws or
    more.
    """
    from scipy.stats import binom, chi2

    trials = sum(seen.values())
    cells, rare = _cells(law, trials)
    excluded = {key for key in seen if not law.get(key)}
    counts = np.array([_total(seen, cell) for cell in cells], dtype=np.float64)
    counts[-1] += _total(seen, excluded)
    expected = trials * np.array([_total(law, cell) for cell in cells])
    share = false_positive / 2 if rare else false_positive
    degrees, rare_mass = len(cells) - 1, float(_total(law, rare))
    return ChiSquare(
        trials=trials,
        statistic=float((((counts - expected) ** 2) / expected).sum()) if degrees else 0.0,
        degrees=degrees,
        critical=float(chi2.isf(share, degrees)) if degrees else 0.0,
        total_variation=float(np.abs(counts - expected).sum() / 2 / trials),
        rare=_total(seen, rare),
        rare_expected=trials * rare_mass,
        most_rare=int(binom.isf(share, trials, rare_mass)),
        excluded=_total(seen, excluded),
        false_positive=false_positive,
    )


def _total(numbers: Mapping[Any, Any], keys: Iterable[Any]) -> Any:
    return sum(numbers.get(key, 0) for key in keys)


def _cells(law: Mapping[Any, float], trials: int) -> tuple[list[list[Any]], list[Any]]:
    """The outcomes of each cell, and those too rare to make a cell even together."""
    cells: list[list[Any]] = []
    filling: list[Any] = []
    mass = 0.0
    for key in sorted(law, key=lambda key: -law[key]):
        filling.append(key)
        mass += law[key] * trials
        if mass >= LEAST_EXPECTED and len(cells) < MOST_CELLS - 1:
            cells.append(filling)
            filling, mass = [], 0.0
    if mass >= LEAST_EXPECTED or not cells:
        return [*cells, filling], []
    return [*cells[:-1], cells[-1] + filling], [key for key in filling if law[key]]


def _visible(degrees: int, critical: float, trials: int) -> float:
    """The total variation t whose noncentrality is at least trials * (2t)^2, by Cauchy-Schwarz."""
    from scipy.optimize import brentq
    from scipy.stats import ncx2

    def lacking(noncentrality: float) -> float:
        return float(ncx2.sf(critical, degrees, noncentrality)) - POWER

    return float(np.sqrt(brentq(lacking, 1e-3, 100 * critical + 1000) / trials) / 2)


def _visible_rare(most: int, trials: int) -> float:
    """The probability at which more than `most` of `trials` occur with power .99."""
    from scipy.stats import beta

    return float(beta.ppf(POWER, most + 1, trials - most)) if most < trials else 1.0
