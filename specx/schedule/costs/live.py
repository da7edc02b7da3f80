"""The cost of a round: a measured or tabulated shape, corrected by the run's own timings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from specx.schedule.costs.curve import Curve, Profile

__all__ = ["Costs", "Source"]

Source: TypeAlias = Literal["profile", "table"]

WIDEST = 33
"""Most tokens in a verifier pass whose cost is tracked, the last emitted token included."""
CLAMP = math.log(1.25)
TRUST = {"profile": 1.0, "table": 0.0}
"""Samples of one width that the shape counts as."""
FIRST = 3
"""Samples of a width needed to recognise its outliers."""
PACE, SLOW = 0.1, 0.02
"""Shares of a deviation that go into the pace and, at least, into the error of its width."""
MOST = 12.0
"""Most samples that the drafter's scale averages over."""
FADE = 0.01
"""How fast a width seen too rarely returns to the prior while nothing is drafted."""


class Costs:
    """Seconds by width, for verifier and drafter.

    Parameters
    ----------
    profile
        The shape; a table's may be in any unit of time.
    source
        Where the shape comes from, which says how far to trust it.
    live
        Whether to correct it by measured times.
    """

    def __init__(self, profile: Profile, source: Source, *, live: bool) -> None:
        self.source, self.live = source, live
        # A profile is trusted over the first samples, which may be stalls.
        first = 0 if source == "profile" else FIRST
        self._verify = _Corrected(profile.verifier, TRUST[source], first)
        self._step = None if profile.drafter is None else _Scaled(profile.drafter, first)
        self._core = profile.core
        self._rounds: dict[bool, list[float]] = {}

    @property
    def plain(self) -> float:
        """C_0: seconds per token of plain decoding."""
        return self.rounds(free=True)[0]

    @property
    def plain_known(self) -> bool:
        """Whether T(1) was measured in this run, or never will be."""
        return not self.live or self._verify.n(1) > 0

    def measured(self, width: int) -> bool:
        """Whether passes of that width were seen often enough to recognise a stall."""
        return self._verify.n(width) >= FIRST

    def rounds(self, *, free: bool) -> list[float]:
        """C_k for k = 0, 1, ...; `free` for a drafter whose proposals cost no time.

        C_k = T(k + 1) + k d + (2k + 1) core.
        """
        if free not in self._rounds:
            step = 0.0 if free else self.draft(1) + self._core
            core = self._core
            self._rounds[free] = [
                verify + k * (step + core) + core for k, verify in enumerate(self._verify.seconds)
            ]
        return self._rounds[free]

    def draft(self, width: int) -> float:
        """T_d(width): the drafter's forward of `width` tokens."""
        if self._step is None:
            return math.inf
        known = self._step.n > 0 or self.source == "profile"
        # A table states the drafter's cost relative to the verifier's: at first they share a scale.
        return self._step(width) if known else self._step.prior(width) * self._verify.scale

    def learn_verify(self, width: int, seconds: float) -> None:
        """Take in a measured pass."""
        if self.live and seconds > 0:
            self._verify.learn(width, seconds)
            if width == 1:
                self._fade()
            self._rounds.clear()

    def _fade(self) -> None:
        """Forget what a stall may have left, lest it prevent drafting for good.

        What was seen `FIRST` times is no stall, and stays; a wrong shape would otherwise be tried
        again and again.
        """
        self._verify.fade()
        if self._step is not None:
            self._step.fade()

    def learn_draft(self, n_first: int, n_steps: int, seconds: float) -> None:
        """Take in a measured draft: a forward of `n_first` tokens, then single ones."""
        if self.live and seconds > 0 and self._step is not None:
            shape = self._step.prior(n_first) + (n_steps - 1) * self._step.prior(1)
            self._step.learn(seconds / shape)
            self._rounds.clear()

    def learn_core(self, n_rows: int, seconds: float) -> None:
        """Take in the core's time for `n_rows` rows of logits."""
        if self.live and seconds > 0:
            sample = min(seconds / n_rows, 2 * self._core + 1e-4)
            self._core += 0.1 * (sample - self._core)
            self._rounds.clear()


class _Corrected:
    """A curve times the machine's pace (one factor) and the curve's own errors by width.

    Width 1 has no error, since its passes set the pace. The error of a width also stands for its
    neighbours until they are seen.
    """

    def __init__(self, curve: Curve, trust: float, first: int) -> None:
        self._trust, self._first = trust, first
        widths = range(1, WIDEST + 1)
        self._log = np.log([curve(width) for width in widths])
        self._error = {1: 0.0}
        self._n: dict[int, int] = {}
        self._believed = _Believed()
        self._pace = 0.0
        self.seconds: list[float] = np.exp(self._log).tolist()

    @property
    def scale(self) -> float:
        """The pace: the factor on the whole curve."""
        return math.exp(self._pace)

    def n(self, width: int) -> int:
        """Passes of that width seen."""
        return self._n.get(width, 0)

    def learn(self, width: int, seconds: float) -> None:
        if width > len(self._log):
            return
        off = math.log(seconds) - math.log(self.seconds[width - 1])
        n = self.n(width)
        if n >= self._first:
            off = self._believed(off, 1.0 if width == 1 or n >= FIRST else 2.0)
        alone = not self._n and not self._trust
        if width == 1 or alone:
            self._pace += max(PACE, 1 / (n + 1)) * off
        elif n >= FIRST:  # an earlier deviation is put down to the curve
            self._pace += PACE * off
        if width > 1 and not alone:
            error = self._error.get(width, 0.0)
            self._error[width] = error + max(1 / (n + 1 + self._trust), SLOW) * off
        self._n[width] = n + 1
        widths = sorted(self._error)
        known = [self._error[width] for width in widths]
        errors = np.interp(np.arange(1, len(self._log) + 1), widths, known)
        self.seconds = np.exp(self._log + errors + self._pace).tolist()

    def fade(self) -> None:
        """Move widths seen too rarely to recognise a stall a little towards the prior."""
        self._error = {
            width: error if self.n(width) >= FIRST else (1 - FADE) * error
            for width, error in self._error.items()
        }


@dataclass
class _Scaled:
    """A curve times one learned factor."""

    prior: Curve
    first: int
    """Samples needed to recognise outliers."""
    believed: _Believed = field(default_factory=lambda: _Believed())
    scale: float = 1.0
    n: int = 0

    def __call__(self, width: int) -> float:
        return self.prior(width) * self.scale

    def learn(self, ratio: float) -> None:
        sample = math.log(ratio)
        if self.n >= self.first:
            sample = math.log(self.scale) + self.believed(sample - math.log(self.scale))
        self.n += 1
        step = max(1 / self.n, 1 / MOST)
        self.scale *= math.exp(step * (sample - math.log(self.scale)))

    def fade(self) -> None:
        """Move a little towards the prior if seen too rarely to recognise a stall."""
        if self.n < FIRST:
            self.scale **= 1 - FADE


@dataclass
class _Believed:
    """Clamps a sample's deviation: little for a single outlier, more for each that follows."""

    strange: int = 0

    def __call__(self, off: float, clamps: float = 1.0) -> float:
        self.strange = self.strange + 1 if abs(off) > CLAMP else 0
        most = CLAMP * max(self.strange, clamps)
        return min(max(off, -most), most)
