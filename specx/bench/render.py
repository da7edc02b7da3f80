"""Results as tables: for reading, and for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specx.codec import to_json

__all__ = [
    "FORMATS",
    "Rows",
    "as_csv",
    "as_jsonl",
    "as_markdown",
    "kind_rows",
    "label_of",
    "markdown_table",
    "series_label",
    "speed_rows",
    "time_rows",
]

SETTINGS = {"temperature": "temp ", "top_k": "top-k ", "top_p": "top-p ", "min_p": "min-p "}
PARTS = ("draft", "verify", "rollback", "core", "other")

Record = Mapping[str, Any]
Rows = list[list[str]]


def speed_rows(arms: Sequence[Record]) -> Rows:
    """A header, then tokens a second and speed-ups of each arm."""
    header = ["arm", "tok/s", "speed-up", "95% interval", "predicted", "textbook"]
    return [header, *([label_of(arm, arms), *_speeds(arm)] for arm in arms)]


def time_rows(arms: Sequence[Record]) -> Rows:
    """A header, then acceptance and the shares of the time of each arm."""
    header = ["arm", "alpha", "kept", "tau", *PARTS, "prefill"]
    return [header, *([label_of(arm, arms), *_rates(arm), *_shares(arm)] for arm in arms)]


def kind_rows(arms: Sequence[Record]) -> Rows:
    """A header, then each arm on each kind of prompt; nothing where there is one kind only."""
    kinds = list(dict.fromkeys(kind for arm in arms for kind in arm["by_kind"]))
    if len(kinds) < 2:
        return []
    header = ["kind", "arm", "tok/s", "speed-up", "95% interval", "alpha", "kept", "tau"]
    rows = [
        [
            kind,
            label_of(arm, arms),
            *_speeds(arm["by_kind"][kind])[:3],
            *_rates(arm["by_kind"][kind]),
        ]
        for kind in kinds
        for arm in arms
        if kind in arm["by_kind"]
    ]
    return [header, *rows]


def label_of(arm: Record, arms: Sequence[Record]) -> str:
    """What tells an arm from the others: settings that are the same in all are left out."""
    settings = arm["settings"]
    gamma = [f"gamma {settings['gamma']}"] if settings["gamma"] else ["verifier alone"]
    return " ".join([*_sampler(settings, arms), *gamma, *_drafting(settings, arms)])


def series_label(arm: Record, arms: Sequence[Record]) -> str:
    """As `label_of`, but the same at every gamma; may be empty."""
    settings = arm["settings"]
    return " ".join([*_sampler(settings, arms), *_drafting(settings, arms)])


def _sampler(settings: Record, arms: Sequence[Record]) -> list[str]:
    differ = [k for k in SETTINGS if len({other["settings"][k] for other in arms}) > 1]
    words = [f"{SETTINGS[key]}{_plain(settings[key])}" for key in differ]
    if len({_runtimes(other["settings"]) for other in arms}) > 1:
        words.insert(0, _runtimes(settings))
    return words


def _runtimes(settings: Record) -> str:
    """``hf``, or ``hf+llamacpp`` where the drafter's is another."""
    return "+".join(dict.fromkeys([settings["backend"], settings["draft_backend"]]))


def _drafting(settings: Record, arms: Sequence[Record]) -> list[str]:
    """Drafters and rule where several are compared, and whether there is a cache."""
    if not settings["gamma"]:
        return []
    drafting = [other["settings"] for other in arms if other["settings"]["gamma"]]
    words = [_drafters(settings)] if len(set(map(_drafters, drafting))) > 1 else []
    words += [settings["rule"]] if len({other["rule"] for other in drafting}) > 1 else []
    return words if settings["cached"] else [*words, "no cache"]


def _drafters(settings: Record) -> str:
    """``model``, ``lookup`` or ``model+lookup``; 0.1.0 knew the model alone."""
    names: str = settings.get("draft") or "model"
    return names


def _speeds(arm: Record) -> list[str]:
    low, high = arm["speedup_low"], arm["speedup_high"]
    return [
        _number(arm["tok_s"], "{:.2f}"),
        _times(arm["speedup"]),
        "" if low is None else f"{low:.2f} to {high:.2f}",
        _times(arm.get("predicted")),
        _times(arm.get("predicted_textbook")),
    ]


def _rates(arm: Record) -> list[str]:
    return [_number(arm[name], "{:.2f}") for name in ("alpha", "kept", "tau")]


def _shares(arm: Record) -> list[str]:
    time = arm["time"]
    total = time["total"]
    shares = [f"{time[part] / total:.1%}" if total else "" for part in PARTS]
    return [*shares, _seconds(arm["prefill_s"])]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def _times(value: float | None) -> str:
    return _number(value, "{:.2f}x")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_markdown(record: Record) -> str:
    """Both tables, warnings and provenance."""
    arms = record["arms"]
    tables = (speed_rows(arms), time_rows(arms), kind_rows(arms))
    parts = [markdown_table(rows) for rows in tables if rows]
    parts += [f"- {w['text']}; {w['remedy']}" for w in record["warnings"]]
    provenance = to_json(record["provenance"], indent=1)
    return "\n\n".join([*parts, f"```json\n{provenance}\n```"]) + "\n"


def markdown_table(rows: Rows) -> str:
    """A header and its rows; the columns after the first are figures."""
    header, *body = rows
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in [header, rule, *body])


def _cell(text: str) -> str:
    """A user's kind of prompts may hold what would end a cell or the table."""
    return " ".join(text.replace("|", "\\|").split())


def as_csv(record: Record) -> str:
    """A line an arm; figures unrounded, lists as JSON."""
    lines = [_flat(arm) for arm in record["arms"]]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(arm: Record) -> dict[str, Any]:
    flat = dict(arm["settings"])
    for key, value in arm.items():
        if key == "time":
            flat |= {f"{part}_s": seconds for part, seconds in value.items()}
        elif key not in ("settings", "runs"):
            flat[key] = to_json(value) if isinstance(value, list | dict) else value
    return flat


def as_jsonl(record: Record) -> str:
    """A line an arm, without its runs; the provenance is in each."""
    lines = [
        {**{k: v for k, v in arm.items() if k != "runs"}, "provenance": record["provenance"]}
        for arm in record["arms"]
    ]
    return "".join(to_json(line) + "\n" for line in lines)


def _as_json(record: Record) -> str:
    return to_json(record) + "\n"


FORMATS: dict[str, Callable[[Record], str]] = {
    ".md": as_markdown,
    ".csv": as_csv,
    ".json": _as_json,
    ".jsonl": as_jsonl,
}
"""By the ending of the file."""
