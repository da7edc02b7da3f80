"""The meaning of a cost curve for speculation, in words."""

from __future__ import annotations

from statistics import median

from specx.schedule.costs.curve import Curve, Profile, acceptance_needed, uniform_speedup

__all__ = ["explain", "milliseconds", "stairs"]

STEP = 2.0
"""A step worth mentioning is this many times the curve's usual rise between adjacent widths."""
REACHED = 0.95
"""No drafter reaches an acceptance rate above this."""
NOISE = 0.02
ALPHAS = (0.5, 0.7, 0.9)
WORTH = 1.02


def explain(profile: Profile) -> list[str]:
    """Explain a profile in sentences, one per line."""
    gammas = range(1, profile.verifier.widths[-1])
    needed = {gamma: acceptance_needed(profile, gamma) for gamma in gammas}
    paying = {g: alpha for g, alpha in needed.items() if alpha is not None and alpha <= REACHED}
    lines = [_shape(profile.verifier), _drafter(profile)]
    if not paying:
        return [*lines, f"No gamma pays off below an acceptance rate of {REACHED}: decode plainly."]
    least = min(paying, key=lambda gamma: paying[gamma])
    lines.append(
        f"Speculation pays off from an acceptance rate of {paying[least]:.2f} (gamma {least}); "
        "below that, decode plainly (--no-draft)."
    )
    return lines + [_best_at(profile, alpha, list(gammas)) for alpha in ALPHAS]


def stairs(curve: Curve) -> list[int]:
    """Widths at which the cost rises much more than it usually does."""
    neighbours = [
        (width, curve(width) - curve(before))
        for before, width in zip(curve.widths, curve.widths[1:], strict=False)
        if width == before + 1
    ]
    usual = median([rise for _, rise in neighbours]) if neighbours else 0.0
    return [width for width, rise in neighbours if rise > STEP * max(usual, NOISE * curve(1))]


def _shape(curve: Curve) -> str:
    ratios = ", ".join(
        f"{width} cost {curve(width) / curve(1):.1f}"
        for width in (2, 4, 8, 16, 32)
        if width <= curve.widths[-1]
    )
    return f"Verifier: {_ms(curve(1))} for one token; in units of that, {ratios}. {_steps(curve)}"


def _steps(curve: Curve) -> str:
    found = stairs(curve)
    if not found:
        return "Its cost has no steps."
    below = [str(width - 2) for width in found if width > 2]
    text = f"Its cost steps up at widths {', '.join(map(str, found))}"
    return f"{text}; gamma {', '.join(below)} stays just below a step." if below else f"{text}."


def _drafter(profile: Profile) -> str:
    if profile.drafter is None:
        return "No drafter: the following assumes drafts that cost nothing (lookup)."
    one = profile.drafter(1)
    return (
        f"Drafter: {_ms(one)} per token, {one / profile.verifier(1):.2f} of the verifier's; two "
        f"tokens, as after a full acceptance, cost {profile.drafter(2) / one:.2f} times that."
    )


def _best_at(profile: Profile, alpha: float, gammas: list[int]) -> str:
    speedups = {gamma: uniform_speedup(profile, alpha, gamma) for gamma in gammas}
    best = max(speedups, key=lambda gamma: speedups[gamma])
    if speedups[best] < WORTH:
        return (
            f"At an acceptance rate of {alpha:.1f} no gamma is worth it ({speedups[best]:.2f}x at "
            "best)."
        )
    return f"At an acceptance rate of {alpha:.1f} the best gamma is {best}: {speedups[best]:.2f}x."


def _ms(seconds: float) -> str:
    return f"{milliseconds(seconds)} ms"


def milliseconds(seconds: float) -> str:
    """Format as milliseconds: three significant digits, or whole milliseconds from 100 ms."""
    return f"{1000 * seconds:.3g}" if seconds < 0.1 else f"{1000 * seconds:,.0f}"
