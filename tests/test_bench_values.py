"""Lists of values on the command line."""

from __future__ import annotations

import pytest

from specx.bench.values import choices, combinations, gammas, numbers, whole_numbers
from specx.errors import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4", [4]),
        ("2,4,8", [2, 4, 8]),
        ("8, 2", [8, 2]),
        ("1-4", [1, 2, 3, 4]),
        ("2-10+4", [2, 6, 10]),
        ("2-9+4", [2, 6]),
        ("3-3", [3]),
        ("0,2-4,3", [0, 2, 3, 4]),
    ],
)
def test_whole_numbers(text: str, values: list[int]) -> None:
    assert whole_numbers("--gamma", text, 10) == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.7", [0.7]),
        ("0.01,.3,1", [0.01, 0.3, 1.0]),
        ("0.1-0.9+0.2", [0.1, 0.3, 0.5, 0.7, 0.9]),
        ("1e-3", [0.001]),
    ],
)
def test_numbers(text: str, values: list[float]) -> None:
    assert numbers("--temp", text) == values


BAD = [
    "",
    "x",
    "2,,4",
    "-1",
    "1.5",
    "8-2",
    "8-7",
    "1-8+0",
    "1-9999999",
    "1-",
    "9" * 400 + "-0+3",
    "9" * 5000,
    "²",
    "٢",
    "1_0",
    "1-²",
    "2,²",
]


@pytest.mark.parametrize("text", BAD)
def test_bad_whole_numbers_are_named(text: str) -> None:
    with pytest.raises(
        UsageError, match="--gamma .*is not a list of numbers; write 2,4,8"
    ) as raised:
        whole_numbers("--gamma", text, 10)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("text", ["0.1-0.9", "nan", "inf", "-0.5", "1.2.3-4+1", "0-" + "9" * 400])
def test_bad_numbers_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="--temp .*is not a list of numbers"):
        numbers("--temp", text)


@pytest.mark.parametrize("text", ["11", "4294967296", "9" * 400, "2,11", "8-11", "1-99+98"])
def test_a_number_above_the_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--gamma .* has a number above the limit of 10") as raised:
        whole_numbers("--gamma", text, 10)
    assert len(str(raised.value)) < 200


def test_an_overflow_is_no_traceback() -> None:
    with pytest.raises(UsageError):
        numbers("--temp", "0-" + "9" * 400 + "+1")


def test_names_are_of_those_known() -> None:
    assert choices("--rule", "token, block,token", ["block", "token"]) == ["token", "block"]
    with pytest.raises(UsageError, match="--rule token,lucky: unknown 'lucky'; known: block, tok"):
        choices("--rule", "token,lucky", ["block", "token"])


def test_gammas_are_numbers_and_auto() -> None:
    assert gammas("--gamma", "0, 4,auto,2-3,auto,4", 10) == [0, 4, "auto", 2, 3]
    with pytest.raises(UsageError, match="--gamma 4,11 has a number above the limit of 10"):
        gammas("--gamma", "4,11", 10)
    for text in ("auto-4", "Auto", "", "4,"):
        with pytest.raises(UsageError, match="write 2,4,8 or 1-8 or 0,4,auto"):
            gammas("--gamma", text, 10)


def test_combinations_are_names_with_a_plus_between_them() -> None:
    known = ["model", "lookup"]
    found = combinations("--draft", "lookup, model+lookup,lookup", known)
    assert found == [("lookup",), ("model", "lookup")]
    for text in ("model,", "model+", "lookup,lokup"):
        with pytest.raises(
            UsageError, match=r"--draft .*: unknown '(lokup)?'; known: model, lookup"
        ):
            combinations("--draft", text, known)
