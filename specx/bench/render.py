"""Results as tables, for people and for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specx.bench.speedup import INTERVALS
from specx.codec import to_json
from specx.records.markdown import markdown_table
from specx.records.trace.records import Interval

__all__ = [
    "FORMATS",
    "Rows",
    "as_csv",
    "as_jsonl",
    "as_markdown",
    "interval_name",
    "interval_of",
    "kind_rows",
    "label_of",
    "series_label",
    "speed_rows",
    "speedup_of",
    "time_rows",
]

SETTINGS = {"temperature": "temp ", "top_k": "top-k ", "top_p": "top-p ", "min_p": "min-p "}
PARTS = ("draft", "verify", "rollback", "core", "other")

Record = Mapping[str, Any]
Rows = list[list[str]]


def speed_rows(arms: Sequence[Record]) -> Rows:
    """A header, then each arm's tokens per second and speed-ups."""
    interval = interval_name(arms)
    header = ["arm", "tok/s", "speed-up", interval, "predicted", "textbook"]
    return [header, *([label_of(arm, arms), *_speeds(arm, interval)] for arm in arms)]


def time_rows(arms: Sequence[Record]) -> Rows:
    """A header, then each arm's acceptance and its shares of the time."""
    header = ["arm", "alpha", "kept", "tau", *PARTS, "prefill"]
    return [header, *([label_of(arm, arms), *_rates(arm), *_shares(arm)] for arm in arms)]


def kind_rows(arms: Sequence[Record]) -> Rows:
    """A header, then each arm on each kind of prompt; empty if there is only one kind."""
    kinds = list(dict.fromkeys(kind for arm in arms for kind in arm["by_kind"]))
    if len(kinds) < 2:
        return []
    interval = interval_name([found for arm in arms for found in arm["by_kind"].values()])
    rows = [
        [
            kind,
            label_of(arm, arms),
            *_speeds(arm["by_kind"][kind], interval)[:3],
            *_rates(arm["by_kind"][kind]),
        ]
        for kind in kinds
        for arm in arms
        if kind in arm["by_kind"]
    ]
    return [["kind", "arm", "tok/s", "speed-up", interval, "alpha", "kept", "tau"], *rows]


def interval_name(records: Sequence[Record]) -> str:
    """A heading for `interval_of`: ``range`` only if no record has a bootstrap interval."""
    kinds = {_interval_kind(record) for record in records if record["speedup_low"] is not None}
    return INTERVALS["range" if kinds == {"range"} else "bootstrap"]


def interval_of(record: Record, heading: str = "") -> str:
    """Low and high of a record's speed-up, with their kind if it differs from the heading."""
    if record["speedup_low"] is None:
        return ""
    name = INTERVALS[_interval_kind(record)]
    named = "" if name in (heading, INTERVALS["bootstrap"]) else f"{name} "
    return f"{named}{record['speedup_low']:.2f} to {record['speedup_high']:.2f}"


def speedup_of(record: Record) -> str:
    """``1.27x (1.21 to 1.30)``; for a range, ``1.27x (range 1.21 to 1.30)``."""
    return "" if record["speedup"] is None else f"{record['speedup']:.2f}x ({interval_of(record)})"


def _interval_kind(record: Record) -> Interval:
    """The kind of interval; files of 0.1.0 hold bootstrap intervals for any number of prompts."""
    kind: Interval = record.get("speedup_interval") or "bootstrap"
    return kind


def label_of(arm: Record, arms: Sequence[Record]) -> str:
    """The settings that differ among `arms`."""
    settings = arm["settings"]
    gamma = [f"gamma {settings['gamma']}"] if settings["gamma"] else ["verifier alone"]
    return " ".join([*_sampler(settings, arms), *gamma, *_drafting(settings, arms)])


def series_label(arm: Record, arms: Sequence[Record]) -> str:
    """As `label_of`, but without gamma; may be empty."""
    settings = arm["settings"]
    return " ".join([*_sampler(settings, arms), *_drafting(settings, arms)])


def _sampler(settings: Record, arms: Sequence[Record]) -> list[str]:
    differ = [k for k in SETTINGS if len({other["settings"][k] for other in arms}) > 1]
    words = [f"{SETTINGS[key]}{_plain(settings[key])}" for key in differ]
    if len({_runtimes(other["settings"]) for other in arms}) > 1:
        words.insert(0, _runtimes(settings))
    return words


def _runtimes(settings: Record) -> str:
    """``hf``, or ``hf+llamacpp`` if the drafter's backend differs."""
    return "+".join(dict.fromkeys([settings["backend"], settings["draft_backend"]]))


def _drafting(settings: Record, arms: Sequence[Record]) -> list[str]:
    """Drafters and rule where several are compared, and ``no cache`` if there is none."""
    if not settings["gamma"]:
        return []
    drafting = [other["settings"] for other in arms if other["settings"]["gamma"]]
    words = [_drafters(settings)] if len(set(map(_drafters, drafting))) > 1 else []
    words += [settings["rule"]] if len({other["rule"] for other in drafting}) > 1 else []
    return words if settings["cached"] else [*words, "no cache"]


def _drafters(settings: Record) -> str:
    """``model``, ``lookup`` or ``model+lookup``; 0.1.0 knew only the model."""
    names: str = settings.get("draft") or "model"
    return names


def _speeds(arm: Record, heading: str) -> list[str]:
    return [
        _number(arm["tok_s"], "{:.2f}"),
        _times(arm["speedup"]),
        interval_of(arm, heading),
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
    """All tables, warnings and provenance."""
    arms = record["arms"]
    tables = (speed_rows(arms), time_rows(arms), kind_rows(arms))
    parts = [markdown_table(rows, figures=rows[0][1:]) for rows in tables if rows]
    parts += [f"- {w['text']}; {w['remedy']}\n" for w in record["warnings"]]
    provenance = to_json(record["provenance"], indent=1)
    return "\n".join([*parts, f"```json\n{provenance}\n```\n"])


def as_csv(record: Record) -> str:
    """One line per arm, with unrounded figures and lists as JSON."""
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
    """One line per arm, without its runs; each holds the provenance."""
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
"""The formats by file name extension."""
