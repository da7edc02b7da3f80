"""Do drafter and verifier speak of the same tokens? And which ids must never be emitted?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specx.errors import VocabularyError

__all__ = [
    "Comparison",
    "Tokens",
    "Vocabulary",
    "compare",
    "drafter_mask",
    "readable",
    "require_equal_ids",
    "shown",
    "verifier_mask",
]

SHOWN = 3
"""How many differing ids a message names."""
MOST_DIFFERING = 0.01
"""Share of the shared ids that may stand for other bytes in the drafter. Models of one family
differ in a few tokens that were added later; two tokenizers differ nearly everywhere."""


class Tokens(Protocol):
    """The part of a `specx.runtime.backend.Tokenizer` that tells what an id stands for."""

    @property
    def padding_ids(self) -> NDArray[np.intp]: ...

    def token_bytes(self, token: int) -> bytes: ...

    def token_text(self, token: int) -> str: ...


class Vocabulary(Protocol):
    """What is compared: a loaded model, or what the files of one say."""

    @property
    def name(self) -> str: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def tokenizer(self) -> Tokens: ...


@dataclass(frozen=True)
class Comparison:
    """Where the ids of two models stand for different tokens."""

    shared: NDArray[np.intp]
    """Ids that both have a token for, ascending."""
    differing: list[int]
    """Those of them that are another token in the drafter, ascending."""
    fits: bool
    """False where so many differ that the drafter has another tokenizer."""


def compare(verifier: Vocabulary, drafter: Vocabulary) -> Comparison:
    """Compare the tokens that two models share, by their bytes, control tokens by their names.

    They do not fit if more than `MOST_DIFFERING` of them stand for different bytes, or if none is
    the same.
    """
    shared = _shared(verifier, drafter)
    mine, yours = verifier.tokenizer, drafter.tokenizer
    differing = _differing(mine, yours, shared)
    spelled = sum(bool(mine.token_bytes(i) or yours.token_bytes(i)) for i in differing)
    fits = spelled <= MOST_DIFFERING * len(shared) and len(differing) < len(shared)
    return Comparison(shared, differing, fits or not differing)


def verifier_mask(verifier: Vocabulary) -> NDArray[np.intp]:
    """Ids of the verifier's logits with no token behind them, ascending.

    They are part of the target's definition, and so masked with or without a drafter.
    """
    padding = verifier.tokenizer.padding_ids
    return padding[padding < verifier.n_vocab]


def drafter_mask(verifier: Vocabulary, drafter: Vocabulary) -> NDArray[np.intp]:
    """Ids that the drafter must not propose, ascending.

    These are the ids that the verifier cannot emit, and those that are another token there: a
    proposal of one would mean other bytes than the drafter meant. Its distribution is renormalised
    without them, so the text stays exact; a warning names them. Ids that only the verifier has are
    no trouble: the drafter never proposes them.

    Raises
    ------
    VocabularyError
        If the two do not fit, as `compare` says.
    """
    found = compare(verifier, drafter)
    allowed = np.setdiff1d(found.shared, found.differing)
    mask = np.setdiff1d(np.arange(drafter.n_vocab), allowed)
    if not found.differing:
        return mask
    sides = {"drafter": drafter.tokenizer, "verifier": verifier.tokenizer}
    named = _named(sides, found.differing)
    share = f"{len(found.differing)} of {len(found.shared)}"
    if not found.fits:
        raise VocabularyError(
            f"{drafter.name} cannot draft for {verifier.name}: {share} shared ids differ "
            f"({named}); take a drafter of the same model family"
        )
    warnings.warn(
        f"{share} ids are other tokens in {drafter.name} than in {verifier.name}, and are never "
        f"drafted ({named})",
        stacklevel=1,
    )
    return mask


def require_equal_ids(one: Vocabulary, other: Vocabulary) -> None:
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


def _shared(one: Vocabulary, other: Vocabulary) -> NDArray[np.intp]:
    """Ids that both have a token for, ascending."""
    shared = np.ones(min(one.n_vocab, other.n_vocab), dtype=bool)
    for padding in (verifier_mask(one), verifier_mask(other)):
        shared[padding[padding < len(shared)]] = False
    return np.flatnonzero(shared)


def _differing(one: Tokens, other: Tokens, shared: NDArray[np.intp]) -> list[int]:
    """Those of `shared` that are not the same token in both, ascending."""
    return [i for i in shared.tolist() if _token(one, i) != _token(other, i)]


def _token(tokenizer: Tokens, token: int) -> tuple[bytes, str]:
    """What a token is: its bytes, or the name of a control token, which has none."""
    data = tokenizer.token_bytes(token)
    return data, "" if data else tokenizer.token_text(token)


def _named(sides: Mapping[str, Tokens], differing: Sequence[int]) -> str:
    """The first of `differing`, as both sides have them."""
    return "; ".join(
        f"id {i} is "
        + " and ".join(f"{shown(tokens, i)} in the {side}" for side, tokens in sides.items())
        for i in differing[:SHOWN]
    )


def shown(tokenizer: Tokens, token: int) -> str:
    """A token for a message: its text, or that it is a control token of that name; escaped."""
    data = tokenizer.token_bytes(token)
    if not data:
        return f"the control token {tokenizer.token_text(token)!r}"
    try:
        return repr(data.decode())
    except UnicodeDecodeError:  # part of a character
        return repr(data)
