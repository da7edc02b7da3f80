"""What a benchmark measured, run by run, and the file that keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from specx.bench.profiling import Samples
from specx.cost import Profile, profile_from, profile_record
from specx.decoding import Times
from specx.errors import UsageError
from specx.sampling import SamplingParams
from specx.stats import Tally

__all__ = ["Arm", "Results", "Run", "read_results", "results_record"]

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One setting of a sweep; `gamma` 0 is the verifier alone."""

    backend: str
    draft_backend: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    gamma: int
    rule: str
    cached: bool = True

    @property
    def runtimes(self) -> str:
        """Names of the verifier's and the drafter's backend: ``hf+llamacpp``."""
        both = dict.fromkeys([self.backend, self.draft_backend])
        return "+".join(both)

    @property
    def sampling(self) -> SamplingParams:
        """The sampler of both sides."""
        return SamplingParams(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p
        )

    def baseline(self) -> Arm:
        """The verifier alone under the same sampler."""
        return replace(self, gamma=0, rule="-", cached=True)


@dataclass
class Run:
    """One generation of an arm."""

    prompt: str
    """The prompt's id."""
    kind: str
    repetition: int
    seed: int
    n_prompt: int
    prefill_s: float
    stop_reason: str
    tally: Tally

    @property
    def key(self) -> tuple[str, int]:
        """What pairs it with the run of another arm."""
        return self.prompt, self.repetition

    @property
    def tok_s(self) -> float:
        """Tokens a second; 0 where nothing was written."""
        return self.tally.tok_s or 0.0


@dataclass
class Results:
    """All runs of a sweep, and what they were measured on."""

    n: int
    """Most tokens a run writes."""
    runs: dict[Arm, list[Run]] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    """By the arm's `runtimes`."""
    timings: dict[str, Samples] = field(default_factory=dict)
    """What the profiles were made of."""
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, str]] = field(default_factory=list)
    planned: int = 0
    """Runs that each arm was to have."""

    def add(self, arm: Arm, run: Run) -> None:
        """Count a run to its arm, in the place of one with the same key."""
        others = [other for other in self.runs.get(arm, []) if other.key != run.key]
        self.runs[arm] = [*others, run]

    @property
    def n_done(self) -> int:
        """Runs of all arms."""
        return sum(map(len, self.runs.values()))

    @property
    def complete(self) -> bool:
        """Whether every arm has all its runs."""
        return all(len(runs) == self.planned for runs in self.runs.values())


def results_record(results: Results, arms: list[dict[str, Any]]) -> dict[str, Any]:
    """What the JSON file holds; `arms` are the summaries, in the order of `results.runs`."""
    return {
        "specx_bench": FORMAT,
        "n": results.n,
        "planned": results.planned,
        "complete": results.complete,
        "arms": [
            {**summary, "runs": [_run_record(run) for run in runs]}
            for summary, runs in zip(arms, results.runs.values(), strict=True)
        ],
        "profiles": {key: profile_record(p) for key, p in results.profiles.items()},
        "timings": results.timings,
        "provenance": results.provenance,
        "warnings": results.warnings,
    }


def read_results(path: Path) -> Results:
    """Read a JSON file of `specx bench`.

    Raises
    ------
    UsageError
        If it cannot be read or is none.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    try:
        if record["specx_bench"] != FORMAT:
            raise UsageError(
                f"{path} has format {record['specx_bench']}; this specx reads {FORMAT}"
            )
        return Results(
            n=record["n"],
            runs={
                Arm(**arm["settings"]): [_run(each) for each in arm["runs"]]
                for arm in record["arms"]
            },
            profiles={key: profile_from(each) for key, each in record["profiles"].items()},
            timings={key: _samples(each) for key, each in record["timings"].items()},
            provenance=dict(record["provenance"]),
            warnings=record["warnings"],
            planned=record["planned"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is no result of specx bench ({error!r}); make one: specx bench -o {path}"
        ) from error


def _samples(record: dict[str, dict[str, list[float]]]) -> Samples:
    return {
        role: {int(width): seconds for width, seconds in timed.items()}
        for role, timed in record.items()
    }


def _run_record(run: Run) -> dict[str, Any]:
    record = asdict(run)
    record["tally"].pop("_last_was_full")
    return record


def _run(record: dict[str, Any]) -> Run:
    tally = dict(record["tally"])
    tally["times"] = Times(**tally["times"])
    tally["lengths"] = {int(n): count for n, count in tally["lengths"].items()}
    return Run(**{**record, "tally": Tally(**tally)})
