"""Writes a trace, a line at a time, so that a run that dies leaves a readable file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specx.closing import Closing
from specx.codec import to_json
from specx.errors import UsageError
from specx.interrupts import held
from specx.output import LineFile
from specx.records.trace.records import (
    SCHEMA,
    BenchSummary,
    FileStart,
    Header,
    Line,
    Summary,
)
from specx.records.trace.rounds import record_round
from specx.runtime.backend import Tokenizer
from specx.session.decoding import Round
from specx.session.generation import Generation, Observer
from specx.session.result import Result

__all__ = ["GenerationTrace", "TraceWriter", "header_for", "summary_of"]


class TraceWriter(Closing):
    """A trace file that is being written; holds one generation after the other.

    Open it before models are loaded: a target that cannot be written is then found while nothing is
    lost. An earlier file of that name is replaced only by the first generation. Each line reaches
    the operating system at once, as a whole. While it is open, no other process can write it.

    Parameters
    ----------
    path
        The file.
    argv
        The command line that it records; by default this process's.

    Raises
    ------
    UsageError
        Here and from every method, if the file cannot be written.
    """

    def __init__(self, path: Path, argv: Sequence[str] | None = None) -> None:
        self.path = path
        self.seconds = 0.0
        """Spent in this writer since the generation began."""
        self._argv = list(sys.argv if argv is None else argv)
        self._started = False
        self._generations = 0
        try:
            self._file = LineFile(path)
        except (OSError, ValueError) as error:  # a NUL within the name
            raise self._complaint(error) from error
        if self._file.new:
            self._start()  # a full disk is found here

    def begin(self, header: Header, tokenizer: Tokenizer) -> None:
        """Begin a generation; `tokenizer` names its tokens."""
        if not self._started:
            self._start()
        self._params = header.sampling
        self._header, self._tokenizer = header, tokenizer
        self._index, self.seconds = 0, 0.0
        self._write(header)
        self._generations += 1

    def round(self, done: Round) -> None:
        """Write one round of the generation."""
        begun = time.perf_counter()
        self._write(
            record_round(
                done,
                index=self._index,
                params=self._params,
                tokenizer=self._tokenizer,
                gamma=self._header.gamma,
            )
        )
        self._index += 1
        self.seconds += time.perf_counter() - begun

    def end(self, summary: Summary) -> None:
        """End the generation."""
        self._write(summary)

    def end_bench(self, summary: BenchSummary) -> None:
        """End the sweep whose runs the file holds."""
        self._write(summary)

    @property
    def closed(self) -> bool:
        """True where nothing more can be written, as after a failure."""
        return self._file.closed

    def close(self) -> None:
        """Close the file; one that was empty and got no generation is removed."""
        if not self._file.closed:
            with held():
                self._file.close(remove=self._file.new and not self._generations)

    def _start(self) -> None:
        self._started = True
        try:
            if not self._file.new:
                self._file.restart()
        except OSError as error:
            raise self._complaint(error) from error
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._write(FileStart(schema=SCHEMA, specx=version("specx"), created=now, argv=self._argv))

    def _write(self, record: Line) -> None:
        try:
            self._file.write(_line(record))
        except OSError as error:
            self.close()
            raise self._complaint(error) from error

    def _complaint(self, error: OSError | ValueError) -> UsageError:
        reason = getattr(error, "strerror", None) or error
        return UsageError(f"cannot write the trace to {self.path}: {reason}; name another file")


class GenerationTrace(Observer):
    """Writes the trace of a generation.

    Parameters
    ----------
    prompt, header
        As in `header_for`.
    """

    def __init__(self, writer: TraceWriter, prompt: str, **header: Any) -> None:
        self._writer, self._prompt, self._header = writer, prompt, header

    def begin(self, generation: Generation) -> None:
        header = header_for(generation, self._prompt, **self._header)
        with held():
            self._writer.begin(header, generation.pair.verifier.tokenizer)

    def round(self, done: Round) -> None:
        self._writer.round(done)

    def end(self, result: Result) -> None:
        self._writer.end(summary_of(result, trace_s=self._writer.seconds))


def header_for(
    generation: Generation,
    prompt: str,
    *,
    labels: Mapping[str, Any] | None = None,
    shown: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Header:
    """The header of a generation that is about to begin.

    Parameters
    ----------
    prompt
        The text as it was given; the generation's tokens have the template around it.
    labels
        What tells this generation from others of the file.
    shown
        All settings, as ``--json`` prints them.
    provenance
        Models, hashes, versions, machine: see `specx.runtime.machine.provenance`.
    """
    settings, drafters = generation.settings, generation.drafters
    return Header(
        prompt=prompt,
        prompt_ids=list(generation.tokens),
        rule=settings.rule,
        gamma=settings.gamma if drafters else 0,
        seed=settings.seed,
        sampling=settings.sampling,
        n_vocab=generation.pair.verifier.n_vocab,
        drafter="+".join(drafter.name for drafter in drafters) or None,
        labels=dict(labels or {}),
        settings=dict(shown or {}),
        provenance=dict(provenance or {}),
    )


def summary_of(result: Result, *, trace_s: float = 0.0) -> Summary:
    """What closes a generation: its numbers, unrounded."""
    return Summary(**result.figures(), trace_s=trace_s, rest=result.rest)


def _line(record: Line) -> bytes:
    """One line of JSON. A lone surrogate (an argument that was no UTF-8) is kept as its escape."""
    fields = asdict(record)
    line = to_json({"kind": fields.pop("kind"), **fields})
    return line.encode("utf-8", errors="backslashreplace") + b"\n"
