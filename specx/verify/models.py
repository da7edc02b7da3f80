"""Checks of two loaded models and of the loop over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from specx.core.exactness import Law, outcome_law
from specx.core.rules import Block
from specx.core.sampling import Distribution
from specx.errors import UsageError
from specx.runtime.backend import LogitsBackend
from specx.runtime.prefill import PREFILL_SLICE, prefill
from specx.verify.audit import Deviation, batch_deviation, rollback_deviation
from specx.verify.bench import Bench
from specx.verify.check import FALSE_POSITIVE, Check, Report, statistical
from specx.verify.chisquare import chi_square
from specx.verify.rules import LAW_GAMMA

__all__ = [
    "LAW_TOP_K",
    "audit_cache",
    "check_models",
    "compare_batches",
    "enumerated_round",
    "round_law",
]

LAW_TOP_K = 8
"""Tokens kept by top-k for both models in the round whose distribution is enumerated."""
WIDTH = LAW_GAMMA + 1
ROUNDING = 0.1
"""No kernel's rounding reaches this mean total variation; more means a different distribution."""


def check_models(
    bench: Bench, prompt: list[int], trials: int, seed: int, report: Report
) -> Iterator[Check]:
    """Check batches and caches of both models, then the distribution of a round.

    Raises
    ------
    UsageError
        If `prompt` is shorter than two passes, or repeats a single token: a cache that keeps a
        wrong token could not be told from a sound one.
    """
    if len(prompt) <= WIDTH or len(set(prompt[1:])) < 2:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens, {len(set(prompt))} of them distinct; "
            "give one of several words (-p)"
        )
    for role, model in (("verifier", bench.faulty_verifier), ("drafter", bench.drafter)):
        deviation = batch_deviation(model, prompt, WIDTH)
        yield compare_batches(role, model.name, deviation)
        yield audit_cache(role, model, prompt, deviation.largest)
    yield round_law(bench, prompt, trials, seed, report)


def compare_batches(role: str, name: str, deviation: Deviation) -> Check:
    """Check a pass of several tokens against passes of one."""
    worst = int(np.argmax(deviation.logits))
    mean = float(deviation.total_variation.mean())
    return Check(
        name="batch against single",
        subject=f"{role} {name}",
        holds=mean <= ROUNDING,
        found=(
            f"a logit differs by up to {deviation.largest:.2g} (at position {worst}), a "
            f"distribution by {deviation.total_variation.max():.2g}, {mean:.2g} on average"
        ),
        means=(
            "rounding of the runtime's kernels, reported; "
            f"more than {ROUNDING} on average cannot be rounding and is refuted"
        ),
        figures={
            "logits": deviation.logits.tolist(),
            "total_variation": deviation.total_variation.tolist(),
        },
    )


def audit_cache(role: str, model: LogitsBackend, prompt: list[int], allowed: float) -> Check:
    """Check the logits after feeding and forgetting tokens against a run that never saw them."""
    wrong = [token for token in prompt if token != prompt[1]][:WIDTH]  # the first portion's is [1]
    found = rollback_deviation(model, prompt, wrong, WIDTH).largest
    return Check(
        name="cache audit",
        subject=f"{role} {model.name}",
        holds=found <= 2 * allowed,
        found=f"after rollback a logit differs by up to {found:.2g} (allowed {2 * allowed:.2g})",
        means=(
            f"{len(prompt)} positions, against a run that never saw the forgotten tokens; "
            "twice the batch's deviation is allowed"
        ),
        figures={"largest": found, "allowed": 2 * allowed},
    )


def round_law(bench: Bench, prompt: list[int], trials: int, seed: int, report: Report) -> Check:
    """Compare sampled rounds of the loop with the distribution enumerated on the same models."""
    base = len(prompt) - 1
    for model in (bench.faulty_verifier, bench.drafter):
        prefill(model, prompt, PREFILL_SLICE, lambda fed: None)
    law = enumerated_round(bench, prompt)
    seen: Counter[tuple[int, ...]] = Counter()
    for trial in range(trials):
        bench.rewind(base)
        done = next(bench.rounds(prompt, seed, trial, WIDTH))
        seen[tuple(done.emitted)] += 1
        report((trial + 1) / trials)
    bench.rewind(0)
    found = chi_square(seen, law, FALSE_POSITIVE)
    what = f"rounds, gamma {LAW_GAMMA}, top-k {LAW_TOP_K}, {len(law)} outcomes"
    names = f"{bench.verifier.name} with {bench.drafter.name}, rule {bench.rule.name}"
    return statistical("round", names, found, what)


def enumerated_round(bench: Bench, prompt: list[int]) -> Law:
    """The distribution of one round's tokens over all drafts, in passes as wide as the loop's."""
    base, length = len(prompt) - 1, len(prompt)
    law: Counter[tuple[int, ...]] = Counter()
    for tokens, draft, chance in _drafts(bench, prompt):
        _return_to(bench.verifier, base)
        rows = bench.verifier.forward([prompt[-1], *tokens], n_logits=len(tokens) + 1)
        block = Block(bench.reader.read(rows, length), draft, tokens)
        for (n, token), mass in outcome_law(bench.rule, block).items():
            emitted = (*tokens[:n], token)
            law[emitted] += chance * mass
    return dict(law)


def _return_to(model: LogitsBackend, n_past: int) -> None:
    """Cut `model` back to `n_past`, with a new checkpoint where rollback needs one next time."""
    model.truncate(n_past)
    model.checkpoint()


def _drafts(
    bench: Bench, prompt: list[int]
) -> Iterator[tuple[list[int], list[Distribution], float]]:
    """All drafts with their distributions and probability; an end token ends a draft."""
    ends = bench.verifier.tokenizer.eog_ids
    drafts: list[tuple[list[int], list[Distribution], float]] = [([], [], 1.0)]
    for _ in range(LAW_GAMMA):
        longer = []
        for tokens, rows, chance in drafts:
            if tokens and tokens[-1] in ends:
                longer.append((tokens, rows, chance))
                continue
            chances = _draft_row(bench, prompt, tokens)
            ids = range(len(chances.probs)) if chances.ids is None else chances.ids.tolist()
            longer += [
                ([*tokens, token], [*rows, chances], chance * float(mass))
                for token, mass in zip(ids, chances.probs, strict=True)
                if mass > 0
            ]
        drafts = longer
    yield from drafts


def _draft_row(bench: Bench, prompt: list[int], tokens: list[int]) -> Distribution:
    """The drafter's distribution after `tokens`, fed one by one as the loop feeds them."""
    _return_to(bench.drafter, len(prompt) - 1)
    for token in [prompt[-1], *tokens]:
        logits = bench.drafter.forward([token])
    (chances,) = bench.draft_reader.read(logits, len(prompt) + len(tokens))
    return chances
