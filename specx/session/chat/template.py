"""A model's chat template, rendered so that no message is left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

from jinja2.meta import TrackingCodeGenerator

from specx.errors import ModelError, UsageError
from specx.session.chat.sandbox import Budget, Exhausted, Sandbox

__all__ = ["ChatOptions", "Chatted", "Message", "Template"]

Message = Mapping[str, str]

DATE = "strftime_now"
OWN = frozenset(["messages", "add_generation_prompt", "bos_token", "eos_token", DATE])
"""Variables that specx gives a template."""
BASE, SHARE = 1 << 24, 128
"""A render's budget: a base, and a share for each character of the messages."""
MOST_WORDS = 300
"""Maximum length of an error that a template raises."""


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Inputs of a template besides the messages."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Variables by name, such as ``enable_thinking``."""
    today: date | None = None
    """The date that the template sees, at midnight; None is the current date."""


@dataclass(frozen=True)
class Chatted:
    """A rendered conversation."""

    text: str
    contents: Sequence[tuple[int, int]] | None
    """Spans of the messages' contents in `text`; None if the template altered them."""
    merged: bool = False
    """True if the system message was put before the user's first."""


class Template:
    """A compiled chat template.

    Raises
    ------
    ModelError
        If the template is broken.
    UsageError
        If it does not use one of the arguments.
    """

    def __init__(self, source: str, options: ChatOptions, *, bos: str = "", eos: str = "") -> None:
        self._source = source
        self._sandbox = Sandbox()
        now = datetime.combine(options.today or date.today(), time())
        own = {"bos_token": bos, "eos_token": eos, DATE: now.strftime}
        self._given = {**options.arguments, **own}
        self._compiled = _guarded(lambda: self._sandbox.from_string(source))
        self._check(options.arguments)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        unknown = [name for name in arguments if name not in self.variables]
        if unknown:
            known = ", ".join(sorted(self.variables)) or "none"
            raise UsageError(
                f"the model's chat template has no variable {unknown[0]!r}; it has: {known}"
            )

    @property
    def variables(self) -> set[str]:
        """Variables that the template reads and specx does not set."""
        return self._names() - OWN

    @property
    def asks_date(self) -> bool:
        """True if the text depends on the date."""
        return DATE in self._names()

    def _names(self) -> set[str]:
        tracker = TrackingCodeGenerator(self._sandbox)
        tracker.optimizer = None  # as in Sandbox
        _guarded(lambda: tracker.visit(self._sandbox.parse(self._source)))
        return tracker.undeclared_identifiers

    def chat(self, messages: Sequence[Message]) -> Chatted:
        """`messages` as text, ready for the assistant's turn.

        A probe with marks in place of contents finds the form that the template accepts: contents
        as text, or as lists of parts as for vision models; messages as they are, or with the system
        message merged into the user's first message.

        Raises
        ------
        ModelError
            If every form leaves out a message, or the template fails.
        """
        failure: ModelError | None = None
        for shape, given, merged in _forms(messages):
            marks = [self._mark(number) for number in range(len(given))]
            try:
                probe = self._render(_filled(given, marks, shape))
                _require_all(given, marks, probe)
            except ModelError as error:
                if isinstance(error.__cause__, Exhausted):
                    raise
                failure = failure or error
                continue
            if merged:
                warnings.warn(
                    "the model's chat template accepts no system message; it was put before "
                    "the user's first message",
                    stacklevel=2,
                )
            contents = [message["content"] for message in given]
            text = self._render(_filled(given, contents, shape))
            _tell_altered(given, text)
            return Chatted(text, _places(text, probe, marks, contents), merged)
        raise failure or ModelError("there are no messages to render")

    def _mark(self, number: int) -> str:
        """A word that the template does not contain."""
        mark = f"specx{number}mark"
        while mark in self._source:
            mark += "s"
        return mark

    def _render(self, messages: list[dict[str, Any]]) -> str:
        size = sum(len(str(message["content"])) for message in messages)
        self._sandbox.budget = Budget(BASE + SHARE * size)
        given = {**self._given, "messages": messages, "add_generation_prompt": True}
        text: str = _guarded(lambda: self._compiled.render(given))
        return text


def _guarded(work: Callable[[], Any]) -> Any:
    """Result of `work`; any error of a template, compiling or running, becomes a ModelError."""
    try:
        return work()
    except (Exception, Exhausted) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        if len(words) > MOST_WORDS:
            words = f"{words[:MOST_WORDS]}..."
        raise ModelError(
            f"the model's chat template failed: {words}; pass --raw to do without it"
        ) from error


def _as_text(content: str) -> Any:
    return content


def _as_parts(content: str) -> Any:
    return [{"type": "text", "text": content}]


def _forms(
    messages: Sequence[Message],
) -> Iterator[tuple[Callable[[str], Any], Sequence[Message], bool]]:
    """Forms of the messages, the most usual first: shape of contents, messages, merged or not."""
    merged = _merged(messages)
    for given in (messages, merged):
        if given is not None:
            for shape in (_as_text, _as_parts):
                yield shape, given, given is merged


def _merged(messages: Sequence[Message]) -> Sequence[Message] | None:
    """The messages, with the system message merged into the user's first; None without both."""
    if [message["role"] for message in messages[:2]] != ["system", "user"]:
        return None
    system, user, *rest = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def _filled(
    messages: Sequence[Message], contents: Sequence[str], shape: Callable[[str], Any]
) -> list[dict[str, Any]]:
    both = zip(messages, contents, strict=True)
    return [{**message, "content": shape(content)} for message, content in both]


def _require_all(messages: Sequence[Message], marks: Sequence[str], probe: str) -> None:
    for message, mark in zip(messages, marks, strict=True):
        if mark not in probe:
            raise ModelError(
                f"the model's chat template leaves the {message['role']} message out; pass --raw "
                "to do without it"
            )


def _tell_altered(messages: Sequence[Message], text: str) -> None:
    for message in messages:
        if message["content"].strip() not in text:
            warnings.warn(
                f"the model's chat template altered the text of the {message['role']} message; "
                "pass --raw to do without it",
                stacklevel=3,
            )


TRIMS: Sequence[Callable[[str], str]] = (str, str.strip, str.lstrip, str.rstrip)


def _places(
    text: str, probe: str, marks: Sequence[str], contents: Sequence[str]
) -> list[tuple[int, int]] | None:
    """Spans of `contents` in `text`, found by the marks in `probe`; None if they do not match."""
    around, order = _split(probe, marks)
    for trim in TRIMS:
        places, at = [], len(around[0])
        for number, after in zip(order, around[1:], strict=True):
            end = at + len(trim(contents[number]))
            places.append((at, end))
            at = end + len(after)
        filled = [trim(contents[number]) for number in order]
        parts = [piece for both in zip(around, [*filled, ""], strict=True) for piece in both]
        if "".join(parts) == text:
            return places
    return None


def _split(probe: str, marks: Sequence[str]) -> tuple[list[str], list[int]]:
    """The texts around the marks in `probe`, and the marks' numbers in their order."""
    found = sorted((at, number) for number, mark in enumerate(marks) for at in _all(probe, mark))
    around, begin = [], 0
    for at, number in found:
        around.append(probe[begin:at])
        begin = at + len(marks[number])
    return [*around, probe[begin:]], [number for _, number in found]


def _all(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))
