"""Tables of a comparison, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specx.bench.render import Rows, interval_name, interval_of
from specx.codec import to_json
from specx.records.markdown import markdown_table
from specx.schedule.costs.curve import Curve, profile_from

__all__ = ["FORMATS", "as_markdown", "headings", "tables"]

Record = Mapping[str, Any]

TERMS = {
    "algorithm": "algorithm: acceptance",
    "runtime": "runtime: cost",
    "rest": "measured over predicted",
    "total": "speed-up of A over that of B",
}


def tables(record: Record) -> dict[str, Rows]:
    """A header and its rows, by heading."""
    return {
        "Speed": _speeds(record),
        "Agreement along A's plain text": _agreements(record),
        "Acceptance": _acceptances(record),
        "Cost of a pass of k tokens, in passes of one": _costs(record),
        "A round, in tokens of plain decoding": _rounds(record),
        "Where the difference comes from": _split(record),
    }


def headings(record: Record) -> str:
    """The names of the sides."""
    sides = record["sides"]
    return f"A is {sides['a']['name']}, B is {sides['b']['name']}; gamma {record['gamma']}"


def _sides(record: Record) -> Iterator[tuple[str, Record]]:
    for key, side in record["sides"].items():
        yield f"{key.upper()} {side['name']}", side


def _speeds(record: Record) -> Rows:
    interval = interval_name([side["speculative"] for _, side in _sides(record)])
    header = ["side", "alone tok/s", "speculative tok/s", "speed-up", interval, "predicted"]
    rows = [
        [
            label,
            f"{side['plain']['tok_s']:.2f}",
            f"{side['speculative']['tok_s']:.2f}",
            f"{side['speculative']['speedup']:.2f}x",
            interval_of(side["speculative"], interval),
            f"{record['split']['predicted'][label[0].lower()]:.2f}x",
        ]
        for label, side in _sides(record)
    ]
    return [header, *rows]


def _agreements(record: Record) -> Rows:
    header = ["models", "positions", "same first choice", "total variation", "KL(A||B) nats"]
    rows: Rows = []
    for role, found in record["agreement"].items():
        if found is None:
            rows.append([f"{role}s", "the same loaded model", "", "", ""])
            continue
        for part in found["bins"]:
            rows.append([f"{role}s", f"{part['first']} to {part['last']}", *_means(part)])
        rows.append([f"{role}s", "all", *_means(found["mean"])])
    return [header, *rows]


def _means(part: Record) -> list[str]:
    kl = "" if part["kl"] is None else f"{part['kl']:.2g}"
    infinite = f" (and {part['kl_infinite']} infinite)" if part["kl_infinite"] else ""
    if part["top1"] is None:
        return ["", "", ""]
    return [f"{part['top1']:.1%}", f"{part['total_variation']:.2g}", f"{kl}{infinite}".strip()]


def _acceptances(record: Record) -> Rows:
    gamma = record["gamma"]
    header = ["side", "alpha", "kept", "tau", *(f"at {place + 1}" for place in range(gamma))]
    rows = []
    for label, side in _sides(record):
        arm = side["speculative"]
        places = [f"{rate:.2f}" for rate in arm["alpha_by_position"]]
        rates = [f"{arm[name]:.2f}" for name in ("alpha", "kept", "tau")]
        rows.append([label, *rates, *places, *[""] * (gamma - len(places))])
    return [header, *rows]


def _costs(record: Record) -> Rows:
    curves = [
        (f"{label}, {role}", curve)
        for label, side in _sides(record)
        for role, curve in profile_from(side["profile"]).curves().items()
    ]
    widths = curves[0][1].widths[1:]
    header = ["model", "one token", *(f"k = {width}" for width in widths)]
    return [header, *([label, *_curve(curve, widths)] for label, curve in curves)]


def _curve(curve: Curve, widths: Sequence[int]) -> list[str]:
    one = curve(1)
    return [f"{1000 * one:.3g} ms", *(f"{curve(width) / one:.2f}" for width in widths)]


def _rounds(record: Record) -> Rows:
    parts = ("pass", "draft", "core", "rollback")
    header = ["side", "tokens it gives", *parts, "cost"]
    rows = []
    for label, _ in _sides(record):
        found = record["round"][label[0].lower()]
        costs = [found[part] for part in parts]
        rows.append([label, *(f"{x:.2f}" for x in (found["tokens"], *costs, sum(costs)))])
    return [header, *rows]


def _split(record: Record) -> Rows:
    rows = []
    for name, words in TERMS.items():
        term = record["split"][name]
        share = f"{term['share']:.0%}" if "share" in term else ""
        rows.append([words, f"{term['factor']:.3f}", f"{term['nats']:+.3f}", share])
    return [["part", "factor", "nats", "share"], *rows]


def as_markdown(record: Record, *, provenance: bool = True) -> str:
    """Tables, verdict, warnings and provenance."""
    parts = [f"{headings(record)}.\n"]
    for heading, rows in tables(record).items():
        parts += [f"**{heading}**\n", markdown_table(rows, figures=rows[0][1:])]
    parts.append(f"{record['verdict']['words']}\n")
    parts += [f"- {w['text']}; {w['remedy']}\n" for w in record["warnings"]]
    if provenance:
        facts = to_json(record["provenance"], indent=1)
        parts.append(f"```json\n{facts}\n```\n")
    return "\n".join(parts)


def _as_json(record: Record) -> str:
    return to_json(record) + "\n"


FORMATS: dict[str, Callable[[Record], str]] = {".json": _as_json, ".md": as_markdown}
"""The formats by file name extension."""
