"""Reads traces back, whole ones and those of runs that died."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specx.codec import convert, lines_of, parse, refuse, require_all, shortened
from specx.core.sampling import FILTERS_OFF
from specx.errors import UsageError
from specx.records.trace.records import (
    SCHEMA,
    BenchSummary,
    FileStart,
    Header,
    Line,
    RoundRecord,
    Summary,
    SweepSettings,
)
from specx.session.decoding import Times
from specx.session.result import Result
from specx.session.settings import Settings
from specx.session.tally import Choices, Tally

__all__ = ["NoGeneration", "Trace", "read_trace", "read_traces"]

REMEDY = "specx run --trace FILE writes a trace"

KINDS: dict[str, type[Line]] = {
    "file": FileStart,
    "header": Header,
    "round": RoundRecord,
    "summary": Summary,
    "bench": BenchSummary,
}


class NoGeneration(UsageError):
    """A trace whose run ended before its first generation began."""


@dataclass
class Trace:
    """One generation, read from its trace."""

    path: Path
    start: FileStart
    header: Header
    rounds: list[RoundRecord] = field(default_factory=list)
    summary: Summary | None = None
    """None where the run died."""
    bench: BenchSummary | None = None
    """The results of the sweep that this generation is one run of, once it ended."""

    @property
    def text(self) -> str:
        """The text after the prompt."""
        pieces = [token.piece for done in self.rounds for token in done.emitted]
        return "".join(pieces) + (self.summary.rest if self.summary else "")

    def result(self) -> Result:
        """What the generation came to, as far as its trace tells."""
        header, summary = self.header, self.summary
        return Result(
            text=self.text,
            tokens=[token.id for done in self.rounds for token in done.emitted],
            n_prompt=len(header.prompt_ids),
            n_reused=0,
            stop_reason=summary.stop_reason if summary else None,
            settings=Settings(
                sampling=header.sampling,
                gamma=header.gamma,
                rule=header.rule,
                seed=header.seed,
            ),
            prefill_s=summary.prefill_s if summary else 0.0,
            prefill_draft_s=summary.prefill_draft_s if summary else None,
            tally=self.tally(),
            choices=self.choices(),
            observed_s=0.0,
            rest=summary.rest if summary else "",
            estimated=summary.estimated if summary else None,
        )

    def choices(self) -> Choices:
        """The number of rounds by drafter and by tokens proposed."""
        choices = Choices()
        for done in self.rounds:
            choices.add(done.as_round())
        return choices

    def tally(self) -> Tally:
        """The run's own sums, made again from its rounds.

        The time between rounds of a run that died is unknown, and counted as 0.
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
    NoGeneration
        If the run ended before its header was written.
    UsageError
        If the file cannot be read, a line is not one of a trace, or it is of another schema.
    """
    traces: list[Trace] = []
    start: FileStart | None = None
    for place, fields in _lines(path):
        record = _record(fields, place)
        if isinstance(record, FileStart):
            start = record
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
            refuse(place, "kind", f"{record.kind!r} comes before a header", REMEDY)
    if not traces:
        raise NoGeneration(f"{path} holds no generation: the run ended before its first token")
    return traces


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and JSON value of each line; a torn last line is left out."""
    for number, line, unended in lines_of(path, "the trace"):
        place = f"{path}, line {number}"
        try:
            fields = parse(line, place, REMEDY)
        except UsageError:
            if unended and (number > 1 or line.startswith(b'{"kind": "file"')):
                return
            raise
        yield place, fields


def _record(fields: Any, place: str) -> Line:
    if not isinstance(fields, dict):
        refuse(place, "", f"expected an object, got {shortened(fields)}", REMEDY)
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        refuse(place, "kind", f"{shortened(kind)} is not one of {', '.join(KINDS)}", REMEDY)
    if kind == "file" and type(fields.get("schema")) is int and fields["schema"] != SCHEMA:
        raise UsageError(
            f"{place}: written by specx {shortened(fields.get('specx'))} in schema "
            f"{fields['schema']}; this one reads schema {SCHEMA}: use that version"
        )
    if kind == "header":
        fields = {**fields, "sampling": _with_filters(fields.get("sampling"), place, "sampling")}
    record = convert(fields, KINDS[kind], place, REMEDY)
    if isinstance(record, RoundRecord):
        require_all(fields["times"], Times, place, "times", REMEDY)
    if isinstance(record, BenchSummary):
        for i, arm in enumerate(record.arms):
            field = f"arms[{i}].settings"
            settings = _with_filters(arm["settings"], place, field)
            arm["settings"] = asdict(convert(settings, SweepSettings, f"{place}: {field}", REMEDY))
    return record


def _with_filters(sampling: Any, place: str, field: str) -> Any:
    """`sampling` with the filters off that it does not name: an earlier specx may not have them."""
    if not isinstance(sampling, dict):
        return sampling
    if "temperature" not in sampling:
        refuse(place, field, "object missing required field temperature", REMEDY)
    return {**FILTERS_OFF, **sampling}
