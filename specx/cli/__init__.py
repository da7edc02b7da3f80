"""The command line: one file a command, each parses, calls and prints."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

import click

from specx.cli.about import print_version
from specx.errors import SpecxError
from specx.fatal import exit_code_when_dying

__all__ = ["cli", "main"]

COMMANDS = ("run", "bench", "compare", "report", "study", "verify")
"""Each in the file of its name."""
USAGE, INTERRUPTED = 2, 130


class _Commands(click.Group):
    """Imports a command when it is asked for: what `bench` needs must not slow `run` down."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"specx.cli.{cmd_name}"), cmd_name)
        return command


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
    help="Show the versions of specx and its runtimes, and the devices they see.",
)
def cli() -> None:
    """Speculative decoding that does not change the output.

    A small draft model proposes tokens, the verifier checks them in one pass, and what comes out
    follows the verifier's own distribution exactly.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad input, 130 interrupted."""
    warnings.showwarning = _show_warning
    sys.exit(_exit_code(args))


def _exit_code(args: Sequence[str] | None) -> int:
    try:
        with exit_code_when_dying(USAGE):
            code = cli.main(args, prog_name="specx", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return USAGE
    except click.ClickException as error:
        return _complain(error.format_message())
    except SpecxError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("specx: interrupted", err=True)
        return INTERRUPTED
    except OSError as error:
        return _complain(f"cannot write the output: {error.strerror or error}")
    return code if isinstance(code, int) else 0


def _complain(message: str) -> int:
    click.echo(f"specx: {' '.join(message.split())}", err=True)
    return USAGE


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"specx: warning: {message}", err=True)
