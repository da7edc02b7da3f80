"""The results of a benchmark, run by run, and the file that stores them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from specx.bench.profiling import Samples
from specx.codec import (
    Count,
    Seconds,
    convert,
    read_json,
    refuse,
    require_all,
    shortened,
)
from specx.core.sampling import SamplingParams
from specx.drafters import get_drafter
from specx.drafters.lookup import MOST_PROPOSALS
from specx.errors import UsageError
from specx.records.trace.records import SweepSettings
from specx.schedule.costs.curve import Profile, ProfileRecord, Width, profile_record
from specx.session.decoding import Times
from specx.session.settings import Settings
from specx.session.tally import Tally

__all__ = ["Arm", "ArmRecord", "Results", "Run", "read_results", "results_record"]

FORMAT = 1
ALONE, GREEDY = "-", "greedy"
"""Shown instead of a rule when nothing is drafted or only one token can be right."""
ANY_RULE = "token"
"""The rule used in those cases, in which all rules decide alike."""
MODEL = ("model",)
FILTERS = tuple(each.name for each in fields(SamplingParams))
REMEDY = "specx bench -o FILE.json writes a result"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One setting of a sweep: all that its runs share; each run adds its own seed."""

    settings: Settings
    """They name the drafters; gamma 0 is the verifier alone."""
    backend: str
    draft_backend: str
    cached: bool = True

    @property
    def gamma(self) -> int | Literal["auto"]:
        """Tokens to propose per round."""
        return self.settings.gamma

    @property
    def sampling(self) -> SamplingParams:
        """The verifier's sampler."""
        return self.settings.sampling

    @property
    def rule(self) -> str:
        """The rule as displayed: its name only where rules can differ."""
        if not self.gamma:
            return ALONE
        return GREEDY if self.sampling.greedy else self.settings.rule

    @property
    def runtimes(self) -> str:
        """Names of the verifier's and the drafter's backends, such as ``hf+llamacpp``."""
        both = dict.fromkeys([self.backend, self.draft_backend])
        return "+".join(both)

    @property
    def needs_model(self) -> bool:
        """True if one of its drafters is a second model."""
        return any(get_drafter(name).needs_model for name in self.settings.draft or ())

    @property
    def longest_draft(self) -> int:
        """The most tokens that it proposes per round."""
        return MOST_PROPOSALS if self.gamma == "auto" else self.gamma

    @property
    def drafts_in_full(self) -> bool:
        """True if every round with enough room proposes `gamma` tokens drafted by a model."""
        settings = self.settings
        cut = settings.entropy_stop is not None or settings.draft_p_min is not None
        return self.gamma not in (0, "auto") and settings.draft == MODEL and not cut

    def baseline(self) -> Arm:
        """The verifier alone under the same sampler."""
        alone = Settings(sampling=self.sampling, gamma=0, rule=ANY_RULE)
        return replace(self, settings=alone, cached=True)

    def record(self) -> dict[str, Any]:
        """A flat record of JSON values, as in `ArmRecord`."""
        settings, drawn = self.settings, self.settings.draft_sampling
        return {
            "backend": self.backend,
            "draft_backend": self.draft_backend,
            **asdict(self.sampling),
            "gamma": self.gamma,
            "rule": self.rule,
            "cached": self.cached,
            "draft": None if settings.draft is None else "+".join(settings.draft),
            **{f"draft_{name}": drawn and getattr(drawn, name) for name in FILTERS},
            "entropy_stop": settings.entropy_stop,
            "draft_p_min": settings.draft_p_min,
        }


@dataclass(frozen=True, kw_only=True)
class ArmRecord(SweepSettings):
    """An arm as stored in JSON and CSV, with the settings that a trace of the sweep records."""

    def arm(self) -> Arm:
        """The arm with these settings.

        Raises
        ------
        UsageError
            If the settings are invalid.
        """
        sampling = SamplingParams(**{name: getattr(self, name) for name in FILTERS})
        decided = sampling.greedy or not self.gamma or self.rule in (ALONE, GREEDY)
        settings = Settings(
            sampling=sampling,
            gamma=self.gamma,
            rule=ANY_RULE if decided else self.rule,
            **({} if self.gamma == 0 else self._drafting(sampling)),
        )
        return Arm(
            settings=settings,
            backend=self.backend,
            draft_backend=self.draft_backend,
            cached=self.cached,
        )

    def _drafting(self, sampling: SamplingParams) -> dict[str, Any]:
        """The fields of `Settings` that matter only with a drafter."""
        own: dict[str, Any] = {n: getattr(self, f"draft_{n}", None) for n in FILTERS}
        own = {name: value for name, value in own.items() if value is not None}
        try:
            drawn = replace(sampling, **own) if own else None
        except UsageError as error:
            raise UsageError(f"the drafter's {error}") from error
        return {
            "draft": MODEL if self.draft is None else tuple(self.draft.split("+")),
            "draft_sampling": drawn,
            "entropy_stop": self.entropy_stop,
            "draft_p_min": self.draft_p_min,
        }


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
    gammas: dict[str, dict[Count, Count]] = field(default_factory=dict)
    """By drafter: the number of rounds for each draft length; empty in files of 0.1.0."""
    text_crc: Count | None = None
    """CRC-32 of the emitted tokens as 32-bit little-endian integers: equal for equal texts.
    None for runs written by 0.1.0."""

    @property
    def key(self) -> tuple[str, int]:
        """The key that pairs it with the run of another arm."""
        return self.prompt, self.repetition

    @property
    def tok_s(self) -> float:
        """Tokens per second; 0 if nothing was written."""
        return self.tally.tok_s or 0.0


@dataclass
class Results:
    """All runs of a sweep, and the machine and models that they were measured on."""

    n: int
    """The most tokens that a run writes."""
    runs: dict[Arm, list[Run]] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    """By the arm's `runtimes`."""
    timings: dict[str, Samples] = field(default_factory=dict)
    """The timings behind the profiles."""
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, str]] = field(default_factory=list)
    planned: int = 0
    """The number of runs planned per arm."""

    def add(self, arm: Arm, run: Run) -> None:
        """Add a run to its arm, replacing any with the same key."""
        others = [other for other in self.runs.get(arm, []) if other.key != run.key]
        self.runs[arm] = [*others, run]

    @property
    def n_done(self) -> int:
        """The number of runs, over all arms."""
        return sum(map(len, self.runs.values()))

    @property
    def complete(self) -> bool:
        """True if every arm has all its runs."""
        return all(len(runs) == self.planned for runs in self.runs.values())


def results_record(results: Results, arms: list[dict[str, Any]]) -> dict[str, Any]:
    """The contents of the JSON file; `arms` are the summaries, in the order of `results.runs`."""
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
    """The parts of a provenance that are read back; it holds more."""

    peak_memory_mib: Count
    models: dict[str, dict[str, Any]]
    sweep: dict[str, Any]


@dataclass
class _Arm:
    settings: ArmRecord
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
        If it cannot be read or is not such a file; the message names the field.
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
    """The runs by arm; `given` is the JSON behind `arms`."""
    runs: dict[Arm, list[Run]] = {}
    for number, found in enumerate(arms):
        field = f"arms[{number}]"
        try:
            arm = found.settings.arm()
        except UsageError as error:
            refuse(place, f"{field}.settings", str(error), REMEDY)
        if arm in runs:
            refuse(place, f"{field}.settings", "an earlier arm has the same settings", REMEDY)
        for turn, run in enumerate(found.runs):
            way, tally = f"{field}.runs[{turn}].tally", given[number]["runs"][turn]["tally"]
            require_all(tally, Tally, place, way, REMEDY)
            require_all(tally["times"], Times, place, f"{way}.times", REMEDY)
            _check_tally(run.tally, way, place)
        runs[arm] = found.runs
    return runs


def _check_tally(tally: Tally, field: str, place: str) -> None:
    """Refuse counts that contradict each other, on which rates would be meaningless."""
    if tally.proposed and not tally.rounds:
        refuse(place, f"{field}.rounds", f"0, but {tally.proposed} tokens were proposed", REMEDY)
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
