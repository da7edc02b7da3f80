"""Two systems of tables: what was planted in them is found, and told in the right words.

Two-token tables have an exact acceptance rate under the rule `token`, 1 - |p - q|, and their clock
passes by stated costs only. A draw of 5000 tokens a side leaves a standard error of about 1.3% in
the algorithm's part; the seeds are fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from specx.bench import Arm, ArmRecord, Plan, Results
from specx.bench.suites import Prompt
from specx.compare import (
    Comparison,
    Findings,
    System,
    Verdict,
    findings_of,
    run_comparison,
    verdict,
)
from specx.compare.agreement import means
from specx.compare.run import curve_widths
from specx.errors import UsageError, VocabularyError
from specx.session.pair import Pair
from specx.session.session import Rounds, Session
from specx_backends.toy import Toy, ToyTable

GAMMA = 4
Rows: TypeAlias = dict[tuple[int, ...], tuple[float, ...]]
PROMPTS = [Prompt("one", "own", "abba"), Prompt("two", "own", "baab")]
FLAT, STEEP = (0.100, 0.105, 0.110, 0.115, 0.120), (0.050, 0.090, 0.130, 0.160, 0.190)
P = 0.55
"""The verifiers' chance of an a."""


@dataclass
class Planted:
    """One side, known exactly."""

    alpha: float
    passes: tuple[float, ...] = FLAT
    drafts: tuple[float, ...] = (0.010, 0.012)
    p: float = P
    tokens: tuple[str, ...] = field(default=("a", "b"))

    def toy(self, chance: float, costs: tuple[float, ...]) -> Toy:
        rows: Rows = {(): (chance, 1 - chance)}
        return Toy(ToyTable(tokens=self.tokens, rows=rows, forward_cost=costs))

    def pair(self) -> Pair:
        verifier, drafter = self.toy(self.p, self.passes), self.toy(self.q, self.drafts)
        return Pair(verifier, drafter)

    @property
    def q(self) -> float:
        return self.p - (1 - self.alpha) if self.p > 0.5 else self.p + (1 - self.alpha)

    def speedup(self, costs: Planted) -> float:
        """S(own acceptance, those costs), written out."""
        tokens = sum(self.alpha**i for i in range(GAMMA + 1))
        full = self.alpha**GAMMA
        one, two = costs.drafts
        round_s = (GAMMA - full) * one + full * two + costs.passes[GAMMA]
        return tokens * costs.passes[0] / round_s


def arm(gamma: int = GAMMA) -> Arm:
    record = ArmRecord(
        backend="toy",
        draft_backend="toy",
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        gamma=gamma,
        rule="token",
    )
    return record.arm()


def systems(a: Planted, b: Planted) -> tuple[System, System]:
    return System("left", a.pair(), arm()), System("right", b.pair(), arm())


def plan(n: int = 2500, repetitions: int = 1) -> Plan:
    return Plan(arms=(), prompts=PROMPTS, n=n, repetitions=repetitions)


def comparison(n: int = 2500) -> Comparison:
    return Comparison(("left", "right"), (Results(n=n), Results(n=n)))


def compared(a: Planted, b: Planted, n: int = 2500) -> tuple[Comparison, Findings, Verdict]:
    both, found = systems(a, b), comparison(n)
    run_comparison(both, plan(n), found)
    findings = findings_of(found)
    return found, findings, verdict(findings, means(list(found.verifiers.values())))


def truth(a: Planted, b: Planted) -> tuple[float, float]:
    """The algorithm's and the runtime's part."""
    aa, ab, ba, bb = (math.log(x.speedup(y)) for x, y in ((a, a), (a, b), (b, a), (b, b)))
    return (aa - ba + ab - bb) / 2, (aa - ab + ba - bb) / 2


def test_a_difference_in_acceptance_alone_is_the_algorithms() -> None:
    a, b = Planted(0.9), Planted(0.45)
    _, found, told = compared(a, b)
    algorithm, runtime = truth(a, b)
    assert algorithm > 0.5
    assert runtime == pytest.approx(0, abs=1e-9)
    assert found.split.algorithm == pytest.approx(algorithm, rel=0.05)
    assert found.split.runtime == pytest.approx(0, abs=0.01)
    assert abs(found.split.rest) < 0.02
    assert found.a.tally.alpha == pytest.approx(a.alpha, abs=0.02)
    assert told.cause == "algorithm"
    assert told.responsible.startswith("a round yields 4.")
    assert "tokens on left and 1." in told.responsible
    assert "because of the algorithm (acceptance), not the runtime" in told.words


def test_a_difference_in_cost_alone_is_the_runtimes() -> None:
    a, b = Planted(0.8, FLAT), Planted(0.8, STEEP)
    _, found, told = compared(a, b)
    algorithm, runtime = truth(a, b)
    assert algorithm == 0
    assert runtime > 0.5
    assert found.split.algorithm == 0  # the same streams, and so the same tokens
    assert found.split.runtime == pytest.approx(runtime, rel=0.05)
    assert abs(found.split.rest) < 0.02
    assert told.cause == "runtime"
    assert told.responsible == "a pass of 5 tokens costs 1.2 single passes on left and 3.8 on right"
    assert "because of the runtime (cost), not the algorithm" in told.words
    assert "Speculation pays off on left." in told.words
    assert "It does not pay off on right" in told.words


def test_both_are_told_apart_where_both_differ() -> None:
    a, b = Planted(0.9, FLAT), Planted(0.45, STEEP)
    _, found, told = compared(a, b)
    algorithm, runtime = truth(a, b)
    assert found.split.algorithm == pytest.approx(algorithm, rel=0.05)
    assert found.split.runtime == pytest.approx(runtime, rel=0.05)
    assert found.split.total == pytest.approx(algorithm + runtime, rel=0.05)
    assert told.cause == "both"
    assert "because of both acceptance and cost" in told.words
    assert "a pass of 5 tokens" in told.responsible
    assert "a round yields" in told.responsible


def test_what_pulls_both_ways_is_said() -> None:
    a, b = Planted(0.9, STEEP), Planted(0.45, FLAT)
    _, found, told = compared(a, b)
    algorithm, runtime = truth(a, b)
    assert found.split.algorithm == pytest.approx(algorithm, rel=0.05)
    assert found.split.runtime == pytest.approx(runtime, rel=0.05)
    assert told.cause == "opposed"
    assert "acceptance favours left, cost right" in told.words


def test_a_dear_drafter_is_the_number_responsible() -> None:
    a, b = Planted(0.8, drafts=(0.010, 0.012)), Planted(0.8, drafts=(0.060, 0.065))
    _, _, told = compared(a, b, n=300)
    assert told.cause == "runtime"
    assert told.responsible == "drafting 4 tokens costs 0.41 single passes on left and 2.4 on right"


def test_the_same_system_twice_differs_in_nothing() -> None:
    _, found, told = compared(Planted(0.8), Planted(0.8), n=300)
    assert list(found.split.terms().values()) == pytest.approx([0, 0, 0], abs=1e-9)
    assert told.cause == "neither"
    assert told.responsible == ""
    assert "left is as fast as right" in told.words
    assert "both sides gain about the same" in told.words
    assert "The verifiers agree" in told.words


def test_swapping_the_systems_turns_every_sign() -> None:
    a, b = Planted(0.9, FLAT), Planted(0.6, STEEP)
    _, found, _ = compared(a, b, n=300)
    _, turned, _ = compared(b, a, n=300)
    for name, nats in found.split.terms().items():
        assert turned.split.terms()[name] == pytest.approx(-nats, abs=1e-9)


def test_verifiers_that_are_two_models_are_told_to_be() -> None:
    found, _, told = compared(Planted(0.8, p=0.9), Planted(0.8, p=0.6), n=300)
    assert found.verifiers["one"].total_variation == pytest.approx([0.3] * 300, abs=1e-6)
    assert found.drafters["one"].total_variation == pytest.approx([0.3] * 300, abs=1e-6)
    assert "The verifiers are not the same model" in told.words


def test_runs_take_turns_and_share_their_seeds() -> None:
    both, found = systems(Planted(0.8), Planted(0.5)), comparison(40)
    done: list[int] = []
    run_comparison(both, plan(40, 2), found, report=done.append)
    assert done == list(range(1, 17))
    assert found.complete
    assert found.n_blocks == 4
    keys = [
        [(run.key, run.seed) for run in runs]
        for side in found.results
        for runs in side.runs.values()
    ]
    assert len(keys) == 4
    assert all(each == keys[0] for each in keys)
    assert len({seed for _, seed in keys[0]}) == 4
    assert {name: len(one.top1) for name, one in found.verifiers.items()} == {"one": 40, "two": 40}


def test_every_block_begins_with_another_arm() -> None:
    a, b = systems(Planted(0.8), Planted(0.8))
    begun: list[str] = []

    original = Session.rounds

    def rounds(self: Session, *args: Any, **more: Any) -> Rounds:
        begun.append(self.pair.verifier.name)
        return original(self, *args, **more)

    found = comparison(8)
    for system, name in ((a, "A"), (b, "B")):
        system.pair.verifier.name = name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "rounds", rounds)
        run_comparison((a, b), plan(8, 2), found)
    runs = ["".join(begun[start : start + 4]) for start in range(0, len(begun), 4)]
    assert runs == ["AABB", "AABB", "ABBA", "BBAA", "BAAB"]  # a warm-up each, then four blocks


def test_an_interruption_leaves_whole_blocks_only() -> None:
    both, found = systems(Planted(0.8), Planted(0.8)), comparison(40)

    def report(runs: int) -> None:
        if runs == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_comparison(both, plan(40), found, report=report)
    assert found.n_blocks == 1
    assert not found.complete
    assert list(found.verifiers) == ["one"]
    assert findings_of(found).split.total == pytest.approx(0)


def test_a_model_that_both_share_has_one_curve_and_is_not_compared() -> None:
    a = Planted(0.8).pair()
    other = Planted(0.8, STEEP).pair().verifier
    both = System("left", a, arm()), System("right", Pair(other, a.drafter), arm())
    found = comparison(40)
    run_comparison(both, plan(40), found)
    first, second = (next(iter(side.profiles.values())) for side in found.results)
    assert first.drafter == second.drafter
    assert first.drafter is not None
    # A drafter is timed after every other run; this one, after those of both sides.
    assert first.drafter.repeats == first.verifier.repeats
    assert first.verifier(5) != second.verifier(5)
    assert found.verifiers
    assert not found.drafters


@pytest.mark.parametrize(
    ("gamma", "widths"),
    [(1, [1, 2]), (4, [1, 2, 3, 4, 5]), (8, list(range(1, 10))), (12, [*range(1, 10), 13]),
     (30, [*range(1, 10), 16, 24, 31])],
)  # fmt: skip
def test_the_curve_has_the_widths_that_a_round_needs(gamma: int, widths: list[int]) -> None:
    assert curve_widths(gamma) == widths


def test_systems_that_read_a_prompt_differently_are_refused() -> None:
    with pytest.raises(VocabularyError) as refused:
        run_comparison(systems(Planted(0.8), Planted(0.8, tokens=("b", "a"))), plan(), comparison())
    assert "left and right encode prompt one as different tokens (from position 0 on" in str(
        refused.value
    )
    assert "\n" not in str(refused.value)


def test_systems_whose_ids_are_other_tokens_are_refused_though_the_prompts_are_read_alike() -> None:
    a, b = (Planted(0.8, tokens=("a", "b", x)) for x in ("c", "d"))

    def pair(side: Planted) -> Pair:
        rows: Rows = {(): (0.5, 0.25, 0.25)}
        return Pair(*(Toy(ToyTable(tokens=side.tokens, rows=rows)) for _ in range(2)))

    both = System("left", pair(a), arm()), System("right", pair(b), arm())
    with pytest.raises(VocabularyError, match="left and right have different tokens.*id 2 is 'd'"):
        run_comparison(both, plan(), comparison())


def test_runs_without_a_draft_are_no_comparison() -> None:
    both, found = systems(Planted(0.8), Planted(0.8)), comparison(1)
    run_comparison(both, plan(1), found)
    with pytest.raises(UsageError, match="left drafted nothing in 2 runs; raise -n"):
        findings_of(found)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("gamma", [0, GAMMA])
@pytest.mark.parametrize("nothing", [{"total": 0.0}, {"n_tokens": 0}, {"rounds": 0, "n_tokens": 0}])
def test_runs_without_a_speed_make_no_comparison(
    side: int, gamma: int, nothing: dict[str, Any]
) -> None:
    found = comparison(20)
    run_comparison(systems(Planted(0.8), Planted(0.8)), plan(20), found)
    assert findings_of(found).a.speedup.interval == "range"
    for each, runs in found.results[side].runs.items():
        for run in runs if each.gamma == gamma else []:
            for name, value in nothing.items():
                setattr(run.tally, name, value)
    with pytest.raises(UsageError, match="no speed can be computed; raise -n"):
        findings_of(found)
