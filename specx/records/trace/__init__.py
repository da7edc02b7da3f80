"""A run's rounds as lines of JSON: written while it runs, read back as typed records."""

from specx.records.trace.reading import NoGeneration, Trace, read_trace, read_traces
from specx.records.trace.records import (
    SCHEMA,
    BenchSummary,
    DraftToken,
    Emitted,
    FileStart,
    Header,
    LastToken,
    RoundRecord,
    Summary,
    Uncertainty,
)
from specx.records.trace.rounds import record_round, replayed_acceptance
from specx.records.trace.uncertainty import uncertainty
from specx.records.trace.writing import GenerationTrace, TraceWriter, header_for, summary_of

__all__ = [
    "SCHEMA",
    "BenchSummary",
    "DraftToken",
    "Emitted",
    "FileStart",
    "GenerationTrace",
    "Header",
    "LastToken",
    "NoGeneration",
    "RoundRecord",
    "Summary",
    "Trace",
    "TraceWriter",
    "Uncertainty",
    "header_for",
    "read_trace",
    "read_traces",
    "record_round",
    "replayed_acceptance",
    "summary_of",
    "uncertainty",
]
