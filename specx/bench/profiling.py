"""Measures what a loaded pair costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from specx.backend import Tokenizer
from specx.chat import encode_chat
from specx.cost import Curve, Profile, measure_curve
from specx.errors import UsageError
from specx.pair import Pair
from specx.sampling import SamplingParams

__all__ = ["encode_prompt", "profile_pair"]

CORE_ROWS = 9


def profile_pair(
    pair: Pair,
    text: Sequence[int],
    n_past: int,
    widths: Iterable[int],
    repeats: int,
    *,
    report: Callable[[int], None] = lambda passes: None,
) -> Profile:
    """Measure both curves, and the core, after about `n_past` tokens of `text`, repeated."""
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
                tokens,
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
    """Seconds a row that the sampling transform takes, under the default sampler."""
    rows = min(CORE_ROWS, len(tokens))
    logits = pair.verifier.forward(list(tokens[:rows]), n_logits=rows)
    reader, clock = pair.reader(SamplingParams()), pair.verifier.clock
    reader.read(logits[:1], 0)
    begun = clock()
    reader.read(logits, 0)
    spent = clock() - begun
    pair.verifier.truncate(0)
    return spent / rows


def encode_prompt(tokenizer: Tokenizer, text: str, *, raw: bool = False) -> list[int]:
    """The prompt's tokens, through the model's chat template where there is one."""
    if raw or tokenizer.chat_template is None:
        tokens = tokenizer.encode(text, add_special=True, parse_special=True)
    else:
        tokens = encode_chat(tokenizer, [{"role": "user", "content": text}])
    if not tokens:
        raise UsageError("a prompt is empty; write one")
    return tokens
