"""A generation in progress, and its observers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from specx.drafters.base import Drafter
from specx.runtime.backend import Clock
from specx.schedule import Costs, Schedule
from specx.session.decoding import Round, Stop, StopReason
from specx.session.pair import Pair
from specx.session.result import Result, estimate
from specx.session.settings import Settings
from specx.session.tally import Choices, Tally

__all__ = ["Generation", "Observer"]


class Observer:
    """Follows a generation as it happens; each method does nothing unless it is overridden.

    A trace, a terminal, a progress bar and a benchmark are observers. An observer's error ends
    the generation; every observer that saw it begin also sees its end.
    """

    def begin(self, generation: Generation) -> None:
        """A generation is about to start; nothing has been fed."""

    def fed(self, n_tokens: int) -> None:
        """The model that reads the prompt holds `n_tokens` of it."""

    def prefilled(self) -> None:
        """All models that the first round needs hold the prompt."""

    def round(self, done: Round) -> None:
        """A round is done."""

    def end(self, result: Result) -> None:
        """The generation is over: at a stop, or early."""


class Generation:
    """A generation in progress, as observers see it."""

    def __init__(
        self,
        pair: Pair,
        tokens: Sequence[int],
        settings: Settings,
        stop: Stop,
        observers: Sequence[Observer],
    ) -> None:
        self.pair = pair
        self.settings = settings
        self.stop = stop
        self.tokens = list(map(int, tokens))
        """The text so far, prompt included; grows."""
        self.n_prompt = len(self.tokens)
        self.n_reused = 0
        self.prefill_s: list[float] = []
        """Seconds spent reading the prompt: the verifier's, then each drafter's."""
        self.drafters: list[Drafter] = []
        self.schedule: Schedule | None = None
        """Chooses how many tokens to draft; None in plain decoding."""
        self.tally, self.choices = Tally(), Choices()
        self._observers = list(observers)
        self._watching: list[Observer] = []
        self._pieces: list[str] = []
        self._rest = ""
        self._over = False
        self._clock: Clock = pair.verifier.clock
        self._decoding: float | None = None
        """When decoding began."""
        self._away = 0.0
        """Seconds of the decoding that went to the caller, between rounds, or to the prompt."""
        self._observed = 0.0

    def begin(self) -> None:
        """Tell the observers that the generation begins."""
        for observer in self._observers:
            observer.begin(self)
            self._watching.append(observer)

    def fed(self, n_tokens: int) -> None:
        """Tell the observers that a slice of the prompt was fed."""
        for observer in self._watching:
            observer.fed(n_tokens)

    def prefilled(self) -> None:
        """Tell the observers that the prompt was read, and start the clock; once."""
        if self._decoding is not None:
            return
        for observer in self._watching:
            observer.prefilled()
        self._decoding = self._clock()

    def add(self, done: Round) -> None:
        """Count a round, and show it to the observers."""
        begun = self._clock()
        self.tally.add(done)
        self.choices.add(done)
        self._pieces += done.pieces
        for observer in self._watching:
            observer.round(done)
        self._observed += self._clock() - begun

    @contextmanager
    def away(self) -> Iterator[None]:
        """Exclude the block's time from the decoding's."""
        left = self._clock()
        try:
            yield
        finally:
            if self._decoding is not None:
                self._away += self._clock() - left

    def finish(self, reason: StopReason | None = None) -> None:
        """End the generation, once: with `reason` if early, and show observers the result."""
        if self._over:
            return
        self._over = True
        self.stop.reason = reason or self.stop.reason
        if self._decoding is not None:
            self.tally.total = self._clock() - self._decoding - self._away
        self._rest = self.stop.finish()
        result, failure = self.result, None
        for observer in self._watching:
            try:
                observer.end(result)
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure

    @property
    def _costs(self) -> Costs | None:
        return None if self.schedule is None else self.schedule.costs

    @property
    def result(self) -> Result:
        """The result so far."""
        return Result(
            text="".join(self._pieces) + self._rest,
            tokens=self.tokens[self.n_prompt : self.n_prompt + self.tally.n_tokens],
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            stop_reason=self.stop.reason,
            settings=self.settings,
            prefill_s=sum(self.prefill_s),
            prefill_draft_s=sum(self.prefill_s[1:]),
            tally=self.tally,
            choices=self.choices,
            observed_s=self._observed,
            rest=self._rest,
            estimated=estimate(self.tally, self.choices, self._costs),
        )
