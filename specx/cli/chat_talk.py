"""A chat: a conversation with a session, whose answers are printed as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from specx import Result, Session, Settings, Stop
from specx.cli.chat_input import Input
from specx.cli.chat_output import ENDED, Speaking, note, quiet_line
from specx.cli.chat_settings import ChosenSettings
from specx.cli.generating import Interruptible
from specx.cli.progress import Progress, Reading
from specx.cli.show import legend, wants_styles
from specx.errors import UsageError
from specx.interrupts import held
from specx.records.chat import ChatModel, SavedChat
from specx.runtime.fatal import last_words
from specx.session.chat.thinking import split
from specx.session.conversation import Conversation, Encoding, Turn

__all__ = ["Chat", "ChatOptions", "begin"]

ROOM = 256
"""Tokens kept free for an answer, in a context that has four times as many."""
SHOWN = 32
"""Characters of a message that name it."""


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The options that stay the same throughout a chat."""

    system_prompt: str | None
    loaded: Path | None
    raw: bool
    template_date: str | None
    stop: Sequence[str]
    profile: Path | None
    color: str
    show: Literal["origin", "entropy"]
    quiet: bool
    verbose: bool


class Chat:
    """A conversation with a session, from a source of messages to printed answers."""

    def __init__(
        self,
        options: ChatOptions,
        settings: ChosenSettings,
        session: Session,
        encoding: Encoding,
        source: Input,
        progress: Progress,
        size: int,
    ) -> None:
        self.settings, self.session, self.encoding = settings, session, encoding
        self.source = source
        self.conversation = Conversation()
        self.results: list[Result] = []
        """Of all answers, those taken back included."""
        self.file: Path | None = None
        """The file that the chat was loaded from or saved to."""
        models = session.pair.models
        self.n_ctx = min(model.n_ctx for model in models)
        verifier = session.pair.verifier
        sha256 = verifier.describe().get("sha256")
        self.model = ChatModel(name=verifier.name, sha256=None if sha256 is None else str(sha256))
        self._options, self._progress, self._size = options, progress, size

    def note(self, line: str) -> None:
        """Write a line beside the conversation."""
        note(line, color=self._options.color)

    def greet(self) -> None:
        """Say who answers, on a terminal, and what the marks mean."""
        if self._options.quiet:
            return
        if self.encoding.raw:
            why = "--raw was given" if self._options.raw else "the model has no chat template"
            self.note(f"{why}: messages and answers form one plain text")
        if not self.source.interactive:
            return
        names = " with ".join(m.name.partition(":")[2] for m in self.session.pair.models)
        self.note(f"{names}; /help lists the commands, Ctrl-D leaves")
        styled = wants_styles(self._options.color, sys.stdout)
        if styled and len(self.session.pair.models) > 1:
            click.echo(legend(True, self._options.show), err=True)

    def ask(self, question: str) -> None:
        """Print an answer to `question`; both then belong to the conversation.

        Raises
        ------
        UsageError
            If the question does not fit, or only without older turns that are to be kept.
        KeyboardInterrupt
            If a signal came before the answer began.
        """
        tokens = self._fitting(question)
        settings = self.settings.of(self.conversation.n_asked)
        opened = self.encoding.opens_thinking(tokens)
        result = self._generate(tokens, settings, opened)
        thought, answer = split(result.text, opened=opened)
        turn = Turn(
            question=question,
            answer=answer,
            thought=thought,
            stopped=result.stop_reason,
            seed=settings.seed,
        )
        self.conversation.add(turn)
        self.conversation.n_asked += 1
        self.results.append(result)
        if not self._options.quiet:
            self.note(quiet_line(result, ENDED))
            if self.source.interactive:
                self.note("")

    def _generate(self, tokens: list[int], settings: Settings, opened: bool) -> Result:
        """Print an answer; what was said of one that a signal ended is the answer."""
        speaking = Speaking(self._options.color, self._options.show, opened=opened)
        rounds = self.session.rounds(
            tokens,
            settings,
            Stop(
                self.session.pair.verifier.tokenizer,
                self.settings.predict or self.n_ctx,
                stops=self._options.stop,
            ),
            [Reading(self._progress), speaking, Interruptible()],
            live=self.settings.live,
            size=self._size,
            keep_logits=speaking.shades,
        )
        try:
            with held(), last_words(lambda reason: rounds.generation.finish("failed")):
                for _ in rounds:
                    pass
        except KeyboardInterrupt:
            if not rounds.result.n_tokens:
                raise
        return rounds.result

    def _fitting(self, question: str) -> list[int]:
        """The tokens that ask `question`, if they leave room for an answer."""
        talk, n_ctx = self.conversation, self.n_ctx
        most = n_ctx - min(self.settings.predict or ROOM, ROOM, n_ctx // 4)

        def tokens(skip: int = 0) -> list[int]:
            history = self.encoding.history
            return self.encoding.encode(talk.messages(question, skip=skip, history=history))

        found = tokens()
        if not found:
            raise UsageError("the message is empty and the model has no token to begin a text with")
        if len(found) <= most:
            return found
        count = talk.to_drop(lambda skip: len(tokens(skip)) <= most)
        if count is None:
            raise UsageError(
                f"the message has {len(tokens(len(talk.turns)))} tokens, and the context of "
                f"{n_ctx} has room for {most}; shorten it, or start with a larger -c"
            )
        full = f"the context of {n_ctx} tokens is full (this message needs {len(found)})"
        if not self.source.interactive:
            raise UsageError(
                f"{full}; put /reset before it, or pass a larger -c; message: {begin(question)}"
            )
        if not self.source.agrees(f"{full}; drop {named(talk.turns[:count])}?"):
            raise UsageError("not sent: the context is full; /reset begins anew")
        talk.drop(count)
        return tokens()

    def n_used(self) -> int:
        """Tokens of the context that the conversation takes."""
        turns = self.conversation.turns
        if not turns:
            return 0
        before = Conversation(self.conversation.system, turns[:-1])
        asked = before.messages(turns[-1].question, history=self.encoding.history)
        answer = turns[-1].thought + turns[-1].answer
        tokenizer = self.session.pair.verifier.tokenizer
        written = tokenizer.encode(answer, add_special=False, parse_special=True)
        return len(self.encoding.encode(asked)) + len(written)

    def saved(self) -> SavedChat:
        """The chat, to be written to a file."""
        return SavedChat(
            conversation=self.conversation,
            settings=self.settings.record(),
            seed=self.settings.seed,
            model=self.model,
        )

    def restore(self, saved: SavedChat, path: Path, *, keep: bool = False) -> None:
        """Continue a saved chat, under its settings; `keep` those that the command line names."""
        if saved.conversation.system is not None and self.encoding.raw:
            raise UsageError(
                f"{path} has a system message, which needs a chat template; load it with a model "
                "that has one"
            )
        self.settings.restore(saved, path, keep=keep)
        self.conversation, self.file = saved.conversation, path
        n_turns = len(saved.conversation.turns)
        self.note(f"loaded {path}: {turns_of(n_turns)}")
        if saved.model.differs(self.model):
            self.note(f"{path} was written with {saved.model.name}; this is {self.model.name}")


def turns_of(count: int) -> str:
    """``1 turn``, ``2 turns``."""
    return f"{count} turn{'' if count == 1 else 's'}"


def named(oldest: Sequence[Turn]) -> str:
    """The oldest turns, and the beginnings of the first three questions."""
    shown = ", ".join(begin(turn.question) for turn in oldest[:3])
    more = f" and {len(oldest) - 3} more" if len(oldest) > 3 else ""
    which = "the oldest turn" if len(oldest) == 1 else f"the {len(oldest)} oldest turns"
    return f"{which} ({shown}{more})"


def begin(text: str) -> str:
    """The beginning of a message, in quotes."""
    words = " ".join(text.split())
    return f"'{words[:SHOWN]}...'" if len(words) > SHOWN else f"'{words}'"
