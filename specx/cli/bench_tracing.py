"""`specx bench --trace`: writes every measured run to one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from specx import Result
from specx.bench import Arm, Plan, Watch
from specx.bench.render import label_of
from specx.bench.suites import Prompt
from specx.cli.files import OutputPath
from specx.closing import Closing
from specx.records.trace import BenchSummary, GenerationTrace, TraceWriter, summary_of

__all__ = ["BENCH_TRACE", "BenchTracing"]

BENCH_TRACE = click.option(
    "--trace",
    "trace_file",
    metavar="FILE",
    type=OutputPath("trace"),
    help="Write every round of every measured run to this file as it happens (JSON lines; read it "
    "with specx report). The figures exclude the time this takes.",
)


class BenchTracing(Closing):
    """Writes a sweep's runs if a trace was requested; opens the file before models are loaded.

    Attributes
    ----------
    provenance
        Provenance of the models that are loaded now; the sweep sets it.
    """

    def __init__(self, path: Path | None, plan: Plan) -> None:
        self._writer = None if path is None else TraceWriter(path)
        self._plan = plan
        self._arms: list[dict[str, Any]] = [{"settings": arm.record()} for arm in plan.arms]
        self.provenance: dict[str, Any] = {}

    @property
    def watch(self) -> Watch | None:
        """Makes an observer for each run; None without a trace."""
        writer = self._writer
        if writer is None:
            return None
        return lambda arm, repetition, prompt: _Run(
            writer, prompt.text, **self._header_parts(arm, repetition, prompt)
        )

    def _header_parts(self, arm: Arm, repetition: int, prompt: Prompt) -> dict[str, Any]:
        """Header fields of a run, besides those that determine its tokens."""
        models = dict(self.provenance.get("models", {}))
        if not arm.needs_model:
            models.pop("drafter", None)
        own = {"settings": arm.record()}
        return {
            "labels": {
                "arm": label_of(own, self._arms),
                "prompt": prompt.id,
                "kind": prompt.kind,
                "repetition": repetition,
            },
            "shown": {
                **own["settings"],
                "seed": self._plan.seed_of(repetition, prompt),
                "predict": self._plan.n,
                "ignore_eos": self._plan.ignore_eos,
                "raw": self._plan.raw,
                "template_args": dict(self._plan.chat.arguments),
            },
            "provenance": {**self.provenance, "models": models},
        }

    def end(self, record: Mapping[str, Any]) -> None:
        """Write the sweep's summary; `record` is the object that ``--json`` prints."""
        if self._writer is None or self._writer.closed:
            return
        arms: list[Any] = [{k: v for k, v in arm.items() if k != "runs"} for arm in record["arms"]]
        kept = ("n", "planned", "complete", "profiles", "warnings")
        self._writer.end_bench(BenchSummary(arms=arms, **{key: record[key] for key in kept}))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class _Run(GenerationTrace):
    """Writes one run of a sweep; one that is broken off gets no summary."""

    def end(self, result: Result) -> None:
        if result.complete:
            self._writer.end(summary_of(result.unobserved()))
