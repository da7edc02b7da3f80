"""Tells the thinking part of an answer, ``<think>...</think>`` at its beginning, from the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from specx.session.chat.template import Message

__all__ = ["CLOSE", "OPEN", "History", "Span", "Thinking", "answered", "history_of", "split"]

OPEN, CLOSE = "<think>", "</think>"
REASONING = "reasoning_content"

Span: TypeAlias = tuple[bool, str]
"""True for a part of the thinking, tags included, and the text."""
History: TypeAlias = Literal["whole", "answer", "reasoning_content"]
"""What a template takes of an earlier answer: all of it, the answer without its thinking, or both
under names of their own."""


class Thinking:
    """Splits the text of one answer as it arrives; the texts of its spans add up to the whole.

    Thinking comes first or not at all: a tag in the middle of an answer is text about a tag.

    Parameters
    ----------
    opened
        True if the prompt itself ends with the opening tag, so that the answer begins within it.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._within = opened
        self._tag = CLOSE if opened else OPEN
        """The next tag that can come; empty once none can."""
        self._held = ""
        """Text that may turn out to be a tag."""

    def push(self, piece: str) -> list[Span]:
        """Take a piece of the text; return the spans that have become certain."""
        self._held += piece
        return list(self._certain())

    def finish(self) -> list[Span]:
        """The text still held back, at the end of the answer."""
        rest, self._held = self._held, ""
        return [(self._within, rest)] if rest else []

    def _certain(self) -> Iterable[Span]:
        if self._tag == OPEN:
            begun = self._held.lstrip()
            if len(begun) < len(OPEN) and OPEN.startswith(begun):
                return
            self._within = begun.startswith(OPEN)
            self._tag = CLOSE if self._within else ""
        if self._tag == CLOSE:
            end = self._held.find(CLOSE)
            if end < 0:
                yield from self._release(len(self._held) - _begun(self._held))
                return
            yield from self._release(end + len(CLOSE))
            self._within, self._tag = False, ""
        yield from self._release(len(self._held))

    def _release(self, size: int) -> Iterable[Span]:
        released, self._held = self._held[:size], self._held[size:]
        if released:
            yield self._within, released


def _begun(text: str) -> int:
    """Length of the longest end of `text` that begins the closing tag."""
    return next(n for n in range(len(CLOSE) - 1, -1, -1) if text.endswith(CLOSE[:n]))


def split(text: str, *, opened: bool = False) -> tuple[str, str]:
    """The thinking part of a whole answer, tags included, and the rest."""
    thinking = Thinking(opened=opened)
    spans = [*thinking.push(text), *thinking.finish()]
    thought, rest = ("".join(t for within, t in spans if within is side) for side in (True, False))
    return thought, rest


def history_of(template: str) -> History:
    """What the template with this source does with the thinking of earlier answers.

    One that names a tag cuts thinking out, or opens the tag itself and gives no place to what
    follows it; one that says nothing of thinking is given the answer as the model wrote it.
    """
    if REASONING in template:
        return "reasoning_content"
    return "answer" if OPEN in template or CLOSE in template else "whole"


def answered(thought: str, text: str, history: History) -> Message:
    """An earlier answer as the message to give a template.

    The text is what the template would cut out of the whole answer, so that no alteration is seen.
    """
    if history == "whole" or not thought:
        return {"role": "assistant", "content": thought + text}
    if history == "answer":
        return {"role": "assistant", "content": text}
    bare = thought.strip().removeprefix(OPEN).removesuffix(CLOSE).strip("\n")
    return {"role": "assistant", "content": text.lstrip("\n"), REASONING: bare}
