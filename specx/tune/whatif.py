"""Answers what speculation would gain on hardware that is not there, from assumptions alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from specx.codec import shortened
from specx.errors import UsageError
from specx.schedule.costs.curve import Curve, Profile
from specx.tune.surface import GAMMAS, Overheads, Surface, model_surface

__all__ = ["GRAMMAR", "WhatIf", "parse_what_if"]

GRAMMAR = "draft=.12,verify-curve=1:1,2:1.8,4:2.0,8:3.1,alpha=.8"
KEYS = ("draft", "verify-curve", "alpha")
ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
LARGEST = 1e6
NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)")
MOST_WIDTH = 4096


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Assumed costs, in units of the verifier's pass of one token, and acceptance rates."""

    draft: float
    """Cost of a drafter's step; 0 for lookup."""
    verify: dict[int, float]
    """Cost of a verifier's pass by width."""
    alphas: dict[str, float] = field(default_factory=dict)
    """Acceptance rate by kind of prompt, the same at each position of a draft."""

    @property
    def profile(self) -> Profile:
        """The assumed costs."""
        drafter = _curve({1: self.draft, 2: self.draft}) if self.draft else None
        return Profile(verifier=_curve(self.verify), drafter=drafter)

    def surface(self) -> Surface:
        """The speed-ups that follow."""
        rates = {kind: [alpha] * GAMMAS[-1] for kind, alpha in self.alphas.items()}
        return model_surface(self.profile, rates, Overheads())

    def assumptions(self) -> list[str]:
        """What was assumed, one sentence per line."""
        costs = ", ".join(f"{width} cost {cost:g}" for width, cost in self.verify.items())
        last = max(self.verify)
        rates = ", ".join(
            f"{alpha:g}" if kind == f"alpha {alpha:g}" else f"{alpha:g} on {kind}"
            for kind, alpha in self.alphas.items()
        )
        draft = (
            f"A draft step costs {self.draft:g} of a plain verifier step, also right after a full "
            "acceptance, when it reads two tokens."
            if self.draft
            else "Drafts cost nothing, as those of lookup."
        )
        return [
            f"Passes of the verifier, in units of one token's: {costs}; linear in between, and "
            f"beyond {last} at that pass's cost per token.",
            draft,
            f"Each drafted token is accepted at the rate {rates}, wherever it stands in the draft.",
            "Sampling, forgetting and text cost nothing; the context's length changes nothing.",
        ]


def _curve(costs: Mapping[int, float]) -> Curve:
    seconds = tuple(costs.values())
    return Curve(
        model="assumed",
        bytes=None,
        quantisation=None,
        threads=None,
        n_past=0,
        repeats=0,
        widths=tuple(costs),
        seconds=seconds,
        low=seconds,
        high=seconds,
    )


def parse_what_if(text: str) -> WhatIf:
    """Parse ``draft=.12,verify-curve=1:1,2:1.8,alpha=.8``.

    Parts are separated by commas; one without ``=`` continues the list before it.

    - ``draft=COST``: cost of a draft step relative to a plain verifier step; 0 for lookup.
    - ``verify-curve=WIDTH:COST,...``: cost of a pass by its width, in any unit; must have width 1.
    - ``alpha=RATE,...`` or ``alpha=KIND:RATE,...``: acceptance rates; by default .5, .6 ... .9.

    Raises
    ------
    UsageError
        If the text is anything else; names the part.
    """
    parts = _parts(text)
    missing = [key for key in KEYS[:2] if key not in parts]
    if missing:
        raise _error(text, f"{missing[0]} is missing")
    if len(parts["draft"]) != 1:
        raise _error(text, "draft takes one number")
    curve = _verify(text, parts["verify-curve"])
    alphas = parts.get("alpha", [f"{alpha:g}" for alpha in ALPHAS])
    return WhatIf(
        draft=_number(text, parts["draft"][0]),
        verify=curve,
        alphas=dict(_alpha(text, part) for part in alphas),
    )


def _parts(text: str) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    key = ""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            key = name.strip()
            if key not in KEYS:
                raise _error(text, f"unknown key {shortened(key)}; known: {', '.join(KEYS)}")
            if key in parts:
                raise _error(text, f"{key} is given twice")
            parts[key] = [value.strip()]
        elif key:
            parts[key].append(part.strip())
        else:
            raise _error(text, f"{shortened(part)} belongs to no key")
    return parts


def _verify(text: str, parts: list[str]) -> dict[int, float]:
    costs: dict[int, float] = {}
    for part in parts:
        width, colon, cost = part.partition(":")
        if not (colon and re.fullmatch(r"[0-9]{1,4}", width) and 0 < int(width) <= MOST_WIDTH):
            raise _error(text, f"{shortened(part)} is not WIDTH:COST")
        if int(width) in costs:
            raise _error(text, f"width {width} is given twice")
        costs[int(width)] = _number(text, cost)
        if not costs[int(width)]:
            raise _error(text, f"a pass of {width} cannot cost 0")
    if 1 not in costs or len(costs) < 2:
        raise _error(text, "verify-curve needs width 1, and one more")
    return {width: costs[width] / costs[1] for width in sorted(costs)}


def _alpha(text: str, part: str) -> tuple[str, float]:
    kind, colon, rate = part.rpartition(":")
    alpha = _number(text, rate)
    if alpha > 1:
        raise _error(text, f"{shortened(rate)} is no rate; give 0 to 1")
    return (kind.strip() if colon else f"alpha {alpha:g}"), alpha


def _number(text: str, part: str) -> float:
    if not re.fullmatch(NUMBER, part) or float(part) > LARGEST:
        raise _error(text, f"{shortened(part)} is no number from 0 to {LARGEST:g}")
    return float(part)


def _error(text: str, reason: str) -> UsageError:
    return UsageError(f"--what-if {shortened(text)}: {reason}; write for example {GRAMMAR}")
