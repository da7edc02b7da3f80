"""What `--gamma auto` asks of a drafter, and what a schedule forgets when a new text begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from worlds import Stub, World, auto, curve, profile

from specx.core.rules import RULES
from specx.core.sampling import Distribution, LogitsReader, SamplingParams
from specx.core.streams import Streams
from specx.drafters.base import Draft, Drafter, GoOn, Outlook, TextSettings
from specx.drafters.model import ModelDrafter
from specx.schedule import Auto, Costs, Decision, EarlyStop, Outcome, Schedule, Traced
from specx.schedule.costs.curve import Profile
from specx.session.decoding import Round, Stop, speculate
from specx_backends.toy import Toy, ToyTable

PLAIN = SamplingParams(temperature=1, top_p=1)
CONTEXTS = [(), *((a,) for a in range(4)), *((a, b) for a in range(4) for b in range(4))]


def table(seed: int) -> ToyTable:
    rng = np.random.default_rng(seed)
    return ToyTable(
        tokens=tuple("abcd"), rows={c: rng.dirichlet(np.ones(4)).tolist() for c in CONTEXTS}
    )


def chance(of: ToyTable, text: Sequence[int], place: int) -> float:
    row = np.exp(of.logits(tuple(text[max(place - 2, 0) : place])).astype(float))
    return float(row[text[place]] / row.sum())


def run(drafter: Drafter, schedule: Schedule, tokens: list[int], n: int) -> list[Round]:
    verifier = Toy(table(1))
    stop = Stop(verifier.tokenizer, n, ignore_eos=True)
    return [
        *speculate(
            verifier, [drafter], tokens, reader=LogitsReader("v", PLAIN), rule=RULES["block"],
            schedule=schedule, streams=Streams(3), stop=stop,
        )
    ]  # fmt: skip


# A drafter that nobody foresaw


class Parity:
    """Draws at no cost: nearly as the verifier would at even places, and badly at odd ones."""

    name = kind = "parity"
    free = True
    prior = (0.8, 0.1)
    n_ctx = 10**9

    def __init__(self) -> None:
        self.n_past = 0

    def begin(self, settings: TextSettings) -> None:
        pass

    def feed(self, tokens: Sequence[int], size: int, report: Callable[[int], None]) -> None:
        pass

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        first = len(tokens) % 2
        return Outlook(limit=5, classes=[(first + i) % 2 for i in range(5)])

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        text, draft = list(tokens), Draft()
        while len(draft.ids) < limit and (go_on is None or go_on(len(draft.ids), None)):
            row = np.exp(table(1).logits(tuple(text[-2:])).astype(float))
            worst = (np.arange(4) == row.argmin()).astype(float)
            draft.distributions.append(
                Distribution(0.8 * row / row.sum() + 0.05 if len(text) % 2 == 0 else worst)
            )
            draft.ids.append(draft.distributions[-1].draw(random.random()))
            text.append(draft.ids[-1])
        return draft

    def truncate(self, n_past: int) -> None:
        self.n_past = n_past

    def restart(self, n_past: int) -> None:
        self.n_past = n_past


def test_a_drafter_of_another_kind_is_chosen_by_what_it_says_of_itself() -> None:
    costs = Costs(Profile(verifier=curve([1, 1.3, 2.2, 2.5, 3.4, 3.7])), "profile", live=False)
    schedule, drafter = Auto(costs), Parity()
    first = schedule.plan([0, 1], [drafter], 9)
    assert (first.drafter, first.limit, first.reason) == (drafter, 1, "pays")
    assert schedule.plan([0, 1, 0], [drafter], 9).reason != "pays"
    rounds = run(drafter, schedule, [0, 1, 0], 400)
    even, odd = schedule._sides["parity"].acceptance.rates()
    assert even > 0.85 > 0.3 > odd
    assert {(r.length % 2, len(r.draft.ids)) for r in rounds[100:-1]} == {(0, 1), (1, 0)}


def test_a_guess_is_judged_without_being_proposed() -> None:
    """Where a drafter names its first token, the text teaches its acceptance."""

    class Guessing(Stub):
        def outlook(self, tokens: Sequence[int]) -> Outlook:
            return Outlook(limit=4, classes=(1, 1, 0, 0), guess=7)

    drafter: Any = Guessing(kind="guessing", free=True, prior=(0.2, 0.3))
    schedule, decisions = auto(profile("steep")), list[Decision]()
    for _ in range(60):
        decisions.append(schedule.plan([0] * 9, [drafter], 9))
        n = decisions[-1].limit
        schedule.learn(
            Outcome(survival=[1.0] * n, decided=n + 1, token=7, prob=lambda token: token == 7)
        )
    assert {(d.limit, d.reason) for d in decisions[:3]} == {(0, "parked")}
    assert decisions[-1].reason == "pays"
    assert "try" not in {d.reason for d in decisions}


def test_no_more_is_proposed_than_has_a_class() -> None:
    class Two(Stub):
        def outlook(self, tokens: Sequence[int]) -> Outlook:
            return Outlook(limit=99, classes=(0, 0))

    two: Any = Two(prior=(0.9,))
    assert auto(profile("flat")).plan([0] * 9, [two], 9).limit == 2
    stub: Any = Stub(n_past=8)
    assert auto(profile("flat")).plan([0] * 9, [stub], 99).limit == 16


# A new text


def test_to_begin_before_the_first_text_changes_nothing() -> None:
    for live in (False, True):
        world, begun = World(profile("F16"), lambda n: 0.5), auto(profile("F16"), live=live)
        begun.begin()
        one, other = world.run(auto(profile("F16"), live=live), 400), world.run(begun, 400)
        assert (one.gammas, one.reasons, one.now) == (other.gammas, other.reasons, other.now)


def test_a_second_text_is_never_judged_by_the_first_ones_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking back pairs the drafter's chances with the verifier's, token by token."""
    costs = Profile(verifier=curve((1, 1.6, 1.7, 1.8)), drafter=curve([0.02]))
    schedule = Auto(Costs(costs, "profile", live=False))
    learned, looked = Auto._learn_hindsight, list[tuple[list[float], list[float]]]()

    def learn(self: Auto, side: Any, hindsight: Sequence[float]) -> None:
        looked.append(([*hindsight], [*self._plain_probs][-len(hindsight) :]))
        learned(self, side, hindsight)

    monkeypatch.setattr(Auto, "_learn_hindsight", learn)
    for prompt in ([0], np.random.default_rng(1).integers(0, 4, 40).tolist()):
        schedule.begin()
        tokens, drafter = list(prompt), ModelDrafter(Toy(table(2)), LogitsReader("d", PLAIN))
        schedule.plan([0], [drafter], 4)
        side = schedule._sides["model"]
        for _ in range(80):
            side.acceptance.label(0, 0.05)
        side.parking.interval = 30 if len(prompt) == 1 else 1
        rounds = run(drafter, schedule, tokens, 24)
    ends = [done.length for done in rounds if done.reason == "look back"]
    assert ends
    assert ends[0] >= len(prompt) + 4  # after as many tokens of its own
    assert len(looked) == len(ends)
    for end, (drafts, targets) in zip(ends, looked, strict=True):
        places = range(end - len(targets), end)
        assert drafts == pytest.approx([chance(table(2), tokens, place) for place in places])
        assert targets == pytest.approx([chance(table(1), tokens, place) for place in places])


def test_a_drafter_given_up_looks_back_without_reading_a_long_prompt() -> None:
    costs = Profile(verifier=curve((1, 1.6, 1.7, 1.8)), drafter=curve([0.02]))
    schedule = Auto(Costs(costs, "profile", live=False))
    drafter = ModelDrafter(Toy(table(2)), LogitsReader("d", PLAIN))
    tokens = np.random.default_rng(1).integers(0, 4, 4000).tolist()
    drafter.begin(TextSettings(sampling=PLAIN, n_prompt=len(tokens), eog_ids=frozenset()))
    assert drafter.outlook(tokens).lag == 0
    schedule.plan([0], [drafter], 4)
    side = schedule._sides["model"]
    for _ in range(80):
        side.acceptance.label(0, 0.05)
    side.parking.interval = 30
    rounds = run(drafter, schedule, tokens, 60)
    assert "look back" in [done.reason for done in rounds]
    assert drafter.model.n_past < 400


def test_acceptance_costs_and_the_bank_are_kept() -> None:
    schedule = auto(profile("stairs"), live=True)
    World(profile("stairs"), lambda n: -3.0, slow=lambda n: 2.0).run(schedule, 200)

    def known() -> tuple[object, ...]:
        side = schedule._sides["model"]
        return side.acceptance.rates(), schedule.costs.plain, schedule.bank.balance

    before = known()
    schedule.begin()
    assert known() == before


def test_the_first_pass_of_a_second_text_is_not_measured_either() -> None:
    costs = profile("F16")
    world = World(costs, lambda n: 2.0, slow=lambda n: 1.5 if n == 64 else 1.0)
    schedule = auto(costs, live=True)
    told = schedule.costs.rounds(free=True)
    for _ in range(2):
        schedule.begin()
        done = world.run(schedule, 20)
        assert schedule.costs.rounds(free=True) == pytest.approx(told, rel=1e-6)
    assert len(done.gammas) > 1


def test_a_schedule_around_another_tells_it_of_the_text() -> None:
    inner = auto(profile("F16"))
    drafter: Any = Stub(n_past=8)
    for around in (EarlyStop(inner, p_min=0.5), Traced(inner, lambda step: None)):
        around.plan([0] * 9, [drafter], 4)
        assert inner._now is not None
        around.begin()
        assert inner._now is None
