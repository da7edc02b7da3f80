"""Summaries of runs: the figures of each arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from specx.bench.records import Arm, Results, Run
from specx.bench.speedup import Speedup, median_speedup
from specx.schedule.costs.curve import Profile, expected_tokens, predicted_speedup, textbook_speedup
from specx.session.tally import Tally, merged

__all__ = ["paired_ratios", "summarise"]


def summarise(results: Results) -> list[dict[str, Any]]:
    """One record of JSON values per arm, in the order in which they ran."""
    return [_summary(arm, runs, results) for arm, runs in results.runs.items()]


def paired_ratios(runs: Sequence[Run], against: Sequence[Run]) -> dict[str, list[float]]:
    """By prompt: the tok/s of each run over that of its paired run.

    A run that wrote nothing (its first token was an end token) has no speed and is left out.
    """
    other = {run.key: run.tok_s for run in against if _has_speed(run)}
    ratios: dict[str, list[float]] = {}
    for run in runs:
        if _has_speed(run) and run.key in other:
            ratios.setdefault(run.prompt, []).append(run.tok_s / other[run.key])
    return ratios


def _has_speed(run: Run) -> bool:
    """True if it wrote something, in a time that is not zero."""
    return 0 < run.tok_s < math.inf


def _summary(arm: Arm, runs: Sequence[Run], results: Results) -> dict[str, Any]:
    tally = merged([run.tally for run in runs])
    plain = results.runs.get(arm.baseline(), [])
    speedup = median_speedup(paired_ratios(runs, plain)) if arm.gamma else None
    rates = [run.tok_s for run in runs if _has_speed(run)]
    return {
        "settings": arm.record(),
        "n_runs": len(runs),
        "n_tokens": tally.n_tokens,
        "tok_s": median(rates) if rates else None,
        "tok_s_least": min(rates, default=None),
        "tok_s_most": max(rates, default=None),
        **_speedups(speedup),
        **_predictions(arm, tally, plain, results.profiles.get(arm.runtimes)),
        "alpha": tally.alpha,
        "kept": tally.kept,
        "tau": tally.tau,
        "alpha_by_position": tally.alpha_by_position,
        "accepted_lengths": tally.lengths,
        "expected_accepted": tally.expected_a_round(),
        "time": tally.time(),
        "prefill_s": sum(run.prefill_s for run in runs),
        "by_kind": _by_kind(arm, runs, plain),
    }


def _by_kind(arm: Arm, runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Speed and acceptance on each kind of prompt."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    return {kind: _kind(arm, its_runs, plain) for kind, its_runs in kinds.items()}


def _kind(arm: Arm, runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    tally = merged([run.tally for run in runs])
    rates = [run.tok_s for run in runs if _has_speed(run)]
    return {
        "tok_s": median(rates) if rates else None,
        **_speedups(median_speedup(paired_ratios(runs, plain)) if arm.gamma else None),
        "alpha": tally.alpha,
        "kept": tally.kept,
        "tau": tally.tau,
    }


def _speedups(found: Speedup | None) -> dict[str, Any]:
    return {
        "speedup": found and found.value,
        "speedup_low": found and found.low,
        "speedup_high": found and found.high,
        "speedup_units": found and found.units,
        "speedup_interval": found and found.interval,
    }


def _predictions(
    arm: Arm, tally: Tally, plain: Sequence[Run], profile: Profile | None
) -> dict[str, float | None]:
    """Predictions by the measured curve and by the textbook; None where they do not apply."""
    alone = merged([run.tally for run in plain])
    described = arm.drafts_in_full and arm.cached and tally.rounds and alone.rounds
    if not described or profile is None or profile.drafter is None:
        return {"predicted": None, "predicted_textbook": None}
    ratio = profile.drafter(1) / profile.verifier(1)
    return {
        "predicted": predicted_speedup(
            profile,
            arm.longest_draft,
            expected_tokens(tally.alpha_by_position),
            full=tally.after_full / tally.rounds,
            core=tally.times.core / tally.rounds,
            core_plain=alone.times.core / alone.rounds,
            rollback=tally.times.rollback / tally.rounds,
        ),
        "predicted_textbook": textbook_speedup(tally.alpha or 0.0, arm.longest_draft, ratio),
    }
