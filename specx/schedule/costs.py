"""What a round costs: a measured or tabulated shape, corrected by the run's own rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from specx.cost import Curve, Profile
from specx.lookup import MOST_PROPOSALS

__all__ = ["Costs", "Source"]

Source: TypeAlias = Literal["profile", "table"]

CLAMP = math.log(1.25)
TRUST = {"profile": 3.0, "table": 1.0}
"""Samples of one width that the shape's own word on it is worth."""
FIRST = 3
"""Samples of a width before its outliers can be told."""
FORGET, MOST = 0.99, 12.0


class Costs:
    """Seconds by width, for verifier and drafter.

    Parameters
    ----------
    profile
        The shape; in any unit of time if its source is a table.
    source
        How much to trust it.
    live
        Whether to correct it by measured times.
    """

    def __init__(self, profile: Profile, source: Source, *, live: bool) -> None:
        self.source, self.live = source, live
        self._verify = _Corrected(profile.verifier, TRUST[source])
        self._step = None if profile.drafter is None else _Scaled(profile.drafter)
        self._core = profile.core
        self._rounds: dict[bool, list[float]] = {}

    @property
    def plain(self) -> float:
        """C_0: a token of plain decoding."""
        return self.rounds(free=True)[0]

    def rounds(self, *, free: bool) -> list[float]:
        """C_k for k = 0, 1, ...; `free` where proposals cost nothing (a lookup's).

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
        # A table knows the drafter by its ratio to the verifier, so they share a scale at first.
        return self._step(width) if known else self._step.prior(width) * self._verify.scale

    def learn_verify(self, width: int, seconds: float) -> None:
        """Take in a measured pass."""
        if self.live and seconds > 0:
            self._verify.learn(width, seconds)
            self._rounds.clear()

    def learn_draft(self, n_first: int, n_steps: int, seconds: float) -> None:
        """Take in a measured draft: a forward of `n_first` tokens, then single ones."""
        if self.live and seconds > 0 and self._step is not None:
            shape = self._step.prior(n_first) + (n_steps - 1) * self._step.prior(1)
            self._step.learn(seconds / shape)
            self._rounds.clear()

    def learn_core(self, n_rows: int, seconds: float) -> None:
        """Take in a measured core: `n_rows` rows of logits were read."""
        if self.live and seconds > 0:
            sample = min(seconds / n_rows, 2 * self._core + 1e-4)
            self._core += 0.1 * (sample - self._core)
            self._rounds.clear()


class _Corrected:
    """A curve times what was seen of it, width by width; unseen widths follow the seen ones."""

    def __init__(self, curve: Curve, trust: float) -> None:
        self._curve, self._trust = curve, trust
        widths = range(1, MOST_PROPOSALS + 2)
        self._log = np.log([curve(width) for width in widths])
        self._ratio = np.zeros(len(widths))
        self._n = np.zeros(len(widths))
        self._believed = _Believed()
        self.scale = 1.0
        self.seconds: list[float] = np.exp(self._log).tolist()

    def learn(self, width: int, seconds: float) -> None:
        place = width - 1
        if place >= len(self._log):
            return
        sample = math.log(seconds) - self._log[place]
        if self._n[place] >= FIRST:
            sample = self._believed(sample, math.log(self.seconds[place]) - self._log[place])
        self._n *= FORGET
        self._n[place] = min(self._n[place] + 1, MOST)
        self._ratio[place] += (sample - self._ratio[place]) / self._n[place]
        scale = float(self._n @ self._ratio) / float(self._n.sum())
        ratio = (self._n * self._ratio + self._trust * scale) / (self._n + self._trust)
        self.scale = math.exp(scale)
        self.seconds = np.exp(self._log + ratio).tolist()


@dataclass
class _Scaled:
    """A curve times one factor."""

    prior: Curve
    believed: _Believed = field(default_factory=lambda: _Believed())
    scale: float = 1.0
    n: int = 0

    def __call__(self, width: int) -> float:
        return self.prior(width) * self.scale

    def learn(self, ratio: float) -> None:
        sample = math.log(ratio)
        if self.n >= FIRST:
            sample = self.believed(sample, math.log(self.scale))
        self.n += 1
        step = max(1 / self.n, 1 / MOST)
        self.scale *= math.exp(step * (sample - math.log(self.scale)))


@dataclass
class _Believed:
    """How much of a sample is believed: one stall tells nothing, what goes on is believed more."""

    strange: int = 0

    def __call__(self, sample: float, known: float) -> float:
        off = sample - known
        self.strange = self.strange + 1 if abs(off) > CLAMP else 0
        most = CLAMP * max(self.strange, 1)
        return known + min(max(off, -most), most)
