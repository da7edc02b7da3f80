"""Traces of toy pairs for tests, with the texts that a page must survive."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specx import Pair, SamplingParams, Settings, Stop, Tally
from specx.records.trace import TraceWriter, header_for, summary_of
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
    tokens, tally, stop = [0], Tally(), Stop(pair.verifier.tokenizer, n)
    with TraceWriter(path, argv=["specx", "run"]) as trace:
        trace.begin(header_for(pair, settings, tokens, prompt), pair.verifier.tokenizer)
        for done in pair.rounds(tokens, settings, stop, keep_logits=True):
            tally.add(done)
            trace.round(done)
        tally.total = sum(vars(tally.times).values()) + 0.125
        trace.end(summary_of(tally, stop.reason, rest=stop.finish()))
    return path
