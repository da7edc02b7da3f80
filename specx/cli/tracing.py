"""`specx run --trace`: one file or none, behind the same calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from specx import Observer, Pair, Result
from specx.cli.files import OutputPath
from specx.cli.progress import Progress
from specx.errors import UsageError
from specx.interrupts import held
from specx.runtime.machine import provenance
from specx.session.decoding import Round
from specx.session.generation import Generation

if TYPE_CHECKING:
    from specx.records.trace import GenerationTrace, TraceWriter

__all__ = ["TRACE", "Described", "Tracing"]

TRACE = click.option(
    "--trace",
    "trace_file",
    metavar="FILE",
    type=OutputPath("trace"),
    help="Write every round to this file as it happens (JSON lines; read it with specx report).",
)


@dataclass(frozen=True, kw_only=True)
class Described:
    """Header fields of a generation, besides those that determine its tokens."""

    prompt: str
    backends: Sequence[str]
    """Names of the runtimes, the verifier's first."""
    shown: Mapping[str, Any]
    """The settings, as ``--json`` prints them."""


class Tracing(Observer):
    """Writes a run's trace if one was requested; opens the file before models are loaded."""

    def __init__(self, path: Path | None, progress: Progress) -> None:
        self._writer: TraceWriter | None = None
        if path is not None:
            from specx.records.trace import TraceWriter  # only a trace need wait for its types

            self._writer = TraceWriter(path)
        self._progress = progress
        self._describe: Callable[[Generation], Described] | None = None
        self._trace: GenerationTrace | None = None
        self._failure: UsageError | None = None

    @property
    def wanted(self) -> bool:
        """True if there is a file to write."""
        return self._writer is not None

    def of(self, describe: Callable[[Generation], Described]) -> Tracing:
        """Set `describe`, which supplies the header's fields if a trace is written; return self."""
        self._describe = describe
        return self

    def begin(self, generation: Generation) -> None:
        """Write the header, before anything runs."""
        if self._writer is None or self._describe is None:
            return
        from specx.records.trace import GenerationTrace

        described = self._describe(generation)
        trace = GenerationTrace(
            self._writer,
            described.prompt,
            shown=described.shown,
            provenance=_provenance(generation.pair, described.backends, self._progress),
        )
        with held():
            trace.begin(generation)
            self._trace = trace

    def round(self, done: Round) -> None:
        """Write one round; if that fails, the run continues, and the error is raised at its end."""
        self._try(lambda trace: trace.round(done))

    def end(self, result: Result) -> None:
        """Write the summary, if the generation began."""
        self._try(lambda trace: trace.end(result))

    def _try(self, write: Callable[[GenerationTrace], None]) -> None:
        if self._trace is None or self._failure is not None:
            return
        try:
            write(self._trace)
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
