"""The round loop of speculative decoding, and plain decoding beside it.

Invariant of both: between rounds the caches hold at most ``tokens[:-1]``; the last token is always
still to be fed. A cache that kept more would hold a rejected token's key and value in place of its
correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specx.codec import Seconds
from specx.core.rules import Block, Rule, Verdict, judgements
from specx.core.sampling import Distribution, LogitsReader
from specx.core.streams import Streams
from specx.drafters.base import Draft, Drafter
from specx.runtime.backend import Clock, LogitsBackend, Tokenizer
from specx.schedule import Decision, Outcome, Schedule
from specx.session.text import TextStream

__all__ = ["Round", "Stop", "StopReason", "Times", "autoregress", "speculate"]

StopReason: TypeAlias = Literal["eos", "stop", "length", "context", "interrupted", "failed"]


@dataclass
class Times:
    """Seconds that a round spent in each part; the rest of its time is text and terminal."""

    draft: Seconds = 0.0
    verify: Seconds = 0.0
    core: Seconds = 0.0
    """The sampling transform on both sides, and the rule."""
    rollback: Seconds = 0.0


@dataclass(frozen=True)
class Round:
    """One verifier pass: the draft, the rule's verdict, and the tokens emitted."""

    length: int
    """Tokens of the text, prompt included, when the round began."""
    draft: Draft
    target: list[Distribution]
    verdict: Verdict
    expected: dict[str, float]
    """Expected accepted tokens by rule, from this round's arrays."""
    emitted: list[int]
    """Tokens added to the text: fewer than were decided if a stop cut them."""
    pieces: list[str]
    """Text that each emitted token completed."""
    times: Times
    uniforms: NDArray[np.float64]
    """Uniforms that tested the drafted tokens, shape (g,)."""
    emitting: float
    """The uniform that drew the verdict's token."""
    drafter: str = ""
    """The chosen drafter: ``model`` or ``lookup``; empty in plain decoding."""
    reason: str = ""
    """The schedule's reason for its choice."""
    judged: Rule | None = None
    """The rule applied to the draft; None in plain decoding and when read from a trace."""


class Stop:
    """Decides token by token where a generation ends, and turns its tokens into text.

    Parameters
    ----------
    limit
        Maximum number of tokens to emit.
    stops
        Strings before which the text ends.
    ignore_eos
        True treats end tokens as ordinary ones.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limit: int,
        *,
        stops: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> None:
        self.remaining = limit
        self.reason: StopReason | None = None if limit > 0 else "length"
        self.eog_ids = frozenset[int]() if ignore_eos else tokenizer.eog_ids
        """Tokens that end the generation; a drafter stops drafting after them, and no others."""
        self._tokenizer = tokenizer
        self._text = TextStream(stops)

    def cut(self, tokens: Sequence[int]) -> tuple[list[int], list[str]]:
        """The tokens up to the first stop, and the text that each completed.

        An end token is not among them; the token that completes a stop string is.
        """
        emitted: list[int] = []
        pieces: list[str] = []
        for token in tokens:
            if token in self.eog_ids:
                self.reason = "eos"
                break
            emitted.append(token)
            pieces.append(self._text.push(self._tokenizer.token_bytes(token)))
            self.remaining -= 1
            if self._text.stopped or not self.remaining:
                self.reason = "stop" if self._text.stopped else "length"
                break
        return emitted, pieces

    def finish(self) -> str:
        """The text still held back, at the end of the generation."""
        return self._text.finish()


class _Stopwatch:
    """Measures the seconds since the last lap."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock()

    def lap(self) -> float:
        before, self._last = self._last, self._clock()
        return self._last - before


def speculate(
    verifier: LogitsBackend,
    drafters: Sequence[Drafter],
    tokens: list[int],
    *,
    reader: LogitsReader,
    rule: type[Rule],
    schedule: Schedule,
    streams: Streams,
    stop: Stop,
    clock: Clock | None = None,
    ready: Callable[[Decision], None] = lambda decision: None,
) -> Iterator[Round]:
    """Speculative decoding: the emitted tokens have the verifier's distribution.

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).

    Parameters
    ----------
    tokens
        The text so far, at least one token; grows in place.
    reader
        Turns the verifier's logits into distributions.
    schedule
        Chooses each round's drafter and maximum number of tokens; the length limit or the context
        may allow fewer.
    stop
        Ends the generation; its `reason` says why.
    ready
        Called with each round's plan before it is carried out, such as to let the drafter read the
        prompt; its time is not the round's.
    """
    sides: list[LogitsBackend | Drafter] = [verifier, *drafters]
    while _has_room(verifier, tokens, stop):
        times, watch, length = Times(), _Stopwatch(clock or verifier.clock), len(tokens)
        plan = schedule.plan(tokens, drafters, min(verifier.n_ctx - length, stop.remaining - 1))
        times.core = watch.lap()
        ready(plan)
        watch.lap()
        random = streams.drafting(length)
        draft = plan.drafter.propose(tokens, plan.limit, random, schedule.go_on, plan.hindsight)
        times.draft = watch.lap() - draft.core_seconds
        verifier.checkpoint()
        fed = [*tokens[verifier.n_past :], *draft.ids]
        rows = verifier.forward(fed, n_logits=len(draft.ids) + 1)
        times.verify = watch.lap()
        target = reader.read(rows, length)
        judged = judgements(Block(target, draft.distributions, draft.ids, draft.parents), rule)
        uniforms = streams.accepting(length).random(len(draft.ids))
        emitting = streams.emitting(length).random()
        verdict = judged[rule.name].decide(uniforms, emitting)
        expected = {name: float(each.expected) for name, each in judged.items()}
        times.core += watch.lap() + draft.core_seconds
        emitted, pieces = stop.cut([*verdict.accepted, verdict.token])
        tokens += emitted
        watch.lap()
        for side in sides:
            side.truncate(min(side.n_past, len(tokens) - 1))
        times.rollback = watch.lap()
        schedule.learn(_outcome(judged[rule.name], verdict, draft, times))
        times.core += watch.lap()
        yield Round(
            length,
            draft,
            target,
            verdict,
            expected,
            emitted,
            pieces,
            times,
            uniforms,
            emitting,
            plan.drafter.kind,
            plan.reason,
            judged[rule.name],
        )


def autoregress(
    verifier: LogitsBackend,
    tokens: list[int],
    *,
    reader: LogitsReader,
    streams: Streams,
    stop: Stop,
    clock: Clock | None = None,
) -> Iterator[Round]:
    """Plain decoding, one token per pass: the oracle of `speculate` and its baseline."""
    while _has_room(verifier, tokens, stop):
        times, watch, length = Times(), _Stopwatch(clock or verifier.clock), len(tokens)
        rows = verifier.forward(tokens[verifier.n_past :])
        times.verify = watch.lap()
        target = reader.read(rows, length)
        emitting = streams.emitting(length).random()
        token = target[0].draw(emitting)
        times.core = watch.lap()
        emitted, pieces = stop.cut([token])
        tokens += emitted
        verdict, untested = Verdict((), token), np.empty(0)
        yield Round(
            length, Draft(), target, verdict, {}, emitted, pieces, times, untested, emitting
        )


def _outcome(judged: Rule, verdict: Verdict, draft: Draft, times: Times) -> Outcome:
    """The part of a round that a schedule may learn from."""
    return Outcome(
        survival=judged.survival.tolist(),
        decided=verdict.n_accepted + 1,
        token=(*verdict.accepted, verdict.token)[0],
        prob=judged.block.target[0].prob,
        hindsight=draft.hindsight,
        draft_seconds=times.draft,
        verify_seconds=times.verify,
        core_seconds=times.core,
    )


def _has_room(verifier: LogitsBackend, tokens: Sequence[int], stop: Stop) -> bool:
    """True if another round is to be run; a full context stops the generation in order."""
    if stop.reason is None and len(tokens) > verifier.n_ctx:
        stop.reason = "context"
    return stop.reason is None
