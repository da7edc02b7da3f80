"""Writes docs/study.md from docs/study/qwen.json, the output of a study of the Qwen pair.

The measurement itself, some ten minutes on two cores::

    specx study -m models/test/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf \
        -md models/test/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \
        --suite all --folder study-traces -n 64 -o docs/study/qwen.json

What the numbers show and do not is written by a person, in docs/study/words.md; this script puts
the tables after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Write the page."""
    record = json.loads((DOCS / "study" / "qwen.json").read_text(encoding="utf-8"))
    words = (DOCS / "study" / "words.md").read_text(encoding="utf-8")
    (DOCS / "study.md").write_text(study_page(words, record), encoding="utf-8")


def study_page(words: str, record: Mapping[str, Any]) -> str:
    """The words, then what was measured."""
    return "\n".join([words.rstrip(), "", *_measured(record), ""])


def _measured(record: Mapping[str, Any]) -> Iterable[str]:
    yield "## Measured"
    yield ""
    yield (
        f"{record['n_tokens']} tested tokens of {record['n_prompts']} prompts; acceptance rate "
        f"{_span(record['alpha'])}, mean sum min(P, Q) {_span(record['overlap'])}. Intervals: 95%, "
        "bootstrap over prompts."
    )
    yield from ("", "### What foretells acceptance", "")
    head = ["predictor", "rank correlation", "with sum min(P, Q)", "AUC", "Brier", "rate alone"]
    yield from _table(head, (_predictor(found) for found in record["predictors"]))
    for found in record["predictors"]:
        yield from ("", f"### Acceptance by tenths: {found['meaning']}", "")
        head = ["from", "to", "tokens", "acceptance rate", "sum min(P, Q)"]
        yield from _table(head, (_bin(part) for part in found["bins"]))
    for name in ("kind", "position"):
        yield from ("", f"### By {name}", "")
        head = [name, "tested", "acceptance rate", "sum min(P, Q)", "AUC of the draft's entropy"]
        yield from _table(head, (_group(row) for row in record[f"by_{name}"]))
    yield from _wrong_labels(record)


def _wrong_labels(record: Mapping[str, Any]) -> Iterable[str]:
    naive = record["untested_called_rejected"]
    yield from ("", "### The same, had untested tokens been called rejected", "")
    yield f"Acceptance rate {naive['alpha']:.2f}."
    yield ""
    rows = ([name, f"{value:.2f}"] for name, value in naive["auc"].items() if value is not None)
    yield from _table(["predictor", "AUC"], rows)


def _predictor(found: Mapping[str, Any]) -> list[str]:
    spans = [_span(found[key]) for key in ("correlation", "correlation_overlap", "auc")]
    return [found["meaning"], *spans, f"{found['brier']:.3f}", f"{found['brier_base']:.3f}"]


def _bin(part: Mapping[str, Any]) -> list[str]:
    ends = ["inf" if part[end] is None else f"{part[end]:.2f}" for end in ("low", "high")]
    return [*ends, str(part["n"]), _span(part["alpha"]), f"{part['overlap']:.2f}"]


def _group(row: Mapping[str, Any]) -> list[str]:
    area = row["auc_draft_entropy"]
    rest = [_span(row["alpha"]), f"{row['overlap']:.2f}", "-" if area is None else f"{area:.2f}"]
    return [str(row["group"]), str(row["n"]), *rest]


def _span(found: Mapping[str, float | None]) -> str:
    if found["value"] is None:
        return "-"
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    for row in [head, ["---"] * len(head), *rows]:
        yield "| " + " | ".join(row) + " |"


if __name__ == "__main__":
    main()
