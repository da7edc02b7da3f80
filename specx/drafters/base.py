"""What a drafter is: it proposes tokens, each with the distribution it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specx.core.sampling import Distribution, SamplingParams
from specx.runtime.backend import LogitsBackend

__all__ = [
    "POSITIONS",
    "Draft",
    "Drafter",
    "DrafterFactory",
    "GoOn",
    "Models",
    "Outlook",
    "TextSettings",
]

POSITIONS = range(16)
"""The classes of a drafter whose acceptance depends on a token's position in the draft."""

GoOn: TypeAlias = "Callable[[int, NDArray[np.float32] | None], bool]"
"""Asked after k draws whether to go on: with None before the drafter's next step is paid for, then
with the logits that draw k + 1 would be made from. It is asked *before* the draw, since dropping a
token for what it turned out to be would change the distribution of the text."""


@dataclass
class Draft:
    """Proposed tokens and the distributions they were really drawn from, both of length g."""

    ids: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
    core_seconds: float = 0.0
    """Time that went into the sampling transform, not into the model."""
    hindsight: list[float] = field(default_factory=list)
    """The chances it would have given the text's last tokens, read off its catching up."""
    ended: str = ""
    """Why it is shorter than its limit, unless the schedule ended it."""
    parents: list[int] | None = None
    """Of a tree: for each token the place in `ids` of the one it follows, -1 for the text's last.
    None is a path: each token follows the one before it."""


@dataclass(frozen=True)
class Outlook:
    """What is known of a draft before it is made."""

    limit: int
    """Most tokens that could be proposed."""
    lag: int = 0
    """Tokens of the text that must be fed before the last one."""
    classes: Sequence[int] = POSITIONS
    """The class of each proposal, an index into `Drafter.prior`: tokens of one class are expected
    to be accepted equally often. `--gamma auto` proposes no more tokens than are classed here."""
    guess: int | None = None
    """The first proposal, if it is known before the draft. The text then shows whether it would
    have been right, so that nothing has to be proposed to find out."""
    bound: str = "no room"
    """What allows no more than `limit`."""
    unread: int = 0
    """Tokens of the prompt that it would read first. They are no lag: whoever drafts reads the
    prompt once."""


@dataclass(frozen=True)
class Models:
    """What a drafter may draft with, and for."""

    verifier: LogitsBackend
    drafter: LogitsBackend | None
    masked: NDArray[np.intp]
    """Ids that the verifier cannot emit."""
    masked_draft: NDArray[np.intp]
    """Ids that the drafter's model must not propose."""
    acceptance: Sequence[float] = ()
    """The drafter's measured acceptance rate by position, if known: see `Drafter.prior`."""


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """What may change from one text of a session to the next."""

    sampling: SamplingParams
    """Settings of the drafter's own draws."""
    n_prompt: int = 1
    """Tokens of the text that were given."""
    eog_ids: frozenset[int]
    """Tokens that end the text, after which nothing is worth proposing. They stay in the draft."""
    keep_logits: bool = False
    """Whether each distribution of a draft keeps the logits it was made of."""
    alone: bool = False
    """Whether drafts may depend on this text alone, not on the texts before it, so that a seed
    reproduces them."""


class Drafter(Protocol):
    """Proposes tokens after a text; knows nothing of how they are judged.

    One that is a `specx.runtime.backend.Parkable` too is parked with its text; another reads the
    text again.
    """

    name: str
    kind: str
    """What it is called on the command line: ``model`` or ``lookup``."""
    free: bool
    """Whether its proposals cost no time; if not, each costs a step of the draft model."""

    @property
    def prior(self) -> Sequence[float]:
        """By class, the acceptance rate to assume before any proposal has been tested.

        Of a token given that all before it in the draft were accepted; see `Outlook.classes`.
        """

    @property
    def n_past(self) -> int:
        """Tokens of the text that it holds."""

    @property
    def n_ctx(self) -> int:
        """Tokens that it can hold."""

    def begin(self, settings: TextSettings) -> None:
        """Draft for a text under `settings` from now on; what is held of the last one stays."""

    def feed(self, tokens: Sequence[int], size: int, report: Callable[[int], None]) -> None:
        """Read a prompt, all but its last token, in slices of `size`; see `specx.runtime.prefill`.

        Called once at the beginning of a text, unless the first draft comes later: then with the
        first token alone at the beginning, and with the whole prompt before that draft. A drafter
        that reads the text only when it proposes does nothing.
        """

    def outlook(self, tokens: Sequence[int]) -> Outlook:
        """What a draft after `tokens` would be like."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        """At most `limit` tokens to follow `tokens`; feeds itself what it lacks of them.

        `hindsight` is how many of the text's last tokens to look back at, if it lacks them.
        """

    def truncate(self, n_past: int) -> None:
        """Forget everything from absolute position `n_past` on."""

    def restart(self, n_past: int) -> None:
        """Forget everything, and read the text from absolute position `n_past` on."""


@runtime_checkable
class DrafterFactory(Protocol):
    """What an entry point of the group ``specx.drafters`` names."""

    name: str
    """What it is called on the command line; no comma."""
    needs_model: bool
    """Whether it drafts with a model of its own (-md)."""

    def make(self, models: Models) -> Drafter:
        """A drafter for one session."""
