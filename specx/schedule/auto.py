"""`--gamma auto`: the number of drafted tokens that is expected to write most tokens a second.

Each round takes the drafter and the number k with the largest E_k / C_k, the expected tokens over
the cost of the round, if that beats plain decoding; within the round a model's draft goes on while
some longer one is still worth its price. Where nothing pays it decodes plainly, and looks again
now and then, as far as its bank affords.
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
from specx.schedule.base import Outcome, Plan, most_proposals
from specx.schedule.costs.live import Costs
from specx.schedule.margin import Margin, margin_of
from specx.schedule.worth import Choice, best_choice, cheapest_trial, worth_more

__all__ = ["Auto"]

HINDSIGHT = 16
"""Most tokens to look back at: more rows of logits cost more than they tell."""
LEAST_HINDSIGHT = 4
MOST_STEPS = 16
"""Most tokens that a model drafts in a round."""
PRIOR = 0.75
LENGTHS = (3, 4, 6, 8, 12, 16, 24, 32)
"""Match lengths at which a lookup's next class begins."""
LOOKUP_PRIOR = (0.45, 0.55, 0.65, 0.75, 0.82, 0.87, 0.9, 0.92)
"""A guess at how often such matches go on; text teaches them for free, one label a round."""
PAYS = 1.01
SPREAD = 8
"""Rounds over which a drafter's catching up is spread when drafters are compared."""
WINDOWS = (256, 128, 64, 32, 16)
NEAR = 4
"""Tokens that a drafter may lag behind and still be tried at once."""
DOUBT = {"profile": 0.9, "table": 0.75}
"""Costs that can be put right are not taken at their word: they may be so much too high."""
PROMISING = 1.2
"""What the best drafter must gain for the bank's first sum to be spent on a search."""
RICH = 6.0
"""Plain tokens in the bank from which looking back need not become rarer."""
FADE = 0.985
"""What a token of text that was decoded plainly leaves of old labels' weight."""
STALL, STALL_UNSEEN = 1.25, 4.0
"""Most of what it should cost that a round is charged with: more is a stall, and no one's fault.
Where passes of its width were hardly seen, what it should cost may itself be far too low."""
AUDIT_LEAST, AUDIT_SHARE = 24, 0.005
"""Drafted tokens after which a plain round is due where times are measured, and the share of the
text that such rounds may lose. All is compared with T(1), which may have changed; where drafting
gains much, it would gain at another T(1) too, and a plain round is dear."""
FIRST_PLAIN = {"profile": 0, "table": 3}
"""Plain rounds at the start where times are measured: a table knows no T(1). The first pass after a
prompt is a slow one, and never measured."""


@dataclass
class _Side:
    """What is known of one drafter."""

    acceptance: Acceptance
    free: bool
    """Whether its proposals are known and cost nothing."""
    margin: Margin = field(default_factory=Margin)
    parking: Parking = field(default_factory=Parking)

    def classes(self, outlook: Outlook, n: int) -> list[int]:
        """The class of each of `n` proposals."""
        return [_length_class(outlook.start + i) for i in range(n)] if self.free else [*range(n)]


@dataclass
class _Round:
    """The round that is under way."""

    side: _Side
    outlook: Outlook
    limit: int
    rates: list[float]
    """Acceptance by position, all before it accepted."""
    costs: list[float]
    """C_k."""
    step: float
    """The drafter's step, within them."""
    full: float
    """What a full acceptance costs on top."""
    price: float
    """Tokens that a second is worth elsewhere: lambda."""
    probe: bool = False
    """Whether the drafter only catches up, and looks back."""
    alive: float = 1.0
    """Chance that all tokens drawn so far stay, as their margins have it."""
    drawn: int = 0
    steps: int = 0
    margins: list[float] = field(default_factory=list)


class Auto:
    """Chooses each round anew; see `specx.schedule`.

    Parameters
    ----------
    costs
        What rounds cost. Unless they are learnt from live timings, all choices follow from the
        history of the text alone, and a seed repeats.
    use_margin
        Whether to look at the margin between the drafter's two largest logits.
    """

    def __init__(self, costs: Costs, *, use_margin: bool = True) -> None:
        self.costs = costs
        self.bank = Bank()
        self._use_margin = use_margin
        self._sides: dict[str, _Side] = {}
        self._guesses: list[tuple[_Side, int, int]] = []
        self._plain_probs: deque[float] = deque(maxlen=HINDSIGHT)
        self._audit = FIRST_PLAIN[costs.source] if costs.live else 0
        self._measuring = not costs.live
        self._since_plain = 0
        self._now: _Round | None = None

    # Before the round

    def plan(self, tokens: Sequence[int], drafters: Sequence[Drafter], room: int) -> Plan:
        outlooks = [drafter.outlook(tokens) for drafter in drafters]
        sides = [self._side(*pair) for pair in zip(drafters, outlooks, strict=True)]
        self._guesses = [
            (side, side.classes(outlook, 1)[0], outlook.guess)
            for side, outlook in zip(sides, outlooks, strict=True)
            if outlook.guess is not None
        ]
        self._now = None
        if self._audit > 0:
            return Plan(drafters[0], 0, "audit")
        found = [self._best(*pair, room) for pair in zip(sides, outlooks, strict=True)]
        place = max(range(len(found)), key=lambda i: found[i].rate)
        best, plain = found[place], 1 / self.costs.plain
        if best.rate > PAYS * plain:
            if self._due(best.rate / plain):
                return Plan(drafters[0], 0, "audit")
            side, outlook = sides[place], outlooks[place]
            side.parking.leave()
            limit = best.k if side.free else min(most_proposals(outlook, room), MOST_STEPS)
            self._begin(side, outlook, limit, best.rate)
            return Plan(drafters[place], limit, "pays", self._hindsight(outlook))
        for side, outlook, drafter in zip(sides, outlooks, drafters, strict=True):
            plan = self._explore(side, outlook, drafter, tokens, room)
            if plan is not None:
                return plan
        return Plan(drafters[0], 0, "parked")

    def _side(self, drafter: Drafter, outlook: Outlook) -> _Side:
        if drafter.kind not in self._sides:
            free = drafter.kind == "lookup"
            prior = LOOKUP_PRIOR if free else (PRIOR,) * MOST_STEPS
            self._sides[drafter.kind] = _Side(Acceptance(prior), free)
        return self._sides[drafter.kind]

    def _best(self, side: _Side, outlook: Outlook, room: int) -> Choice:
        """The best number of proposals; a drafter that is far behind cannot join at once."""
        limit = most_proposals(outlook, room)
        extra = self._catching_up(side, outlook)
        if limit == 0 or not self.bank.affords(extra / self.costs.plain):
            return Choice(0, 0.0)
        limit = min(limit, len(self.costs.rounds(free=True)) - 1 if side.free else MOST_STEPS)
        costs, full = self.costs.rounds(free=side.free), self._full(side)
        rates = self._rates(side, outlook, limit)
        return best_choice(rates, costs, full=full, extra=extra / SPREAD)

    def _rates(self, side: _Side, outlook: Outlook, n: int) -> list[float]:
        # The text shows whether a lookup would have been right: waiting teaches as much as trying.
        known = side.acceptance.cautious_rates() if side.free else side.acceptance.rates()
        return [known[place] for place in side.classes(outlook, n)]

    def _catching_up(self, side: _Side, outlook: Outlook) -> float:
        """Seconds that feeding what the drafter lacks takes, beyond an ordinary step.

        One token is no lag: it is what a full acceptance leaves, and was counted there.
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

    # Looking again whether drafting pays

    def _explore(
        self,
        side: _Side,
        outlook: Outlook,
        drafter: Drafter,
        tokens: Sequence[int],
        room: int,
    ) -> Plan | None:
        """A round that teaches something of a model's drafts, if it may be afforded."""
        limit = min(most_proposals(outlook, room), MOST_STEPS)
        if side.free or limit == 0 or not self._could_pay(limit):
            return None
        if not self.costs.plain_known:  # a plain round tells whether there is anything to look for
            return None
        purse = self._purse(limit)
        if outlook.lag <= NEAR:
            return self._try(side, outlook, drafter, limit, purse)
        if not side.parking.over:
            return None
        return self._look_back(side, outlook, drafter, tokens, purse)

    def _could_pay(self, limit: int) -> bool:
        """Whether any acceptance could make drafting pay; costs that were guessed may be wrong."""
        if self.costs.live and self.costs.source == "table":
            return True
        costs = self.costs.rounds(free=False)
        return any((k + 1) * costs[0] > PAYS * costs[k] for k in range(1, limit + 1))

    def _purse(self, limit: int) -> float:
        """Plain tokens that a search may lose; where little can be found they are earned first.

        A short text would be the slower for a search that comes to nothing.
        """
        costs = self.costs.rounds(free=False)
        most = best_choice([MOST_HOPED] * limit, costs).rate * costs[0]
        return self.bank.balance - (0.0 if most > PROMISING else START)

    def _try(
        self, side: _Side, outlook: Outlook, drafter: Drafter, limit: int, purse: float
    ) -> Plan | None:
        """Draft although it is not expected to pay, where it still may: too little is known yet."""
        costs = self.costs.rounds(free=False)
        hopes = side.acceptance.hopeful_rates()[:limit]
        needed = PAYS * (DOUBT[self.costs.source] if self.costs.live else 1.0)
        if best_choice(hopes, costs, full=self._full(side)).rate * costs[0] <= needed:
            return None
        trial = cheapest_trial(side.acceptance.rates()[:limit], costs)
        behind = self._catching_up(side, outlook) / self.costs.plain
        if trial.loss + behind > purse:
            return None
        self._begin(side, outlook, trial.k, 0.0)
        return Plan(drafter, trial.k, "try")

    def _look_back(
        self,
        side: _Side,
        outlook: Outlook,
        drafter: Drafter,
        tokens: Sequence[int],
        purse: float,
    ) -> Plan | None:
        """Let the drafter catch up, and see what it would have given the last tokens."""
        if self._hindsight(outlook) < LEAST_HINDSIGHT:
            return None
        restarted, lag = None, outlook.lag
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
        return Plan(drafter, 1, "look back", self._hindsight(outlook), restarted)

    def _reading(self, n: int) -> float:
        """Plain tokens that it takes the drafter to read `n` tokens and the last one."""
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
        rate = now.rates[k]
        if self._use_margin:
            margin = margin_of(logits)
            now.margins.append(margin)
            rate = now.side.margin.predict(rate, margin)
        if now.price > 0 and not self._worth(now, k, now.step, rate):
            return False
        now.alive *= rate
        now.drawn += 1
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
            self._since_plain += outcome.decided
        else:
            self._since_plain = 0
            self._plain_probs.append(outcome.prob(outcome.token))
            for side in self._sides.values():
                side.parking.wait(1)
        self._audit = max(self._audit - 1, 0)

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
        classes = side.classes(now.outlook, len(outcome.survival))
        side.acceptance.learn(classes, outcome.survival)

    def _learn_hindsight(self, side: _Side, hindsight: Sequence[float]) -> None:
        """min(1, Q(x) / P(x)) at tokens drawn from P: its mean is sum min(P, Q)."""
        pairs = list(zip(reversed(hindsight), reversed(self._plain_probs), strict=False))
        side.acceptance.age(FADE**side.parking.waited)
        side.margin.age(FADE**side.parking.waited)
        side.parking.looked(rich=self.bank.balance > RICH)
        for draft, target in reversed(pairs):
            side.acceptance.label(0, min(1.0, draft / target) if target > 0 else 1.0)

    def _book(self, outcome: Outcome, n_proposed: int) -> None:
        """Learn the costs, and charge the bank with the round's time in plain tokens."""
        now, costs = self._now, self.costs
        steps = now.steps if now is not None else 0
        if now is not None and steps:
            costs.learn_draft(now.outlook.lag + 1, steps, outcome.draft_seconds)
        if self._measuring:
            costs.learn_verify(n_proposed + 1, outcome.verify_seconds)
            costs.learn_core(2 * n_proposed + 1, outcome.core_seconds)
        self._measuring = True
        # After learning: a table's unit of time is another one than the clock's.
        expected = costs.rounds(free=now is None or now.side.free)[n_proposed]
        if now is not None and steps:
            expected += costs.draft(now.outlook.lag + 1) - costs.draft(1)
            expected += (steps - n_proposed) * costs.draft(1)
        spent = expected
        if costs.live and steps + n_proposed:
            seconds = outcome.draft_seconds + outcome.verify_seconds + outcome.core_seconds
            most = STALL if costs.measured(n_proposed + 1) else STALL_UNSEEN
            spent = min(max(seconds, 0.8 * expected), most * expected)
        self.bank.book(outcome.decided, spent / costs.plain)

    def _due(self, gain: float) -> bool:
        """Whether a plain round is due, lest T(1) be believed long after it changed."""
        return self.costs.live and self._since_plain >= max(AUDIT_LEAST, (gain - 1) / AUDIT_SHARE)


def _length_class(length: int) -> int:
    """The class of a match of `length` tokens."""
    return max(0, sum(length >= least for least in LENGTHS) - 1)
