"""Checks of a rule that need no model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np

from specx.core.exactness import Law, Table, emitted_law, target_law, total_variation
from specx.core.rules import Block, Rule
from specx.core.sampling import Distribution, LogitsReader, SamplingParams
from specx.runtime.backend import LoadOptions, LogitsBackend, get_backend
from specx.shipped import packaged
from specx.verify.bench import Bench
from specx.verify.check import FALSE_POSITIVE, Check, Report, statistical
from specx.verify.chisquare import chi_square
from specx.verify.faults import Fault

__all__ = ["LAW_GAMMA", "check_rule", "enumerate_rule", "loop_law", "sample_rule"]

SIZES = tuple((v, g, again) for v in (2, 3, 4) for g in range(5) for again in range(8))
"""Vocabulary size, block size, and the number of the random table."""
FLOAT_ERROR = 1e-12
SAMPLER_DRAWS = 262_144
SAMPLER_PORTION = 4096
LOOP_TRIALS = 20_000
LOOP_TOKENS = 4
LAW_GAMMA = 2
"""Tokens drafted in a round whose distribution is enumerated."""


def check_rule(rule: type[Rule], fault: Fault, seed: int, report: Report) -> Iterator[Check]:
    """Check the rule by enumeration, sampler and loop; `report` gets the share done."""
    faulty = fault.rule(rule)
    yield enumerate_rule(faulty, seed, lambda share: report(0.1 * share))
    yield sample_rule(faulty, seed, SAMPLER_DRAWS, lambda share: report(0.1 + 0.4 * share))
    yield loop_law(rule, fault, seed, LOOP_TRIALS, lambda share: report(0.5 + 0.5 * share))


def enumerate_rule(rule: type[Rule], seed: int, report: Report) -> Check:
    """Enumerate every draft and outcome on small random tables, in fractions and in float64."""
    exact, floating = Fraction(0), 0.0
    for done, (vocab, g, again) in enumerate(SIZES, 1):
        rng = random.Random(f"{seed} {vocab} {g} {again}")
        target, draft = _random_table(rng, vocab), _random_table(rng, vocab)
        law = target_law(target, g + 1)
        exact = max(exact, total_variation(emitted_law(rule, target, draft, g), law))
        floats = emitted_law(rule, _as_floats(target), _as_floats(draft), g)
        floating = max(floating, float(total_variation(floats, law)))
        report(done / len(SIZES))
    return Check(
        name="enumeration",
        subject=f"rule {rule.name}",
        holds=exact == 0 and floating <= FLOAT_ERROR,
        found=f"error {float(exact):.2g} in fractions, {floating:.1e} in float64",
        means=(
            f"every draft and outcome on {len(SIZES)} random tables, vocabularies of 2-4, "
            "blocks of 0-4; deterministic"
        ),
        figures={"error": float(exact), "float_error": floating, "tables": len(SIZES)},
    )


def _random_table(rng: random.Random, vocab: int) -> Table:
    """Random fractions that depend on the whole context; zeros are common and may be left out."""
    rows: dict[tuple[int, ...], Distribution] = {}

    def table(context: tuple[int, ...]) -> Distribution:
        if context not in rows:
            rows[context] = _random_row(rng, vocab)
        return rows[context]

    return table


def _random_row(rng: random.Random, vocab: int) -> Distribution:
    weights = [rng.choice([0, 0, 1, 2, 3, 5]) for _ in range(vocab)]
    if not any(weights):
        weights[rng.randrange(vocab)] = 1
    probs = np.array([Fraction(weight, sum(weights)) for weight in weights])
    kept = np.flatnonzero(probs)
    return Distribution(probs[kept], kept) if rng.random() < 0.5 else Distribution(probs)


def _as_floats(table: Table) -> Table:
    def floats(context: tuple[int, ...]) -> Distribution:
        row = table(context)
        return Distribution(row.probs.astype(np.float64), row.ids)

    return floats


def sample_rule(rule: type[Rule], seed: int, draws: int, report: Report) -> Check:
    """Test the sampler's first token: a vocabulary of 8, two tokens drafted against the target."""
    rng = np.random.default_rng(seed)
    rising = np.arange(1.0, 9.0) / 36
    target, draft = Distribution(rising), Distribution(rising[::-1].copy())
    drafts = product(range(8), repeat=2)
    judged = {(a, b): rule(Block([target] * 3, [draft] * 2, [a, b])) for a, b in drafts}
    seen: Counter[int] = Counter()
    for start in range(0, draws, SAMPLER_PORTION):
        for uniforms in rng.random((min(SAMPLER_PORTION, draws - start), 5)):
            drafted = draft.draw(uniforms[0]), draft.draw(uniforms[1])
            verdict = judged[drafted].decide(uniforms[2:4], uniforms[4])
            seen[(*verdict.accepted, verdict.token)[0]] += 1
        report(start / draws)
    found = chi_square(seen, dict(enumerate(rising.tolist())), FALSE_POSITIVE)
    return statistical("sampler", f"rule {rule.name}", found, "first tokens, vocabulary of 8")


def loop_law(rule: type[Rule], fault: Fault, seed: int, trials: int, report: Report) -> Check:
    """Test the loop's texts over several rounds on a table of three tokens."""
    toy = get_backend("toy")
    verifier, drafter = (
        toy.load(str(packaged(f"toy/{side}.toml")), LoadOptions())
        for side in ("verifier", "drafter")
    )
    with verifier, drafter:
        sampling = SamplingParams(temperature=1, top_p=1)
        bench = Bench(verifier, drafter, sampling, rule, fault, LAW_GAMMA)
        prompt = verifier.tokenizer.encode("", add_special=True, parse_special=False)
        law = _text_law(verifier, bench.reader, prompt)
        seen: Counter[tuple[int, ...]] = Counter()
        for trial in range(trials):
            bench.rewind(0)
            rounds = bench.rounds(prompt, seed, trial, LOOP_TOKENS)
            seen[tuple(token for done in rounds for token in done.emitted)] += 1
            report(trial / trials)
    found = chi_square(seen, law, FALSE_POSITIVE)
    what = f"texts of {LOOP_TOKENS} tokens over several rounds, gamma {LAW_GAMMA}"
    return statistical("loop", f"rule {rule.name} on a table", found, what)


def _text_law(model: LogitsBackend, reader: LogitsReader, prompt: list[int]) -> Law:
    """The exact distribution of a table's texts, computed from its logits."""

    def table(context: tuple[int, ...]) -> Distribution:
        model.truncate(0)
        (chances,) = reader.read(model.forward([*prompt, *context]), 0)
        return chances

    law = target_law(table, LOOP_TOKENS)
    model.truncate(0)
    return law
