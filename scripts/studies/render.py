"""The results of a study as JSON, as CSV of its tokens, and as an HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import specx.report
from specx.bench.speedup import FEWEST
from specx.codec import to_json
from specx.report.plots import COLOURS, INSTALL, can_plot, draw_svg
from studies.observations import PREDICTORS, Observations

__all__ = ["FORMATS", "INTERVALS", "as_csv", "as_html", "as_json", "estimate"]

HERE = Path(__file__).parent
STYLE = Path(specx.report.__file__).with_name("page.css")

INTERVALS = f"Intervals: 95%, bootstrap over prompts; none for fewer than {FEWEST} prompts."


def as_json(record: Mapping[str, Any], seen: Observations) -> str:
    """The analysis."""
    return to_json(record, indent=1) + "\n"


def as_csv(record: Mapping[str, Any], seen: Observations) -> str:
    """One row per tested token."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["prompt", "kind", "position", "accepted", "overlap", *PREDICTORS])
    columns = [seen.prompt, seen.kind, seen.position, seen.accepted.astype(int), seen.overlap]
    columns += [seen.predictors[name] for name in PREDICTORS]
    table.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return out.getvalue()


def as_html(record: Mapping[str, Any], seen: Observations) -> str:
    """A page in one file."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["estimate"] = estimate
    plots = [_plot(found) for found in record["predictors"]]
    return environment.get_template("study.html").render(
        record=record,
        style=STYLE.read_text(encoding="utf-8"),
        predictors=list(zip(record["predictors"], plots, strict=True)),
        intervals=INTERVALS,
        install=INSTALL,
    )


FORMATS: dict[str, Callable[[Mapping[str, Any], Observations], str]] = {
    ".json": as_json,
    ".csv": as_csv,
    ".html": as_html,
}


def estimate(found: Mapping[str, float | None]) -> str:
    """A value and its interval, as far as they are known."""
    if found["value"] is None:
        return "-"
    if found["low"] is None:
        return f"{found['value']:.2f}"
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _median(part: Mapping[str, Any]) -> str:
    return "inf" if part["median"] is None else f"{part['median']:.2g}"


def _plot(found: Mapping[str, Any]) -> str | None:
    if not can_plot():
        return None
    return draw_svg(lambda figure: _binned(figure, found), 2.8, found["name"])


def _binned(figure: Any, found: Mapping[str, Any]) -> None:
    """Acceptance by tenths of the predictor, with intervals, and sum min(P, Q)."""
    axes = figure.subplots()
    bins = found["bins"]
    places = range(1, len(bins) + 1)
    rates = [part["alpha"]["value"] for part in bins]
    axes.plot(places, rates, "o", color=COLOURS["verify"], label="accepted of tested")
    for place, part in zip(places, bins, strict=True):
        if part["alpha"]["low"] is not None:
            axes.vlines(place, part["alpha"]["low"], part["alpha"]["high"], COLOURS["verify"])
    overlaps = [part["overlap"] for part in bins]
    axes.plot(places, overlaps, color=COLOURS["last"], label="mean sum min(P, Q)")
    axes.set_xticks(list(places), [_median(part) for part in bins])
    axes.set_xlabel(f"{found['meaning']}: median of each tenth", fontsize=9)
    axes.set_ylim(0, 1.05)
    axes.legend(fontsize=9)
