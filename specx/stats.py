"""What a run comes to: counts, rates and times, in the words of the field."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from specx.decoding import Round, Times

__all__ = ["Phase", "Tally"]


@dataclass
class Phase:
    """Rounds of one kind."""

    rounds: int = 0
    n_tokens: int = 0
    seconds: float = 0.0
    """Of drafting, verifying, rolling back and the core."""

    def add(self, done: Round) -> None:
        """Count one round."""
        self.rounds += 1
        self.n_tokens += len(done.emitted)
        self.seconds += sum(vars(done.times).values())


@dataclass
class Tally:
    """Sums over the rounds of one generation.

    A round that a stop cut counts as the rule decided it; `n_tokens` counts what was emitted.
    """

    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    """Drafted tokens whose fate was decided: min(n_accepted + 1, proposed) a round."""
    accepted: int = 0
    expected: dict[str, float] = field(default_factory=dict)
    """By rule: accepted tokens in expectation, from the same arrays for all of them."""
    n_tokens: int = 0
    times: Times = field(default_factory=Times)
    gammas: dict[str, Counter[int]] = field(default_factory=dict)
    """By drafter: how many rounds proposed how many tokens."""
    speculating: Phase = field(default_factory=Phase)
    plain: Phase = field(default_factory=Phase)
    """Rounds with proposals, and without."""
    total: float = 0.0
    """Seconds of decoding, prefill not included; set by who runs the loop."""

    def add(self, done: Round) -> None:
        """Count one round."""
        proposed = len(done.draft.ids)
        self.rounds += 1
        self.proposed += proposed
        self.tested += min(done.verdict.n_accepted + 1, proposed)
        self.accepted += done.verdict.n_accepted
        self.n_tokens += len(done.emitted)
        for rule, tokens in done.expected.items():
            self.expected[rule] = self.expected.get(rule, 0.0) + tokens
        if done.drafter:
            self.gammas.setdefault(done.drafter, Counter())[proposed] += 1
        (self.speculating if proposed else self.plain).add(done)
        for part, seconds in vars(done.times).items():
            setattr(self.times, part, getattr(self.times, part) + seconds)

    @property
    def alpha(self) -> float | None:
        """Acceptance rate: accepted / tested; None when nothing was tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def kept(self) -> float | None:
        """Accepted / proposed; None when nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tau(self) -> float | None:
        """Tokens decided a verifier pass, 1 + accepted / rounds; None without a round."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def tok_s(self) -> float | None:
        """Emitted tokens a second of decoding; None when no time passed."""
        return self.n_tokens / self.total if self.total > 0 else None

    def expected_a_round(self) -> dict[str, float] | None:
        """By rule: tokens accepted a round in expectation; None where nothing was drafted."""
        if not self.expected:
            return None
        return {rule: tokens / self.rounds for rule, tokens in self.expected.items()}

    def time(self) -> dict[str, float]:
        """Seconds by part; `other` is text, terminal and what lies between."""
        parts = dict(vars(self.times))
        return {**parts, "other": self.total - sum(parts.values()), "total": self.total}
