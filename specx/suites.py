"""Prompts to measure on: the suites that come with specx, and a user's own file of prompts.

Both are JSON lines: an object a line, with the keys ``prompt``, ``kind`` and ``id``.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specx.errors import UsageError
from specx.models import packaged

__all__ = ["KINDS", "Prompt", "read_prompts", "suite"]

KINDS = ("factual", "opinion", "code", "edit", "translation", "maths", "json", "dialogue")
"""The kinds of prompts that come with specx, in the order of their file."""

EVERY_KIND = "all"
OWN = "own"
"""The kind of a user's prompt that names none, and the beginning of its id."""


@dataclass(frozen=True)
class Prompt:
    """A text to be continued or answered."""

    id: str
    """Unique within its file, such as ``factual-1``."""
    kind: str
    """One of `KINDS`; in a user's file whatever it says there."""
    text: str


def suite(text: str) -> list[Prompt]:
    """The prompts that an option ``--suite`` asks for.

    Parameters
    ----------
    text
        ``kind`` or ``kind:n``, the first n prompts of a kind, or several of these with commas
        between them; ``all`` or ``all:n`` stands for every kind.

    Returns
    -------
    list[Prompt]
        In the order in which the kinds are named.

    Raises
    ------
    UsageError
        If a kind is unknown or named twice, or n is not the number of some of its prompts.
    """
    prompts = read_prompts(packaged("suites/prompts.jsonl"))
    chosen: dict[str, list[Prompt]] = {}
    for part in text.split(","):
        name, colon, count = (piece.strip() for piece in part.partition(":"))
        for kind in _kinds(name):
            if kind in chosen:
                raise UsageError(f"--suite {text!r} asks for {kind!r} twice; name each kind once")
            of_kind = [prompt for prompt in prompts if prompt.kind == kind]
            chosen[kind] = of_kind[: _count(part, count, len(of_kind))] if colon else of_kind
    return [prompt for of_kind in chosen.values() for prompt in of_kind]


def _kinds(name: str) -> Sequence[str]:
    if name == EVERY_KIND:
        return KINDS
    if name not in KINDS:
        known = ", ".join((*KINDS, EVERY_KIND))
        raise UsageError(f"unknown kind of prompts {name!r} in --suite; known: {known}")
    return (name,)


def _count(part: str, count: str, most: int) -> int:
    allowed = [str(n) for n in range(1, most + 1)]
    if count not in allowed:
        raise UsageError(f"--suite {part.strip()!r}: the number of prompts must be 1 to {most}")
    return int(count)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file of JSON lines, in its order; blank lines are skipped.

    Each line is an object with the text ``prompt`` and, if wanted, ``kind`` (else ``own``) and
    ``id`` (else ``own-`` and the line's number). Further keys are ignored, so that a data set with
    more to say can be used as it is.

    Raises
    ------
    UsageError
        If the file cannot be read, holds no prompt, or has a line that is no prompt.
    """
    lines: dict[str, int] = {}
    prompts: list[Prompt] = []
    for number, line in enumerate(_read(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        prompt = _prompt(line, number, f"{path}, line {number}")
        if prompt.id in lines:
            raise UsageError(
                f"{path}, line {number}: id {_shown(prompt.id)} is that of line "
                f"{lines[prompt.id]} too; give each prompt its own"
            )
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise UsageError(f'{path} holds no prompts; write one a line, as {{"prompt": "..."}}')
    return prompts


def _read(path: Path) -> bytes:
    # Bytes: text would also be cut at characters that JSON allows within a string (U+2028).
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the prompts from {path}: {error.strerror}; pass a file of JSON lines"
        ) from error


def _prompt(line: bytes, number: int, place: str) -> Prompt:
    record = _record(line, place)
    if "prompt" not in record:
        raise UsageError(f'{place} has no "prompt", only {_shown(list(record))}; add it')
    own = {"kind": OWN, "id": f"{OWN}-{number}"}
    text, kind, name = (_text(own | record, key, place) for key in ("prompt", "kind", "id"))
    return Prompt(name, kind, text)


def _record(line: bytes, place: str) -> dict[str, object]:
    text = _decoded(line, place)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise UsageError(
            f'{place} is not JSON ({reason}): {_shown(text)}; write {{"prompt": "..."}}'
        ) from error
    if not isinstance(record, dict):
        raise UsageError(f'{place} is no object but {_shown(record)}; write {{"prompt": "..."}}')
    return record


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8-sig").strip()  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UsageError(f"{place} is not UTF-8 (byte {byte:#04x}); save it as UTF-8") from error


def _text(record: dict[str, object], key: str, place: str) -> str:
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f'{place}: "{key}" is {_shown(value)}; it must be text, and not empty')
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair
        raise UsageError(
            f'{place}: "{key}" holds half a character, {value[error.start]!a}; write it whole'
        ) from error
    return value


def _shown(value: object) -> str:
    """A value within a line of an error: shortened in the middle, without a line break."""
    return reprlib.repr(value)
