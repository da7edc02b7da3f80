"""What a check found: the record behind ``specx check``, its JSON and its lines on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specx.runtime.backend import Rollback

__all__ = [
    "FORMAT",
    "CheckRecord",
    "DifferingToken",
    "LoadedRecord",
    "MemoryRecord",
    "ModelRecord",
    "PairRecord",
    "SpecialToken",
    "TemplateRecord",
]

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SpecialToken:
    """A token that a model's texts begin or end with."""

    id: int
    text: str
    added: bool
    """True if it is put around every text."""


@dataclass(frozen=True, kw_only=True)
class TemplateRecord:
    """What the verifier's chat template does with a probe text."""

    problem: str | None
    """Why it cannot be used; None if the user's text is in what it renders."""
    system: Literal["taken", "merged", "refused"]
    """A system message is taken as such, put before the user's first, or does not arrive."""
    altered: bool
    """True if it changes the messages' text."""


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """One model, as its files describe it."""

    role: str
    backend: str
    file: str
    title: str
    architecture: str
    quantisation: str
    n_params: int
    n_bytes: int
    n_ctx: int
    """Positions that it would be loaded with."""
    n_ctx_train: int | None
    n_vocab: int
    n_padding: int
    """Ids of the vocabulary that have no token behind them."""
    tokenizer: str
    bos: SpecialToken | None
    eos: SpecialToken | None
    template: TemplateRecord | None
    """None if it has none, and for a drafter, whose template is not used."""


@dataclass(frozen=True, kw_only=True)
class DifferingToken:
    """An id that stands for different tokens, each escaped as in Python."""

    id: int
    verifier: str
    drafter: str


@dataclass(frozen=True, kw_only=True)
class PairRecord:
    """What the two have in common."""

    n_shared: int
    """Ids that both have a token for."""
    n_differing: int
    """Those of them that are another token in the drafter."""
    first_differing: Sequence[DifferingToken]
    fits: bool
    """False if the drafter has another tokenizer."""
    size_ratio: float
    """Bytes of the drafter's files per byte of the verifier's."""


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """Bytes of memory that the models take, and that there are."""

    weights: int
    """A file that is both models counts once."""
    caches: int
    """KV caches as they are allocated, at least; those of unknown size count nothing."""
    available: int


@dataclass(frozen=True, kw_only=True)
class LoadedRecord:
    """What only a loaded model shows."""

    role: str
    rollback: Rollback
    """How it forgets tokens, found by trying."""
    devices: Sequence[str]
    n_gpu_layers: int | None
    """Layers on a GPU, -1 for all; None where the backend does not tell."""


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """A whole check."""

    specx_check: int
    """Version of this format."""
    version: str
    """Of specx."""
    verdict: Literal["good", "limits", "cannot"]
    faults: Sequence[str]
    """Why it cannot work."""
    limits: Sequence[str]
    """What to know where it does."""
    models: Sequence[ModelRecord]
    """Those that can be used, the verifier first."""
    pair: PairRecord | None
    memory: MemoryRecord | None
    loaded: Sequence[LoadedRecord] | None
    """None unless the models were loaded."""
