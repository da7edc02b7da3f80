"""Warnings about doubtful figures of a benchmark, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import psutil

from specx.bench.records import Arm, Results, Run
from specx.bench.speedup import FEWEST
from specx.runtime.machine import Watch
from specx.schedule.costs.curve import Profile, acceptance_needed
from specx.session.tally import merged

__all__ = ["warnings_of"]

UNSTABLE, OTHERS, SWAPPED_MIB = 0.10, 0.10, 16
TESTED_ENOUGH, HARDLY, TOO_MUCH = 20, 0.05, 0.95


def warnings_of(results: Results, watch: Watch) -> list[dict[str, str]]:
    """The warnings, each with the observation (`text`) and the action to take (`remedy`)."""
    found = [
        *_unstable(results),
        *_few(results),
        *_never_accepted(results),
        *_steep(results),
        *_machine(watch),
        *_threads(results.profiles),
    ]
    return [{"text": text, "remedy": remedy} for text, remedy in found]


Found = Iterator[tuple[str, str]]


def _unstable(results: Results) -> Found:
    """Warn if timings vary: the verifier alone repeats the same work, so its spread is noise."""
    for arm, runs in results.runs.items():
        spread = 0.0 if arm.gamma else _spread(runs)
        if spread > UNSTABLE:
            yield (
                f"timings are unstable: the verifier alone ({arm.runtimes}, temperature "
                f"{arm.sampling.temperature:g}) varies by {spread:.0%} between repetitions",
                "close other programs, plug the laptop in, or raise -r",
            )


def _spread(runs: Sequence[Run]) -> float:
    """(largest - smallest) / median over a prompt's repetitions; the median over prompts.

    It is computed from seconds per pass: an end token takes a pass but is not part of the text, so
    a short run has fewer tokens per second even on a perfectly steady machine.
    """
    passes: dict[str, list[float]] = {}
    for run in runs:
        if run.tally.rounds and run.tally.total > 0:
            passes.setdefault(run.prompt, []).append(run.tally.total / run.tally.rounds)
    spreads = [(max(s) - min(s)) / median(s) for s in passes.values() if len(s) > 1]
    return median(spreads) if spreads else 0.0


def _few(results: Results) -> Found:
    keys = {run.key for runs in results.runs.values() for run in runs}
    prompts = {prompt for prompt, _ in keys}
    units = len(prompts) if len(prompts) > 1 else len(keys)
    if 0 < units < FEWEST:
        what = "prompts" if len(prompts) > 1 else "repetitions of one prompt"
        yield (
            f"{units} {what}: too few for an interval, so ranges are shown instead",
            f"measure {FEWEST} prompts or more (--suite all:1 has one of each kind)",
        )


def _never_accepted(results: Results) -> Found:
    for arm, runs in results.runs.items():
        tally = merged([run.tally for run in runs])
        if tally.tested >= TESTED_ENOUGH and tally.accepted <= HARDLY * tally.tested:
            yield (
                f"drafted tokens are hardly ever accepted ({_name(arm)}): {tally.accepted} of "
                f"{tally.tested} tested tokens",
                "use a drafter of the verifier's own family, and its chat template"
                if arm.needs_model
                else "leave out lookup for prompts whose text does not recur in the answer",
            )


def _steep(results: Results) -> Found:
    """Warn where no acceptance rate could make a fixed gamma pay off."""
    for runtimes, profile in results.profiles.items():
        arms = [arm for arm in results.runs if arm.runtimes == runtimes and arm.cached]
        gammas = sorted({arm.longest_draft for arm in arms if arm.drafts_in_full})
        hopeless = [g for g in gammas if _hopeless(acceptance_needed(profile, g))]
        if gammas and hopeless == gammas:
            width = gammas[0] + 1
            ratio = profile.verifier(width) / profile.verifier(1)
            yield (
                f"the verifier's cost curve ({runtimes}) is too steep: a pass of {width} tokens "
                f"costs as much as {ratio:.1f} single ones, so no gamma here can gain",
                "use another quantisation (F16 is flatter on a CPU), a smaller drafter, or a "
                "smaller gamma; specx bench --curve shows the curve",
            )


def _hopeless(needed: float | None) -> bool:
    """True for an acceptance rate that no drafter reaches."""
    return needed is None or needed >= TOO_MUCH


def _machine(watch: Watch) -> Found:
    if watch.swapped_mib() > SWAPPED_MIB:
        yield (
            f"the machine swapped {watch.swapped_mib():.0f} MiB to disk during the runs",
            "free memory, shorten the context (-c), or use a smaller model",
        )
    if watch.others() > OTHERS:
        yield (
            f"other programs took {watch.others():.0%} of the processor during the runs",
            "close them, or leave them a core with -t: the threads of a model wait for the slowest "
            "of them",
        )


def _threads(profiles: dict[str, Profile]) -> Found:
    cores = psutil.cpu_count() or 1
    for profile in profiles.values():
        for role, curve in profile.curves().items():
            if curve.threads is not None and curve.threads > cores:
                yield (
                    f"the {role} runs {curve.threads} threads on {cores} cores",
                    f"-t {cores} or fewer",
                )


def _name(arm: Arm) -> str:
    named: dict[str, Any] = {
        "gamma": arm.gamma,
        "rule": arm.rule,
        "temp": arm.sampling.temperature,
    }
    if not arm.needs_model:
        named["draft"] = "+".join(arm.settings.draft or ())
    return ", ".join(f"{key} {value}" for key, value in named.items())
