"""What a surface of speed-ups means, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specx.schedule.costs.curve import Profile
from specx.tune.surface import WORTH, Overheads, Surface, best_place, model_surface

__all__ = ["Candidate", "by_kind", "ranked", "recommend", "uncertainty", "verdict"]

SURE = 0.85
"""Share of resamples that must agree within a step, or the machine is called too noisy."""
MOSTLY = 0.75
"""Share of resamples that must gain, or the gain is put down to chance."""
FLATTER = 1.05
"""The least speed-up for which another format of the verifier is mentioned."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to draft: a model, or lookup."""

    name: str
    option: str
    """What asks for it on the command line."""
    profile: Profile
    surface: Surface
    overheads: Overheads = field(default_factory=Overheads)
    resampled: Sequence[int] = ()
    """See `specx.tune.surface.agreement`."""
    f16: Profile | None = None
    """What the costs would be with an F16 verifier; None if that is of no interest."""

    @property
    def place(self) -> int:
        """The place of its best gamma."""
        return best_place(self.surface.overall)

    @property
    def gamma(self) -> int:
        """Its best gamma over all kinds of prompts."""
        return self.surface.gammas[self.place]

    @property
    def speedup(self) -> float:
        """What that gamma gives over all kinds."""
        return self.surface.overall[self.place]

    @property
    def pays(self) -> bool:
        """True if it is worth using: also in most measurements like this one."""
        gains = sum(place > 0 for place in self.resampled)
        return self.speedup >= WORTH and gains >= MOSTLY * len(self.resampled)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The fastest first."""
    return sorted(candidates, key=lambda each: -each.speedup)


def recommend(candidates: Sequence[Candidate]) -> list[str]:
    """Sentences, one per line: what to use, or why nothing pays."""
    first, *others = ranked(candidates)
    lines = []
    if not first.pays:  # the user asks about the model that he brought
        first = next((each for each in (first, *others) if each.profile.drafter), first)
        lines = [*_exceptions(candidates), *_flatter(first)]
    rest = [f"{each.name}: {_at_best(each)}." for each in ranked(candidates) if each is not first]
    return [verdict(first), *lines, *rest]


def verdict(best: Candidate) -> str:
    """The recommendation in one sentence."""
    surface, place = best.surface, best.place
    if best.pays:
        return (
            f"Use {best.option} --gamma {best.gamma}: expect {_by_kind(surface, place)}; "
            f"{best.speedup:.2f}x over all."
        )
    width = best.gamma + 1
    one = best.profile.verifier(1)
    reasons = [f"a pass of {width} costs {best.profile.verifier(width) / one:.1f} single ones"]
    if best.profile.drafter is not None:
        reasons.append(f"a draft step {best.profile.drafter(1) / one:.2f}")
    return (
        f"Do not speculate with {best.name}: {', '.join(reasons)}, and gamma {best.gamma} would "
        f"give {best.speedup:.2f}x (--no-draft)."
    )


def by_kind(surface: Surface) -> list[str]:
    """The best gamma of each kind alone, a sentence per kind."""
    lines = []
    for kind, row in surface.speedups.items():
        place = best_place(row)
        gamma, speedup = surface.gammas[place], row[place]
        if speedup >= WORTH:
            lines.append(f"{kind}: gamma {gamma}, {speedup:.2f}x.")
        else:
            lines.append(f"{kind}: do not speculate (gamma {gamma} would give {speedup:.2f}x).")
    return lines


def _by_kind(surface: Surface, place: int) -> str:
    """Speed-ups by kind, the largest first; kinds with the same one share it."""
    groups: dict[str, list[str]] = {}
    for kind, row in sorted(surface.speedups.items(), key=lambda item: -item[1][place]):
        groups.setdefault(f"{row[place]:.1f}x", []).append(kind)
    return "; ".join(f"{speedup} on {_listed(kinds)}" for speedup, kinds in groups.items())


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _at_best(other: Candidate) -> str:
    if other.pays:
        return f"{other.speedup:.2f}x at gamma {other.gamma}"
    gain = "no sure gain" if other.speedup >= WORTH else "no gain"
    return f"{gain} ({other.speedup:.2f}x at gamma {other.gamma})"


def _exceptions(candidates: Sequence[Candidate]) -> list[str]:
    """Kinds of prompts on which something pays, although nothing does over all."""
    lines = []
    for each in candidates:
        found = []
        for kind, row in each.surface.speedups.items():
            place = best_place(row)
            if row[place] >= WORTH:
                found.append(f"{kind} ({row[place]:.2f}x at gamma {each.surface.gammas[place]})")
        if found:
            lines.append(f"It would pay on {', '.join(found)}: {each.option} --gamma auto.")
    return lines


def _flatter(best: Candidate) -> list[str]:
    """What the shipped table says of an F16 verifier, whose passes cost nearly alike."""
    profile = best.f16
    if profile is None:
        return []
    surface = model_surface(profile, best.surface.rates, best.overheads)
    place = best_place(surface.overall)
    if surface.overall[place] < FLATTER:
        return []
    gamma = surface.gammas[place]
    ratio = profile.verifier(gamma + 1) / profile.verifier(1)
    return [
        f"An F16 verifier would change that: by the shipped table its pass of {gamma + 1} costs "
        f"{ratio:.1f} single ones, so gamma {gamma} would give {surface.overall[place]:.1f}x of "
        "its own plain speed, which is lower."
    ]


def uncertainty(best: Candidate) -> list[str]:
    """A warning if another measurement might well have recommended something else."""
    if not best.resampled:
        return []
    own = best.place + 1 if best.pays else 0
    near = sum(abs(place - own) <= 1 for place in best.resampled)
    if near >= SURE * len(best.resampled):
        return []
    low, high = min(best.resampled), max(best.resampled)
    names = ["no draft", *(f"gamma {gamma}" for gamma in best.surface.gammas)]
    return [
        f"this machine is too noisy to tell {names[low]} from {names[high]}: "
        f"only {near / len(best.resampled):.0%} of resampled measurements agree within a step; "
        "close other programs, or raise --budget"
    ]
