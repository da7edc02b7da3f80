"""The law of the text under every schedule, drafter and early stop: enumerated through the loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from enumeration import EveryWay
from worlds import curve, stairs

from specx.core.exactness import target_law, total_variation
from specx.core.rules import RULES
from specx.core.sampling import LogitsReader, SamplingParams, distribution
from specx.drafters.base import Draft, Drafter, GoOn, Outlook
from specx.drafters.lookup import LookupDrafter
from specx.drafters.model import ModelDrafter
from specx.schedule import Auto, Costs, EarlyStop, Fixed, Schedule
from specx.schedule import auto as auto_module
from specx.schedule.costs.curve import Profile
from specx.verify.faults import FAULTS
from specx_backends.toy import Toy, ToyTable

ROUNDING = 1e-12
PROMPT = [0, 1, 1, 0, 1, 0, 1, 1, 0, 1]
N = 4
PLAIN = SamplingParams(temperature=1, top_p=1)


def table(seed: int, order: int = 2) -> ToyTable:
    """Random rows over two tokens; the last row of some contexts is nearly certain."""
    rng = np.random.default_rng(seed)
    contexts = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    rows = {c: rng.dirichlet([0.8, 0.8]).tolist() for c in contexts if len(c) <= order}
    return ToyTable(tokens=("a", "b"), rows=rows)


VERIFIER = table(3)


class Short(ModelDrafter):
    """Three tokens at most, so that there are few ways to enumerate."""

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        return replace(super().outlook(tokens), classes=range(3))


def model(sampling: SamplingParams = PLAIN, ends: Collection[int] = ()) -> ModelDrafter:
    return Short(Toy(table(8)), LogitsReader("drafter", sampling), frozenset(ends))


def auto(verify: Sequence[float] = (1, 1, 1, 1, 1), step: float = 0.01, **changes: Any) -> Auto:
    profile = Profile(verifier=curve(verify), drafter=curve([step]))
    chosen = Auto(Costs(profile, "profile", live=False))
    for name, value in changes.items():
        setattr(chosen, name, value)
    return chosen


def trusting() -> Auto:
    """Its margin's word counts, so that the length of a draft follows the draft's own rows."""
    chosen = auto(stairs(4, step=0.5), 0.1)
    sharp = model()
    chosen.plan([0], [sharp], 4)
    side = chosen._sides["model"]
    side.margin._seen, side.margin._errors = 50.0, [1.0, 10.0]
    side.margin._slope, side.margin._mean, side.margin._square = 3.0, 0.7, 0.8
    return chosen


def looking_back() -> Auto:
    """Nothing pays and every token ends a parked interval."""
    chosen = auto((1, 1.6, 1.7, 1.8), 0.02)
    chosen.plan([0], [model()], 4)
    side = chosen._sides["model"]
    for _ in range(80):
        side.acceptance.label(0, 0.05)
    side.parking.interval = 1
    return chosen


def mixed(lookup_pays: bool) -> Auto:
    chosen = auto(stairs(3, step=0.8), 0.05)
    chosen.plan(PROMPT, [model(), LookupDrafter()], 4)
    known = chosen._sides["lookup"].acceptance
    for place in [*range(len(known._seen))] * 20:
        known.label(place, 0.9 if lookup_pays else 0.2)
    return chosen


Make = Callable[[], tuple[list[Drafter], Schedule]]

CASES: dict[str, Make] = {
    "fixed 1": lambda: ([model()], Fixed(1)),
    "fixed 2": lambda: ([model()], Fixed(2)),
    "lookup, fixed 2": lambda: ([LookupDrafter()], Fixed(2)),
    "lookup, auto": lambda: ([LookupDrafter()], auto()),
    "auto, new": lambda: ([model()], auto()),
    "auto, stairs": lambda: ([model()], auto(stairs(2, 3, step=0.3), 0.1)),
    "auto, margin": lambda: ([model()], trusting()),
    "auto, looking back": lambda: ([model()], looking_back()),
    "auto, both": lambda: ([model(), LookupDrafter()], mixed(True)),
    "auto, both, model better": lambda: ([model(), LookupDrafter()], mixed(False)),
    "entropy stop": lambda: ([model()], EarlyStop(Fixed(3), entropy=0.8)),
    "p-min": lambda: ([model()], EarlyStop(Fixed(3), p_min=0.7)),
    "ends at an end token": lambda: ([model(ends={1})], Fixed(2)),
    "lookup, ends at an end token": lambda: ([LookupDrafter(eog_ids=frozenset({1}))], Fixed(3)),
    "draft at temperature 0": lambda: ([model(SamplingParams(temperature=0))], Fixed(2)),
    "draft at temperature 2": lambda: ([model(SamplingParams(temperature=2, top_p=1))], Fixed(2)),
    "draft with top-p": lambda: ([model(SamplingParams(temperature=1, top_p=0.6))], Fixed(2)),
}


def target() -> Any:
    """Read off the logits: their float32 is part of what the verifier says."""
    before = tuple(PROMPT)
    return target_law(lambda c: distribution(VERIFIER.logits((before + c)[-2:]), PLAIN), N)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("case", CASES)
def test_the_text_follows_the_verifiers_law(
    case: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_module, "LEAST_HINDSIGHT", 1)
    ways = EveryWay(Toy(VERIFIER), CASES[case], RULES[rule], PROMPT, N)
    law = ways.law()
    assert sum(law.values()) == pytest.approx(1, abs=ROUNDING)
    assert total_variation(law, target()) <= ROUNDING
    SEEN[case](ways)


def many(*gammas: int) -> Callable[[EveryWay], None]:
    def check(ways: EveryWay) -> None:
        assert set(gammas) <= set(ways.gammas), ways.gammas

    return check


def looked_back(ways: EveryWay) -> None:
    assert {"look back", "parked"} <= set(ways.reasons)


def both(ways: EveryWay) -> None:
    assert set(ways.drafters) == {"model", "lookup"}, ways.drafters


SEEN = {
    **dict.fromkeys(CASES, many()),
    "fixed 2": many(2, 1, 0),
    "lookup, fixed 2": many(0, 2),
    "lookup, auto": many(0, 2),
    "auto, margin": many(0, 1, 2),
    "auto, looking back": looked_back,
    "auto, both": both,
    "entropy stop": many(1, 2),
    "p-min": many(0, 1),
    "ends at an end token": many(1, 2),
    "lookup, ends at an end token": many(0, 1),
}
"""What each case must have gone through, lest it prove nothing."""


class Discarding(ModelDrafter):
    """Planted fault: a draft that ended early is thrown away, for what its tokens led to."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        draft = super().propose(tokens, limit, random, go_on, hindsight)
        return draft if len(draft.ids) == limit else Draft()


def biased(kind: str) -> tuple[list[Drafter], Schedule]:
    if kind == "drop":
        return [FAULTS["drop-after-draw"].drafter(model())], Fixed(2)
    drafter = Discarding(Toy(table(8)), LogitsReader("drafter", PLAIN))
    return [drafter], EarlyStop(Fixed(2), p_min=0.7)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", ["drop", "discard"])
def test_a_choice_made_after_the_draw_is_refuted(kind: str, rule: str) -> None:
    ways = EveryWay(Toy(VERIFIER), lambda: biased(kind), RULES[rule], PROMPT, N)
    assert total_variation(ways.law(), target()) > 0.01
