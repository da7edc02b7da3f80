"""Strictly typed records from JSON; errors name the file, line and field in one line.

The JSON of a file becomes the dataclasses that the code computes with. Types are strict (true is
not 1, "3" is not 3); numbers are finite, and small enough for sums and ratios. Unknown keys are
ignored: a later version of specx may write more in the same format.

The standard library parses, because a trace may hold half a surrogate pair (an argument that was
not UTF-8), which msgspec's own parser refuses; msgspec converts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from specx.errors import UsageError
from specx.runtime.inputs import read_bytes

__all__ = [
    "MOST_GAMMA",
    "Chance",
    "Count",
    "Gamma",
    "Number",
    "Rate",
    "Seconds",
    "Uniform",
    "convert",
    "lines_of",
    "parse",
    "read_json",
    "refuse",
    "require_all",
    "shortened",
    "to_json",
]

MOST_GAMMA = 1024
"""Maximum number of tokens drafted per round: more than ever pays, and few enough to count."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Gamma: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_GAMMA)]
Number: TypeAlias = Annotated[float, Meta(ge=-1e40, le=1e40)]
"""Finite; as large as a float32 may be."""
Rate: TypeAlias = Annotated[float, Meta(ge=0, le=1e40)]
Seconds: TypeAlias = Annotated[float, Meta(ge=-1e-3, le=1e12)]
"""A difference of clock readings, which rounding may leave a little below 0."""
Chance: TypeAlias = Annotated[float, Meta(ge=0, le=1.000001)]
"""A probability, as float32 sums it."""
Uniform: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]

CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Escapes of what JSON may hold as it is, and a terminal would obey: C1, changes of direction."""

MOST_NESTED = 32
"""Levels of nesting; records have at most eight, and the code that reads them recurses."""
SHOWN = 60

T = TypeVar("T")


def read_json(path: Path, what: str, remedy: str) -> Any:
    """The JSON value that a file holds.

    Parameters
    ----------
    what
        Name of the file in errors: ``the profile``.
    remedy
        How to make the file: ``specx bench --curve -o FILE writes one``.

    Raises
    ------
    UsageError
        If the file cannot be read or is not JSON.
    """
    return parse(read_bytes(path, what), str(path), remedy)


def lines_of(path: Path, what: str) -> Iterator[tuple[int, bytes, bool]]:
    """Number and content of each non-blank line, and True for a last line without a newline.

    Raises
    ------
    UsageError
        If the file cannot be read.
    """
    lines = read_bytes(path, what).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line, number == len(lines)


def parse(data: bytes, place: str, remedy: str) -> Any:
    """The JSON value in `data`; NaN and Infinity, which are not JSON, are left to `convert`.

    Parameters
    ----------
    place
        Begins the error: the file, and the line if there are several.

    Raises
    ------
    UsageError
        If it is not UTF-8, not JSON, or nested too deeply.
    """
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UsageError(f"{place} is not UTF-8 (byte {byte:#04x}); save it as UTF-8") from error
    except RecursionError as error:
        raise _nested(place, remedy) from error
    except json.JSONDecodeError as error:
        shown = shortened(text.strip())
        raise UsageError(f"{place} is not JSON ({error.msg}): {shown}; {remedy}") from error
    except ValueError as error:  # more digits than Python turns into a number
        raise UsageError(f"{place} holds a number that is too long; {remedy}") from error
    if _deeper_than(MOST_NESTED, value):
        raise _nested(place, remedy)
    return value


def convert(value: Any, kind: type[T], place: str, remedy: str) -> T:
    """`value`, as `parse` gives it, as an object of type `kind`.

    Raises
    ------
    UsageError
        If a field is missing, of the wrong type, or has an invalid value; names `place`, the field
        and `remedy`.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        reason, path = _split(str(error))
        known = path and "..." not in path  # else it is the value of some key of a mapping
        shown, reason = _told(_at(value, path), reason) if known else ("", reason)
        refuse(place, f"{path}{shown}", reason, remedy)
    except UnicodeEncodeError as error:  # half a surrogate pair in a key or a name
        refuse(place, "", f"a name contains half a character, {shortened(error.object)}", remedy)
    except UsageError as error:  # a dataclass that checks itself
        raise UsageError(f"{place}: {error}; {remedy}") from error


def require_all(value: Any, kind: type, place: str, field: str, remedy: str) -> None:
    """Refuse `value`, an object at `field`, if it lacks a field that `kind` has a default for."""
    for name in (each.name for each in dataclasses.fields(kind)):
        if name not in value and not name.startswith("_"):
            refuse(place, field, f"object missing required field {name}", remedy)


def refuse(place: str, field: str, reason: str, remedy: str) -> NoReturn:
    """Raise UsageError, worded as in `convert`; an empty field means the whole record."""
    named = f"field {field}: " if field else ""
    raise UsageError(f"{place}: {named}{reason}; {remedy}")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON text that controls no terminal.

    Non-finite numbers become null, as JSON cannot express them; control characters are escaped.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError:
        text = json.dumps(_nulled(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text if text.isascii() else text.translate(CONTROLS)


def _nulled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nulled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_nulled(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shortened(value: object) -> str:
    """A value for a line of an error: as JSON, printable, shortened if it is long."""
    if isinstance(value, str):
        value = value[: 2 * SHOWN]
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if shown.isprintable() else json.dumps(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def _split(message: str) -> tuple[str, str]:
    """Reason and path of msgspec's "Expected `int`, got `str` - at `$.draft[0].id`"."""
    reason, _, where = message.partition(" - at ")
    path = re.search(r"`\$\.?(.*)`$", where)
    keyed = " (of a key)" if where.startswith("`key`") else ""
    reason = reason.replace("`", "")
    return reason[:1].lower() + reason[1:] + keyed, path.group(1) if path else ""


def _at(value: Any, path: str) -> Any:
    for step in re.findall(r"[^.\[\]]+", path):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _told(value: Any, reason: str) -> tuple[str, str]:
    """`value` for an error, and the reason why it is invalid."""
    if isinstance(value, dict | list):
        return "", reason
    infinite = isinstance(value, float) and not math.isfinite(value)
    return f" is {shortened(value)}", "expected a finite number" if infinite else reason


def _deeper_than(most: int, value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        held = (each.values() if isinstance(each, dict) else each for each in level)
        level = [one for values in held for one in values if isinstance(one, dict | list)]
    return bool(level)


def _nested(place: str, remedy: str) -> UsageError:
    return UsageError(f"{place} is nested more than {MOST_NESTED} levels deep; {remedy}")
