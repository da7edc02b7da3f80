"""Runs a sweep: all arms take turns on each prompt, so that a slow minute affects them all."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from specx.bench.profiling import PassTimer, encode_prompt
from specx.bench.records import Arm, Results, Run
from specx.bench.suites import Prompt
from specx.interrupts import held
from specx.runtime.backend import LogitsBackend
from specx.runtime.uncached import Uncached
from specx.schedule import Costs
from specx.schedule.costs.curve import Profile
from specx.session.chat import ChatOptions
from specx.session.decoding import Stop
from specx.session.generation import Observer
from specx.session.pair import Pair
from specx.session.session import Session

__all__ = ["Plan", "Watch", "run_sweep"]

WARM_UP_TOKENS = 8

Load = Callable[[str, str], AbstractContextManager[Pair]]
"""Loads a pair, given the verifier's and the drafter's backends."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The measurements that a sweep is to make."""

    arms: Sequence[Arm]
    """All arms, including baselines."""
    prompts: Sequence[Prompt]
    n: int
    """The most tokens that a run writes."""
    repetitions: int
    seed: int = 0
    ignore_eos: bool = False
    raw: bool = False
    """True to leave out the model's chat template."""
    chat: ChatOptions = field(default_factory=ChatOptions)
    """The template's arguments besides the prompt."""
    profile: Profile | None = None
    """Costs that ``gamma="auto"`` starts from; by default those of the pair: saved, or a table."""

    @property
    def runs_an_arm(self) -> int:
        """The number of runs per arm."""
        return len(self.prompts) * self.repetitions

    def blocks(self) -> Iterator[tuple[int, Prompt]]:
        """Prompts in order, repetitions outermost, so that those of a prompt lie far apart."""
        for repetition in range(self.repetitions):
            for prompt in self.prompts:
                yield repetition, prompt

    def seed_of(self, repetition: int, prompt: Prompt) -> int:
        """The seed, shared by all arms: random draws depend only on prompt and repetition."""
        return zlib.crc32(f"{self.seed}/{repetition}/{prompt.id}".encode())


Watch = Callable[[Arm, int, Prompt], Observer]
"""Makes the observers of a measured run from its arm, repetition and prompt."""


def run_sweep(
    plan: Plan,
    load: Load,
    results: Results,
    *,
    report: Callable[[int], None] = lambda runs: None,
    save: Callable[[], None] = lambda: None,
    watch: Watch | None = None,
) -> None:
    """Measure what `results` still lacks of `plan`, and add it.

    Arms that share models and sampler take turns on each prompt. Only whole blocks are added: one
    prompt and repetition under all arms of such a group.

    Parameters
    ----------
    report
        Called with the number of finished runs, including those already in `results`.
    save
        Called after each addition.
    watch
        Asked before each run for its observers, even in a block that is later interrupted and not
        added. Warm-ups and the timing of single passes are not observed. The observers' time does
        not count towards the run.
    """
    results.planned = plan.runs_an_arm
    for arm in plan.arms:
        results.runs.setdefault(arm, [])
    for arms in _groups(plan.arms, lambda arm: (arm.backend, arm.draft_backend)):
        if _missing(plan, results, arms):
            with load(arms[0].backend, arms[0].draft_backend) as pair:
                timer = _timer(pair, arms, results)
                for group in _groups(arms, lambda arm: arm.sampling):
                    bench = Bench(pair, plan, timer, watch)
                    _run_group(plan, bench, group, results, report, save)


def _timer(pair: Pair, arms: Sequence[Arm], results: Results) -> PassTimer:
    widths = {1, 2, *(gamma + 1 for arm in arms for gamma in _lengths(arm))}
    return PassTimer(pair, widths, results.timings.setdefault(arms[0].runtimes, {}))


def _lengths(arm: Arm) -> list[int]:
    """Draft lengths whose passes are timed; under auto, powers of two up to the longest."""
    if arm.gamma != "auto":
        return [arm.gamma]
    return [2**i for i in range(arm.longest_draft.bit_length())]


def _groups(arms: Iterable[Arm], key: Callable[[Arm], object]) -> list[list[Arm]]:
    """Adjacent arms with equal keys, grouped."""
    return [list(group) for _, group in groupby(arms, key)]


def _missing(plan: Plan, results: Results, arms: Sequence[Arm]) -> list[tuple[int, Prompt]]:
    """The blocks that some arm has not run."""
    done = [{run.key for run in results.runs[arm]} for arm in arms]
    return [
        (repetition, prompt)
        for repetition, prompt in plan.blocks()
        if not all((prompt.id, repetition) in keys for keys in done)
    ]


def _run_group(
    plan: Plan,
    bench: Bench,
    arms: Sequence[Arm],
    results: Results,
    report: Callable[[int], None],
    save: Callable[[], None],
) -> None:
    """Run every missing block under all `arms`, starting with a different one each time."""
    missing = _missing(plan, results, arms)
    if missing:
        bench.warm_up(arms, *missing[0])
    for turn, (repetition, prompt) in enumerate(missing):
        first = turn % len(arms)
        block: dict[Arm, Run] = {}
        for place, arm in enumerate([*arms[first:], *arms[:first]]):
            block[arm] = bench.run(arm, repetition, prompt, limit=plan.n)
            if arm.cached:
                bench.time_passes()
            report(results.n_done + place + 1)
        with held():  # a block interrupted in between would leave arms with different runs
            for arm, run in block.items():
                results.add(arm, run)
        if profile := bench.timer.profile(_core(block)):
            results.profiles[arms[0].runtimes] = profile
        save()


def _core(block: Mapping[Arm, Run]) -> float:
    """Seconds of the core per row of logits: plain decoding reads one per round."""
    (plain,) = (run.tally for arm, run in block.items() if not arm.gamma)
    return plain.times.core / plain.rounds if plain.rounds else 0.0


class Bench:
    """A loaded pair, and the models that each kind of arm decodes with."""

    def __init__(
        self, pair: Pair, plan: Plan, timer: PassTimer, watch: Watch | None = None
    ) -> None:
        self.plan, self.models, self.timer = plan, pair.models, timer
        self._pairs = {(True, True): pair}
        self._watch = watch
        self.text: list[int] = []
        """The last run's tokens, including its prompt's."""
        self._last: tuple[int, list[LogitsBackend]] = 0, []

    def warm_up(self, arms: Iterable[Arm], repetition: int, prompt: Prompt) -> None:
        """Write a few tokens under each arm, neither counted nor observed."""
        watch, self._watch = self._watch, None
        for arm in arms:
            self.run(arm, repetition, prompt, limit=WARM_UP_TOKENS)
        self._watch = watch

    def run(self, arm: Arm, repetition: int, prompt: Prompt, *, limit: int) -> Run:
        """Run one generation from empty caches, in a fresh session."""
        pair = self._pair(arm)
        tokens = encode_prompt(
            pair.verifier.tokenizer, prompt.text, raw=self.plan.raw, chat=self.plan.chat
        )
        settings = replace(arm.settings, seed=self.plan.seed_of(repetition, prompt))
        stop = Stop(pair.verifier.tokenizer, limit, ignore_eos=self.plan.ignore_eos)
        observers = [] if self._watch is None else [self._watch(arm, repetition, prompt)]
        with Session(pair, costs=self._costs(arm, pair)) as session:
            rounds = session.rounds(
                tokens, settings, stop, observers, live=True, keep_logits=bool(observers)
            )
            for _ in rounds:
                pass
        result = rounds.result.unobserved()
        self.text, self._last = rounds.generation.tokens, (result.n_prompt, pair.models)
        return Run(
            prompt=prompt.id,
            kind=prompt.kind,
            repetition=repetition,
            seed=settings.seed,
            n_prompt=result.n_prompt,
            prefill_s=result.prefill_s,
            stop_reason=str(result.stop_reason),
            tally=result.tally,
            gammas={who: dict(sorted(n.items())) for who, n in result.choices.gammas.items()},
            text_crc=zlib.crc32(np.array(result.tokens, dtype="<i4").tobytes()),
        )

    def time_passes(self) -> None:
        """Time single passes within the last run's text, which the caches still hold."""
        self.timer.time(self.text, *self._last)

    def _pair(self, arm: Arm) -> Pair:
        """The models that `arm` decodes with.

        Made on demand: models run without a cache must be able to forget, plain decoding needs no
        such ability.
        """
        key = arm.needs_model, arm.cached
        if key not in self._pairs:
            models = self.models if arm.needs_model else self.models[:1]
            self._pairs[key] = Pair(*(models if arm.cached else map(Uncached, models)))
        return self._pairs[key]

    def _costs(self, arm: Arm, pair: Pair) -> Costs | None:
        """The costs of --profile, which the run's own times correct; None for the pair's own."""
        if self.plan.profile is None or arm.gamma != "auto":
            return None
        return pair.costs(self.plan.profile, live=True)
