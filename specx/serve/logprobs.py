"""Log-probabilities of a text's tokens, from the verifier's own rows: no temperature, no filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.core.sampling import Distribution
from specx.runtime.backend import Tokenizer

__all__ = ["Logprob", "logprobs_of"]

LEAST = -9999.0
"""For tokens that cannot occur, as JSON has no infinity; OpenAI's number."""


@dataclass(frozen=True)
class Logprob:
    """A token with its log-probability in nats, and the likeliest in its place."""

    data: bytes
    """The token's bytes, or the name of one that adds none."""
    logprob: float
    top: Sequence[Logprob] = ()

    @property
    def text(self) -> str:
        """The token as text; bytes that are not a whole character are marked."""
        return self.data.decode("utf-8", "replace")

    def record(self) -> dict[str, Any]:
        """JSON values, in the form of OpenAI's chat answers."""
        own = {"token": self.text, "logprob": self.logprob, "bytes": list(self.data)}
        return {**own, "top_logprobs": [each.record_alone() for each in self.top]}

    def record_alone(self) -> dict[str, Any]:
        """The same without alternatives."""
        return {"token": self.text, "logprob": self.logprob, "bytes": list(self.data)}


def logprobs_of(
    target: Sequence[Distribution],
    tokens: Sequence[int],
    n_alternatives: int,
    tokenizer: Tokenizer,
) -> list[Logprob]:
    """Log-probabilities of `tokens`, each under the row that it was drawn from.

    Parameters
    ----------
    target
        The round's distributions, which keep their logits.
    """
    found = []
    for row, token in zip(target, tokens, strict=False):
        assert row.logits is not None
        logs = log_softmax(row.logits)
        best = _largest(logs, n_alternatives)
        top = [_named(tokenizer, int(each), logs) for each in best]
        found.append(Logprob(_name(tokenizer, token), _finite(logs[token]), top))
    return found


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Natural logarithms of the probabilities at temperature 1, shape (n_vocab,)."""
    shifted = logits.astype(np.float64) - logits.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def _largest(logs: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Ids of the `n` largest, the largest first; of equal ones the lower id first."""
    n = min(n, len(logs))
    if not n:
        return np.empty(0, np.intp)
    edge = np.partition(logs, len(logs) - n)[len(logs) - n]
    ids = np.flatnonzero(logs >= edge)
    return ids[np.argsort(-logs[ids], kind="stable")[:n]]


def _named(tokenizer: Tokenizer, token: int, logs: NDArray[np.float64]) -> Logprob:
    return Logprob(_name(tokenizer, token), _finite(logs[token]))


def _name(tokenizer: Tokenizer, token: int) -> bytes:
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()


def _finite(value: float) -> float:
    return max(float(value), LEAST)
