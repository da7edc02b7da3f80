"""The command line: one file per command; each parses, calls and prints."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

import click

from specx import interrupts
from specx.cli.about import print_devices, print_version
from specx.cli.streams import is_terminal, say
from specx.errors import SpecxError, UsageError
from specx.runtime.fatal import exit_code_when_dying

__all__ = ["cli", "exit_code_of", "interrupted", "main"]

COMMANDS = {
    "run": "Write a text with a verifier and, for speed, a drafter.",
    "bench": "Measure the speed of a pair against its verifier alone.",
    "compare": "Tell the algorithm from the runtime: one pair on two systems.",
    "report": "Show what traces hold.",
    "verify": "Prove the rules exact, and test a pair of models.",
}
"""Each in the file of its name, and what the list of commands says of it without importing it."""
CLOSED_PIPE, USAGE = 1, 2


class _Commands(click.Group):
    """Imports a command when it is asked for: what `bench` needs must not slow `run` down."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"specx.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the versions of specx and of what its runtimes are made of.",
)
@click.option(
    "--devices",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_devices,
    help="Load the runtimes, and show how they were built and the devices they see.",
)
def cli() -> None:
    """Speculative decoding that does not change the output.

    A small draft model proposes tokens, the verifier checks them in one pass, and what comes out
    follows the verifier's own distribution exactly.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad input, 130 interrupted."""
    sys.exit(exit_code_of(args))


def exit_code_of(args: Sequence[str] | None) -> int:
    """Run the command line, by default this process's; failures are told in one line."""
    warnings.showwarning = _show_warning
    try:
        with exit_code_when_dying(USAGE):
            return _run(args)
    except BaseException as error:
        interrupts.taken()
        return _code_of(error)


def interrupted() -> int:
    """Say that a signal ended the run; the exit code."""
    if is_terminal(sys.stderr):
        click.echo(err=True)  # after the ^C that a terminal shows
    say(interrupts.message().removeprefix("specx: "))
    return interrupts.exit_code()


def _run(args: Sequence[str] | None) -> int:
    if "_SPECX_COMPLETE" in os.environ:
        cli.main(args, prog_name="specx")  # a shell asks for completions
    given = list(sys.argv[1:] if args is None else args)
    _require_text(given)
    # Not `cli.main`, which has its own ways with signals and closed pipes.
    with cli.make_context("specx", given) as context:
        code = cli.invoke(context)
    return code if isinstance(code, int) else 0


def _require_text(args: Sequence[str]) -> None:
    """Refuse what no process can be given, and no file be named: a caller within Python may."""
    for arg in args:
        try:
            possible = b"\0" not in os.fsencode(arg)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            raise UsageError(
                f"argument {arg!a:.80} holds a NUL or half a character; write it whole"
            )


def _code_of(error: BaseException) -> int:
    """The exit code for what ended a run, which is told in one line."""
    if interrupts.received() or isinstance(error, KeyboardInterrupt | click.Abort):
        return interrupted()  # whatever an interrupt was turned into by what it met
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message())
        return USAGE
    if isinstance(error, click.ClickException):
        return say(error.format_message())
    if isinstance(error, SpecxError):
        return say(str(error))
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE  # whoever read the output has seen enough
    if isinstance(error, OSError):
        return say(f"cannot write the output: {error.strerror or error}")
    raise error


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"specx: warning: {message}", err=True)
