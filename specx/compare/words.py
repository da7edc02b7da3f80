"""The verdict of a comparison, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from specx.bench.speedup import INTERVALS
from specx.compare.findings import Findings, Outcome
from specx.compare.split import Acceptance, Costs, round_parts, speedup
from specx.schedule.costs.curve import acceptance_needed

__all__ = ["Verdict", "verdict"]

SMALL = math.log(1.05)
"""In nats; a smaller term is within the noise between two measurements of the same thing."""
EVEN = 1.02
"""Ratios this close to 1 count as 1."""
OTHER_MODEL, NEARLY = 0.1, 0.02
"""Mean total variation above which two verifiers count as different, and below which as equal."""
REACHED = 0.95
"""No drafter reaches an acceptance rate above this."""

Cause: TypeAlias = Literal["runtime", "algorithm", "both", "opposed", "neither", "unexplained"]

PARTS = {
    "pass": "a pass of {width} tokens costs {a} single passes on {A} and {b} on {B}",
    "draft": "drafting {gamma} tokens costs {a} single passes on {A} and {b} on {B}",
    "core": "sampling and the rule take {a} single passes per round on {A} and {b} on {B}",
    "rollback": "discarding rejected tokens costs {a} single passes on {A} and {b} on {B}",
}


@dataclass(frozen=True)
class Verdict:
    """The conclusion of a comparison."""

    cause: Cause
    responsible: str
    """The figures behind the cause, on both sides; empty if nothing differs."""
    words: str
    """The verdict as a paragraph."""


def verdict(found: Findings, verifiers: Mapping[str, Any] | None) -> Verdict:
    """State which side is faster, why, and what would have to change.

    Parameters
    ----------
    verifiers
        Means of the verifiers' agreement; None if both sides share one verifier.
    """
    cause = _cause(found)
    responsible = _responsible(found, cause)
    sentences = [
        _faster(found),
        _speedups(found),
        _because(found, cause, responsible),
        _same_model(verifiers),
        *(_gain(side, found.gamma) for side in (found.a, found.b)),
    ]
    return Verdict(cause, responsible, " ".join(filter(None, sentences)))


def _cause(found: Findings) -> Cause:
    split = found.split
    algorithm, runtime = split.algorithm, split.runtime
    larger, smaller = max(abs(algorithm), abs(runtime)), min(abs(algorithm), abs(runtime))
    if abs(split.rest) > max(larger, SMALL):
        return "unexplained"
    if larger < SMALL:
        return "neither"
    if smaller >= max(SMALL, larger / 2):
        return "both" if algorithm * runtime > 0 else "opposed"
    return "algorithm" if abs(algorithm) > abs(runtime) else "runtime"


def _faster(found: Findings) -> str:
    a, b = found.a, found.b
    fast, alone = found.speculative_ratio.value, found.plain_ratio.value
    together = _compared(a.name, b.name, fast, a.speculative, b.speculative)
    return (
        f"With speculation {together}; alone {_compared(a.name, b.name, alone, a.plain, b.plain)}."
    )


def _compared(a: str, b: str, ratio: float, rate_a: float, rate_b: float) -> str:
    """A comparison of two speeds, the faster first, in tokens per second."""
    if ratio < 1:
        a, b, ratio, rate_a, rate_b = b, a, 1 / ratio, rate_b, rate_a
    how = "as fast as" if ratio < EVEN else f"{_number(ratio)} times as fast as"
    return f"{a} is {how} {b} ({rate_a:.1f} against {rate_b:.1f} tok/s)"


def _speedups(found: Findings) -> str:
    shown = [
        f"{side.name} {side.speedup.value:.2f}x as fast ({INTERVALS[side.speedup.interval]} "
        f"{side.speedup.low:.2f} to {side.speedup.high:.2f})"
        for side in (found.a, found.b)
    ]
    return f"Speculation makes {shown[0]} and {shown[1]} as each is without it."


def _because(found: Findings, cause: Cause, responsible: str) -> str:
    split = found.split
    algorithm, runtime, rest = (f"{math.exp(value):.2f}" for value in split.terms().values())
    parts = f"algorithm {algorithm}, runtime {runtime}, measured over predicted {rest}"
    if cause == "neither":
        return (
            f"Neither acceptance nor cost differs by a factor of {math.exp(SMALL):.2f} or more "
            f"({parts}): both sides gain about the same."
        )
    if cause == "unexplained":
        return (
            f"The split explains little of the factor {math.exp(split.total):.2f} between the two "
            f"speed-ups: {parts}, and the last is the largest. Timings changed between the cost "
            "curve and the runs; repeat on a quiet machine, with a higher -r, before trusting "
            f"the other two.{_but(responsible)}"
        )
    return f"{_source(cause, found)} ({parts}): {responsible}.{_left_over(found)}"


def _left_over(found: Findings) -> str:
    """A sentence about a remainder that is smaller than the larger part, but not small."""
    split = found.split
    larger = max(abs(split.algorithm), abs(split.runtime))
    if abs(split.rest) < max(SMALL, larger / 2):
        return ""
    return f" A factor of {math.exp(split.rest):.2f} is explained by neither."


def _but(responsible: str) -> str:
    return f" What does differ: {responsible}." if responsible else ""


def _source(cause: Cause, found: Findings) -> str:
    split = found.split
    ratio = (
        f"The speed-up of {found.a.name} is {math.exp(split.total):.2f} times that of "
        f"{found.b.name}"
    )
    if abs(split.total) < SMALL and cause in ("algorithm", "runtime"):
        by = {"algorithm": "acceptance", "runtime": "cost"}[cause]
        return (
            f"{ratio}, almost the same, although {by}, the {cause}'s part, should make them differ"
        )
    if cause == "algorithm":
        return f"{ratio}, because of the algorithm (acceptance), not the runtime"
    if cause == "runtime":
        return f"{ratio}, because of the runtime (cost), not the algorithm"
    if cause == "both":
        return f"{ratio}, because of both acceptance and cost"
    by_acceptance, by_cost = (
        (found.a if part > 0 else found.b).name for part in (split.algorithm, split.runtime)
    )
    return f"{ratio}: acceptance favours {by_acceptance}, cost {by_cost}"


def _responsible(found: Findings, cause: Cause) -> str:
    """The figures of the parts that matter."""
    split, shown = found.split, []
    if cause in ("algorithm", "both", "opposed") or abs(split.algorithm) >= SMALL:
        shown.append(_accepting(found))
    if cause in ("runtime", "both", "opposed") or abs(split.runtime) >= SMALL:
        shown.append(_costing(found))
    if abs(split.runtime) > abs(split.algorithm):
        shown.reverse()
    return "; ".join(shown)


def _accepting(found: Findings) -> str:
    (a, rate_a), (b, rate_b) = (
        (side.acceptance.tokens, side.tally.alpha or 0.0) for side in (found.a, found.b)
    )
    return (
        f"a round yields {a:.2f} tokens on {found.a.name} and {b:.2f} on {found.b.name} "
        f"(acceptance rate {rate_a:.2f} and {rate_b:.2f})"
    )


def _costing(found: Findings) -> str:
    """The figures of the part of a round that accounts for most of the difference in cost."""
    a, b = (_parts(side, found.gamma) for side in (found.a, found.b))
    sign = math.copysign(1, sum(a.values()) - sum(b.values()))
    most = max(a, key=lambda part: sign * (a[part] - b[part]))
    one, other = a[most], b[most]
    if most == "pass":
        one, other = (_pass_ratio(side, found.gamma) for side in (found.a, found.b))
    return PARTS[most].format(
        gamma=found.gamma,
        width=found.gamma + 1,
        a=_number(one),
        b=_number(other),
        A=found.a.name,
        B=found.b.name,
    )


def _parts(side: Outcome, gamma: int) -> dict[str, float]:
    return round_parts(side.costs, gamma, side.acceptance.full)


def _pass_ratio(side: Outcome, gamma: int) -> float:
    """T(gamma + 1) / T(1)."""
    verifier = side.costs.profile.verifier
    return verifier(gamma + 1) / verifier(1)


def _same_model(verifiers: Mapping[str, Any] | None) -> str:
    if verifiers is None or verifiers["total_variation"] is None:
        return ""
    apart, top1 = verifiers["total_variation"], verifiers["top1"]
    figures = f"total variation {apart:.2g} on average, the same first choice in {top1:.1%}"
    if apart > OTHER_MODEL:
        return (
            f"The verifiers are not the same model ({figures}): they write different texts, which "
            "alone may change acceptance."
        )
    if apart > NEARLY:
        return f"The verifiers differ a little along one text ({figures})."
    return f"The verifiers agree along one text ({figures})."


def _gain(side: Outcome, gamma: int) -> str:
    """A sentence: speculation pays off on this side, or what would have to change."""
    if side.speedup.value > EVEN:
        doubt = (
            f", though the {INTERVALS[side.speedup.interval]} includes 1"
            if side.speedup.low <= 1
            else ""
        )
        return f"Speculation pays off on {side.name}{doubt}."
    if side.speedup.value >= 1 / EVEN:
        return f"It makes little difference on {side.name}: {_remedy(side, gamma)}."
    return f"It does not pay off on {side.name}: {_remedy(side, gamma)}."


def _remedy(side: Outcome, gamma: int) -> str:
    # The measured speed-up shows how far off the formula is on this side.
    off = side.speedup.value / side.predicted
    shorter = {g: off * _shorter(side.acceptance, side.costs, gamma, g) for g in range(1, gamma)}
    best = max(shorter, key=lambda g: shorter[g], default=0)
    if best and shorter[best] > EVEN:
        return f"judging by its costs, gamma {best} would give about {shorter[best]:.2f}x"
    needed = acceptance_needed(side.costs.profile, gamma)
    alpha = side.tally.alpha or 0.0
    if needed is not None and alpha < needed <= REACHED:
        return (
            f"gamma {gamma} needs an acceptance rate of {needed:.2f} to pay off, and it has "
            f"{alpha:.2f}: it needs a better or a cheaper drafter"
        )
    if needed is not None and needed <= alpha:
        return "judging by its costs it should gain: something else takes time in the runs"
    return (
        f"a round of gamma {gamma} costs {sum(_parts(side, gamma).values()):.1f} single tokens, so "
        "no realistic acceptance rate makes it pay off: it needs a flatter cost curve (F16 on a "
        "CPU), a smaller drafter or a smaller gamma"
    )


def _shorter(acceptance: Acceptance, costs: Costs, gamma: int, shorter: int) -> float:
    """The predicted speed-up for a smaller gamma, whose drafts are more often accepted in full."""
    rates = acceptance.by_position[:shorter]
    full = math.prod(rates) if len(rates) == shorter else 0.0
    core = costs.core * (2 * shorter + 1) / (2 * gamma + 1)
    fewer = Costs(costs.profile, core, costs.core_plain, costs.rollback)
    return speedup(Acceptance(rates, full), fewer, shorter)


def _number(value: float) -> str:
    """Format with two significant digits, but no exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
