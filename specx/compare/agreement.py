"""Distances between the distributions of two models along one text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.core.logits import log_softmax
from specx.core.sampling import Distribution, LogitsReader, SamplingParams
from specx.errors import LogitsError
from specx.runtime.backend import LogitsBackend
from specx.runtime.prefill import PREFILL_SLICE, prefill
from specx.runtime.vocabulary import readable

__all__ = ["Agreement", "Forced", "agreement_along", "binned", "means", "total_variation"]

Row = NDArray[np.float32]

ROUNDING = 1e-12
"""Tolerance for a sum of probabilities to differ from 1."""


@dataclass
class Agreement:
    """Agreement by position along one text, from the first token after the prompt."""

    top1: list[bool] = field(default_factory=list)
    """True where both models have the same most likely token."""
    total_variation: list[float] = field(default_factory=list)
    """Total variation between the distributions that a token is drawn from, after all filters."""
    kl: list[float] = field(default_factory=list)
    """KL(A || B) in nats, tempered and unfiltered; inf where B rules out a token that A allows."""


@dataclass(frozen=True)
class Forced:
    """A model that is fed a given text, whatever it would write itself."""

    model: LogitsBackend
    masked: NDArray[np.intp]
    """Token ids that are masked out."""
    width: int
    """Tokens per pass; rounding depends on it, so both models are fed in the same portions."""

    def rows(self, tokens: Sequence[int], n_prompt: int) -> Iterator[Row]:
        """Logits (n_vocab,) that precede each token after the prompt; the cache is emptied."""
        known = readable(tokens, self.model.n_vocab)
        self.model.truncate(0)
        prefill(self.model, known[:n_prompt], PREFILL_SLICE, lambda fed: None)
        for start in range(n_prompt - 1, len(known) - 1, self.width):
            portion = known[start : min(start + self.width, len(known) - 1)]
            yield from self.model.forward(portion, n_logits=len(portion))
        self.model.truncate(0)


def agreement_along(
    a: Forced, b: Forced, tokens: Sequence[int], n_prompt: int, params: SamplingParams
) -> Agreement:
    """Compare two models along `tokens`, leaving out the `n_prompt` tokens of the prompt."""
    readers = [LogitsReader(side.model.name, params, side.masked) for side in (a, b)]
    found = Agreement()
    rows = zip(a.rows(tokens, n_prompt), b.rows(tokens, n_prompt), strict=True)
    for place, both in enumerate(rows):
        one, other = (
            reader.read(row[None], n_prompt + place)[0]  # masks the row in place
            for reader, row in zip(readers, both, strict=True)
        )
        logits_a, logits_b = _same_width(*both)
        found.top1.append(bool(logits_a.argmax() == logits_b.argmax()))
        found.total_variation.append(total_variation(one, other))
        kl = _kl(logits_a, logits_b, params)
        if math.isnan(kl):
            names = f"{a.model.name} and {b.model.name}"
            raise LogitsError(
                f"the logits of {names} at position {n_prompt + place} hold NaN or infinity, so "
                "their distributions cannot be compared; try --dtype float32"
            )
        found.kl.append(kl)
    return found


def total_variation(one: Distribution, other: Distribution) -> float:
    """1 - sum_x min(P(x), Q(x)), from 0 to 1."""
    shared = np.minimum(other.probs, one.over(other)).sum()
    return float(1 - shared) if shared < 1 - ROUNDING else 0.0


def _same_width(one: Row, other: Row) -> tuple[Row, Row]:
    """Cut both rows to one length: runtimes differ in how much vocabulary padding they keep."""
    width = max(len(one), len(other))
    first, second = (
        np.pad(row, (0, width - len(row)), constant_values=-np.inf) for row in (one, other)
    )
    return first, second


def _kl(one: Row, other: Row, params: SamplingParams) -> float:
    temperature = 1.0 if params.greedy else params.temperature
    logs_a, logs_b = (log_softmax(row, temperature) for row in (one, other))
    held = ~(logs_a == -np.inf)  # NaN stays
    if (logs_b[held] == -np.inf).any():
        return math.inf  # even of a probability so small that float64 has it as 0
    found = float(np.exp(logs_a[held]) @ (logs_a[held] - logs_b[held]))
    return found if math.isnan(found) else max(0.0, found)


def means(found: Sequence[Agreement]) -> dict[str, Any]:
    """Means over all positions of all texts; None if there are none.

    `kl` is the mean of the finite values, `kl_infinite` the number of the others.
    """
    return _means([(i, one) for one in found for i in range(len(one.top1))])


def binned(found: Mapping[str, Agreement], n_bins: int) -> list[dict[str, Any]]:
    """The same means by equal ranges of positions, `first` to `last`, counted from 1."""
    longest = max((len(one.top1) for one in found.values()), default=0)
    size = max(1, math.ceil(longest / n_bins))
    ranges = [range(start, min(start + size, longest)) for start in range(0, longest, size)]
    return [
        {
            "first": places[0] + 1,
            "last": places[-1] + 1,
            **_means([(i, one) for one in found.values() for i in places if i < len(one.top1)]),
        }
        for places in ranges
    ]


def _means(places: Sequence[tuple[int, Agreement]]) -> dict[str, Any]:
    kl = [one.kl[i] for i, one in places]
    finite = [value for value in kl if math.isfinite(value)]
    return {
        "positions": len(places),
        "top1": _mean([one.top1[i] for i, one in places]),
        "total_variation": _mean([one.total_variation[i] for i, one in places]),
        "kl": _mean(finite),
        "kl_infinite": len(kl) - len(finite),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
