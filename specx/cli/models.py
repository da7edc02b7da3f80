"""`specx models`: what models are known by name, and what is on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from specx.cli.files import Command
from specx.cli.tables import print_rows
from specx.library.names import find
from specx.library.registry import alias_file, aliases, registry
from specx.library.scan import Found, scan
from specx.runtime.memory import gigabytes
from specx.runtime.shards import shards_of
from specx.session.text import visible

__all__ = ["models"]

EPILOG = """\b
Your own names go into aliases.toml in the folder for configuration, one per line:
  coder = "~/models/my-coder.gguf"
  small = "hf:Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf"
  both  = { model = "qwen3-4b", draft = "qwen3-0.6b" }
"""


@click.command(cls=Command, epilog=EPILOG)
@click.option(
    "--scan",
    "scans",
    is_flag=True,
    help="List the GGUF files of LM Studio, Ollama, llama.cpp and the hub's cache instead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
def models(scans: bool, as_json: bool) -> None:
    """List the models that have a name, and which are on this machine.

    A name goes wherever a model does: specx run -m NAME. specx pull NAME downloads it.
    """
    if scans:
        found = scan()
        _print_json({"found": [asdict(model) for model in found]}) if as_json else _show(found)
        return
    known, pairs, own = _models(), _pairs(), _aliases()
    if as_json:
        _print_json({"models": known, "pairs": pairs, "aliases": own})
        return
    header = ["name", "size", "licence", "drafters that fit", "on this machine"]
    print_rows([header, *map(_row, known)])
    header = ["pair", "verifier", "drafter"]
    print_rows([header, *([pair["name"], pair["model"], pair["draft"]] for pair in pairs)])
    if own:
        rows = [[alias["name"], " + ".join(alias["files"])] for alias in own]
        print_rows([["alias", "stands for"], *rows])
    click.echo(f"Your own names: {visible(str(alias_file()))}")


def _models() -> list[dict[str, Any]]:
    listed = []
    for name, model in registry().models.items():
        path = model.hub_file.model
        size = model.bytes if path is None else sum(s.stat().st_size for s in shards_of(path))
        listed.append(
            {
                "name": name,
                "hub": str(model.hub_file),
                "bytes": size,
                "sha256": model.sha256,
                "licence": model.licence,
                "drafts": list(model.drafts),
                "path": path and str(path),
            }
        )
    return listed


def _pairs() -> list[dict[str, str]]:
    pairs = registry().pairs.items()
    return [{"name": name, "model": pair.model, "draft": pair.draft} for name, pair in pairs]


def _aliases() -> list[dict[str, Any]]:
    return [
        {"name": name, "files": [str(known.place) for known in find(name)]} for name in aliases()
    ]


def _row(model: dict[str, Any]) -> list[str]:
    size = gigabytes(model["bytes"]) if model["bytes"] else "?"
    here = "yes" if model["path"] else ""
    return [model["name"], size, model["licence"], ", ".join(model["drafts"]), here]


def _show(found: list[Found]) -> None:
    if not found:
        click.echo("no GGUF files in the folders of LM Studio, Ollama, llama.cpp and the hub")
        return
    rows = [[model.program, model.name, gigabytes(model.bytes), str(model.path)] for model in found]
    rows = [[" ".join(cell.split("\n")) for cell in row] for row in rows]  # files may be so named
    print_rows([["program", "model", "size", "file, for -m"], *rows])


def _print_json(value: Any) -> None:
    """Print JSON in ASCII: a file's name may hold bytes that are no text, or control a terminal."""
    click.echo(json.dumps(value, default=str))
