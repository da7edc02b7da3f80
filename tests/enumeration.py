"""Every way that rounds of the loop can go, each with its probability: random numbers are scripted.

The loop under test is the one that `specx run` runs. It is run again from the start for each way,
with one uniform from each interval on which the outcome is constant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

from specx.core.exactness import Law
from specx.core.rules import Rule
from specx.core.sampling import Distribution, LogitsReader, SamplingParams
from specx.core.streams import Streams
from specx.drafters.base import Drafter
from specx.drafters.model import ModelDrafter
from specx.schedule import Schedule
from specx.session.decoding import Round, Stop, speculate
from specx_backends.toy import Toy

Numbers = tuple[tuple[float, ...], tuple[float, ...], float]
"""What one round draws with: drafting, accepting, the token after."""


class Told:
    """Stands in for a generator of random numbers: gives those it was told."""

    def __init__(self, uniforms: Sequence[float]) -> None:
        self._left = list(uniforms)

    def random(self, size: int | None = None) -> Any:
        if size is None:
            return self._left.pop(0)
        return np.array([self._left.pop(0) for _ in range(size)])


class Script(Streams):
    """The random numbers of one round after another, as they are set here."""

    def __init__(self, rounds: Sequence[Numbers]) -> None:
        super().__init__(0)
        self._rounds = iter(rounds)

    def drafting(self, length: int) -> Any:
        self._now = next(self._rounds)
        return Told(self._now[0])

    def accepting(self, length: int) -> Any:
        return Told(self._now[1])

    def emitting(self, length: int) -> Any:
        return Told(self._now[2:])


def draws(chances: Distribution) -> Iterator[tuple[float, float]]:
    """(probability, number) for each token that can be drawn."""
    middles = np.cumsum(chances.probs) - chances.probs / 2
    pairs = zip(chances.probs.tolist(), middles.tolist(), strict=True)
    return ((mass, u) for mass, u in pairs if mass > 0)


def checks(judged: Rule) -> Iterator[tuple[float, tuple[float, ...], Distribution]]:
    """(probability, numbers, what is drawn from then) for tests passed and failed."""
    chances = judged.chances.tolist()
    for passed in product([True, False], repeat=len(chances)):
        pairs = list(zip(chances, passed, strict=True))
        mass = float(np.prod([c if passes else 1 - c for c, passes in pairs]))
        if mass > 0:
            last = judged.next_token(judged.count(np.array(passed, dtype=bool)))
            yield mass, tuple(c / 2 if passes else (1 + c) / 2 for c, passes in pairs), last


class EveryWay:
    """The law of the `n` tokens that the loop writes after a prompt.

    Parameters
    ----------
    make
        A new pair of drafters and schedule, in the state in which the run is to start.
    most
        Tokens that a draft can have.
    """

    def __init__(
        self,
        verifier: Toy,
        make: Callable[[], tuple[list[Drafter], Schedule]],
        rule: type[Rule],
        prompt: Sequence[int],
        n: int,
        *,
        most: int = 4,
        sampling: SamplingParams | None = None,
    ) -> None:
        self.verifier, self.make, self.rule = verifier, make, rule
        self.prompt, self.n, self.most = list(prompt), n, most
        self.reader = LogitsReader("verifier", sampling or SamplingParams(temperature=1, top_p=1))
        self._drawn: list[Distribution] = []
        """What the last round's draft was drawn from."""
        self.gammas: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.drafters: Counter[str] = Counter()

    def law(self) -> Law:
        """Probability of each text of `n` tokens."""
        law: Law = defaultdict(float)
        self._extend(law, 1.0, [], ())
        return dict(law)

    def run(self, script: Sequence[Numbers]) -> Round:
        """The last of the rounds that are scripted."""
        drafters, schedule = self.make()
        self.verifier.truncate(0)
        rounds = speculate(
            self.verifier,
            drafters,
            list(self.prompt),
            reader=self.reader,
            rule=self.rule,
            schedule=schedule,
            streams=Script(script),
            stop=Stop(self.verifier.tokenizer, self.n, ignore_eos=True),
        )
        done: Round | None = None
        with patch.object(ModelDrafter, "draw", self._draw):
            for _ in script:
                self._drawn.clear()
                done = next(rounds)
        assert done is not None
        return done

    def _draw(self, chances: Distribution, random: Any) -> int:
        """`ModelDrafter.draw`, noting what was drawn from: a faulty drafter drops some of it."""
        self._drawn.append(chances)
        return chances.draw(random.random())

    def _extend(self, law: Law, mass: float, script: list[Numbers], text: tuple[int, ...]) -> None:
        if len(text) == self.n:
            law[text] += mass
            return
        for drafted, drafting in self._drafts(script):
            seen = self.run([*script, self._padded(drafting)])
            self._count(seen)
            assert seen.judged is not None
            for tested, accepting, last in checks(seen.judged):
                for drawn, u in draws(last):
                    numbers = (drafting, accepting, u)
                    emitted = self.run([*script, numbers]).emitted
                    way = mass * drafted * tested * drawn
                    self._extend(law, way, [*script, numbers], (*text, *emitted))

    def _drafts(
        self, script: list[Numbers], mass: float = 1.0, before: tuple[float, ...] = ()
    ) -> Iterator[tuple[float, tuple[float, ...]]]:
        """(probability, numbers) of every draft that the next round can make."""
        self.run([*script, self._padded(before)])
        if len(before) >= len(self._drawn):  # a lookup's tokens are certain, and draw no numbers
            yield mass, before
            return
        for share, u in draws(self._drawn[len(before)]):
            yield from self._drafts(script, mass * share, (*before, u))

    def _padded(self, drafting: tuple[float, ...]) -> Numbers:
        middle = (0.5,) * self.most
        return (drafting + middle)[: self.most], middle, 0.5

    def _count(self, seen: Round) -> None:
        self.gammas[len(seen.draft.ids)] += 1
        self.reasons[seen.reason] += 1
        self.drafters[seen.drafter] += 1
