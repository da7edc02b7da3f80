"""Traces of toy pairs for tests, with the texts that a page must survive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specx import Pair, Result, SamplingParams, Session, Settings, Stop
from specx.records.trace import GenerationTrace, TraceWriter
from specx_backends.toy import Toy, ToyTable

NASTY = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\x1b[31mred\x00",
    "\u202e\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f600",
    "&amp; ' \" {{ 7 * 6 }} {% raw %}",
    "\n",
    "--><!--",
)
"""Tokens that break a page which trusts them."""


def toys(words: tuple[str, ...]) -> list[Toy]:
    rng = np.random.default_rng(0)
    vocabulary = ("<s>", "</s>", *words)

    def row() -> list[float]:
        return [0.0, 0.0, *rng.dirichlet(np.full(len(words), 3.0))]

    rows: list[dict[tuple[int, ...], list[float]]] = [{(): row()}, {(): row()}]
    return [Toy(ToyTable(tokens=vocabulary, rows=r, bos="<s>", eog=("</s>",))) for r in rows]


def write_trace(
    path: Path, *, words: tuple[str, ...] = NASTY, n: int = 60, draft: bool = True, prompt: str = ""
) -> Path:
    """The trace of a toy pair that writes `words`; returns `path`."""
    pair = Pair(*toys(words)[: 1 + draft])
    settings = Settings(sampling=SamplingParams(temperature=1, top_p=1), seed=1)
    with TraceWriter(path, argv=["specx", "run"]) as trace:
        traced(pair, trace, settings, n, prompt=prompt)
    return path


def traced(
    pair: Pair,
    trace: TraceWriter,
    settings: Settings,
    n: int,
    tokens: Sequence[int] = (0,),
    prompt: str = "",
    labels: Mapping[str, Any] | None = None,
) -> Result:
    """A generation of a new session, written to `trace`."""
    tracing = GenerationTrace(trace, prompt, labels=labels)
    with Session(pair) as session:
        stop = Stop(pair.verifier.tokenizer, n)
        rounds = session.rounds(tokens, settings, stop, [tracing], keep_logits=True)
        for _ in rounds:
            pass
    return rounds.result
