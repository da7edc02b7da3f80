"""The value of each part of `--gamma auto`: the time without it over the time with it.

    scripts/ablate_auto.py           # all (minutes); writes docs/benchmarks/parts-of-auto.json
    scripts/ablate_auto.py margin    # only this part, printed

Every world is in virtual time, and fixed in advance: which drafted tokens would stay, their margins
and each pass's share of noise are drawn per place of the text, so that runs with and without a part
meet the same luck. A part is switched off by patching; the product has no flags for it. The table
in docs/benchmarks.md comes from the file (`scripts/benchmarks.py page`).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from worlds import (  # noqa: E402
    EASE,
    GPU,
    PAIRS,
    Copied,
    Recorded,
    auto,
    curve,
    profile,
)

from specx.drafters import lookup  # noqa: E402
from specx.schedule import Auto, Fixed  # noqa: E402
from specx.schedule import acceptance as acceptance_module  # noqa: E402
from specx.schedule import auto as auto_module  # noqa: E402
from specx.schedule import bank as bank_module  # noqa: E402
from specx.schedule import margin as margin_module  # noqa: E402
from specx.schedule.acceptance import Acceptance  # noqa: E402
from specx.schedule.bank import Bank, Parking  # noqa: E402
from specx.schedule.costs import live as live_module  # noqa: E402
from specx.schedule.costs.curve import Curve, Profile  # noqa: E402
from specx.schedule.costs.live import Costs as LiveCosts  # noqa: E402
from specx.schedule.margin import Margin  # noqa: E402
from specx.schedule.worth import Trial, worth_more  # noqa: E402

RECORD = ROOT / "docs" / "benchmarks" / "parts-of-auto.json"
GAMMAS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
NOISE = 0.08
"""Standard deviation of the logarithm of a pass's time."""
PROMPT = 64

Off = Sequence[tuple[object, str, object]]


# The worlds


@dataclass(frozen=True)
class Case:
    """One world, and the costs that `auto` is given for it."""

    group: str
    name: str
    world: Recorded
    n_tokens: int
    make: Callable[[], Auto]

    def seconds(self, schedule: Any) -> float:
        """Seconds per token, had no pass been disturbed."""
        run = self.world.run(schedule, self.n_tokens)
        return run.undisturbed / (run.length - PROMPT)


@dataclass
class Shifting(Recorded):
    """T(1) changes at some length by a factor, wider passes do not."""

    at: int = 0
    factor: float = 1.0

    def pass_seconds(self, length: int, width: int) -> float:
        factor = self.factor if width == 1 and length >= self.at else 1.0
        return factor * super().pass_seconds(length, width)


def slowness(n: int, seed: int, *, noise: float = NOISE, first: float = 1.33) -> Any:
    """Each pass off by some noise, the first one slow, as after a prompt."""
    factors = np.exp(noise * np.random.default_rng(1000 + seed).normal(size=n + 1))
    factors[0] *= first
    return [float(factor) for factor in factors]


def noisy(n: int, seed: int, **more: float) -> dict[str, Any]:
    """The `slow` of a world of `n` tokens."""
    factors = slowness(n, seed, **more)
    return {"slow": lambda length: factors[min(length - PROMPT, n)]}


def drawn(
    ease: Callable[[int], float], n: int, seed: int, *, spread: float = 1.5, tells: float = 2.0
) -> dict[str, Any]:
    """The drafts that would be accepted, and their margins, by position; see `worlds.World`."""
    rng = np.random.default_rng(seed)
    means = np.array([ease(place) for place in range(n)])[:, None]
    logits = means + spread * rng.normal(size=(n, 17))
    stays = np.cumprod(rng.random((n, 17)) < 1 / (1 + np.exp(-logits)), axis=1).sum(axis=1)
    margins = np.maximum(0, 4 + tells * logits + rng.normal(size=(n, 17)))
    return {"stays": stays.tolist(), "margins": (100 * margins).astype(int).tolist()}


def off_by(costs: Profile, first: float, rest: float = 1.0) -> Profile:
    """Costs that have T(1) wrong by a factor, and the others by another."""
    one, *more = costs.verifier.seconds
    seconds = [first * one, *(rest * second for second in more)]
    return Profile(verifier=curve(seconds, costs.verifier.widths), drafter=costs.drafter)


def still(ease: str | float) -> Callable[[int], float]:
    """The same ease all along."""
    value = EASE[ease] if isinstance(ease, str) else ease
    return lambda place: value


@cache
def cases() -> list[Case]:
    """All worlds."""
    makers = (
        recorded, steady, changing, long_parked, misleading, in_vain, wrong_costs, stalls, shifts,
        copied,
    )  # fmt: skip
    return [case for make in makers for case in make()]


def recorded() -> Iterator[Case]:
    """The recorded drafts of a real pair."""
    prompts = json.loads((ROOT / "tests" / "recorded_drafts.json").read_text())["prompts"]
    others = {
        "F16": "F16, another day", "F16, another day": "F16",
        "Q4_K_M": "kinder Q4_K_M", "kinder Q4_K_M": "Q4_K_M",
    }  # fmt: skip
    for name, other in others.items():
        costs, told = profile(name), profile(other)
        for place, (prompt, drafts) in enumerate(prompts.items()):
            where = f"{name}, {prompt}"
            for seed, off in enumerate((0.92, 1.0, 1.08)):
                believed = off_by(costs, off)
                world = Recorded(costs, still(0), **drafts, **noisy(96, 3 * place + seed))
                make = partial(auto, believed, live=True)
                yield Case("recorded", f"{where}, {off}", world, 96, make)
            for seed in range(2):
                world = Recorded(costs, still(0), **drafts, **noisy(96, 50 + 2 * place + seed))
                make = partial(auto, told, "table", live=True)
                yield Case("recorded, cold", f"{where}, {seed}", world, 96, make)
            world = Recorded(costs, still(0), **drafts)
            yield Case("recorded, seeded", where, world, 96, partial(auto, costs))


def steady() -> Iterator[Case]:
    """One acceptance rate all along."""
    for i, name in enumerate(("F16", "Q8_0", "kinder Q4_K_M", "flat", "stairs", "steep")):
        costs = profile(name)
        for j, ease in enumerate(EASE):
            seed = 10 * i + j
            drafts = drawn(still(ease), 300, seed)
            world = Recorded(costs, still(0), **drafts, **noisy(300, seed))
            make = partial(auto, costs, live=True)
            yield Case("steady", f"{name}, {ease}", world, 300, make)
            world = Recorded(costs, still(0), **drafts)
            yield Case("steady, seeded", f"{name}, {ease}", world, 300, partial(auto, costs))


def changing() -> Iterator[Case]:
    """Good and hopeless stretches in turn."""
    for i, name in enumerate(("flat", "F16", "stairs", "Q8_0")):
        for stretch in (100, 300):
            drafts = drawn(lambda n, m=stretch: (3.5, -3.0)[n // m % 2], 900, 100 + i)  # type: ignore[misc]
            world = Recorded(profile(name), still(0), **drafts, **noisy(900, i))
            make = partial(auto, profile(name), live=True)
            yield Case("changing", f"{name}, {stretch}", world, 900, make)


def long_parked() -> Iterator[Case]:
    """Hopeless for long, then good, when the drafter lags far behind; and the other way round."""
    for i, name in enumerate(("F16", "flat", "stairs", "Q8_0")):
        drafts = drawn(lambda n: -6.0 if n < 1000 else 3.5, 1800, 200 + i)
        world = Recorded(profile(name), still(0), **drafts, **noisy(1800, i))
        make = partial(auto, profile(name), live=True)
        yield Case("long parked", name, world, 1800, make)
        drafts = drawn(lambda n: 3.5 if n < 500 else -6.0, 1800, 250 + i)
        world = Recorded(profile(name), still(0), **drafts, **noisy(1800, i))
        yield Case("good, then not", name, world, 1800, make)


def misleading() -> Iterator[Case]:
    """Margins that are informative, uninformative, or misleading."""
    for i, name in enumerate(("flat", "stairs", "F16")):
        for tells in (0.0, -2.0):
            for ease in ("mid", "good"):
                drafts = drawn(still(ease), 400, 300 + i, tells=tells)
                world = Recorded(profile(name), still(0), **drafts)
                make = partial(auto, profile(name))
                yield Case("misleading margins", f"{name}, {ease}, {tells}", world, 400, make)


def in_vain() -> Iterator[Case]:
    """Short texts with a poor drafter."""
    for i, name in enumerate(PAIRS):
        for ease in ("hopeless", "poor"):
            for n in (64, 256):
                drafts = drawn(still(ease), n, 400 + i)
                world = Recorded(profile(name), still(0), **drafts, **noisy(n, i))
                make = partial(auto, profile(name), live=True)
                yield Case("in vain", f"{name}, {ease}, {n}", world, n, make)


def wrong_costs() -> Iterator[Case]:
    """Wrong costs given to `auto`."""
    true = profile("Q4_K_M")
    for told in ("flat", "steep", "gpu"):
        costs = GPU if told == "gpu" else profile(told)
        for source in ("profile", "table"):
            for i, ease in enumerate(("mid", "great")):
                drafts = drawn(still(ease), 600, 500 + i)
                world = Recorded(true, still(0), **drafts, **noisy(600, i))
                make = partial(auto, costs, source, live=True)
                yield Case("wrong costs", f"{told}, {source}, {ease}", world, 600, make)
    for i, ease in enumerate(("hopeless", "mid", "great")):
        drafts = drawn(still(ease), 600, 510 + i)
        for factor in (0.7, 1.3):
            world = Recorded(profile("stairs"), still(0), **drafts, **noisy(600, i))
            make = partial(auto, off_by(profile("stairs"), 1.0, factor), live=True)
            yield Case("wrong costs", f"stairs, {factor}, {ease}", world, 600, make)
        world = Recorded(profile("flat"), still(0), **drafts, **noisy(600, i))
        make = partial(auto, true, "table", live=True)
        yield Case("wrong costs", f"all dear, table, {ease}", world, 600, make)


def stalls() -> Iterator[Case]:
    """Single passes that take twenty times as long, and a machine that slows down for good."""
    for i, name in enumerate(("F16", "flat")):
        for j, ease in enumerate(("hopeless", "mid", "great")):
            drafts = drawn(still(ease), 400, 600 + 10 * i + j)
            for kind in ("stalls", "first pass", "throttling"):
                factors = np.array(slowness(400, j))
                if kind == "stalls":
                    rng = np.random.default_rng(i + j)
                    factors[rng.choice(400, 6, replace=False)] *= 20
                elif kind == "first pass":
                    factors[1] *= 20
                else:
                    factors[150:] *= 1.8
                world = Stalled(profile(name), still(0), **drafts, factors=factors.tolist())
                make = partial(auto, profile(name), live=True)
                yield Case("stalls", f"{name}, {ease}, {kind}", world, 400, make)


@dataclass
class Stalled(Recorded):
    """Times by place of the text."""

    factors: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.slow = lambda length: self.factors[min(length - PROMPT, len(self.factors) - 1)]


def shifts() -> Iterator[Case]:
    """T(1) alone changes in the midst of the text."""
    for i, name in enumerate(("F16", "kinder Q4_K_M", "Q8_0")):
        for ease in ("mid", "great"):
            drafts = drawn(still(ease), 600, 700 + i)
            for factor in (0.6, 1.5):
                world = Shifting(
                    profile(name), still(0), **drafts, **noisy(600, i), at=150, factor=factor
                )
                make = partial(auto, profile(name), live=True)
                yield Case("changed T(1)", f"{name}, {ease}, {factor}", world, 600, make)


def copied() -> Iterator[Case]:
    """Texts that repeat themselves, drafted by lookup alone and beside a model."""
    for i, kind in enumerate(("copies much", "copies little", "phrases")):
        tokens = text(kind, 440, i)
        for name in ("F16", "Q4_K_M", "kinder Q4_K_M", "stairs"):
            for with_model in (False, True):
                ease = ("mid", "good", "poor")[i]
                world = Copied(
                    profile(name), still(0), **drawn(still(ease), 400, 800 + i),
                    **noisy(400, i), tokens=tokens, with_model=with_model,
                )  # fmt: skip
                group = "lookup and model" if with_model else "lookup"
                make = partial(auto, profile(name), live=True)
                yield Case(group, f"{name}, {kind}", world, 400, make)


def text(kind: str, n: int, seed: int) -> list[int]:
    """Tokens that copy earlier spans of the text, or phrases that continue differently."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, 400, rng.integers(4, 8)).tolist() for _ in range(30)]
    chance, length = {"copies much": (0.08, 40), "copies little": (0.02, 12)}.get(kind, (0, 0))
    tokens: list[int] = rng.integers(0, 400, 64).tolist()
    while len(tokens) < n + PROMPT:
        if kind == "phrases":
            tokens += [*phrases[rng.integers(30)], *rng.integers(0, 400, 3).tolist()]
        elif rng.random() < chance:
            at = int(rng.integers(0, len(tokens) - 10))
            tokens += tokens[at : at + int(rng.geometric(1 / length))]
        else:
            tokens.append(int(rng.integers(0, 400)))
    return tokens


# The parts


def _one_step(alive: float, rates: Sequence[float], costs: Sequence[float], **more: float) -> bool:
    return worth_more(alive, rates[:1], costs, **more)


def _asked_after(self: Auto, now: Any, k: int, paid: float, rate: float | None) -> bool:
    return rate is None or WORTH(self, now, k, paid, rate)


def _tried(self: Auto, side: Any, outlook: Any, drafter: Any, tokens: Any, purse: float) -> object:
    side.parking.looked()
    limit = self._most(outlook, 10**6)
    return self._try(side, outlook, drafter, limit, purse)


def _endless(self: Bank, decided: int, spent: float) -> None:
    self.balance = 1e9


def _without_guesses(self: Auto, outcome: Any) -> None:
    self._guesses = []
    LEARN(self, outcome)


def _measured_at_once(self: Auto) -> None:
    BEGIN(self)
    self._measuring = True


def _apart(self: Acceptance) -> tuple[list[float], list[float]]:
    """`Acceptance._estimate` of classes that tell nothing about each other."""
    rates, known = [], []
    for prior, stayed, seen in zip(self._prior, self._stayed, self._seen, strict=True):
        weight = acceptance_module.WEIGHT / (1 + seen / acceptance_module.FADES)
        rate = (stayed + weight * acceptance_module.sigmoid(prior)) / (seen + weight)
        rates.append(min(rate, acceptance_module.SUREST))
        known.append(weight + seen)
    return rates, known


def _believed_alike(self: Any, off: float, clamps: float = 1.0) -> float:
    return float(min(max(off, -live_module.CLAMP * clamps), live_module.CLAMP * clamps))


WORTH, LEARN, BEGIN = Auto._worth, Auto.learn, Auto.begin
NOTHING: Any = lambda self, *given, **named: None
TRUE, FALSE = property(lambda self: True), lambda self, *given: False
ALWAYS: Any = lambda self, *given: True
INF = math.inf

PARTS: dict[str, Off] = {
    "margin": [(Margin, "predict", lambda self, rate, margin: rate)],
    "margin: only where it predicts better": [(Margin, "trusted", TRUE)],
    "margin: believed from the start": [(margin_module, "ERRORS", (1.0, 1.0))],
    "margin: fades while parked": [(Margin, "age", NOTHING)],
    "go on: looks over all lengths": [(auto_module, "worth_more", _one_step)],
    "go on: asked before each step": [(Auto, "_worth", _asked_after)],
    "full acceptance's cost": [(Auto, "_full", lambda self, side: 0.0)],
    "PAYS": [(auto_module, "PAYS", 1.0)],
    "look back": [(Auto, "_look_back", _tried), (Auto, "_hindsight", lambda self, outlook: 0)],
    "look back: at four tokens at least": [(auto_module, "LEAST_HINDSIGHT", 1)],
    "restart windows": [(auto_module, "WINDOWS", ())],
    "try at once (NEAR)": [(auto_module, "NEAR", -1)],
    "try: cheapest label": [
        (auto_module, "cheapest_trial", lambda r, c: Trial(1, c[1] / c[0] - 1 - r[0]))
    ],
    "try: hope of the unseen": [(Acceptance, "hopeful_rates", Acceptance.rates)],
    "try: MOST_HOPED": [
        (acceptance_module, "MOST_HOPED", 0.999), (auto_module, "MOST_HOPED", 0.999)
    ],
    "try: not where nothing could pay": [(Auto, "_could_pay", ALWAYS)],
    "try: not before T(1) is known": [(LiveCosts, "plain_known", TRUE)],
    "bank": [(Bank, "book", _endless)],
    "bank: first sum": [
        (auto_module, "Bank", partial(Bank, 0.0, 0.0)), (auto_module, "START", 0.0)
    ],
    "bank: cap": [(bank_module, "CAP", INF)],
    "bank: catching up must be afforded": [(Bank, "affords", ALWAYS)],
    "bank: first sum only if promising": [(auto_module, "PROMISING", 0.0)],
    "parking": [(Parking, "over", TRUE)],
    "parking: intervals double": [(Parking, "LAST", Parking.FIRST)],
    "parking: labels fade": [(auto_module, "FADE", 1.0)],
    "catching up is a cost": [(Auto, "_catching_up", lambda self, side, outlook: 0.0)],
    "catching up: SPREAD": [(auto_module, "SPREAD", 1)],
    "first plain rounds": [(auto_module, "FIRST_PLAIN", {"profile": 0, "table": 0})],
    "first pass not measured": [(Auto, "begin", _measured_at_once)],
    "stalls not charged": [(auto_module, "STALL", INF), (auto_module, "STALL_UNSEEN", INF)],
    "stalls: unseen widths apart": [(auto_module, "STALL_UNSEEN", auto_module.STALL)],
    "costs learned": [(LiveCosts, "learn_verify", NOTHING), (LiveCosts, "learn_draft", NOTHING)],
    "costs: drafter's learned": [(LiveCosts, "learn_draft", NOTHING)],
    "costs: outliers clamped": [(live_module, "CLAMP", INF)],
    "costs: what goes on is believed more": [(live_module._Believed, "__call__", _believed_alike)],
    "costs: fade while parked": [(live_module, "FADE", 0.0)],
    "costs: pace forgets": [(live_module, "PACE", 0.0)],
    "costs: errors of a width forget": [(live_module, "SLOW", 0.0)],
    "costs: a profile is worth a sample": [
        (live_module, "TRUST", {"profile": 0.0, "table": 0.0})
    ],
    "acceptance: forgets": [(acceptance_module, "RATE", 0.0)],
    "acceptance: prior fades": [(acceptance_module, "FADES", INF)],
    "acceptance: classes follow those before": [(Acceptance, "_estimate", _apart)],
    "acceptance: SUREST": [(acceptance_module, "SUREST", 1.0)],
    "lookup: labels for free": [(Auto, "learn", _without_guesses)],
    "lookup: cautious rates": [(Acceptance, "cautious_rates", Acceptance.rates)],
    "lookup: prior by length": [(lookup.LookupDrafter, "prior", (0.65,) * 8)],
    "lookup: classes by length": [
        (lookup.LookupDrafter, "prior", (0.65,)), (lookup, "CLASSES", [0] * 80)
    ],
}  # fmt: skip


# Measuring


def seconds_without(part: str) -> list[float]:
    """Seconds per token in each case."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(Curve, "__call__", cache(Curve.__call__)))
        for thing, name, value in PARTS.get(part, ()):
            stack.enter_context(patch.object(thing, name, value))
        return [case.seconds(case.make()) for case in cases()]


def best_fixed() -> list[float]:
    """Seconds per token of the best fixed gamma in each case."""
    return [min(case.seconds(Fixed(gamma)) for gamma in GAMMAS) for case in cases()]


def summary(ratios: Sequence[float]) -> dict[str, Any]:
    """By group: the mean ratio, its standard error, and the worst case."""
    found: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[tuple[float, str]]] = {}
    for case, ratio in zip(cases(), ratios, strict=True):
        groups.setdefault(case.group, []).append((ratio, case.name))
    for group, pairs in groups.items():
        values = np.array([ratio for ratio, _ in pairs])
        worst, where = max(pairs)
        found[group] = {
            "mean": round(float(values.mean()), 4),
            "error": round(float(values.std(ddof=1) / np.sqrt(len(values))), 4),
            "worst": round(worst, 4),
            "worst_case": where,
            "n": len(values),
        }
    return found


def main() -> None:
    """Run and write, or print one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="parts to switch off; all by default")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    cases()  # before the processes fork
    record: dict[str, Any] = {"best_fixed": {}, "parts": {}}
    with Pool(options.processes) as pool:
        found = pool.imap(seconds_without, ["", *parts])
        fixed = pool.apply_async(best_fixed)
        whole = next(found)
        for part, seconds in zip(parts, found, strict=True):
            record["parts"][part] = summary(np.divide(seconds, whole).tolist())
            means = (f"{name} {group['mean']:.3f}" for name, group in record["parts"][part].items())
            print(f"{part}: {', '.join(means)}", file=sys.stderr, flush=True)
        record["best_fixed"] = summary(np.divide(whole, fixed.get()).tolist())
    if options.parts:
        print(json.dumps(record, indent=1))
    else:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
