"""`specx completion`: completion of commands, options and names of models in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from specx.cli.files import Command
from specx.errors import UsageError

__all__ = ["completion"]

EPILOG = """\b
Install it, once:
  bash  specx completion bash > ~/.local/share/bash-completion/completions/specx
  zsh   specx completion zsh > ~/.zfunc/_specx       (a folder of $fpath, before compinit)
  fish  specx completion fish > ~/.config/fish/completions/specx.fish
"""


@click.command(cls=Command, epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes specx in a SHELL: bash, zsh or fish."""
    from specx.cli import cli

    complete = get_completion_class(shell)
    if complete is None:
        raise UsageError(f"click knows no completion for {shell}; give bash, zsh or fish")
    click.echo(complete(cli, {}, "specx", "_SPECX_COMPLETE").source())
