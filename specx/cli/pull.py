"""`specx pull`: downloads models."""

from __future__ import annotations

import click

from specx.cli.files import Command, HubModel
from specx.cli.progress import Progress
from specx.library.pull import pull_named
from specx.session.text import visible

__all__ = ["pull"]

EPILOG = """\b
Examples:
  specx pull qwen2.5-coder-1.5b
  specx pull qwen2.5-coder               both models of a pair
  specx pull hf:Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf
  specx pull hf:OWNER/NAME@REVISION:FILE.gguf

Files go where other tools of the hub keep theirs (HF_HOME, HF_HUB_CACHE), and what those have
downloaded is used. HF_HUB_OFFLINE=1 keeps the network off; HF_ENDPOINT names another hub.
"""


@click.command(cls=Command, epilog=EPILOG)
@click.argument("names", nargs=-1, required=True, type=HubModel(), metavar="NAME...")
@click.option(
    "--update",
    is_flag=True,
    help="Ask the hub for the newest file, even if another one was downloaded before.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def pull(names: tuple[str, ...], update: bool, quiet: bool) -> None:
    """Download models, and print where they are.

    NAME is one that specx models lists, or hf:OWNER/NAME:FILE.gguf. An interrupted download goes
    on from where it stopped. A model that is there is verified; one with a wrong checksum is never
    used. All files of a model in several files come along.
    """
    progress = Progress(enabled=not quiet)
    for name in names:
        for path in pull_named(name, update=update, task=progress.task):
            click.echo(visible(str(path)))
