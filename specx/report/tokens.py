"""A trace's tokens for the page: the text it shows, and the data its script reads on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specx.core.logits import entropy_level
from specx.records.trace import DraftToken, RoundRecord, Trace, Uncertainty
from specx.session.text import visible

__all__ = ["Shown", "rounds_data", "shown_tokens"]


@dataclass(frozen=True)
class Shown:
    """One token of the text."""

    text: str
    origin: str
    level: int
    """Level of the verifier's entropy before it, 0 to 3."""
    place: str
    """``round.place``, the key by which the script finds its numbers."""
    rejected: str
    """The drafted token it replaced."""


def shown_tokens(trace: Trace) -> Iterator[Shown]:
    """The tokens of the text in order."""
    for done in trace.rounds:
        for place, token in enumerate(done.emitted):
            drafted = place < done.n_accepted
            before = done.draft[place].target if drafted else done.last.target
            replaced = done.draft[place].text if token.origin == "correction" else ""
            yield Shown(
                visible(token.piece),
                token.origin,
                entropy_level(before.raw_entropy) if before else 0,
                f"{done.index}.{place}",
                visible(replaced),
            )


def rounds_data(trace: Trace) -> list[dict[str, Any]]:
    """Every round, numbers to four digits; keys are short because a page holds thousands."""
    return [_round(done) for done in trace.rounds]


def _round(done: RoundRecord) -> dict[str, Any]:
    last = done.last
    return {
        "position": done.position,
        "reason": done.reason,
        "n": done.n_accepted,
        "draft": [_draft(token) for token in done.draft],
        "last": [
            visible(last.text),
            last.id,
            _four(last.target_prob),
            _four(last.draft_prob),
            _four(last.uniform),
            _sure(last.target),
        ],
        "expected": {rule: _four(tokens) for rule, tokens in done.expected.items()},
        "ms": {part: _four(seconds * 1e3) for part, seconds in vars(done.times).items()},
    }


def _draft(token: DraftToken) -> list[Any]:
    return [
        visible(token.text),
        token.id,
        _four(token.target_prob),
        _four(token.draft_prob),
        _four(token.chance),
        _four(token.uniform),
        _four(token.overlap),
        _sure(token.target),
        _sure(token.draft),
    ]


def _sure(found: Uncertainty | None) -> list[float | None] | None:
    if found is None:
        return None
    return [_four(found.entropy), _four(found.raw_entropy), _four(found.margin)]


def _four(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
