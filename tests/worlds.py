"""A pair of models made of coin tosses, in virtual time: schedules run over it by the thousand.

The drafter's token at each place is as good as the place is easy: a latent chance that the verifier
agrees, of which the margin of the drafter's logits shows something. At temperature 0, so labels are
0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specx.drafters.base import Drafter, Outlook
from specx.drafters.lookup import LookupDrafter
from specx.drafters.model import ModelDrafter
from specx.schedule import Auto, Costs, Decision, Outcome, Schedule
from specx.schedule.costs.curve import Curve, Profile
from specx.schedule.costs.live import Source


def curve(costs: Sequence[float], widths: Sequence[int] | None = None) -> Curve:
    """T(1), T(2), ... or at `widths`."""
    seconds = tuple(float(cost) for cost in costs)
    return Curve(
        model="", bytes=None, quantisation=None, threads=None, n_past=0, repeats=1,
        widths=tuple(widths or range(1, len(costs) + 1)), seconds=seconds, low=seconds,
        high=seconds,
    )  # fmt: skip


def stairs(*jumps: int, step: float, ramp: float = 0.02, n: int = 33) -> list[float]:
    """Costs of 1 to n tokens that rise by `step` at each width in `jumps`, and else hardly."""
    return [1 + ramp * (k - 1) + step * sum(k >= jump for jump in jumps) for k in range(1, n + 1)]


WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32)
F16 = curve([1, 1.06, 1.08, 1.36, 1.43, 1.6, 1.9, 2.2, 3.1, 3.7, 4.9, 6.6], WIDTHS)
F16_LATER = curve([1, 1.2, 1.3, 1.33, 1.5, 1.55, 1.9, 1.87, 2.25, 2.6, 3.6, 4.3], WIDTHS)
Q8_0 = curve([1, 1.4, 2.4, 2.2, 3.0, 2.7, 3.9, 4.4, 5.0, 6.6, 9.8, 12], WIDTHS)
Q4_K_M = curve([1, 1.8, 2.3, 2.5, 3.6, 3.8, 6.5, 6.7, 8.8, 9.6, 13, 16], WIDTHS)
KINDER = curve([1, 1.6, 2.0, 2.5, 3.0, 3.75, 4.4, 4.7, 5.2, 5.0, 7.6, 8.8], WIDTHS)
PAIRS: dict[str, tuple[Curve, float]] = {
    "F16": (F16, 0.23),
    "F16, another day": (F16_LATER, 0.2),
    "Q8_0": (Q8_0, 0.34),
    "Q4_K_M": (Q4_K_M, 0.57),
    "kinder Q4_K_M": (KINDER, 0.54),
    "flat": (curve([1, 1.6], [1, 33]), 0.1),
    "stairs": (curve(stairs(2, 5, 9, step=0.5)), 0.05),
    "high stairs": (curve(stairs(2, 5, 9, step=0.9)), 0.03),
    "steep": (curve(stairs(step=0, ramp=0.5)), 0.1),
}
EASE = {"hopeless": -3.0, "poor": -0.5, "mid": 0.8, "good": 2.0, "great": 3.5}
GPU = Profile(verifier=curve([1, 1.2, 1.6], [1, 9, 33]), drafter=curve([0.25]))


def profile(name: str, factor: float = 1.0) -> Profile:
    verifier, step = PAIRS[name]
    drafter = [step * seconds / Q4_K_M.seconds[0] for seconds in Q4_K_M.seconds]
    return Profile(verifier=verifier, drafter=curve([factor * s for s in drafter], WIDTHS))


def auto(costs: Profile, source: Source = "profile", *, live: bool = False) -> Auto:
    return Auto(Costs(costs, source, live=live))


@dataclass
class Stub:
    """A drafter of which only its lag is real."""

    kind: str = "model"
    free: bool = False
    prior: Sequence[float] = ModelDrafter.prior
    n_past: int = 0
    n_ctx: int = 10**9
    name: str = "stub"
    restarts: list[int] = field(default_factory=list)

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        return Outlook(limit=10**6, lag=len(tokens) - 1 - self.n_past)

    def restart(self, n_past: int) -> None:
        self.restarts.append(n_past)
        self.n_past = n_past

    def truncate(self, n_past: int) -> None:
        self.n_past = min(self.n_past, n_past)


@dataclass
class World:
    """What is true.

    Parameters
    ----------
    profile
        True costs.
    ease
        The mean logit of agreement at each length of the text.
    spread
        Its standard deviation from place to place: what a margin can show.
    feature
        How the margin follows a place's logit of agreement.
    slow
        Factor on all times at each length.
    """

    profile: Profile
    ease: Callable[[int], float]
    spread: float = 1.5
    feature: Callable[[float, np.random.Generator], float] = lambda x, rng: max(
        0.0, 4 + 2 * x + rng.normal()
    )
    slow: Callable[[int], float] = lambda length: 1.0
    seed: int = 0

    def ease_of(self, length: int, k: int, rng: np.random.Generator) -> float:
        """The logit of agreement at draw `k` after a text of some length."""
        return self.ease(length) + self.spread * rng.normal()

    def margin_of(self, ease: float, length: int, k: int, rng: np.random.Generator) -> float:
        """The margin that the drafter's logits have there."""
        return self.feature(ease, rng)

    def pass_seconds(self, length: int, width: int) -> float:
        """The verifier's time for `width` tokens, on a machine at ease."""
        return self.profile.verifier(width)

    def text(self, length: int) -> Sequence[int]:
        """The first `length` tokens of the text."""
        return Length(length)  # type: ignore[return-value]

    def is_next(self, token: int, place: int) -> bool:
        """Whether the verifier writes `token` at `place`: where only lengths count, always."""
        return True

    def drafters(self, model: Stub) -> list[Drafter]:
        """Who drafts."""
        return [model]  # type: ignore[list-item]

    def run(self, schedule: Schedule, n_tokens: int) -> Run:
        """Decode `n_tokens` after a prompt of 64."""
        return Run(self, schedule).until(64 + n_tokens)


@dataclass
class Recorded(World):
    """A real pair at temperature 0, as `scripts/record_drafts.py` found it: no coin is tossed.

    Parameters
    ----------
    stays
        By place of the text, the drafted tokens that stay.
    margins
        By place, the margin of each in hundredths of a nat.
    """

    stays: Sequence[int] = ()
    margins: Sequence[Sequence[int]] = ()

    def ease_of(self, length: int, k: int, rng: np.random.Generator) -> float:
        return 99.0 if k < self.stays[length - 64] else -99.0

    def margin_of(self, ease: float, length: int, k: int, rng: np.random.Generator) -> float:
        return self.margins[length - 64][k] / 100


@dataclass
class Copied(Recorded):
    """A text of real tokens, drafted by lookup and perhaps by a model.

    Parameters
    ----------
    tokens
        The text, its prompt of 64 included.
    with_model
        Whether a model drafts too.
    """

    tokens: Sequence[int] = ()
    with_model: bool = False

    def text(self, length: int) -> Sequence[int]:
        return self.tokens[:length]

    def is_next(self, token: int, place: int) -> bool:
        return self.tokens[place] == token

    def drafters(self, model: Stub) -> list[Drafter]:
        return [*(super().drafters(model) if self.with_model else ()), LookupDrafter()]


class Length:
    """Stands in for a text: only its length counts."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


class Run:
    """One generation in a world."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self.world, self.schedule = world, schedule
        self.rng = np.random.default_rng(world.seed)
        self.drafter = Stub(n_past=63)
        self.drafters = world.drafters(self.drafter)
        self.length = 64
        self.now = 0.0
        self.undisturbed = 0.0
        """Seconds that all passes would have taken on a machine at ease."""
        self.times: list[tuple[int, float]] = [(64, 0.0)]
        self.gammas: list[int] = []
        self.reasons: list[str] = []
        self.labels: list[float] = []

    def until(self, length: int) -> Run:
        while self.length < length:
            self._round()
            self.times.append((self.length, self.now))
        return self

    def seconds(self, start: int = 0, end: int = 10**9) -> float:
        """A token's mean time between two lengths (counted from the prompt's end)."""
        found = [(n, t) for n, t in self.times if start <= n - 64 <= end]
        return (found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0])

    def _round(self) -> None:
        world, length, slow = self.world, self.length, self.world.slow(self.length)
        text = world.text(length)
        decision = self.schedule.plan(text, self.drafters, 10**6)
        hindsight: list[float] = []
        draft = 0.0
        if decision.drafter.free:
            ids = decision.drafter.propose(text, decision.limit, self.rng).ids
            chances = [float(world.is_next(token, length + i)) for i, token in enumerate(ids)]
        else:
            chances, hindsight, draft = self._draft(text, decision, slow)
        labels = [float(self.rng.random() < chance) for chance in chances]
        survival = np.cumprod(labels).tolist()
        n = int(sum(survival))
        verify = slow * world.pass_seconds(length, len(chances) + 1)
        if not chances:
            ease = world.ease_of(length, 0, self.rng)
            self.labels = [*self.labels[-15:], float(self.rng.random() < 1 / (1 + np.exp(-ease)))]
        self.length += n + 1
        if len(chances):
            self.labels = []
            self.drafter.truncate(self.length - 1)
        self.now += draft + verify
        self.undisturbed += (draft + verify) / slow
        self.gammas.append(len(chances))
        self.reasons.append(decision.reason)
        self.schedule.learn(
            Outcome(
                survival=survival, decided=n + 1, token=0,
                prob=lambda token: float(world.is_next(token, length)),
                hindsight=hindsight, draft_seconds=draft, verify_seconds=verify,
            )
        )  # fmt: skip

    def _draft(
        self, text: Sequence[int], decision: Decision, slow: float
    ) -> tuple[list[float], list[float], float]:
        """Chances that its tokens stay, hindsight and seconds of a model's draft."""
        world, drafter, step = self.world, self.drafter, self.world.profile.drafter
        assert step is not None
        chances: list[float] = []
        hindsight: list[float] = []
        seconds, lag = 0.0, drafter.outlook(text).lag
        while len(chances) < decision.limit and self.schedule.go_on(len(chances), None):
            seconds += slow * step(1 if chances else lag + 1)
            if not chances:
                hindsight = self.labels[len(self.labels) - decision.hindsight :]
            drafter.n_past = self.length + len(chances)
            ease = world.ease_of(self.length, len(chances), self.rng)
            margin = world.margin_of(ease, self.length, len(chances), self.rng)
            logits: NDArray[np.float32] = np.array([0, margin, -5], np.float32)
            if not self.schedule.go_on(len(chances), logits):
                break
            chances.append(1 / (1 + np.exp(-ease)))
        return chances, hindsight, seconds
