"""Counts, rates and times of a generation, in the field's terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from specx.codec import Count, Rate, Seconds
from specx.session.decoding import Round, Times

__all__ = ["Choices", "Phase", "Tally", "merged"]

Pair: TypeAlias = Annotated[list[Count], Meta(min_length=2, max_length=2)]

COUNTS = ("rounds", "proposed", "tested", "accepted", "after_full", "n_tokens", "total")


@dataclass
class Phase:
    """Rounds of one kind."""

    rounds: int = 0
    n_tokens: int = 0
    seconds: float = 0.0
    """Seconds of drafting, verifying, rolling back and the core."""

    def add(self, done: Round) -> None:
        """Count one round."""
        self.rounds += 1
        self.n_tokens += len(done.emitted)
        self.seconds += sum(vars(done.times).values())


@dataclass
class Choices:
    """Choices that a schedule made in one generation."""

    gammas: dict[str, Counter[int]] = field(default_factory=dict)
    """Rounds by number of proposed tokens, for each drafter."""
    speculating: Phase = field(default_factory=Phase)
    plain: Phase = field(default_factory=Phase)
    """Rounds with proposals, and without."""

    def add(self, done: Round) -> None:
        """Count one round."""
        n_proposed = len(done.draft.ids)
        if done.drafter:
            self.gammas.setdefault(done.drafter, Counter())[n_proposed] += 1
        (self.speculating if n_proposed else self.plain).add(done)

    def record(self) -> dict[str, Any]:
        """JSON values, as in ``--json``."""
        return {
            "gammas": {who: dict(sorted(n.items())) for who, n in self.gammas.items()},
            "speculating": vars(self.speculating),
            "plain": vars(self.plain),
        }


@dataclass
class Tally:
    """Sums over the rounds of one generation.

    A round that a stop cut counts as the rule decided it; `n_tokens` counts what was emitted.
    """

    rounds: Count = 0
    proposed: Count = 0
    tested: Count = 0
    """Drafted tokens that were accepted or rejected: min(n_accepted + 1, proposed) per round."""
    accepted: Count = 0
    expected: dict[str, Rate] = field(default_factory=dict)
    """Expected accepted tokens by rule, from the same arrays for all rules."""
    by_position: list[Pair] = field(default_factory=list)
    """[tested, accepted] at each position of a draft."""
    lengths: dict[Count, Count] = field(default_factory=dict)
    """Rounds by the number of tokens they accepted."""
    after_full: Count = 0
    """Rounds that follow a full acceptance: the drafter is first fed two tokens."""
    n_tokens: Count = 0
    times: Times = field(default_factory=Times)
    total: Seconds = 0.0
    """Seconds of decoding, without prefill; set by the caller of the loop."""
    _last_was_full: bool = field(default=False, repr=False)

    def add(self, done: Round) -> None:
        """Count one round."""
        proposed, accepted = len(done.draft.ids), done.verdict.n_accepted
        tested = min(accepted + 1, proposed)
        self.rounds += 1
        self.proposed += proposed
        self.tested += tested
        self.accepted += accepted
        self.lengths[accepted] = self.lengths.get(accepted, 0) + 1
        self.after_full += self._last_was_full
        self._last_was_full = 0 < proposed == accepted
        self._count_positions(tested, accepted)
        self.n_tokens += len(done.emitted)
        for rule, tokens in done.expected.items():
            self.expected[rule] = self.expected.get(rule, 0.0) + tokens
        for part, seconds in vars(done.times).items():
            setattr(self.times, part, getattr(self.times, part) + seconds)

    def _count_positions(self, tested: int, accepted: int) -> None:
        while len(self.by_position) < tested:
            self.by_position.append([0, 0])
        for position in range(tested):
            self.by_position[position][0] += 1
            self.by_position[position][1] += position < accepted

    @property
    def alpha(self) -> float | None:
        """Acceptance rate: accepted / tested; None when nothing was tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def kept(self) -> float | None:
        """Accepted / proposed; None when nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def alpha_by_position(self) -> list[float]:
        """Acceptance rate at each position of a draft, of those tested there."""
        return [accepted / tested for tested, accepted in self.by_position]

    @property
    def tau(self) -> float | None:
        """Tokens decided per verifier pass, 1 + accepted / rounds; None without a round."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def tok_s(self) -> float | None:
        """Emitted tokens per second of decoding; None when no time passed."""
        return self.n_tokens / self.total if self.total > 0 else None

    def expected_a_round(self) -> dict[str, float] | None:
        """Expected accepted tokens per round, by rule; None where nothing was drafted."""
        if not self.proposed:
            return None
        return {rule: tokens / self.rounds for rule, tokens in self.expected.items()}

    def time(self) -> dict[str, float]:
        """Seconds by part; `other` is text, terminal and the time between parts."""
        parts = dict(vars(self.times))
        return {**parts, "other": self.total - sum(parts.values()), "total": self.total}


def merged(tallies: Sequence[Tally]) -> Tally:
    """The sums over several generations."""
    whole = Tally()
    for tally in tallies:
        for name in COUNTS:
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        for rule, tokens in tally.expected.items():
            whole.expected[rule] = whole.expected.get(rule, 0.0) + tokens
        for accepted, rounds in tally.lengths.items():
            whole.lengths[accepted] = whole.lengths.get(accepted, 0) + rounds
        for part, seconds in vars(tally.times).items():
            setattr(whole.times, part, getattr(whole.times, part) + seconds)
    positions = zip_longest(*(tally.by_position for tally in tallies), fillvalue=[0, 0])
    whole.by_position = [[sum(c) for c in zip(*counts, strict=True)] for counts in positions]
    return whole
