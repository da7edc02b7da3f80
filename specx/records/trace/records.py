"""What a trace's lines hold; ``schema.json`` beside this file says the same to other tools.

A trace is a file of JSON lines. The first is a `FileStart`; each generation in it is a `Header`,
a `RoundRecord` for every verifier pass, and a `Summary`; a sweep that ended has a `BenchSummary`
as the last line. Every line names its `kind`. Probabilities
and uniforms are written to the last bit, so that every decision can be made again from the file;
entropies and margins, which float32 computed, to six digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import numpy as np
from msgspec import Meta

from specx.codec import Chance, Count, Gamma, Number, Rate, Seconds, Uniform
from specx.core.rules import Verdict
from specx.core.sampling import SamplingParams
from specx.drafters.base import Draft
from specx.errors import UsageError
from specx.session.decoding import Round, StopReason, Times
from specx.session.result import Estimated

__all__ = [
    "SCHEMA",
    "BenchSummary",
    "DraftToken",
    "Emitted",
    "Estimated",
    "FileStart",
    "Header",
    "Interval",
    "LastToken",
    "Line",
    "Origin",
    "RoundRecord",
    "SecondsByPart",
    "Summary",
    "SweepArm",
    "Uncertainty",
]

SCHEMA = 1
"""Version of the format; a reader refuses files of another one."""

Origin: TypeAlias = Literal["accepted", "correction", "bonus", "plain"]
"""The origin of a token: a draft that stayed; drawn after a rejection; drawn after a draft that
stayed as a whole; drawn where nothing had been drafted."""

Drawn: TypeAlias = Annotated[float, Meta(gt=0, le=1.000001)]
"""The probability of what was drawn, which is none of 0."""


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """A model's uncertainty of the next token, before any filter. Entropies are in nats.

    `normalised` ones are divided by ln(vocabulary): 0 is certain, 1 knows nothing.
    """

    entropy: Rate
    """Of the distribution at the run's temperature; 0 when greedy."""
    entropy_normalised: Rate
    raw_entropy: Rate
    """Of the softmax of the logits, as at temperature 1."""
    raw_entropy_normalised: Rate
    margin: Rate | None
    """Largest logit less the second largest, in nats: the log of how many times likelier the first
    choice is, at temperature 1. None where only one token is possible."""


@dataclass(frozen=True, kw_only=True)
class DraftToken:
    """One proposed token and what became of it."""

    id: Count
    text: str
    target_prob: Chance
    """P: the verifier's probability of it, filters included."""
    draft_prob: Drawn
    """Q: the probability that it was drawn with."""
    reach: Chance
    """`Rule.survival`, whose sum over the draft is the rule's expected acceptance."""
    chance: Chance
    """`Rule.chances`: the chance that this token passes its test."""
    uniform: Uniform
    """The token passes its test while this is below `chance`."""
    tested: bool
    """True where it was accepted or rejected; what follows a rejection was not tested."""
    accepted: bool
    overlap: Chance
    """sum min(P, Q) over the vocabulary: the chance that a draft here passes rule token."""
    target: Uncertainty | None
    draft: Uncertainty | None
    """None where the drafter is no model."""


@dataclass(frozen=True, kw_only=True)
class LastToken:
    """The token that the verifier drew to end the round."""

    id: Count
    text: str
    origin: Origin
    target_prob: Chance
    """P of it, at its position."""
    draft_prob: Chance | None
    """Q of it, where it replaced a draft."""
    uniform: Uniform
    """The number that drew it."""
    target: Uncertainty | None


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A token that entered the text."""

    id: Count
    piece: str
    """The text that became certain with it; a character of several tokens comes with the last."""
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class FileStart:
    """First line of a file."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)]
    specx: str
    created: str
    argv: list[str]
    kind: Literal["file"] = "file"


Interval: TypeAlias = Literal["bootstrap", "range"]
"""How the ends of a spread were found; under five prompts, a range of what was measured."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The settings and the prompt of a generation."""

    prompt: str
    prompt_ids: list[Count]
    """Template and special tokens included."""
    rule: Annotated[str, Meta(min_length=1)]
    gamma: Gamma | Literal["auto"]
    seed: Count
    sampling: SamplingParams
    n_vocab: Count
    """Width of the verifier's logits."""
    drafter: str | None
    labels: dict[str, Any] = field(default_factory=dict)
    """Whatever the caller tells generations apart by: an arm, a kind of prompt, a repetition."""
    settings: dict[str, Any] = field(default_factory=dict)
    """All settings, as ``--json`` prints them."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Models with their hashes, backends, versions, machine."""
    kind: Literal["header"] = "header"


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One verifier pass."""

    index: Count
    position: Count
    """Tokens of the text, prompt included, when the round began."""
    gamma: Gamma
    """Tokens proposed."""
    reason: str
    """Why that many."""
    drafter: str | None
    draft: list[DraftToken]
    expected: dict[str, Rate]
    """By rule: the tokens it would accept in expectation, from this round's arrays."""
    n_accepted: Count
    last: LastToken
    emitted: list[Emitted]
    """The tokens that entered the text: fewer than were decided where a stop cut them."""
    times: Times
    kind: Literal["round"] = "round"

    def __post_init__(self) -> None:
        """Refuse what no round can be."""
        if self.gamma != len(self.draft):
            raise UsageError(f"gamma is {self.gamma}, and {len(self.draft)} tokens were drafted")
        if self.n_accepted > len(self.draft):
            raise UsageError(
                f"n_accepted is {self.n_accepted}, and {len(self.draft)} tokens were drafted"
            )
        if len(self.emitted) > self.n_accepted + 1:
            raise UsageError(
                f"emitted holds {len(self.emitted)} tokens, and {self.n_accepted} were accepted"
            )
        for place, token in enumerate(self.emitted):
            self._check_origin(place, token.origin)

    def _check_origin(self, place: int, origin: Origin) -> None:
        if (origin == "accepted") != (place < self.n_accepted):
            raise UsageError(
                f"emitted[{place}].origin is {origin!r}, and {self.n_accepted} were accepted"
            )
        if origin == "correction" and place >= len(self.draft):
            raise UsageError(f"emitted[{place}].origin is {origin!r} of a draft that was not made")

    def as_round(self) -> Round:
        """The loop's own record of it, without the distributions."""
        ids = [token.id for token in self.draft]
        return Round(
            length=self.position,
            draft=Draft(ids),
            target=[],
            verdict=Verdict(tuple(ids[: self.n_accepted]), self.last.id),
            expected=self.expected,
            emitted=[token.id for token in self.emitted],
            pieces=[token.piece for token in self.emitted],
            times=self.times,
            uniforms=np.array([token.uniform for token in self.draft]),
            emitting=self.last.uniform,
            drafter=self.drafter or "",
            reason=self.reason,
        )


class SecondsByPart(TypedDict):
    """Seconds of a generation's decoding by part; `other` is what is left of `total`."""

    draft: Seconds
    verify: Seconds
    core: Seconds
    rollback: Seconds
    other: Number
    total: Seconds


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The results of a generation: the numbers of the footer and of ``--json``."""

    n_tokens: Count
    stop_reason: StopReason | None
    tok_s: Rate | None
    prefill_s: Seconds
    rounds: Count
    alpha: Rate | None
    kept: Rate | None
    tau: Rate | None
    expected_accepted: dict[str, Rate] | None
    time: SecondsByPart
    """Seconds by part, and in total."""
    trace_s: Seconds
    """Seconds of `other` that went into the trace itself; `specx bench` counts none."""
    rest: str
    """Text still held back when the last round ended."""
    estimated: Estimated | None = None
    """The speed against plain decoding that the run's costs let one expect."""
    prefill_draft_s: float | None = None
    """The drafter's part of `prefill_s`; None where only the sum was measured."""
    kind: Literal["summary"] = "summary"


class SweepInterval(TypedDict, total=False):
    """How a speed-up's low and high were found; 0.1.0 wrote none, and always resampled."""

    speedup_interval: Interval | None


class SweepKind(SweepInterval):
    """An arm on one kind of prompt."""

    tok_s: Rate | None
    speedup: Rate | None
    speedup_low: Rate | None
    speedup_high: Rate | None
    speedup_units: Count | None
    alpha: Rate | None
    kept: Rate | None
    tau: Rate | None


@dataclass(frozen=True, kw_only=True)
class SweepSettings(SamplingParams):
    """The settings of an arm; 0.1.0 did not write the fields with a default."""

    backend: str
    draft_backend: str
    gamma: Gamma | Literal["auto"]
    rule: str
    cached: bool = True
    draft: str | None = None
    """Drafters joined by a plus sign; the model if missing."""
    draft_temperature: Number | None = None
    draft_top_k: Count | None = None
    draft_top_p: Number | None = None
    draft_min_p: Number | None = None
    """The drafter's own sampler; a value of None means the verifier's."""
    entropy_stop: Chance | None = None
    draft_p_min: Chance | None = None


class SweepArm(SweepInterval):
    """The figures of an arm, as `specx.bench.summarise` makes them."""

    settings: dict[str, Any]
    """Those of `SweepSettings`, which a reader checks."""
    n_runs: Count
    n_tokens: Count
    tok_s: Rate | None
    tok_s_least: Rate | None
    tok_s_most: Rate | None
    speedup: Rate | None
    speedup_low: Rate | None
    speedup_high: Rate | None
    speedup_units: Count | None
    predicted: Rate | None
    predicted_textbook: Rate | None
    alpha: Rate | None
    kept: Rate | None
    tau: Rate | None
    alpha_by_position: list[Chance]
    accepted_lengths: dict[str, Count]
    expected_accepted: dict[str, Rate] | None
    time: SecondsByPart
    prefill_s: Seconds
    by_kind: dict[str, SweepKind]


class Warned(TypedDict):
    """A warning and what to do about it."""

    text: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class BenchSummary:
    """The results of a sweep: the object of ``specx bench --json`` without its single runs."""

    n: Count
    """Most tokens a run wrote."""
    planned: Count
    """Runs that each arm was to have."""
    complete: bool
    arms: list[SweepArm]
    """An entry an arm, as `specx.bench.summarise` makes them. Where the sweep was interrupted, the
    file holds generations that none of them counts."""
    profiles: dict[str, Any]
    """The measured cost curves that the predictions were made from, by backend."""
    warnings: list[Warned]
    kind: Literal["bench"] = "bench"


Line: TypeAlias = FileStart | Header | RoundRecord | Summary | BenchSummary
"""Any line of a trace."""
