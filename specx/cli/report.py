"""`specx report`: traces as an HTML page, or as numbers on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from specx.cli.files import Command, InputFile, OutputPath
from specx.cli.show import footer
from specx.cli.tables import print_results, print_rows
from specx.output import OutputFile
from specx.records.trace import Trace, read_traces
from specx.report import (
    INSTALL,
    MOST_TEXTS,
    can_plot,
    generation_rows,
    page,
    position_rows,
    settings_of,
    sweeps_of,
    title_of,
)
from specx.report.figures import length_rows
from specx.session.text import visible

__all__ = ["report"]


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=InputFile(), metavar="TRACE...")
@click.option(
    "-o",
    "--output",
    type=OutputPath("report"),
    help="Write an HTML page (one file, no network needed) instead of printing the numbers.",
)
def report(files: Sequence[Path], output: Path | None) -> int:
    """Show the contents of traces: TRACE files are written by `specx run` and `specx bench`
    with --trace.
    """
    target = None if output is None else OutputFile(output)
    traces = [trace for file in files for trace in read_traces(file)]
    if target is None:
        _print(traces)
        return 0
    target.write(page(traces))
    if not can_plot():
        click.echo(f"specx: the page has no plots; for plots, {INSTALL}", err=True)
    click.echo(f"written to {output}", err=True)
    return 0


def _print(traces: Sequence[Trace]) -> None:
    """Print sweeps, then generations: a footer each, or a line each if there are many."""
    for bench in sweeps_of(traces):
        print_results({**asdict(bench), "provenance": {}})
    if len(traces) > MOST_TEXTS:
        _print_lines(generation_rows(traces))
    else:
        _print_footers(traces)


def _print_lines(rows: Sequence[Sequence[str]]) -> None:
    """All columns of `rows`, in tables narrow enough for a terminal."""
    apart = ("expected", "time", "")
    parts: dict[str, list[int]] = {}
    for column, name in list(enumerate(rows[0]))[1:]:
        first = next(start for start in apart if name.startswith(start))
        parts.setdefault(first, []).append(column)
    for columns in parts.values():
        print_rows([[row[0], *(row[column] for column in columns)] for row in rows])


def _print_footers(traces: Iterable[Trace]) -> None:
    for trace in traces:
        tally = trace.tally()
        click.echo(f"{trace.path}: {visible(title_of(trace))}")
        for line in footer(trace.result(), settings_of(trace)):
            click.echo(visible(line))
        click.echo()
        if tally.by_position:
            print_rows(
                [["position", "tested", "accepted", "rate"], *map(list, position_rows(tally))]
            )
            print_rows([["accepted", "rounds", "share"], *map(list, length_rows(tally))])
