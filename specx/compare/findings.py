"""Figures behind a verdict, computed from the runs of two systems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from specx.bench.records import Results, Run
from specx.bench.speedup import Speedup, median_speedup
from specx.bench.summary import paired_ratios
from specx.compare.run import Comparison
from specx.compare.split import (
    Acceptance,
    Costs,
    Split,
    acceptance_of,
    costs_of,
    speedup,
    split_difference,
)
from specx.errors import UsageError
from specx.session.tally import Tally, merged

__all__ = ["Findings", "Outcome", "findings_of"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One system's figures."""

    name: str
    plain: float
    """Median tokens per second of the runs."""
    speculative: float
    speedup: Speedup
    predicted: float
    acceptance: Acceptance
    costs: Costs
    tally: Tally
    """The tally of all speculative runs."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The figures of both systems, and their comparison."""

    gamma: int
    a: Outcome
    b: Outcome
    plain_ratio: Speedup
    """A's tokens per second over B's, paired by prompt and repetition."""
    speculative_ratio: Speedup
    split: Split


def findings_of(found: Comparison) -> Findings:
    """The figures of complete blocks.

    Raises
    ------
    UsageError
        If nothing was drafted or the clock did not advance, so no speed-up can be computed.
    """
    a, b = (_outcome(name, side) for name, side in zip(found.names, found.results, strict=True))
    plain_a, fast_a = _runs(found.results[0])
    plain_b, fast_b = _runs(found.results[1])
    gamma = max(arm.longest_draft for arm in found.results[0].runs)
    measured = math.log(a.speedup.value) - math.log(b.speedup.value)
    return Findings(
        gamma=gamma,
        a=a,
        b=b,
        plain_ratio=_ratio(plain_a, plain_b),
        speculative_ratio=_ratio(fast_a, fast_b),
        split=split_difference((a.acceptance, a.costs), (b.acceptance, b.costs), gamma, measured),
    )


def _runs(side: Results) -> tuple[list[Run], list[Run]]:
    """The runs of the verifier alone, and the speculative runs."""
    by_gamma = {arm.longest_draft: runs for arm, runs in side.runs.items()}
    return by_gamma[0], by_gamma[max(by_gamma)]


def _outcome(name: str, side: Results) -> Outcome:
    plain, fast = _runs(side)
    (profile,) = side.profiles.values()
    tally = merged([run.tally for run in fast])
    if not tally.tested:
        raise UsageError(
            f"{name} drafted nothing in {len(fast)} runs; raise -n, or add --ignore-eos if "
            "texts end at once"
        )
    measured = _ratio(fast, plain)  # refuses runs that wrote nothing, which have no costs either
    acceptance, costs = acceptance_of(fast), costs_of(profile, fast, plain)
    return Outcome(
        name=name,
        plain=median(run.tok_s for run in plain),
        speculative=median(run.tok_s for run in fast),
        speedup=measured,
        predicted=speedup(acceptance, costs, max(arm.longest_draft for arm in side.runs)),
        acceptance=acceptance,
        costs=costs,
        tally=tally,
    )


def _ratio(runs: Sequence[Run], against: Sequence[Run]) -> Speedup:
    found = median_speedup(paired_ratios(runs, against))
    if found is None or found.value <= 0:
        raise UsageError(
            "the runs wrote nothing or the clock did not advance, so no speed can be computed; "
            "raise -n"
        )
    return found
