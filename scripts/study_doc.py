r"""Writes docs/study.md from docs/study/qwen.json, the output of a study of the Qwen pair.

The measurement itself takes about ten minutes on two cores::

    scripts/study.py -m models/test/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf \
        -md models/test/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \
        --suite all --folder study-traces -n 64 -o docs/study/qwen.json

A person writes what the numbers show, in docs/study/words.md; this script adds the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specx.records.markdown import markdown_table
from studies.render import INTERVALS, estimate

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Write the page."""
    record = json.loads((DOCS / "study" / "qwen.json").read_text(encoding="utf-8"))
    words = (DOCS / "study" / "words.md").read_text(encoding="utf-8")
    (DOCS / "study.md").write_text(study_page(words, record), encoding="utf-8")


def study_page(words: str, record: Mapping[str, Any]) -> str:
    """The hand-written text, followed by the measurements."""
    return "\n".join([words.rstrip(), "", *_measured(record), ""])


def _measured(record: Mapping[str, Any]) -> Iterable[str]:
    yield "## Measured"
    yield ""
    yield (
        f"{record['n_tokens']} tested tokens of {record['n_prompts']} prompts; acceptance rate "
        f"{estimate(record['alpha'])}, mean sum min(P, Q) {estimate(record['overlap'])}. "
        f"{INTERVALS}"
    )
    yield from ("", "### What predicts acceptance", "")
    head = ["predictor", "rank correlation", "with sum min(P, Q)", "AUC", "Brier", "rate alone"]
    yield _table(head, map(_predictor, record["predictors"]))
    for found in record["predictors"]:
        yield from ("", f"### Acceptance by tenths: {found['meaning']}", "")
        head = ["from", "to", "tokens", "acceptance rate", "sum min(P, Q)"]
        yield _table(head, map(_bin, found["bins"]))
    for name in ("kind", "position"):
        yield from ("", f"### By {name}", "")
        head = [name, "tested", "acceptance rate", "sum min(P, Q)", "AUC of the draft's entropy"]
        yield _table(head, map(_group, record[f"by_{name}"]))
    naive = record["untested_called_rejected"]
    yield from ("", "### The same with untested tokens labelled as rejected", "")
    yield f"Acceptance rate {naive['alpha']:.2f}."
    yield ""
    rows = ([name, f"{value:.2f}"] for name, value in naive["auc"].items() if value is not None)
    yield _table(["predictor", "AUC"], rows)


def _predictor(found: Mapping[str, Any]) -> list[str]:
    spans = [estimate(found[key]) for key in ("correlation", "correlation_overlap", "auc")]
    return [found["meaning"], *spans, f"{found['brier']:.3f}", f"{found['brier_base']:.3f}"]


def _bin(part: Mapping[str, Any]) -> list[str]:
    ends = ["inf" if part[end] is None else f"{part[end]:.2f}" for end in ("low", "high")]
    return [*ends, str(part["n"]), estimate(part["alpha"]), f"{part['overlap']:.2f}"]


def _group(row: Mapping[str, Any]) -> list[str]:
    area = row["auc_draft_entropy"]
    rest = [estimate(row["alpha"]), f"{row['overlap']:.2f}", "-" if area is None else f"{area:.2f}"]
    return [str(row["group"]), str(row["n"]), *rest]


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    return markdown_table([head, *rows]).removesuffix("\n")


if __name__ == "__main__":
    main()
