"""The page: one file that fetches nothing and never runs any of the text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from specx.core.logits import ENTROPY_STEPS
from specx.records.trace import BenchSummary, Trace
from specx.report.figures import (
    MOST_TEXTS,
    brief,
    facts,
    figures,
    generation_rows,
    length_rows,
    position_rows,
    time_rows,
    title_of,
)
from specx.report.plots import INSTALL, can_plot, plots_of
from specx.report.sweep import sweep_plots, sweep_tables, sweeps_of
from specx.report.tokens import rounds_data, shown_tokens
from specx.session.text import visible

__all__ = ["page"]

HERE = Path(__file__).parent


def page(traces: Sequence[Trace]) -> str:
    """An HTML document that shows `traces` side by side: the first texts and all numbers.

    Everything from a trace is escaped, and the page's content security policy allows only its own
    script.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    script = (HERE / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=_hash(script),
        sections=[_section(trace, f"t{i}") for i, trace in enumerate(traces[:MOST_TEXTS], 1)],
        sweeps=[_sweep(bench, f"s{i}") for i, bench in enumerate(sweeps_of(traces), 1)],
        n_traces=len(traces),
        comparison=_comparison(traces) if len(traces) <= MOST_TEXTS else [],
        generations=generation_rows(traces) if len(traces) > MOST_TEXTS else [],
        steps=ENTROPY_STEPS,
        missing=None if can_plot() else INSTALL,
    )


def _section(trace: Trace, key: str) -> dict[str, Any]:
    tally = trace.tally()
    tables = [
        ("Acceptance by position", ["position", "tested", "accepted", "rate"], position_rows),
        ("Accepted tokens per round", ["accepted", "rounds", "share"], length_rows),
        ("Where the time went", ["part", "seconds", "share"], time_rows),
    ]
    provenance = {
        "file": str(trace.path.name),
        "command": " ".join(trace.start.argv),
        "written": trace.start.created,
        "specx": trace.start.specx,
        "settings": trace.header.settings or {"seed": trace.header.seed},
        **trace.header.provenance,
    }
    return {
        "key": key,
        "title": title_of(trace),
        "brief": brief(trace),
        "prompt": visible(trace.header.prompt),
        "tokens": list(shown_tokens(trace)),
        "rest": visible(trace.summary.rest) if trace.summary else "",
        "complete": trace.summary is not None,
        "data": {"rule": trace.header.rule, "rounds": rounds_data(trace)},
        "plots": plots_of(trace, key),
        "tables": [(name, head, rows(tally)) for name, head, rows in tables],
        "provenance": [(name, visible(value)) for name, value in facts(provenance)],
    }


def _sweep(bench: BenchSummary, key: str) -> dict[str, Any]:
    return {
        "key": key,
        "complete": bench.complete,
        "planned": bench.planned,
        "plots": sweep_plots(bench, key),
        "tables": sweep_tables(bench),
        "warnings": [f"{warning['text']}; {warning['remedy']}" for warning in bench.warnings],
    }


def _comparison(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """A row per figure, a cell per trace."""
    columns = [{figure.name: figure for figure in figures(trace)} for trace in traces]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    for name in names:
        found = [column.get(name) for column in columns]
        meanings = {figure.meaning for figure in found if figure}
        rows.append(
            {
                "name": name,
                "values": [figure.value if figure else "-" for figure in found],
                "meaning": meanings.pop() if len(meanings) == 1 else "",
            }
        )
    return rows


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
