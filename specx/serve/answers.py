"""What clients see: answers, the chunks of a stream, and statistics in the dialects that exist.

``usage`` is OpenAI's, with accepted and rejected proposals in ``completion_tokens_details`` and
reused tokens of the prompt in ``prompt_tokens_details``; ``timings`` are llama.cpp's.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specx.codec import to_json
from specx.serve.engine import Ended, Progress, Said
from specx.serve.logprobs import Logprob
from specx.serve.wire import Wanted
from specx.session.result import Result

__all__ = ["DONE", "Answer", "event_of"]

FINISH = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
DONE = "data: [DONE]\n\n"


def event_of(value: object) -> str:
    """`value` as a server-sent event."""
    return f"data: {to_json(value)}\n\n"


@dataclass
class _Held:
    """Log-probabilities of tokens whose text may still be cut off by a stop string."""

    waiting: deque[tuple[int, Logprob]] = field(default_factory=deque)
    """With the byte at which each token begins."""
    n_bytes: int = 0

    def add(self, logprobs: Sequence[Logprob]) -> None:
        for each in logprobs:
            self.waiting.append((self.n_bytes, each))
            self.n_bytes += len(each.data)

    def released(self, n_bytes: int) -> list[Logprob]:
        """Those of the tokens that begin within the first `n_bytes` of the text."""
        found = []
        while self.waiting and self.waiting[0][0] < n_bytes:
            found.append(self.waiting.popleft()[1])
        return found

    def rest(self) -> list[Logprob]:
        """All that wait."""
        found = [each for _, each in self.waiting]
        self.waiting.clear()
        return found


@dataclass
class _Choice:
    """One text of an answer, as far as it is known."""

    n_bytes: int = 0
    """Of the text that was released."""
    offset: int = 0
    """Characters before the next token, for ``text_offset``."""
    held: _Held = field(default_factory=_Held)
    spoken: list[Logprob] = field(default_factory=list)
    begun: bool = False


class Answer:
    """The answer to one request."""

    def __init__(self, wanted: Wanted, model: str, fingerprint: str) -> None:
        self.wanted = wanted
        self._model, self._fingerprint = model, fingerprint
        self._id = f"{'chatcmpl' if wanted.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._choices = [_Choice() for _ in range(wanted.n_choices)]
        self._results: list[tuple[Result, Progress]] = []

    # A stream

    def said(self, event: Said) -> Iterator[str]:
        """Chunks for one round."""
        choice = self._choices[event.index]
        yield from self._opening(event.index)
        text = "".join(event.pieces)
        logprobs = self._released(choice, event, text)
        extra = {"specx": _origins(event)} if self.wanted.origins else {}
        more: dict[str, Any] = {}
        if self.wanted.timings:
            more["timings"] = timings(event.progress)
        if text or logprobs or extra:
            yield self._chunk(event.index, text, logprobs, extra=extra, **more)

    def ended(self, event: Ended) -> Iterator[str]:
        """Chunks for the end of a text: what was held back, then why it ended."""
        choice, result = self._choices[event.index], event.result
        yield from self._opening(event.index)
        self._results.append((result, event.progress))
        rest = self._rest(choice, result)
        if result.rest or rest:
            yield self._chunk(event.index, result.rest, rest)
        yield self._chunk(
            event.index,
            None,
            [],
            finish=_finish(result),
            timings=timings(event.progress),
            specx=_summary(result),
        )

    def closing(self) -> Iterator[str]:
        """The last events of a stream."""
        if self.wanted.usage_chunk:
            yield event_of({**self._head(streamed=True), "choices": [], "usage": self._usage()})
        yield DONE

    # A whole answer

    def gathered(self, event: Said) -> None:
        """Keep what a round said for a whole answer."""
        choice = self._choices[event.index]
        choice.spoken += self._released(choice, event, "".join(event.pieces))

    def finished(self, event: Ended) -> None:
        """Keep a complete text for a whole answer."""
        choice = self._choices[event.index]
        choice.spoken += self._rest(choice, event.result)
        self._results.append((event.result, event.progress))

    @property
    def complete(self) -> bool:
        """True if every text is there."""
        return len(self._results) == self.wanted.n_choices

    def whole(self) -> dict[str, Any]:
        """The answer at once."""
        choices = []
        for index, (result, _) in enumerate(self._results):
            one: dict[str, Any] = {"index": index, "finish_reason": _finish(result)}
            if self.wanted.chat:
                one["message"] = {"role": "assistant", "content": result.text, "refusal": None}
            else:
                one["text"] = result.text
            choice = self._choices[index]
            one["logprobs"] = self._logprobs(choice, choice.spoken)
            choices.append(one)
        result, progress = self._results[-1]
        return {
            **self._head(streamed=False),
            "choices": choices,
            "usage": self._usage(),
            "timings": timings(progress),
            "specx": _summary(result),
        }

    # Parts

    def _head(self, *, streamed: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.wanted.chat:
            kind = "chat.completion.chunk" if streamed else "chat.completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._fingerprint,
        }

    def _opening(self, index: int) -> Iterator[str]:
        """The chunk that names the role, once for each text."""
        choice = self._choices[index]
        if not choice.begun:
            choice.begun = True
            if self.wanted.chat:
                yield self._chunk(index, "", [], role="assistant")

    def _chunk(
        self,
        index: int,
        text: str | None,
        logprobs: Sequence[Logprob],
        *,
        role: str | None = None,
        finish: str | None = None,
        extra: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        choice: dict[str, Any] = {"index": index}
        if self.wanted.chat:
            content = {} if text is None else {"content": text}
            choice["delta"] = content if role is None else {"role": role, **content}
        else:
            choice["text"] = text or ""
        choice["logprobs"] = self._logprobs(self._choices[index], logprobs) if logprobs else None
        choice["finish_reason"] = finish
        usage = {"usage": None} if self.wanted.usage_chunk else {}
        whole = {**self._head(streamed=True), "choices": [{**choice, **(extra or {})}]}
        return event_of({**whole, **usage, **more})

    def _released(self, choice: _Choice, event: Said, text: str) -> list[Logprob]:
        choice.held.add(event.logprobs)
        choice.n_bytes += len(text.encode("utf-8", "surrogatepass"))
        return choice.held.released(choice.n_bytes)

    def _rest(self, choice: _Choice, result: Result) -> list[Logprob]:
        """What was held back to the end; a stop string's tokens are no part of the text."""
        choice.n_bytes += len(result.rest.encode("utf-8", "surrogatepass"))
        if result.stop_reason == "stop":
            return choice.held.released(choice.n_bytes)
        return choice.held.rest()

    def _logprobs(self, choice: _Choice, logprobs: Sequence[Logprob]) -> dict[str, Any] | None:
        if self.wanted.n_alternatives is None:
            return None
        if self.wanted.chat:
            return {"content": [each.record() for each in logprobs], "refusal": None}
        offsets = []
        for each in logprobs:
            offsets.append(choice.offset)
            choice.offset += len(each.text)
        return {
            "tokens": [each.text for each in logprobs],
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": [{top.text: top.logprob for top in each.top} for each in logprobs],
            "text_offset": offsets,
        }

    def _usage(self) -> dict[str, Any]:
        results = [result for result, _ in self._results]
        # A request's texts share their prompts: each counts once.
        firsts = results[:: self.wanted.n]
        n_prompt = sum(result.n_prompt for result in firsts)
        n_tokens = sum(result.n_tokens for result in results)
        accepted = sum(result.tally.accepted for result in results)
        proposed = sum(result.tally.proposed for result in results)
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_tokens,
            "total_tokens": n_prompt + n_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(each.n_reused for each in firsts)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": proposed - accepted,
            },
        }


def timings(progress: Progress) -> dict[str, Any]:
    """Statistics in llama.cpp's words; milliseconds, and tokens per second."""
    n_read = progress.n_prompt - progress.n_reused
    return {
        "cache_n": progress.n_reused,
        "prompt_n": n_read,
        **_rates("prompt", n_read, progress.prompt_s),
        "predicted_n": progress.n_tokens,
        **_rates("predicted", progress.n_tokens, progress.decoding_s),
        "draft_n": progress.proposed,
        "draft_n_accepted": progress.accepted,
    }


def _rates(name: str, count: int, seconds: float) -> dict[str, float | None]:
    return {
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": 1000 * seconds / count if count else None,
        f"{name}_per_second": count / seconds if seconds > 0 else None,
    }


def _finish(result: Result) -> str:
    return FINISH[str(result.stop_reason)]


def _summary(result: Result) -> dict[str, Any]:
    """What specx adds: enough to get the same text again, and the acceptance rate."""
    return {
        "seed": result.settings.seed,
        "gamma": result.settings.gamma,
        "stop_reason": result.stop_reason,
        "alpha": result.alpha,
        "tau": result.tau,
    }


def _origins(event: Said) -> dict[str, Any]:
    """Where the tokens of a round come from."""
    last = "bonus" if event.n_accepted == event.n_proposed else "correction"
    if not event.n_proposed:
        last = "plain"
    return {
        "tokens": [
            {
                "id": token,
                "text": piece,
                "origin": "accepted" if place < event.n_accepted else last,
                "drafter": event.drafter if place < event.n_accepted else "",
            }
            for place, (token, piece) in enumerate(zip(event.tokens, event.pieces, strict=True))
        ],
        "proposed": event.n_proposed,
        "accepted": event.n_accepted,
    }
