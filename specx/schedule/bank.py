"""How much time exploration may lose, and when the next attempt is due."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bank", "Parking"]

SHARE = 0.0095
START, CAP = 3.0, 16.0


@dataclass
class Bank:
    """Lead over plain decoding, in plain tokens, plus nearly 1% of the text.

    While the balance is positive, n tokens have taken at most the time of (1 + SHARE) n + START
    plain ones: 1.01 n from 6,000 tokens on. Gains are kept up to a cap, since a good passage is no
    reason to lose much in the next.
    """

    balance: float = START
    lowest: float = START
    """The deepest debt so far."""

    def book(self, decided: int, spent: float) -> None:
        """Add a round that decided so many tokens in the time of `spent` plain ones."""
        self.balance = min(self.balance + (1 + SHARE) * decided - spent, CAP)
        self.lowest = min(self.lowest, self.balance)

    def affords(self, loss: float) -> bool:
        """Whether a loss of `loss` plain tokens is covered."""
        return loss <= self.balance


@dataclass
class Parking:
    """When to re-probe whether drafting pays: intervals double until it does."""

    interval: int = 16
    waited: int = 0

    FIRST, LAST = 16, 512

    def wait(self, tokens: int) -> None:
        """Count tokens decoded without drafting."""
        self.waited += tokens

    @property
    def over(self) -> bool:
        """Whether the interval has passed."""
        return self.waited >= self.interval

    def looked(self) -> None:
        """Start the next interval after a probe, twice as long."""
        self.waited, self.interval = 0, min(2 * self.interval, self.LAST)

    def leave(self) -> None:
        """Start over, since drafting pays."""
        self.waited, self.interval = 0, self.FIRST
