"""`--trace`: one file, or nothing at all, behind the same calls."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from specx import Pair, Settings, Stop, Tally
from specx.cli.files import OutputPath
from specx.cli.progress import Progress
from specx.errors import UsageError
from specx.interrupts import held
from specx.records.trace import TraceWriter, header_for, summary_of
from specx.runtime.machine import provenance
from specx.session.decoding import Round

__all__ = ["TRACE", "Tracing"]

TRACE = click.option(
    "--trace",
    "trace_file",
    metavar="FILE",
    type=OutputPath("trace"),
    help="Write what happened in every round to this file (JSON lines; read it with specx report).",
)


class Tracing:
    """Writes a run's trace where one was asked for; opens the file before models are loaded."""

    def __init__(self, path: Path | None) -> None:
        self._writer = None if path is None else TraceWriter(path)
        self._provenance: dict[str, Any] | None = None
        self._unfinished = False
        self._failure: UsageError | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a file to write."""
        return self._writer is not None

    def begin(
        self,
        pair: Pair,
        settings: Settings,
        tokens: Sequence[int],
        prompt: str,
        *,
        backends: Sequence[str],
        shown: Mapping[str, Any],
        progress: Progress,
        labels: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the header of a generation; models are hashed once."""
        if self._writer is None:
            return
        if self._provenance is None:
            self._provenance = _provenance(pair, backends, progress)
        header = header_for(
            pair,
            settings,
            tokens,
            prompt,
            labels=labels,
            shown=shown,
            provenance=self._provenance,
        )
        with held():
            self._writer.begin(header, pair.verifier.tokenizer)
            self._unfinished = True

    def round(self, done: Round) -> None:
        """Write one round; if it cannot be, the run goes on, and its end tells."""
        if self._writer is None or self._failure is not None:
            return
        try:
            self._writer.round(done)
        except UsageError as error:
            self._failure = error

    def end(
        self,
        tally: Tally,
        stop: Stop,
        prefill_s: Sequence[float],
        rest: str,
        estimated: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the summary of the generation, if one began; `prefill_s` is each model's."""
        if self._writer is None or not self._unfinished or self._failure is not None:
            return
        self._unfinished = False
        summary = summary_of(
            tally,
            stop.reason,
            prefill_s=sum(prefill_s),
            prefill_draft_s=sum(prefill_s[1:]),
            trace_s=self._writer.seconds,
            rest=rest,
            estimated=estimated,
        )
        try:
            self._writer.end(summary)
        except UsageError as error:
            self._failure = error

    def __enter__(self) -> Tracing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if error is None and self._failure is not None:
            raise self._failure  # now that the text is out


def _provenance(pair: Pair, backends: Sequence[str], progress: Progress) -> dict[str, Any]:
    roles = dict(zip(["verifier", "drafter"], pair.models, strict=False))
    with progress.task("hashing the models", 1.0) as report:
        return provenance(roles, backends, sys.argv, report)
