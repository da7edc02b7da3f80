"""What a GGUF file promises of itself, checked before llama.cpp meets it.

llama.cpp asserts many of these, and throws exceptions of C++ at others: either would end the
process. Limits are those of llama-cpp-python 0.3.36 (``src/llama-model.cpp``, ``llama-vocab.cpp``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specx.errors import ContextError, ModelError
from specx.runtime.backend import shown
from specx.runtime.metadata import Metadata, Value, read_metadata, read_strings, what_else

__all__ = ["CONTROL", "UNUSED", "check_header", "check_positions", "is_odd", "token_kinds"]

MOST_LAYERS = 512
MOST_EXPERTS = 512
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
ALIGNMENT = 32
INT32, FLOAT32 = 5, 6  # of GGUF's types
CONTROL, UNUSED, BYTE_TYPE = 3, 5, 6  # in tokenizer.ggml.token_type
BYTE_TOKEN = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
COMMON_TOKENIZERS = ("gpt2", "llama", "gemma4")
FLOAT_TENSOR = 0  # float32, what norms and biases are written in
INTEGERS = range(24, 29)  # of the ggml_types; and float64, which is as rare
POSITIONS = "position_embd.weight"


def check_header(path: Path) -> Metadata:
    """The metadata of the file, if llama.cpp can be given it.

    Raises
    ------
    ModelError
        If it is not a language model, or llama.cpp would die of what its metadata says.
    """
    metadata = read_metadata(path)
    if other := what_else(metadata):
        raise ModelError(f"'{path}' is {other}; give the GGUF file of a language model")
    faults = chain.from_iterable(check(metadata) for check in (_layout, _shape, _experts, _tokens))
    fault = next(faults, None)
    if fault is not None:
        raise ModelError(
            f"'{path}' cannot be used: {fault}; it is damaged or was converted wrongly: "
            "download it again, or take another file of the model"
        )
    return metadata


def is_odd(metadata: Metadata) -> bool:
    """Whether it is worth a trial in another process: a rare kind of tokenizer, odd tensors."""
    return metadata.values.get("tokenizer.ggml.model") not in COMMON_TOKENIZERS or any(
        tensor.kind in INTEGERS or (len(tensor.shape) < 2 and tensor.kind != FLOAT_TENSOR)
        for tensor in metadata.tensors.values()
    )


def check_positions(metadata: Metadata, n_ctx: int) -> None:
    """Raise ContextError for a context that is longer than a learned table of positions."""
    table = metadata.tensors.get(POSITIONS)
    most = table.shape[-1] if table is not None and table.shape else n_ctx
    if n_ctx > most:
        raise ContextError(
            f"{metadata.path.name} has learned {most} positions and cannot take a context of "
            f"{n_ctx}; pass -c {most} or less"
        )


def token_kinds(metadata: Metadata) -> NDArray[np.int32]:
    """GGUF's kind of each token, (n_vocab,); empty where the file does not say."""
    array = metadata.arrays.get("tokenizer.ggml.token_type")
    if array is None or array.kind != INT32:
        return np.empty(0, np.int32)
    return np.fromfile(metadata.path, "<i4", array.count, offset=array.at)


# Faults, each in words that follow "cannot be used:"


def _layout(metadata: Metadata) -> Iterator[str]:
    alignment = metadata.values.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % ALIGNMENT:
        yield f"general.alignment is {shown(alignment)}, not a multiple of {ALIGNMENT}"


def _shape(metadata: Metadata) -> Iterator[str]:
    yield from _count(metadata, "block_count", MOST_LAYERS)
    for key in ("embedding_length", "context_length"):
        yield from _count(metadata, key, 2**31 - 1)
    for key, value in metadata.values.items():
        if key.endswith("epsilon") and not _is_tiny(value):
            yield f"{key} is {shown(value)}, not a small number above or at 0"
    scaling = _of(metadata, "rope.scaling.type")
    if scaling is not None and scaling not in ROPE_SCALINGS:
        yield f"rope.scaling.type is {shown(scaling)}; known: {', '.join(ROPE_SCALINGS)}"


def _count(metadata: Metadata, key: str, most: int) -> Iterator[str]:
    value = _of(metadata, key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        yield f"{key} is {shown(value)}, not 1 to {most:,}"


def _is_tiny(value: Value) -> bool:
    return isinstance(value, float) and math.isfinite(value) and 0 <= value < 1


def _experts(metadata: Metadata) -> Iterator[str]:
    n_experts = _whole(metadata, "expert_count")
    if n_experts == 1 and metadata.architecture.startswith("hunyuan"):
        return  # llama.cpp takes that for none
    used = _of(metadata, "expert_used_count")
    most_used = max((int(n) for n in used), default=0) if isinstance(used, list) else used or 0
    groups, used_groups = (
        _whole(metadata, key) for key in ("expert_group_count", "expert_group_used_count")
    )
    if not 0 <= n_experts <= MOST_EXPERTS:
        yield f"expert_count is {n_experts}, not 0 to {MOST_EXPERTS}"
    elif not isinstance(most_used, int) or not bool(n_experts) <= most_used <= n_experts:
        yield f"expert_used_count is {shown(used)} of {n_experts} experts"
    elif groups and groups >= n_experts:
        yield f"expert_group_count is {groups} for {n_experts} experts"
    elif groups > 1 and (n_experts % groups or not 0 < used_groups < groups):
        yield f"expert_group_count is {groups}, of which {used_groups} are used, for {n_experts}"


def _tokens(metadata: Metadata) -> Iterator[str]:
    tokens = read_strings(metadata, "tokenizer.ggml.tokens")
    names = set(tokens)
    if not tokens:
        yield "its vocabulary (tokenizer.ggml.tokens) is not a list of strings"
    n_empty = tokens.count(b"") if b"" in names else 0  # each is given a name of its own
    if len(names) - bool(n_empty) < len(tokens) - n_empty:
        token = _first_repeated(tokens)
        text = tokens[token].decode("utf-8", "replace")
        yield (
            f"tokens {tokens.index(tokens[token])} and {token} of its vocabulary are both "
            f"{shown(text)}, which llama.cpp does not take"
        )
    yield from _token_facts(metadata, len(tokens))
    if metadata.values.get("tokenizer.ggml.model") == "llama":
        yield from _bytes(names)
    yield from _byte_names(metadata, tokens)


def _first_repeated(tokens: list[bytes]) -> int:
    """The first id whose text, which is not empty, is that of an earlier one."""
    first = {text: token for token, text in reversed(list(enumerate(tokens)))}
    return next(i for i, text in enumerate(tokens) if text and first[text] < i)


def _token_facts(metadata: Metadata, n_tokens: int) -> Iterator[str]:
    """Arrays beside the tokens that llama.cpp reads without looking at their type or length."""
    for key, kinds in (("scores", (INT32, FLOAT32)), ("token_type", (INT32,))):
        array = metadata.arrays.get(f"tokenizer.ggml.{key}")
        if array is not None and array.kind not in kinds:
            yield f"tokenizer.ggml.{key} holds numbers of type {array.kind}, not {kinds[0]}"
        elif array is not None and array.count < n_tokens:
            yield f"tokenizer.ggml.{key} has {array.count:,} entries for {n_tokens:,} tokens"


def _bytes(names: set[bytes]) -> Iterator[str]:
    """SentencePiece falls back to bytes, for any text: all 256 must be there."""
    missing = [
        byte
        for byte in range(256)
        if b"<0x%02X>" % byte not in names and bytes([byte]) not in names
    ]
    if missing:
        yield f"its vocabulary has no token for {len(missing)} of 256 bytes (0x{missing[0]:02X})"


def _byte_names(metadata: Metadata, tokens: list[bytes]) -> Iterator[str]:
    """Tokens of type byte, of which llama.cpp cuts the number out."""
    for token in np.flatnonzero(token_kinds(metadata)[: len(tokens)] == BYTE_TYPE).tolist():
        if not BYTE_TOKEN.fullmatch(tokens[token]):
            text = tokens[token].decode("utf-8", "replace")
            yield f"token {token} is said to be a byte, but named {shown(text)} (<0x0A>)"


def _of(metadata: Metadata, key: str) -> Value | None:
    return metadata.values.get(f"{metadata.architecture}.{key}")


def _whole(metadata: Metadata, key: str) -> int:
    value = _of(metadata, key)
    return value if isinstance(value, int) else 0
