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
from specx.cli.streams import is_terminal, printable, say
from specx.errors import SpecxError, UsageError
from specx.runtime.fatal import exit_code_when_dying

__all__ = ["cli", "exit_code_of", "interrupted", "main"]

COMMANDS = {
    "run": "Generate text with a verifier and, for speed, a drafter.",
    "chat": "Talk with a model; a drafter makes the answers come faster.",
    "serve": "Serve a model to editors, web interfaces and programs.",
    "check": "Say whether models work, and work together, without loading them.",
    "bench": "Measure the speed of a pair against its verifier alone.",
    "tune": "Measure what speculation gains with a pair, and say what to use.",
    "profiles": "List or remove the costs that specx tune saved.",
    "compare": "Separate the algorithm's effect from the runtime's: one pair on two systems.",
    "report": "Show the contents of traces.",
    "trim": "Make a drafter smaller, with fewer vocabulary entries.",
    "verify": "Prove the rules exact, and test a pair of models.",
    "models": "List the models that have a name, and which are on this machine.",
    "pull": "Download models, and print where they are.",
    "completion": "Print the script that completes specx in a SHELL.",
}
"""Commands by module, with the line of help that is shown without importing the module."""
CLOSED_PIPE, USAGE = 1, 2


class _Commands(click.Group):
    """A group that imports a command on use, so that the imports of `bench` do not slow `run`."""

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
    help="Show the versions of specx and of the packages behind its runtimes.",
)
@click.option(
    "--devices",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_devices,
    help="Load the runtimes; show their builds and the devices they see.",
)
def cli() -> None:
    """Speculative decoding that does not change the output.

    A small draft model proposes tokens, the verifier checks them in one pass, and the output
    follows the verifier's own distribution exactly.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad input, 130 interrupted."""
    sys.exit(exit_code_of(args))


def exit_code_of(args: Sequence[str] | None) -> int:
    """Run the command line, by default this process's arguments; report failures in one line."""
    warnings.showwarning = _show_warning
    try:
        with exit_code_when_dying(USAGE):
            return _run(args)
    except BaseException as error:
        interrupts.taken()
        return _code_of(error)


def interrupted() -> int:
    """Report that a signal ended the run; return the exit code."""
    if is_terminal(sys.stderr):
        click.echo(err=True)  # after the ^C that a terminal shows
    say(interrupts.message().removeprefix("specx: "))
    return interrupts.exit_code()


def _run(args: Sequence[str] | None) -> int:
    if "_SPECX_COMPLETE" in os.environ:
        cli.main(args, prog_name="specx")  # a shell asks for completions
    given = list(sys.argv[1:] if args is None else args)
    _require_text(given)
    # Not `cli.main`, which handles signals and closed pipes in its own way.
    with cli.make_context("specx", given) as context:
        code = cli.invoke(context)
    return code if isinstance(code, int) else 0


def _require_text(args: Sequence[str]) -> None:
    """Refuse text that no process argument or file name can hold, but a Python caller can pass."""
    for arg in args:
        try:
            possible = b"\0" not in os.fsencode(arg)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            raise UsageError(
                f"argument {arg!a:.80} contains a NUL or half a character; pass valid text"
            )


def _code_of(error: BaseException) -> int:
    """Report the error that ended a run in one line; return the exit code."""
    if interrupts.received() or isinstance(error, KeyboardInterrupt | click.Abort):
        return interrupted()  # interrupted code may have raised another error
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
        return CLOSED_PIPE  # the reader closed the pipe, as `head` does
    if isinstance(error, OSError):
        return say(f"cannot write the output: {error.strerror or error}")
    raise error


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"specx: warning: {printable(str(message))}", err=True)
