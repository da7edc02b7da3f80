"""The sampling transform against a plain full-sort form, ties, and logits that make no law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from specx.core.sampling import (
    FILTERS,
    FILTERS_OFF,
    SAMPLING_ORDER,
    Distribution,
    Filter,
    LogitsReader,
    SamplingParams,
    distribution,
)
from specx.errors import LogitsError, UsageError


def plainly(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """The documented transform, filter by filter, over a full sort in float64."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    weights = np.exp((logits[order].astype(float) - logits.max()) / params.temperature)
    probs = weights / weights.sum()
    if params.top_k:
        probs[params.top_k :] = 0
    probs /= probs.sum()
    if params.top_p < 1:
        reached = np.flatnonzero(np.cumsum(probs) >= params.top_p)
        probs[(reached[0] if len(reached) else len(probs)) + 1 :] = 0
        probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0
    dense = np.zeros(len(logits))
    dense[order] = probs / probs.sum()
    return dense


def full(chances: Distribution, size: int) -> NDArray[np.float64]:
    return chances.at(np.arange(size))


def ids_of(chances: Distribution) -> list[int]:
    assert chances.ids is not None
    return [int(i) for i in chances.ids]


# Multiples of 1/4 make ties common; a mass that falls on a filter's edge is decided in float32.
logits = arrays(np.float32, st.integers(1, 40), elements=st.integers(-40, 40).map(lambda i: i / 4))


@given(
    logits,
    st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    st.integers(0, 45),
    st.sampled_from([0.05123, 0.3134, 0.6171, 0.90017, 0.99031, 1.0]),
    st.sampled_from([0.0, 0.0101, 0.2017]),
)
def test_equals_the_plain_form(
    row: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = distribution(row, params)
    np.testing.assert_allclose(full(found, len(row)), plainly(row, params), atol=1e-12)
    assert found.ids is None or (np.diff(found.ids) > 0).all()


@pytest.mark.parametrize("vocab", [50_000, 151_936])
def test_large_vocabularies_too(vocab: int) -> None:
    rng = np.random.default_rng(1)
    row = (rng.standard_normal(vocab) * 3).astype(np.float32)  # flat: the nucleus is wide
    params = SamplingParams(temperature=1.0, top_p=0.97)
    np.testing.assert_allclose(
        full(distribution(row, params), vocab), plainly(row, params), atol=1e-9
    )


def test_no_filter_is_dense() -> None:
    row = np.array([0.0, -np.inf, 1.0], dtype=np.float32)
    chances = distribution(row, SamplingParams(temperature=1.0, top_p=1.0))
    assert chances.ids is None
    assert chances.probs.tolist() == pytest.approx([1 / (1 + np.e), 0, np.e / (1 + np.e)])


def test_ties_are_broken_by_the_lower_id() -> None:
    row = np.zeros(6, dtype=np.float32)
    assert ids_of(distribution(row, SamplingParams(temperature=0))) == [0]
    assert ids_of(distribution(row, SamplingParams(top_k=2, top_p=1))) == [0, 1]
    assert ids_of(distribution(row, SamplingParams(top_p=0.5))) == [0, 1, 2]


def test_min_p_comes_after_top_p() -> None:
    """Before it, min-p would leave weights of 1.8, of which 1.5 reach .8: ids 0 and 1 alone."""
    row = np.log([1, 0.5, 0.3, *[0.1] * 10]).astype(np.float32)
    params = SamplingParams(temperature=1, top_p=0.8, min_p=0.2)
    assert ids_of(distribution(row, params)) == [0, 1, 2]


def test_filters_never_leave_nothing() -> None:
    row = np.array([3.0, 2.0], dtype=np.float32)
    assert ids_of(distribution(row, SamplingParams(top_p=1e-9, min_p=1.0))) == [0]


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_low_temperatures_are_greedy(temperature: float) -> None:
    row = np.array([1.0, 1.0000001, 1.0000001], dtype=np.float32)
    found = distribution(row, SamplingParams(temperature=temperature))
    assert (ids_of(found), found.probs.tolist()) == ([1], [1.0])


@pytest.mark.parametrize(
    ("row", "word"), [([0, np.nan], "nan"), ([np.inf, 0], "inf"), ([-np.inf] * 2, "only -inf")]
)
@pytest.mark.parametrize("temperature", [0, 0.7])
def test_logits_without_a_law_name_model_and_position(
    row: list[float], word: str, temperature: float
) -> None:
    reader = LogitsReader("toy:broken", SamplingParams(temperature=temperature))
    rows = np.array([[0.0, 0.0], row], dtype=np.float32)
    with pytest.raises(LogitsError, match=f"toy:broken at position 8: .*{word}"):
        reader.read(rows, 7)


def test_masked_ids_are_never_drawn() -> None:
    reader = LogitsReader("m", SamplingParams(temperature=1, top_p=1), np.array([1, 2]))
    (chances,) = reader.read(np.array([[0, 9, 9, 0]], dtype=np.float32), 0)
    assert chances.probs.tolist() == [0.5, 0, 0, 0.5]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.1},
     {"top_k": -1}, {"min_p": 2}],
)  # fmt: skip
def test_parameters_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong)).replace("_", "-")
    with pytest.raises(UsageError, match=f"{name} is "):
        SamplingParams(**wrong)


def test_distribution_looks_up_by_token() -> None:
    sparse = Distribution(np.array([0.25, 0.75]), np.array([3, 7]))
    dense = Distribution(np.array([0.5, 0.5]))
    assert sparse.at(np.array([7, 4, 3, 9])).tolist() == [0.75, 0, 0.25, 0]
    assert dense.over(sparse).tolist() == [0, 0]
    assert dense.at(np.array([1, 2])).tolist() == [0.5, 0]
    assert sparse.over(dense).tolist() == [0, 0]
    assert [sparse.draw(u) for u in (0, 0.2499, 0.25, 0.999)] == [3, 3, 7, 7]


def test_rounding_up_at_the_end_still_draws_a_possible_token() -> None:
    chances = Distribution(np.array([0.5, 0.5, 0.0]))
    assert chances.draw(1.0) == 1


def test_filters_are_the_fields_of_the_settings_in_their_order() -> None:
    """What lists sampling settings goes by these, and names no filter itself."""
    assert tuple(vars(SamplingParams())) == SAMPLING_ORDER
    off = SamplingParams(temperature=1, **FILTERS_OFF)
    assert distribution(np.zeros(4, np.float32), off).ids is None


def test_another_filter_needs_an_entry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets what those before it left."""
    most_likely = Filter("temperature", 0, lambda left, _: left.at(np.array([0])))
    monkeypatch.setattr("specx.core.sampling.FILTERS", (*FILTERS, most_likely))
    row = np.array([0, 3, 2], np.float32)
    assert ids_of(distribution(row, SamplingParams(temperature=1, top_k=2, top_p=1))) == [1]
