"""Do drafter and verifier speak of the same tokens? And which ids must never be emitted?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specx.errors import VocabularyError
from specx.runtime.backend import LogitsBackend, Tokenizer

__all__ = [
    "drafter_mask",
    "readable",
    "require_equal_ids",
    "verifier_mask",
]

SHOWN = 3
"""How many differing ids a message names."""
MOST_DIFFERING = 0.01
"""Share of the shared ids that may stand for other bytes in the drafter. Models of one family
differ in a few tokens that were added later; two tokenizers differ nearly everywhere."""


def verifier_mask(verifier: LogitsBackend) -> NDArray[np.intp]:
    """Ids of the verifier's logits with no token behind them, ascending.

    They are part of the target's definition, and so masked with or without a drafter.
    """
    padding = verifier.tokenizer.padding_ids
    return padding[padding < verifier.n_vocab]


def drafter_mask(verifier: LogitsBackend, drafter: LogitsBackend) -> NDArray[np.intp]:
    """Ids that the drafter must not propose, ascending.

    These are the ids that the verifier cannot emit, and those that are another token there: a
    proposal of one would mean other bytes than the drafter meant. Its distribution is renormalised
    without them, so the text stays exact; a warning names them. Ids that only the verifier has are
    no trouble: the drafter never proposes them.

    Raises
    ------
    VocabularyError
        If more than `MOST_DIFFERING` of the ids that both have stand for different bytes (it is
        another tokenizer), or if no id is the same token in both.
    """
    mine, yours = verifier.tokenizer, drafter.tokenizer
    shared = _shared(verifier, drafter)
    differing = _differing(mine, yours, shared)
    if not differing:
        return np.setdiff1d(np.arange(drafter.n_vocab), shared)
    named = _named({"drafter": yours, "verifier": mine}, differing)
    spelled = sum(bool(mine.token_bytes(i) or yours.token_bytes(i)) for i in differing)
    if spelled > MOST_DIFFERING * len(shared) or len(differing) == len(shared):
        raise VocabularyError(
            f"{drafter.name} cannot draft for {verifier.name}: {len(differing)} of {len(shared)} "
            f"shared ids differ ({named}); take a drafter of the same model family"
        )
    warnings.warn(
        f"{len(differing)} of {len(shared)} ids are other tokens in {drafter.name} than in "
        f"{verifier.name}, and are never drafted ({named})",
        stacklevel=1,
    )
    return np.setdiff1d(np.arange(drafter.n_vocab), np.setdiff1d(shared, differing))


def require_equal_ids(one: LogitsBackend, other: LogitsBackend) -> None:
    """Raise VocabularyError unless every id that both have is the same token in both."""
    shared = _shared(one, other)
    differing = _differing(one.tokenizer, other.tokenizer, shared)
    if differing:
        named = _named({"second": other.tokenizer, "first": one.tokenizer}, differing)
        raise VocabularyError(
            f"{len(differing)} of {len(shared)} ids of {one.name} and {other.name} are other "
            f"tokens ({named}); compare files of one model"
        )


def readable(tokens: Sequence[int], n_vocab: int) -> list[int]:
    """`tokens` as a drafter of `n_vocab` ids can be fed them: an id it lacks becomes 0.

    Only a drafter may be fed so. What it then proposes is worth less, and the law stays.
    """
    return [token if token < n_vocab else 0 for token in tokens]


def _shared(one: LogitsBackend, other: LogitsBackend) -> NDArray[np.intp]:
    """Ids that both have a token for, ascending."""
    shared = np.ones(min(one.n_vocab, other.n_vocab), dtype=bool)
    for padding in (verifier_mask(one), verifier_mask(other)):
        shared[padding[padding < len(shared)]] = False
    return np.flatnonzero(shared)


def _differing(one: Tokenizer, other: Tokenizer, shared: NDArray[np.intp]) -> list[int]:
    """Those of `shared` that are not the same token in both, ascending."""
    return [i for i in shared.tolist() if _token(one, i) != _token(other, i)]


def _token(tokenizer: Tokenizer, token: int) -> tuple[bytes, str]:
    """What a token is: its bytes, or the name of a control token, which has none."""
    data = tokenizer.token_bytes(token)
    return data, "" if data else tokenizer.token_text(token)


def _named(sides: Mapping[str, Tokenizer], differing: Sequence[int]) -> str:
    """The first of `differing`, as both sides have them."""
    return "; ".join(
        f"id {i} is "
        + " and ".join(f"{_shown(tokens, i)} in the {side}" for side, tokens in sides.items())
        for i in differing[:SHOWN]
    )


def _shown(tokenizer: Tokenizer, token: int) -> str:
    data, name = tokenizer.token_bytes(token), tokenizer.token_text(token)
    return repr(name) if data else f"the control token {name!r}"
