"""Cost curves, the formulas over them, and the words for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specx.bench.explain import explain, stairs
from specx.errors import UsageError
from specx.schedule.costs.curve import (
    Curve,
    Profile,
    acceptance_needed,
    expected_tokens,
    measure_curve,
    predicted_speedup,
    profile_record,
    read_profile,
    round_seconds,
    textbook_speedup,
    uniform_speedup,
    uniform_tokens,
)
from specx_backends.toy import Toy, ToyTable


def curve(seconds: Sequence[float], widths: Sequence[int] | None = None) -> Curve:
    values = tuple(seconds)
    return Curve(
        model="toy:m", bytes=10, quantisation="Q4", threads=2, n_past=8, repeats=5,
        widths=tuple(widths or range(1, len(values) + 1)), seconds=values, low=values, high=values,
    )  # fmt: skip


def profile(*verifier: float, drafter: Sequence[float] = (0.25, 0.5), core: float = 0.0) -> Profile:
    return Profile(verifier=curve(verifier), drafter=curve(drafter), core=core)


FLAT = profile(*[1.0] * 8, drafter=[0.1] * 8)
STEEP = profile(1, 2, 3, 4, drafter=[0.5, 0.5])
STAIRS = profile(1, 1, 1, 2, 2, 2, 2, 3, drafter=[0.1] * 8)


def toy(costs: Sequence[float], **more: Any) -> Toy:
    return Toy(
        ToyTable(tokens=("a", "b"), rows={(): (0.5, 0.5)}, forward_cost=tuple(costs), **more)
    )


def test_a_curve_is_measured_as_the_table_says() -> None:
    model = toy([0.5, 0.75, 0.875, 2.0])
    reported: list[int] = []
    found = measure_curve(model, [0, 1] * 4, [4, 1, 2, 2], 3, report=reported.append)
    assert (found.widths, found.seconds) == ((1, 2, 4), (0.5, 0.75, 2.0))
    assert found.low == found.high == found.seconds
    assert (found.n_past, found.repeats, found.model) == (4, 3, "toy:table")
    assert reported == list(range(1, 13))  # a warm-up of each width as well
    assert model.n_past == 0


def test_passes_have_the_same_context_and_another_order_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, fed = Toy.forward, []

    def forward(self: Toy, tokens: Sequence[int], n_logits: int = 1) -> Any:
        fed.append((self.n_past, len(tokens), n_logits))
        return original(self, tokens, n_logits)

    monkeypatch.setattr(Toy, "forward", forward)
    measure_curve(toy([1.0]), [0] * 12, range(1, 7), 4)
    (first, *passes) = fed
    assert first == (0, 6, 0)
    assert all(n_past == 6 and n_logits == width for n_past, width, n_logits in passes)
    orders = {tuple(width for _, width, _ in passes[i : i + 6]) for i in range(0, 30, 6)}
    assert len(orders) == 5
    fed.clear()
    measure_curve(toy([1.0]), [0] * 12, range(1, 7), 1, rows=1)
    assert {n_logits for *_, n_logits in fed[1:]} == {1}


def test_too_few_tokens_and_time_that_stands_still_are_refused() -> None:
    with pytest.raises(UsageError, match="4 tokens are too few to time passes of 4"):
        measure_curve(toy([1.0]), [0] * 4, [1, 4], 1)
    with pytest.raises(UsageError, match="toy:table: the clock did not advance"):
        measure_curve(toy([0.0]), [0] * 4, [1, 2], 1)


def test_a_curve_is_linear_between_widths_and_a_token_costs_the_same_beyond() -> None:
    found = curve([1.0, 2.0, 6.0], [1, 2, 4])
    assert [found(width) for width in (1, 1.5, 3, 4, 8)] == [1.0, 1.5, 4.0, 6.0, 12.0]


def test_formulas_as_by_hand() -> None:
    assert expected_tokens([]) == 1
    assert expected_tokens([0.5, 0.5, 0]) == 1.75
    assert uniform_tokens(0.5, 2) == 1.75
    assert textbook_speedup(0.5, 2, 0.25) == pytest.approx((1 - 0.5**3) / (0.5 * 1.5))
    assert textbook_speedup(1, 3, 0) == 4
    costs = profile(1, 2, 3, 4)
    # (3-1) t(1) + (1-A) t(1) + A t(2) + T(4) + rollback + core, A = 1/2
    assert round_seconds(costs, 3, full=0.5, core=0.25, rollback=0.125) == (
        0.5 + 0.125 + 0.25 + 4 + 0.375
    )
    assert round_seconds(costs, 0) == 1
    assert round_seconds(Profile(verifier=curve([1, 2, 3])), 2) == 3
    assert predicted_speedup(costs, 1, 1.5, core_plain=0.5, core=1) == 1.5 * 1.5 / (0.25 + 2 + 1)


@pytest.mark.parametrize("costs", [FLAT, STAIRS, profile(1, 1.2, 1.5, 2, 2.5, core=0.01)])
@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_the_acceptance_needed_is_where_the_prediction_breaks_even(
    costs: Profile, gamma: int
) -> None:
    needed = acceptance_needed(costs, gamma)
    assert needed is not None
    assert uniform_speedup(costs, needed, gamma) == pytest.approx(1)


def test_no_acceptance_is_enough_for_a_steep_curve_and_none_needed_for_free_drafts() -> None:
    assert [acceptance_needed(STEEP, gamma) for gamma in (1, 2, 3)] == [None] * 3
    assert acceptance_needed(Profile(verifier=curve([1.0, 1.0])), 1) == 0.0


def test_words_for_a_flat_curve() -> None:
    text = "\n".join(explain(FLAT))
    for words in (
        "Verifier: 1,000 ms for one token; in units of that, 2 cost 1.0, 4 cost 1.0, 8 cost 1.0.",
        "Its cost has no steps.", "Drafter: 100 ms per token, 0.10 of the verifier's",
        "Speculation pays off from an acceptance rate of 0.10 (gamma 1)",
        "At an acceptance rate of 0.5 the best gamma is 2",
        "At an acceptance rate of 0.9 the best gamma is 7",
    ):  # fmt: skip
        assert words in text


def test_words_for_a_curve_on_which_nothing_pays() -> None:
    lines = explain(STEEP)
    assert lines[-1] == "No gamma pays off below an acceptance rate of 0.95: decode plainly."
    assert "Its cost has no steps." in lines[0]


def test_words_for_a_staircase_and_without_a_drafter() -> None:
    assert stairs(STAIRS.verifier) == [4, 8]
    text = "\n".join(explain(STAIRS))
    assert "steps up at widths 4, 8; gamma 2, 6 stays just below a step." in text
    assert "At an acceptance rate of 0.7 the best gamma is 2: 1.82x." in text
    assert explain(Profile(verifier=STAIRS.verifier))[1].startswith(
        "No drafter: the following assumes"
    )


def test_what_is_not_worth_it_is_called_so() -> None:
    text = "\n".join(explain(profile(1, 1.3, 2.5, drafter=[0.25, 0.25])))
    assert "Speculation pays off from an acceptance rate of 0.55 (gamma 1)" in text
    assert "At an acceptance rate of 0.5 no gamma is worth it (0.97x at best)." in text


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    for given in (profile(1, 2, 3, core=0.001), Profile(verifier=curve([1, 2]))):
        (tmp_path / "p.json").write_text(json.dumps(profile_record(given)))
        assert read_profile(tmp_path / "p.json") == given


def _set(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def damage(record: dict[str, Any]) -> None:
        *way, last = path
        for key in way:
            record = record[key]
        record[last] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_set("specx_profile", value=2), "format 2"),
        (_set("verifier", value=None), "field verifier is null: expected object"),
        (_set("verifier", value=[1]), "field verifier: expected object, got array"),
        (_set("core", value=-1), "field core is -1: expected float >="),
        (_set("core", value=float("nan")), "field core is NaN: expected a finite number"),
        (_set("core", value=True), "field core is true: expected float, got bool"),
        (_set("drafter", "widths", value=[1]), "field drafter.seconds: 2 values of 1 widths"),
        (_set("drafter", "widths", value=[]), "drafter.widths: widths must rise from 1"),
        (_set("verifier", "widths", value=[1, 3, 2]), "widths must rise from 1"),
        (_set("verifier", "widths", value=[2, 3, 4]), "widths must rise from 1"),
        (
            _set("verifier", "widths", value=[1, 2.5, 3]),
            r"verifier.widths\[1\] is 2.5: expected int",
        ),
        (_set("verifier", "widths", value=["1", "2", "3"]), r"verifier.widths\[0\] is \"1\""),
        (_set("verifier", "seconds", value=[1, -2, 3]), r"verifier.seconds\[1\] is -2"),
        (_set("verifier", "low", value=[1, float("nan"), 3]), r"low\[1\] is NaN"),
        (_set("verifier", "high", value=[1, None, 3]), r"verifier.high\[1\] is null"),
    ],
)
def test_damaged_profiles_are_refused_in_a_line(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], words: str
) -> None:
    record = json.loads(json.dumps(profile_record(profile(1, 2, 3))))
    damage(record)
    (tmp_path / "p.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=words) as raised:
        read_profile(tmp_path / "p.json")
    assert "p.json" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", "is not JSON"), (b"\xff", "is not UTF-8"),
     (b"[" * 100_000, "nested more than 32"), (b"[]", "is not a profile"),
     (b"{}", "is not a profile"), (b'{"specx_profile": 1}', "missing required field core")],
)  # fmt: skip
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_profile(tmp_path / "p.json")
    with pytest.raises(UsageError, match="cannot read the profile"):
        read_profile(tmp_path / "none.json")
