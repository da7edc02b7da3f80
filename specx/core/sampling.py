"""From logits to the distribution a token is drawn from: one transform, for drafter and verifier.

The order of the filters is fixed: temperature, then top-k, top-p and min-p on the tempered
distribution, each renormalising before the next. (llama.cpp applies temperature last.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specx.errors import LogitsError, UsageError

__all__ = ["Distribution", "LogitsReader", "SamplingParams", "distribution"]

Numbers: TypeAlias = NDArray[Any]
"""float64 in a run; objects (`fractions.Fraction`) where a rule is enumerated exactly."""

GREEDY_BELOW = 1e-5
"""Temperatures under this mean greedy: exp((l - max) / T) has no other outcome in float64."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What is drawn from: temperature, then top-k, top-p, min-p, in this order.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.9
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if self.top_k < 0:
            raise UsageError(f"top-k is {self.top_k}; it must be 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p}; it must lie in (0, 1], and 1 is off")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min-p is {self.min_p}; it must lie in [0, 1], and 0 is off")

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, eq=False)
class Distribution:
    """Probabilities of the next token, with what filters removed left out.

    Parameters
    ----------
    probs
        Shape (n,), summing to 1; float64, or Fractions where a rule is enumerated.
    ids
        Token of each entry, ascending; None where `probs` covers the vocabulary from id 0 on.
    logits
        The row it was made of, shape (n_vocab,), where a reader was asked to keep it.
    """

    probs: Numbers
    ids: NDArray[np.intp] | None = None
    logits: NDArray[np.float32] | None = None

    def prob(self, token: int) -> Any:
        """Probability of one token; 0 outside the support."""
        if self.ids is None:
            return self.probs[token] if token < len(self.probs) else 0
        place = int(np.searchsorted(self.ids, token))
        found = place < len(self.ids) and self.ids[place] == token
        return self.probs[place] if found else 0

    def at(self, tokens: NDArray[np.intp]) -> Numbers:
        """Probabilities of `tokens`, in their order; 0 outside the support."""
        if self.ids is None:
            places, known = tokens, tokens < len(self.probs)
        else:
            places = np.searchsorted(self.ids, tokens)
            known = places < len(self.ids)
            known[known] = self.ids[places[known]] == tokens[known]
        found = np.zeros(len(tokens), dtype=self.probs.dtype)
        found[known] = self.probs[places[known]]
        return found

    def over(self, other: Distribution) -> Numbers:
        """Probabilities at the ids of `other`, entry by entry: aligned by token, not by place."""
        if other.ids is not None:
            return self.at(other.ids)
        if self.ids is None and len(self.probs) == len(other.probs):
            return self.probs
        return self.at(np.arange(len(other.probs)))

    def draw(self, u: Any) -> int:
        """The token at `u` in [0, 1) of the cumulative distribution, in order of ids."""
        mass = np.cumsum(self.probs)
        place = int(np.searchsorted(mass, u * mass[-1], side="right"))
        if place == len(mass):  # u * mass[-1] was rounded up to mass[-1]
            place = int(np.flatnonzero(self.probs)[-1])
        return place if self.ids is None else int(self.ids[place])


@dataclass(frozen=True, eq=False)
class LogitsReader:
    """Reads one model's logits as distributions, and names the model when they make none."""

    model: str
    params: SamplingParams
    masked: Sequence[int] | NDArray[np.intp] = ()
    """Ids that this model must never be asked to emit: no token stands behind them."""
    keep_logits: bool = False
    """Whether each distribution holds on to its row: a trace measures entropies there."""

    def read(self, rows: NDArray[np.float32], position: int) -> list[Distribution]:
        """One distribution a row of `rows` (n, n_vocab); masks `rows` in place.

        `position` is that of the token which the first row predicts, for the error's text.
        """
        self.mask(rows)
        return [self._one(row, position + offset) for offset, row in enumerate(rows)]

    def mask(self, rows: NDArray[np.float32]) -> None:
        """Make what must never be emitted impossible, in place."""
        if len(self.masked):
            rows[:, self.masked] = -np.inf

    def _one(self, row: NDArray[np.float32], position: int) -> Distribution:
        try:
            found = distribution(row, self.params)
        except LogitsError as error:
            raise LogitsError(f"{self.model} at position {position}: {error}") from error
        return replace(found, logits=row) if self.keep_logits else found


def distribution(logits: NDArray[np.float32], params: SamplingParams) -> Distribution:
    """The distribution that `params` make of one row of logits.

    One support for each (logits, parameters): ties are broken by the lower id, top-p keeps the
    smallest prefix whose mass reaches it, and at least one token stays.

    Parameters
    ----------
    logits
        Shape (n_vocab,), in nats; -inf for tokens that cannot be drawn.

    Raises
    ------
    LogitsError
        If a logit is NaN or +inf, or all are -inf.
    """
    peak = logits.max()
    if not np.isfinite(peak):
        raise LogitsError(f"the logits hold {'only -inf' if peak == -np.inf else peak}")
    if params.greedy:
        return Distribution(np.ones(1), np.array([logits.argmax()]))
    ids = _kept_ids(logits, peak, params)
    kept = logits if ids is None else logits[ids]
    weights = np.exp((kept.astype(np.float64) - peak) / params.temperature)
    return Distribution(weights / weights.sum(), ids)


def _kept_ids(
    logits: NDArray[np.float32], peak: np.float32, params: SamplingParams
) -> NDArray[np.intp] | None:
    """Ascending ids that pass the filters; None where every filter is off."""
    ids = _top_k_ids(logits, params.top_k) if 0 < params.top_k < len(logits) else None
    if params.top_p == 1 and params.min_p == 0:
        return ids
    # float32 decides who passes, at a fifth of the cost; probabilities are computed in float64.
    scale = np.float32(1 / params.temperature)
    weights = np.exp(((logits if ids is None else logits[ids]) - peak) * scale)
    kept: NDArray[np.intp]
    if params.top_p < 1:
        kept = _nucleus(weights, params.top_p)
        kept = kept[weights[kept] >= params.min_p]
    else:
        kept = np.flatnonzero(weights >= params.min_p)
    return kept if ids is None else ids[kept]


def _top_k_ids(logits: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Ascending ids of the `k` largest logits; of equal ones the lower ids."""
    edge = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > edge)
    ties = np.flatnonzero(logits == edge)
    return np.sort(np.concatenate([above, ties[: k - len(above)]]))


def _nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """Ascending places of the smallest prefix, by falling weight, whose mass reaches `top_p`.

    `weights` are relative to a largest one of 1. Only what lies above a falling floor is sorted,
    which gives the same prefix as sorting all.
    """
    need = top_p * weights.sum(dtype=np.float64)
    floor = np.float32(1 / 64)
    while True:
        places = np.flatnonzero(weights >= floor)
        found = weights[places]
        if floor == 0 or found.sum(dtype=np.float64) >= need:
            break
        floor = floor / np.float32(64) if floor > 1e-30 else np.float32(0)
    order = np.argsort(-found, kind="stable")
    mass = np.cumsum(found[order], dtype=np.float64)
    size = min(int(np.searchsorted(mass, need)) + 1, len(places))
    return np.sort(places[order[:size]])
