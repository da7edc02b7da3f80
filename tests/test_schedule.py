"""Parts of schedules: look-ahead, early stop, costs, replay, the shipped table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import Stub, curve, stairs

from specx import Pair, SamplingParams, Session, Settings, Stop
from specx.core.logits import best_probability, normalised_entropy
from specx.core.sampling import LogitsReader
from specx.drafters.base import Outlook
from specx.drafters.lookup import LookupDrafter
from specx.drafters.model import ModelDrafter
from specx.errors import UsageError
from specx.schedule import (
    Costs,
    EarlyStop,
    Fixed,
    Replay,
    Schedule,
    Step,
    Traced,
    read_steps,
    table_profile,
    write_step,
)
from specx.schedule.costs.curve import Profile
from specx.schedule.costs.table import table_row
from specx.schedule.margin import margin_of
from specx.schedule.worth import best_choice, cheapest_trial, worth_more
from specx_backends.toy import Toy, ToyTable

# Look-ahead


def one_step_ahead(rates: list[float], costs: list[float]) -> int:
    """Goes on while the next token alone is worth its price: right on convex curves only."""
    k, alive, tokens = 0, 1.0, 1.0
    for rate in rates:
        alive *= rate
        if alive <= tokens / costs[k] * (costs[k + 1] - costs[k]):
            break
        k, tokens = k + 1, tokens + alive
    return k


def test_one_step_ahead_loses_on_stairs() -> None:
    rates = [0.95] * 16
    costs = stairs(2, 5, 9, step=0.97, n=17)
    short = one_step_ahead(rates, costs)
    best = best_choice(rates, costs)
    assert short == 0
    assert best.k == 16
    assert best.rate > 2 * 1 / costs[0]
    assert worth_more(1.0, rates, costs, price=1 / costs[0])


def test_the_best_choice_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rates = rng.uniform(0, 1, 8).tolist()
        costs = np.cumsum(rng.uniform(0.01, 1, 9)).tolist()
        full, extra = rng.uniform(0, 0.3, 2)
        alive = np.cumprod(rates)
        tokens = 1 + np.cumsum(alive)
        speeds = tokens / (np.array(costs[1:]) + alive * full + extra)
        found = best_choice(rates, costs, full=full, extra=extra)
        assert found.k == np.argmax(speeds) + 1
        assert found.rate == pytest.approx(speeds.max())


def test_going_on_at_the_best_rates_price_ends_at_the_best_choice() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        rates = rng.uniform(0.3, 1, 8).tolist()
        costs = (1 + np.cumsum(rng.uniform(0, 0.5, 9))).tolist()
        best = best_choice(rates, costs)
        k, alive = 0, 1.0
        price = max(best.rate, 1 / costs[0]) * (1 - 1e-9)
        while k < 8 and worth_more(alive, rates[k:], costs[k:], price=price):
            alive, k = alive * rates[k], k + 1
        assert k == (best.k if best.rate >= price else 0)


def test_what_is_paid_already_is_sunk() -> None:
    costs = [1.0, 1.5]
    assert not worth_more(1.0, [0.4], costs, price=1.0)
    assert worth_more(1.0, [0.4], costs, price=1.0, paid=0.2)


def test_the_cheapest_trial_loses_least_a_label() -> None:
    costs = [1.0, 1.74, 3.08, 3.22]
    assert cheapest_trial([0.7] * 3, costs).k == 1
    assert cheapest_trial([0.7] * 3, costs).loss == pytest.approx(1.74 - 1.7)


# Early stop


def test_entropy_is_that_of_the_softmax_over_its_largest() -> None:
    assert normalised_entropy(np.zeros(8, np.float32)) == pytest.approx(1)
    certain = np.array([0, -np.inf, -np.inf, -np.inf], np.float32)
    assert normalised_entropy(certain) == pytest.approx(0)
    half = np.array([3, 3, -np.inf, -np.inf], np.float32)
    assert normalised_entropy(half) == pytest.approx(0.5)
    assert best_probability(half) == pytest.approx(0.5)


def test_entropy_leaves_one_token_and_p_min_may_leave_none() -> None:
    unsure, sure = np.zeros(4, np.float32), np.array([9, 0, 0, 0], np.float32)
    entropy, p_min = EarlyStop(Fixed(4), entropy=0.5), EarlyStop(Fixed(4), p_min=0.5)
    assert [entropy.go_on(k, unsure) for k in (0, 1)] == [True, False]
    assert [p_min.go_on(k, unsure) for k in (0, 1)] == [False, False]
    assert entropy.go_on(1, sure)
    assert p_min.go_on(0, sure)
    assert entropy.go_on(1, None)


def test_a_p_min_of_1_lets_through_what_is_certain() -> None:
    certain = np.array([3, -np.inf, -np.inf], np.float32)
    assert best_probability(certain) == 1
    assert EarlyStop(Fixed(4), p_min=1.0).go_on(0, certain)


@pytest.mark.parametrize("name", ["entropy", "p_min"])
def test_a_threshold_outside_0_to_1_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is 1.5; it must lie in"):
        EarlyStop(Fixed(1), **{name: 1.5})


def test_the_margin_is_between_the_two_largest_and_leaves_the_row_alone() -> None:
    row = np.array([1, 7, 3, 4.5], np.float32)
    assert margin_of(row) == 2.5
    assert row.tolist() == [1, 7, 3, 4.5]
    assert margin_of(np.array([2, 2], np.float32)) == 0
    assert margin_of(np.array([2, -np.inf], np.float32)) == 50


# Costs


def costs_of(*, live: bool = True) -> Costs:
    verifier = curve(stairs(3, step=0.5, n=8))
    return Costs(Profile(verifier=verifier, drafter=curve([0.2])), "profile", live=live)


def test_costs_follow_a_machine_that_slowed_down() -> None:
    costs = costs_of()
    before = costs.rounds(free=False)
    costs.learn_verify(1, before[0])
    for slow in [1.0] * 60 + [1.7] * 60:
        costs.learn_verify(4, slow * (before[3] - 3 * 0.2))
        costs.learn_draft(1, 3, slow * 0.6)
    after = costs.rounds(free=False)
    assert after[3] == pytest.approx(1.7 * before[3], rel=0.01)
    # Of widths that were not seen since, nearly all of it is believed.
    assert after[:5] == pytest.approx([1.7 * seconds for seconds in before[:5]], rel=0.15)


def test_one_stall_moves_costs_little() -> None:
    costs = costs_of()
    for _ in range(10):
        costs.learn_verify(1, 1.0)
    costs.learn_verify(1, 50.0)
    assert costs.plain == pytest.approx(1.0, rel=0.03)


def test_costs_that_are_not_learnt_stay() -> None:
    costs = costs_of(live=False)
    costs.learn_verify(1, 9.0)
    costs.learn_draft(1, 1, 9.0)
    costs.learn_core(1, 9.0)
    assert costs.plain == 1.0
    assert costs.draft(1) == 0.2


def test_lookup_proposals_cost_the_verifiers_width_alone() -> None:
    costs = costs_of()
    assert costs.rounds(free=True)[3] == pytest.approx(costs.rounds(free=False)[3] - 0.6)


def test_the_core_is_paid_for_each_row_of_logits() -> None:
    """A drafted token has one row of the drafter's, and one of the verifier's."""
    profile = Profile(verifier=curve(stairs(3, step=0.5, n=8)), drafter=curve([0.2]), core=0.01)
    costs, verifier = Costs(profile, "profile", live=False), profile.verifier
    for k in range(4):
        assert costs.rounds(free=False)[k] == pytest.approx(verifier(k + 1) + k * 0.22 + 0.01)
        assert costs.rounds(free=True)[k] == pytest.approx(verifier(k + 1) + k * 0.01 + 0.01)


# Why a fixed gamma proposes fewer


class Bound(Stub):
    """A drafter with room for two."""

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        return Outlook(limit=2, bound="no match")


@pytest.mark.parametrize(
    ("gamma", "room", "limit", "reason"),
    [(2, 9, 2, "fixed"), (4, 9, 2, "no match"), (4, 1, 1, "no room"), (4, 2, 2, "no room")],
)
def test_a_fixed_gamma_says_why_it_proposes_fewer(
    gamma: int, room: int, limit: int, reason: str
) -> None:
    plan = Fixed(gamma).plan([0] * 9, [Bound()], room)  # type: ignore[list-item]
    assert (plan.limit, plan.reason) == (limit, reason)


# The shipped table


@pytest.mark.parametrize(
    ("about", "row"),
    [
        ({"quantisation": "Q4_K - Medium", "devices": ["CPU"]}, "Q4_K_M"),
        ({"quantisation": "F16"}, "F16"),
        ({"quantisation": "Q4_K_M", "dtype": "float32", "devices": ["cpu"]}, "float32"),
        ({"quantisation": "F16", "devices": ["CUDA0"]}, "gpu"),
        ({"quantisation": None}, "Q8_0"),
    ],
)
def test_a_model_finds_its_row(about: dict[str, Any], row: str) -> None:
    assert table_row(about) == row


class Described:
    """A model that is nothing but its description."""

    name = "model"

    def __init__(self, **about: Any) -> None:
        self._about = about

    def describe(self) -> dict[str, Any]:
        return self._about


def test_the_table_knows_what_was_measured() -> None:
    """Of the 1.5B verifiers with the 0.5B drafter: T(k) / T(1), and the step over T(1)."""
    drafter: Any = Described(quantisation="Q4_K - Medium", bytes=491_400_064)
    measured = {
        ("Q4_K - Medium", 1_117_320_768): (2.5, 27 / 47),
        ("F16", 3_560_416_320): (1.36, 27 / 115),
    }
    for (quantisation, size), (fourth, step) in measured.items():
        verifier: Any = Described(quantisation=quantisation, bytes=size)
        found = table_profile(verifier, drafter)
        assert found.drafter is not None
        assert found.verifier(4) / found.verifier(1) == pytest.approx(fourth)
        assert found.drafter(1) == pytest.approx(step, rel=0.15)


# Trace and replay

WORDS = ("a", "b", "c")
PLAIN = SamplingParams(temperature=1, top_p=1)


def toy(seed: int, **more: Any) -> Toy:
    rng = np.random.default_rng(seed)
    rows = {c: rng.dirichlet(np.ones(3)).tolist() for c in [(), (0,), (1,), (2,)]}
    return Toy(ToyTable(tokens=WORDS, rows=rows, **more))


def test_a_replay_writes_the_text_again(tmp_path: Path) -> None:
    settings = Settings(sampling=PLAIN, gamma="auto", draft=("model", "lookup"), seed=6)
    verifier = curve([1, 1.05, 1.1, 1.5, 1.6, 1.7])
    steps: list[Step] = []
    texts = []
    path = tmp_path / "trace"
    for replayed in (False, True):
        pair = Pair(toy(1), toy(2))
        costs = Costs(Profile(verifier=verifier, drafter=curve([0.1])), "profile", live=False)

        def schedule(chosen: Schedule, replayed: bool = replayed) -> Schedule:
            return Replay(read_steps(path)) if replayed else Traced(chosen, steps.append)

        stop = Stop(pair.verifier.tokenizer, 60)
        session = Session(pair, costs=costs)
        rounds = session.rounds([0, 1, 2, 0, 1, 2], settings, stop, schedule=schedule)
        drafts = [(r.drafter, len(r.draft.ids)) for r in rounds]
        texts.append((rounds.generation.tokens, drafts))
        path.write_text("".join(map(write_step, steps)))
    assert texts[0] == texts[1]
    assert len({gamma for _, gamma in texts[0][1]}) > 1
    assert {step.drafter for step in steps} == {"model", "lookup"}


def test_a_replay_restarts_the_drafter_where_its_run_did() -> None:
    drafter = Stub()
    replay = Replay([Step(length=9, drafter="model", gamma=1, restarted=4)])
    plan = replay.plan([0] * 9, [drafter], 4)  # type: ignore[list-item]
    assert (drafter.restarts, plan.limit, plan.restarted) == ([4], 1, 4)


def test_a_replay_of_fewer_tokens_keeps_to_its_room() -> None:
    replay = Replay([Step(length=9, drafter="model", gamma=6)])
    assert replay.plan([0] * 9, [Stub()], 2).limit == 2  # type: ignore[list-item]


def test_a_replay_past_the_drafters_context_is_refused() -> None:
    steps = [Step(length=9, drafter="model", gamma=3)]
    drafter = ModelDrafter(toy(2, context=11), LogitsReader("d", PLAIN))
    assert Replay(steps).plan([0] * 9, [drafter], 3).limit == 3
    drafter = ModelDrafter(toy(2, context=10), LogitsReader("d", PLAIN))
    with pytest.raises(
        UsageError, match="drafts 3 tokens after 9, and this drafter can draft 2 .no room.; replay"
    ):
        Replay(steps).plan([0] * 9, [drafter], 3)
    assert Replay(steps).plan([0] * 9, [drafter], 2).limit == 2  # as room has it


def test_a_replay_of_a_lookup_without_its_match_is_refused() -> None:
    replay = Replay([Step(length=4, drafter="lookup", gamma=1)])
    with pytest.raises(UsageError, match="this drafter can draft 0 .no match."):
        replay.plan([0, 1, 2, 3], [LookupDrafter()], 3)


def test_a_replay_that_restarts_beyond_the_text_is_refused() -> None:
    for restarted in (9, 40):
        replay = Replay([Step(length=9, drafter="model", gamma=1, restarted=restarted)])
        with pytest.raises(UsageError, match=f"at {restarted} in a text of 9 tokens"):
            replay.plan([0] * 9, [Stub()], 4)  # type: ignore[list-item]
    replay = Replay([Step(length=9, drafter="model", gamma=1, restarted=8)])
    drafter = ModelDrafter(toy(2), LogitsReader("d", PLAIN))
    plan = replay.plan([0] * 9, [drafter], 4)
    assert len(drafter.propose([0] * 9, plan.limit, np.random.default_rng(0)).ids) == 1


def test_a_replay_elsewhere_is_refused() -> None:
    replay = Replay([Step(length=5, drafter="model", gamma=2)])
    with pytest.raises(UsageError, match="a round at 5 tokens where this run has 3"):
        replay.plan([0, 1, 2], [Stub()], 4)  # type: ignore[list-item]
    replay = Replay([Step(length=3, drafter="lookup", gamma=2)])
    with pytest.raises(UsageError, match="drafts with lookup; this run has model"):
        replay.plan([0, 1, 2], [Stub()], 4)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gamma", "line 1 is not JSON"),
        (json.dumps({"length": 1, "drafter": "model", "gamma": -1}), "field gamma is -1"),
        (json.dumps({"length": 1, "drafter": "model", "gamma": 1025}), "field gamma is 1025"),
        (json.dumps({"length": 1, "drafter": "model", "gamma": True}), "field gamma is true"),
        (json.dumps({"length": 1, "gamma": 1}), "line 1: object missing required field drafter"),
        (json.dumps({"length": "x", "drafter": "model", "gamma": 1}), 'field length is "x"'),
        ("[" * 10_000, "line 1 is nested more than 32 levels"),
        (
            json.dumps({"length": 1, "drafter": "model", "gamma": 1, "restarted": 2}),
            "field restarted: 2 is beyond the text of 1 tokens",
        ),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text + "\n")
    with pytest.raises(UsageError, match=words):
        read_steps(path)
    with pytest.raises(UsageError, match="cannot read the gamma trace .*no such file"):
        read_steps(tmp_path / "none")


def test_settings_say_what_is_wrong_with_drafters() -> None:
    with pytest.raises(UsageError, match="a fixed gamma takes one drafter"):
        Settings(draft=("model", "lookup"), gamma=3)
    with pytest.raises(UsageError, match="draft is 'guess'; give lookup or model"):
        Settings(draft=("guess",))
    with pytest.raises(UsageError, match="drafting with a model needs one"):
        Session(Pair(toy(1))).drafters(Settings(draft=("model",)))
