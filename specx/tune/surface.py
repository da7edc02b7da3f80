"""The speed-up of each draft length on each kind of prompt: pure functions of measured figures.

Costs and the formula are those of `specx.schedule.costs.curve`; what is added here is acceptance by
kind of prompt, and what remains uncertain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod
from statistics import fmean, geometric_mean, median

import numpy as np
from numpy.typing import NDArray

from specx.drafters.lookup import LookupDrafter
from specx.schedule.costs.curve import (
    Profile,
    acceptance_needed,
    expected_tokens,
    predicted_speedup,
)

__all__ = [
    "GAMMAS",
    "WORTH",
    "Labels",
    "Overheads",
    "Surface",
    "Text",
    "agreement",
    "best_place",
    "lookup_surface",
    "merged_labels",
    "model_surface",
    "rates_by_kind",
]

GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
WORTH = 1.02
"""The least speed-up that is worth a drafter."""
ALIKE = 0.99
"""Of two lengths this close the shorter one is chosen: it loses less where acceptance is lower."""
KIND_WEIGHT, POSITION_WEIGHT = 4.0, 4.0
"""Labels that the rate of all kinds counts as in that of one, and of all positions likewise."""
RESAMPLES = 200


@dataclass(frozen=True)
class Labels:
    """Soft labels of one generation.

    How likely each position of a draft was to be reached, and
    how likely to stay.
    """

    reached: tuple[float, ...]
    stayed: tuple[float, ...]


@dataclass(frozen=True)
class Text:
    """A text that the verifier wrote."""

    kind: str
    tokens: Sequence[int]
    n_prompt: int


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Seconds that a round takes besides the models."""

    core: float = 0.0
    """Per row of logits."""
    rollback: float = 0.0
    """Per round with a draft."""
    other: float = 0.0
    """Per round of any kind: text, and the time between the parts."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Speed-ups over plain decoding."""

    gammas: tuple[int, ...]
    speedups: dict[str, tuple[float, ...]]
    """By kind of prompt, one per gamma."""
    needed: tuple[float | None, ...] = ()
    """The acceptance rate from which each gamma is faster than none; None if no rate is."""
    rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By kind: the acceptance rate at each position of a draft."""

    @property
    def overall(self) -> tuple[float, ...]:
        """The geometric mean over kinds, one per gamma."""
        return tuple(map(geometric_mean, zip(*self.speedups.values(), strict=True)))


def merged_labels(labels: Sequence[Labels]) -> Labels:
    """The sums over several generations."""
    columns = ([each.reached for each in labels], [each.stayed for each in labels])
    reached, stayed = (tuple(map(sum, zip_longest(*c, fillvalue=0.0))) for c in columns)
    return Labels(reached, stayed)


def rates_by_kind(
    labels: Mapping[str, Sequence[Labels]], n_positions: int
) -> dict[str, tuple[float, ...]]:
    """The acceptance rate at each position, given that all before it were accepted, by kind.

    a_i = E[s_i] / E[s_(i-1)]. Few labels of a position follow all of its kind, and few of a kind
    follow all kinds. Positions beyond the drafts follow the later half of those in them: what comes
    after several accepted tokens is easier than the average.
    """
    every = merged_labels([each for kind in labels.values() for each in kind])
    overall = _rate(sum(every.stayed), sum(every.reached), 0.7, 1.0)
    rates = {}
    for kind, each in labels.items():
        own = merged_labels(each)
        usual = _rate(sum(own.stayed), sum(own.reached), overall, KIND_WEIGHT)
        known = [
            _rate(stayed, reached, usual, POSITION_WEIGHT)
            for stayed, reached in zip(own.stayed, own.reached, strict=True)
        ]
        half = len(own.reached) // 2
        later = _rate(sum(own.stayed[half:]), sum(own.reached[half:]), usual, POSITION_WEIGHT)
        rates[kind] = tuple([*known, *[later] * n_positions][:n_positions])
    return rates


def _rate(stayed: float, reached: float, prior: float, weight: float) -> float:
    return (stayed + weight * prior) / (reached + weight)


def model_surface(
    profile: Profile,
    rates: Mapping[str, Sequence[float]],
    overheads: Overheads,
    gammas: Sequence[int] = GAMMAS,
) -> Surface:
    """The speed-ups of a draft model that proposes a fixed number of tokens each round."""
    core, other = overheads.core, overheads.other
    return Surface(
        gammas=tuple(gammas),
        speedups={
            kind: tuple(
                predicted_speedup(
                    profile,
                    gamma,
                    expected_tokens(each[:gamma]),
                    full=prod(each[:gamma]),
                    core=(2 * gamma + 1) * core + other,
                    core_plain=core + other,
                    rollback=overheads.rollback,
                )
                for gamma in gammas
            )
            for kind, each in rates.items()
        },
        needed=tuple(acceptance_needed(replace(profile, core=core), gamma) for gamma in gammas),
        rates={kind: tuple(each) for kind, each in rates.items()},
    )


def lookup_surface(
    profile: Profile,
    texts: Sequence[Text],
    overheads: Overheads,
    gammas: Sequence[int] = GAMMAS,
) -> tuple[Surface, list[int]]:
    """The speed-ups of lookup, found by replaying texts that the verifier wrote.

    A token drawn from the verifier equals a proposal as often as the proposal would have been
    accepted, so the text shows what lookup would have gained without another pass.

    Returns
    -------
    Surface
        As of `model_surface`, without rates.
    list[int]
        What other texts would have recommended, as `agreement`.
    """
    free = replace(profile, drafter=None)
    plain = profile.verifier(1) + overheads.core + overheads.other
    # Of each text, under each gamma: tokens, and the seconds that they take.
    replays = {
        kind: np.array(
            [[_replay(free, t, overheads, g) for g in gammas] for t in texts if t.kind == kind]
        )
        for kind in dict.fromkeys(text.kind for text in texts)
    }
    surface = Surface(
        gammas=tuple(gammas),
        speedups={kind: _gain(each, plain) for kind, each in replays.items()},
        needed=tuple(
            acceptance_needed(replace(free, core=overheads.core), gamma) for gamma in gammas
        ),
    )
    random, found = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        rows = [
            _gain(each[random.integers(len(each), size=len(each))], plain)
            for each in replays.values()
        ]
        found.append(_chosen(tuple(map(geometric_mean, zip(*rows, strict=True)))))
    return surface, found


def _gain(replays: NDArray[np.float64], plain: float) -> tuple[float, ...]:
    """Speed-ups from the replays of several texts, one per gamma."""
    tokens, seconds = replays.sum(axis=0).T
    return tuple((tokens * plain / seconds).tolist())


def _replay(profile: Profile, text: Text, overheads: Overheads, gamma: int) -> tuple[int, float]:
    """How many tokens a text has, and the seconds that lookup would have taken for them."""
    seconds, drafter, written = 0.0, LookupDrafter(), list(text.tokens)
    place = text.n_prompt
    while place < len(written):
        limit = min(gamma, len(written) - place - 1)
        ids = drafter.propose(written[:place], limit, NO_RANDOM).ids if limit else []
        kept = 0
        while kept < len(ids) and ids[kept] == written[place + kept]:
            kept += 1
        place += kept + 1
        seconds += profile.verifier(len(ids) + 1) + (len(ids) + 1) * overheads.core
        seconds += overheads.other + (overheads.rollback if ids else 0.0)
    return len(written) - text.n_prompt, seconds


NO_RANDOM = np.random.default_rng(0)
"""A lookup draws nothing."""


def best_place(overall: Sequence[float]) -> int:
    """The place of the shortest draft that is about as fast as the best."""
    most = max(overall)
    return next(i for i, speedup in enumerate(overall) if speedup >= ALIKE * most)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one generation showed: its labels, and the passes timed after it."""

    kind: str
    labels: Labels
    seconds: Mapping[str, Mapping[int, Sequence[float]]]
    """By role and width."""


def agreement(
    profile: Profile, samples: Sequence[Sample], overheads: Overheads, *, seed: int = 0
) -> list[int]:
    """What other measurements like this one would have recommended, by resampling this one.

    Returns
    -------
    list[int]
        For each resample of the generations: 0 if no gamma pays, else 1 + the place of the best.
    """
    random = np.random.default_rng(seed)
    by_kind = {s.kind: [each for each in samples if each.kind == s.kind] for s in samples}
    found = []
    for _ in range(RESAMPLES):
        timed = [samples[i] for i in random.integers(len(samples), size=len(samples))]
        labels = {
            kind: [own[i].labels for i in random.integers(len(own), size=len(own))]
            for kind, own in by_kind.items()
        }
        found.append(_chosen(_quick(_resampled(profile, timed), labels, overheads)))
    return found


def _chosen(overall: Sequence[float]) -> int:
    """0 if no gamma pays, else 1 + the place of the best."""
    place = best_place(overall)
    return place + 1 if overall[place] >= WORTH else 0


def _quick(
    profile: Profile, labels: Mapping[str, Sequence[Labels]], overheads: Overheads
) -> tuple[float, ...]:
    rates = rates_by_kind(labels, GAMMAS[-1])
    mean = tuple(fmean(column) for column in zip(*rates.values(), strict=True))
    core, other = overheads.core, overheads.other
    return tuple(
        predicted_speedup(
            profile,
            gamma,
            expected_tokens(mean[:gamma]),
            full=prod(mean[:gamma]),
            core=(2 * gamma + 1) * core + other,
            core_plain=core + other,
            rollback=overheads.rollback,
        )
        for gamma in GAMMAS
    )


def _resampled(profile: Profile, samples: Sequence[Sample]) -> Profile:
    """`profile` with the costs that `samples` alone would give, where they give any."""
    curves = {}
    for role, curve in profile.curves().items():
        timed = [s.seconds.get(role, {}) for s in samples]
        seconds = [
            median(values)
            if (values := [one for each in timed for one in each.get(width, ())])
            else known
            for width, known in zip(curve.widths, curve.seconds, strict=True)
        ]
        curves[role] = replace(curve, seconds=tuple(seconds))
    return replace(profile, verifier=curves["verifier"], drafter=curves.get("drafter"))
