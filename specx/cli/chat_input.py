"""Where the messages of a chat come from: a terminal with line editing, or lines that are piped."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import click

from specx.cli.prompt import MOST_BYTES, text_of
from specx.cli.streams import is_terminal
from specx.errors import UsageError

__all__ = ["Input", "Lines", "Terminal", "open_input"]

PROMPT, CONTINUED = "> ", "  "


class Input(Protocol):
    """A source of messages."""

    interactive: bool
    """True if a person can answer questions and correct mistakes."""

    def read(self, offered: str = "") -> str | None:
        """The next message, None at the end; where it can be edited it begins as `offered`.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C.
        """

    def agrees(self, question: str) -> bool:
        """True if the person answers yes."""


def open_input() -> Input:
    """The editor where input and output are terminals; otherwise lines."""
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        return Terminal()
    if sys.stdin is None:
        raise UsageError("there is no standard input; use a terminal, or pipe messages in")
    return Lines()


class Terminal:
    """Line editing by prompt_toolkit. Its history ends with the chat: a chat may be private."""

    interactive = True

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession  # slow to import, and only a terminal needs it

        self._messages: Any = PromptSession(
            PROMPT, multiline=True, prompt_continuation=CONTINUED, key_bindings=_keys()
        )
        self._questions: Any = PromptSession()

    def read(self, offered: str = "") -> str | None:
        try:
            # The signals are handled in specx.interrupts; Ctrl-C is a key here.
            text: str = self._messages.prompt(default=offered, handle_sigint=False)
        except EOFError:
            return None
        return text

    def agrees(self, question: str) -> bool:
        try:
            answer: str = self._questions.prompt(f"{question} [y/N] ", handle_sigint=False)
        except EOFError:
            return False
        return _is_yes(answer)


def _keys() -> Any:
    """Enter sends; Alt-Enter, or a backslash before Enter, begins a new line."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if not buffer.text:
            event.app.exit(exception=KeyboardInterrupt)
        buffer.append_to_history()
        buffer.reset()

    return keys


class Lines:
    """One message per line. A person at a terminal, with the answers going elsewhere, is prompted
    on standard error.
    """

    def __init__(self) -> None:
        self.interactive = is_terminal(sys.stdin)
        self._number = 0

    def read(self, offered: str = "") -> str | None:
        if self.interactive:
            click.echo(PROMPT, nl=False, err=True)
        self._number += 1
        data = sys.stdin.buffer.readline(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(
                f"line {self._number} has more than {MOST_BYTES:,} bytes, the limit of a message; "
                "shorten it"
            )
        if not data:
            return None
        return text_of(data, f"line {self._number} of standard input").removesuffix("\n")

    def agrees(self, question: str) -> bool:
        click.echo(f"{question} [y/N] ", nl=False, err=True)
        return _is_yes(sys.stdin.readline())


def _is_yes(answer: str) -> bool:
    return answer.strip().lower() in ("y", "yes")
