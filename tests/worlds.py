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

from specx.drafters.base import ModelDrafter, Outlook
from specx.schedule import Outcome, Schedule
from specx.schedule.costs.curve import Curve, Profile


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

    stays: list[int] = field(default_factory=list)
    margins: list[list[int]] = field(default_factory=list)

    def ease_of(self, length: int, k: int, rng: np.random.Generator) -> float:
        return 99.0 if k < self.stays[length - 64] else -99.0

    def margin_of(self, ease: float, length: int, k: int, rng: np.random.Generator) -> float:
        return self.margins[length - 64][k] / 100


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
        self.length = 64
        self.now = 0.0
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
        world, profile, slow = self.world, self.world.profile, self.world.slow(self.length)
        text = Length(self.length)
        plan = self.schedule.plan(text, [self.drafter], 10**6)  # type: ignore[arg-type, list-item]
        chances: list[float] = []
        hindsight: list[float] = []
        draft = 0.0
        lag = self.drafter.outlook(text).lag  # type: ignore[arg-type]
        while len(chances) < plan.limit and self.schedule.go_on(len(chances), None):
            assert profile.drafter is not None
            draft += slow * profile.drafter(1 if chances else lag + 1)
            if not chances:
                hindsight = self.labels[len(self.labels) - plan.hindsight :]
                self.drafter.n_past = self.length
            ease = world.ease_of(self.length, len(chances), self.rng)
            margin = world.margin_of(ease, self.length, len(chances), self.rng)
            logits: NDArray[np.float32] = np.array([0, margin, -5], np.float32)
            if not self.schedule.go_on(len(chances), logits):
                break
            chances.append(1 / (1 + np.exp(-ease)))
        labels = [float(self.rng.random() < chance) for chance in chances]
        survival = np.cumprod(labels).tolist()
        n = int(sum(survival))
        verify = slow * profile.verifier(len(chances) + 1)
        if not chances:
            ease = world.ease_of(self.length, 0, self.rng)
            self.labels = [*self.labels[-15:], float(self.rng.random() < 1 / (1 + np.exp(-ease)))]
        self.length += n + 1
        if len(chances):
            self.labels = []
            self.drafter.n_past = min(self.drafter.n_past + len(chances) - 1, self.length - 1)
        self.now += draft + verify
        self.gammas.append(len(chances))
        self.reasons.append(plan.reason)
        self.schedule.learn(
            Outcome(
                survival=survival, decided=n + 1, token=0, prob=lambda token: 1.0,
                hindsight=hindsight, draft_seconds=draft, verify_seconds=verify,
            )
        )  # fmt: skip
