"""`--gamma auto`: the number of drafted tokens expected to give the most tokens per second.

Each round takes the drafter and the number k with the largest E_k / C_k, expected tokens over the
cost of the round, if that beats plain decoding. Within the round a draft goes on while some longer
draft is still worth its cost. Where nothing pays, `Auto` decodes plainly and re-probes from time to
time, as far as its bank affords.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specx.drafters.base import Drafter, Outlook
from specx.schedule.acceptance import MOST_HOPED, Acceptance
from specx.schedule.bank import START, Bank, Parking
from specx.schedule.base import Decision, Outcome, most_proposals
from specx.schedule.costs.live import Costs
from specx.schedule.margin import Margin, margin_of
from specx.schedule.worth import Choice, best_choice, cheapest_trial, worth_more

__all__ = ["Auto"]

HINDSIGHT = 16
"""Most tokens to look back at: further rows of logits cost more than they tell."""
LEAST_HINDSIGHT = 4
PAYS = 1.01
"""Gain over plain decoding from which drafting is said to pay."""
SPREAD = 8
"""Rounds over which the cost of catching up is spread when drafters are compared."""
WINDOWS = (256, 128, 64, 32, 16)
"""Lengths of recent text that a drafter may restart from."""
NEAR = 4
"""Tokens that a drafter may lag behind and still be tried at once."""
PROMISING = 1.2
"""Gain that the best possible drafter must promise for a search to spend the bank's first sum."""
FADE = 0.985
"""Factor on the weight of old labels per token that was decoded plainly."""
STALL, STALL_UNSEEN = 1.25, 4.0
"""Most that a round is charged, over its expected cost: more is a stall of the machine. Where
passes of its width were rarely seen, the expected cost may itself be far too low."""
FIRST_PLAIN = {"profile": 0, "table": 3}
"""Plain rounds at the start when times are measured: a table does not know T(1)."""


@dataclass
class _Side:
    """What is known about one drafter."""

    acceptance: Acceptance
    free: bool
    margin: Margin = field(default_factory=Margin)
    parking: Parking = field(default_factory=Parking)


@dataclass
class _Round:
    """The round in progress."""

    side: _Side
    outlook: Outlook
    limit: int
    rates: list[float]
    """Acceptance rate by position, given that all before it were accepted."""
    costs: list[float]
    """C_k."""
    step: float
    """The drafter's step, included in `costs`."""
    full: float
    """Seconds that a full acceptance costs on top."""
    price: float
    """Tokens per second to be had elsewhere, lambda; 0 in a trial, which goes on to its limit."""
    probe: bool = False
    """Whether the drafter only catches up and looks back."""
    alive: float = 1.0
    """Probability that all tokens drawn so far are accepted, given their margins."""
    steps: int = 0
    margins: list[float] = field(default_factory=list)


class Auto:
    """Chooses anew in each round; see `specx.schedule`.

    Parameters
    ----------
    costs
        What rounds cost. Unless they are learned from live timings, every choice depends only on
        the text so far, and a seed reproduces it.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.bank = Bank()
        self._sides: dict[str, _Side] = {}
        self._guesses: list[tuple[_Side, int, int]] = []
        self._plain_probs: deque[float] = deque(maxlen=HINDSIGHT)
        self._first_plain = FIRST_PLAIN[costs.source] if costs.live else 0
        self.begin()

    def begin(self) -> None:
        """Forget what belongs to one text; acceptance, costs and the bank carry over."""
        self._guesses = []
        self._plain_probs.clear()
        self._now: _Round | None = None
        # The first pass after a prompt is slow.
        self._measuring = not self.costs.live

    # Before the round

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Decision:
        outlooks = [drafter.outlook(tokens) for drafter in drafters]
        sides = [self._side(drafter) for drafter in drafters]
        self._guesses = [
            (side, outlook.classes[0], outlook.guess)
            for side, outlook in zip(sides, outlooks, strict=True)
            if outlook.guess is not None
        ]
        self._now = None
        if self._first_plain > 0:
            self._first_plain -= 1
            return Decision(drafters[0], 0, "audit")
        found = [self._best(*pair, room) for pair in zip(sides, outlooks, strict=True)]
        place = max(range(len(found)), key=lambda i: found[i].rate)
        best = found[place]
        if best.rate * self.costs.plain > PAYS:
            side, outlook = sides[place], outlooks[place]
            side.parking.leave()
            # A free draft is known from the start: nothing on the way could make it longer.
            limit = best.k if side.free else self._most(outlook, room)
            self._begin(side, outlook, limit, best.rate)
            return Decision(drafters[place], limit, "pays", self._hindsight(outlook))
        for side, outlook, drafter in zip(sides, outlooks, drafters, strict=True):
            decision = self._explore(side, outlook, drafter, tokens, room)
            if decision is not None:
                return decision
        return Decision(drafters[0], 0, "parked")

    def _side(self, drafter: Drafter) -> _Side:
        if drafter.kind not in self._sides:
            self._sides[drafter.kind] = _Side(Acceptance(drafter.prior), drafter.free)
        return self._sides[drafter.kind]

    def _most(self, outlook: Outlook, room: int) -> int:
        """Most tokens that may be proposed, and whose acceptance and cost are known."""
        widest = len(self.costs.rounds(free=True)) - 1
        return min(most_proposals(outlook, room), len(outlook.classes), widest)

    def _best(self, side: _Side, outlook: Outlook, room: int) -> Choice:
        """The best number of proposals; a drafter that is far behind cannot join at once."""
        limit = self._most(outlook, room)
        extra = self._catching_up(side, outlook)
        if limit == 0 or not self.bank.affords(extra / self.costs.plain):
            return Choice(0, 0.0)
        costs, full = self.costs.rounds(free=side.free), self._full(side)
        rates = self._rates(side, outlook, limit)
        return best_choice(rates, costs, full=full, extra=extra / SPREAD)

    def _rates(self, side: _Side, outlook: Outlook, n: int) -> list[float]:
        # Where the text shows whether a guess was right, waiting teaches as much as trying.
        waiting = outlook.guess is not None
        known = side.acceptance.cautious_rates() if waiting else side.acceptance.rates()
        return [known[place] for place in outlook.classes[:n]]

    def _catching_up(self, side: _Side, outlook: Outlook) -> float:
        """Seconds to feed what the drafter lacks, beyond an ordinary step.

        One token is no lag: a full acceptance leaves it, and `_full` accounts for it.
        """
        if side.free or outlook.lag <= 1:
            return 0.0
        return self.costs.draft(outlook.lag + 1) - self.costs.draft(1)

    def _full(self, side: _Side) -> float:
        """Seconds that a full acceptance costs the next round."""
        return 0.0 if side.free else self.costs.draft(2) - self.costs.draft(1)

    def _begin(
        self, side: _Side, outlook: Outlook, limit: int, price: float, probe: bool = False
    ) -> None:
        costs = self.costs.rounds(free=side.free)
        rates = self._rates(side, outlook, limit)
        step, full = (0.0 if side.free else self.costs.draft(1)), self._full(side)
        self._now = _Round(side, outlook, limit, rates, costs, step, full, price, probe)

    # Re-probing whether drafting pays

    def _explore(
        self,
        side: _Side,
        outlook: Outlook,
        drafter: Drafter,
        tokens: Sequence[int],
        room: int,
    ) -> Decision | None:
        """A round that teaches something about a drafter, if it can be afforded."""
        limit = self._most(outlook, room)
        if limit == 0 or outlook.guess is not None or not self._could_pay(side, limit):
            return None
        if not self.costs.plain_known:  # a plain round tells whether a search is worth it
            return None
        purse = self._purse(side, limit)
        if side.free or outlook.lag <= NEAR:
            return self._try(side, outlook, drafter, limit, purse)
        if not side.parking.over:
            return None
        return self._look_back(side, outlook, drafter, tokens, purse)

    def _could_pay(self, side: _Side, limit: int) -> bool:
        """Whether any acceptance rate could make drafting pay; a table's costs may be wrong."""
        if self.costs.live and self.costs.source == "table":
            return True
        costs = self.costs.rounds(free=side.free)
        return any((k + 1) * costs[0] > PAYS * costs[k] for k in range(1, limit + 1))

    def _purse(self, side: _Side, limit: int) -> float:
        """Plain tokens that a search may lose.

        Where little can be gained they must be earned first: in a short text a search in vain
        could not be made up for.
        """
        costs = self.costs.rounds(free=side.free)
        most = best_choice([MOST_HOPED] * limit, costs).rate * costs[0]
        return self.bank.balance - (0.0 if most > PROMISING else START)

    def _try(
        self, side: _Side, outlook: Outlook, drafter: Drafter, limit: int, purse: float
    ) -> Decision | None:
        """Draft although it is not expected to pay, where too little is known to rule it out."""
        costs = self.costs.rounds(free=side.free)
        classes = outlook.classes[:limit]
        hopeful, expected = side.acceptance.hopeful_rates(), side.acceptance.rates()
        hopes = [hopeful[place] for place in classes]
        if best_choice(hopes, costs, full=self._full(side)).rate * costs[0] <= PAYS:
            return None
        trial = cheapest_trial([expected[place] for place in classes], costs)
        behind = self._catching_up(side, outlook) / self.costs.plain
        if trial.loss + behind > purse:
            return None
        self._begin(side, outlook, trial.k, 0.0)
        return Decision(drafter, trial.k, "try")

    def _look_back(
        self,
        side: _Side,
        outlook: Outlook,
        drafter: Drafter,
        tokens: Sequence[int],
        purse: float,
    ) -> Decision | None:
        """Let the drafter catch up, and see what it would have given the last tokens."""
        if self._hindsight(outlook) < LEAST_HINDSIGHT:
            return None
        restarted, lag = None, outlook.lag + outlook.unread
        if self._reading(lag) > purse:
            affordable = (
                window for window in WINDOWS if window < lag and self._reading(window) <= purse
            )
            window = next(affordable, None)
            if window is None:
                return None
            restarted = len(tokens) - 1 - window
            drafter.restart(restarted)
            outlook = drafter.outlook(tokens)
        self._begin(side, outlook, 1, 0.0, probe=True)
        return Decision(drafter, 1, "look back", self._hindsight(outlook), restarted)

    def _reading(self, n: int) -> float:
        """Time for the drafter to read `n` tokens and the last one, in plain tokens."""
        return self.costs.draft(n + 1) / self.costs.plain

    def _hindsight(self, outlook: Outlook) -> int:
        """How many of the last tokens can be looked back at: drawn from P, and new to a drafter."""
        return min(len(self._plain_probs), outlook.lag)

    # Within the round

    def go_on(self, k: int, logits: NDArray[np.float32] | None) -> bool:
        now = self._now
        if now is None:
            return True
        if logits is None:
            more = k == 0 or now.price == 0 or self._worth(now, k, 0.0, None)
            now.steps += more
            return more
        if now.probe:
            return False
        margin = margin_of(logits)
        now.margins.append(margin)
        rate = now.side.margin.predict(now.rates[k], margin)
        if now.price > 0 and not self._worth(now, k, now.step, rate):
            return False
        now.alive *= rate
        return True

    def _worth(self, now: _Round, k: int, paid: float, rate: float | None) -> bool:
        rates = now.rates[k:] if rate is None else [rate, *now.rates[k + 1 :]]
        costs = now.costs[k : now.limit + 1]
        return worth_more(now.alive, rates, costs, price=now.price, full=now.full, paid=paid)

    # After the round

    def learn(self, outcome: Outcome) -> None:
        now, n_proposed = self._now, len(outcome.survival)
        for side, place, guess in self._guesses:
            if now is None or side is not now.side or n_proposed == 0:
                side.acceptance.label(place, outcome.prob(guess))
        self._book(outcome, n_proposed)
        if now is not None:
            self._learn_draft(now, outcome)
        if n_proposed:
            self._plain_probs.clear()
        else:
            self._plain_probs.append(outcome.prob(outcome.token))
            for side in self._sides.values():
                side.parking.wait(1)

    def _learn_draft(self, now: _Round, outcome: Outcome) -> None:
        """Labels from the verified draft, or from the text that the drafter caught up with."""
        side = now.side
        if outcome.hindsight and self._plain_probs:
            self._learn_hindsight(side, outcome.hindsight)
        before = 1.0
        for i, after in enumerate(outcome.survival):
            if i < len(now.margins):
                stayed = min(after / before, 1.0) if before > 0 else 0.0
                side.margin.learn(now.rates[i], now.margins[i], stayed, before)
            before = after
        side.acceptance.learn(now.outlook.classes[: len(outcome.survival)], outcome.survival)

    def _learn_hindsight(self, side: _Side, hindsight: Sequence[float]) -> None:
        """min(1, Q(x) / P(x)) at tokens drawn from P: its mean is sum min(P, Q)."""
        pairs = list(zip(reversed(hindsight), reversed(self._plain_probs), strict=False))
        side.acceptance.age(FADE**side.parking.waited)
        side.margin.age(FADE**side.parking.waited)
        side.parking.looked()
        for draft, target in reversed(pairs):
            side.acceptance.label(0, min(1.0, draft / target) if target > 0 else 1.0)

    def _book(self, outcome: Outcome, n_proposed: int) -> None:
        """Learn the costs, and charge the bank with the round's time in plain tokens."""
        now, costs = self._now, self.costs
        steps = now.steps if now is not None and not now.side.free else 0
        if now is not None and steps:
            costs.learn_draft(now.outlook.lag + 1, steps, outcome.draft_seconds)
        if self._measuring:
            costs.learn_verify(n_proposed + 1, outcome.verify_seconds)
            costs.learn_core(2 * n_proposed + 1, outcome.core_seconds)
        self._measuring = True
        # Only now, since a table's unit of time may differ from the clock's.
        expected = costs.rounds(free=now is None or now.side.free)[n_proposed]
        if now is not None and steps:
            expected += costs.draft(now.outlook.lag + 1) - costs.draft(1)
            expected += (steps - n_proposed) * costs.draft(1)
        spent = expected
        if costs.live and steps + n_proposed:
            seconds = outcome.draft_seconds + outcome.verify_seconds + outcome.core_seconds
            most = STALL if costs.measured(n_proposed + 1) else STALL_UNSEEN
            spent = min(seconds, most * expected)
        self.bank.book(outcome.decided, spent / costs.plain)
