"""The tables of both measurements, from their records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from peers.page import RECORDS
from peers.record import Record, read
from servers.measuring import ALONE, AUTO, FIXED, FORM, ONE_CACHE, PARKED, THEIRS, best_gamma
from specx.bench.speedup import median_speedup
from specx.records.markdown import markdown_table

__all__ = ["alternate_table", "alternate_tables", "compare_table", "compare_tables"]

Row = list[str]
Turn = dict[str, Any]
Figure = Callable[[Turn], "float | None"]

OURS = lambda run: run["tok_s"]
WALL = lambda run: run["wall_tok_s"]
FIRST = lambda run: run["first_s"]


def alternate_table() -> str:
    """The record of clients that alternate."""
    return alternate_tables(read(RECORDS / "server-alternate.json", FORM))


def compare_table() -> str:
    """The records beside llama-server, by the verifier's quantisation."""
    paths = [RECORDS / f"server-{quantisation}.json" for quantisation in ("f16", "q4_k_m")]
    return "\n".join(compare_tables(read(path, FORM)) for path in paths if path.exists())


def alternate_tables(record: Record) -> str:
    """Per turn: tokens read and time to first token of each server."""
    turns = record.data["turns"]
    sides = [side for side in (PARKED, ONE_CACHE, THEIRS) if side in turns[0]["runs"]]
    header = ["turn", "prompt"]
    for side in sides:
        header += [f"read, {side}", "first token"]
    rows = [alternate_row(at, sides, turns) for at in range(record.data["settings"]["turns"])]
    later = {
        side: ratio([t for t in turns if t["turn"]], PARKED, side, FIRST) for side in sides[1:]
    }
    words = "; ".join(
        f"from the second turn on, time to first token of {PARKED} over {side}: {shown}"
        for side, shown in later.items()
    )
    return f"{heading(record)}\n{table(header, rows)}\n{words[:1].upper()}{words[1:]}.\n"


def alternate_row(at: int, sides: Sequence[str], turns: Sequence[Turn]) -> Row:
    """Medians over clients and repetitions."""
    runs = {side: [t["runs"][side] for t in turns if t["turn"] == at] for side in sides}
    row = [str(at + 1), f"{median(run['n_prompt'] for run in runs[sides[0]]):.0f}"]
    for side in sides:
        row.append(f"{median(run['n_prompt'] - run['n_cached'] for run in runs[side]):.0f}")
        row.append(f"{median(run['first_s'] for run in runs[side]):.2f} s")
    return row


def compare_tables(record: Record) -> str:
    """Ratios of neighbouring answers, and the figures of each server."""
    ratios = ["temperature", "server", "divided by", "tok/s, its own clock", "tok/s, ours"]
    ratios += ["time to first token, first turn", "later turns"]
    speeds = ["temperature", "server", "gamma", "tok/s, its own clock", "tok/s, ours"]
    speeds += ["first token, first turn", "later turns", "read, later turns", "drafts kept"]
    return "\n".join(
        [
            heading(record),
            table(ratios, ratio_rows(record)),
            table(speeds, speed_rows(record)),
        ]
    )


def heading(record: Record) -> str:
    """The measurement in a sentence."""
    settings = record.data["settings"]
    busy = median(turn["busy"] for turn in record.data["turns"])
    return (
        f"{settings['verifier']} with {settings['drafter']}, {settings['threads']} threads, "
        f"answers of at most {settings['n']} tokens, {settings['repetitions']} repetitions; other "
        f"programs took {busy:.0f}% of the machine.\n"
    )


def ratio_rows(record: Record) -> Iterator[Row]:
    """One row per temperature and pair of servers."""
    for temperature in record.data["settings"]["temperatures"]:
        turns = [t for t in record.data["turns"] if t["temperature"] == temperature]
        later = [turn for turn in turns if turn["turn"]]
        for side, other in ((AUTO, THEIRS), (FIXED, THEIRS), (AUTO, ALONE)):
            yield [
                f"{temperature:g}",
                side,
                other,
                ratio(turns, side, other, OURS),
                ratio(turns, side, other, WALL),
                ratio([turn for turn in turns if not turn["turn"]], side, other, FIRST),
                ratio(later, side, other, FIRST),
            ]


def ratio(turns: Sequence[Turn], side: str, other: str, figure: Figure) -> str:
    """The median over conversations of each one's median ratio."""
    ratios: dict[str, list[float]] = {}
    for turn in turns:
        one, two = (figure(turn["runs"][name]) for name in (side, other))
        if one and two:
            ratios.setdefault(turn["conversation"], []).append(one / two)
    return str(median_speedup(ratios) or "-")


def speed_rows(record: Record) -> Iterator[Row]:
    """One row per temperature and server."""
    for temperature in record.data["settings"]["temperatures"]:
        turns = [t for t in record.data["turns"] if t["temperature"] == temperature]
        for side in (AUTO, FIXED, THEIRS, ALONE):
            drafts = str(best_gamma(record, side, temperature)) if side in (FIXED, THEIRS) else ""
            first, later = (
                [t["runs"][side] for t in turns if bool(t["turn"]) is which]
                for which in (False, True)
            )
            runs = first + later
            drafted = sum(run["drafted"] for run in runs)
            kept = sum(run["accepted"] for run in runs) / drafted if drafted else None
            yield [
                f"{temperature:g}",
                side,
                drafts,
                f"{median(run['tok_s'] for run in runs):.2f}",
                f"{median(run['wall_tok_s'] for run in runs if run['wall_tok_s']):.2f}",
                f"{median(run['first_s'] for run in first):.2f} s",
                f"{median(run['first_s'] for run in later):.2f} s",
                f"{median(run['n_prompt'] - run['n_cached'] for run in later):.0f}",
                "" if kept is None else f"{kept:.2f}",
            ]


def table(header: Row, rows: Iterator[Row] | list[Row]) -> str:
    """The columns after the names are figures."""
    names = ("turn", "temperature", "server", "divided by")
    return markdown_table([header, *rows], figures=[cell for cell in header if cell not in names])
