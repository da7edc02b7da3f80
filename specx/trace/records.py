"""What a trace's lines hold; ``schema.json`` beside this file says the same to other tools.

A trace is a file of JSON lines. The first is a `FileStart`; each generation in it is a `Header`,
a `RoundRecord` for every verifier pass, and a `Summary`; a sweep that ended has a `BenchSummary`
as the last line. Every line names its `kind`. Probabilities
and uniforms are written to the last bit, so that every decision can be made again from the file;
entropies and margins, which float32 computed, to six digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from specx.acceptance import Verdict
from specx.decoding import Round, StopReason, Times
from specx.drafting import Draft

__all__ = [
    "SCHEMA",
    "BenchSummary",
    "DraftToken",
    "Emitted",
    "FileStart",
    "Header",
    "LastToken",
    "Line",
    "Origin",
    "RoundRecord",
    "Summary",
    "Uncertainty",
]

SCHEMA = 1
"""Version of the format; a reader refuses files of another one."""

Origin: TypeAlias = Literal["accepted", "correction", "bonus", "plain"]
"""How a token came to be: a draft that stayed; drawn after a rejection; drawn after a draft that
stayed as a whole; drawn where nothing had been drafted."""


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """How sure a model was of the next token, before any filter. Entropies are in nats.

    `normalised` ones are divided by ln(vocabulary): 0 is certain, 1 knows nothing.
    """

    entropy: float
    """Of the distribution at the run's temperature; 0 when greedy."""
    entropy_normalised: float
    raw_entropy: float
    """Of the softmax of the logits, as at temperature 1."""
    raw_entropy_normalised: float
    margin: float | None
    """Largest logit less the second largest, in nats: the log of how many times likelier the first
    choice is, at temperature 1. None where only one token is possible."""


@dataclass(frozen=True, kw_only=True)
class DraftToken:
    """One proposed token and what became of it."""

    id: int
    text: str
    target_prob: float
    """P: the verifier's probability of it, filters included."""
    draft_prob: float
    """Q: the probability that it was drawn with."""
    reach: float
    """The rule's p_i, whose sum over the draft is the rule's expected acceptance: block's carried
    weight (arXiv 2403.10444), else the chance that this token and all before it pass."""
    chance: float
    """The rule's h_i: the chance that this token passes its test."""
    uniform: float
    """The token passes its test while this is below `chance`."""
    tested: bool
    """Whether its fate was decided; what follows a rejection was not tested."""
    accepted: bool
    overlap: float
    """sum min(P, Q) over the vocabulary: the chance that a draft here passes rule token."""
    target: Uncertainty | None
    draft: Uncertainty | None
    """None where the drafter is no model."""


@dataclass(frozen=True, kw_only=True)
class LastToken:
    """The token that the verifier drew to end the round."""

    id: int
    text: str
    origin: Origin
    target_prob: float
    """P of it, at its position."""
    draft_prob: float | None
    """Q of it, where it replaced a draft."""
    uniform: float
    """What drew it."""
    target: Uncertainty | None


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A token that entered the text."""

    id: int
    piece: str
    """The text that became certain with it; a character of several tokens comes with the last."""
    origin: Origin


@dataclass(frozen=True, kw_only=True)
class FileStart:
    """First line of a file."""

    schema: int
    specx: str
    created: str
    argv: list[str]
    kind: Literal["file"] = "file"


@dataclass(frozen=True, kw_only=True)
class Header:
    """What decided a generation."""

    prompt: str
    prompt_ids: list[int]
    """Template and special tokens included."""
    rule: str
    gamma: int | str
    seed: int
    sampling: dict[str, Any]
    """temperature, top_k, top_p, min_p."""
    n_vocab: int
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

    index: int
    position: int
    """Tokens of the text, prompt included, when the round began."""
    gamma: int
    """Tokens proposed."""
    reason: str
    """Why that many."""
    drafter: str | None
    draft: list[DraftToken]
    expected: dict[str, float]
    """By rule: the tokens it would accept in expectation, from this round's arrays."""
    n_accepted: int
    last: LastToken
    emitted: list[Emitted]
    """What entered the text: less than was decided where a stop cut it."""
    times: Times
    kind: Literal["round"] = "round"

    def as_round(self) -> Round:
        """The loop's own record of it, without the distributions."""
        return Round(
            length=self.position,
            draft=Draft([token.id for token in self.draft]),
            target=[],
            verdict=Verdict(self.n_accepted, self.last.id),
            expected=self.expected,
            emitted=[token.id for token in self.emitted],
            pieces=[token.piece for token in self.emitted],
            times=self.times,
            uniforms=np.array([token.uniform for token in self.draft]),
            emitting=self.last.uniform,
            drafter=self.drafter or "",
            reason=self.reason,
        )


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a generation came to: the numbers of the footer and of ``--json``."""

    n_tokens: int
    stop_reason: StopReason | None
    tok_s: float | None
    prefill_s: float
    rounds: int
    alpha: float | None
    kept: float | None
    tau: float | None
    expected_accepted: dict[str, float] | None
    time: dict[str, float]
    """Seconds by part, and in total."""
    trace_s: float
    """Seconds of `other` that went into the trace itself; `specx bench` counts none."""
    rest: str
    """Text still held back when the last round ended."""
    estimated: dict[str, Any] | None = None
    """The speed against plain decoding that the run's costs let one expect."""
    prefill_draft_s: float | None = None
    """The drafter's part of `prefill_s`; None where only the sum was measured."""
    kind: Literal["summary"] = "summary"


@dataclass(frozen=True, kw_only=True)
class BenchSummary:
    """What a sweep came to: the object of ``specx bench --json`` without its single runs."""

    n: int
    """Most tokens a run wrote."""
    planned: int
    """Runs that each arm was to have."""
    complete: bool
    arms: list[dict[str, Any]]
    """An entry an arm, as `specx.bench.summarise` makes them. Where the sweep was interrupted, the
    file holds generations that none of them counts."""
    profiles: dict[str, Any]
    """The measured cost curves that the predictions were made from, by backend."""
    warnings: list[dict[str, str]]
    kind: Literal["bench"] = "bench"


Line: TypeAlias = FileStart | Header | RoundRecord | Summary | BenchSummary
"""Any line of a trace."""
