"""The verdict of a comparison, and what its systems are called."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from specx.bench.speedup import Speedup
from specx.compare.findings import Findings, Outcome
from specx.compare.names import Traits, differences, names_of
from specx.compare.split import Acceptance, Costs, speedup, split_difference
from specx.compare.words import verdict
from specx.schedule.costs.curve import Curve, Profile
from specx.session.tally import Tally

GAMMA = 4
FLAT, STEEP = (1.0, 1.1, 1.2, 1.3, 1.4), (1.0, 1.8, 2.4, 2.9, 3.4)


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


def outcome(name: str, alpha: float, passes: tuple[float, ...], **changes: Any) -> Outcome:
    """A side whose measured speed-up is the predicted one."""
    acceptance = Acceptance((alpha,) * GAMMA, alpha**GAMMA)
    costs = Costs(Profile(verifier=curve(*passes), drafter=curve(0.1, 0.11)))
    predicted = speedup(acceptance, costs, GAMMA)
    side = Outcome(
        name=name,
        plain=1 / passes[0],
        speculative=predicted / passes[0],
        speedup=even(predicted),
        predicted=predicted,
        acceptance=acceptance,
        costs=costs,
        tally=Tally(rounds=1, tested=1000, accepted=round(1000 * alpha)),
    )
    return replace(side, **changes)


def even(ratio: float, spread: float = 0.01) -> Speedup:
    return Speedup(ratio, ratio * (1 - spread), ratio * (1 + spread), 5, "bootstrap")


def findings(a: Outcome, b: Outcome) -> Findings:
    measured = math.log(a.speedup.value) - math.log(b.speedup.value)
    return Findings(
        gamma=GAMMA,
        a=a,
        b=b,
        plain_ratio=even(a.plain / b.plain),
        speculative_ratio=even(a.speculative / b.speculative),
        split=split_difference((a.acceptance, a.costs), (b.acceptance, b.costs), GAMMA, measured),
    )


def told(a: Outcome, b: Outcome, apart: float | None = 0.001) -> str:
    means = None if apart is None else {"total_variation": apart, "top1": 0.99}
    return verdict(findings(a, b), means).words


def test_the_runtime_is_named_with_its_pass() -> None:
    a, b = outcome("llama.cpp", 0.8, FLAT), outcome("transformers", 0.8, STEEP)
    found = verdict(findings(a, b), None)
    assert found.cause == "runtime"
    assert found.responsible == (
        "a pass of 5 tokens costs 1.4 single passes on llama.cpp and 3.4 on transformers"
    )
    assert found.words.count(found.responsible) == 1
    assert "\n" not in found.words


def test_who_is_faster_is_said_with_speculation_and_alone() -> None:
    a = outcome("left", 0.8, FLAT, plain=2.0, speculative=2.0)
    b = outcome("right", 0.8, FLAT, plain=4.0, speculative=2.02)
    words = told(a, b)
    assert words.startswith("With speculation right is as fast as left (2.0 against 2.0 tok/s); ")
    assert "alone right is 2 times as fast as left (4.0 against 2.0 tok/s)." in words


def test_a_rest_above_both_parts_says_that_the_split_explains_little() -> None:
    a = outcome("left", 0.8, FLAT)
    b = outcome("right", 0.75, FLAT)
    a = replace(a, speedup=even(1.6 * a.predicted))
    found = verdict(findings(a, b), None)
    assert found.cause == "unexplained"
    assert "The split explains little" in found.words
    assert "What does differ: a round yields" in found.words
    assert "doing" not in found.words


def test_a_rest_that_is_a_good_part_is_named() -> None:
    a, b = outcome("left", 0.8, FLAT), outcome("right", 0.8, STEEP)
    assert "explained by neither" not in told(a, b)
    off = math.exp(0.7 * abs(findings(a, b).split.runtime))
    found = verdict(findings(replace(a, speedup=even(a.predicted * off)), b), None)
    assert found.cause == "runtime"
    assert f"A factor of {off:.2f} is explained by neither." in found.words


def test_a_part_that_the_rest_takes_back_is_no_difference() -> None:
    a, b = outcome("left", 0.8, FLAT), outcome("right", 0.75, FLAT)
    a = replace(a, speedup=even(1.01 * b.predicted))
    found = verdict(findings(a, b), None)
    assert found.cause == "algorithm"
    assert "is 1.01 times that of right, almost the same, although acceptance" in found.words
    assert "doing" not in found.words


def test_a_small_rest_beside_small_parts_is_no_reason_to_doubt() -> None:
    a, b = outcome("left", 0.8, FLAT), outcome("right", 0.8, FLAT)
    a = replace(a, speedup=even(1.03 * a.predicted))
    found = verdict(findings(a, b), None)
    assert (found.cause, found.responsible) == ("neither", "")


@pytest.mark.parametrize(
    ("apart", "words"),
    [
        (0.31, "The verifiers are not the same model (total variation 0.31 on average"),
        (0.05, "The verifiers differ a little along one text (total variation 0.05"),
        (0.004, "The verifiers agree along one text (total variation 0.004"),
    ],
)
def test_how_far_the_verifiers_agree_is_said(apart: float, words: str) -> None:
    sides = outcome("left", 0.8, FLAT), outcome("right", 0.8, STEEP)
    assert words in told(*sides, apart)
    assert "erifiers" not in told(*sides, None)


def test_what_would_have_to_change_is_said_where_nothing_is_gained() -> None:
    good = outcome("left", 0.8, FLAT)
    poor = outcome("poor", 0.3, (1.0, 1.5, 2.0, 2.2, 2.4))
    words = told(good, poor)
    assert "Speculation pays off on left." in words
    assert "It does not pay off on poor: gamma 4 needs an acceptance rate of 0.7" in words
    assert "and it has 0.30: it needs a better or a cheaper drafter" in words
    hopeless = outcome("hopeless", 0.3, (1.0, 2.0, 3.0, 4.0, 5.0))
    words = told(good, hopeless)
    assert "a round of gamma 4 costs 5.4 single tokens, so no realistic acceptance rate" in words
    shorter = outcome("steep", 0.9, (1.0, 1.1, 3.5, 4.2, 4.9))
    words = told(good, shorter)
    assert "not pay off on steep: judging by its costs, gamma 1 would give about 1.57x." in words


def test_a_shorter_draft_is_not_promised_more_than_the_runs_kept() -> None:
    slow = outcome("slow", 0.8, FLAT)
    slow = replace(slow, speedup=even(0.4 * slow.predicted))
    words = told(outcome("left", 0.8, FLAT), slow)
    assert "It does not pay off on slow: judging by its costs it should gain" in words


def test_a_gain_within_its_interval_is_doubted() -> None:
    side = outcome("left", 0.8, FLAT, speedup=even(1.1, 0.2))
    assert "Speculation pays off on left, though the 95% interval includes 1." in told(
        side, outcome("right", 0.8, FLAT)
    )


TRAITS = Traits(
    runtime="llamacpp",
    draft_runtime="llamacpp",
    model="m-1.5b-f16.gguf",
    drafter="m-0.5b.gguf",
    quantisation="F16",
    threads=2,
    draft_threads=2,
)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"runtime": "hf", "draft_runtime": "hf"}, ("llama.cpp", "transformers")),
        ({"runtime": "hf"}, ("llama.cpp", "transformers, drafter on llama.cpp")),
        ({"draft_runtime": "hf"}, ("drafter on llama.cpp", "drafter on transformers")),
        ({"model": "m-q4.gguf", "quantisation": "Q4_K - Medium"}, ("F16", "Q4_K - Medium")),
        ({"model": "other-f16.gguf"}, ("m-1.5b-f16", "other-f16")),
        ({"drafter": "m-0.3b.gguf"}, ("drafter m-0.5b", "drafter m-0.3b")),
        ({"threads": 1, "draft_threads": 1}, ("2 threads", "1 thread")),
        ({"draft_threads": 1}, ("drafter on 2 threads", "drafter on 1 thread")),
        ({"cache_type_k": "q8_0"}, ("keys in the default type", "keys in q8_0")),
        ({"dtype": "bfloat16"}, ("the default dtype", "bfloat16")),
        (
            {"runtime": "hf", "draft_runtime": "hf", "threads": 1},
            ("llama.cpp, 2 threads", "transformers, 1 thread"),
        ),
        ({"quantisation": "F32"}, ("the first", "the second")),
        ({}, ("the first", "the second")),
    ],
)
def test_systems_are_called_by_what_differs(
    changes: dict[str, Any], names: tuple[str, str]
) -> None:
    other = replace(TRAITS, **changes)
    assert names_of(TRAITS, other) == names
    assert set(differences(TRAITS, other)) == set(changes)
