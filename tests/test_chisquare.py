"""The test that refutes laws: its false alarms, what it sees, and how cells are merged."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom, chi2

from specx.verify.chisquare import LEAST_EXPECTED, MOST_CELLS, _cells, chi_square


@pytest.mark.parametrize("law", [[0.1, 0.2, 0.3, 0.4], [0.6, 0.397, 0.002, 0.001], [0.995, 0.005]])
def test_false_alarms_come_at_most_at_the_stated_rate(law: list[float]) -> None:
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(2000):
        counts = rng.multinomial(500, law)
        alarms += not chi_square(dict(enumerate(counts.tolist())), dict(enumerate(law)), 0.05).holds
    assert alarms < 150  # 100 expected at most; 5 sigma above
    assert alarms > 60 or law[0] > 0.4  # 4 sigma below; a test of rare outcomes is conservative


def test_a_bias_as_large_as_it_says_it_sees_is_seen() -> None:
    rng, size, trials = np.random.default_rng(1), 8, 20_000
    law = dict.fromkeys(range(size), 1 / size)
    visible = chi_square(dict.fromkeys(range(size), trials // size), law, 1e-6).visible
    shift = visible * 2 / size * np.where(np.arange(size) % 2, 1, -1)
    seen = [
        not chi_square(dict(enumerate(c.tolist())), law, 1e-6).holds
        for c in rng.multinomial(trials, 1 / size + shift, size=400)
    ]
    assert np.mean(seen) > 0.97  # power .99


def test_with_one_cell_a_bias_it_says_it_sees_is_seen() -> None:
    rng, trials, law = np.random.default_rng(1), 4000, {"a": 0.9995, "b": 0.0005}
    found = chi_square({"a": trials}, law, 1e-6)
    assert (found.holds, found.degrees) == (True, 0)
    counts = rng.binomial(trials, law["b"] + found.visible, size=400).tolist()
    seen = [not chi_square({"a": trials - n, "b": n}, law, 1e-6).holds for n in counts]
    assert np.mean(seen) > 0.97  # power .99
    smaller = rng.binomial(trials, law["b"] + found.visible / 3, size=400).tolist()
    assert not all(not chi_square({"a": trials - n, "b": n}, law, 1e-6).holds for n in smaller)


def test_an_excluded_outcome_refutes_outright() -> None:
    found = chi_square({"a": 999, "b": 1}, {"a": 1.0}, 1e-6)
    assert not found.holds
    assert found.excluded == 1
    json.dumps(found.as_json(), allow_nan=False)


def test_rare_outcomes_cannot_hide_in_the_cell_they_share() -> None:
    law = {"a": 0.5, "b": 0.4999, "c": 0.0001}
    assert chi_square({"a": 2000, "b": 1999, "c": 1}, law, 1e-6).holds
    assert not chi_square({"a": 2000, "b": 1000, "c": 1000}, law, 1e-6).holds


def test_the_rate_is_split_between_cells_and_rare_outcomes() -> None:
    rare = chi_square({"a": 2000, "b": 2000}, {"a": 0.5, "b": 0.4999, "c": 0.0001}, 0.02)
    assert rare.critical == pytest.approx(chi2.isf(0.01, 1))
    assert rare.most_rare == binom.isf(0.01, 4000, 0.0001) < binom.isf(0.0005, 4000, 0.0001)
    alone = chi_square({"a": 2000, "b": 2000}, {"a": 0.5, "b": 0.5}, 0.02)
    assert alone.critical == pytest.approx(chi2.isf(0.02, 1))


@pytest.mark.parametrize("trials", [5, 50, 1000, 100_000])
@pytest.mark.parametrize("steepness", [0.0, 1.5, 8.0])
def test_cells_are_few_and_filled(trials: int, steepness: float) -> None:
    weights = 1 / np.arange(1, 301) ** steepness
    law = dict(enumerate((weights / weights.sum()).tolist()))
    cells, rare = _cells(law, trials)
    assert len(cells) <= MOST_CELLS
    expected = [sum(law[key] for key in cell) * trials for cell in cells]
    assert min(expected) >= LEAST_EXPECTED * (1 - 1e-9)
    assert sorted(key for cell in cells for key in cell) == list(law)
    assert set(rare) <= set(cells[-1])
    assert sum(law[key] for key in rare) * trials < LEAST_EXPECTED
    drawn = Counter(np.random.default_rng(2).choice(300, trials, p=list(law.values())).tolist())
    assert chi_square(drawn, law, 1e-6).holds
