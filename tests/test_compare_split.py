"""The split of two speed-ups: three terms that add up, and mean what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specx.bench.records import Run
from specx.compare.split import (
    Acceptance,
    Costs,
    Split,
    acceptance_of,
    costs_of,
    round_parts,
    speedup,
    split_difference,
)
from specx.schedule.costs.curve import Curve, Profile
from specx.session.decoding import Times
from specx.session.tally import Tally

GAMMA = 4


def curve(*seconds: float) -> Curve:
    return Curve(
        model="m",
        bytes=None,
        quantisation=None,
        threads=None,
        n_past=1,
        repeats=1,
        widths=tuple(range(1, len(seconds) + 1)),
        seconds=seconds,
        low=seconds,
        high=seconds,
    )


def drawn(random: np.random.Generator) -> tuple[Acceptance, Costs]:
    rates = random.uniform(0.05, 0.99, GAMMA).tolist()
    passes = np.cumsum(random.uniform(0.01, 1, GAMMA + 1)).tolist()
    drafts = np.cumsum(random.uniform(0.001, 0.2, 2)).tolist()
    core, plain, rollback = random.uniform(0, 0.05, 3).tolist()
    profile = Profile(verifier=curve(*passes), drafter=curve(*drafts))
    return Acceptance(tuple(rates), float(random.uniform())), Costs(profile, core, plain, rollback)


SIDES = [
    (drawn(np.random.default_rng(i)), drawn(np.random.default_rng(1000 + i))) for i in range(50)
]


@pytest.mark.parametrize(("a", "b"), SIDES)
def test_the_three_terms_add_up_to_what_was_measured(
    a: tuple[Acceptance, Costs], b: tuple[Acceptance, Costs]
) -> None:
    measured = math.log(1.37) - math.log(0.81)
    found = split_difference(a, b, GAMMA, measured)
    assert found.total == pytest.approx(measured, abs=1e-12)
    assert sum(found.terms().values()) == pytest.approx(measured, abs=1e-12)
    predicted = math.log(speedup(*a, GAMMA)) - math.log(speedup(*b, GAMMA))
    assert found.algorithm + found.runtime == pytest.approx(predicted, abs=1e-12)
    assert sum(found.shares().values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), SIDES)
def test_swapping_the_sides_turns_every_sign(
    a: tuple[Acceptance, Costs], b: tuple[Acceptance, Costs]
) -> None:
    found, turned = split_difference(a, b, GAMMA, 0.3), split_difference(b, a, GAMMA, -0.3)
    for name, nats in found.terms().items():
        assert turned.terms()[name] == pytest.approx(-nats, abs=1e-12)
    assert turned.shares() == pytest.approx(found.shares(), abs=1e-12)


@pytest.mark.parametrize(("a", "b"), SIDES[:10])
def test_what_is_equal_on_both_sides_has_no_part(
    a: tuple[Acceptance, Costs], b: tuple[Acceptance, Costs]
) -> None:
    same_costs = split_difference(a, (b[0], a[1]), GAMMA, 0.0)
    assert same_costs.runtime == pytest.approx(0, abs=1e-12)
    assert abs(same_costs.algorithm) > 1e-6
    same_acceptance = split_difference(a, (a[0], b[1]), GAMMA, 0.0)
    assert same_acceptance.algorithm == pytest.approx(0, abs=1e-12)
    assert abs(same_acceptance.runtime) > 1e-6


def test_the_parts_are_those_of_the_formula_by_hand() -> None:
    # Two tokens a round at 3 + 2 seconds against four at 1 + 7; a token alone costs 2 and 4.
    a = Acceptance((1.0,)), Costs(Profile(verifier=curve(2, 3), drafter=curve(2)))
    b = Acceptance((0.5,)), Costs(Profile(verifier=curve(4, 7), drafter=curve(1)))
    s_aa, s_ab = 2 * 2 / 5, 2 * 4 / 8
    s_ba, s_bb = 1.5 * 2 / 5, 1.5 * 4 / 8
    found = split_difference(a, b, 1, math.log(2))
    assert found.algorithm == pytest.approx(
        (math.log(s_aa) - math.log(s_ba) + math.log(s_ab) - math.log(s_bb)) / 2
    )
    assert found.algorithm == pytest.approx(math.log(2 / 1.5))
    assert found.runtime == pytest.approx(math.log((2 / 5) / (4 / 8)))
    assert found.rest == pytest.approx(math.log(2) - math.log(s_aa / s_bb))


@pytest.mark.parametrize(("acceptance", "costs"), [side for both in SIDES[:10] for side in both])
def test_a_rounds_parts_are_all_of_its_cost(acceptance: Acceptance, costs: Costs) -> None:
    parts = round_parts(costs, GAMMA, acceptance.full)
    assert list(parts) == ["pass", "draft", "core", "rollback"]
    expected = acceptance.tokens / speedup(acceptance, costs, GAMMA)
    assert sum(parts.values()) == pytest.approx(expected, rel=1e-12)


def test_nothing_to_split_has_no_shares() -> None:
    assert Split(0, 0, 0).shares() == {"algorithm": 0, "runtime": 0, "rest": 0}


def run(tally: Tally) -> Run:
    return Run("p", "own", 0, 1, 3, 0.1, "length", tally)


def test_acceptance_and_costs_are_read_from_the_runs() -> None:
    fast = [
        Tally(rounds=3, tested=5, accepted=4, by_position=[[3, 3], [2, 1]], after_full=1,
              times=Times(core=0.3, rollback=0.6)),
        Tally(rounds=1, tested=2, accepted=1, by_position=[[1, 0], [1, 1]],
              times=Times(core=0.1, rollback=0.2)),
    ]  # fmt: skip
    plain = [Tally(rounds=10, times=Times(core=0.5))]
    assert acceptance_of([run(t) for t in fast]) == Acceptance((3 / 4, 2 / 3), 1 / 4)
    profile = Profile(verifier=curve(1.0))
    found = costs_of(profile, [run(t) for t in fast], [run(t) for t in plain])
    assert (found.core, found.core_plain, found.rollback) == pytest.approx((0.1, 0.05, 0.2))
