"""Prompts to measure on: the suites that ship with specx, and a user's own file of prompts.

Both are JSON Lines: one object per line, with the keys ``prompt``, ``kind`` and ``id``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specx.codec import convert, lines_of, parse, refuse, shortened
from specx.errors import UsageError
from specx.shipped import packaged

__all__ = ["KINDS", "OWN", "Prompt", "read_prompts", "suite"]

KINDS = ("factual", "opinion", "code", "edit", "translation", "maths", "json", "dialogue")
"""The kinds of prompts that ship with specx, in the order of their file."""

EVERY_KIND = "all"
OWN = "own"
"""The default kind of a user's prompt, and the prefix of its default id."""

REMEDY = 'write {"prompt": "..."}'


@dataclass(frozen=True)
class Prompt:
    """A text to be continued or answered."""

    id: str
    """Unique within its file, such as ``factual-1``."""
    kind: str
    """One of `KINDS`; a user's file may have kinds of its own."""
    text: str


def suite(text: str) -> list[Prompt]:
    """The prompts selected by ``--suite``.

    Parameters
    ----------
    text
        ``kind`` or ``kind:n``, the first n prompts of a kind, or several of these separated by
        commas; ``all`` or ``all:n`` stands for every kind.

    Returns
    -------
    list[Prompt]
        In the order in which the kinds are named.

    Raises
    ------
    UsageError
        If a kind is unknown or named twice, or n is out of range.
    """
    prompts = read_prompts(packaged("suites/prompts.jsonl"))
    chosen: dict[str, list[Prompt]] = {}
    for part in text.split(","):
        name, colon, count = (piece.strip() for piece in part.partition(":"))
        for kind in _kinds(name):
            if kind in chosen:
                raise UsageError(f"--suite {text!r} names {kind!r} twice; name each kind once")
            of_kind = [prompt for prompt in prompts if prompt.kind == kind]
            chosen[kind] = of_kind[: _count(part, count, len(of_kind))] if colon else of_kind
    return [prompt for of_kind in chosen.values() for prompt in of_kind]


def _kinds(name: str) -> Sequence[str]:
    if name == EVERY_KIND:
        return KINDS
    if name not in KINDS:
        known = ", ".join((*KINDS, EVERY_KIND))
        raise UsageError(f"unknown kind of prompt {name!r} in --suite; known: {known}")
    return (name,)


def _count(part: str, count: str, most: int) -> int:
    allowed = [str(n) for n in range(1, most + 1)]
    if count not in allowed:
        raise UsageError(f"--suite {part.strip()!r}: the number of prompts must be 1 to {most}")
    return int(count)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a JSON Lines file, in order; blank lines are skipped.

    Each line is an object with the text ``prompt`` and, optionally, ``kind`` (by default ``own``)
    and ``id`` (by default ``own-`` and the line number). Other keys are ignored, so that a data set
    with more fields can be used as it is.

    Raises
    ------
    UsageError
        If the file cannot be read, holds no prompts, or has a line that is not a prompt.
    """
    lines: dict[str, int] = {}
    prompts: list[Prompt] = []
    for number, line, _ in lines_of(path, "the prompts"):
        prompt = _prompt(line, number, f"{path}, line {number}")
        if prompt.id in lines:
            raise UsageError(
                f"{path}, line {number}: id {shortened(prompt.id)} is also used on line "
                f"{lines[prompt.id]}; give each prompt its own"
            )
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise UsageError(f'{path} holds no prompts; write one per line, as {{"prompt": "..."}}')
    return prompts


@dataclass(frozen=True)
class _Line:
    prompt: str
    kind: str = OWN
    id: str | None = None


def _prompt(line: bytes, number: int, place: str) -> Prompt:
    found = convert(parse(line, place, REMEDY), _Line, place, REMEDY)
    name = f"{OWN}-{number}" if found.id is None else found.id
    for key, text in (("prompt", found.prompt), ("kind", found.kind), ("id", name)):
        _check_text(text, key, place)
    return Prompt(name, found.kind, found.prompt)


def _check_text(text: str, key: str, place: str) -> None:
    if not text.strip():
        refuse(place, key, f"{shortened(text)} is empty", REMEDY)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
        half = f"it holds half a character, {text[error.start]!a}"
        refuse(place, key, half, "write it whole")
