"""One run of `specx tune`: loads, measures, saves and prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import psutil

from specx import Pair, Settings
from specx.bench.profiling import encode_prompt
from specx.bench.suites import Prompt, read_prompts, suite
from specx.bench.values import whole_numbers
from specx.cli.load import load_side, plan_sides, require_memory
from specx.cli.options import (
    chat_options,
    sampling_params,
)
from specx.cli.progress import Progress
from specx.cli.tune_show import Found, as_record, print_found
from specx.codec import to_json
from specx.errors import UsageError
from specx.runtime.backend import LogitsBackend, Tokenizer
from specx.runtime.machine import Watch
from specx.schedule.costs.curve import ProfileRecord
from specx.schedule.costs.saved import SavedCosts, model_used
from specx.schedule.costs.table import as_f16
from specx.shipped import DEMO_THREADS, demo_pair
from specx.tune.measure import LONGEST, MOST, WIDE, Asked, Measurement, in_turns, measure
from specx.tune.recommend import Candidate, verdict
from specx.tune.surface import GAMMAS, agreement, lookup_surface, model_surface, rates_by_kind

__all__ = ["Tuning"]

LEAST = 1.0
"""Seconds of measuring without which nothing can be said."""
FINISHING, FINISHING_S = 0.03, 0.5
"""Time for what follows the measuring: a share of the budget, and seconds."""
MOST_THREADS = 1024
OTHERS = 0.1


@dataclass(frozen=True)
class _Measured:
    """One drafter (or none) with one number of threads."""

    candidate: Candidate | None
    measurement: Measurement
    saved: list[SavedCosts]


class Tuning:
    """One tune, from options to printed results."""

    def __init__(self, given: Mapping[str, Any], begun: float, budget: float) -> None:
        self.begun, self.budget = begun, budget
        self.given = _with_demo_pair(given)
        self.drafters: Sequence[str | None] = self.given["drafters"] or [None]
        self.counts, self.notes = _thread_counts(self.given)
        self.asked = Asked(
            sampling=sampling_params(given),
            rule=given["rule"],
            prompts=in_turns(_prompts(given)),
            seed=given["seed"],
            raw=given["raw"],
            chat=chat_options(given),
        )
        self.progress = Progress(enabled=not given["quiet"])
        self.watch = Watch()

    def run(self) -> int:
        """Measure, save and print; return the exit code."""
        founds: list[Found] = []
        while len(founds) < len(self.counts):
            count, measured = self.counts[len(founds)], list[_Measured]()
            for pair in self._pairs(count):
                self._keep_one_count_on_a_gpu(pair.verifier)
                left = (len(self.counts) - len(founds)) * len(self.drafters) - len(measured)
                measured.append(self._measure(pair, left))
            founds.append(self._found(count, measured))
        if not self.given["no_save"]:
            self._save(founds)
        if self.given["as_json"]:
            click.echo(to_json(as_record(founds, self._about(), self.notes)))
        else:
            print_found(founds, self._about(), self.notes)
        return 0

    def _pairs(self, count: int | None) -> Iterator[Pair]:
        """The verifier with each drafter in turn; it is loaded once."""
        verifier: LogitsBackend | None = None
        try:
            for drafter in self.drafters:
                given = self.given if count is None else {**self.given, "threads": count}
                backend, draft_backend = given["backend"], given["draft_backend"]
                sides = plan_sides(given["model"], drafter, backend, draft_backend, given)
                if verifier is None:
                    require_memory(sides)
                    verifier = self._load(sides[0])
                with _closing([self._load(side) for side in sides[1:]]) as drafting:
                    yield Pair(verifier, *drafting)
        finally:
            if verifier is not None:
                verifier.close()

    def _keep_one_count_on_a_gpu(self, verifier: LogitsBackend) -> None:
        if len(self.counts) > 1 and verifier.describe().get("n_gpu_layers"):
            self.counts = self.counts[:1]
            self.notes.append(
                "layers are on a GPU, where threads hardly matter: only the first count of "
                "--threads was measured"
            )

    def _load(self, side: Any) -> LogitsBackend:
        return load_side(
            side, self._need_ctx, verbose=self.given["verbose"], progress=self.progress
        )

    def _need_ctx(self, tokenizer: Tokenizer) -> int:
        raw, chat = self.asked.raw, self.asked.chat
        prompts = (
            len(encode_prompt(tokenizer, prompt.text, raw=raw, chat=chat))
            for prompt in self.asked.prompts
        )
        return max(LONGEST, max(prompts) + MOST) + WIDE[-1]

    def _measure(self, pair: Pair, left: int) -> _Measured:
        """Measure with an equal share of the time left for `left` measurements."""
        pair.draft_names(Settings(draft=("lookup",)))  # refuses a verifier that cannot forget
        rest = FINISHING * self.budget + FINISHING_S
        seconds = (self.budget - rest - (time.monotonic() - self.begun)) / left
        if seconds < LEAST:
            raise UsageError(
                f"--budget {self.budget:g} was over before anything could be measured (loading "
                f"included); raise it to {self.budget + 30:.0f} or more"
            )
        drafter = pair.drafter
        name = _name(pair.verifier if drafter is None else drafter)
        with self.progress.task(f"measuring {name}", seconds) as report:
            measurement = measure(pair, self.asked, seconds, report)
        long = measurement.long
        if long is None:
            self.notes.append(
                f"{name}: too little time for a second context length; costs are known after "
                f"{measurement.profile.verifier.n_past} tokens alone"
            )
        if measurement.missing:
            self.notes.append(
                f"{name}: no time was left for {', '.join(measurement.missing)}; raise --budget"
            )
        candidate = None if drafter is None else _candidate(name, pair, measurement)
        return _Measured(candidate, measurement, list(_savable(pair, measurement, candidate)))

    def _found(self, count: int | None, measured: Sequence[_Measured]) -> Found:
        """All drafters and lookup with one number of threads."""
        first = measured[0].measurement
        texts = [text for each in measured for text in each.measurement.texts]
        if not texts:
            raise UsageError(
                "the verifier ended every text at its first token, so nothing could be measured; "
                "leave out --raw, or give other prompts (-f)"
            )
        surface, resampled = lookup_surface(first.profile, texts, first.overheads)
        lookup = Candidate(
            name="lookup",
            option="--draft lookup",
            profile=replace(first.profile, drafter=None),
            surface=surface,
            overheads=first.overheads,
            resampled=resampled,
        )
        drafting = [each.candidate for each in measured if each.candidate is not None]
        return Found(
            threads=count if count is not None else first.profile.verifier.threads,
            candidates=[*drafting, lookup],
            saved=[saved for each in measured for saved in each.saved],
        )

    def _save(self, founds: Sequence[Found]) -> None:
        saved = {costs.id: costs for found in founds for costs in reversed(found.saved)}
        if not saved:
            self.notes.append("nothing was saved: the models are not made of files")
        try:
            for costs in saved.values():
                costs.save()
        except UsageError as error:  # what was measured is still worth printing
            self.notes.append(f"the costs were not saved: {error}")
            for found in founds:
                found.saved.clear()

    def _about(self) -> dict[str, Any]:
        others = self.watch.others()
        if others > OTHERS and not any("other programs" in note for note in self.notes):
            self.notes.append(f"other programs took {others:.0%} of the processor meanwhile")
        return {
            "verifier": Path(self.given["model"]).name,
            "budget_s": self.budget,
            "spent_s": round(time.monotonic() - self.begun, 1),
            "rule": self.given["rule"],
            "sampling": {
                name: self.given[name] for name in ("temperature", "top_k", "top_p", "min_p")
            },
        }


def _with_demo_pair(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["model"] is not None:
        return dict(given)
    if given["drafters"]:
        raise UsageError(f"-md {given['drafters'][0]} needs a verifier; add -m VERIFIER.gguf")
    model, drafter = demo_pair()
    threads = given["threads"]
    if given["thread_counts"] is None:
        threads = threads or DEMO_THREADS
    return {**given, "model": model, "drafters": (drafter,), "threads": threads}


def _thread_counts(given: Mapping[str, Any]) -> tuple[list[int | None], list[str]]:
    """The counts to measure (None: as -t says), and notes on those left out."""
    text = given["thread_counts"]
    if text is None:
        return [None], []
    if given["threads"] is not None:
        raise UsageError(
            f"--threads {text} and -t {given['threads']} were both given; leave one out"
        )
    counts = whole_numbers("--threads", text, MOST_THREADS)
    if min(counts) < 1:
        raise UsageError(f"--threads {text} must begin at 1 or more")
    cores = psutil.cpu_count() or 1
    possible: list[int | None] = [count for count in counts if count <= cores]
    notes = []
    if len(possible) < len(counts):
        notes.append(f"thread counts above the {cores} cores of this machine were left out")
    return possible or [min(cores, *counts)], notes


def _prompts(given: Mapping[str, Any]) -> list[Prompt]:
    return suite(given["suite"]) if given["file"] is None else read_prompts(given["file"])


def _candidate(name: str, pair: Pair, measurement: Measurement) -> Candidate:
    labels: dict[str, list[Any]] = {}
    for sample in measurement.samples:
        labels.setdefault(sample.kind, []).append(sample.labels)
    profile, overheads = measurement.profile, measurement.overheads
    return Candidate(
        name=name,
        option=f"-md {name}",
        profile=profile,
        surface=model_surface(profile, rates_by_kind(labels, GAMMAS[-1]), overheads),
        overheads=overheads,
        resampled=agreement(profile, measurement.samples, overheads),
        f16=as_f16(profile, pair.verifier),
    )


def _savable(
    pair: Pair, measurement: Measurement, candidate: Candidate | None
) -> Iterator[SavedCosts]:
    """The costs of the pair, and those of its verifier alone."""
    verifier = model_used(pair.verifier)
    profiles = [measurement.profile, *([measurement.long] if measurement.long else [])]
    records = [
        ProfileRecord(core=measurement.profile.core, verifier=p.verifier, drafter=p.drafter)
        for p in profiles
    ]
    if verifier is None:
        return
    if pair.drafter is not None and candidate is not None:
        drafter = model_used(pair.drafter)
        if drafter is not None:
            rates = {kind: list(row) for kind, row in candidate.surface.rates.items()}
            yield SavedCosts(
                verifier=verifier,
                drafter=drafter,
                profiles=records,
                acceptance=rates,
                advice=verdict(candidate),
            )
    yield SavedCosts(
        verifier=verifier, profiles=[replace(record, drafter=None) for record in records]
    )


def _name(model: LogitsBackend) -> str:
    return Path(model.name.partition(":")[2]).name


@contextmanager
def _closing(models: list[LogitsBackend]) -> Iterator[list[LogitsBackend]]:
    try:
        yield models
    finally:
        for model in models:
            model.close()
