"""What a benchmark measured, run by run, and the file that keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from specx.bench.profiling import Samples
from specx.codec import (
    Count,
    Gamma,
    Number,
    Seconds,
    convert,
    read_json,
    refuse,
    require_all,
    shortened,
)
from specx.core.sampling import SamplingParams
from specx.errors import UsageError
from specx.schedule.costs.curve import Profile, ProfileRecord, Width, profile_record
from specx.session.decoding import Times
from specx.session.tally import Tally

__all__ = ["Arm", "Results", "Run", "read_results", "results_record"]

FORMAT = 1
REMEDY = "specx bench -o FILE.json writes a result"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One setting of a sweep; `gamma` 0 is the verifier alone."""

    backend: str
    draft_backend: str
    temperature: Number
    top_k: Count
    top_p: Number
    min_p: Number
    gamma: Gamma
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
    repetition: Count
    seed: Count
    n_prompt: Count
    prefill_s: Seconds
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


class _Warning(TypedDict):
    text: str
    remedy: str


class _Provenance(TypedDict, total=False):
    """What is asked of a provenance later on; it holds more."""

    peak_memory_mib: Count
    models: dict[str, dict[str, Any]]
    sweep: dict[str, Any]


@dataclass
class _Arm:
    settings: Arm
    runs: list[Run]


@dataclass
class _File:
    n: Count
    planned: Count
    arms: list[_Arm]
    profiles: dict[str, ProfileRecord]
    timings: dict[str, dict[str, dict[Width, list[Seconds]]]]
    provenance: _Provenance
    warnings: list[_Warning]


def read_results(path: Path) -> Results:
    """Read a JSON file of `specx bench`.

    Raises
    ------
    UsageError
        If it cannot be read or is none; the line names the field.
    """
    record, place = read_json(path, "the results", REMEDY), str(path)
    if not isinstance(record, dict) or "specx_bench" not in record:
        raise UsageError(f"{path} is not a result of specx bench; {REMEDY}")
    if record["specx_bench"] != FORMAT:
        shown = shortened(record["specx_bench"])
        raise UsageError(f"{path} has format {shown}; this specx reads {FORMAT}")
    found = convert(record, _File, place, REMEDY)
    return Results(
        n=found.n,
        runs=_runs(found.arms, record["arms"], place),
        profiles={
            key: each.profile(f"{path}: profile {shortened(key)}", REMEDY)
            for key, each in found.profiles.items()
        },
        timings=found.timings,
        provenance=record["provenance"],
        warnings=[{"text": each["text"], "remedy": each["remedy"]} for each in found.warnings],
        planned=found.planned,
    )


def _runs(arms: list[_Arm], given: list[Any], place: str) -> dict[Arm, list[Run]]:
    """By arm; `given` is what `arms` were made of."""
    runs: dict[Arm, list[Run]] = {}
    for number, arm in enumerate(arms):
        field = f"arms[{number}]"
        if arm.settings in runs:
            refuse(place, f"{field}.settings", "an arm before it has the same", REMEDY)
        try:
            _ = arm.settings.sampling
        except UsageError as error:
            refuse(place, f"{field}.settings", str(error), REMEDY)
        for turn, run in enumerate(arm.runs):
            way, tally = f"{field}.runs[{turn}].tally", given[number]["runs"][turn]["tally"]
            require_all(tally, Tally, place, way, REMEDY)
            require_all(tally["times"], Times, place, f"{way}.times", REMEDY)
            _check_tally(run.tally, way, place)
        runs[arm.settings] = arm.runs
    return runs


def _check_tally(tally: Tally, field: str, place: str) -> None:
    """What its rates divide by is there where something was counted."""
    if tally.proposed and not tally.rounds:
        refuse(place, f"{field}.rounds", f"0, and {tally.proposed} tokens proposed", REMEDY)
    for name, most in (("accepted", tally.tested), ("tested", tally.proposed)):
        if getattr(tally, name) > most:
            refuse(place, f"{field}.{name}", f"{getattr(tally, name)} of {most}", REMEDY)
    for i, (tested, accepted) in enumerate(tally.by_position):
        if accepted > tested or not tested:
            refuse(place, f"{field}.by_position[{i}]", f"{accepted} of {tested} accepted", REMEDY)


def _run_record(run: Run) -> dict[str, Any]:
    record = asdict(run)
    record["tally"].pop("_last_was_full")
    return record
