"""`--gamma auto` against fixed gammas: temperature 0, so that every arm writes the same text.

    scripts/measure_auto.py VERIFIER.gguf DRAFTER.gguf --profile P.json -o auto.json
    scripts/measure_auto.py VERIFIER.gguf --draft lookup --profile P.json --suite edit -o edit.json

All arms of a prompt are interleaved in each repetition, in an order of its own. The best fixed
gamma is chosen on one repetition and scored on the others, each in turn; a ratio's interval comes
from a bootstrap over repetitions and prompts. Every run is written to the file at once, and one
that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from specx import LoadOptions, Pair, SamplingParams, Settings, Stop, Tally, get_backend
from specx.bench.profiling import encode_prompt
from specx.cost import read_profile
from specx.stats import Choices
from specx.suites import Prompt, suite

GAMMAS = "0,1,2,3,4,6,8"
RESAMPLES = 10_000
AUTO, PLAIN = "auto", "0"

Key: TypeAlias = "tuple[str, str, int]"
"""Prompt, arm, repetition."""


def main() -> None:
    """Measure what is missing, and print the table."""
    options = parse_options()
    runs = read(options.output)
    arms = [*options.gamma.split(","), AUTO]
    prompts = suite(options.suite)
    with load(options) as pair:
        for repetition in range(options.r):
            for prompt in prompts:
                order = np.random.default_rng([repetition, len(prompt.id)]).permutation(len(arms))
                for arm in (arms[i] for i in order):
                    key = (prompt.id, arm, repetition)
                    if key not in runs:
                        runs[key] = decode(pair, prompt, arm, options)
                        write(options.output, runs)
    show(runs, prompts, arms, options.r)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("model_draft", nargs="?")
    parser.add_argument("--draft", default="model", help="model, lookup or model,lookup")
    parser.add_argument("--backend", default="llamacpp")
    parser.add_argument("--draft-backend", help="the verifier's by default")
    parser.add_argument("--profile", type=Path, help="costs; without, the shipped table (cold)")
    parser.add_argument("--live", action="store_true", help="learn costs from the run's times")
    parser.add_argument("--suite", default="all:1", help="prompts, as specx bench takes them")
    parser.add_argument("--gamma", default=GAMMAS, help="fixed gammas, 0 among them")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, required=True, help="runs, resumed")
    return parser.parse_args()


def load(options: argparse.Namespace) -> Pair:
    """The pair; the context holds the longest prompt."""
    verifier = get_backend(options.backend).load(options.model, LoadOptions())
    if options.model_draft is None:
        return Pair(verifier)
    backend = get_backend(options.draft_backend or options.backend)
    return Pair(verifier, backend.load(options.model_draft, LoadOptions()))


def decode(pair: Pair, prompt: Prompt, arm: str, options: argparse.Namespace) -> dict[str, Any]:
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
    schedule = pair.schedule(settings, pair.costs(profile, live=options.live))
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
    print(f"{prompt.id:<16} {arm:>4} {tally.n_tokens / seconds:7.2f} tok/s", flush=True)
    gammas = {who: {str(g): n for g, n in counts.items()} for who, counts in choices.gammas.items()}
    return {
        "seconds": seconds,
        "tokens": tokens[n_prompt:],
        "alpha": tally.alpha,
        "tau": tally.tau,
        "gammas": gammas,
    }


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """Runs made before."""
    if not path.exists():
        return {}
    return {tuple(run.pop("key")): run for run in json.loads(path.read_text())}


def write(path: Path, runs: dict[Key, dict[str, Any]]) -> None:
    """All runs, in one go."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps([{"key": list(key), **run} for key, run in runs.items()]))
    part.replace(path)


def show(
    runs: dict[Key, dict[str, Any]], prompts: list[Prompt], arms: list[str], repeats: int
) -> None:
    """Auto against the best fixed gamma and against plain, by kind and over all."""
    print(f"\n{'kind':<12} best  auto/best (95%)        auto/plain (95%)       same text")
    best_ratios, plain_ratios = [], []
    by_kind: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_kind[prompt.kind].append(prompt)
    for kind, of_kind in by_kind.items():
        best, plain, chosen, same = [], [], [], True
        for prompt in of_kind:
            speeds = {arm: [speed(runs[prompt.id, arm, i]) for i in range(repeats)] for arm in arms}
            found, names = against_best(speeds, repeats)
            best += found
            chosen += names
            plain += [a / b for a, b in zip(speeds[AUTO], speeds[PLAIN], strict=True)]
            texts = {tuple(runs[prompt.id, arm, 0]["tokens"]) for arm in arms}
            same = same and len(texts) == 1
        best_ratios += best
        plain_ratios += plain
        names_shown = "/".join(sorted(set(chosen)))
        print(f"{kind:<12} {names_shown:<5} {interval(best)}  {interval(plain)}  {same}")
    print(f"{'all':<12}       {interval(best_ratios)}  {interval(plain_ratios)}")


def speed(run: dict[str, Any]) -> float:
    """Tokens a second."""
    return len(run["tokens"]) / float(run["seconds"])


def against_best(speeds: dict[str, list[float]], repeats: int) -> tuple[list[float], list[str]]:
    """Auto over the fixed gamma that was best on another repetition, and which those were."""
    fixed = [arm for arm in speeds if arm != AUTO]
    ratios, chosen = [], []
    for chosen_on in range(repeats):
        best = max(fixed, key=lambda arm: speeds[arm][chosen_on])
        chosen.append(best)
        others = [i for i in range(repeats) if i != chosen_on or repeats == 1]
        ratios += [speeds[AUTO][i] / speeds[best][i] for i in others]
    return ratios, chosen


def interval(ratios: list[float]) -> str:
    """The median, and a bootstrap interval of it."""
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(ratios, (RESAMPLES, len(ratios))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
