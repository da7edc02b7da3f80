"""Lists of values in the options of a sweep: ``2,4,8``, ``1-8``, ``2-10+4``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from specx.errors import UsageError

__all__ = ["choices", "combinations", "gammas", "numbers", "whole_numbers"]

RANGE = re.compile(r"(?P<first>[\d.]+)-(?P<last>[\d.]+)(?:\+(?P<step>[\d.]+))?")
MOST = 1000
"""The most numbers in a range."""
SHOWN = 60

Number = TypeVar("Number", int, float)
Value = TypeVar("Value")


def whole_numbers(option: str, text: str, most: int) -> list[int]:
    """Parse whole numbers from 0 to `most`; keep their order, each once."""
    found = _values(option, text, lambda part: _part(part, int))
    _check_most(option, text, most, found)
    return found


def gammas(option: str, text: str, most: int) -> list[int | Literal["auto"]]:
    """Parse whole numbers from 0 to `most`, and ``auto``; keep their order, each once."""

    def read(part: str) -> Sequence[int | Literal["auto"]]:
        return ["auto"] if part == "auto" else _part(part, int)

    found = _values(option, text, read, "2,4,8 or 1-8 or 0,4,auto")
    _check_most(option, text, most, [value for value in found if value != "auto"])
    return found


def numbers(option: str, text: str) -> list[float]:
    """Parse numbers of at least 0; a range needs a step: ``0.1-0.9+0.2``."""
    return _values(option, text, lambda part: _part(part, float))


def choices(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Parse names from `known`; keep their order, each once."""
    return [name for (name,) in _named(option, text, known, lambda choice: [choice])]


def combinations(option: str, text: str, known: Sequence[str]) -> list[tuple[str, ...]]:
    """Parse names from `known`, combined by plus signs; keep their order, each once."""
    return _named(option, text, known, lambda choice: choice.split("+"))


def _named(
    option: str, text: str, known: Sequence[str], split: Callable[[str], Sequence[str]]
) -> list[tuple[str, ...]]:
    found = [tuple(name.strip() for name in split(choice)) for choice in text.split(",")]
    for name in (name for names in found for name in names):
        if name not in known:
            raise UsageError(f"{option} {text}: unknown '{name}'; known: {', '.join(known)}")
    return list(dict.fromkeys(found))


def _values(
    option: str,
    text: str,
    read: Callable[[str], Sequence[Value]],
    examples: str = "2,4,8 or 1-8 or 2-10+4",
) -> list[Value]:
    try:
        found = [value for part in text.split(",") for value in read(part.strip())]
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {_cut(text)} is not a list of numbers; write {examples}"
        ) from None
    return list(dict.fromkeys(found))


def _check_most(option: str, text: str, most: int, found: Sequence[int]) -> None:
    if found and max(found) > most:
        raise UsageError(f"{option} {_cut(text)} has a number above the limit of {most}")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _part(part: str, kind: Callable[[str], Number]) -> list[Number]:
    if not part.isascii() or "_" in part:  # Python also accepts digits of other scripts, and 1_000
        raise ValueError
    matched = RANGE.fullmatch(part)
    if matched is None:
        value = kind(part)
        if not 0 <= value < float("inf"):
            raise ValueError
        return [value]
    first, last = kind(matched["first"]), kind(matched["last"])
    if matched["step"] is None and kind is float:
        raise ValueError
    step = kind(matched["step"] or "1")
    count = math.floor((last - first) / step + 1e-9) + 1 if step > 0 else 0
    if not 0 < count <= MOST:
        raise ValueError
    # Rounded, so that 0.1-0.9+0.2 holds 0.7 and not 0.7000000000000001.
    return [kind(str(round(first + i * step, 9))) for i in range(count)]
