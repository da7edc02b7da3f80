"""Splits the difference of two speed-ups into the parts due to acceptance and to cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specx.bench.records import Run
from specx.schedule.costs.curve import Profile, expected_tokens, predicted_speedup
from specx.session.tally import merged

__all__ = [
    "Acceptance",
    "Costs",
    "Split",
    "acceptance_of",
    "costs_of",
    "round_parts",
    "speedup",
    "split_difference",
]


@dataclass(frozen=True)
class Acceptance:
    """The algorithm's side: how much of a draft is accepted."""

    by_position: tuple[float, ...]
    """Acceptance rate at each position, among the tokens tested there."""
    full: float = 0.0
    """Share of rounds that follow a full acceptance."""

    @property
    def tokens(self) -> float:
        """Tokens per round."""
        return expected_tokens(self.by_position)


@dataclass(frozen=True)
class Costs:
    """The runtime's side: the time that it, and the core on its machine, took; seconds."""

    profile: Profile
    core: float = 0.0
    """A round."""
    core_plain: float = 0.0
    """The core's seconds per token without speculation."""
    rollback: float = 0.0
    """A round."""


@dataclass(frozen=True)
class Split:
    """ln(speed-up of A) - ln(speed-up of B), in three terms that add up to it."""

    algorithm: float
    """A's acceptance in place of B's, averaged over the costs of both."""
    runtime: float
    """A's costs in place of B's, averaged over the acceptance of both."""
    rest: float
    """Measured minus predicted: the part that the formula misses."""

    @property
    def total(self) -> float:
        """The difference itself."""
        return self.algorithm + self.runtime + self.rest

    def terms(self) -> dict[str, float]:
        """The terms by name, in nats."""
        return {"algorithm": self.algorithm, "runtime": self.runtime, "rest": self.rest}

    def shares(self) -> dict[str, float]:
        """Each term's share of the sum of absolute values, as terms may have opposite signs."""
        sizes = {name: abs(value) for name, value in self.terms().items()}
        whole = sum(sizes.values())
        return {name: size / whole if whole else 0.0 for name, size in sizes.items()}


def speedup(acceptance: Acceptance, costs: Costs, gamma: int) -> float:
    """S(acceptance, costs): the speed-up that `predicted_speedup` computes from them."""
    return predicted_speedup(
        costs.profile,
        gamma,
        acceptance.tokens,
        full=acceptance.full,
        core=costs.core,
        core_plain=costs.core_plain,
        rollback=costs.rollback,
    )


def split_difference(
    a: tuple[Acceptance, Costs], b: tuple[Acceptance, Costs], gamma: int, measured: float
) -> Split:
    """Split `measured`, which is ln(speed-up of A) - ln(speed-up of B).

    Notes
    -----
    With S(acceptance, costs) and A, a for the two of side A: the algorithm's part is half of
    ln S(A,a) - ln S(B,a) + ln S(A,b) - ln S(B,b), the runtime's half of
    ln S(A,a) - ln S(A,b) + ln S(B,a) - ln S(B,b). They add up to ln S(A,a) - ln S(B,b) and do not
    depend on which side is called A: the Shapley value of two players (Shapley 1953).
    """
    (accept_a, costs_a), (accept_b, costs_b) = a, b
    aa, ab = (math.log(speedup(accept_a, costs, gamma)) for costs in (costs_a, costs_b))
    ba, bb = (math.log(speedup(accept_b, costs, gamma)) for costs in (costs_a, costs_b))
    algorithm = (aa - ba + ab - bb) / 2
    runtime = (aa - ab + ba - bb) / 2
    return Split(algorithm, runtime, measured - (algorithm + runtime))


def round_parts(costs: Costs, gamma: int, full: float) -> dict[str, float]:
    """The cost of each part of a round, in units of one token of plain decoding.

    The speed-up is tokens per round over their sum, so they hold all of the runtime's part.
    """
    unit = costs.profile.verifier(1) + costs.core_plain
    drafter = costs.profile.drafter
    draft = 0.0 if drafter is None else (gamma - full) * drafter(1) + full * drafter(2)
    return {
        "pass": costs.profile.verifier(gamma + 1) / unit,
        "draft": draft / unit,
        "core": costs.core / unit,
        "rollback": costs.rollback / unit,
    }


def acceptance_of(runs: Sequence[Run]) -> Acceptance:
    """The acceptance measured in speculative runs, which must have had a round."""
    tally = merged([run.tally for run in runs])
    return Acceptance(tuple(tally.alpha_by_position), tally.after_full / tally.rounds)


def costs_of(profile: Profile, runs: Sequence[Run], plain: Sequence[Run]) -> Costs:
    """The costs measured in speculative and plain runs, and by the cost curves."""
    tally, alone = (merged([run.tally for run in these]) for these in (runs, plain))
    return Costs(
        profile,
        core=tally.times.core / tally.rounds,
        core_plain=alone.times.core / alone.rounds,
        rollback=tally.times.rollback / tally.rounds,
    )
