"""The result of a check, and the words for that of a statistical one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from specx.verify.chisquare import POWER, ChiSquare

__all__ = ["FALSE_POSITIVE", "Check", "Report", "statistical"]

FALSE_POSITIVE = 1e-6
"""Of each statistical check: a sound decoder fails one in a million runs of it."""

Report: TypeAlias = Callable[[float], None]
"""Is told the share of the work that is done."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    subject: str
    holds: bool
    found: str
    """By how much it holds or fails."""
    means: str
    """The conclusion from it, and its error rate."""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """JSON values; JSON has no infinite numbers, and null stands for them."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def statistical(name: str, subject: str, found: ChiSquare, what: str) -> Check:
    """The check that compared draws with a distribution."""
    return Check(
        name=name,
        subject=subject,
        holds=found.holds,
        found=_found(found),
        means=(
            f"{found.trials:,} {what}; sees a total variation of {found.visible:.3f} with "
            f"probability {POWER}, false alarms {found.false_positive:.0e}"
        ),
        figures=found.as_json(),
    )


def _found(found: ChiSquare) -> str:
    if found.excluded:
        return f"{found.excluded:,} of {found.trials:,} have probability 0"
    if found.rare > found.most_rare:
        return (
            f"{found.rare:,} draws of rare outcomes, which expect {found.rare_expected:.2g} "
            f"and at most {found.most_rare}"
        )
    figures = (
        f"chi-square {found.statistic:.1f}, critical {found.critical:.1f} (df {found.degrees})"
    )
    return figures if found.holds else f"{figures}, total variation {found.total_variation:.3f}"
