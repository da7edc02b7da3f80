"""The speed-up and its interval, on synthetic timings of known truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specx.bench.records import Run
from specx.bench.speedup import FEWEST, median_speedup
from specx.bench.summary import paired_ratios
from specx.session.tally import Tally

DATA_SETS, PROMPTS, REPETITIONS = 400, 15, 2
PROMPT_EFFECT, NOISE = 0.05, 0.03
"""Deviations of logarithms: what speculation gains differs from prompt to prompt, and each time is
noisy."""

COVERED = 0.91
"""Least share of data sets whose interval must hold the truth. The nominal rate is 0.95; of 400
data sets 0.91 or fewer at that rate has probability 5e-4, and the interval's true rate at 15 units
is above it (0.965: it is the 4th to the 12th of 15 ratios). All is seeded, so a pass stays one."""


def ratios(truth: float, seed: int, prompts: int = PROMPTS) -> dict[str, list[float]]:
    """Paired ratios whose median over prompts is `truth`."""
    rng = np.random.default_rng([2026, seed])
    effects = truth * rng.lognormal(0, PROMPT_EFFECT, prompts)
    noise = rng.lognormal(0, NOISE, (2, prompts, REPETITIONS))
    found = effects[:, None] * noise[0] / noise[1]
    return {str(prompt): found[prompt].tolist() for prompt in range(prompts)}


def shares(truth: float, prompts: int = PROMPTS) -> tuple[float, float]:
    """Of the intervals: how many hold the truth, how many exclude 1."""
    covered = excludes = 0
    for seed in range(DATA_SETS):
        found = median_speedup(ratios(truth, seed, prompts))
        assert found is not None
        assert found.low <= found.value <= found.high
        covered += found.low <= truth <= found.high
        excludes += not found.low <= 1 <= found.high
    return covered / DATA_SETS, excludes / DATA_SETS


def test_a_gain_of_ten_percent_is_found_and_covered() -> None:
    covered, excludes = shares(1.10)
    assert covered >= COVERED
    assert excludes >= 0.9  # power


@pytest.mark.parametrize("prompts", [8, PROMPTS])
def test_nothing_is_found_between_two_equal_arms(prompts: int) -> None:
    covered, excludes = shares(1.0, prompts)
    assert covered >= COVERED + 0.025
    assert excludes <= 0.065  # nominal 0.05, and 1.4 of its standard errors


@pytest.mark.parametrize("seed", range(12))
def test_fifteen_units_give_their_fourth_and_twelfth_whatever_is_resampled(seed: int) -> None:
    """These cover at 96.5%. Plain percentiles often give the fifth and eleventh, at 88%."""
    found = median_speedup({str(unit): [float(unit)] for unit in range(1, 16)}, seed=seed)
    assert found is not None
    assert (found.low, found.value, found.high) == (4, 8, 12)


def test_more_prompts_make_the_interval_narrower_more_repetitions_hardly() -> None:
    few, many = (median_speedup(ratios(1.0, 1, prompts)) for prompts in (10, 160))
    assert few is not None
    assert many is not None
    assert many.high - many.low < 0.5 * (few.high - few.low)
    repeated = {prompt: each * 16 for prompt, each in ratios(1.0, 1, 10).items()}
    assert median_speedup(repeated) == few


def test_the_value_is_the_median_over_prompts_of_their_medians() -> None:
    found = median_speedup({"a": [1.0, 2.0, 30.0], "b": [5.0], "c": [3.0, 4.0], "d": []})
    assert found is not None
    assert (found.value, found.units) == (3.5, 3)


def test_one_prompt_is_resampled_by_its_repetitions() -> None:
    found = median_speedup({"a": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]})
    assert found is not None
    assert (found.value, found.units) == (1.3, 7)
    assert 1.0 <= found.low < 1.3 < found.high <= 1.6


@pytest.mark.parametrize("units", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("repeated", [False, True])
def test_under_five_units_the_range_is_given(units: int, repeated: bool) -> None:
    values = [1.5, 1.1, 1.9, 1.3, 1.7][:units]
    given = {"a": values} if repeated else {str(value): [value] for value in values}
    found = median_speedup(given)
    assert found is not None
    assert found.units == units
    assert found.interval == ("bootstrap" if units == 5 else "range")
    if units < 5:
        assert (found.low, found.high) == (min(values), max(values))
        assert str(found) == f"{found.value:.2f}x (range {min(values):.2f} to {max(values):.2f})"
    else:
        assert str(found) == f"1.50x ({found.low:.2f} to {found.high:.2f})"


@pytest.mark.parametrize(("prompts", "least", "most"), [(3, 0, 0.85), (FEWEST, COVERED, 1)])
def test_the_bootstrap_covers_from_the_fewest_units_on(
    prompts: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specx.bench.speedup.FEWEST", 1)
    covered, _ = shares(1.0, prompts)
    assert least <= covered <= most


def test_no_ratio_is_none() -> None:
    assert median_speedup({"a": []}) is None
    assert median_speedup({}) is None


def test_a_seed_repeats_the_interval_and_less_confidence_narrows_it() -> None:
    given = ratios(1.0, 3)
    assert median_speedup(given) == median_speedup(given)
    wide, narrow = median_speedup(given), median_speedup(given, confidence=0.5)
    assert wide is not None
    assert narrow is not None
    assert wide.low < narrow.low <= narrow.high < wide.high


def run(prompt: str, repetition: int, tok_s: float, **more: Any) -> Run:
    tally = Tally(rounds=1, n_tokens=round(100 * tok_s), total=100.0)
    facts = {"kind": "k", "seed": 0, "n_prompt": 1, "prefill_s": 0.0, "stop_reason": "length"}
    return Run(prompt=prompt, repetition=repetition, tally=tally, **{**facts, **more})


Ratios = Callable[[list[Run], list[Run]], float]


def paired(arm: list[Run], plain: list[Run]) -> float:
    found = median_speedup(paired_ratios(arm, plain))
    assert found is not None
    return found.value


def unpaired(arm: list[Run], plain: list[Run]) -> float:
    """Must-fail control: the ratio of medians, whatever ran when."""
    rates: list[NDArray[np.float64]] = [np.array([r.tok_s for r in runs]) for runs in (arm, plain)]
    return float(np.median(rates[0]) / np.median(rates[1]))


@pytest.mark.parametrize(("ratio", "moves"), [(paired, False), (unpaired, True)])
def test_a_machine_that_slows_down_moves_only_what_is_not_paired(
    ratio: Ratios, moves: bool
) -> None:
    """The plain arm lacks the last runs, as after an interruption: all of them were slow ones."""
    keys = [(f"p{prompt}", repetition) for repetition in range(2) for prompt in range(7)]
    machine = {key: 1.0 if key[1] == 0 else 0.7 for key in keys}  # every later run 30% slower
    arm = [run(*key, 12.0 * machine[key]) for key in keys]
    plain = [run(*key, 10.0 * machine[key]) for key in keys if key[1] == 0]
    assert (abs(ratio(arm, plain) - 1.2) > 0.1) == moves


def test_runs_are_paired_by_prompt_and_repetition_in_any_order() -> None:
    arm = [run("a", 0, 20), run("a", 1, 30), run("b", 0, 40), run("c", 0, 7)]
    plain = [run("b", 0, 10), run("a", 1, 10), run("a", 0, 10)]
    assert paired_ratios(arm, plain) == {"a": [2.0, 3.0], "b": [4.0]}


def test_a_run_that_wrote_nothing_is_no_witness() -> None:
    assert paired_ratios([run("a", 0, 0), run("b", 0, 9)], [run("a", 0, 5), run("b", 0, 0)]) == {}
