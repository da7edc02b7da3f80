"""How many proposals are worth their cost: pure functions of rates and costs.

They consider every length rather than one step ahead: T(k) is a staircase, on which one more token
may not be worth a new stair while four more are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Choice", "Trial", "best_choice", "cheapest_trial", "worth_more"]


@dataclass(frozen=True)
class Choice:
    """A number of proposals and its expected gain."""

    k: int
    rate: float
    """Tokens per second."""
    tokens: float = 1.0
    """E_k = 1 + sum of survivals."""


def best_choice(
    rates: Sequence[float], costs: Sequence[float], *, full: float = 0.0, extra: float = 0.0
) -> Choice:
    """The k >= 1 with the largest E_k / (C_k + s_k full + extra).

    Parameters
    ----------
    rates
        Acceptance rate by position, given that all before it were accepted.
    costs
        C_0, C_1, ...: at least one more than `rates`.
    full
        Seconds that a full acceptance costs: the drafter's next step is then fed two tokens.
    extra
        Seconds added whatever k is.
    """
    best, alive, tokens = Choice(0, 0.0), 1.0, 1.0
    for k, rate in enumerate(rates, 1):
        alive *= rate
        tokens += alive
        found = tokens / (costs[k] + alive * full + extra)
        if found > best.rate:
            best = Choice(k, found, tokens)
    return best


@dataclass(frozen=True)
class Trial:
    """A number of proposals made for the sake of their labels."""

    k: int
    loss: float
    """Tokens that plain decoding would give in the time, minus those expected."""


def cheapest_trial(rates: Sequence[float], costs: Sequence[float]) -> Trial:
    """The k >= 1 with the smallest loss per label; position i gives one if reached, s_(i-1)."""
    best, least = Trial(0, 0.0), float("inf")
    alive, tokens, labels = 1.0, 1.0, 0.0
    for k, rate in enumerate(rates, 1):
        labels += alive
        alive *= rate
        tokens += alive
        loss = costs[k] / costs[0] - tokens
        if loss / labels < least:
            best, least = Trial(k, loss), loss / labels
    return best


def worth_more(
    alive: float,
    rates: Sequence[float],
    costs: Sequence[float],
    *,
    price: float,
    full: float = 0.0,
    paid: float = 0.0,
) -> bool:
    """Whether some longer draft is worth more than it adds to the cost.

    max over j > k of sum_(i=k+1..j) s_i - price (C_j - C_k + (s_j - s_k) full - paid) > 0.

    Parameters
    ----------
    alive
        s_k: the probability that all tokens drawn so far are accepted.
    rates
        Acceptance rates of the positions from k + 1 on.
    costs
        C_k, C_(k+1), ...
    price
        Tokens per second that could be had otherwise.
    full
        As for `best_choice`.
    paid
        Seconds of C_(k+1) already spent, whatever is decided.
    """
    gained, spent = 0.0, costs[0] + alive * full + paid
    for rate, cost in zip(rates, costs[1:], strict=False):
        alive *= rate
        gained += alive
        if gained > price * (cost + alive * full - spent):
            return True
    return False
