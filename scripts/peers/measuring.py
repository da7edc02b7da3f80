"""The steps of a comparison: every side's best gamma, then all sides in turn, then the rules."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from peers.record import Record
from peers.sides import PeerFailed, Question, Side, Specx

__all__ = ["Plan", "Step", "Steps", "measure"]

ACCEPTANCE_TEMPERATURE = 1.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The measurements to make."""

    prompts: Sequence[Question]
    sides: Mapping[str, Side]
    plain: str
    """Name of the side that drafts nothing: it has no gamma to choose."""
    gammas: Sequence[int]
    repetitions: int
    n: int
    """The most tokens that a run writes."""
    seed: int = 0
    acceptance: Specx | None = None
    """The pair whose expected acceptance is measured; None leaves this out."""
    acceptance_gammas: Sequence[int] = (4, 8)
    acceptance_n: int = 96

    def seed_of(self, repetition: object, prompt: Question) -> int:
        """The same for all sides; the choice of gamma has seeds of its own."""
        return zlib.crc32(f"{self.seed}/{repetition}/{prompt.id}".encode()) & 0x7FFFFFFF


@dataclass(frozen=True)
class Step:
    """Something that is measured and saved as a whole."""

    label: str
    runs: int
    """Generations at most: what its time is estimated from."""
    measure: Callable[[], str]
    """Runs the step and returns its description."""


@dataclass
class Steps:
    """The steps that a record lacks; a side that fails is left out from then on."""

    plan: Plan
    record: Record
    failed: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[Step]:
        return iter([*self._choices(), *self._blocks(), *self._acceptances()])

    def _choices(self) -> Iterator[Step]:
        for prompt in self.plan.prompts:
            for gamma in self.plan.gammas:
                for side in self.plan.sides:
                    key = {"prompt": prompt.id, "side": side, "gamma": gamma}
                    if side != self.plan.plain and not self.record.has("choice", **key):
                        yield Step(
                            f"{prompt.id}, {side}, gamma {gamma}",
                            1,
                            partial(self._choose, prompt, side, gamma),
                        )

    def _choose(self, prompt: Question, side: str, gamma: int) -> str:
        if side in self.failed:
            return "left out"
        run = self._run(prompt, side, gamma, self.plan.seed_of("choice", prompt))
        if run is None:
            return f"failed: {self.record.data['failures'][side]}"
        entry = {"prompt": prompt.id, "side": side, "gamma": gamma, "run": run}
        self.record.add("choice", entry, ("prompt", "side", "gamma"))
        return f"{run['tok_s']:.2f} tok/s"

    def _run(
        self, prompt: Question, side: str, gamma: int, seed: int
    ) -> dict[str, float | None] | None:
        """The measured run; None if the side failed, which is then recorded."""
        try:
            speed = self.plan.sides[side].run(prompt, gamma, seed, self.plan.n)
        except PeerFailed as error:
            self.failed.add(side)
            self.record.data["failures"][side] = str(error)
            self.record.save()
            return None
        self.record.data["failures"].pop(side, None)
        return {"gamma": gamma, **asdict(speed)}

    def _blocks(self) -> Iterator[Step]:
        """Repetitions outermost, so that those of a prompt lie far apart."""
        order = [(r, p) for r in range(self.plan.repetitions) for p in self.plan.prompts]
        for turn, (repetition, prompt) in enumerate(order):
            if not self.record.block(prompt.id, repetition).keys() >= self.plan.sides.keys():
                yield Step(
                    f"{prompt.id}, repetition {repetition + 1}",
                    len(self.plan.sides),
                    partial(self._block, turn, repetition, prompt),
                )

    def _block(self, turn: int, repetition: int, prompt: Question) -> str:
        """Every side at its best gamma, starting with a different one each time."""
        sides = [side for side in self.plan.sides if side not in self.failed]
        if self.record.block(prompt.id, repetition).keys() >= set(sides):
            return "known, but for what failed"
        first = turn % len(sides)
        seed, runs = self.plan.seed_of(repetition, prompt), {}
        for side in [*sides[first:], *sides[:first]]:
            run = self._run(prompt, side, self._gamma(prompt, side), seed)
            if run is not None:
                runs[side] = run
        entry = {"prompt": prompt.id, "repetition": repetition, "seed": seed, "runs": runs}
        self.record.add("blocks", entry, ("prompt", "repetition"))
        return ", ".join(f"{side} {run['tok_s']:.2f}" for side, run in runs.items()) + " tok/s"

    def _gamma(self, prompt: Question, side: str) -> int:
        if side == self.plan.plain:
            return 0
        gamma = self.record.best_gamma(prompt.id, side)
        assert gamma is not None  # a side without a choice has failed
        return gamma

    def _acceptances(self) -> Iterator[Step]:
        for prompt in self.plan.prompts if self.plan.acceptance else []:
            for gamma in self.plan.acceptance_gammas:
                if not self.record.has("acceptance", prompt=prompt.id, gamma=gamma):
                    yield Step(
                        f"{prompt.id}, expected acceptance, gamma {gamma}",
                        1,
                        partial(self._accept, prompt, gamma),
                    )

    def _accept(self, prompt: Question, gamma: int) -> str:
        pair, n = self.plan.acceptance, self.plan.acceptance_n
        assert pair is not None
        seed = self.plan.seed_of("acceptance", prompt)
        tally = pair.decode(prompt, gamma, seed, n, ACCEPTANCE_TEMPERATURE)
        expected = tally.expected_a_round() or {}
        entry = {
            "prompt": prompt.id,
            "gamma": gamma,
            "temperature": ACCEPTANCE_TEMPERATURE,
            "n": n,
            "rule": pair.rule,
            "rounds": tally.rounds,
            "accepted": tally.accepted / tally.rounds,
            "alpha": tally.alpha,
            "expected": expected,
        }
        self.record.add("acceptance", entry, ("prompt", "gamma"))
        return ", ".join(f"{rule} {tokens:.2f}" for rule, tokens in expected.items())


def measure(
    steps: Steps, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> None:
    """Do all steps, and report after each how many are left."""
    missing, begun, done = list(steps), clock(), 0
    for place, step in enumerate(missing, start=1):
        found = step.measure()
        done += step.runs
        left = sum(later.runs for later in missing[place:])
        minutes = (clock() - begun) / done * left / 60
        say(
            f"{step.label}: {found}; {len(missing) - place} steps left"
            + (f", about {minutes:.0f} minutes" if left else "")
        )
