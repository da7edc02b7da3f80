"""Lists of values as a sweep's options take them: ``2,4,8``, ``1-8``, ``2-10+4``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from specx.errors import UsageError

__all__ = ["choices", "numbers", "whole_numbers"]

RANGE = re.compile(r"(?P<first>[\d.]+)-(?P<last>[\d.]+)(?:\+(?P<step>[\d.]+))?")
MOST = 1000
"""Numbers of a range."""
SHOWN = 60

Number = TypeVar("Number", int, float)


def whole_numbers(option: str, text: str, most: int) -> list[int]:
    """Whole numbers from 0 to `most`, in the order given, each once."""
    found = _values(option, text, int)
    if max(found) > most:
        raise UsageError(f"{option} {_cut(text)} has a number above {most}, which is the limit")
    return found


def numbers(option: str, text: str) -> list[float]:
    """Numbers from 0 on; a range of them needs its step: ``0.1-0.9+0.2``."""
    return _values(option, text, float)


def choices(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Names out of `known`, in the order given, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {text}: unknown '{name}'; known: {', '.join(known)}")
    return names


def _values(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        found = [value for part in text.split(",") for value in _part(part.strip(), kind)]
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {_cut(text)} is not a list of numbers; write 2,4,8 or 1-8 or 2-10+4"
        ) from None
    return list(dict.fromkeys(found))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _part(part: str, kind: Callable[[str], Number]) -> list[Number]:
    if not part.isascii() or "_" in part:  # Python reads other scripts' digits, and 1_000
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
