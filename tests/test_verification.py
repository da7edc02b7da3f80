"""Sound rules pass every check, and each planted fault is refuted by the check named for it."""

from __future__ import annotations

from typing import Any

import pytest

from specx.acceptance import RULES
from specx.faults import FAULTS, Fault
from specx.sampling import SamplingParams
from specx.verification import (
    Bench,
    Check,
    check_models,
    enumerate_rule,
    loop_law,
    sample_rule,
)
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


def nothing(share: float) -> None:
    """Nobody watches."""


def run_check(name: str, rule: str, fault: Fault) -> Check:
    if name == "loop":
        return loop_law(RULES[rule], fault, SEED, nothing)
    faulty = fault.rule(RULES[rule])
    return enumerate_rule(faulty, SEED) if name == "enumeration" else sample_rule(faulty, SEED)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["enumeration", "sampler", "loop"])
def test_sound_rules_hold(name: str, rule: str) -> None:
    check = run_check(name, rule, Fault())
    assert check.holds, check.found
    assert check.figures.get("error", 0) == 0


def test_every_fault_has_a_check_that_catches_it() -> None:
    assert CAUGHT_BY.keys() == FAULTS.keys()


@pytest.mark.parametrize(("fault", "name"), [(f, n) for f, ns in CAUGHT_BY.items() for n in ns])
def test_planted_faults_are_refuted(fault: str, name: str) -> None:
    assert not run_check(name, "block", FAULTS[fault]).holds


@pytest.mark.parametrize("rule", ["token", "match"])
@pytest.mark.parametrize("fault", ["one-hot-residual", "softmax-residual", "residual-by-place"])
def test_faulty_residuals_are_refuted_under_other_rules(rule: str, fault: str) -> None:
    assert not run_check("enumeration", rule, FAULTS[fault]).holds


def bench(fault: Fault, **sampling: Any) -> Bench:
    rows = {(): [0, 0.1, 0.4, 0.5], (2,): [0, 0.2, 0.6, 0.2], (3,): [0, 0.3, 0.1, 0.6]}
    drafts = {(): [0, 0.3, 0.5, 0.2], (2,): [0, 0.1, 0.3, 0.6], (3,): [0, 0.2, 0.7, 0.1]}
    words = ("<s>", "</s>", "a", "b")
    verifier, drafter = (
        Toy(ToyTable(tokens=words, rows=r, bos="<s>", eog=("</s>",))) for r in (rows, drafts)
    )
    params = SamplingParams(temperature=1, top_k=8, top_p=1)
    return Bench(verifier, drafter, params, RULES["block"], fault, 2)


PROMPT = [0, 2, 3, 3, 2, 2, 3, 2]


def test_models_that_are_sound_hold() -> None:
    checks = list(check_models(bench(Fault()), PROMPT, 2000, SEED, nothing))
    assert [check.holds for check in checks] == [True] * 5
    assert [check.name for check in checks].count("cache audit") == 2


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("cache-one-too-long", "cache audit"),
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
    checks = check_models(bench(FAULTS[fault]), PROMPT, 4000, SEED, nothing)
    assert name in [check.name for check in checks if not check.holds]
