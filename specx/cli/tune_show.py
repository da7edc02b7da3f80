"""What `specx tune` found, as tables, heat map, words and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specx.cli.tables import WIDE
from specx.schedule.costs.saved import SavedCosts
from specx.session.text import visible
from specx.tune.recommend import Candidate, by_kind, ranked, recommend, uncertainty
from specx.tune.surface import WORTH, Surface
from specx.tune.whatif import WhatIf

__all__ = ["Found", "as_record", "print_found", "print_what_if", "what_if_record"]

HEAT = [
    (0.7, "black on color(203)"),
    (0.9, "black on color(216)"),
    (0.98, "black on color(223)"),
    (1.05, ""),
    (1.2, "black on color(194)"),
    (1.5, "black on color(157)"),
    (float("inf"), "black on color(77)"),
]
"""Styles of speed-ups below each bound; the number itself is always there."""


@dataclass(frozen=True)
class Found:
    """What was found with one number of threads."""

    threads: int | None
    candidates: list[Candidate]
    saved: list[SavedCosts]

    @property
    def plain_tok_s(self) -> float:
        """Tokens per second of plain decoding."""
        first = self.candidates[0]
        return 1 / (first.profile.verifier(1) + first.overheads.core + first.overheads.other)

    @property
    def best(self) -> Candidate:
        """The fastest way to draft."""
        return ranked(self.candidates)[0]

    @property
    def tok_s(self) -> float:
        """Tokens per second with what is recommended."""
        return self.plain_tok_s * (self.best.speedup if self.best.pays else 1.0)


def print_found(founds: Sequence[Found], about: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Print tables, recommendation and notes."""
    console = _console()
    for found in founds:
        threads = "" if found.threads is None else f" with {_threads(found.threads)}"
        console.print(
            f"{visible(about['verifier'])}{threads}: {found.plain_tok_s:.1f} tok/s alone\n"
        )
        for candidate in found.candidates:
            surface = candidate.surface
            columns = {**surface.speedups, "all": surface.overall}
            _print_surface(console, visible(candidate.name), surface, columns)
    best = max(founds, key=lambda found: found.tok_s)
    if len(founds) > 1:
        for found in founds:
            console.print(
                f"{_threads(found.threads)}: {found.plain_tok_s:.1f} tok/s alone, "
                f"{found.tok_s:.1f} as recommended"
            )
        console.print(f"-t {best.threads} is the fastest.\n")
    for line in recommend(best.candidates):
        console.print(visible(line), soft_wrap=True)
    ids = [saved.id for found in founds for saved in found.saved]
    if ids:
        console.print(
            f"Costs saved for --gamma auto (specx profiles): {', '.join(dict.fromkeys(ids))}",
            soft_wrap=True,
        )
    for note in [*_doubts(founds), *notes]:
        click.echo(f"specx: {visible(note)}", err=True)


def _threads(count: int | None) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def _doubts(founds: Sequence[Found]) -> list[str]:
    best = max(founds, key=lambda found: found.tok_s).best
    return uncertainty(best)


def as_record(
    founds: Sequence[Found], about: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """The JSON object of ``--json``."""
    best = max(founds, key=lambda found: found.tok_s)
    return {
        "specx_tune": 1,
        **about,
        "threads": [
            {
                "threads": found.threads,
                "plain_tok_s": found.plain_tok_s,
                "tok_s": found.tok_s,
                "candidates": [_candidate(each) for each in ranked(found.candidates)],
            }
            for found in founds
        ],
        "recommended": {
            "threads": best.threads,
            "drafter": best.best.name if best.best.pays else None,
            "gamma": best.best.gamma if best.best.pays else 0,
            "speedup": best.best.speedup if best.best.pays else 1.0,
        },
        "words": recommend(best.candidates),
        "profiles": list(dict.fromkeys(s.id for found in founds for s in found.saved)),
        "warnings": [*_doubts(founds), *notes],
    }


def _candidate(each: Candidate) -> dict[str, Any]:
    curves = each.profile.curves().items()
    return {
        "name": each.name,
        "gamma": each.gamma,
        "speedup": each.speedup,
        "pays": each.pays,
        **_surface(each.surface),
        "costs": {
            role: {str(w): s for w, s in zip(curve.widths, curve.seconds, strict=True)}
            for role, curve in curves
        },
        "n_past": each.profile.verifier.n_past,
    }


def _surface(surface: Surface) -> dict[str, Any]:
    return {
        "gammas": surface.gammas,
        "speedups": surface.speedups,
        "overall": surface.overall,
        "pays_from": surface.needed,
        "acceptance": surface.rates,
    }


def print_what_if(asked: WhatIf) -> None:
    """Print assumptions, table and recommendation."""
    console = _console()
    for line in asked.assumptions():
        console.print(visible(line), soft_wrap=True)
    console.print()
    surface = asked.surface()
    _print_surface(console, "speed-up", surface, dict(surface.speedups))
    for line in by_kind(surface):
        console.print(visible(line), soft_wrap=True)


def what_if_record(asked: WhatIf) -> dict[str, Any]:
    """The JSON object of ``--what-if --json``."""
    surface = asked.surface()
    return {
        "specx_what_if": 1,
        "draft": asked.draft,
        "verify_curve": {str(width): cost for width, cost in asked.verify.items()},
        "alpha": asked.alphas,
        "assumptions": asked.assumptions(),
        **_surface(surface),
        "words": by_kind(surface),
    }


def _console() -> Console:
    console = Console(highlight=False, markup=False)  # a file's name may hold brackets
    if not console.is_terminal:
        console.width = WIDE
    return console


def _print_surface(
    console: Console, title: str, surface: Surface, columns: Mapping[str, Sequence[float]]
) -> None:
    """Print a heat map: a row per gamma, and `columns` of speed-ups."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("gamma", *map(visible, columns), "pays from"):
        table.add_column(name, justify="right")
    for place, gamma in enumerate(surface.gammas):
        needed = surface.needed[place]
        cells = [_cell(row, place) for row in columns.values()]
        table.add_row(str(gamma), *cells, "never" if needed is None else f"{needed:.2f}")
    console.print(title, soft_wrap=True)
    console.print(table)
    console.print()


def _cell(row: Sequence[float], place: int) -> Text:
    speedup = row[place]
    best = speedup == max(row) and speedup >= WORTH
    style = next(style for bound, style in HEAT if speedup < bound)
    return Text(f"{'*' * best}{speedup:.2f}", style=f"bold {style}" if best else style)
