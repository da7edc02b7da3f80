"""From traces to arrays: one entry per tested token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.errors import UsageError
from specx.records.trace import DraftToken, Trace
from studies.alike import require_alike

__all__ = ["PREDICTORS", "Observations", "observe"]

PREDICTORS = {
    "draft_entropy": "the drafter's entropy, nats, temperature 1",
    "target_entropy": "the verifier's entropy, nats, temperature 1",
    "draft_entropy_tempered": "the drafter's entropy, nats, at the run's temperature",
    "target_entropy_tempered": "the verifier's entropy, nats, at the run's temperature",
    "draft_margin": "the drafter's largest logit less its second, nats",
}
"""Numbers known before a token is tested, which could predict the outcome."""


@dataclass(frozen=True)
class Observations:
    """Arrays of one length, an entry per drafted token."""

    prompt: NDArray[np.intp]
    """Number of the prompt; tokens of one prompt are not independent."""
    kind: NDArray[np.str_]
    position: NDArray[np.intp]
    """Place in the draft, from 1."""
    accepted: NDArray[np.bool_]
    overlap: NDArray[np.float64]
    """sum min(P, Q): the chance of acceptance at that position, without the noise of the draw."""
    predictors: dict[str, NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.accepted)

    def take(self, where: NDArray[Any]) -> Observations:
        """The entries at `where`, an index array or a mask."""
        return Observations(
            self.prompt[where],
            self.kind[where],
            self.position[where],
            self.accepted[where],
            self.overlap[where],
            {name: values[where] for name, values in self.predictors.items()},
        )


def observe(traces: Sequence[Trace], *, tested_only: bool = True) -> Observations:
    """The drafted tokens of `traces`; each trace counts as a prompt.

    Parameters
    ----------
    tested_only
        False adds the tokens after a rejection, labelled as rejected. They were never tested: the
        labels are wrong, and serve to show the bias they cause.

    Raises
    ------
    UsageError
        If a trace is not of rule token, traces are of different pairs or samplers, or no token was
        tested.
    """
    for trace in traces:
        if trace.header.rule != "token":
            raise UsageError(
                f"{trace.path} ran under rule {trace.header.rule}; a study needs rule token, which "
                "tests each token alone"
            )
    require_alike(traces)
    rows = [
        (number, kind_of(trace), place, token)
        for number, trace in enumerate(traces)
        for place, token in _tokens(trace, tested_only)
    ]
    if not rows:
        raise UsageError("no drafted token was tested in these traces; run with a drafter")
    tokens = [token for *_, token in rows]
    return Observations(
        np.array([number for number, *_ in rows]),
        np.array([kind for _, kind, *_ in rows]),
        np.array([place for _, _, place, _ in rows]),
        np.array([token.accepted for token in tokens]),
        np.array([token.overlap for token in tokens]),
        _predictors(tokens),
    )


def kind_of(trace: Trace) -> str:
    """The kind of the trace's prompt; ``own`` where it has no label."""
    return str(trace.header.labels.get("kind", "own"))


def _tokens(trace: Trace, tested_only: bool) -> Iterator[tuple[int, DraftToken]]:
    for done in trace.rounds:
        for place, token in enumerate(done.draft, 1):
            measured = token.draft is not None and token.target is not None
            if (token.tested or not tested_only) and measured:
                yield place, token


def _predictors(tokens: Iterable[DraftToken]) -> dict[str, NDArray[np.float64]]:
    rows = [
        (
            token.draft.raw_entropy,
            token.target.raw_entropy,
            token.draft.entropy,
            token.target.entropy,
            np.inf if token.draft.margin is None else token.draft.margin,
        )
        for token in tokens
        if token.draft is not None and token.target is not None
    ]
    return dict(zip(PREDICTORS, np.array(rows, dtype=np.float64).T, strict=True))
