r"""specx against other programs: the same files, prompts and sampling settings, taking turns.

    scripts/bench_peers.py --group llamacpp -m VERIFIER.gguf -md DRAFTER.gguf \
        --llama-speculative-simple PROGRAM --expected
    scripts/bench_peers.py --group transformers -m VERIFIER.gguf -md DRAFTER.gguf \
        --weights-cache FOLDER --expected
    scripts/bench_peers.py --group llamacpp --show

Each side first looks for its best gamma on each prompt; then all sides run at theirs, one after the
other, and only ratios of such neighbours are compared. Only decoding is timed: specx and
llama-speculative-simple after the prompt, the others after their first round, which includes it.
Results are saved after each step, and a second call continues from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.generate import Generate
from peers.measuring import Plan, Steps, measure
from peers.page import (
    GENERATE,
    GROUPS,
    LOOKUP,
    MIXED,
    PAIR,
    PLAIN,
    SIMPLE,
    file_of,
    rules_of,
    tables_of,
)
from peers.prompt_lookup import open_lookup
from peers.record import Record, read, take_up
from peers.sides import Peer, PeerFailed, Question, Side, Specx, question
from peers.speculative_simple import SpeculativeSimple, version_of
from specx import LoadOptions, LogitsBackend, Pair, SamplingParams, SpecxError, get_backend
from specx.bench.suites import suite
from specx.runtime.machine import provenance
from specx_backends.threads import physical_cores

SPARE = 32
"""Positions beyond prompt and answer, for drafts that end past them."""
TOKENS = {"llamacpp": 128, "transformers": 64}
EXPECTED_TOKENS = {"llamacpp": 96, "transformers": 48}


def main(words: list[str] | None = None) -> int:
    """Measure the missing parts and print the tables; 2 on a wrong option or model."""
    options = parse_options(words)
    try:
        record = read(options.output) if options.show else run(options)
    except SpecxError as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 2
    print(tables_of(options.group, record))
    if record.data["acceptance"]:
        print(rules_of([(options.group, record)]))
    return 0


def parse_options(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", choices=list(GROUPS), required=True)
    parser.add_argument("-m", "--model", help="the verifier's GGUF file")
    parser.add_argument("-md", "--draft", help="the drafter's GGUF file")
    parser.add_argument("--llama-speculative-simple", type=Path, default=Path(SIMPLE))
    parser.add_argument("--weights-cache", help="a folder for dequantised weights (transformers)")
    parser.add_argument("--suite", default="factual:1,opinion:1,code:1")
    parser.add_argument("--gamma", default="1,2,3,5", type=whole_numbers)
    parser.add_argument("--temp", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--rule", default="block", help="specx's")
    parser.add_argument("-t", "--threads", type=int, help="of every side; physical cores")
    parser.add_argument("-n", type=int, help="tokens; 128 on llama.cpp, 64 on transformers")
    parser.add_argument("-r", type=int, default=3, help="repetitions")
    parser.add_argument("-s", "--seed", type=int, default=0)
    parser.add_argument("--expected", action="store_true", help="acceptance at temperature 1 too")
    parser.add_argument("-o", "--output", type=Path, help="docs/benchmarks/peers-GROUP.json")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the tables")
    options = parser.parse_args(words)
    if not options.show and not (options.model and options.draft):
        parser.error("-m and -md are needed to measure")
    options.n = options.n or TOKENS[options.group]
    options.output = options.output or file_of(options.group)
    options.threads = options.threads or physical_cores()
    return options


def whole_numbers(text: str) -> list[int]:
    """Numbers from 1 on, separated by commas."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a gamma must be at least 1")
    return numbers


def run(options: argparse.Namespace) -> Record:
    """Measure the parts that the record lacks."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    prompts = suite(options.suite)
    record = take_up(options.output, settings_of(options, [prompt.id for prompt in prompts]))
    with loaded(options) as models:
        tokenizer = models.verifier.tokenizer
        questions = [question(tokenizer, prompt) for prompt in prompts]
        keep_provenance(record, models, options)
        measure(Steps(plan_of(options, models, questions), record), say)
    return record


def settings_of(options: argparse.Namespace, prompts: list[str]) -> dict[str, Any]:
    """The settings on which two calls must agree to share a record."""
    return {
        "group": options.group,
        "verifier": Path(options.model).name,
        "drafter": Path(options.draft).name,
        "prompts": prompts,
        "n": options.n,
        "temperature": options.temp,
        "top_p": options.top_p,
        "gammas": options.gamma,
        "rule": options.rule,
        "threads": options.threads,
        "seed": options.seed,
    }


@dataclass(frozen=True)
class Models:
    """The models that specx holds in memory."""

    verifier: LogitsBackend
    drafter: LogitsBackend
    mixed: LogitsBackend | None = None
    """The drafter on llama.cpp, beside a verifier on transformers."""


@contextmanager
def loaded(options: argparse.Namespace) -> Iterator[Models]:
    """The models on the group's runtime."""
    first = "llamacpp" if options.group == "llamacpp" else "hf"
    say(f"loading {Path(options.model).name} and {Path(options.draft).name}")
    with (
        load(first, options.model, options) as verifier,
        load(first, options.draft, options) as drafter,
    ):
        if first == "llamacpp":
            yield Models(verifier, drafter)
            return
        with load("llamacpp", options.draft, options) as mixed:
            yield Models(verifier, drafter, mixed)


def load(backend: str, model: str, options: argparse.Namespace) -> LogitsBackend:
    """A model on its runtime."""
    cache = options.weights_cache if backend == "hf" else None
    return get_backend(backend).load(
        model, LoadOptions(threads=options.threads, weights_cache=cache)
    )


def keep_provenance(record: Record, models: Models, options: argparse.Namespace) -> None:
    """Machine, versions and models, once per record; hashing the files takes seconds."""
    if "provenance" in record.data:
        return
    say("hashing the models")
    roles = {"verifier": models.verifier, "drafter": models.drafter}
    backends = ["llamacpp"] if models.mixed is None else ["hf", "llamacpp"]
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    record.data["provenance"] = provenance(roles, backends, words)
    if models.mixed is None:
        record.data["provenance"][SIMPLE] = version_of(options.llama_speculative_simple)


def plan_of(options: argparse.Namespace, models: Models, questions: list[Question]) -> Plan:
    """All sides of the group, with the same sampling distribution."""
    sampling = SamplingParams(temperature=options.temp, top_p=options.top_p)
    pair = Specx(Pair(models.verifier, models.drafter), sampling, options.rule)
    ours: dict[str, Side] = {
        PLAIN: Specx(Pair(models.verifier), sampling, options.rule),
        PAIR: pair,
    }
    if models.mixed is not None:
        ours[MIXED] = Specx(Pair(models.verifier, models.mixed), sampling, options.rule)
    n_ctx = max(len(each.ids) for each in questions) + options.n + SPARE
    theirs = peers(options, models, sampling, n_ctx)
    for side in ours.values():
        warm_up(side, questions[0], options)
    return Plan(
        prompts=questions,
        sides={**ours, **theirs},
        plain=PLAIN,
        gammas=options.gamma,
        repetitions=options.r,
        n=options.n,
        seed=options.seed,
        acceptance=pair if options.expected else None,
        acceptance_n=EXPECTED_TOKENS[options.group],
    )


def warm_up(side: Side, prompt: Question, options: argparse.Namespace) -> None:
    """A short run: the first calls of a runtime prepare what later ones use."""
    side.run(prompt, options.gamma[0], 0, 8)


def peers(
    options: argparse.Namespace, models: Models, sampling: SamplingParams, n_ctx: int
) -> dict[str, Side]:
    """The other programs of the group; each is opened when its turn first comes."""
    ends = models.verifier.tokenizer.eog_ids
    threads, files = options.threads, (options.model, options.draft)
    if models.mixed is not None:
        return {GENERATE: Peer(lambda: open_generate(models, sampling))}
    program = options.llama_speculative_simple
    return {
        SIMPLE: Peer(lambda: SpeculativeSimple(program, files, sampling, threads, n_ctx)),
        LOOKUP: Peer(lambda: open_lookup(options.model, sampling, threads, n_ctx, ends)),
    }


def open_generate(models: Models, sampling: SamplingParams) -> Generate:
    """On the modules that specx runs on: the same weights, once in memory."""
    verifier, drafter = models.verifier, models.drafter
    modules = (getattr(verifier, "module", None), getattr(drafter, "module", None))
    if None in modules:
        raise PeerFailed("this backend does not show its module")
    return Generate(*modules, sampling, verifier.tokenizer.eog_ids)


def say(line: str) -> None:
    """Print to standard error, unbuffered."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
