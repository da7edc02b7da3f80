"""Reads traces back, whole ones and those of runs that died."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specx.decoding import Times
from specx.errors import UsageError
from specx.stats import Choices, Tally
from specx.trace.records import (
    SCHEMA,
    BenchSummary,
    DraftToken,
    Emitted,
    FileStart,
    Header,
    LastToken,
    Line,
    RoundRecord,
    Summary,
    Uncertainty,
)

__all__ = ["Trace", "read_trace", "read_traces"]


@dataclass
class Trace:
    """One generation, as its trace tells it."""

    path: Path
    start: FileStart
    header: Header
    rounds: list[RoundRecord] = field(default_factory=list)
    summary: Summary | None = None
    """None where the run died."""
    bench: BenchSummary | None = None
    """What the sweep came to that this generation is one run of, once it ended."""

    @property
    def text(self) -> str:
        """What was written after the prompt."""
        pieces = [token.piece for done in self.rounds for token in done.emitted]
        return "".join(pieces) + (self.summary.rest if self.summary else "")

    def choices(self) -> Choices:
        """How many tokens were proposed how often, and by whom."""
        choices = Choices()
        for done in self.rounds:
            choices.add(done.as_round())
        return choices

    def tally(self) -> Tally:
        """The same sums that the run made, from its rounds.

        Of a run that died nobody knows the time between rounds; it then counts as none.
        """
        tally = Tally()
        for done in self.rounds:
            tally.add(done.as_round())
        tally.total = (
            self.summary.time["total"] if self.summary else sum(vars(tally.times).values())
        )
        return tally


def read_trace(path: Path) -> Trace:
    """The only generation of a trace file.

    Raises
    ------
    UsageError
        As `read_traces`; also if there are several.
    """
    traces = read_traces(path)
    if len(traces) > 1:
        raise UsageError(f"{path} holds {len(traces)} generations; read it with read_traces")
    return traces[0]


def read_traces(path: Path) -> list[Trace]:
    """All generations of a trace file.

    A last line that was cut short, by a kill or a full disk, is passed over.

    Raises
    ------
    UsageError
        If the file cannot be read, is no trace or one of another schema, or holds no generation.
    """
    traces: list[Trace] = []
    start: FileStart | None = None
    for number, fields in _lines(path):
        try:
            record = _record(fields)
        except (KeyError, TypeError) as error:
            raise UsageError(f"line {number} of {path} is no line of a trace: {error}") from error
        if isinstance(record, FileStart):
            start = _known(record, path)
        elif isinstance(record, Header) and start is not None:
            traces.append(Trace(path, start, record))
        elif traces and isinstance(record, RoundRecord):
            traces[-1].rounds.append(record)
        elif traces and isinstance(record, Summary):
            traces[-1].summary = record
        elif traces and isinstance(record, BenchSummary):
            for trace in traces:
                if trace.start is start:
                    trace.bench = record
        else:
            raise UsageError(f"line {number} of {path} comes before its header; is it a trace?")
    if not traces:
        raise UsageError(f"{path} holds no generation: the run ended before its first token")
    return traces


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered lines as JSON objects; a torn last line is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read the trace {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            if number == len(lines) > 1:  # no newline after it
                return
            raise UsageError(f"line {number} of {path} is no JSON: {error}") from error
        if not isinstance(fields, dict):
            raise UsageError(f"line {number} of {path} is no JSON object; is it a trace?")
        yield number, fields


def _known(start: FileStart, path: Path) -> FileStart:
    if start.schema != SCHEMA:
        raise UsageError(
            f"{path} was written by specx {start.specx} in schema {start.schema}; this one reads "
            f"schema {SCHEMA}: use that version"
        )
    return start


def _record(fields: Mapping[str, Any]) -> Line:
    kind = fields.get("kind")
    if kind == "file":
        return FileStart(**{key: fields[key] for key in ("schema", "specx", "created", "argv")})
    if kind == "header":
        return Header(**fields)
    if kind == "round":
        return _round(dict(fields))
    if kind == "summary":
        return Summary(**fields)
    if kind == "bench":
        return BenchSummary(**fields)
    raise KeyError(f"kind {kind!r}")


def _round(fields: dict[str, Any]) -> RoundRecord:
    fields["draft"] = [_draft_token(token) for token in fields["draft"]]
    fields["emitted"] = [Emitted(**token) for token in fields["emitted"]]
    last = fields["last"]
    fields["last"] = LastToken(**{**last, "target": _uncertainty(last["target"])})
    fields["times"] = Times(**fields["times"])
    return RoundRecord(**fields)


def _draft_token(fields: Mapping[str, Any]) -> DraftToken:
    both = {side: _uncertainty(fields[side]) for side in ("target", "draft")}
    return DraftToken(**{**fields, **both})


def _uncertainty(fields: Mapping[str, Any] | None) -> Uncertainty | None:
    return None if fields is None else Uncertainty(**fields)
