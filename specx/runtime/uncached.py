"""The reference's baseline: a model whose KV cache is thrown away before every forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specx.runtime.backend import LogitsBackend, Rollback

__all__ = ["Uncached", "unwrapped"]


class Uncached(LogitsBackend):
    """Wraps any backend, and is one: each forward that wants logits feeds the whole text again."""

    rollback: Rollback = "native"

    def __init__(self, model: LogitsBackend) -> None:
        self.name = model.name
        self.n_vocab = model.n_vocab
        self.n_ctx = model.n_ctx
        self.tokenizer = model.tokenizer
        self.clock = model.clock
        self._model = model
        self._tokens: list[int] = []
        model.checkpoint()  # so that every model can return to its empty start

    @property
    def wrapped(self) -> LogitsBackend:
        """The model that it feeds."""
        return self._model

    @property
    def n_past(self) -> int:
        return len(self._tokens)

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        self._tokens += tokens
        if not n_logits:
            return np.empty((0, self.n_vocab), dtype=np.float32)
        self._model.truncate(0)
        return self._model.forward(self._tokens, n_logits)

    def truncate(self, n_past: int) -> None:
        del self._tokens[n_past:]

    def checkpoint(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return self._model.describe()

    def close(self) -> None:
        self._model.close()


def unwrapped(model: LogitsBackend) -> LogitsBackend:
    """The model itself, without an `Uncached` around it."""
    return model.wrapped if isinstance(model, Uncached) else model
