"""Do drafter and verifier speak of the same tokens? And which ids must never be emitted?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specx.backend import LogitsBackend, Tokenizer
from specx.errors import VocabularyError

__all__ = ["drafter_mask", "readable", "verifier_mask"]

SHOWN = 3
"""How many differing ids an error names."""


def verifier_mask(verifier: LogitsBackend) -> NDArray[np.intp]:
    """Ids of the verifier's logits with no token behind them, ascending.

    They are part of the target's definition, and so masked with or without a drafter.
    """
    padding = verifier.tokenizer.padding_ids
    return padding[padding < verifier.n_vocab]


def drafter_mask(verifier: LogitsBackend, drafter: LogitsBackend) -> NDArray[np.intp]:
    """Ids of the drafter's logits that the verifier cannot emit, ascending.

    Ids that only the verifier has are no trouble: the drafter never proposes them.

    Raises
    ------
    VocabularyError
        If an id that both have stands for different bytes; the first of them are named.
    """
    theirs, ours = verifier_mask(verifier), verifier_mask(drafter)
    shared = np.ones(min(verifier.n_vocab, drafter.n_vocab), dtype=bool)
    for padding in (theirs, ours):
        shared[padding[padding < len(shared)]] = False
    _require_equal(verifier, drafter, np.flatnonzero(shared))
    return np.setdiff1d(np.arange(drafter.n_vocab), np.flatnonzero(shared))


def readable(tokens: Sequence[int], n_vocab: int) -> list[int]:
    """`tokens` as a model of `n_vocab` ids can be fed them: an id it lacks becomes 0.

    Only a drafter meets such ids. What it then proposes is worth less, and the law stays.
    """
    return [token if token < n_vocab else 0 for token in tokens]


def _require_equal(
    verifier: LogitsBackend, drafter: LogitsBackend, shared: NDArray[np.intp]
) -> None:
    mine, yours = verifier.tokenizer, drafter.tokenizer
    ids = shared.tolist()
    differing = [i for i in ids if _token(mine, i) != _token(yours, i)]
    if not differing:
        return
    named = "; ".join(
        f"id {i} is {_shown(yours, i)} in the drafter and {_shown(mine, i)} in the verifier"
        for i in differing[:SHOWN]
    )
    raise VocabularyError(
        f"{drafter.name} cannot draft for {verifier.name}: {len(differing)} of {len(ids)} shared "
        f"ids differ ({named}); take a drafter of the same model family"
    )


def _token(tokenizer: Tokenizer, token: int) -> tuple[bytes, str]:
    """What a token is: its bytes, and its name, since control tokens have no bytes."""
    return tokenizer.token_bytes(token), tokenizer.token_text(token)


def _shown(tokenizer: Tokenizer, token: int) -> str:
    data, name = _token(tokenizer, token)
    return repr(name) if data else f"the control token {name!r}"
