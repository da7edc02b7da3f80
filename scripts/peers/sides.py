"""A side of the comparison: a program that answers a prompt with given sampling settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from specx import Pair, SamplingParams, Session, Settings, Stop, Tally, Tokenizer
from specx.bench.profiling import encode_prompt
from specx.bench.suites import Prompt
from specx.session.chat import render_chat

__all__ = ["Peer", "PeerFailed", "Question", "Side", "Specx", "Speed", "question"]


class PeerFailed(Exception):
    """A peer could not do something, described in one line: a finding, not a measurement error."""


@dataclass(frozen=True)
class Question:
    """A prompt as every side gets it."""

    id: str
    ids: list[int]
    """Tokens, the chat template's included."""
    text: str
    """The same for a program that reads text, adds BOS where the model wants one, and parses
    control tokens.
    """


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of one generation, its prefill left out."""

    tok_s: float
    n_tokens: int
    seconds: float
    kept: float | None = None
    """Accepted / proposed, where the side tells."""
    alpha: float | None = None
    """Accepted / tested, where the side tells."""


class Side(Protocol):
    """Something that generates."""

    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        """Write at most `n` tokens, drafting `gamma` in a round.

        Raises
        ------
        PeerFailed
            If a peer cannot.
        """


def question(tokenizer: Tokenizer, prompt: Prompt) -> Question:
    """`prompt` through the verifier's chat template, where it has one."""
    ids, text = encode_prompt(tokenizer, prompt.text), prompt.text
    bos, eos = (
        "" if token is None else tokenizer.token_text(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    if tokenizer.chat_template is not None:
        messages = [{"role": "user", "content": prompt.text}]
        text = render_chat(tokenizer.chat_template, messages, bos=bos, eos=eos)
    added = tokenizer.encode("a", add_special=True, parse_special=False)
    if bos and added[0] == tokenizer.bos_id:
        text = text.removeprefix(bos)
    return Question(prompt.id, ids, text)


class Specx:
    """A pair of ours, or a verifier alone."""

    def __init__(self, pair: Pair, sampling: SamplingParams, rule: str) -> None:
        self.rule = rule
        self._pair = pair
        self._sampling = sampling

    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        tally = self.decode(prompt, gamma, seed, n)
        return Speed(
            tok_s=tally.tok_s or 0.0,
            n_tokens=tally.n_tokens,
            seconds=tally.total,
            kept=tally.kept,
            alpha=tally.alpha,
        )

    def decode(
        self, prompt: Question, gamma: int, seed: int, n: int, temperature: float | None = None
    ) -> Tally:
        """One generation from empty caches, at another temperature where one is given."""
        sampling = self._sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        settings = Settings(sampling=sampling, gamma=gamma, rule=self.rule, seed=seed)
        stop = Stop(self._pair.verifier.tokenizer, n)
        with Session(self._pair) as session:
            rounds = session.rounds(prompt.ids, settings, stop)
            for _ in rounds:
                pass
        return rounds.result.tally


class Peer:
    """Another program, opened when it is first run: any exception it raises is a finding."""

    def __init__(self, open_side: Callable[[], Side]) -> None:
        self._open = open_side
        self._side: Side | None = None

    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        try:
            if self._side is None:
                self._side = self._open()
            return self._side.run(prompt, gamma, seed, n)
        except PeerFailed:
            raise
        except Exception as error:  # of any library: they have no common base
            first = next(iter(str(error).splitlines()), "")
            raise PeerFailed(f"{type(error).__name__}: {first}") from error
