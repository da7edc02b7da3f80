"""The public functions for people with an engine of their own."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import specx
from specx.core.exactness import target_law
from specx.core.rules import RULES
from specx.core.sampling import Distribution
from specx.errors import UsageError
from specx.verify.chisquare import chi_square

FALSE_POSITIVE = 1e-7


@pytest.mark.parametrize("rule", RULES)
def test_tables_drawn_anew_pass_a_chi_square_of_their_joint_law(rule: str) -> None:
    rng = np.random.default_rng()  # no seed: a sound rule passes for any
    v, g, trials = 3, 2, 12_000
    target = {c: rng.dirichlet(np.ones(v) * 0.7) for i in range(g + 1) for c in contexts(v, i)}
    draft = {c: rng.dirichlet(np.ones(v) * 0.7) for i in range(g) for c in contexts(v, i)}
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(trials):
        tokens: tuple[int, ...] = ()
        for _ in range(g):
            tokens = (*tokens, int(rng.choice(v, p=draft[tokens])))
        prefixes = [tokens[:i] for i in range(g + 1)]
        verdict = specx.accept(
            np.array([target[c] for c in prefixes]),
            np.array([draft[c] for c in prefixes[:g]]),
            tokens,
            rule=rule,
            rng=rng,
        )
        text = (*tokens[: verdict.n_accepted], verdict.token)
        while len(text) <= g:
            text = (*text, int(rng.choice(v, p=target[text])))
        seen[text] += 1
    law = target_law(lambda context: Distribution(target[context]), g + 1)
    assert chi_square(seen, law, FALSE_POSITIVE).holds


def contexts(v: int, length: int) -> list[tuple[int, ...]]:
    return [()] if length == 0 else [(*c, t) for c in contexts(v, length - 1) for t in range(v)]


@st.composite
def adversarial(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[Any]]:
    """Equal, disjoint, one-hot, nearly equal, zeros, 1e-300, unnormalised by rounding."""
    size = draw(st.integers(2, 6))
    mass = st.sampled_from([0.0, 1e-300, 1e-17, 0.25, 1.0, 3.0])
    rows = st.lists(mass, min_size=size, max_size=size).filter(lambda r: sum(r) > 0.1)
    target = np.array(draw(rows))
    kind = draw(st.sampled_from(["free", "equal", "near", "disjoint"]))
    draft = np.array(draw(rows))
    if kind == "equal":
        draft = target.copy()
    elif kind == "near":
        draft = target * (1 + 1e-16 * np.arange(size))
    elif kind == "disjoint":
        draft = np.where(target > 0, 0.0, 1.0)
        if draft.sum() == 0:
            draft[0] = 1.0
    rounding = draw(st.sampled_from([1.0, 1 + 1e-7, 1 - 1e-4]))
    return target / target.sum() * rounding, draft / draft.sum() * rounding


@given(adversarial(), st.sampled_from(list(RULES)), st.integers(0, 2**32), st.integers(0, 3))
def test_adversarial_pairs_yield_only_tokens_of_the_target(
    pair: tuple[NDArray[Any], NDArray[Any]], rule: str, seed: int, g: int
) -> None:
    target, draft = pair
    rng = np.random.default_rng(seed)
    tokens = rng.choice(len(draft), size=g, p=draft / draft.sum()).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no overflow, no 0/0
        verdict = specx.accept([target] * (g + 1), [draft] * g, tokens, rule=rule, rng=rng)
        expected = specx.expected_accepted([target] * (g + 1), [draft] * g, tokens)
    assert target[verdict.token] > 0
    assert all(target[token] > 0 for token in tokens[: verdict.n_accepted])
    assert all(0 <= value <= g + 1e-9 for value in expected.values())
    assert expected["block"] >= expected["token"] - 1e-12


def test_an_empty_draft_uses_one_number_alone() -> None:
    rng, other = np.random.default_rng(3), np.random.default_rng(3)
    specx.accept([[0.5, 0.5]], [], [], rng=rng)
    other.random()
    assert rng.random() == other.random()


def test_distributions_may_be_sparse() -> None:
    target = [Distribution(np.array([1.0]), np.array([7]))] * 2
    draft = [Distribution(np.array([0.5, 0.5]), np.array([3, 7]))]
    verdict = specx.accept(target, draft, [3], rng=np.random.default_rng(0))
    assert (verdict.n_accepted, verdict.token) == (0, 7)


@pytest.mark.parametrize(
    ("target", "draft", "tokens", "words"),
    [
        ([[0.5, 0.5]], [[0.5, 0.5]], [0], "need 1 draft and 2 target"),
        ([[0.5, 0.2]], [], [], r"target_probs\[0\] is no distribution \(sum 0.7"),
        ([[1.5, -0.5]], [], [], "least -0.5"),
        ([[np.nan, 1.0]], [], [], "no distribution"),
        ([0.5, 0.5], [], [], "one row per position"),
        ([[1.0, 0.0]] * 2, [[1.0, 0.0]], [1], "draft probability 0"),
        ([[1.0, 0.0]] * 2, [[1.0, 0.0]], [-1], "tokens hold -1"),
        ([[1.0, 0.0]] * 2, [[1.0, 0.0]], [9], "draft probability 0"),
    ],
)
def test_what_cannot_be_decided_is_named(
    target: Any, draft: Any, tokens: list[int], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        specx.accept(target, draft, tokens, rng=np.random.default_rng(0))
    with pytest.raises(UsageError, match="unknown rule 'best'; known: token, block, match"):
        specx.accept([[1.0]], [], [], rule="best", rng=np.random.default_rng(0))
