"""What exploration may lose, and when it may be tried again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bank", "Parking"]

SHARE = 0.0095
START, CAP = 3.0, 16.0


@dataclass
class Bank:
    """Time ahead of plain decoding, in plain tokens, and nearly a hundredth of the text on top.

    While it is above 0 the whole run took at most 1.01 of plain decoding's time; what it starts
    with fills the rest of the hundredth over some thousand tokens. What speculation gains is kept
    up to a cap: a good passage is no reason to lose much in the next.
    """

    balance: float = START
    lowest: float = START
    """The deepest debt so far."""

    def book(self, decided: int, spent: float) -> None:
        """A round decided tokens, and took the time of `spent` plain ones."""
        self.balance = min(self.balance + (1 + SHARE) * decided - spent, CAP)
        self.lowest = min(self.lowest, self.balance)

    def affords(self, loss: float) -> bool:
        """Whether the time of `loss` plain tokens may be lost."""
        return loss <= self.balance


@dataclass
class Parking:
    """When to look again whether drafting pays: intervals double while the bank is short."""

    interval: int = 16
    waited: int = 0

    FIRST, LAST = 16, 512

    def wait(self, tokens: int) -> None:
        """So many tokens were decoded without drafting."""
        self.waited += tokens

    @property
    def over(self) -> bool:
        """Whether the interval has passed."""
        return self.waited >= self.interval

    def looked(self, *, rich: bool) -> None:
        """It was looked; the next interval is twice as long, unless the bank is `rich`."""
        self.waited = 0
        self.interval = self.FIRST if rich else min(2 * self.interval, self.LAST)

    def leave(self) -> None:
        """Drafting pays."""
        self.waited, self.interval = 0, self.FIRST
