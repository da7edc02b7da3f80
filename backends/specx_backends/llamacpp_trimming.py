"""A GGUF file with fewer vocabulary entries: checked, its entries ranked, and laid out anew."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.errors import ModelError, UsageError
from specx.runtime.backend import LoadOptions
from specx.runtime.metadata import Metadata
from specx.runtime.trimming import Trimmed
from specx_backends.files import check_file
from specx_backends.gguf_rewriting import rewrite
from specx_backends.gguf_trimming import Vocabulary, choose, trimmed_values
from specx_backends.llamacpp_header import check_header
from specx_backends.llamacpp_library import ggml
from specx_backends.llamacpp_loading import load_weights
from specx_backends.llamacpp_tokenizer import LlamaCppTokenizer

__all__ = ["trim_file"]

TOKENIZERS = ("gpt2", "llama")
EMBEDDING = "token_embd.weight"
BY_ENTRY = (EMBEDDING, "output.weight", "output.bias", "per_layer_token_embd.weight")
"""Tensors with a row per vocabulary entry."""


def trim_file(lib: Any, path: Path, keep: int, texts: Iterable[str] | None) -> Trimmed:
    """`path` with at most `keep` entries; `specx.runtime.trimming.Trimmer`."""
    check_file(path)
    header = check_header(path)
    _check_kind(header)
    vocabulary = Vocabulary(header)
    n_whole = len(vocabulary.texts)
    by_entry = _tensors_by_entry(header, n_whole)
    # llama.cpp also makes sure that the tensors lie where they are taken from.
    weights = load_weights(lib, path, LoadOptions(n_gpu_layers=0), vocab_only=True)
    try:
        tokenizer = LlamaCppTokenizer(lib, weights)
        padding = set(tokenizer.padding_ids.tolist())
        always = vocabulary.always() - padding | tokenizer.eog_ids | {*vocabulary.named.values()}
        _check_keep(path, keep, len(always), n_whole)
        counts = None if texts is None else _counts(tokenizer, texts)
    finally:
        weights.close()
    order = np.arange(n_whole) if counts is None else np.argsort(-counts, kind="stable")
    order = order[~np.isin(order, tokenizer.padding_ids)]  # nothing stands for them
    kept = choose(vocabulary, always, order.tolist(), keep)
    values = trimmed_values(vocabulary, kept)
    row_bytes = ggml(lib, "ggml_row_size", ctypes.c_size_t, ctypes.c_int, ctypes.c_int64)
    written = rewrite(header, values, dict.fromkeys(by_entry, kept), row_bytes)
    return Trimmed(
        n_whole=n_whole,
        n_kept=kept.size,
        n_always=len(always),
        coverage=None if counts is None else float(counts[kept].sum() / counts.sum()),
        whole_bytes=header.size,
        n_bytes=written.n_bytes,
        chunks=written.chunks,
    )


def _check_kind(header: Metadata) -> None:
    path = header.path
    n_files = header.values.get("split.count", 1)
    if isinstance(n_files, int) and n_files > 1:
        raise ModelError(
            f"'{path}' is one of {n_files} files of a model; join them first "
            "(llama-gguf-split --merge)"
        )
    kind = header.values.get("tokenizer.ggml.model")
    if kind not in TOKENIZERS:
        known = " and ".join(TOKENIZERS)
        raise ModelError(
            f"'{path}' has a tokenizer of kind {kind!r}; specx trims {known} (byte-pair encoding "
            "and SentencePiece): take another drafter"
        )


def _tensors_by_entry(header: Metadata, n_entries: int) -> list[str]:
    """Names of the tensors to cut."""
    if EMBEDDING not in header.tensors:
        raise ModelError(f"'{header.path}' lacks the tensor {EMBEDDING}; download it again")
    found = [name for name in BY_ENTRY if name in header.tensors]
    for name in found:
        shape = header.tensors[name].shape
        if not shape or shape[-1] != n_entries:
            raise ModelError(
                f"'{header.path}': tensor {name} has shape {shape} for a vocabulary of "
                f"{n_entries:,}; it is damaged or was converted wrongly: download it again"
            )
    for name, tensor in header.tensors.items():
        if n_entries in tensor.shape and name not in found and not name.startswith("blk."):
            raise ModelError(
                f"'{header.path}': tensor {name} too seems to have a row per vocabulary entry, "
                "and specx does not know it; take another drafter"
            )
    return found


def _check_keep(path: Path, keep: int, n_always: int, n_whole: int) -> None:
    if keep < n_always:
        raise UsageError(
            f"keep is {keep:,}, but the {n_always:,} special and byte tokens of {path.name} always "
            f"stay; pass {n_always} or more"
        )
    if keep > n_whole:
        raise UsageError(
            f"keep is {keep:,}, but {path.name} has {n_whole:,} vocabulary entries; pass fewer"
        )


def _counts(tokenizer: LlamaCppTokenizer, texts: Iterable[str]) -> NDArray[np.int64]:
    """How often each token is used in `texts`, (n_vocab,)."""
    counts = np.zeros(tokenizer.n_vocab, np.int64)
    for text in texts:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        counts += np.bincount(ids, minlength=counts.size)
    if not counts.any():
        raise UsageError("the texts to rank vocabulary entries by are empty; give others")
    return counts
