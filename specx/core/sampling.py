"""From logits to the distribution a token is drawn from: one transform, for drafter and verifier.

The order is fixed: temperature, then the filters of `FILTERS` on the tempered distribution, each
renormalising before the next. (llama.cpp applies temperature last.)

To add a filter, give `SamplingParams` its field, off by default, and `FILTERS` its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specx.errors import LogitsError, UsageError

__all__ = [
    "FILTERS",
    "FILTERS_OFF",
    "SAMPLING_ORDER",
    "Distribution",
    "Filter",
    "LogitsReader",
    "SamplingParams",
    "distribution",
]

Numbers: TypeAlias = NDArray[Any]
"""float64 in a run; objects (`fractions.Fraction`) where a rule is enumerated exactly."""

GREEDY_BELOW = 1e-5
"""Temperatures under this mean greedy: exp((l - max) / T) has no other outcome in float64."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling settings: temperature, then the filters in the order of `FILTERS`.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.9
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name in SAMPLING_ORDER:
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool):
                raise UsageError(f"{name} is {value!r}; it must be a number")
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
    """Turns one model's logits into distributions, and names the model where they make none."""

    model: str
    params: SamplingParams
    masked: Sequence[int] | NDArray[np.intp] = ()
    """Ids that this model must never be asked to emit: no token stands behind them."""
    keep_logits: bool = False
    """True lets each distribution hold on to its row, on which a trace measures entropies."""

    def read(self, rows: NDArray[np.float32], position: int) -> list[Distribution]:
        """One distribution per row of `rows` (n, n_vocab); masks `rows` in place.

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
    left = _filtered(_Candidates(logits, peak, params.temperature), params)
    weights = np.exp((left.logits.astype(np.float64) - peak) / params.temperature)
    return Distribution(weights / weights.sum(), left.ids)


class _Candidates:
    """The tokens of one row that no filter has removed yet.

    Parameters
    ----------
    ids
        Ascending; None while all are left.
    weights
        What `weights` returned before, of these tokens.
    """

    def __init__(
        self,
        logits: NDArray[np.float32],
        peak: np.float32,
        temperature: float,
        ids: NDArray[np.intp] | None = None,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        self.logits, self.ids = logits, ids
        self._peak, self._temperature, self._weights = peak, temperature, weights

    def weights(self) -> NDArray[np.float32]:
        """Tempered probabilities relative to the largest.

        float32 decides who passes, at a fifth of the cost; probabilities are computed in float64.
        """
        if self._weights is None:
            self._weights = np.exp((self.logits - self._peak) * np.float32(1 / self._temperature))
        return self._weights

    def at(self, places: NDArray[np.intp]) -> _Candidates:
        """Those at `places`, ascending and at least one."""
        return _Candidates(
            self.logits[places],
            self._peak,
            self._temperature,
            places if self.ids is None else self.ids[places],
            None if self._weights is None else self._weights[places],
        )


def _filtered(left: _Candidates, params: SamplingParams) -> _Candidates:
    for each in FILTERS:
        setting = getattr(params, each.name)
        if setting != each.off:
            left = each.keep(left, setting)
    return left


def _top_k(left: _Candidates, k: int) -> _Candidates:
    """The `k` largest logits; of equal ones the lower ids."""
    logits = left.logits
    if k >= len(logits):
        return left
    edge = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > edge)
    ties = np.flatnonzero(logits == edge)
    return left.at(np.sort(np.concatenate([above, ties[: k - len(above)]])))


def _top_p(left: _Candidates, mass: float) -> _Candidates:
    return left.at(_nucleus(left.weights(), mass))


def _min_p(left: _Candidates, least: float) -> _Candidates:
    return left.at(np.flatnonzero(left.weights() >= least))


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


@dataclass(frozen=True)
class Filter:
    """Removes some of the tokens that could be drawn, before one is drawn."""

    name: str
    """The field of `SamplingParams` that sets it."""
    off: float
    """The setting at which every token stays."""
    keep: Callable[[_Candidates, Any], _Candidates]
    """Those that stay at another setting."""


FILTERS = (Filter("top_k", 0, _top_k), Filter("top_p", 1, _top_p), Filter("min_p", 0, _min_p))
"""In the order in which they apply."""

FILTERS_OFF: dict[str, Any] = {each.name: each.off for each in FILTERS}
"""The settings of `SamplingParams` under which every token stays."""

SAMPLING_ORDER = ("temperature", *FILTERS_OFF)
"""The fields of `SamplingParams` in the order in which they apply."""
