"""How far two models' distributions lie apart: against tables worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from specx.compare.agreement import (
    Agreement,
    Forced,
    _kl,
    agreement_along,
    binned,
    means,
    total_variation,
)
from specx.core.sampling import Distribution, SamplingParams
from specx.errors import LogitsError
from specx.runtime.vocabulary import verifier_mask
from specx_backends.toy import Toy, ToyTable

PLAIN = SamplingParams(temperature=1.0, top_p=1.0)
TEXT = [0, 1, 0, 0, 1]
N_PROMPT = 2

Rows = Mapping[tuple[int, ...], Sequence[float]]


def forced(rows: Rows, *, padding: int = 0, width: int = 2) -> Forced:
    toy = Toy(ToyTable(tokens=("a", "b", "c"), rows=rows, padding=padding))
    return Forced(toy, verifier_mask(toy), width)


# After "a" the two agree; after "b" they do not. The text is ab|aab: its tokens are drawn after
# b, a, a.
A = {(): (0.5, 0.3, 0.2), (0,): (0.2, 0.8, 0.0), (1,): (0.6, 0.3, 0.1)}
B = {(): (0.5, 0.3, 0.2), (0,): (0.2, 0.8, 0.0), (1,): (0.25, 0.5, 0.25)}


def kl(p: Sequence[float], q: Sequence[float]) -> float:
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_measures_are_those_worked_out_by_hand(width: int) -> None:
    found = agreement_along(forced(A, width=width), forced(B, width=width), TEXT, N_PROMPT, PLAIN)
    assert found.top1 == [False, True, True]
    assert found.total_variation == pytest.approx([0.35, 0, 0], abs=1e-6)
    assert found.kl == pytest.approx([kl(A[1,], B[1,]), 0, 0], abs=1e-6)


def test_filters_count_for_total_variation_and_not_for_kl() -> None:
    one = SamplingParams(temperature=1.0, top_p=1.0, top_k=1)
    found = agreement_along(forced(A), forced(B), TEXT, N_PROMPT, one)
    assert found.total_variation == [1, 0, 0]  # a against b
    assert found.kl == pytest.approx([kl(A[1,], B[1,]), 0, 0], abs=1e-6)


def test_temperature_counts_for_both() -> None:
    params = SamplingParams(temperature=0.5, top_p=1.0)
    found = agreement_along(forced(A), forced(B), TEXT, N_PROMPT, params)
    p, q = ([x * x / sum(y * y for y in row) for x in row] for row in (A[1,], B[1,]))
    apart = sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2
    assert found.total_variation[0] == pytest.approx(apart, abs=1e-6)
    assert found.kl[0] == pytest.approx(kl(p, q), abs=1e-6)


def test_greedy_sampling_takes_kl_at_temperature_1() -> None:
    greedy = SamplingParams(temperature=0.0)
    found = agreement_along(forced(A), forced(B), TEXT, N_PROMPT, greedy)
    assert found.total_variation == [1, 0, 0]
    assert found.kl[0] == pytest.approx(kl(A[1,], B[1,]), abs=1e-6)


def test_logits_padded_to_different_widths_are_the_same_model() -> None:
    found = agreement_along(forced(A, padding=1), forced(A, padding=7), TEXT, N_PROMPT, PLAIN)
    assert found.top1 == [True] * 3
    assert found.total_variation == [0.0] * 3
    assert found.kl == [0.0] * 3


def test_what_one_side_rules_out_is_infinitely_far_and_the_other_way_is_not() -> None:
    never = {**A, (1,): (0.6, 0.4, 0.0)}
    there = agreement_along(forced(A), forced(never), TEXT, N_PROMPT, PLAIN)
    assert there.kl[0] == math.inf
    back = agreement_along(forced(never), forced(A), TEXT, N_PROMPT, PLAIN)
    assert back.kl[0] == pytest.approx(kl(never[1,], A[1,]), abs=1e-6)
    mean = means([there])
    assert (mean["kl_infinite"], mean["kl"]) == (1, 0.0)


def test_a_model_is_fed_the_text_it_would_not_have_written_and_is_left_empty() -> None:
    side = forced({(): (1.0, 0.0, 0.0)})
    rows = list(side.rows(TEXT, N_PROMPT))
    assert len(rows) == len(TEXT) - N_PROMPT
    assert side.model.n_past == 0


def test_a_token_that_a_drafter_lacks_is_fed_as_another() -> None:
    toy = Toy(ToyTable(tokens=("a",), rows={(): (1.0,)}))
    assert len(list(Forced(toy, verifier_mask(toy), 1).rows(TEXT, N_PROMPT))) == 3


def test_an_empty_text_has_no_positions() -> None:
    found = agreement_along(forced(A), forced(B), TEXT[:2], N_PROMPT, PLAIN)
    assert found == Agreement()
    assert means([found])["total_variation"] is None
    assert binned({"p": found}, 4) == []


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (([0.5, 0.5], None), ([0.5, 0.5], None), 0.0),
        (([0.5, 0.5], [1, 3]), ([0.5, 0.5], [3, 4]), 0.5),
        (([1.0], [1]), ([1.0], [2]), 1.0),
        (([0.25, 0.25, 0.5], None), ([1.0], [2]), 0.5),
        (([0.5, 0.5], None), ([0.5, 0.25, 0.25], None), 0.25),
    ],
)
def test_total_variation_goes_by_token_whatever_was_filtered(
    one: tuple[list[float], list[int] | None],
    other: tuple[list[float], list[int] | None],
    apart: float,
) -> None:
    first, second = (
        Distribution(np.array(probs), None if ids is None else np.array(ids, np.intp))
        for probs, ids in (one, other)
    )
    assert total_variation(first, second) == pytest.approx(apart)
    assert total_variation(second, first) == pytest.approx(apart)


def test_bins_hold_every_position_once() -> None:
    long = Agreement([True] * 10, [0.1] * 10, [1.0] * 10)
    short = Agreement([False] * 4, [0.3] * 4, [3.0] * 4)
    parts = binned({"long": long, "short": short}, 4)
    assert [(part["first"], part["last"]) for part in parts] == [(1, 3), (4, 6), (7, 9), (10, 10)]
    assert [part["positions"] for part in parts] == [6, 4, 3, 1]
    assert parts[0]["top1"] == pytest.approx(0.5)
    assert parts[1]["total_variation"] == pytest.approx((3 * 0.1 + 0.3) / 4)
    assert means([long, short])["positions"] == 14


def test_logits_that_are_no_numbers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specx.compare.agreement.log_softmax", lambda row, t: np.full(3, np.nan))
    with pytest.raises(
        LogitsError, match="toy:table and toy:table at position 2 hold NaN or infin"
    ):
        agreement_along(forced(A), forced(A), TEXT, N_PROMPT, PLAIN)


def test_a_probability_too_small_for_float64_is_still_ruled_out() -> None:
    one = np.array([0, -4000], dtype=np.float32)
    other = np.array([0, -np.inf], dtype=np.float32)
    assert _kl(one, other, PLAIN) == math.inf
    assert _kl(other, one, PLAIN) == 0
