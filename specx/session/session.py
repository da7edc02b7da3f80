"""A session: loaded models, drafters, and the text that their caches hold."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from specx.closing import Closing
from specx.core.accept import find_rule
from specx.core.streams import Streams
from specx.drafters import get_drafter
from specx.drafters.base import Drafter, TextSettings
from specx.errors import BackendError, SpecxError, UsageError, whole_number
from specx.runtime.backend import LogitsBackend, Parkable
from specx.runtime.prefill import PREFILL_SLICE, prefill
from specx.runtime.uncached import unwrapped
from specx.schedule import Auto, Costs, Decision, EarlyStop, Fixed, Schedule
from specx.session.asked import DEFAULTS, Asked, Options, Prompt
from specx.session.decoding import Round, Stop, autoregress, speculate
from specx.session.generation import Generation, Observer
from specx.session.pair import Pair
from specx.session.parking import PARK_LEAST, VERIFIER, ParkedText, Parking, common_length
from specx.session.result import Result
from specx.session.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Rounds", "Session", "Stream"]


class Rounds(Iterator[Round]):
    """The rounds of a generation; abandoning the iterator ends the generation."""

    def __init__(
        self, session: Session, generation: Generation, rounds: Generator[Round, None, None]
    ) -> None:
        self.generation = generation
        self._session = session
        self._rounds = rounds
        self._begun = False

    def __next__(self) -> Round:
        with self._session.entered():
            if not self._begun:
                self._begun = True
                self._session.supersede(self)
            return next(self._rounds)

    def close(self) -> None:
        """End the generation now.

        Raises
        ------
        BackendError
            If a round is being computed, in another thread or by an observer that calls this.
        """
        try:
            self._rounds.close()
        except ValueError as error:
            raise BackendError(
                "the generation is computing a round; close it when the round is done"
            ) from error

    @property
    def result(self) -> Result:
        """The result so far."""
        return self.generation.result


class Stream(Iterator[str]):
    """The text of a generation, piece by piece: whole characters, never a part of a stop string."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._rest = False

    def __next__(self) -> str:
        for done in self._rounds:
            if piece := "".join(done.pieces):
                return piece
        if not self._rest and self.result.rest:
            self._rest = True
            return self.result.rest
        raise StopIteration

    def close(self) -> None:
        """End the generation now."""
        self._rounds.close()

    @property
    def result(self) -> Result:
        """The result so far."""
        return self._rounds.result


class Session(Closing):
    """Generates texts with the same models, whose caches keep what consecutive texts share.

    What ``gamma="auto"`` learns stays from one text to the next, except where a seed is given: such
    a text depends on no other, and every session writes the same.

    Parameters
    ----------
    pair
        Loaded models. They belong to this session until it is closed or collected.
    costs
        Costs of rounds, for ``gamma="auto"``; by default those that `specx tune` saved or of a
        shipped table, and the session's own times for texts without a given seed.
    defaults
        Settings of `generate` and `stream` that a call leaves out.
    parking
        Keeps texts that others take the place of, so that clients may alternate: each reads only
        what is new. By default nothing is kept. It serves one session.
    closes_models
        Whether `close` frees the models too.

    Raises
    ------
    BackendError
        If another session uses one of the models: two would mix their texts in one cache.
    """

    def __init__(
        self,
        pair: Pair,
        *,
        costs: Costs | None = None,
        defaults: Settings = DEFAULTS,
        parking: Parking | None = None,
        closes_models: bool = False,
    ) -> None:
        self.pair = pair
        self.defaults = defaults
        self._costs = costs
        self.parking = parking
        self._auto: Auto | None = None
        """What texts without a given seed have taught."""
        self._drafters: dict[str, Drafter] = {}
        self._held: tuple[list[int], int] = [], 0
        """A text, and the length of its prefix that the caches reliably hold; beyond, they may hold
        anything, such as rejected tokens of an unfinished round."""
        self._lock = threading.Lock()
        """Held while a round is computed."""
        self._current: weakref.ref[Rounds] | None = None
        self._closed = False
        self._closes_models = closes_models
        for model in pair.models:
            _own(model, self)

    def rounds(
        self,
        tokens: Sequence[int],
        settings: Settings,
        stop: Stop,
        observers: Sequence[Observer] = (),
        *,
        schedule: Callable[[Schedule], Schedule] = lambda schedule: schedule,
        live: bool = False,
        size: int = PREFILL_SLICE,
        keep_logits: bool = False,
    ) -> Rounds:
        """Continue `tokens`: one `Round` per verifier pass.

        The caches keep the longest prefix that `tokens` share with the previous text; the rest
        is read when the first round is requested. A generation still in progress is ended first.

        Parameters
        ----------
        observers
            Follow the generation from beginning to end.
        schedule
            Given the schedule of `settings`, returns the one to use.
        live
            True to let ``gamma="auto"`` learn, costs from the clock and acceptance from one text to
            the next. The distribution of the text is the same, but a seed does not reproduce it.
        size
            Tokens of the prompt to feed at a time, which bounds the delay of a Ctrl-C.
        keep_logits
            True to keep the logits of each distribution, as a trace needs; a round then holds up to
            2 g + 1 rows of the vocabulary's size.

        Raises
        ------
        UsageError
            If `tokens` are empty, or not ids of the verifier.
        BackendError
            Here or at the first round, if the session was closed or another thread is generating
            with it.
        ContextError
            At the first round, if a context cannot hold `tokens`.
        """
        _check_tokens(tokens, self.pair.verifier)
        generation = Generation(self.pair, tokens, settings, stop, observers)
        rounds = self._generate(generation, schedule, live, size, keep_logits)
        return Rounds(self, generation, rounds)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Result:
        """Generate a text.

        Parameters
        ----------
        prompt
            A text or chat messages, which go through the model's chat template if it has one, or
            tokens, which are used as they are.
        options
            See `Options`.

        Returns
        -------
        Result
            With `text`, `tokens`, `alpha`, `tok_s`, `stop_reason` and the rest.

        Raises
        ------
        SpecxError
            As `rounds`; also if an option does not exist or has an invalid value.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Generate a text piece by piece; parameters are those of `generate`.

        The iterator's `result` is complete at its end.
        """
        asked = Asked(self.pair.verifier.tokenizer, self.defaults, options)
        rounds = self.rounds(
            asked.encode(prompt), asked.settings, asked.stop, asked.observers, live=asked.live
        )
        return Stream(rounds)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Reserve the session for this caller within the block.

        Raises
        ------
        BackendError
            If another caller is using the session, or it was closed.
        """
        if self._closed:
            raise BackendError("the session was closed; open another one")
        if not self._lock.acquire(blocking=False):
            raise BackendError(
                f"{self.pair.verifier.name} is generating for another thread or caller of this "
                "session; wait for it, or load the model again"
            )
        try:
            yield
        finally:
            self._lock.release()

    def supersede(self, rounds: Rounds) -> None:
        """End the current generation; `rounds` takes its place."""
        current = self._current() if self._current is not None else None
        self._current = weakref.ref(rounds)
        if current is not None:
            current.close()

    def close(self) -> None:
        """Release the models; close them too if `closes_models` was set, as by `specx.load`."""
        current = self._current() if self._current is not None else None
        if current is not None:
            current.close()
        self._closed = True
        for model in self.pair.models:
            _disown(model, self)
        if self.parking is not None:
            self.parking.clear()
        if self._closes_models:
            self.pair.close()

    def drafters(self, settings: Settings) -> list[Drafter]:
        """Drafters that `settings` name, in that order; by default the model's if there is one.

        Raises
        ------
        UsageError
            If one needs a model and there is none.
        """
        return [self._drafter(name) for name in self.pair.draft_names(settings)]

    def _drafter(self, name: str) -> Drafter:
        if name not in self._drafters:
            drafter = get_drafter(name).make(self.pair.parts)
            drafter.truncate(0)  # an earlier session may have left a text in its model
            self._drafters[name] = drafter
        return self._drafters[name]

    def _generate(
        self,
        generation: Generation,
        chosen: Callable[[Schedule], Schedule],
        live: bool,
        size: int,
        keep_logits: bool,
    ) -> Generator[Round, None, None]:
        try:
            self._prepare(generation, chosen, live, keep_logits)
            generation.begin()
            self._feed(generation, size)
            for done in self._decode(generation, size, keep_logits):
                self._held = generation.tokens, len(generation.tokens)
                generation.add(done)
                with generation.away():
                    yield done
            generation.prefilled()  # where there was no round
        except GeneratorExit:
            generation.finish(None if generation.stop.reason else "interrupted")
            raise
        except SpecxError:
            generation.finish("failed")
            raise
        except BaseException:
            generation.finish("interrupted")
            raise
        generation.finish()

    def _prepare(
        self,
        generation: Generation,
        chosen: Callable[[Schedule], Schedule],
        live: bool,
        keep_logits: bool,
    ) -> None:
        """Choose drafters and schedule for a text."""
        settings = generation.settings
        generation.drafters = self.drafters(settings)
        if not generation.drafters:
            return
        text = TextSettings(
            sampling=settings.draft_sampling or settings.sampling,
            n_prompt=generation.n_prompt,
            eog_ids=generation.stop.eog_ids,
            keep_logits=keep_logits,
            alone=not live,
        )
        for drafter in generation.drafters:
            drafter.begin(text)
        schedule = self._schedule(settings, live, generation.n_prompt)
        generation.schedule = chosen(schedule)
        generation.schedule.begin()

    def _schedule(self, settings: Settings, live: bool, n_prompt: int) -> Schedule:
        gamma = settings.gamma
        schedule: Schedule = self._auto_for(live, n_prompt) if gamma == "auto" else Fixed(gamma)
        if settings.entropy_stop is None and settings.draft_p_min is None:
            return schedule
        return EarlyStop(schedule, entropy=settings.entropy_stop, p_min=settings.draft_p_min)

    def _auto_for(self, live: bool, n_prompt: int) -> Auto:
        if live and self._auto is not None:
            return self._auto
        auto = Auto(self._costs or self.pair.costs(live=live, n_past=n_prompt))
        if live:
            self._auto = auto
        return auto

    def _feed(self, generation: Generation, size: int) -> None:
        """Let the verifier read what its cache lacks of the text, all but its last token."""
        verifier, tokens = self.pair.verifier, generation.tokens
        self._recall(tokens)
        generation.n_reused = verifier.n_past
        clock = verifier.clock
        begun = clock()
        prefill(verifier, tokens, size, generation.fed)
        generation.prefill_s.append(clock() - begun)
        for drafter in generation.drafters:
            # It may never draft, and reads the prompt when it does. One whose context is too short
            # is to say so now.
            fits = len(tokens) <= drafter.n_ctx
            drafter.feed(tokens[:1] if fits else tokens, size, generation.fed)

    def _ready(self, generation: Generation, size: int, decision: Decision) -> None:
        """Let the drafter of a round read the prompt, if it is to draft and has not."""
        drafter = decision.drafter
        if decision.limit and drafter.n_past < generation.n_prompt - 1:
            clock = self.pair.verifier.clock
            with generation.away():
                begun = clock()
                drafter.feed(generation.tokens[: generation.n_prompt], size, generation.fed)
                generation.prefill_s.append(clock() - begun)
        generation.prefilled()

    def _recall(self, tokens: list[int]) -> None:
        """Let the caches hold a prefix of `tokens`: what they share, or what a parked text does."""
        verifier = self.pair.verifier
        text, n_known = self._held
        common = min(common_length(text[:n_known], tokens), len(tokens) - 1)
        n_held = min(verifier.n_past, n_known)
        stays = common if verifier.rollback == "native" or common >= n_held else 0
        parked, n_shared = None, 0
        if self.parking is not None:
            whole = verifier.rollback != "native"
            # Before the held text is parked, which could drop this one, or take its room.
            parked, n_shared = self.parking.take(tokens[:-1], min(stays, n_held), whole=whole)
            if n_held - stays > PARK_LEAST:
                self._park(self.parking)
        self._held = tokens, common  # first: an interrupt may strike on either side of a rollback
        for side in self._sides().values():
            _return_to(side, min(side.n_past, common))
        if parked is not None:
            self._held = tokens, n_shared  # beyond, its copies hold another text
            self._unpark(parked, n_shared)
        self._held = tokens, len(tokens)

    def _sides(self) -> dict[str, LogitsBackend | Drafter]:
        return {VERIFIER: self.pair.verifier, **self._drafters}

    def _park(self, parking: Parking) -> None:
        """Park what the caches reliably hold."""
        verifier, (text, n_known) = self.pair.verifier, self._held
        if not isinstance(verifier, Parkable):
            return
        states = {}
        for name, side in self._sides().items():
            _return_to(side, min(side.n_past, n_known))
            if side.n_past and isinstance(side, Parkable):
                with suppress(SpecxError):  # such as no memory for a copy: it will be read again
                    states[name] = side.export_state()
        if VERIFIER in states:
            parking.add(ParkedText(text[: verifier.n_past], states))

    def _unpark(self, parked: ParkedText, n_shared: int) -> None:
        """Put the copies of `parked` into the caches, up to the first `n_shared` tokens."""
        for name, side in self._sides().items():
            state = parked.states.get(name)
            if state is None or min(state.n_past, n_shared) <= side.n_past:
                continue
            assert isinstance(side, Parkable)
            try:
                side.import_state(state)
            except SpecxError:  # the side is empty now, and reads the text
                if self.parking is not None:
                    self.parking.remove(parked)
                continue
            _return_to(side, min(side.n_past, n_shared))

    def _decode(self, generation: Generation, size: int, keep_logits: bool) -> Iterator[Round]:
        settings, verifier = generation.settings, self.pair.verifier
        reader = self.pair.reader(settings.sampling, keep_logits=keep_logits)
        streams, stop, tokens = Streams(settings.seed), generation.stop, generation.tokens
        if generation.schedule is None:
            generation.prefilled()
            return autoregress(verifier, tokens, reader=reader, streams=streams, stop=stop)
        return speculate(
            verifier,
            generation.drafters,
            tokens,
            reader=reader,
            rule=find_rule(settings.rule),
            schedule=generation.schedule,
            streams=streams,
            stop=stop,
            ready=partial(self._ready, generation, size),
        )


def _return_to(side: LogitsBackend | Drafter, n_past: int) -> None:
    """Roll back to `n_past`, or to nothing if that position cannot be restored."""
    try:
        side.truncate(n_past)
    except BackendError:
        side.truncate(0)


_OWNERS: WeakValueDictionary[int, Session] = WeakValueDictionary()
"""By the id of a loaded model. Weak: a session that is collected releases its models."""
_OWNING = threading.Lock()


def _own(model: LogitsBackend, session: Session) -> None:
    with _OWNING:
        if _OWNERS.setdefault(id(unwrapped(model)), session) is not session:
            raise BackendError(
                f"{model.name} is in use by another session, and has one cache; close that one "
                "first, or load the model again"
            )


def _disown(model: LogitsBackend, session: Session) -> None:
    with _OWNING:
        if _OWNERS.get(id(unwrapped(model))) is session:
            del _OWNERS[id(unwrapped(model))]


def _check_tokens(tokens: Sequence[int], verifier: LogitsBackend) -> None:
    """Raise UsageError if a text of `verifier` cannot begin with `tokens`."""
    if len(tokens) == 0:
        raise UsageError("tokens is empty; pass at least one token, such as BOS")
    for index, token in enumerate(tokens):
        whole_number(f"tokens[{index}]", token, 0, verifier.n_vocab - 1)
