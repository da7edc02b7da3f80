"""`specx chat`: a conversation in the terminal, or line by line through a pipe."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from specx import Pair, Session, interrupts
from specx.cli.chat_commands import run_command
from specx.cli.chat_input import open_input
from specx.cli.chat_settings import ChosenSettings
from specx.cli.chat_talk import Chat, ChatOptions
from specx.cli.drafting import DRAWING, GAMMA, check_profile
from specx.cli.files import Command, InputFile
from specx.cli.generating import (
    MARKS,
    NO_DRAFT,
    RULE,
    VERBOSE,
    loading_of,
    refuse_template_options,
    seed_option,
    sides_of,
    stop_option,
)
from specx.cli.load import load_pair
from specx.cli.options import (
    MODELS,
    SAMPLING,
    TEMPLATE,
    add_options,
    chat_options,
    pick,
    runtime_options,
)
from specx.cli.progress import Progress
from specx.cli.streams import say
from specx.errors import SpecxError
from specx.records.chat import read_chat
from specx.runtime.prefill import PREFILL_SLICE
from specx.schedule import Costs
from specx.schedule.costs.curve import read_profile
from specx.session.conversation import Encoding

__all__ = ["chat", "costs_of"]

CONTEXT = 8192
"""Positions by default: the cache is reserved for all of them, and grows to gigabytes with them."""

EPILOG = """\b
Enter sends the message. Alt-Enter, or a backslash before Enter, begins a new line; pasted text
stays one message. Ctrl-C ends the answer, and Ctrl-D the chat. /help lists the commands.
Piped input is read line by line, each line a message or a command; the first error ends it with
exit code 2. Answers go to standard output, everything else to standard error.
The first answer uses the seed itself, as specx run does, each further one the next number.
A model without a chat template, or --raw, continues one plain text: each message begins a line.
An option with the suffix d (-ngld, -cd) applies only to the drafter."""

PROMPT = [
    click.option("-sys", "--system-prompt", help="System message for the chat template."),
    click.option(
        "--load",
        "loaded",
        type=InputFile(),
        metavar="FILE",
        help="Continue a chat that /save wrote.",
    ),
    *TEMPLATE,
]

GENERATION = [
    click.option(
        "-n",
        "--predict",
        "--max-tokens",
        type=click.IntRange(min=1),
        help="Maximum number of tokens per answer.  [default: until the end token or a full "
        "context]",
    ),
    RULE,
    *SAMPLING,
    seed_option(
        "with the same settings and messages, it reproduces a chat.  [default: drawn, "
        "and shown by /stats]"
    ),
    stop_option("answer"),
    NO_DRAFT,
]

OUTPUT = [
    *MARKS,
    click.option("-q", "--quiet", is_flag=True, help="No greeting, no progress, no figures."),
    VERBOSE,
]


@click.command(cls=Command, epilog=EPILOG)
@add_options(
    [
        *MODELS,
        *PROMPT,
        *GENERATION,
        *GAMMA,
        *DRAWING,
        *runtime_options(f"{CONTEXT}, or the trained size if that is smaller"),
        *OUTPUT,
    ]
)
@click.pass_context
def chat(context: click.Context, /, **given: Any) -> int:
    """Talk with a model; a drafter makes the answers come faster."""
    options, settings = pick(ChatOptions, given), ChosenSettings(context, given)
    settings.of(0)  # refuses values that make no sense
    saved = None if options.loaded is None else read_chat(options.loaded)
    loading = loading_of(given, settings.drafting)
    sides, template = sides_of(loading), chat_options(given)
    source = open_input()
    progress = Progress(enabled=not options.quiet)
    with ExitStack() as stack:
        pair = stack.enter_context(
            load_pair(
                sides,
                lambda tokenizer: CONTEXT,
                verbose=options.verbose,
                cached=True,
                progress=progress,
            )
        )
        encoding = Encoding(pair.verifier.tokenizer, template, raw=options.raw)
        if encoding.raw:
            day = options.template_date
            refuse_template_options(options.system_prompt, template, day, raw=options.raw)
        costs = costs_of(pair, options.profile, live=settings.live)
        session = stack.enter_context(Session(pair, costs=costs))
        size = loading["n_batch"] or PREFILL_SLICE
        running = Chat(options, settings, session, encoding, source, progress, size)
        if saved is not None:
            running.restore(saved, Path(str(options.loaded)), keep=True)
        if options.system_prompt is not None:
            running.conversation.system = options.system_prompt
        running.greet()
        return _converse(running)


def costs_of(pair: Pair, profile: Path | None, *, live: bool) -> Costs | None:
    """The costs for auto of a given profile; None for those of the session itself."""
    if profile is None:
        return None
    return pair.costs(check_profile(read_profile(profile), profile, pair), live=live)


def _converse(chat: Chat) -> int:
    """Answer messages and obey commands until the end; return the exit code."""
    offered = ""
    while True:
        text = ""
        try:
            given = chat.source.read(offered)
            if given is None:
                return 0
            text, offered = given, ""
            if text.strip() and not _respond(chat, text):
                return 0
        except KeyboardInterrupt:
            if not _goes_on(chat):
                raise
            if not text:
                chat.note("/exit or Ctrl-D leaves the chat")
            offered = _unsent(text)
        except SpecxError as error:
            if not chat.source.interactive:
                raise
            say(str(error))
            offered = _unsent(text)
        if interrupts.received() and not _goes_on(chat):
            raise KeyboardInterrupt


def _goes_on(chat: Chat) -> bool:
    """True after a Ctrl-C of somebody who can type another message."""
    return chat.source.interactive and interrupts.resumed()


def _respond(chat: Chat, text: str) -> bool:
    """Answer a message or obey a command; False after ``/exit``."""
    if _is_command(text):
        return run_command(chat, text)
    chat.ask(text[1:] if text.startswith("//") else text)
    return True


def _unsent(text: str) -> str:
    """A message, to be offered again; a command is short, and in the history."""
    return "" if _is_command(text) else text


def _is_command(text: str) -> bool:
    """True for a command; a message that begins with a slash is typed with two."""
    return text.startswith("/") and not text.startswith("//")
