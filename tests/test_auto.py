"""`--gamma auto` in virtual time: what it costs against the best fixed gamma, and what it may lose.

Runs are seeded and none of them asks a clock. What a fixed gamma takes is computed, not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from worlds import EASE, GPU, PAIRS, Q4_K_M, WIDTHS, Stub, World, auto, curve, profile, stairs

from specx import Pair, SamplingParams, Session, Settings, Stop
from specx.core.sampling import LogitsReader
from specx.drafters.base import Outlook
from specx.drafters.lookup import CLASSES, LookupDrafter
from specx.drafters.model import ModelDrafter
from specx.schedule import Costs, Outcome
from specx.schedule.acceptance import Acceptance
from specx.schedule.costs.curve import Profile
from specx.schedule.costs.live import Source
from specx.schedule.margin import Margin
from specx_backends.toy import CLOCK, Toy, ToyTable

LONGEST_PARKED = 512
SPREAD, N, SEEDS = 1.5, 900, 6


def acceptance(ease: float) -> float:
    """A world's mean."""
    places = ease + SPREAD * np.random.default_rng(1).normal(size=100_000)
    return float((1 / (1 + np.exp(-places))).mean())


def fixed_seconds(costs: Profile, rate: float, gamma: int) -> float:
    """A token's seconds under a fixed gamma; after a full acceptance two tokens are fed."""
    if gamma == 0:
        return costs.verifier(1)
    assert costs.drafter is not None
    tokens = sum(rate**i for i in range(gamma + 1))
    draft = gamma * costs.drafter(1) + rate**gamma * (costs.drafter(2) - costs.drafter(1))
    return (costs.verifier(gamma + 1) + draft) / tokens


def best_fixed(costs: Profile, rate: float) -> float:
    return min(fixed_seconds(costs, rate, gamma) for gamma in range(17))


@pytest.mark.parametrize("ease", EASE)
@pytest.mark.parametrize("name", PAIRS)
def test_regret_against_the_best_fixed_gamma_is_under_3_percent(name: str, ease: str) -> None:
    costs = profile(name)
    world = [World(costs, lambda n: EASE[ease], SPREAD, seed=seed) for seed in range(SEEDS)]
    taken = np.array([one.run(auto(costs), N).seconds(200) for one in world])
    regret = taken.mean() / best_fixed(costs, acceptance(EASE[ease])) - 1
    print(f"\n{name}, {ease}: regret {regret:+.1%}")
    assert regret < 0.03


def test_a_hopeless_drafter_costs_a_hundredth_at_most() -> None:
    for name in ("F16", "stairs", "flat"):
        chosen, costs = auto(profile(name)), profile(name)
        done = World(costs, lambda n: -6.0).run(chosen, 20_000)
        ratio = done.seconds() / costs.verifier(1)
        print(f"\n{name}: {ratio:.4f} of plain, deepest debt {-chosen.bank.lowest:.2f} tokens")
        assert ratio <= 1.01
        assert chosen.bank.lowest > -4


def test_where_no_acceptance_could_pay_nothing_is_ever_drafted() -> None:
    done = World(profile("Q4_K_M"), lambda n: 9.0).run(auto(profile("Q4_K_M")), 2000)
    assert set(done.gammas) == {0}
    assert done.drafter.n_past == 63  # nor was the drafter fed


def test_where_little_could_be_gained_a_search_must_be_earned_first() -> None:
    costs = profile("kinder Q4_K_M")  # an acceptance of .97 would just pay
    done = World(costs, lambda n: EASE["great"], SPREAD).run(auto(costs, live=True), 2000)
    lengths = [n - 64 for n, _ in done.times[:-1]]
    tried = [n for n, why in zip(lengths, done.reasons, strict=True) if why in ("try", "look back")]
    assert 96 < tried[0] < 1000


@pytest.mark.parametrize("name", ["F16", "stairs", "flat"])
def test_it_recovers_within_a_parked_interval_and_32_tokens(name: str) -> None:
    turn = 64 + 1500
    for seed in range(4):
        world = World(profile(name), lambda n: -6.0 if n < turn else 3.5, SPREAD, seed=seed)
        done = world.run(auto(profile(name)), 2400)
        lengths = [n for n, _ in done.times[:-1]]
        late = [n for n, g in zip(lengths, done.gammas, strict=True) if n > turn and g > 1]
        assert late[0] - turn <= LONGEST_PARKED + 32
        after = [g for n, g in zip(lengths, done.gammas, strict=True) if n > late[0] + 100]
        assert np.mean(np.array(after) > 0) > 0.8  # and it stays


def test_acceptance_that_changes_is_followed() -> None:
    """Against the best fixed gamma of each stretch, which nobody could have chosen."""
    eases = (3.5, -3.0)
    for name in ("flat", "F16", "stairs"):
        costs, taken = profile(name), []
        for seed in range(3):
            world = World(costs, lambda n: eases[(n - 64) // 600 % 2], SPREAD, seed=seed)
            taken.append(world.run(auto(costs), 3600).seconds())
        one = min(
            np.mean([fixed_seconds(costs, acceptance(e), gamma) for e in eases])
            for gamma in range(17)
        )
        assert np.mean(taken) < 1.03 * one


@pytest.mark.parametrize("factor", [0.7, 1.3])
@pytest.mark.parametrize("ease", ["hopeless", "mid", "great"])
def test_a_profile_wrong_by_30_percent_is_put_right(factor: float, ease: str) -> None:
    true = profile("stairs")
    wrong = Profile(
        verifier=curve([s if k == 0 else factor * s for k, s in enumerate(true.verifier.seconds)]),
        drafter=profile("stairs", factor).drafter,
    )
    taken = [
        World(true, lambda n: EASE[ease], SPREAD, seed=seed)
        .run(auto(wrong, live=True), N)
        .seconds(200)
        for seed in range(2 * SEEDS)
    ]
    assert np.mean(taken) / best_fixed(true, acceptance(EASE[ease])) - 1 < 0.03


def test_stalls_and_throttling_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    stalled = {int(n) for n in rng.choice(4000, 60, replace=False)}
    slowed: dict[str, Callable[[int], float]] = {
        "stalls": lambda n: 20.0 if n in stalled else 1.0,
        "throttling": lambda n: 1.0 if n < 400 else 1.8,
    }
    for slow in slowed.values():
        for ease in ("hopeless", "good"):
            costs = profile("F16")
            runs = [
                World(costs, lambda n, e=EASE[ease]: e, SPREAD, slow=slow, seed=seed).run(  # type: ignore[misc]
                    auto(costs, live=True), N
                )
                for seed in range(SEEDS)
            ]
            # The time that the rounds would have taken on a machine at ease.
            undisturbed = np.mean(
                [true_seconds(run.gammas, costs, run.length - 64) for run in runs]
            )
            assert undisturbed / best_fixed(costs, acceptance(EASE[ease])) - 1 < 0.03


@pytest.mark.parametrize("name", ["Q4_K_M", "kinder Q4_K_M"])
@pytest.mark.parametrize("off", [0.75, 0.92, 1.0, 1.08, 1.3])
@pytest.mark.parametrize("ease", EASE)
def test_noise_on_single_passes_does_not_make_it_draft_in_vain(
    name: str, off: float, ease: str
) -> None:
    """Where nothing pays: each round 8% off, the first a third too long, as after a prompt."""
    costs, taken = profile(name), []
    one = off * costs.verifier(1)
    true = replace(costs, verifier=curve([one, *costs.verifier.seconds[1:]], WIDTHS))
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        world = World(
            true, lambda n: EASE[ease], SPREAD, seed=seed,
            slow=lambda n, rng=rng: (1.33 if n == 64 else 1.0) * np.exp(0.08 * rng.normal()),  # type: ignore[misc]
        )  # fmt: skip
        done = world.run(auto(costs, live=True), 96)
        taken.append(true_seconds(done.gammas, true, done.length - 64) / one)
    assert np.mean(taken) < 1.02


def test_the_first_pass_after_a_prompt_is_not_measured() -> None:
    costs = profile("F16")
    world = World(costs, lambda n: 2.0, SPREAD, slow=lambda n: 1.5 if n == 64 else 1.0)
    schedule = auto(costs, live=True)
    world.run(schedule, 3)
    assert schedule.costs.plain == pytest.approx(costs.verifier(1), rel=1e-6)


def test_little_is_hoped_for_that_was_not_seen() -> None:
    known = Acceptance((0.9, 0.9))
    assert known.hopeful_rates() == [0.97, 0.97]
    for _ in range(300):
        known.label(0, 1.0)
    assert known.hopeful_rates()[0] > 0.98


def test_a_stall_in_the_first_pass_does_not_make_all_passes_slow() -> None:
    """A profile knows the others; of a table, whose unit is any, nothing else is known."""
    cases: list[tuple[Source, bool]] = [("profile", False), ("table", True)]
    for source, slower in cases:
        costs = Costs(profile("F16"), source, live=True)
        before = costs.plain
        costs.learn_verify(3, 20 * costs.rounds(free=True)[2])
        assert (costs.plain > before) is slower


def true_seconds(gammas: list[int], costs: Profile, n_tokens: int) -> float:
    assert costs.drafter is not None
    rounds = [costs.verifier(g + 1) + g * costs.drafter(1) for g in gammas]
    return sum(rounds) / n_tokens


def test_costs_are_learnt_from_a_wrong_table() -> None:
    """A shape that says nothing pays, on a machine where much does."""
    true, table = profile("flat"), profile("Q4_K_M")
    done = World(true, lambda n: 2.0, SPREAD).run(auto(table, "table", live=True), 2000)
    best = best_fixed(true, acceptance(2.0))
    assert done.seconds(600) / best - 1 < 0.1
    assert done.reasons[:3] == ["audit"] * 3  # T(1) is measured first


@pytest.mark.parametrize("source", ["profile", "table"])
@pytest.mark.parametrize("told", ["flat", "steep", "gpu"])
def test_wrong_costs_are_put_right_for_good(told: str, source: Source) -> None:
    """Nothing pays here, whatever the costs that it was told make of it."""
    true = profile("Q4_K_M")
    for ease in EASE.values():
        chosen = auto(GPU if told == "gpu" else profile(told), source, live=True)
        done = World(true, lambda n, e=ease: e, SPREAD).run(chosen, 4000)  # type: ignore[misc]
        assert done.seconds(3000) <= 1.02 * true.verifier(1)
        assert done.seconds() <= 1.02 * true.verifier(1)


def test_one_wrong_sample_is_forgotten_and_what_was_seen_often_is_not() -> None:
    shape = Profile(verifier=curve([1, 1.1, 1.2]), drafter=curve([0.1]))
    for samples, kept in ((1, False), (3, True)):
        costs = Costs(shape, "profile", live=True)
        for _ in range(samples):
            costs.learn_verify(2, 3.0)
            costs.learn_draft(1, 1, 0.5)
        before = costs.rounds(free=False)[1] - costs.plain
        for _ in range(400):
            costs.learn_verify(1, costs.plain)
        after = costs.rounds(free=False)[1] - costs.plain
        assert after == pytest.approx(before if kept else 0.2, rel=0.05)


@pytest.mark.parametrize("n", [64, 256, 1000, 4000])
def test_a_search_in_vain_costs_a_hundredth_and_four_tokens(n: int) -> None:
    """Told in README, for costs that are right: 5% at 64 tokens, 2% at 256, 1% from 1,000 on."""
    for name in ("F16", "flat", "Q4_K_M"):
        costs = profile(name)
        lost = [
            World(costs, lambda n: -6.0, seed=seed).run(auto(costs, live=True), n)
            for seed in range(SEEDS)
        ]
        seconds = [run.now for run in lost]
        allowed = (1.01 * (lost[0].length - 64) + 4) * costs.verifier(1)
        print(f"\n{name}, {n}: {max(seconds) / costs.verifier(1) / n:.3f}")
        assert max(seconds) <= allowed


@pytest.mark.parametrize("unit", [0.01, 100.0])
def test_a_table_may_be_in_any_unit_of_time(unit: float) -> None:
    """It knows ratios, not seconds; what the first measured round costs is no debt."""
    true = profile("F16")
    table = Profile(
        verifier=curve([unit * s for s in true.verifier.seconds], WIDTHS),
        drafter=curve([unit * s for s in true.drafter.seconds], WIDTHS) if true.drafter else None,
    )
    schedule = auto(table, "table", live=True)
    done = World(true, lambda n: 2.0, SPREAD).run(schedule, 96)
    assert schedule.bank.lowest > 0
    assert np.mean(np.array(done.gammas) > 0) > 0.7


@pytest.mark.parametrize("feature", ["useless", "inverted", "drifting"])
def test_a_margin_that_misleads_does_no_harm(feature: str) -> None:
    features: dict[str, Callable[[float, np.random.Generator], float]] = {
        "useless": lambda x, rng: float(rng.exponential(4)),
        "inverted": lambda x, rng: max(0.0, 4 - 2 * x + rng.normal()),
        "drifting": lambda x, rng: max(0.0, 4 + 2 * x + rng.normal() * rng.exponential(3)),
    }
    costs = profile("flat")
    taken = [
        World(costs, lambda n: 1.0, SPREAD, features[feature], seed=seed)
        .run(auto(costs), N)
        .seconds(200)
        for seed in range(SEEDS)
    ]
    assert np.mean(taken) / best_fixed(costs, acceptance(1.0)) - 1 < 0.03


def test_the_margin_earns_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = profile("flat")
    worlds = [World(costs, lambda n: 1.0, 2.5, seed=seed) for seed in range(SEEDS)]
    with_ = np.mean([world.run(auto(costs), N).seconds(200) for world in worlds])
    monkeypatch.setattr(Margin, "predict", lambda self, rate, margin: rate)
    without = np.mean([world.run(auto(costs), N).seconds(200) for world in worlds])
    assert with_ < 0.97 * without


def test_live_times_decide_nothing_unless_asked() -> None:
    costs = profile("F16")
    one, other = (
        World(costs, lambda n: 1.0, slow=slow, seed=3).run(auto(costs), 300)
        for slow in (lambda n: 1.0, lambda n: 1.0 + 5 * (n % 7 == 0))
    )
    assert one.gammas == other.gammas
    live = World(costs, lambda n: 1.0, slow=lambda n: 1.0 + 5 * (n % 7 == 0), seed=3)
    assert live.run(auto(costs, live=True), 300).gammas != one.gammas


# Labels


def test_labels_are_unbiased_and_those_of_residual_tokens_are_not() -> None:
    """Acceptance from tokens that were drawn from P, and from those drawn after a rejection."""
    rng = np.random.default_rng(7)
    target, draft = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    true = float(np.minimum(target, draft).sum())
    left = np.maximum(target - draft, 0)
    n = 40_000
    plain = rng.choice(6, n, p=target)
    drawn = rng.choice(6, n, p=draft)
    residual = rng.choice(6, n, p=left / left.sum())
    labels = {
        "hindsight": np.minimum(1, draft / target)[plain],
        "verified": np.minimum(1, target / draft)[drawn],
        "residual": np.minimum(1, draft / target)[residual],
    }
    off = {name: abs(x.mean() - true) / (x.std() / np.sqrt(n)) for name, x in labels.items()}
    assert off["hindsight"] < 3
    assert off["verified"] < 3
    assert off["residual"] > 10


def test_labels_beyond_a_rejection_count_as_much_as_their_place_is_reached() -> None:
    rates, known = (0.9, 0.5, 0.8), Acceptance((0.7,) * 3)
    rng = np.random.default_rng(0)
    for _ in range(4000):
        survival = np.cumprod(np.array(rates) + rng.uniform(-0.1, 0.1, 3)).tolist()
        known.learn(range(3), survival)
    assert known.rates() == pytest.approx(rates, abs=0.03)


def test_the_prior_does_not_outlive_many_labels() -> None:
    known = Acceptance((0.7,) * 4)
    for _ in range(200):
        known.learn(range(4), [0.97, 0.97**2, 0.97**3, 0.97**4])
    assert known.rates() == pytest.approx([0.97] * 4, abs=0.005)


def test_a_margin_is_trusted_only_where_it_predicts_better() -> None:
    rng = np.random.default_rng(0)
    for tells in (True, False):
        margin = Margin()
        for _ in range(300):
            stayed = float(rng.random() < 0.7)
            margin.learn(0.7, 2 + 3 * stayed * tells + rng.exponential(), stayed, 1.0)
        assert margin.trusted is tells
        assert (margin.predict(0.7, 0.5) == 0.7) is not tells


# Catching up, on the toy itself


def table(seed: int, costs: tuple[float, ...]) -> ToyTable:
    rng = np.random.default_rng(seed)
    contexts = [(), *((a,) for a in range(4)), *((a, b) for a in range(4) for b in range(4))]
    rows = {context: rng.dirichlet(np.ones(4)).tolist() for context in contexts}
    return ToyTable(tokens=tuple("abcd"), rows=rows, forward_cost=costs)


PLAIN = SamplingParams(temperature=1, top_p=1)


@pytest.mark.parametrize("parked", [0, 1, 511, 512])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_drafter_that_lagged_is_as_good_as_a_new_one(parked: int, restarted: bool) -> None:
    tokens = np.random.default_rng(parked).integers(0, 4, 20 + parked).tolist()
    costs = (1.0,)
    asked: list[Any] = []

    def ask(k: int, logits: Any) -> bool:
        if logits is not None:
            asked.append(logits.copy())
        return True

    old, new = (ModelDrafter(Toy(table(2, costs)), LogitsReader("d", PLAIN)) for _ in range(2))
    old.model.forward(tokens[:19], 0)
    if restarted:
        old.restart(len(tokens) - 9)
    want = min(16, parked)
    drafts = [
        drafter.propose(tokens, 3, np.random.default_rng(1), ask, want) for drafter in (old, new)
    ]
    assert drafts[0].ids == drafts[1].ids
    assert np.array_equal(asked[:3], asked[3:])
    assert old.n_past == len(tokens) + 2
    seen = drafts[0].hindsight
    assert len(seen) == min(want, 8 if restarted else parked)
    rows = table(2, costs)
    for chance, end in zip(reversed(seen), range(len(tokens) - 1, 0, -1), strict=False):
        if not restarted or end >= len(tokens) - 6:  # the toy looks back two tokens
            row = np.exp(rows.logits(tuple(tokens[end - 2 : end])).astype(float))
            assert chance == pytest.approx(row[tokens[end]] / row.sum())


def generate(n: int, seed: int, gamma: Any, verify: tuple[float, ...], step: float) -> Any:
    """Tokens, rounds and virtual seconds of a run of two tables."""
    pair = Pair(Toy(table(1, verify)), Toy(table(1 if step < 1 else 5, (step,))))
    begun = CLOCK()
    settings = Settings(sampling=PLAIN, gamma=gamma, seed=seed)
    drafter = curve([step])
    costs = Costs(Profile(verifier=curve(verify), drafter=drafter), "profile", live=False)
    stop = Stop(pair.verifier.tokenizer, n, ignore_eos=True)
    generation = Session(pair, costs=costs).rounds([0], settings, stop)
    rounds = list(generation)
    return generation.generation.tokens, rounds, CLOCK() - begun


def test_the_loop_on_virtual_time_gains_what_the_costs_promise() -> None:
    verify = tuple(stairs(2, 5, 9, step=0.5, n=20))
    times = {gamma: generate(600, 1, gamma, verify, 0.05)[2] for gamma in (0, 1, 3, 7, "auto")}
    assert times["auto"] < 1.03 * min(seconds for g, seconds in times.items() if g != "auto")


def test_a_seed_repeats() -> None:
    verify = (1.0, 1.1, 1.2, 1.3, 1.4)
    one, again, other = (generate(200, seed, "auto", verify, 0.1) for seed in (4, 4, 5))
    assert one[0] == again[0] != other[0]
    assert [r.reason for r in one[1]] == [r.reason for r in again[1]]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_tokens_remaining_are_never_overshot(n: int) -> None:
    tokens, rounds, _ = generate(n, 1, "auto", (1.0, 1.01, 1.02), 0.01)
    assert len(tokens) == n + 1
    assert all(len(done.draft.ids) <= n - 1 for done in rounds)


def test_a_plain_round_teaches_a_lookup_for_free() -> None:
    chosen = auto(Profile(verifier=Q4_K_M))
    pair = Pair(Toy(table(1, (1.0,))))
    settings = Settings(draft=("lookup",), gamma="auto")
    (drafter,) = Session(pair).drafters(settings)
    text = [0, 1, 2, 3, 0, 1, 2]
    for _ in range(30):
        plan = chosen.plan(text, [drafter], 8)
        chosen.learn(
            Outcome(survival=[1.0] * plan.limit, decided=plan.limit + 1, token=3,
                    prob=lambda token: float(token == 3))
        )  # fmt: skip
    assert plan.reason == "pays"
    assert plan.limit == 3  # the stair of four


class Matching(Stub):
    """A lookup in the midst of a long match."""

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        return Outlook(limit=31, classes=CLASSES[20:51], guess=7)


def test_a_long_match_is_trusted_once_it_was_seen_to_go_on() -> None:
    """Fifteen tokens of a wrong match would cost as much time as four plain ones."""
    chosen, drafter, limits = (
        auto(profile("kinder Q4_K_M")),
        Matching(kind="lookup", free=True, prior=LookupDrafter.prior),
        [],
    )
    for _ in range(40):
        plan = chosen.plan(range(100), [drafter], 10**6)  # type: ignore[list-item]
        limits.append(plan.limit)
        decided = plan.limit + 1
        chosen.learn(
            Outcome(survival=[1.0] * plan.limit, decided=decided, token=7, prob=lambda token: 1.0)
        )
    assert limits[0] <= 2
    assert limits[-1] >= 15


def test_nothing_is_tried_before_a_single_pass_was_measured() -> None:
    """The first pass, slow after a prompt, does not count."""
    done = World(profile("Q8_0"), lambda n: EASE["good"], SPREAD).run(
        auto(profile("Q8_0"), live=True), 96
    )
    assert done.gammas[:2] == [0, 0]
    assert "try" in done.reasons[2:]


def test_a_margin_is_believed_a_little_from_the_start() -> None:
    new = Margin()
    assert new.predict(0.75, 0.05) < 0.72 < 0.78 < new.predict(0.75, 8.0)
