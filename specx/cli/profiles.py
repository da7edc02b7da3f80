"""`specx profiles`: the costs that `specx tune` saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specx.cli.files import Command
from specx.cli.tables import print_rows
from specx.codec import to_json
from specx.errors import UsageError
from specx.runtime.folders import cache_folder
from specx.runtime.identity import identity
from specx.schedule.costs.saved import ModelUsed, SavedCosts, read_saved, saved_files
from specx.session.text import visible

__all__ = ["profiles"]

ALL = "all"


@click.command(cls=Command)
@click.option(
    "--remove", metavar="ID|all", help="Remove the profile whose ID begins so, or all of them."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
def profiles(remove: str | None, as_json: bool) -> int:
    """List or remove the costs that specx tune saved."""
    if remove is not None:
        return _remove(remove)
    read = {path.stem: _read(path) for path in saved_files()}
    if as_json:
        click.echo(to_json({"profiles": [_record(*each) for each in read.items()]}))
        return 0
    if not read:
        click.echo(f"no profiles in {cache_folder() / 'profiles'}; specx tune makes them")
        return 0
    head = ["id", "verifier", "drafter", "backend", "threads", "contexts", "measured", "state"]
    print_rows([head, *(_row(name, found) for name, found in read.items())])
    for name, found in read.items():
        if isinstance(found, SavedCosts) and found.advice:
            click.echo(f"{name}: {visible(found.advice)}")
    return 0


def _remove(wanted: str) -> int:
    found = [path for path in saved_files() if wanted == ALL or path.stem.startswith(wanted or " ")]
    if wanted != ALL and len(found) != 1:
        shown = ", ".join(path.stem for path in found or saved_files()) or "none"
        raise UsageError(
            f"--remove {wanted!a} names {len(found)} profiles; choose one of: {shown}, or {ALL}"
        )
    for path in found:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"cannot remove {path}: {error.strerror}") from error
    click.echo(f"removed {len(found)}", err=True)
    return 0


def _read(path: Path) -> SavedCosts | str:
    """The costs, or what is wrong with the file."""
    try:
        return read_saved(path)
    except UsageError as error:
        return str(error)


def _state(found: SavedCosts) -> str:
    for used in (found.verifier, found.drafter):
        if used is None:
            continue
        now = identity(Path(used.file))
        if now is None:
            return f"{used.name} is no longer there"
        if now != used.identity:
            return f"{used.name} was replaced"
    return "good"


def _row(name: str, found: SavedCosts | str) -> list[str]:
    if isinstance(found, str):
        return [name, *["?"] * 6, f"ignored: {found}"]
    both = [used for used in (found.verifier, found.drafter) if used is not None]
    return [
        name,
        found.verifier.name,
        "-" if found.drafter is None else found.drafter.name,
        "+".join(dict.fromkeys(used.backend for used in both)),
        ", ".join(dict.fromkeys(_threads(used) for used in both)),
        ", ".join(str(each.verifier.n_past) for each in found.profiles),
        found.made[:10],
        _state(found),
    ]


def _threads(used: ModelUsed) -> str:
    return "-" if used.threads is None else str(used.threads)


def _record(name: str, found: SavedCosts | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"id": name, "state": f"ignored: {found}"}
    return {
        "id": name,
        "verifier": found.verifier.file,
        "drafter": found.drafter and found.drafter.file,
        "backend": found.verifier.backend,
        "devices": found.verifier.devices,
        "threads": found.verifier.threads,
        "contexts": [each.verifier.n_past for each in found.profiles],
        "measured": found.made,
        "advice": found.advice,
        "state": _state(found),
    }
