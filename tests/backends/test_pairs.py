"""Both sides on any runtime: greedy identity, and the law of a round, on the demo pair.

The law is enumerated through the loop that `specx run` runs: its random numbers are scripted, so
that every draft, every test and every draw happens once, and each outcome is counted with the
probability of the numbers that lead to it. It equals the verifier's own law, read off passes as
wide as the loop's, up to the rounding of float64. Against single rows it may differ by what the
verifier's kernels do, as `explained` derives.

Statistical tests: two, each with a false-positive rate of 1e-6.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enumeration import Numbers, Script, checks, draws
from identity import assert_identical, plain_texts
from numpy.typing import NDArray

from specx import RULES, LoadOptions, LogitsBackend, Rule, get_backend
from specx.core.exactness import Law, Table, target_law, total_variation
from specx.core.sampling import SamplingParams, distribution
from specx.core.streams import Streams
from specx.drafters.model import ModelDrafter
from specx.runtime.prefill import PREFILL_SLICE, prefill
from specx.schedule import Fixed
from specx.session.decoding import Round, Stop, speculate
from specx.verify import Bench, enumerated_round
from specx.verify.audit import batch_deviation
from specx.verify.chisquare import chi_square
from specx.verify.faults import FAULTS, Fault

KINDS = [("llamacpp", "llamacpp"), ("hf", "hf"), ("hf", "llamacpp"), ("llamacpp", "hf")]
"""Runtimes of verifier and drafter."""
OPTIONS: dict[str, dict[str, Any]] = {
    # One thread: torch's wait for each other, which takes many times as long on a shared machine.
    "hf": {"device": "cpu", "threads": 1},
    "llamacpp": {"n_gpu_layers": 0, "threads": 1},
}
SIGNATURES = """
    area(width, height) binary_search(items, target) copy_file(source, destination) reverse(text)
    open_socket(host, port) __init__(self, name) test_add(self)
"""
PROMPTS = [f"def {signature}):" for signature in SIGNATURES.split(")") if signature.strip()]
CODE = """import os


def find(root, name):
    for folder, _, files in os.walk(root):
        if name in files:
            return os.path.join(folder, name)
    raise FileNotFoundError(name)


class Counter(dict):
    def __missing__(self, key):
        return 0


def count(items):
    counts = Counter()
    for item in items:
        counts[item] += 1
    return counts


"""
GAMMA, TOP_K = 2, 4
MIDDLE = (0.5,) * GAMMA
"""Any random numbers."""
SAMPLING = SamplingParams(temperature=1, top_k=TOP_K, top_p=1)
ROUNDING = 1e-9
FALSE_POSITIVE = 1e-6
TRIALS = 1000
SEED = 20260212

Load = Callable[[str, str], LogitsBackend]


@pytest.fixture(scope="module")
def load(demo_verifier: Path, demo_drafter: Path) -> Iterator[Load]:
    """A model of the demo pair by role and runtime, loaded once."""
    paths = {"verifier": demo_verifier, "drafter": demo_drafter}
    with ExitStack() as stack:

        @cache
        def model(role: str, backend: str) -> LogitsBackend:
            if backend == "hf":
                pytest.importorskip("torch")
            options = LoadOptions(n_ctx=512, **OPTIONS[backend])
            return stack.enter_context(get_backend(backend).load(str(paths[role]), options))

        yield model


def name_of(kind: tuple[str, str]) -> str:
    return "-with-".join(kind)


@pytest.fixture(params=KINDS, ids=name_of)
def sides(request: pytest.FixtureRequest, load: Load) -> tuple[LogitsBackend, LogitsBackend]:
    verifier, drafter = request.param
    return load("verifier", verifier), load("drafter", drafter)


# Greedy identity


@pytest.fixture(scope="module")
def plain(load: Load) -> Callable[[LogitsBackend], list[list[int]]]:
    """What a verifier writes alone, once for both drafters."""
    written: dict[str, list[list[int]]] = {}

    def texts(verifier: LogitsBackend) -> list[list[int]]:
        if verifier.name not in written:
            written[verifier.name] = plain_texts(verifier, PROMPTS, ignore_eos=True)
        return written[verifier.name]

    return texts


def test_greedy_text_is_the_verifiers(
    sides: tuple[LogitsBackend, LogitsBackend], plain: Callable[[LogitsBackend], list[list[int]]]
) -> None:
    texts = plain(sides[0])
    assert [len(text) for text in texts] == [128] * len(PROMPTS)
    apart = assert_identical(*sides, PROMPTS, texts, rejections=True, ignore_eos=True)
    assert apart <= most_apart(sides[0])


def most_apart(verifier: LogitsBackend) -> float:
    """More than this, twice a measured deviation, would explain away faults."""
    return {"hf": 1e-3, "llamacpp": 0.1}[verifier.name.partition(":")[0]]


# The law of a round, enumerated through the loop


class OneRound:
    """The first round of the loop after one prompt, again and again."""

    def __init__(self, verifier: LogitsBackend, drafter: LogitsBackend, rule: type[Rule]) -> None:
        self.bench = Bench(verifier, drafter, SAMPLING, rule, Fault(), GAMMA)
        self.prompt = verifier.tokenizer.encode(CODE, add_special=True, parse_special=False)
        for model in (verifier, drafter):
            model.truncate(0)
            prefill(model, self.prompt, PREFILL_SLICE, lambda fed: None)

    def run(self, numbers: Numbers | Streams) -> Round:
        """The round with these random numbers."""
        bench = self.bench
        bench.rewind(len(self.prompt) - 1)
        tokenizer = bench.verifier.tokenizer
        rounds = speculate(
            bench.verifier,
            [ModelDrafter(bench.drafter, bench.draft_reader, tokenizer.eog_ids)],
            list(self.prompt),
            reader=bench.reader,
            rule=bench.rule,
            schedule=Fixed(GAMMA),
            streams=numbers if isinstance(numbers, Streams) else Script([numbers]),
            stop=Stop(tokenizer, GAMMA + 1, ignore_eos=True),
        )
        return next(rounds)

    def law(self) -> Law:
        """Of what one round emits."""
        law: Law = defaultdict(float)
        for drafted, drafting in self.drafts():
            seen = self.run((drafting, MIDDLE, 0.5))
            assert seen.judged is not None
            for tested, accepting, last in checks(seen.judged):
                for drawn, u in draws(last):
                    done = self.run((drafting, accepting, u))
                    law[tuple(done.emitted)] += drafted * tested * drawn
        return dict(law)

    def drafts(
        self, mass: float = 1, before: tuple[float, ...] = ()
    ) -> Iterator[tuple[float, Any]]:
        """(probability, numbers) of every draft."""
        padded = before + MIDDLE[len(before) :]
        drawn_from = self.run((padded, MIDDLE, 0.5)).draft.distributions
        if len(before) == len(drawn_from):
            yield mass, padded
            return
        for share, u in draws(drawn_from[len(before)]):
            yield from self.drafts(mass * share, (*before, u))


def rows_after(one: OneRound, width: int) -> Callable[[tuple[int, ...]], NDArray[np.float32]]:
    """The verifier's logits after the prompt and a context, from passes `width` tokens wide."""
    verifier, prompt = one.bench.verifier, one.prompt

    @cache
    def row(context: tuple[int, ...]) -> NDArray[np.float32]:
        verifier.truncate(len(prompt) - 1)
        fed = [prompt[-1], *context]
        fed += [0] * (-len(fed) % width)
        passes = [verifier.forward(fed[i : i + width], width) for i in range(0, len(fed), width)]
        found: NDArray[np.float32] = np.concatenate(passes)[len(context)]
        found[one.bench.reader.masked] = -np.inf
        return found

    return row


def table_of(row: Callable[[tuple[int, ...]], NDArray[np.float32]]) -> Table:
    return cache(lambda context: distribution(row(context), SAMPLING))


def completed(law: Law, table: Table) -> Law:
    """Law of the first gamma + 1 tokens: `table` goes on where a round emitted fewer."""
    whole: Law = Counter()
    for emitted, mass in law.items():
        for rest, more in target_law(table, GAMMA + 1 - len(emitted), emitted).items():
            whole[emitted + rest] += mass * more
    return dict(whole)


def explained(row: Callable[[tuple[int, ...]], NDArray[np.float32]], apart: float) -> float:
    """Most total variation over gamma + 1 tokens that logits `apart` from `row`'s can make.

    At temperature 1, weights that each change by a factor within exp(-d) and exp(d) change a
    distribution by tanh(d / 2) at most: the worst is two tokens, odds r against r exp(2d). Where
    top-k lets another token in, the one that leaves had a logit within 2d of the best left out, and
    the newcomer's lies within d of it: renaming one to the other moves the mass that it has. Over
    several tokens the variation is at most the expectation, along the law, of each step's.
    """
    total = 0.0
    for length in range(GAMMA + 1):
        for context, mass in target_law(table_of(row), length).items():
            logits = row(context)
            chances = distribution(logits, SAMPLING)
            left_out = np.partition(logits, -TOP_K - 1)[-TOP_K - 1]
            may_leave = chances.probs[logits[chances.ids] <= left_out + 2 * apart].sum()
            total += mass * (np.tanh(apart / 2) + may_leave)
    return total


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_of_a_round_is_the_verifiers(
    sides: tuple[LogitsBackend, LogitsBackend], rule: str
) -> None:
    verifier, _ = sides
    one = OneRound(*sides, RULES[rule])
    law = one.law()
    wide, single = rows_after(one, GAMMA + 1), rows_after(one, 1)
    whole = completed(law, table_of(wide))
    in_passes = total_variation(whole, target_law(table_of(wide), GAMMA + 1))
    in_rows = total_variation(whole, target_law(table_of(single), GAMMA + 1))
    as_verified = total_variation(law, enumerated_round(one.bench, one.prompt))
    apart = 2 * batch_deviation(verifier, one.prompt, GAMMA + 1).largest
    assert apart <= most_apart(verifier)
    allowed = explained(single, apart) + ROUNDING
    print(
        f"\n{verifier.name} with {sides[1].name}, rule {rule}: {len(law)} outcomes, total variation"
        f" {in_passes:.1e} in passes, {in_rows:.1e} in single rows (allowed {allowed:.1e})"
    )
    assert sum(law.values()) == pytest.approx(1, abs=ROUNDING)
    assert len(law) > TOP_K**2
    assert in_passes <= ROUNDING
    assert in_rows <= allowed
    assert as_verified <= ROUNDING


@pytest.mark.parametrize("fault", ["one-hot-residual", "softmax-residual"])
def test_a_wrong_residual_is_refuted(load: Load, fault: str) -> None:
    rule = FAULTS[fault].rule(RULES["token"])
    one = OneRound(load("verifier", "llamacpp"), load("drafter", "llamacpp"), rule)
    table = table_of(rows_after(one, GAMMA + 1))
    law = target_law(table, GAMMA + 1)
    assert total_variation(completed(one.law(), table), law) > 1e-3


@pytest.mark.parametrize("sides", [KINDS[0], KINDS[2]], ids=name_of, indirect=True)
def test_sampled_rounds_follow_the_law(sides: tuple[LogitsBackend, LogitsBackend]) -> None:
    one = OneRound(*sides, RULES["block"])
    law = enumerated_round(one.bench, one.prompt)
    seen: Counter[tuple[int, ...]] = Counter()
    for trial in range(TRIALS):
        seen[tuple(one.run(Streams(SEED + trial)).emitted)] += 1
    result = chi_square(seen, law, FALSE_POSITIVE)
    print(
        f"\n{sides[0].name} with {sides[1].name}: chi-square {result.statistic:.1f} (critical "
        f"{result.critical:.1f}, df {result.degrees}), sees a bias of {result.visible:.3f}"
    )
    assert result.holds
