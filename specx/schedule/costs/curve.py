"""The cost of a pass by its width, and the speed-up that follows from it.

A verifier's T(k), its time for k new tokens, is a staircase, because kernels work in tiles. It
differs tenfold between formats of one model, and decides whether speculation pays. The textbook
formula (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8) assumes that it is flat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta

from specx.codec import Count, Seconds, convert, read_json, refuse, shortened
from specx.errors import UsageError
from specx.runtime.backend import LogitsBackend

__all__ = [
    "Curve",
    "Profile",
    "ProfileRecord",
    "acceptance_needed",
    "curve_of",
    "expected_tokens",
    "measure_curve",
    "predicted_speedup",
    "profile_from",
    "profile_record",
    "read_profile",
    "round_seconds",
    "textbook_speedup",
    "time_pass",
    "uniform_speedup",
    "uniform_tokens",
]

FORMAT = 1
REMEDY = "specx bench --curve -o FILE.json writes a profile"

Width: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
Cost: TypeAlias = Annotated[float, Meta(ge=1e-12, le=1e12)]
"""Seconds of a pass, bounded so that the ratio of two is finite and not 0."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Seconds that a model takes for k new tokens on its cache; call it with k.

    Linear between measured widths; beyond the last one, the cost per token is constant.
    """

    model: str
    bytes: Count | None
    quantisation: str | None
    threads: Count | None
    n_past: Count
    """Tokens in the cache before each pass."""
    repeats: Count
    widths: tuple[Width, ...]
    seconds: tuple[Cost, ...]
    """Medians, one per width."""
    low: tuple[Cost, ...]
    high: tuple[Cost, ...]
    """Quartiles."""

    def __call__(self, width: float) -> float:
        last = self.widths[-1]
        if width > last:
            return self.seconds[-1] * width / last
        return float(np.interp(width, self.widths, self.seconds))


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a pair costs on one machine."""

    verifier: Curve
    drafter: Curve | None = None
    core: float = 0.0
    """Seconds of the sampling transform per row of logits."""

    def curves(self) -> dict[str, Curve]:
        """By role."""
        both = {"verifier": self.verifier, "drafter": self.drafter}
        return {role: curve for role, curve in both.items() if curve is not None}


def measure_curve(
    model: LogitsBackend,
    tokens: Sequence[int],
    widths: Iterable[int],
    repeats: int,
    *,
    rows: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Curve:
    """Time passes of each width after the same context, interleaved in a new order each time.

    Parameters
    ----------
    model
        Its cache is emptied, and left empty.
    tokens
        Real text: all but the tokens of the widest pass is the context.
    rows
        Rows of logits to request; by default all, as a verifier's passes need. A drafter needs one.
    report
        Called with the number of passes done.

    Raises
    ------
    UsageError
        If there are too few tokens for the widest pass and one before it, or if the clock does not
        advance.
    """
    widths = sorted(set(widths))
    n_past = len(tokens) - widths[-1]
    if n_past < 1:
        raise UsageError(f"{len(tokens)} tokens are too few to time passes of {widths[-1]}")
    model.truncate(0)
    model.forward(tokens[:n_past], n_logits=0)
    samples: dict[int, list[float]] = {width: [] for width in widths}
    order, done = np.random.default_rng(0), 0
    for repeat in range(repeats + 1):  # the first is a warm-up
        for width in order.permutation(widths).tolist():
            seconds = time_pass(model, tokens[n_past : n_past + width], rows)
            samples[width] += [seconds] if repeat else []
            done += 1
            report(done)
    model.truncate(0)
    return curve_of(model, n_past, samples)


def time_pass(model: LogitsBackend, tokens: Sequence[int], rows: int | None = None) -> float:
    """Seconds of one pass over `tokens`, which are then forgotten; `rows` as in `measure_curve`.

    After a pass of another width this includes the runtime's cost of the change (0.1 ms in
    llama.cpp).
    """
    n_past = model.n_past
    model.checkpoint()
    begun = model.clock()
    model.forward(tokens, n_logits=min(rows or len(tokens), len(tokens)))
    seconds = model.clock() - begun
    model.truncate(n_past)
    return seconds


def curve_of(model: LogitsBackend, n_past: int, samples: Mapping[int, Sequence[float]]) -> Curve:
    """The curve of seconds sampled by width; `repeats` is the fewest samples of one."""
    widths = sorted(samples)
    quartiles = [np.quantile(samples[width], [0.25, 0.5, 0.75]).tolist() for width in widths]
    low, seconds, high = (tuple(column) for column in zip(*quartiles, strict=True))
    if min(low) <= 0:
        raise UsageError(f"{model.name}: the clock did not advance, so no speed can be computed")
    about = model.describe()
    return Curve(
        model=model.name,
        bytes=_whole(about.get("bytes")),
        quantisation=_text(about.get("quantisation")),
        threads=_whole(about.get("threads")),
        n_past=n_past,
        repeats=min(map(len, samples.values())),
        widths=tuple(widths),
        seconds=seconds,
        low=low,
        high=high,
    )


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Tokens per round, 1 + sum_i prod_{j<=i} a_j, from the acceptance rate at each position."""
    return 1 + float(np.cumprod(acceptance).sum())


def uniform_tokens(alpha: float, gamma: int) -> float:
    """Tokens per round where every position accepts at the rate `alpha`."""
    return expected_tokens([alpha] * gamma)


def round_seconds(
    profile: Profile, gamma: int, *, full: float = 0.0, core: float = 0.0, rollback: float = 0.0
) -> float:
    """Seconds of a round of `gamma` proposals.

    Parameters
    ----------
    full
        Share of rounds that follow a full acceptance: the drafter's first step then takes two
        tokens.
    core, rollback
        Seconds per round of the core and of forgetting.

    Notes
    -----
    (g-1) t_d(1) + (1-A) t_d(1) + A t_d(2) + T(g+1) + rollback + core; without a drafter model
    t_d is 0.
    """
    draft, drafter = 0.0, profile.drafter
    if gamma and drafter is not None:
        draft = (gamma - full) * drafter(1) + full * drafter(2)
    return draft + profile.verifier(gamma + 1) + rollback + core


def predicted_speedup(
    profile: Profile,
    gamma: int,
    tokens: float,
    *,
    full: float = 0.0,
    core: float = 0.0,
    core_plain: float = 0.0,
    rollback: float = 0.0,
) -> float:
    """The speed-up over plain decoding that the measured costs give at `tokens` per round."""
    plain = profile.verifier(1) + core_plain
    return tokens * plain / round_seconds(profile, gamma, full=full, core=core, rollback=rollback)


def textbook_speedup(alpha: float, gamma: int, cost_ratio: float) -> float:
    """(1 - a^(g+1)) / ((1 - a)(g c + 1)), which takes T(g+1) = T(1).

    Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8.
    """
    return uniform_tokens(alpha, gamma) / (gamma * cost_ratio + 1)


def uniform_speedup(profile: Profile, alpha: float, gamma: int) -> float:
    """The predicted speed-up where every position accepts at the rate `alpha`."""
    return predicted_speedup(
        profile,
        gamma,
        uniform_tokens(alpha, gamma),
        full=alpha**gamma,
        core=(2 * gamma + 1) * profile.core,  # the drafter's rows, and the verifier's
        core_plain=profile.core,
    )


def acceptance_needed(profile: Profile, gamma: int) -> float | None:
    """The acceptance rate from which a fixed `gamma` is faster than none; None if no rate is."""
    if uniform_speedup(profile, 1, gamma) <= 1:
        return None
    if uniform_speedup(profile, 0, gamma) >= 1:
        return 0.0
    from scipy.optimize import brentq  # a third of a second, which a run need not wait for

    return float(brentq(lambda alpha: uniform_speedup(profile, alpha, gamma) - 1, 0, 1))


def profile_record(profile: Profile) -> dict[str, Any]:
    """`profile` as JSON values."""
    record: dict[str, Any] = {"specx_profile": FORMAT, "core": profile.core}
    return record | {role: asdict(curve) for role, curve in profile.curves().items()}


@dataclass(frozen=True, kw_only=True)
class ProfileRecord:
    """A `profile_record` as read."""

    core: Seconds
    verifier: Curve
    drafter: Curve | None = None

    def profile(self, place: str, remedy: str = REMEDY) -> Profile:
        """The profile, its curves checked.

        Raises
        ------
        UsageError
            If a curve is not valid; `place` begins the message.
        """
        found = Profile(verifier=self.verifier, drafter=self.drafter, core=self.core)
        for role, curve in found.curves().items():
            _check_curve(curve, role, place, remedy)
        return found


def read_profile(path: Path) -> Profile:
    """Read a file that holds a `profile_record` as JSON.

    Raises
    ------
    UsageError
        If the file cannot be read or is no profile.
    """
    record = read_json(path, "the profile", REMEDY)
    if not isinstance(record, dict) or "specx_profile" not in record:
        raise UsageError(f"{path} is not a profile; {REMEDY}")
    if record["specx_profile"] != FORMAT:
        shown = shortened(record["specx_profile"])
        raise UsageError(f"{path} is a profile of format {shown}; measure it")
    return profile_from(record, str(path))


def profile_from(record: Mapping[str, Any], place: str = "the profile") -> Profile:
    """The inverse of `profile_record`; `place` begins errors."""
    return convert(record, ProfileRecord, place, REMEDY).profile(place)


def _check_curve(curve: Curve, role: str, place: str, remedy: str) -> None:
    widths = list(curve.widths)
    if widths != sorted(set(widths)) or widths[:1] != [1]:
        refuse(place, f"{role}.widths", "widths must rise from 1", remedy)
    for name in ("seconds", "low", "high"):
        length = len(getattr(curve, name))
        if length != len(widths):
            refuse(place, f"{role}.{name}", f"{length} values of {len(widths)} widths", remedy)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
