"""Measuring a pair within a budget, on toys whose costs and acceptance are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specx.bench.suites import Prompt
from specx.core.sampling import SamplingParams
from specx.runtime.backend import LoadOptions, get_backend
from specx.schedule.costs.curve import Profile
from specx.session.pair import Pair
from specx.tune.measure import Asked, Measurement, in_turns, measure
from specx.tune.surface import Labels, merged_labels
from specx_backends.toy import CLOCK, Toy

VERIFIER = """
vocabulary = ["<s>", "</s>", "a", " b"]
bos = "<s>"
eog = ["</s>"]
[cost]
forward = [0.010, 0.012]
[[row]]
next = { a = 0.5, " b" = 0.5 }
"""
DRAFTER = VERIFIER.replace("a = 0.5", "a = 0.65").replace('b" = 0.5', 'b" = 0.35').replace(
    "[0.010, 0.012]", "[0.002, 0.0025]"
)  # fmt: skip
ALPHA = 0.85
"""sum min(P, Q) = min(.5, .65) + min(.5, .35)."""
PROMPTS = [
    Prompt("code-1", "code", "a b"),
    Prompt("code-2", "code", "aa"),
    Prompt("prose-1", "prose", "aa b"),
]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    models = []
    for name, content in (("v.toml", VERIFIER), ("d.toml", DRAFTER)):
        (tmp_path / name).write_text(content)
        models.append(get_backend("toy").load(str(tmp_path / name), LoadOptions()))
    with Pair(*models) as pair:
        yield pair


def asked(rule: str = "token") -> Asked:
    return Asked(
        sampling=SamplingParams(temperature=1.0, top_p=1.0), rule=rule, prompts=in_turns(PROMPTS)
    )


def labels_of(found: Measurement) -> Labels:
    return merged_labels([sample.labels for sample in found.samples])


def test_every_kind_gets_its_turn_before_any_comes_again() -> None:
    assert [prompt.id for prompt in in_turns(PROMPTS)] == ["code-1", "prose-1", "code-2"]


@pytest.mark.parametrize("seconds", [4.0, 6.0, 8.0])
def test_the_budget_is_kept_within_a_fifth(pair: Pair, seconds: float) -> None:
    clock, told = pair.verifier.clock, [0.0]
    begun = clock()
    measure(pair, asked(), seconds, told.append)
    spent = clock() - begun
    assert 0.8 * seconds <= spent <= 1.2 * seconds
    assert told == sorted(told)
    assert max(told) <= seconds


def test_costs_and_acceptance_are_the_toys(pair: Pair) -> None:
    found = measure(pair, asked(), 8.0)
    for width in (1, 2, 5, 9):
        assert found.profile.verifier(width) == pytest.approx(0.008 + 0.002 * width)
    assert found.profile.drafter is not None
    assert found.profile.drafter(1) == pytest.approx(0.002)
    assert found.profile.drafter(2) == pytest.approx(0.0025)
    labels = labels_of(found)
    for reached, stayed in zip(labels.reached, labels.stayed, strict=True):
        assert stayed / reached == pytest.approx(ALPHA, abs=0.08)
    assert found.missing == []
    assert {text.kind for text in found.texts} == {"code", "prose"}


def test_a_second_context_length_is_measured(pair: Pair) -> None:
    found = measure(pair, asked(), 60.0)
    assert found.long is not None
    assert found.long.verifier.n_past > 2 * found.profile.verifier.n_past
    assert found.long.drafter is not None


def test_a_verifier_alone_is_measured_too(pair: Pair) -> None:
    alone = Pair(pair.verifier)
    found = measure(alone, asked(), 4.0)
    assert found.profile.drafter is None
    assert labels_of(found) == Labels((), ())
    assert all(len(text.tokens) > text.n_prompt for text in found.texts)


def test_a_budget_that_is_too_short_for_all_kinds_says_which_are_missing(pair: Pair) -> None:
    found = measure(pair, asked(), 0.3)
    assert found.missing == ["prose"]
    assert found.long is None
    assert isinstance(found.profile, Profile)


def test_the_first_pass_of_a_width_does_not_count(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow in real runtimes, and the widest passes are timed but a few times."""
    forward, seen = Toy.forward, set[int]()

    def slow_at_first(model: Toy, tokens: Sequence[int], n_logits: int = 1) -> object:
        if len(tokens) > 9 and n_logits and len(tokens) not in seen and model is pair.verifier:
            seen.add(len(tokens))
            CLOCK.advance(0.1)
        return forward(model, tokens, n_logits)

    monkeypatch.setattr(Toy, "forward", slow_at_first)
    found = measure(pair, asked(), 16.0)
    assert seen == {12, 16, 24, 32}
    assert found.profile.verifier(32) == pytest.approx(0.008 + 0.002 * 32)
