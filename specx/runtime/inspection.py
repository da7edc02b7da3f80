"""What the files of a model say of it, read without its weights or its runtime's library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specx.runtime.backend import LoadOptions
from specx.runtime.memory import MemoryNeeded
from specx.runtime.vocabulary import Tokens

__all__ = ["Inspection", "Inspector", "SpecialTokens"]


class SpecialTokens(Tokens, Protocol):
    """The tokens of a model, and which of them its texts begin and end with."""

    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def adds_bos(self) -> bool:
        """True if BOS is put before a text."""

    @property
    def adds_eos(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A model, as its files describe it. Texts are the files' own: untrusted."""

    path: Path
    title: str
    """What the file calls the model; empty if it does not say."""
    architecture: str
    quantisation: str
    n_params: int
    n_bytes: int
    """Of all its files."""
    n_vocab: int
    """Width of a row of logits."""
    tokenizer: SpecialTokens
    tokenizer_kind: str
    n_ctx: int
    """Positions that it would be loaded with."""
    n_ctx_train: int | None
    """Positions that it was trained on; None if that is not bounded."""
    weights: int
    """Bytes of memory that the weights take."""
    mapped: bool
    """True if the weights are mapped from the files: pages that give way when memory is short."""
    cache: MemoryNeeded | None
    """None if the cache's size cannot be told."""
    remarks: Sequence[str] = ()
    """Limits that the backend knows of."""

    @property
    def name(self) -> str:
        """For messages."""
        return self.path.name


class Inspector(Protocol):
    """What a backend's factory may also be."""

    def inspect(self, model: str, options: LoadOptions) -> Inspection:
        """What the files of `model` say of it, as it would be loaded with `options`.

        Raises
        ------
        SpecxError
            If it could not be loaded: it is missing, damaged, or no language model; or an option
            cannot be honoured.
        """
