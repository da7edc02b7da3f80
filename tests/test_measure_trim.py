"""The step times of two models are compared from the same position, in turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import measure_trim


class Timed:
    """A model whose step takes a fixed time, longer the more its cache holds."""

    def __init__(self, step: float, log: list[Timed]) -> None:
        self.step, self.log = step, log
        self.now, self.n_past = 0.0, 0

    def clock(self) -> float:
        return self.now

    def forward(self, tokens: list[int], n_logits: int = 1) -> NDArray[np.float32]:
        self.n_past += len(tokens)
        self.now += self.step * self.n_past
        self.log.append(self)
        return np.zeros((n_logits, 4), np.float32)

    def truncate(self, n_past: int) -> None:
        self.n_past = n_past


@pytest.mark.parametrize("draws", [False, True])
def test_models_take_turns_from_the_same_position(draws: bool) -> None:
    log: list[Any] = []
    whole, small = Timed(2e-5, log), Timed(1e-5, log)
    found = measure_trim.measure(whole, small, draws=draws, rounds=3, steps=2)  # type: ignore[arg-type]
    assert found["ratio"] == pytest.approx(0.5)
    assert (found["low"], found["high"]) == pytest.approx((0.5, 0.5))
    assert found["whole_ms"] == pytest.approx(2e-2 * (measure_trim.CONTEXT + 1.5))
    assert log[-12:] == [whole, whole, small, small] * 3
    assert (whole.n_past, small.n_past) == (measure_trim.CONTEXT, measure_trim.CONTEXT)
