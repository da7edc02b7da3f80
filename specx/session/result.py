"""The result of a generation, as used by the footer, ``--json``, traces, benchmarks and reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypedDict

from specx.codec import Rate
from specx.schedule.costs.live import Costs
from specx.session.decoding import StopReason
from specx.session.settings import Settings
from specx.session.tally import Choices, Tally

__all__ = ["Estimated", "Result", "estimate"]

LEAST_PLAIN_ROUNDS = 8


class Estimated(TypedDict):
    """The estimated speed-up over plain decoding."""

    plain_tok_s: Rate
    ratio: Rate
    by: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a generation, at its end or so far."""

    text: str
    tokens: list[int]
    """The emitted tokens."""
    n_prompt: int
    n_reused: int
    """Tokens of the prompt that the verifier's cache already held."""
    stop_reason: StopReason | None
    settings: Settings
    prefill_s: float
    """Seconds of reading the prompt, drafters included."""
    prefill_draft_s: float | None
    """The drafters' part of it; None where it is not known."""
    tally: Tally
    choices: Choices
    observed_s: float
    """Seconds that observers took, counted in the tally's total."""
    rest: str
    """The end of the text, held back until the generation ended."""
    estimated: Estimated | None

    @property
    def n_tokens(self) -> int:
        """Emitted tokens."""
        return self.tally.n_tokens

    @property
    def tok_s(self) -> float | None:
        """Emitted tokens per second of decoding; None when no time passed."""
        return self.tally.tok_s

    @property
    def rounds(self) -> int:
        """Verifier passes."""
        return self.tally.rounds

    @property
    def alpha(self) -> float | None:
        """Acceptance rate: accepted / tested; None when nothing was tested."""
        return self.tally.alpha

    @property
    def tau(self) -> float | None:
        """Tokens decided per verifier pass; None without a round."""
        return self.tally.tau

    @property
    def complete(self) -> bool:
        """False where the generation was broken off."""
        return self.stop_reason not in (None, "interrupted", "failed")

    def unobserved(self) -> Result:
        """The same without the time that observers took."""
        total = self.tally.total - self.observed_s
        return replace(self, tally=replace(self.tally, total=total), observed_s=0.0)

    def record(self) -> dict[str, Any]:
        """JSON values, under the names of ``specx run --json``."""
        return {"text": self.text, "tokens": self.tokens, **self.figures(), **self.choices.record()}

    def figures(self) -> dict[str, Any]:
        """The numbers that ``--json`` and the summary of a trace share."""
        tally = self.tally
        return {
            "n_tokens": tally.n_tokens,
            "stop_reason": self.stop_reason,
            "tok_s": tally.tok_s,
            "prefill_s": self.prefill_s,
            "prefill_draft_s": self.prefill_draft_s,
            "rounds": tally.rounds,
            "alpha": tally.alpha,
            "kept": tally.kept,
            "tau": tally.tau,
            "expected_accepted": tally.expected_a_round(),
            "time": tally.time(),
            "estimated": self.estimated,
        }


def estimate(tally: Tally, choices: Choices, costs: Costs | None) -> Estimated | None:
    """Estimate the speed-up over plain decoding, from plain rounds or from the costs."""
    if not tally.tok_s or not choices.speculating.rounds:
        return None
    if choices.plain.rounds >= LEAST_PLAIN_ROUNDS and choices.plain.seconds > 0:
        plain, by = choices.plain.rounds / choices.plain.seconds, "this run's plain rounds"
    elif costs is not None and (costs.live or costs.source == "profile"):
        plain = 1 / costs.plain
        by = "live timings" if costs.live else "the profile"
    else:
        return None
    return {"plain_tok_s": plain, "ratio": tally.tok_s / plain, "by": by}
