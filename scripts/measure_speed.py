"""Decode speed of a pair against its verifier alone, both arms interleaved in one process.

    scripts/measure_speed.py VERIFIER.gguf DRAFTER.gguf --gamma 2,3 -n 160 -r 3
    scripts/measure_speed.py VERIFIER.gguf DRAFTER.gguf --uncached -n 100
    scripts/measure_speed.py VERIFIER DRAFTER.gguf --backend hf --draft-backend llamacpp -t 2

Prints tokens a second, the ratio of each repetition, and the core's share of the time. With
``--uncached`` the speculative arm is compared with itself without KV caches instead.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Sequence
from statistics import median

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
from specx.chat import encode_chat
from specx.uncached import Uncached

PROMPTS = {
    "factual": "Explain how photosynthesis works, step by step, in plain words.",
    "code": "Write a Python class for a binary search tree with insert, search and delete.",
}


def main() -> None:
    """Measure and print."""
    options = parse_options()
    verifier = load(options.model, options.backend, options)
    drafter = load(options.draft, options.draft_backend or options.backend, options)
    print(
        "prompt   arm       "
        + "tok/s by repetition".ljust(32)
        + "ratios, median    alpha  tau  core"
    )
    for name in options.prompts:
        tokens = encode(verifier, PROMPTS[name])
        measure(name, tokens, verifier, drafter, options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak resident memory {peak:,.0f} MiB, model files included")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("draft")
    parser.add_argument("--backend", default="llamacpp")
    parser.add_argument("--draft-backend", help="the verifier's by default")
    parser.add_argument("-t", "--threads", type=int, help="of both sides; the backends' choice")
    parser.add_argument("--weights-cache", help="a folder for dequantised weights (hf)")
    parser.add_argument("--prompts", default=list(PROMPTS), type=names_of_prompts)
    parser.add_argument("--gamma", default="2,3", type=lambda s: [int(g) for g in s.split(",")])
    parser.add_argument("--temp", type=float, default=0.7)
    parser.add_argument("-n", type=int, default=160)
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("--uncached", action="store_true")
    return parser.parse_args()


def names_of_prompts(text: str) -> list[str]:
    """Names separated by commas."""
    names = text.split(",")
    if unknown := set(names) - PROMPTS.keys():
        raise argparse.ArgumentTypeError(f"no prompt {', '.join(unknown)}; known: {[*PROMPTS]}")
    return names


def load(model: str, backend: str, options: argparse.Namespace) -> LogitsBackend:
    """A model on its runtime, with those of the options that the runtime takes."""
    factory = get_backend(backend)
    given = {"threads": options.threads, "weights_cache": options.weights_cache}
    taken = {name: value for name, value in given.items() if name in factory.options}
    return factory.load(model, LoadOptions(**taken))


def encode(verifier: LogitsBackend, prompt: str) -> list[int]:
    """The prompt's tokens, through the chat template where there is one."""
    tokenizer = verifier.tokenizer
    if tokenizer.chat_template is None:
        return tokenizer.encode(prompt, add_special=True, parse_special=True)
    return encode_chat(tokenizer, [{"role": "user", "content": prompt}])


def measure(
    name: str,
    tokens: list[int],
    verifier: LogitsBackend,
    drafter: LogitsBackend,
    options: argparse.Namespace,
) -> None:
    """All arms of one prompt, interleaved repetition by repetition after a warm-up each."""
    arms = {f"gamma {g}": (Pair(verifier, drafter), g) for g in options.gamma}
    baseline = "plain"
    if options.uncached:
        baseline, gamma = "uncached", options.gamma[0]
        arms = {f"gamma {gamma}": arms[f"gamma {gamma}"]}
        arms[baseline] = (Pair(emptied(verifier), emptied(drafter)), gamma)
    else:
        arms[baseline] = (Pair(verifier), 0)
    for pair, gamma in arms.values():
        decode(pair, tokens, gamma, 8, 0, options.temp)
    tallies: dict[str, list[Tally]] = {arm: [] for arm in arms}
    for seed in range(options.r):
        for arm, (pair, gamma) in arms.items():
            tallies[arm].append(decode(pair, tokens, gamma, options.n, seed, options.temp))
    plain = speeds(tallies[baseline])
    for arm, runs in tallies.items():
        report(name, arm, runs, plain)


def emptied(model: LogitsBackend) -> Uncached:
    """`model` without its cache, whatever it holds now."""
    model.truncate(0)
    return Uncached(model)


def decode(
    pair: Pair, prompt: list[int], gamma: int, n: int, seed: int, temperature: float
) -> Tally:
    """One generation of `n` tokens from empty caches."""
    for model in pair.models:
        model.truncate(0)
    tokens, tally = list(prompt), Tally()
    pair.prefill(tokens)
    stop = Stop(pair.verifier.tokenizer, n, ignore_eos=True)
    sampling = SamplingParams(temperature=temperature)
    begun = pair.verifier.clock()
    for done in pair.rounds(tokens, Settings(sampling=sampling, gamma=gamma, seed=seed), stop):
        tally.add(done)
    tally.total = pair.verifier.clock() - begun
    return tally


def speeds(runs: Sequence[Tally]) -> list[float]:
    """Tokens a second of each run."""
    return [run.n_tokens / run.total for run in runs]


def report(name: str, arm: str, runs: Sequence[Tally], plain: Sequence[float]) -> None:
    """One line of the table."""
    ratios = [fast / slow for fast, slow in zip(speeds(runs), plain, strict=True)]
    core = sum(run.times.core for run in runs) / sum(run.total for run in runs)
    tested = sum(run.tested for run in runs)
    alpha = f"{sum(run.accepted for run in runs) / tested:.2f}" if tested else "-"
    tau = 1 + sum(run.accepted for run in runs) / sum(run.rounds for run in runs)
    print(
        f"{name:<8} {arm:<9}",
        " ".join(f"{speed:.2f}" for speed in speeds(runs)).ljust(32),
        " ".join(f"{ratio:.2f}" for ratio in ratios) + f", {median(ratios):.2f}",
        f" {alpha}  {tau:.2f}  {core:.1%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
