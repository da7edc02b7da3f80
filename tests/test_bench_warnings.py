"""Each warning fires on what it is for, names a remedy, and is silent otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from specx.bench import Arm, ArmRecord, Results, Run, warnings_of
from specx.runtime.machine import Watch
from specx.schedule.costs.curve import Curve, Profile
from specx.session.tally import Tally

CORES = 4
FLAT, STEEP = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
FIRST_FLAT = (1.0, 1.0, 3.0, 4.0, 5.0, 6.0)


class Seen(Watch):
    """Saw what it is told."""

    def __init__(self, swapped: float = 0.0, others: float = 0.0) -> None:
        self._swapped_mib, self._others = swapped, others

    def swapped_mib(self) -> float:
        return self._swapped_mib

    def others(self) -> float:
        return self._others


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: CORES)


def arm(gamma: int = 0, **more: Any) -> Arm:
    common: dict[str, Any] = {
        "backend": "toy", "draft_backend": "toy", "temperature": 0.7, "top_k": 0, "top_p": 0.9,
        "min_p": 0.0, "gamma": gamma, "rule": "block" if gamma else "-",
    }  # fmt: skip
    return ArmRecord(**{**common, **more}).arm()


def run(prompt: str, repetition: int, tok_s: float, tested: int = 0, accepted: int = 0) -> Run:
    tally = Tally(
        rounds=1, n_tokens=1000, total=1000 / tok_s, tested=tested, proposed=tested,
        accepted=accepted,
    )  # fmt: skip
    return Run(
        prompt=prompt, kind="k", repetition=repetition, seed=0, n_prompt=1, prefill_s=0.0,
        stop_reason="length", tally=tally,
    )  # fmt: skip


def profile(verifier: Sequence[float] = FLAT, *, threads: int = CORES) -> Profile:
    def curve(seconds: Sequence[float]) -> Curve:
        values = tuple(seconds)
        return Curve(
            model="toy:m", bytes=1, quantisation=None, threads=threads, n_past=8, repeats=5,
            widths=tuple(range(1, len(values) + 1)), seconds=values, low=values, high=values,
        )  # fmt: skip

    return Profile(verifier=curve(verifier), drafter=curve([0.1, 0.1]))


def results(
    *,
    rates: Sequence[float] = (10.0, 10.2),
    prompts: int = 5,
    tested: int = 8,
    accepted: int = 6,
    arms: Sequence[Arm] = (arm(4),),
    measured: Profile | None = None,
) -> Results:
    """Prompts of different speeds, each run once for each of `rates`; counts are those of a run."""
    keys = [(f"p{p}", r, rate * (1 + p)) for p in range(prompts) for r, rate in enumerate(rates)]
    runs = {arm(): [run(prompt, r, rate) for prompt, r, rate in keys]}
    for each in arms:
        runs[each] = [run(prompt, r, 2 * rate, tested, accepted) for prompt, r, rate in keys]
    return Results(n=1000, runs=runs, profiles={"toy": measured or profile()})


def texts(found: Results, watch: Watch | None = None) -> list[str]:
    warnings = warnings_of(found, watch or Seen())
    assert all(set(warning) == {"text", "remedy"} for warning in warnings)
    return [f"{warning['text']}; {warning['remedy']}" for warning in warnings]


def test_a_clean_benchmark_has_no_warnings() -> None:
    assert texts(results()) == []
    assert texts(results(prompts=1, rates=[10.0] * 5)) == []
    assert texts(Results(n=1)) == []


def test_a_verifier_whose_repetitions_differ_is_unstable() -> None:
    (warning,) = texts(results(rates=(10.0, 11.2)))
    assert "unstable" in warning
    assert "(toy, temperature 0.7) varies by 11%" in warning  # 1.2 / 10.6
    assert "; close other programs" in warning
    assert "raise -r" in warning
    assert texts(results(rates=(10.0, 11.0))) == []  # 1.0 / 10.5


def test_an_end_token_is_a_pass_and_no_sign_of_an_unstable_clock() -> None:
    found = results()
    for number, each in enumerate(found.runs[arm()]):
        tokens = 3 + 9 * (number % 2)  # and one pass more, for the end
        each.tally.n_tokens, each.tally.rounds = tokens, tokens + 1
        each.tally.total = 0.5 * (tokens + 1)
    assert texts(found) == []


def test_speculation_may_vary_with_what_is_accepted() -> None:
    found = results()
    found.runs[arm(4)] = [run(each.prompt, each.repetition, 5.0 + 9 * each.repetition, 8, 6)
                          for each in found.runs[arm(4)]]  # fmt: skip
    assert texts(found) == []


@pytest.mark.parametrize(
    ("prompts", "rates", "words"),
    [(4, [10.0] * 9, "4 prompts: too few for an interval"),
     (1, [10.0] * 4, "4 repetitions of one prompt: too few for an interval")],
)  # fmt: skip
def test_few_prompts_have_no_interval(prompts: int, rates: list[float], words: str) -> None:
    (warning,) = texts(results(prompts=prompts, rates=rates))
    assert words in warning
    assert "; measure 5 prompts or more (--suite all:1" in warning


def test_a_drafter_that_is_hardly_ever_accepted_is_named() -> None:
    """Ten runs of each arm: 40 tested tokens."""
    (warning,) = texts(results(tested=4, accepted=0, arms=[arm(4, rule="token")]))
    assert "hardly ever accepted (gamma 4, rule token, temp 0.7): 0 of 40 tested" in warning
    assert "; use a drafter of the verifier's own family" in warning


@pytest.mark.parametrize(
    ("tested", "accepted", "n_warnings"),
    [(20, 1, 1), (20, 2, 0), (40, 2, 1), (40, 3, 0), (19, 0, 0), (20, 0, 1)],
)
def test_few_tests_say_nothing_about_a_drafter(tested: int, accepted: int, n_warnings: int) -> None:
    found = results(tested=0, accepted=0)
    found.runs[arm(4)][0] = run("p0", 0, 20.0, tested, accepted)
    assert len(texts(found)) == n_warnings


def test_a_curve_on_which_no_gamma_can_gain_is_too_steep() -> None:
    (warning,) = texts(results(measured=profile(STEEP), arms=[arm(2), arm(4)]))
    assert "cost curve (toy) is too steep: a pass of 3 tokens costs as much as 3.0" in warning
    assert "; use another quantisation" in warning
    assert "specx bench --curve" in warning


def test_a_curve_is_judged_by_the_gammas_that_were_asked_for() -> None:
    """A draft of one costs nothing here, four cost too much."""
    assert len(texts(results(measured=profile(FIRST_FLAT), arms=[arm(4)]))) == 1
    assert texts(results(measured=profile(FIRST_FLAT), arms=[arm(1), arm(4)])) == []
    assert texts(results(measured=profile(STEEP), arms=[])) == []


def test_the_curve_says_nothing_about_arms_without_cache() -> None:
    assert texts(results(measured=profile(STEEP), arms=[arm(4, cached=False)])) == []


def test_a_machine_that_swapped_is_named() -> None:
    (warning,) = texts(results(), Seen(swapped=16.6))
    assert "swapped 17 MiB to disk" in warning
    assert "; free memory, shorten the context (-c)" in warning
    assert texts(results(), Seen(swapped=16.0)) == []


def test_other_programs_are_named() -> None:
    (warning,) = texts(results(), Seen(others=0.12))
    assert "other programs took 12% of the processor" in warning
    assert "; close them" in warning
    assert texts(results(), Seen(others=0.10)) == []


def test_more_threads_than_cores_are_named_for_each_model() -> None:
    found = texts(results(measured=profile(threads=CORES + 1)))
    assert found == [
        f"the {role} runs 5 threads on 4 cores; -t 4 or fewer" for role in ("verifier", "drafter")
    ]


def test_warnings_do_not_hide_each_other() -> None:
    found = results(
        rates=(10.0, 12.0), prompts=2, tested=9, accepted=0, measured=profile(STEEP, threads=5)
    )
    assert len(texts(found, Seen(swapped=99, others=0.9))) == 8
