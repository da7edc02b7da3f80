"""A conversation: who said what, what is sent to the model, and what may be taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specx.errors import UsageError
from specx.runtime.backend import Tokenizer
from specx.session.chat import (
    ChatOptions,
    encode_chat,
    encode_raw,
    has_template,
    model_template,
    spelled,
)
from specx.session.chat.template import Message
from specx.session.chat.thinking import OPEN, History, answered, history_of
from specx.session.decoding import StopReason

__all__ = ["Conversation", "Encoding", "Turn"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str
    """Without its thinking part."""
    thought: str = ""
    """The thinking part as it was written, tags included."""
    stopped: StopReason | None = None
    """Why the answer ended."""
    seed: int | None = None


@dataclass
class Conversation:
    """The turns so far, oldest first; a question joins them with its answer, never without."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    n_asked: int = 0
    """Answers given since the beginning, those taken back included: each has its own seed."""

    def messages(
        self, question: str, *, skip: int = 0, history: History = "whole"
    ) -> list[Message]:
        """The messages that ask `question`, without the `skip` oldest turns."""
        system = self.system
        found: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        for turn in self.turns[skip:]:
            found.append({"role": "user", "content": turn.question})
            found.append(answered(turn.thought, turn.answer, history))
        return [*found, {"role": "user", "content": question}]

    def add(self, turn: Turn) -> None:
        """Add a turn."""
        self.turns.append(turn)

    def undo(self) -> Turn:
        """Take back the last turn.

        Raises
        ------
        UsageError
            If there is none.
        """
        if not self.turns:
            raise UsageError("there is no answer yet; ask something first")
        return self.turns.pop()

    def reset(self) -> None:
        """Begin anew, with the same system message."""
        self.turns.clear()
        self.n_asked = 0

    def drop(self, count: int) -> None:
        """Leave out the `count` oldest turns."""
        del self.turns[:count]

    def to_drop(self, fits: Callable[[int], bool]) -> int | None:
        """The fewest oldest turns without which a question fits; None if it does not fit alone.

        Parameters
        ----------
        fits
            True if the question fits without that many of the oldest turns.
        """
        return next((count for count in range(len(self.turns) + 1) if fits(count)), None)


class Encoding:
    """Turns messages into tokens as the model wants them: by its chat template, or as plain text.

    Parameters
    ----------
    raw
        True to do without the template. The conversation is then one text, in which each message
        begins a line.
    """

    def __init__(self, tokenizer: Tokenizer, options: ChatOptions, *, raw: bool) -> None:
        self._tokenizer, self._options = tokenizer, options
        self.raw = raw or not has_template(tokenizer)
        self.history: History = "whole"
        if not self.raw:
            model_template(tokenizer, options)  # a broken one is refused before anything is said
            self.history = history_of(tokenizer.chat_template or "")

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of `messages`, ready for an answer.

        Raises
        ------
        ModelError
            If the chat template refuses the messages.
        """
        if self.raw:
            return encode_raw(self._tokenizer, plain(messages))
        return encode_chat(self._tokenizer, messages, options=self._options)

    def opens_thinking(self, tokens: Sequence[int]) -> bool:
        """True if the prompt `tokens` end with the tag that opens the thinking part."""
        tail = spelled(self._tokenizer, tokens[-TAIL:])
        return tail.rstrip().endswith(OPEN.encode())


TAIL = 16
"""Tokens that hold the tag, if it is there, and the space after it."""


def plain(messages: Sequence[Message]) -> str:
    """`messages` as one text: an answer follows its question, and a question begins a line."""
    text = ""
    for message in messages:
        if message["role"] == "user" and text and not text.endswith("\n"):
            text += "\n"
        text += message["content"]
    return text
