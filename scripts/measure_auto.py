"""`--gamma auto` against fixed gammas: temperature 0, so that every arm writes the same text.

    scripts/measure_auto.py VERIFIER.gguf DRAFTER.gguf --profile P.json -o auto.json
    scripts/measure_auto.py VERIFIER.gguf --draft lookup --profile P.json --gamma 0 -o lookup.json

All arms of a prompt are interleaved in each repetition, in an order of its own. The best fixed
gamma is chosen on one repetition and scored on the others, each in turn. Every run is written to
the file at once, and one that is there is not made again. The tables of docs/benchmarks.md come
from such files.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from specx import (
    LoadOptions,
    LogitsBackend,
    Pair,
    SamplingParams,
    Settings,
    Stop,
    Tally,
    get_backend,
)
from specx.bench.profiling import encode_prompt
from specx.bench.speedup import median_speedup
from specx.bench.suites import Prompt, suite
from specx.output import OutputFile
from specx.records.markdown import markdown_table
from specx.schedule.costs.curve import read_profile
from specx.session.tally import Choices

GAMMAS = "0,1,2,3,4,6,8"
AUTO, PLAIN = "auto", "0"
FORMAT = 1

Run: TypeAlias = "dict[str, Any]"
Key: TypeAlias = "tuple[str, str, int]"
"""Prompt, arm, repetition."""
Ratios: TypeAlias = "dict[str, list[float]]"
"""By prompt, one a repetition."""


def main() -> None:
    """Measure what is missing, and print the table."""
    options = parse_options()
    file = OutputFile(options.output)
    record = Record(settings_of(options), runs_in(options.output, settings_of(options)))
    with load(options) as pair:
        for key, prompt in record.missing():
            record.runs[key] = decode(pair, prompt, key[1], options)
            file.write(record.as_json())
            print(*key, f"{record.runs[key]['tok_s']:.2f} tok/s", flush=True)
    print(record.table())


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("model_draft", nargs="?")
    parser.add_argument("--draft", default="model", help="model, lookup or model,lookup")
    parser.add_argument("--backend", default="llamacpp")
    parser.add_argument("--draft-backend", help="the verifier's by default")
    parser.add_argument("--dtyped", help="number type of the drafter (hf); the verifier's if unset")
    parser.add_argument("--weights-cache", help="a folder for dequantised weights (hf)")
    parser.add_argument("--profile", type=Path, help="costs; without, the shipped table (cold)")
    parser.add_argument("--frozen", action="store_true", help="no live timings, as under a --seed")
    parser.add_argument("--suite", default="all:1", help="prompts, as specx bench takes them")
    parser.add_argument("--gamma", default=GAMMAS, help="fixed gammas, 0 among them")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("-r", type=int, default=3, help="repetitions")
    parser.add_argument("-o", "--output", type=Path, required=True, help="runs, resumed")
    return parser.parse_args()


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What two calls must agree on to be one measurement; more repetitions only add to it."""
    draft_model = None if options.model_draft is None else Path(options.model_draft).name
    return {
        "verifier": Path(options.model).name,
        "drafter": draft_model,
        "draft": options.draft,
        "backend": options.backend,
        "draft_backend": options.draft_backend or options.backend,
        "draft_dtype": options.dtyped,
        "costs": "table" if options.profile is None else "profile",
        "live": not options.frozen,
        "suite": options.suite,
        "gammas": options.gamma.split(","),
        "temperature": options.temp,
        "n": options.n,
        "repetitions": options.r,
    }


def runs_in(path: Path, settings: dict[str, Any]) -> dict[Key, Run]:
    """Runs made before, with these settings."""
    if not path.exists():
        return {}
    before = read(path)
    # Records from before a drafter could have a type of its own do not name one.
    same = {"draft_dtype": None, **before.settings, "repetitions": settings["repetitions"]}
    if same != settings:
        raise SystemExit(f"{path} was measured with other settings; give another file with -o")
    return before.runs


def read(path: Path) -> Record:
    """A record, as it was written."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("specx_auto") != FORMAT:
        raise SystemExit(f"{path} is no record of scripts/measure_auto.py; give another with -o")
    runs = {(run["prompt"], run["arm"], run["repetition"]): run["run"] for run in data["runs"]}
    return Record(data["settings"], runs)


def load(options: argparse.Namespace) -> Pair:
    """The pair; the context holds the longest prompt."""
    verifier = load_model(options, options.backend, options.model)
    if options.model_draft is None:
        return Pair(verifier)
    backend = options.draft_backend or options.backend
    return Pair(verifier, load_model(options, backend, options.model_draft, options.dtyped))


def load_model(
    options: argparse.Namespace, backend: str, model: str, dtype: str | None = None
) -> LogitsBackend:
    """A model on its runtime."""
    cache = options.weights_cache if backend == "hf" else None
    return get_backend(backend).load(model, LoadOptions(weights_cache=cache, dtype=dtype))


def decode(pair: Pair, prompt: Prompt, arm: str, options: argparse.Namespace) -> Run:
    """One generation of an arm from empty caches."""
    for model in pair.models:
        model.truncate(0)
    gamma: Any = AUTO if arm == AUTO else int(arm)
    names = tuple(options.draft.split(","))
    settings = Settings(
        sampling=SamplingParams(temperature=options.temp),
        gamma=gamma,
        draft=names if arm == AUTO else names[:1],
    )
    profile = None if options.profile is None else read_profile(options.profile)
    schedule = pair.schedule(settings, pair.costs(profile, live=not options.frozen))
    tokens = encode_prompt(pair.verifier.tokenizer, prompt.text, raw=False)
    n_prompt = len(tokens)
    pair.prefill(tokens)
    stop = Stop(pair.verifier.tokenizer, options.n, ignore_eos=True)
    tally, choices, clock = Tally(), Choices(), pair.verifier.clock
    begun = clock()
    for done in pair.rounds(tokens, settings, stop, schedule):
        tally.add(done)
        choices.add(done)
    seconds = clock() - begun
    return {
        "tok_s": tally.n_tokens / seconds,
        "rounds": tally.rounds,
        "text": zlib.crc32(np.array(tokens[n_prompt:], dtype="<i4").tobytes()),
        "alpha": tally.alpha,
        "tau": tally.tau,
        "gammas": {
            who: {str(g): n for g, n in sorted(counts.items())}
            for who, counts in choices.gammas.items()
        },
    }


class Record:
    """What was measured."""

    def __init__(self, settings: dict[str, Any], runs: dict[Key, Run]) -> None:
        self.settings = settings
        self.runs = runs
        self.prompts = suite(settings["suite"])
        self.arms: list[str] = [*settings["gammas"], AUTO]

    def missing(self) -> list[tuple[Key, Prompt]]:
        """What is still to be run, in its order."""
        found = []
        for repetition in range(self.settings["repetitions"]):
            for number, prompt in enumerate(self.prompts):
                order = np.random.default_rng([repetition, number]).permutation(len(self.arms))
                keys = [(prompt.id, self.arms[i], repetition) for i in order]
                found += [(key, prompt) for key in keys if key not in self.runs]
        return found

    def as_json(self) -> str:
        """A run a line."""
        names = ("prompt", "arm", "repetition")
        runs = [
            json.dumps({**dict(zip(names, key, strict=True)), "run": run})
            for key, run in self.runs.items()
        ]
        head = json.dumps(self.settings, indent=1)
        lines = ",\n  ".join(runs)
        return f'{{"specx_auto": {FORMAT},\n "settings": {head},\n "runs": [\n  {lines}]}}\n'

    def speeds(self, prompt: Prompt, arm: str) -> list[float]:
        """Tokens a second, one a repetition."""
        repetitions = range(self.settings["repetitions"])
        return [self.runs[prompt.id, arm, i]["tok_s"] for i in repetitions]

    def best(self, prompt: Prompt) -> list[str]:
        """The fixed gamma that was fastest in each repetition."""
        speeds = {arm: self.speeds(prompt, arm) for arm in self.settings["gammas"]}
        repetitions = range(self.settings["repetitions"])
        return [max(speeds, key=lambda arm: speeds[arm][i]) for i in repetitions]

    def against_best(self, prompt: Prompt) -> list[float]:
        """Auto over the gamma that was best in the other repetitions, one ratio a repetition."""
        best, auto = self.best(prompt), self.speeds(prompt, AUTO)
        ratios = []
        for i, speed in enumerate(auto):
            others = [j for j in range(len(auto)) if j != i] or [i]
            ratios.append(median(speed / self.speeds(prompt, best[j])[i] for j in others))
        return ratios

    def against_plain(self, prompt: Prompt) -> list[float]:
        """Auto over the verifier alone."""
        pairs = zip(self.speeds(prompt, AUTO), self.speeds(prompt, PLAIN), strict=True)
        return [auto / plain for auto, plain in pairs]

    def same_text(self) -> bool:
        """Whether every arm of a prompt wrote the same."""
        texts = defaultdict(set)
        for (prompt, _, _), run in self.runs.items():
            texts[prompt].add(run["text"])
        return all(len(each) == 1 for each in texts.values())

    def words(self) -> str:
        """How it was measured."""
        known = self.settings
        costs = "a profile" if known["costs"] == "profile" else "the shipped table"
        live = ", corrected by live timings" if known["live"] else ", no live timings"
        text = "" if self.same_text() else ", texts that differ between the arms"
        times = known["repetitions"]
        repetitions = "one repetition" if times == 1 else f"{times} repetitions"
        dtype = known.get("draft_dtype")
        drafter = f"drafter in {dtype}, " if dtype else ""
        return (
            f" ({drafter}{known['n']} tokens, temperature {known['temperature']:g}, "
            f"arms interleaved, {repetitions}, costs from {costs}{live}{text})"
        )

    def table(self) -> str:
        """Auto against the best fixed gamma and against the verifier alone, by kind and over all.

        Without a fixed gamma but 0, the comparison with the best of them is left out.
        """
        fixed = self.settings["gammas"] != [PLAIN]
        header = ["kind", "best fixed gamma", "auto / best fixed", "auto / alone", "auto drafted"]
        rows = [header]
        for prompt in self.prompts:
            rows.append([prompt.id, *self._row([prompt], fixed), self._drafted([prompt])])
        rows.append(["**all**", *self._row(self.prompts, fixed), self._drafted(self.prompts)])
        if not fixed:
            rows = [[row[0], *row[3:]] for row in rows]
        return markdown_table(rows, figures=header[2:4])

    def _row(self, prompts: list[Prompt], fixed: bool) -> list[str]:
        best = sorted({arm for prompt in prompts for arm in self.best(prompt)}, key=int)
        over_best = {prompt.id: self.against_best(prompt) for prompt in prompts}
        over_plain = {prompt.id: self.against_plain(prompt) for prompt in prompts}
        return [", ".join(best) if fixed else "", interval(over_best), interval(over_plain)]

    def _drafted(self, prompts: list[Prompt]) -> str:
        """How many rounds had how long a draft."""
        rounds, drafts, proposed = 0, 0, 0
        for prompt in prompts:
            for i in range(self.settings["repetitions"]):
                run = self.runs[prompt.id, AUTO, i]
                rounds += run["rounds"]
                for counts in run["gammas"].values():
                    drafts += sum(n for g, n in counts.items() if g != PLAIN)
                    proposed += sum(int(g) * n for g, n in counts.items())
        if not drafts:
            return "nothing"
        return f"{proposed / drafts:.1f} tokens in {drafts / rounds:.0%} of rounds"


def interval(ratios: Ratios) -> str:
    """The median over prompts, and its interval; over repetitions where there is one prompt."""
    found = median_speedup(ratios)
    assert found is not None
    return str(found)


if __name__ == "__main__":
    main()
