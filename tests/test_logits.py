"""Arithmetic on logits against the definitions in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specx.core.logits import best_probability, entropy, lead, log_softmax, normalised_entropy


@given(
    st.lists(st.floats(-60, 60, width=32), min_size=2, max_size=50),
    st.sampled_from([0.01, 0.7, 1.0, 20.0]),
    st.booleans(),
)
def test_all_follow_their_definitions(row: list[float], temperature: float, masked: bool) -> None:
    logits = np.array([*row, *([-np.inf] * 9 * masked)], dtype=np.float32)
    before = logits.copy()
    tempered = np.array(row) / temperature
    probs = np.exp(tempered - tempered.max())
    probs /= probs.sum()
    likely = probs[probs > 0]
    logs = log_softmax(logits, temperature)
    assert np.exp(logs[: len(row)]) == pytest.approx(probs, rel=1e-9)
    assert (logs[len(row) :] == -np.inf).all()
    assert entropy(logits, temperature) == pytest.approx(
        -(likely * np.log(likely)).sum(), rel=1e-4, abs=2e-5
    )
    assert normalised_entropy(logits) == pytest.approx(entropy(logits) / np.log(len(logits)))
    assert best_probability(logits) == pytest.approx(np.exp(log_softmax(logits)).max(), rel=1e-5)
    first, second = sorted(row)[-1:-3:-1]
    assert lead(logits) == pytest.approx(first - second, rel=1e-5)
    assert (logits == before).all()


def test_a_table_of_rows_is_taken_row_by_row() -> None:
    rows = np.random.default_rng(0).normal(0, 3, (3, 7)).astype(np.float32)
    np.testing.assert_array_equal(log_softmax(rows), [log_softmax(row) for row in rows])


def test_masked_tokens_add_nothing_to_certainty() -> None:
    certain = np.full(100_000, -np.inf, np.float32)
    certain[7] = 3
    assert entropy(certain) == entropy(certain, 0.3) == normalised_entropy(certain) == 0
    assert (best_probability(certain), lead(certain)) == (1, np.inf)
    assert lead(np.full(3, -np.inf, np.float32)) == 0
    assert normalised_entropy(np.zeros(1, np.float32)) == 0
