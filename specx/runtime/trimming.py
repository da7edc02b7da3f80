"""A model with fewer vocabulary entries: what a backend that can make one offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Trimmed", "Trimmer"]


@dataclass(frozen=True, kw_only=True)
class Trimmed:
    """A model that is ready to be written."""

    n_whole: int
    """Vocabulary entries of the whole model."""
    n_kept: int
    n_always: int
    """Those of them that any trimmed model keeps: special tokens, bytes."""
    coverage: float | None
    """The share of the texts' tokens that are kept entries; None without texts."""
    whole_bytes: int
    n_bytes: int
    chunks: Callable[[], Iterator[bytes]] = field(repr=False)
    """The content of the file, in order."""


class Trimmer(Protocol):
    """What a backend's factory may also be."""

    def trim(self, model: str, keep: int, texts: Iterable[str] | None) -> Trimmed:
        """`model` with at most `keep` vocabulary entries.

        Special and byte tokens stay; then come the tokens that `texts` use most, then those that
        come first in the tokenizer's own order. A token is kept only together with the tokens it
        is merged from, and only if merging can reach it.

        Raises
        ------
        UsageError
            If `keep` is too small or too large.
        ModelError
            If the model is missing, damaged, or of a kind that cannot be trimmed.
        """
