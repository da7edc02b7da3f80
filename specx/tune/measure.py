"""Measures a pair within a number of seconds: what passes cost, and what is accepted where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from specx.bench.profiling import PassTimer, Samples, encode_prompt
from specx.bench.records import Arm
from specx.bench.suites import Prompt
from specx.bench.sweep import Bench, Plan
from specx.core.sampling import SamplingParams
from specx.schedule.costs.curve import Profile, round_seconds, uniform_speedup, uniform_tokens
from specx.session.chat import ChatOptions
from specx.session.decoding import Round
from specx.session.generation import Generation, Observer
from specx.session.pair import Pair
from specx.session.settings import Settings
from specx.tune.surface import Labels, Overheads, Sample, Text

__all__ = ["LONGEST", "Asked", "Measurement", "in_turns", "measure"]

NARROW = (1, 2, 3, 4, 5, 6, 7, 8, 9)
WIDE = (12, 16, 24, 32)
TURNS = ((1, 2, 3, 5, 7, 9), (1, 2, 4, 6, 8))
"""Widths that are timed after a generation, in turns."""
DRAFTED = (1, 2)
"""Widths of a drafter's passes: the second follows a full acceptance."""
LAGGING = (4, 8, 16, 32)
"""Widths of a drafter that catches up."""
LONGEST = 2048
LENGTHS = (LONGEST, 1024, 512, 256)
"""Contexts to measure at besides the texts' own: the longest that the budget affords."""
FOR_LONG = 0.2
"""Share of the budget that the long context may take."""
MOST_SWEEPS, FOR_SWEEP, FOR_WARM_UP = 3, 0.02, 0.1
"""Timings of all widths at the beginning, after one that warms up: another one if the last took no
more than this share of the budget."""
WARM_UP = 8
FEWEST, MOST = 12, 64
"""Tokens per generation."""
HOPED = 0.8
"""Acceptance rate for which the length of the measured drafts is chosen."""
SHORTEST_DRAFT, LONGEST_DRAFT = 3, 8


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to measure with."""

    sampling: SamplingParams
    rule: str
    prompts: Sequence[Prompt]
    """In the order in which they are to be used."""
    seed: int = 0
    raw: bool = False
    chat: ChatOptions = field(default_factory=ChatOptions)


def in_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """`prompts` in an order in which every kind comes once before any comes again."""
    nth = [sum(other.kind == p.kind for other in prompts[:i]) for i, p in enumerate(prompts)]
    return [prompt for _, _, prompt in sorted(zip(nth, range(len(nth)), prompts, strict=True))]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured of one pair, or of a verifier alone."""

    profile: Profile
    """At the length of the suite's texts."""
    long: Profile | None
    """After a longer text; None if the time was too short."""
    samples: list[Sample]
    texts: list[Text]
    overheads: Overheads
    missing: list[str]
    """Kinds of prompts for which no time was left."""


class _Labelling(Observer):
    """Sums up soft labels, and ends a generation at the deadline."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self._over = over
        self.reached: list[float] = []
        self.stayed: list[float] = []

    def begin(self, generation: Generation) -> None:
        self._stop = generation.stop

    def round(self, done: Round) -> None:
        before = 1.0
        for place, after in enumerate([] if done.judged is None else done.judged.survival):
            if place == len(self.reached):
                self.reached.append(0.0)
                self.stayed.append(0.0)
            self.reached[place] += before
            self.stayed[place] += float(after)
            before = float(after)
        if self._over() and self._stop.reason is None:
            self._stop.reason = "interrupted"

    @property
    def labels(self) -> Labels:
        return Labels(tuple(self.reached), tuple(self.stayed))


def measure(
    pair: Pair,
    asked: Asked,
    seconds: float,
    report: Callable[[float], None] = lambda seconds: None,
) -> Measurement:
    """Measure for about so many seconds of the verifier's clock; `report` is given those spent.

    Short generations alternate with timed passes, so that a slow minute of the machine affects all
    figures alike.
    """
    return _Measuring(pair, asked, seconds, report).run()


class _Measuring:
    def __init__(
        self, pair: Pair, asked: Asked, seconds: float, report: Callable[[float], None]
    ) -> None:
        self.pair, self.asked, self.seconds = pair, asked, seconds
        self._clock, self._report = pair.verifier.clock, report
        self._begun = self._clock()
        self._wide: Samples = {}
        self._timer = PassTimer(pair, [*NARROW, *WIDE], self._wide)
        plan = Plan(
            arms=[],
            prompts=asked.prompts,
            n=MOST,
            repetitions=1,
            seed=asked.seed,
            raw=asked.raw,
            chat=asked.chat,
        )
        self._bench = Bench(pair, plan, self._timer, self._watch)
        self._samples: list[Sample] = []
        self._texts: list[Text] = []
        self._rounds: list[tuple[float, float, float]] = []
        """Of each generation: seconds of core per row, of rollback and of the rest per round."""

    def run(self) -> Measurement:
        first, prefill = self._first_look()
        long = self._at_length(prefill)
        gamma = _draft_length(first) if self.pair.drafter is not None else 0
        n = self._n_tokens(first, gamma, prefill)
        asked, last = self.asked, 0.0
        for turn in count():
            begun = self._clock()
            if self._samples and self._left < 0.6 * last:
                break
            repetition, place = divmod(turn, len(asked.prompts))
            self._generate(asked.prompts[place], repetition, gamma, n)
            last = self._clock() - begun
        core, rollback, other = (median(column) for column in zip(*self._rounds, strict=True))
        self._timer.samples = _pooled([self._wide, *(sample.seconds for sample in self._samples)])
        profile = self._timer.profile(core)
        assert profile is not None, "passes were timed"
        seen = {sample.kind for sample in self._samples}
        return Measurement(
            profile=profile,
            long=long,
            samples=self._samples,
            texts=self._texts,
            overheads=Overheads(core=core, rollback=rollback, other=other),
            missing=list(dict.fromkeys(p.kind for p in asked.prompts if p.kind not in seen)),
        )

    @property
    def _spent(self) -> float:
        return self._clock() - self._begun

    @property
    def _left(self) -> float:
        return self.seconds - self._spent

    def _over(self) -> bool:
        self._report(min(self._spent, self.seconds))
        return self._left <= 0

    def _watch(self, arm: Arm, repetition: int, prompt: Prompt) -> Observer:
        self._labelling = _Labelling(self._over)
        return self._labelling

    def _arm(self, gamma: int) -> Arm:
        backend, *others = (model.name.partition(":")[0] for model in self.pair.models)
        settings = Settings(
            sampling=self.asked.sampling,
            gamma=gamma,
            rule=self.asked.rule,
            draft=("model",) if gamma else None,
        )
        return Arm(settings=settings, backend=backend, draft_backend=(others or [backend])[0])

    def _first_look(self) -> tuple[Profile, float]:
        """The first timings of every width, and the seconds per token of reading a prompt."""
        arm = self._arm(1 if self.pair.drafter is not None else 0)
        run = self._bench.run(arm, 0, self.asked.prompts[0], limit=WARM_UP)
        widths = {"verifier": [*NARROW, *WIDE], "drafter": [*DRAFTED, *LAGGING]}
        for sweep in range(1 + MOST_SWEEPS):
            begun = self._clock()
            self._timer.time(
                self._bench.text, run.n_prompt, self.pair.models, widths=widths, rounds=1
            )
            self._over()
            share = (self._clock() - begun) / self.seconds
            if share > (FOR_SWEEP if sweep else FOR_WARM_UP):
                break
            if sweep == 0:  # the first pass of a width is slow: the runtime plans and allocates
                self._wide.clear()
        profile = self._timer.profile(0.0)
        assert profile is not None, "passes were timed"
        return profile, run.prefill_s / max(run.n_prompt - 1, 1)

    def _at_length(self, prefill: float) -> Profile | None:
        """The costs after a long text, if the time allows."""
        narrow = sum(min(self._wide["verifier"][width]) for width in NARROW)
        room = min(model.n_ctx for model in self.pair.models) - WIDE[-1]
        afford = FOR_LONG * self._left - narrow
        length = next((n for n in LENGTHS if n <= room and n * prefill <= afford), None)
        if length is None or length < 2 * len(self._bench.text):
            return None
        tokenizer, asked = self.pair.verifier.tokenizer, self.asked
        text: list[int] = []
        for prompt in asked.prompts:
            text += encode_prompt(tokenizer, prompt.text, raw=asked.raw, chat=asked.chat)
        text = (text * (length // len(text) + 1))[:length]
        timer = PassTimer(self.pair, [*NARROW, *DRAFTED], {})
        widths = {"verifier": NARROW, "drafter": DRAFTED}
        timer.time(text, length, self.pair.models, widths=widths, rounds=1)
        self._over()
        return timer.profile(0.0)

    def _n_tokens(self, profile: Profile, gamma: int, prefill: float) -> int:
        """Tokens per generation, so that every kind of prompt gets its turn."""
        asked, tokenizer = self.asked, self.pair.verifier.tokenizer
        kinds = {prompt.kind: prompt for prompt in reversed(asked.prompts)}
        fed = [
            len(encode_prompt(tokenizer, prompt.text, raw=asked.raw, chat=asked.chat))
            for prompt in kinds.values()
        ]
        timing = sum(min(self._wide["verifier"][width]) for width in TURNS[0])
        share = self._left / len(kinds) - timing - prefill * sum(fed) / len(fed)
        a_token = round_seconds(profile, gamma) / uniform_tokens(HOPED, gamma)
        return int(min(max(share / a_token, FEWEST), MOST))

    def _generate(self, prompt: Prompt, repetition: int, gamma: int, n: int) -> None:
        """Write a short text, and time passes within it."""
        run = self._bench.run(self._arm(gamma), repetition, prompt, limit=n)
        timed: Samples = {}
        self._timer.samples = timed
        if not self._over():
            turn = TURNS[len(self._samples) % len(TURNS)]
            widths = {"verifier": turn, "drafter": DRAFTED}
            self._timer.time(
                self._bench.text, run.n_prompt, self.pair.models, widths=widths, rounds=1
            )
        tally = run.tally
        if tally.rounds:
            rest = tally.total - sum(vars(tally.times).values())
            rows = tally.rounds + 2 * tally.proposed
            self._rounds.append(
                (tally.times.core / rows, tally.times.rollback / tally.rounds, rest / tally.rounds)
            )
            labels = self._labelling.labels
            self._samples.append(Sample(kind=prompt.kind, labels=labels, seconds=timed))
        if tally.n_tokens:
            self._texts.append(Text(prompt.kind, list(self._bench.text), run.n_prompt))


def _draft_length(profile: Profile) -> int:
    """The length of the drafts to measure acceptance with: the best one for a good drafter."""
    lengths = range(SHORTEST_DRAFT, LONGEST_DRAFT + 1)
    return max(lengths, key=lambda gamma: uniform_speedup(profile, HOPED, gamma))


def _pooled(parts: Sequence[Mapping[str, Mapping[int, Sequence[float]]]]) -> Samples:
    pooled: Samples = {}
    for part in parts:
        for role, by_width in part.items():
            for width, seconds in by_width.items():
                pooled.setdefault(role, {}).setdefault(width, []).extend(seconds)
    return pooled
