"""`--gamma auto` on the drafts of a real pair, in virtual time.

What the drafter proposes at every place of eight texts was recorded (`scripts/record_drafts.py`),
so that every schedule meets what it would meet on the pair itself: 96 tokens, one prompt of each
kind, temperature 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from worlds import Recorded, auto, curve, profile

from specx.schedule import Fixed
from specx.schedule.costs.curve import Profile

PROMPTS = json.loads((Path(__file__).parent / "recorded_drafts.json").read_text())["prompts"]
GAMMAS, N = (0, 1, 2, 3, 4, 6, 8), 96
OFF = (0.92, 1.0, 1.08)
"""What a profile makes of T(1): it was measured on another day."""


def world(prompt: str, costs: Profile, *, noise: float = 0.0, seed: int = 0) -> Recorded:
    rng = np.random.default_rng(seed)
    return Recorded(
        costs, lambda n: 0.0, **PROMPTS[prompt],
        slow=lambda n: (1.3 if n == 64 else 1.0) * float(np.exp(noise * rng.normal())),
    )  # fmt: skip


def speeds_of_auto(prompt: str, costs: Profile, offs: Sequence[float] = OFF) -> list[float]:
    """Each round 8% off, the first a third too long, as after a prompt."""
    found = []
    for seed, off in enumerate([*offs] * (18 // len(offs))):
        one, *more = costs.verifier.seconds
        believed = Profile(
            verifier=curve([off * one, *more], costs.verifier.widths), drafter=costs.drafter
        )
        done = world(prompt, costs, noise=0.08, seed=seed).run(auto(believed, live=True), N)
        found.append(1 / done.seconds())
    return found


def best_of(prompt: str, costs: Profile) -> float:
    return max(1 / world(prompt, costs).run(Fixed(g), N).seconds() for g in GAMMAS)


@pytest.mark.parametrize("name", ["F16", "F16, another day"])
def test_auto_is_as_fast_as_the_best_fixed_gamma_that_nobody_knows(name: str) -> None:
    costs = profile(name)
    ratios = {
        prompt: np.array(speeds_of_auto(prompt, costs)) / best_of(prompt, costs)
        for prompt in PROMPTS
    }
    means = {prompt: float(each.mean()) for prompt, each in ratios.items()}
    print("\n" + ", ".join(f"{prompt} {mean:.3f}" for prompt, mean in means.items()))
    assert np.median([*means.values()]) > 0.97
    assert all(np.quantile(each, 0.975) > 0.94 for each in ratios.values())


@pytest.mark.parametrize("off", [*OFF, 1.3])
@pytest.mark.parametrize("name", ["Q4_K_M", "kinder Q4_K_M"])
def test_where_no_gamma_pays_auto_is_as_fast_as_plain(name: str, off: float) -> None:
    """Also where the profile has T(1) far too high, so that all else looks cheap."""
    costs = profile(name)
    ratios = [
        speed * world(prompt, costs).run(Fixed(0), N).seconds()
        for prompt in PROMPTS
        for speed in speeds_of_auto(prompt, costs, [off])
    ]
    print(f"\n{np.mean(ratios):.3f} of plain")
    assert np.mean(ratios) > (0.98 if off in OFF else 0.97)
