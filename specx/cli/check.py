"""`specx check`: says, from the files alone, whether models work, and work together."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from specx import __version__
from specx.check import Candidate, CheckRecord, LoadedRecord, check_models, with_loaded
from specx.check.render import report_lines, verdict_lines
from specx.cli.files import Command
from specx.cli.load import Side, load_pair, plan_sides, require_memory, with_demo_pair
from specx.cli.options import MODELS, RUNTIME, add_options
from specx.cli.progress import Progress
from specx.cli.streams import printable
from specx.errors import BackendError, SpecxError
from specx.runtime.backend import LoadOptions
from specx.runtime.inspection import Inspection
from specx.session.pair import Pair

__all__ = ["check"]

CANNOT = 1
"""A question that was answered with no, as in `specx verify`; 2 is for one that was put wrongly."""

EPILOG = """\b
The last lines are the verdict:
  good                         nothing stands in the way
  works with these limits:     it runs; each line says what to know
  cannot work because ...      run would refuse the models; exit code 1, otherwise 0
Tokens are compared by their bytes, control tokens by their names. Memory is compared with what is
available now. Special tokens and the template are the file's own text, shown escaped."""


@click.command(cls=Command, epilog=EPILOG)
@add_options(MODELS)
@click.option("--load", is_flag=True,
              help="Load the models too: adds how they rewind, and their devices.")  # fmt: skip
@add_options(RUNTIME)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict only.")
@click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log.")
def check(**given: Any) -> int:
    """Say whether models work, and work together, without loading them.

    Reads what the files say of themselves: kind of model, size, context, special tokens, chat
    template (rendered once), tokens that differ between drafter and verifier, and memory. Takes a
    second. Without -m, checks the demo pair.
    """
    given = with_demo_pair(given)
    sides = plan_sides(
        given["model"], given["model_draft"], given["backend"], given["draft_backend"], given
    )
    candidates = [
        Candidate(role=side.role, backend=side.factory.name, inspect=partial(_inspect, side))
        for side in sides
    ]
    record = check_models(candidates, __version__, partial(require_memory, sides))
    if given["load"] and record.verdict != "cannot":
        record = _load(record, sides, given)
    _print(record, given)
    return CANNOT if record.verdict == "cannot" else 0


def _inspect(side: Side) -> Inspection:
    inspect = getattr(side.factory, "inspect", None)
    if inspect is None:
        raise BackendError(
            f"backend '{side.factory.name}' cannot tell what a model's files say; try specx run"
        )
    options = LoadOptions(**side.options, drafts=side.role == "drafter")
    inspection: Inspection = inspect(side.model, options)
    return inspection


def _load(record: CheckRecord, sides: list[Side], given: dict[str, Any]) -> CheckRecord:
    progress = Progress(enabled=not given["quiet"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the record holds what they would say
        try:
            with load_pair(
                sides, lambda _: 0, verbose=given["verbose"], cached=True, progress=progress
            ) as pair:
                return with_loaded(record, _loaded(pair))
        except SpecxError as error:
            return with_loaded(record, [], str(error))


def _loaded(pair: Pair) -> list[LoadedRecord]:
    found = []
    for role, model in zip(("verifier", "drafter"), pair.models, strict=False):
        about: dict[str, Any] = model.describe()
        devices, layers = about.get("devices"), about.get("n_gpu_layers")
        found.append(
            LoadedRecord(
                role=role,
                rollback=model.rollback,
                devices=[str(name) for name in devices or []],
                n_gpu_layers=layers,
            )
        )
    return found


def _print(record: CheckRecord, given: dict[str, Any]) -> None:
    if given["as_json"]:
        click.echo(json.dumps(asdict(record), allow_nan=False))  # ASCII, so safe on a terminal
        return
    for line in () if given["quiet"] else report_lines(record):
        click.echo(printable(line) if line.startswith(" ") else _bold(line))
    verdict, *limits = verdict_lines(record)
    click.echo(_bold(verdict))
    for limit in limits:
        click.echo(printable(limit))


def _bold(line: str) -> str:
    return click.style(printable(line), bold=True)
