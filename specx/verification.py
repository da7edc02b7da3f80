"""The checks behind `specx verify`: each says what was shown, at which error rate, and by how much.

Some need no model: enumeration of the rule, chi-square of the sampler, and the law of the loop over
several rounds of a small table. Others look at loaded models: what their caches do, and the law of
one round of the very loop that `specx run` runs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from specx.acceptance import Block, Rule, decide
from specx.audit import batch_deviation, rollback_deviation
from specx.backend import LoadOptions, LogitsBackend, get_backend
from specx.chisquare import ChiSquare, chi_square
from specx.decoding import Round, Stop, prefill, speculate
from specx.drafting import ModelDrafter
from specx.exactness import Law, Table, emitted_law, outcome_law, target_law, total_variation
from specx.faults import Fault
from specx.models import packaged
from specx.pair import PREFILL_SLICE
from specx.sampling import Distribution, LogitsReader, SamplingParams
from specx.streams import Streams
from specx.vocabulary import drafter_mask, verifier_mask

__all__ = ["Bench", "Check", "check_models", "check_rule"]

FALSE_POSITIVE = 1e-6
"""Of each statistical check: a sound decoder fails one in a million runs of it."""
SIZES = tuple((v, g, again) for v in (2, 3, 4) for g in range(5) for again in range(8))
"""Vocabulary, block and which of several random tables."""
FLOAT_ERROR = 1e-12
SAMPLER_DRAWS = 262_144
LOOP_TRIALS = 20_000
LOOP_TOKENS = 4
LAW_GAMMA, LAW_TOP_K = 2, 8

Report = Callable[[float], None]


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    subject: str
    holds: bool
    found: str
    """By how much it holds or fails."""
    means: str
    """What that shows, and at which error rate."""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass
class Bench:
    """A loop taken apart, each part as it is or with a fault put in.

    Parameters
    ----------
    verifier, drafter
        Loaded models with one vocabulary.
    """

    verifier: LogitsBackend
    drafter: LogitsBackend
    sampling: SamplingParams
    rule: Rule
    fault: Fault
    gamma: int

    def __post_init__(self) -> None:
        masked = drafter_mask(self.verifier, self.drafter)
        self.reader = LogitsReader(self.verifier.name, self.sampling, verifier_mask(self.verifier))
        self.draft_reader = LogitsReader(self.drafter.name, self.sampling, masked)
        self.faulty_verifier = self.fault.verifier(self.verifier)

    def rounds(self, prompt: Sequence[int], seed: int, n_tokens: int) -> Iterator[Round]:
        """Run the loop on `prompt`, of which the models may hold a part."""
        tokenizer = self.verifier.tokenizer
        drafter = ModelDrafter(self.drafter, self.draft_reader, tokenizer.eog_ids)
        return speculate(
            self.faulty_verifier,
            self.fault.drafter(drafter),
            list(prompt),
            reader=self.fault.reader(self.reader),
            rule=self.fault.rule(self.rule),
            gamma=self.gamma,
            streams=self.fault.streams(Streams(seed)),
            stop=Stop(tokenizer, n_tokens, ignore_eos=True),
        )

    def rewind(self, n_past: int) -> None:
        """Let both models hold `n_past` tokens."""
        for model in (self.faulty_verifier, self.drafter):
            model.truncate(min(n_past, model.n_past))


def check_rule(rule: Rule, fault: Fault, seed: int, report: Report) -> Iterator[Check]:
    """What can be shown of a rule without any model; `report` gets the share done."""
    yield enumerate_rule(fault.rule(rule), seed)
    report(0.3)
    yield sample_rule(fault.rule(rule), seed)
    report(0.6)
    yield loop_law(rule, fault, seed, lambda share: report(0.6 + 0.4 * share))


def enumerate_rule(rule: Rule, seed: int) -> Check:
    """Every draft and outcome on small random tables, in fractions and in float64."""
    exact, floating = Fraction(0), 0.0
    for vocab, g, again in SIZES:
        rng = random.Random(f"{seed} {vocab} {g} {again}")
        target, draft = _random_table(rng, vocab), _random_table(rng, vocab)
        law = target_law(target, g + 1)
        exact = max(exact, total_variation(emitted_law(rule, target, draft, g), law))
        floats = emitted_law(rule, _as_floats(target), _as_floats(draft), g)
        floating = max(floating, float(total_variation(floats, law)))
    return Check(
        name="enumeration",
        subject=f"rule {rule.name}",
        holds=exact == 0 and floating <= FLOAT_ERROR,
        found=f"error {_fraction(exact)} in fractions, {floating:.1e} in float64",
        means=f"{len(SIZES)} random tables, vocabularies of 2-4, blocks of 0-4, every draft; exact",
        figures={"error": float(exact), "float_error": floating, "tables": len(SIZES)},
    )


def _fraction(value: Fraction) -> str:
    return "0" if value == 0 else f"{float(value):.4f}"


def _random_table(rng: random.Random, vocab: int) -> Table:
    """Fractions that depend on the whole context; zeros are common, and may be left out."""
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


def sample_rule(rule: Rule, seed: int) -> Check:
    """The sampler as it runs: 8 tokens, a draft opposed to the target."""
    rng = np.random.default_rng(seed)
    rising = np.arange(1.0, 9.0) / 36
    target, draft = Distribution(rising), Distribution(rising[::-1].copy())
    seen: Counter[int] = Counter()
    for draws in rng.random((SAMPLER_DRAWS, 3)):
        token = draft.draw(draws[0])
        verdict = decide(rule, Block([target, target], [draft], [token]), draws[1:2], draws[2])
        seen[token if verdict.n_accepted else verdict.token] += 1
    found = chi_square(seen, dict(enumerate(rising.tolist())), FALSE_POSITIVE)
    return _statistical("sampler", f"rule {rule.name}", found, SAMPLER_DRAWS, "8 tokens")


def loop_law(rule: Rule, fault: Fault, seed: int, report: Report) -> Check:
    """Texts of the loop over several rounds, on a table of three tokens."""
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
        for trial in range(LOOP_TRIALS):
            bench.rewind(0)
            rounds = bench.rounds(prompt, _mixed(seed, trial), LOOP_TOKENS)
            seen[tuple(token for done in rounds for token in done.emitted)] += 1
            report(trial / LOOP_TRIALS)
    found = chi_square(seen, law, FALSE_POSITIVE)
    what = f"texts of {LOOP_TOKENS} tokens over several rounds, gamma {LAW_GAMMA}"
    return _statistical("loop", f"rule {rule.name} on a table", found, LOOP_TRIALS, what)


def _text_law(model: LogitsBackend, reader: LogitsReader, prompt: list[int]) -> Law:
    """The exact law of a table's texts, read off its own logits."""

    def table(context: tuple[int, ...]) -> Distribution:
        model.truncate(0)
        (chances,) = reader.read(model.forward([*prompt, *context]), 0)
        return chances

    law = target_law(table, LOOP_TOKENS)
    model.truncate(0)
    return law


def _mixed(seed: int, trial: int) -> int:
    """A seed of its own for each trial."""
    return int(np.random.SeedSequence([seed, trial]).generate_state(1, np.uint64)[0])


def _statistical(name: str, subject: str, found: ChiSquare, trials: int, what: str) -> Check:
    return Check(
        name=name,
        subject=subject,
        holds=found.holds,
        found=(
            f"chi-square {found.statistic:.1f} (critical {found.critical:.1f}, "
            f"df {found.degrees}), total variation {found.total_variation:.4f}"
        ),
        means=(
            f"{trials:,} draws of {what}; false alarms {FALSE_POSITIVE:.0e}, "
            f"sees a bias of {found.visible:.3f}"
        ),
        figures={**asdict(found), "trials": trials},
    )


def check_models(
    bench: Bench, prompt: list[int], trials: int, seed: int, report: Report
) -> Iterator[Check]:
    """What can be shown of two loaded models and the loop over them."""
    for role, model in (("verifier", bench.faulty_verifier), ("drafter", bench.drafter)):
        deviation = batch_deviation(model, prompt, LAW_GAMMA + 1)
        yield _describe_deviation(role, model.name, deviation)
        yield audit_cache(role, model, prompt, deviation.largest)
    yield round_law(bench, prompt, trials, seed, report)


def _describe_deviation(role: str, name: str, deviation: Any) -> Check:
    worst = int(np.argmax(deviation.logits))
    return Check(
        name="batch against single",
        subject=f"{role} {name}",
        holds=True,
        found=(
            f"a logit differs by up to {deviation.largest:.2g} (at position {worst}), a "
            f"distribution by {deviation.total_variation.max():.2g}"
        ),
        means="floating point of the runtime's kernels, not of the method; reported, not judged",
        figures={
            "logits": deviation.logits.tolist(),
            "total_variation": deviation.total_variation.tolist(),
        },
    )


def audit_cache(role: str, model: LogitsBackend, prompt: list[int], allowed: float) -> Check:
    """Logits after tokens were fed and forgotten against a run that never saw them."""
    wrong = prompt[: LAW_GAMMA + 1][::-1]
    found = rollback_deviation(model, prompt, wrong, LAW_GAMMA + 1).largest
    return Check(
        name="cache audit",
        subject=f"{role} {model.name}",
        holds=found <= 2 * allowed,
        found=f"after rollback a logit differs by up to {found:.2g} (allowed {2 * allowed:.2g})",
        means=f"{len(prompt)} positions, against a run that never saw the forgotten tokens",
        figures={"largest": found, "allowed": 2 * allowed},
    )


def round_law(bench: Bench, prompt: list[int], trials: int, seed: int, report: Report) -> Check:
    """Sampled rounds of the loop against the law enumerated on the same models."""
    base = len(prompt) - 1
    for model in (bench.faulty_verifier, bench.drafter):
        prefill(model, prompt, PREFILL_SLICE, lambda fed: None)
    law = enumerated_round(bench, prompt)
    seen: Counter[tuple[int, ...]] = Counter()
    for trial in range(trials):
        bench.rewind(base)
        done = next(bench.rounds(prompt, _mixed(seed, trial), LAW_GAMMA + 1))
        seen[tuple(done.emitted)] += 1
        report((trial + 1) / trials)
    bench.rewind(0)
    found = chi_square(seen, law, FALSE_POSITIVE)
    what = f"one round, gamma {LAW_GAMMA}, top-k {LAW_TOP_K}, {len(law)} outcomes"
    names = f"{bench.verifier.name} with {bench.drafter.name}, rule {bench.rule.name}"
    return _statistical("round", names, found, trials, what)


def enumerated_round(bench: Bench, prompt: list[int]) -> Law:
    """Law of what one round emits, over all drafts, in passes of the loop's own width."""
    base, length = len(prompt) - 1, len(prompt)
    law: Counter[tuple[int, ...]] = Counter()
    for tokens, draft, chance in _drafts(bench, prompt):
        bench.verifier.truncate(base)
        rows = bench.verifier.forward([prompt[-1], *tokens], n_logits=len(tokens) + 1)
        block = Block(bench.reader.read(rows, length), draft, tokens)
        for (n, token), mass in outcome_law(bench.rule, block).items():
            emitted = (*tokens[:n], token)
            law[emitted] += chance * mass
    return dict(law)


def _drafts(
    bench: Bench, prompt: list[int]
) -> Iterator[tuple[list[int], list[Distribution], float]]:
    """All drafts with their distributions and probability; an end token closes a draft."""
    model, base = bench.drafter, len(prompt) - 1
    ends = bench.verifier.tokenizer.eog_ids
    drafts: list[tuple[list[int], list[Distribution], float]] = [([], [], 1.0)]
    for _ in range(LAW_GAMMA):
        longer = []
        for tokens, rows, chance in drafts:
            if tokens and tokens[-1] in ends:
                longer.append((tokens, rows, chance))
                continue
            model.truncate(base)
            for token in [prompt[-1], *tokens]:
                logits = model.forward([token])
            (chances,) = bench.draft_reader.read(logits, len(prompt) + len(tokens))
            ids = range(len(chances.probs)) if chances.ids is None else chances.ids.tolist()
            longer += [
                ([*tokens, token], [*rows, chances], chance * float(mass))
                for token, mass in zip(ids, chances.probs, strict=True)
                if mass > 0
            ]
        drafts = longer
    yield from drafts
