"""Time of the core's functions on one machine, at the vocabulary of Qwen2.5: 151,936 tokens.

    scripts/measure_core.py                  # prints a table
    scripts/measure_core.py --json core.json

Measured are the sampling transform of one row and the rule's part of a round (decide, and what all
rules expect, as the loop computes it), each beside its naive form, which works on the whole
vocabulary and expects nothing. Calls
take turns on several inputs, so that the cache does not hold the one at hand. Exits 1 when a median
misses its requirement.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specx.core.rules import RULES, Block, Rule, judgements
from specx.core.sampling import Distribution, SamplingParams, distribution
from specx.drafters.base import Outlook
from specx.drafters.lookup import LookupDrafter
from specx.drafters.model import ModelDrafter
from specx.schedule import Auto, Costs, Outcome
from specx.schedule.costs.curve import Curve, Profile

VOCAB, GAMMA = 151_936, 4
ROWS, BLOCKS = 16, 8
PEAKS, NAIVE_EVERY = 64, 8
LOOKUP_TEXT, LOOKUP_STEP = 100_000, 50
UNUSED = np.random.default_rng(0)
SAMPLINGS = {
    "temperature 0.7": SamplingParams(top_p=1),
    "top-p 0.9": SamplingParams(temperature=1),
    "top-p 0.9, temperature 0.7": SamplingParams(),
    "top-k 40": SamplingParams(top_k=40, top_p=1),
    "top-p 0.9, min-p 0.05": SamplingParams(min_p=0.05),
}
ROUNDS = {"top-p 0.9": SamplingParams(temperature=1), "no filter": SamplingParams(top_p=1)}
TRANSFORM_BELOW = 1.0
ROUND_BELOW = {"top-p 0.9": 0.3, "no filter": 5.0}
"""Milliseconds that a median must stay under."""

Work = Callable[[int], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one thing, over its repetitions."""

    what: str
    least: float
    median: float
    upper: float
    """Nine of ten repetitions took less."""
    below: float | None
    naive: float | None
    """Median of the naive form."""

    @property
    def missed(self) -> bool:
        """True where the median is not under what is required."""
        return self.below is not None and self.median >= self.below


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-r", type=int, default=200, help="repetitions")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    logits = peaked(rng)
    timings = [
        *transforms(logits, options.r),
        *rounds(logits, rng, options.r),
        *choosing(logits, options.r),
    ]
    show(timings, logits)
    if options.json:
        options.json.write_text(json.dumps(report(timings, options.r), indent=2) + "\n")
    return int(any(timing.missed for timing in timings))


def peaked(rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows as a language model gives them: noise, and a few peaks that hold nearly all mass."""
    logits = rng.normal(0, 2.5, (ROWS, VOCAB)).astype(np.float32)
    for row in logits:
        places = rng.choice(VOCAB, PEAKS, replace=False)
        row[places] = 20 - 1.2 * np.log(np.arange(1, PEAKS + 1)) + rng.normal(0, 0.3, PEAKS)
    return logits


def transforms(logits: NDArray[np.float32], repeats: int) -> list[Timing]:
    """The sampling transform, one row per call."""

    def ours(i: int, params: SamplingParams) -> object:
        return distribution(logits[i % ROWS], params)

    def naive(i: int, params: SamplingParams) -> object:
        return naive_transform(logits[i % ROWS], params)

    return [
        timed(
            f"transform, {name}",
            partial(ours, params=params),
            repeats,
            below=TRANSFORM_BELOW,
            naive=partial(naive, params=params),
        )
        for name, params in SAMPLINGS.items()
    ]


def naive_transform(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """A dense softmax, all of it sorted; zeros for what is filtered out."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    probs: NDArray[np.float64] = weights / weights.sum()
    if params.top_k == 0 and params.top_p == 1:
        return probs
    order = np.argsort(-probs, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        order = order[: int(np.searchsorted(np.cumsum(probs[order]), params.top_p)) + 1]
    order = order[probs[order] >= params.min_p * probs.max()]
    kept = np.zeros_like(probs)
    kept[order] = probs[order] / probs[order].sum()
    return kept


def rounds(logits: NDArray[np.float32], rng: np.random.Generator, repeats: int) -> list[Timing]:
    """The rule's part of a round, under every rule and with filters or without."""
    uniforms = rng.random((repeats + 1, GAMMA + 1))
    timings = []
    for filters, params in ROUNDS.items():
        blocks = [block(logits, params, rng) for _ in range(BLOCKS)]
        tables = [dense(given) for given in blocks]
        for name, rule in RULES.items():
            naive = NAIVE_RULES.get(name)
            timings.append(
                timed(
                    f"rule {name}, {filters}",
                    partial(decided, rule=rule, blocks=blocks, uniforms=uniforms),
                    repeats,
                    below=ROUND_BELOW[filters],
                    naive=naive and partial(naive, blocks=tables, uniforms=uniforms),
                )
            )
    return timings


def block(logits: NDArray[np.float32], params: SamplingParams, rng: np.random.Generator) -> Block:
    """A drafter that says nearly the same as the verifier."""
    target = logits[rng.choice(ROWS, GAMMA + 1, replace=False)]
    guess = target[:GAMMA] + rng.normal(0, 0.5, (GAMMA, VOCAB)).astype(np.float32)
    draft = [distribution(row, params) for row in guess]
    tokens = [chances.draw(rng.random()) for chances in draft]
    return Block([distribution(row, params) for row in target], draft, tokens)


def decided(i: int, rule: type[Rule], blocks: list[Block], uniforms: NDArray[np.float64]) -> object:
    """As in `specx.session.decoding.speculate`; on a new block, for a block remembers."""
    given = blocks[i % BLOCKS]
    judged = judgements(Block(given.target, given.draft, given.tokens), rule)
    verdict = judged[rule.name].decide(uniforms[i, :-1], uniforms[i, -1])
    expected = {name: float(each.expected) for name, each in judged.items()}
    return verdict, expected, judged[rule.name].survival.tolist()


Dense: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64], Sequence[int]]"


def dense(given: Block) -> Dense:
    """Target (gamma + 1, VOCAB), draft (gamma, VOCAB) and the tokens."""
    return as_table(given.target), as_table(given.draft), given.tokens


def as_table(rows: Sequence[Distribution]) -> NDArray[np.float64]:
    """Shape (n, VOCAB)."""
    table = np.zeros((len(rows), VOCAB))
    for row, chances in zip(table, rows, strict=True):
        row[slice(None) if chances.ids is None else chances.ids] = chances.probs
    return table


def naive_token(i: int, blocks: list[Dense], uniforms: NDArray[np.float64]) -> tuple[int, int]:
    """The token rule over the whole vocabulary: every ratio, and the residual at every place."""
    target, draft, tokens = blocks[i % BLOCKS]
    ratio = target[:-1] / np.maximum(draft, 1e-300)
    left = np.maximum(target[:-1] - draft, 0)
    left /= np.maximum(left.sum(axis=1, keepdims=True), 1e-300)
    passed = uniforms[i, :-1] < ratio[np.arange(GAMMA), tokens]
    n = int(np.logical_and.accumulate(passed).sum())
    last = target[-1] if n == GAMMA else left[n]
    return n, drawn_from(last, uniforms[i, -1])


def naive_block(i: int, blocks: list[Dense], uniforms: NDArray[np.float64]) -> tuple[int, int]:
    """The block rule over the whole vocabulary: what is left at every place, for each position."""
    target, draft, tokens = blocks[i % BLOCKS]
    carried, n, last = 1.0, 0, np.maximum(target[0] - draft[0], 0)
    for k in range(1, GAMMA + 1):
        token = tokens[k - 1]
        carried = min(1.0, carried * target[k - 1, token] / max(draft[k - 1, token], 1e-300))
        left = np.maximum(carried * target[k] - draft[k], 0) if k < GAMMA else target[k]
        chance = left.sum() / max(left.sum() + 1 - carried, 1e-300) if k < GAMMA else carried
        if uniforms[i, k - 1] < chance:
            n, last = k, left
    return n, drawn_from(last, uniforms[i, -1])


def naive_match(i: int, blocks: list[Dense], uniforms: NDArray[np.float64]) -> tuple[int, int]:
    """The match rule as peers run it: a token drawn from every row, kept while it is drafted."""
    target, _, tokens = blocks[i % BLOCKS]
    for k in range(GAMMA):
        token = drawn_from(target[k], uniforms[i, k])
        if token != tokens[k]:
            return k, token
    return GAMMA, drawn_from(target[GAMMA], uniforms[i, -1])


def drawn_from(weights: NDArray[np.float64], uniform: float) -> int:
    """A place, by inversion."""
    summed = np.cumsum(weights)
    return int(np.searchsorted(summed, uniform * summed[-1], side="right"))


NAIVE_RULES = {"token": naive_token, "block": naive_block, "match": naive_match}


def choosing(logits: NDArray[np.float32], repeats: int) -> list[Timing]:
    """The time of `--gamma auto` per round and per drafted token, and of a lookup per token."""
    auto, drafter = Auto(table_costs()), Lagging()
    text = range(1000)

    def a_round(i: int) -> object:
        plan = auto.plan(text, [drafter], 10**6)  # type: ignore[list-item]
        survival = [1.0, 0.9, 0.8, 0.8][: min(2 + i % 3, plan.limit)]
        auto.learn(Outcome(survival=survival, decided=2, token=0, prob=lambda token: 0.5))
        return survival

    def a_token(i: int) -> object:
        auto.go_on(0, None)
        return auto.go_on(0, logits[i % ROWS])

    index = LookupDrafter()
    tokens = np.random.default_rng(1).integers(0, 300, LOOKUP_TEXT + LOOKUP_STEP * (repeats + 2))
    growing: list[int] = tokens[:LOOKUP_TEXT].tolist()
    rest = iter(tokens[LOOKUP_TEXT:].tolist())
    index.outlook(growing)

    def lookups(i: int) -> object:
        for _ in range(LOOKUP_STEP):
            growing.append(next(rest))
            index.propose(growing, 4, UNUSED)
        return index

    rounds_ = timed("auto, a round", a_round, repeats, below=0.05)
    while not auto.plan(text, [drafter], 10**6).limit:  # type: ignore[list-item]
        a_round(0)
    a_draw = timed("auto, a drafted token", a_token, repeats, below=0.035)
    found = timed(f"lookup, {LOOKUP_STEP} tokens at 100,000", lookups, repeats)
    below = 0.005 * LOOKUP_STEP
    return [rounds_, a_draw, replace(found, below=below)]


def table_costs() -> Costs:
    """An F16 verifier's, by whose stairs drafting pays."""
    widths, seconds = (1, 2, 4, 8, 16, 32), (1, 1.06, 1.36, 1.9, 3.7, 6.6)
    verifier = Curve(
        model="",
        bytes=None,
        quantisation=None,
        threads=None,
        n_past=0,
        repeats=0,
        widths=widths,
        seconds=seconds,
        low=seconds,
        high=seconds,
    )
    drafter = replace(verifier, seconds=tuple(0.2 * s for s in seconds))
    return Costs(Profile(verifier=verifier, drafter=drafter), "profile", live=True)


class Lagging:
    """A drafter of which only the outlook is asked."""

    name = kind = "model"
    free = False
    prior = ModelDrafter.prior

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        """Up to date."""
        return Outlook(limit=10**6)


def timed(
    what: str, work: Work, repeats: int, *, below: float | None = None, naive: Work | None = None
) -> Timing:
    """Milliseconds of `work`; it and its naive form take turns."""
    spent, beside = [], []
    for i in range(repeats + 1):  # the first is a warm-up
        spent.append(milliseconds(work, i))
        if naive is not None and i % NAIVE_EVERY == 0:
            beside.append(milliseconds(naive, i))
    least, median, upper = np.quantile(spent[1:], [0, 0.5, 0.9])
    other = float(np.median(beside[1:])) if beside else None
    return Timing(what, float(least), float(median), float(upper), below, other)


def milliseconds(work: Work, i: int) -> float:
    """Of one call."""
    begun = time.perf_counter()
    work(i)
    return 1000 * (time.perf_counter() - begun)


def show(timings: list[Timing], logits: NDArray[np.float32]) -> None:
    """The table."""
    kept = [len(distribution(row, ROUNDS["top-p 0.9"]).probs) for row in logits]
    print(f"{VOCAB:,} tokens, gamma {GAMMA}; top-p 0.9 keeps {min(kept)} to {max(kept)}")
    print(f"{'milliseconds':<38}   least  median  9 of 10   below   naive")
    for timing in timings:
        below = f"{timing.below:7.1f}" if timing.below is not None else " " * 7
        naive = f"{timing.naive:7.2f}" if timing.naive is not None else ""
        figures = f"{timing.least:7.3f} {timing.median:7.3f} {timing.upper:8.3f} {below} {naive}"
        print(f"{timing.what:<38} {figures}{'  MISSED' if timing.missed else ''}")


def report(timings: list[Timing], repeats: int) -> dict[str, object]:
    """The figures, with the machine and versions."""
    return {
        "vocabulary": VOCAB,
        "gamma": GAMMA,
        "repeats": repeats,
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "milliseconds": [asdict(timing) for timing in timings],
    }


if __name__ == "__main__":
    raise SystemExit(main())
