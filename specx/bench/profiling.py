"""Measures the costs of a loaded pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TypeAlias

import numpy as np

from specx.core.sampling import SamplingParams
from specx.errors import UsageError
from specx.runtime.backend import LogitsBackend, Tokenizer
from specx.runtime.vocabulary import readable
from specx.schedule.costs.curve import Curve, Profile, curve_of, measure_curve, time_pass
from specx.session.chat import ChatOptions, encode_chat, encode_raw, has_template
from specx.session.pair import Pair

__all__ = ["PassTimer", "Samples", "encode_prompt", "profile_pair"]

CORE_ROWS = 9
ROUNDS_AT_ONCE = 2
PLAIN_CHAT = ChatOptions()

Samples: TypeAlias = "dict[str, dict[int, list[float]]]"
"""Durations of passes in seconds, by role and width."""


class PassTimer:
    """Times passes between the runs of a sweep, so that a slow minute slows both.

    A model that cannot forget a pass is not timed.

    Parameters
    ----------
    widths
        Widths to time.
    samples
        The timings so far; new ones are added.
    """

    def __init__(self, pair: Pair, widths: Iterable[int], samples: Samples) -> None:
        roles = zip(["verifier", "drafter"], pair.models, strict=False)
        self.models = {role: model for role, model in roles if model.rollback != "none"}
        self.widths = sorted(set(widths))
        self.samples = samples
        self._order = np.random.default_rng(0)
        self._n_past: list[int] = []

    def time(
        self,
        text: Sequence[int],
        n_prompt: int,
        models: Sequence[LogitsBackend],
        *,
        widths: Mapping[str, Sequence[int]] | None = None,
        rounds: int = ROUNDS_AT_ONCE,
    ) -> None:
        """Time passes at the middle of the generation held in the caches of `models`.

        Parameters
        ----------
        widths
            By role; all of them by default.
        rounds
            How often to time each.
        """
        middle = (n_prompt + len(text)) // 2
        self._n_past.append(middle)
        ahead = [*text[middle:], *list(text) * (self.widths[-1] // len(text) + 1)]
        for role, model in self.models.items():
            if model not in models:
                continue
            _return_to(model, readable(text[:middle], model.n_vocab))
            timed = self.samples.setdefault(role, {})
            chosen = self.widths if widths is None else widths[role]
            for _ in range(rounds):
                for width in self._order.permutation(chosen).tolist():
                    fed = readable(ahead[:width], model.n_vocab)
                    seconds = time_pass(model, fed, None if role == "verifier" else 1)
                    timed.setdefault(width, []).append(seconds)

    def profile(self, core: float) -> Profile | None:
        """The profile from the timings so far, None if there are none; `core` as in `Profile`."""
        if "verifier" not in self.samples:
            return None
        n_past = int(median(self._n_past))
        curves = {
            role: curve_of(model, n_past, self.samples[role])
            for role, model in self.models.items()
            if role in self.samples
        }
        return Profile(verifier=curves["verifier"], drafter=curves.get("drafter"), core=core)


def _return_to(model: LogitsBackend, text: Sequence[int]) -> None:
    """Make `model` hold exactly `text`, given that it holds a prefix or an extension of it."""
    if model.rollback != "native" and model.n_past > len(text):
        model.truncate(0)
    model.truncate(min(model.n_past, len(text)))
    if model.n_past < len(text):
        model.forward(text[model.n_past :], n_logits=0)


def profile_pair(
    pair: Pair,
    text: Sequence[int],
    n_past: int,
    widths: Iterable[int],
    repeats: int,
    *,
    report: Callable[[int], None] = lambda passes: None,
) -> Profile:
    """Measure both cost curves and the core after about `n_past` tokens of repeated `text`."""
    widths = sorted(set(widths))
    room = min(model.n_ctx for model in pair.models)
    length = min(n_past + widths[-1], room)
    tokens = (list(text) * (length // len(text) + 1))[:length]
    curves: list[Curve] = []
    for model in pair.models:
        before = len(curves) * (repeats + 1) * len(widths)
        curves.append(
            measure_curve(
                model,
                readable(tokens, model.n_vocab),
                widths,
                repeats,
                rows=None if model is pair.verifier else 1,
                report=partial(_after, before, report),
            )
        )
    drafter = curves[1] if len(curves) > 1 else None
    return Profile(verifier=curves[0], drafter=drafter, core=_core_seconds(pair, tokens))


def _after(before: int, report: Callable[[int], None], passes: int) -> None:
    report(before + passes)


def _core_seconds(pair: Pair, tokens: Sequence[int]) -> float:
    """Seconds per row for the sampling transform under the default sampler."""
    rows = min(CORE_ROWS, len(tokens))
    logits = pair.verifier.forward(list(tokens[:rows]), n_logits=rows)
    reader, clock = pair.reader(SamplingParams()), pair.verifier.clock
    reader.read(logits[:1], 0)
    begun = clock()
    reader.read(logits, 0)
    spent = clock() - begun
    pair.verifier.truncate(0)
    return spent / rows


def encode_prompt(
    tokenizer: Tokenizer, text: str, *, raw: bool = False, chat: ChatOptions = PLAIN_CHAT
) -> list[int]:
    """The prompt's tokens, rendered through the model's chat template if it has one.

    Raises
    ------
    UsageError
        If there are no tokens, or the template does not use one of `chat`'s arguments.
    ModelError
        As `specx.session.chat.encode_chat`.
    """
    if raw or not has_template(tokenizer):
        if chat.arguments:
            raise UsageError("--template-arg needs a chat template, and the model has none")
        tokens = encode_raw(tokenizer, text)
    else:
        tokens = encode_chat(tokenizer, [{"role": "user", "content": text}], options=chat)
    if not tokens:
        raise UsageError("a prompt is empty; write one")
    return tokens
