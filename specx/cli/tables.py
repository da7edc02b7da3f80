"""Benchmark results on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from specx.bench.render import kind_rows, label_of, speed_rows, time_rows
from specx.session.text import visible

__all__ = ["WIDE", "print_comparison", "print_results", "print_rows"]

WIDE = 160
"""Columns if the output is not a terminal, so that nothing is cut."""


def print_results(record: Mapping[str, Any]) -> None:
    """Print the tables; warnings go to standard error."""
    arms = [arm for arm in record["arms"] if arm["n_runs"]]
    for rows in filter(None, (speed_rows(arms), time_rows(arms), kind_rows(arms))):
        print_rows(rows)
    if not record["complete"]:
        done = sorted({arm["n_runs"] for arm in record["arms"]}) or [0]
        counts = " to ".join(map(str, dict.fromkeys([done[0], done[-1]])))
        click.echo(f"incomplete: {counts} of {record['planned']} runs of each arm\n")
    if peak := record["provenance"].get("peak_memory_mib"):
        click.echo(f"peak memory: {peak:,} MiB, model files included\n")
    for warning in record["warnings"]:
        text, remedy = visible(warning["text"]), visible(warning["remedy"])
        click.echo(f"warning: {text}\n  remedy: {remedy}", err=True)


def print_comparison(records: Mapping[str, Mapping[str, Any]]) -> None:
    """Print tokens per second of the arms that all files share."""
    tables = [{_key(arm): arm for arm in record["arms"]} for record in records.values()]
    first, *others = tables
    shared = [key for key in first if all(key in other for other in others)]
    if not shared:
        click.echo("these files have no arm in common")
        return
    arms = [first[key] for key in shared]
    rows = [["arm", *(f"{file} tok/s" for file in records), "last / first"]]
    for key, arm in zip(shared, arms, strict=True):
        rates = [table[key]["tok_s"] or 0.0 for table in tables]
        ratio = f"{rates[-1] / rates[0]:.2f}x" if rates[0] else ""
        rows.append([label_of(arm, arms), *(f"{rate:.2f}" for rate in rates), ratio])
    print_rows(rows)
    click.echo("The files were not measured in turns: ratios also reflect the machine's load.")


def _key(arm: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(arm["settings"].items()))


def print_rows(rows: list[list[str]]) -> None:
    """Print a table: a header and its rows."""
    rows = [[visible(cell) for cell in row] for row in rows]  # a record may hold any kind of prompt
    console = Console(highlight=False, markup=False)  # a file's name may hold brackets
    if not console.is_terminal:
        console.width = WIDE
    wide = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2
    console.print(_table(rows, gap=2 if wide <= console.width else 1))
    console.print()


def _table(rows: list[list[str]], gap: int) -> Table:
    (label, *names), *body = rows
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    table.add_column(label, justify="left", overflow="fold")
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for row in body:
        table.add_row(*row)
    return table
