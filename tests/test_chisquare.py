"""The test that refutes laws: its false alarms, what it sees, and how cells are merged."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from specx.chisquare import LEAST_EXPECTED, MOST_CELLS, _cells, chi_square


def test_false_alarms_come_at_the_stated_rate() -> None:
    rng, law = np.random.default_rng(0), dict(enumerate([0.1, 0.2, 0.3, 0.4]))
    alarms = 0
    for _ in range(2000):
        counts = rng.multinomial(500, list(law.values()))
        alarms += not chi_square(dict(enumerate(counts.tolist())), law, 0.05).holds
    assert 60 < alarms < 150  # 100 expected; 4 sigma either side


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


def test_an_excluded_outcome_refutes_outright() -> None:
    found = chi_square({"a": 999, "b": 1}, {"a": 1.0}, 1e-6)
    assert not found.holds


@pytest.mark.parametrize("trials", [50, 1000, 100_000])
def test_cells_are_few_and_filled(trials: int) -> None:
    weights = 1 / np.arange(1, 301) ** 1.5
    law = dict(enumerate((weights / weights.sum()).tolist()))
    seen = Counter(np.random.default_rng(2).choice(300, trials, p=list(law.values())).tolist())
    counts, expected = _cells(seen, law, trials)
    assert len(counts) <= MOST_CELLS
    assert (expected >= LEAST_EXPECTED).all()
    assert counts.sum() == trials
    assert expected.sum() == pytest.approx(trials)
