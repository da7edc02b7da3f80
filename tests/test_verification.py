"""Sound rules pass every check, and each planted fault is refuted by the check named for it."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import get_args

import numpy as np
import pytest

from specx.core.rules import RULES, TokenRule
from specx.core.sampling import LogitsReader, Numbers, SamplingParams
from specx.errors import UsageError
from specx.runtime.backend import Rollback
from specx.verify import (
    Bench,
    Check,
    check_models,
    enumerate_rule,
    enumerated_round,
    loop_law,
    round_law,
    rules,
    sample_rule,
)
from specx.verify.faults import FAULTS, Fault
from specx_backends.toy import Toy, ToyTable

SEED = 20260211

CAUGHT_BY = {
    "one-hot-residual": {"enumeration", "sampler", "loop"},
    "softmax-residual": {"enumeration", "sampler", "loop"},
    "other-draft-settings": {"loop"},
    "greedy-draft": {"loop"},
    "residual-by-place": {"enumeration"},
    "drop-after-draw": {"loop"},
    "block-with-token-residual": {"enumeration"},
    "warm-bonus": {"loop"},
    "shared-residual-randomness": {"loop"},
    "shared-test-randomness": {"loop"},
    "cache-one-too-long": {"loop"},
    "shifted-rows": {"loop"},
    "crop-before-end": {"loop"},
    "keyed-by-position": {"loop"},
}
SUBTLE = {"warm-bonus", "keyed-by-position"}
"""Their biases need many trials; the others show in a third of them."""


def nothing(share: float) -> None:
    """Nobody watches."""


def run_check(name: str, rule: str, fault: Fault, *, draws: int, trials: int) -> Check:
    if name == "loop":
        return loop_law(RULES[rule], fault, SEED, trials, nothing)
    faulty = fault.rule(RULES[rule])
    if name == "enumeration":
        return enumerate_rule(faulty, SEED, nothing)
    return sample_rule(faulty, SEED, draws, nothing)


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 48 smallest of 120: what these refute, all do, in a twentieth of the time."""
    small = tuple((v, g, again) for v, g, again in rules.SIZES if v <= 3 and g <= 2)
    monkeypatch.setattr(rules, "SIZES", small)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (name, rule)
        for name in ("enumeration", "sampler", "loop")
        for rule in RULES
        # test_cli_verify.py has these, with more draws than any here
        if (name, rule) not in [("sampler", "match"), ("loop", "match")]
    ],
)
def test_sound_rules_hold(name: str, rule: str) -> None:
    check = run_check(name, rule, Fault(), draws=60_000, trials=8000)
    assert check.holds, check.found
    assert check.figures.get("error", 0) == 0


def test_every_fault_has_a_check_that_catches_it() -> None:
    assert CAUGHT_BY.keys() == FAULTS.keys()


@pytest.mark.usefixtures("few_tables")
@pytest.mark.parametrize(("fault", "name"), [(f, n) for f, ns in CAUGHT_BY.items() for n in ns])
def test_planted_faults_are_refuted(fault: str, name: str) -> None:
    trials = 7000 if fault in SUBTLE else 2000
    assert not run_check(name, "block", FAULTS[fault], draws=20_000, trials=trials).holds


@pytest.mark.usefixtures("few_tables")
@pytest.mark.parametrize("rule", ["token", "match"])
@pytest.mark.parametrize("fault", ["one-hot-residual", "softmax-residual", "residual-by-place"])
def test_faulty_residuals_are_refuted_under_other_rules(rule: str, fault: str) -> None:
    assert not enumerate_rule(FAULTS[fault].rule(RULES[rule]), SEED, nothing).holds


class Slightly(TokenRule):
    """Rejects once too often in 10^15: far below what float64 shows."""

    @cached_property
    def chances(self) -> Numbers:
        chances = super().chances
        return chances * (1 - Fraction(1, 10**15)) if chances.dtype == object else chances


@pytest.mark.usefixtures("few_tables")
def test_fractions_refute_what_float64_cannot_show() -> None:
    check = enumerate_rule(Slightly, SEED, nothing)
    assert check.figures["float_error"] < 1e-12
    assert 0 < check.figures["error"] < 1e-12
    assert not check.holds


def test_json_has_no_infinite_numbers() -> None:
    figures = {"logits": [1.0, float("inf")], "worst": float("nan")}
    check = Check("audit", "model", False, "found", "means", figures)
    assert check.as_json()["figures"] == {"logits": [1.0, None], "worst": None}


@pytest.mark.usefixtures("few_tables")
def test_progress_reaches_the_end() -> None:
    shares: list[float] = []
    enumerate_rule(RULES["match"], SEED, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


WORDS = ("<s>", "</s>", "a", "b")
ROWS = {(): [0, 0.1, 0.4, 0.5], (2,): [0, 0.2, 0.6, 0.2], (3,): [0, 0.3, 0.1, 0.6]}
DRAFTS = {(): [0, 0.3, 0.5, 0.2], (2,): [0, 0.1, 0.3, 0.6], (3,): [0, 0.2, 0.7, 0.1]}


def bench(
    fault: Fault, rule: str = "block", *, temperature: float = 1, rollback: Rollback = "native"
) -> Bench:
    verifier, drafter = (
        Toy(ToyTable(tokens=WORDS, rows=rows, bos="<s>", eog=("</s>",), rollback=rollback))
        for rows in (ROWS, DRAFTS)
    )
    params = SamplingParams(temperature=temperature, top_k=8, top_p=1)
    return Bench(verifier, drafter, params, RULES[rule], fault, 2)


PROMPT = [0, 2, 3, 3, 2, 2, 3, 2]


@pytest.mark.parametrize("rollback", get_args(Rollback)[:2])
def test_models_that_are_sound_hold(rollback: Rollback) -> None:
    sound = bench(Fault(), rollback=rollback)
    checks = list(check_models(sound, PROMPT, 2000, SEED, nothing))
    assert [check.holds for check in checks] == [True] * 5
    assert [check.name for check in checks].count("cache audit") == 2


@pytest.mark.parametrize("rule", RULES)
def test_the_law_of_a_round_starts_as_the_verifier_would(rule: str) -> None:
    one = bench(Fault(), rule)
    for model in (one.verifier, one.drafter):
        model.forward(PROMPT[:-1])
    first = np.zeros(len(WORDS))
    for emitted, mass in enumerated_round(one, PROMPT).items():
        first[emitted[0]] += mass
    assert first == pytest.approx(ROWS[2,], abs=1e-6)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("cache-one-too-long", "cache audit"),
        ("shifted-rows", "batch against single"),
        ("one-hot-residual", "round"),
        ("other-draft-settings", "round"),
        ("greedy-draft", "round"),
        ("drop-after-draw", "round"),
        ("warm-bonus", "round"),
        ("shared-residual-randomness", "round"),
        ("shared-test-randomness", "round"),
        ("shifted-rows", "round"),
        ("crop-before-end", "round"),
    ],
)
def test_faults_are_refuted_on_models_too(fault: str, name: str) -> None:
    checks = check_models(bench(FAULTS[fault]), PROMPT, 3000, SEED, nothing)
    assert name in [check.name for check in checks if not check.holds]


def test_a_model_whose_batches_are_another_model_is_refuted() -> None:
    """A fault of the backend itself, which the law enumerated on it would share."""
    broken = bench(Fault())
    broken.verifier = FAULTS["shifted-rows"].verifier(broken.verifier)
    broken.faulty_verifier = broken.verifier
    found = {check.name: check.holds for check in check_models(broken, PROMPT, 500, SEED, nothing)}
    assert found["round"]
    refuted = [c for c in check_models(broken, PROMPT, 500, SEED, nothing) if not c.holds]
    assert [(check.name, check.subject.split()[0]) for check in refuted] == [
        ("batch against single", "verifier")
    ]


def test_a_stale_cache_is_seen_whatever_the_prompt() -> None:
    for prompt in ([0, 2, 3, 2, 3, 2, 3], [2, 2, 2, 2, 3], [0, 2, 2, 3, 2, 3, 3, 2]):
        stale = bench(FAULTS["cache-one-too-long"])
        checks = check_models(stale, prompt, 100, SEED, nothing)
        assert "cache audit" in [check.name for check in checks if not check.holds]


@pytest.mark.parametrize("prompt", [[0, 2, 3], [0, 2, 2, 2, 2, 2]])
def test_a_prompt_that_would_show_nothing_is_refused(prompt: list[int]) -> None:
    with pytest.raises(UsageError, match="give one of several words"):
        list(check_models(bench(Fault()), prompt, 100, SEED, nothing))


class Warm(Fault):
    def reader(self, reader: LogitsReader) -> LogitsReader:
        return LogitsReader(reader.model, SamplingParams(temperature=1, top_p=1))


@pytest.mark.parametrize("fault", [Fault(), Warm()])
def test_rounds_of_one_outcome_are_compared_too(fault: Fault) -> None:
    """A greedy law has a single cell, and chi-square no freedom: what it excludes still refutes."""
    one = bench(fault, temperature=0)
    check = round_law(one, PROMPT, 200, SEED, nothing)
    assert check.figures["degrees"] == 0
    assert check.holds == (type(fault) is Fault), check.found
    assert ("have probability 0" in check.found) != check.holds
