"""Results of checks, and their description for statistical ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from specx.verify.chisquare import POWER, ChiSquare

__all__ = ["FALSE_POSITIVE", "Check", "Report", "statistical"]

FALSE_POSITIVE = 1e-6
"""False-positive rate of each statistical check: a sound decoder fails one run in a million."""

Report: TypeAlias = Callable[[float], None]
"""Called with the share of the work that is done."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    subject: str
    holds: bool
    found: str
    """The margin by which it holds or fails."""
    means: str
    """The extent of the check, and its error rate."""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """A record of JSON values, with null for infinite numbers."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def statistical(name: str, subject: str, found: ChiSquare, what: str) -> Check:
    """The result of a check that compared draws with a distribution."""
    return Check(
        name=name,
        subject=subject,
        holds=found.holds,
        found=_found(found),
        means=(
            f"{found.trials:,} {what}; detects a total variation of {found.visible:.3f} with "
            f"probability {POWER}, false alarms {found.false_positive:.0e}"
        ),
        figures=found.as_json(),
    )


def _found(found: ChiSquare) -> str:
    if found.excluded:
        return f"{found.excluded:,} of {found.trials:,} have probability 0"
    if found.rare > found.most_rare:
        return (
            f"{found.rare:,} draws of rare outcomes, where {found.rare_expected:.2g} are expected "
            f"and at most {found.most_rare} allowed"
        )
    figures = (
        f"chi-square {found.statistic:.1f}, critical {found.critical:.1f} (df {found.degrees})"
    )
    return figures if found.holds else f"{figures}, total variation {found.total_variation:.3f}"
