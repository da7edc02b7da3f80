"""Answers requests one after another, on one thread that alone uses the session."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from specx.errors import ContextError, ModelError, SpecxError, UsageError
from specx.runtime.prefill import PREFILL_SLICE
from specx.serve.logprobs import Logprob, logprobs_of
from specx.serve.wire import Refused, Wanted
from specx.session.asked import Asked
from specx.session.chat import ChatOptions, has_template
from specx.session.decoding import Round
from specx.session.generation import Generation, Observer
from specx.session.result import Result
from specx.session.session import Session

__all__ = ["Ended", "Engine", "Event", "Failed", "Job", "Over", "Progress", "Said"]


@dataclass(frozen=True)
class Progress:
    """Figures of a generation so far."""

    n_prompt: int
    n_reused: int
    prompt_s: float
    n_tokens: int
    decoding_s: float
    proposed: int
    accepted: int


@dataclass(frozen=True)
class Said:
    """What one round added to a text."""

    index: int
    """Which of the request's texts."""
    pieces: list[str]
    """Text that each token completed."""
    tokens: list[int]
    n_proposed: int
    n_accepted: int
    drafter: str
    logprobs: list[Logprob]
    progress: Progress


@dataclass(frozen=True)
class Ended:
    """A text is complete."""

    index: int
    result: Result
    progress: Progress


@dataclass(frozen=True)
class Failed:
    """The request cannot be answered, or not further."""

    reason: Refused


@dataclass(frozen=True)
class Over:
    """Nothing follows."""


Event: TypeAlias = "Said | Ended | Failed | Over"


class Job:
    """One request that was let in.

    Parameters
    ----------
    deliver
        Takes each event, on the engine's thread.
    """

    def __init__(self, wanted: Wanted, deliver: Callable[[Event], None]) -> None:
        self.wanted = wanted
        self.deliver = deliver
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        """Nobody waits for the answer: stop within a round."""
        self.cancelled.set()


class _Cancelled(Exception):
    """Breaks off the reading of a prompt."""


class Engine:
    """Queues requests and answers them in order.

    Parameters
    ----------
    most_waiting
        Requests that may wait while one is being answered.
    template
        Inputs of the chat template that a request does not set.
    report
        Takes the result of each text, complete or broken off, on the engine's thread.
    """

    def __init__(
        self,
        session: Session,
        *,
        most_waiting: int,
        template: ChatOptions,
        slice_size: int = PREFILL_SLICE,
        report: Callable[[Result], None] = lambda result: None,
    ) -> None:
        self.session = session
        self.most_waiting = most_waiting
        self._template, self._slice, self._report = template, slice_size, report
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._usual_s = 1.0
        """Seconds that recent requests took, on average."""
        self._thread = threading.Thread(target=self._work, name="specx-engine", daemon=True)

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """1 while a request is being answered, else 0."""
        return int(self._running is not None)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a request.

        Raises
        ------
        Refused
            With 503 if the queue is full, or the server is shutting down.
        """
        with self._changed:
            # What was given up may leave the queue only when its turn comes.
            waiting = sum(not each.cancelled.is_set() for each in self._waiting)
            if self._closing:
                raise _shutting_down()
            if waiting >= self.most_waiting + 1 - self.n_running:
                raise Refused(
                    f"{waiting} requests are waiting, which is the limit; try again later",
                    503,
                    code="queue_full",
                    headers={"Retry-After": str(self._patience(waiting))},
                )
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Refuse new requests, end the present one within a round, and wait for that."""
        self.interrupt()
        if self._thread.ident is not None:
            self._thread.join()

    def interrupt(self) -> None:
        """As `close`, without waiting."""
        self._closing = True
        with self._changed:
            self._changed.notify()

    def _patience(self, waiting: int) -> int:
        return min(60, max(1, round(self._usual_s * (waiting + 1) / 2)))

    def _work(self) -> None:
        while (job := self._next()) is not None:
            begun = time.perf_counter()
            try:
                self._answer(job)
            except _Cancelled:
                pass
            except Exception as error:
                job.deliver(Failed(_refusal(error)))
            finally:
                self._usual_s += (time.perf_counter() - begun - self._usual_s) / 8
                self._running = None
                job.deliver(Over())

    def _next(self) -> Job | None:
        """The next request that somebody waits for; None at the end."""
        with self._changed:
            while not self._closing:
                while self._waiting:
                    job = self._waiting.popleft()
                    if not job.cancelled.is_set():
                        self._running = job
                        return job
                    job.deliver(Over())
                self._changed.wait(1.0)
            for job in self._waiting:
                job.deliver(Failed(_shutting_down()))
                job.deliver(Over())
            self._waiting.clear()
            return None

    def _answer(self, job: Job) -> None:
        for index in range(job.wanted.n_choices):
            if not self._generate(job, index):
                return

    def _generate(self, job: Job, index: int) -> bool:
        """Generate one text; False if it was broken off."""
        wanted = job.wanted
        prompt, options = wanted.choice(index)
        tokenizer = self.session.pair.verifier.tokenizer
        if wanted.chat and not has_template(tokenizer):
            raise Refused(
                "the model has no chat template, so it cannot chat; use /v1/completions",
                code="no_chat_template",
            )
        options["template"] = replace(
            self._template, arguments={**self._template.arguments, **wanted.arguments}
        )
        with _blaming(*wanted.options):
            asked = Asked(tokenizer, self.session.defaults, options)
        field = "messages" if wanted.chat else "prompt"
        with _blaming(field):
            tokens = asked.encode(prompt)
        self._require_room(tokens, field)
        following = _Following(job, index, lambda: self._closing)
        with _blaming(field):
            rounds = self.session.rounds(
                tokens,
                asked.settings,
                asked.stop,
                [following],
                live=asked.live,
                size=self._slice,
                keep_logits=wanted.n_alternatives is not None,
            )
        for _ in rounds:
            pass
        result = rounds.result
        self._report(result)
        if result.stop_reason == "interrupted":
            if not job.cancelled.is_set():
                raise _shutting_down()
            return False
        job.deliver(Ended(index, result, following.progress))
        return True

    def _require_room(self, tokens: list[int], field: str) -> None:
        n_ctx = min(model.n_ctx for model in self.session.pair.models)
        if len(tokens) > n_ctx:
            raise Refused(
                f"the prompt has {len(tokens)} tokens, and the context holds {n_ctx}; shorten it, "
                "or start the server with a larger context (-c)",
                param=field,
                code="context_length_exceeded",
            )


class _Following(Observer):
    """Delivers what a generation says, and ends it when nobody listens."""

    def __init__(self, job: Job, index: int, closing: Callable[[], bool]) -> None:
        self._job, self._index, self._closing = job, index, closing
        self._begun = self._prefilled = time.perf_counter()

    @property
    def _unwanted(self) -> bool:
        return self._job.cancelled.is_set() or self._closing()

    def begin(self, generation: Generation) -> None:
        self._generation = generation

    def fed(self, n_tokens: int) -> None:
        if self._unwanted:
            raise _shutting_down() if self._closing() else _Cancelled

    def prefilled(self) -> None:
        self._prefilled = time.perf_counter()

    @property
    def progress(self) -> Progress:
        """Figures so far."""
        generation = self._generation
        tally = generation.tally
        return Progress(
            n_prompt=generation.n_prompt,
            n_reused=generation.n_reused,
            prompt_s=self._prefilled - self._begun,
            n_tokens=tally.n_tokens,
            decoding_s=time.perf_counter() - self._prefilled,
            proposed=tally.proposed,
            accepted=tally.accepted,
        )

    def round(self, done: Round) -> None:
        n_alternatives = self._job.wanted.n_alternatives
        tokenizer = self._generation.pair.verifier.tokenizer
        logprobs = (
            []
            if n_alternatives is None
            else logprobs_of(done.target, done.emitted, n_alternatives, tokenizer)
        )
        self._job.deliver(
            Said(
                self._index,
                done.pieces,
                done.emitted,
                len(done.draft.ids),
                done.verdict.n_accepted,
                done.drafter,
                logprobs,
                self.progress,
            )
        )
        if self._unwanted and self._generation.stop.reason is None:
            self._generation.stop.reason = "interrupted"


def _shutting_down() -> Refused:
    return Refused(
        "the server is shutting down; try again later",
        503,
        code="shutting_down",
        headers={"Retry-After": "10"},
    )


@contextmanager
def _blaming(*fields: str) -> Iterator[None]:
    """Refuse what is wrong within the block: the field that the error begins with, or the first."""
    try:
        yield
    except UsageError as error:
        message = str(error)
        named = (field for field in fields if message.startswith(field))
        raise Refused(message, param=next(named, fields[0])) from error


def _refusal(error: Exception) -> Refused:
    """What a client is told of an error: a path or a traceback is for the server's log alone."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ContextError):
        return Refused(str(error), code="context_length_exceeded")
    if isinstance(error, UsageError | ModelError):
        return Refused(str(error))
    if isinstance(error, SpecxError):
        print(f"specx: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    return Refused("the model failed on this request; see the server's log", 500)
