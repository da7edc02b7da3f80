"""What a GGUF file says of the model in it, for `specx check`; no weights are read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from specx.errors import ModelError
from specx.runtime.backend import LoadOptions
from specx.runtime.inspection import Inspection
from specx.runtime.metadata import Metadata
from specx_backends.gguf_tokens import GgufTokens
from specx_backends.llamacpp_header import check_positions
from specx_backends.llamacpp_memory import cache_needed, default_ctx, shards

__all__ = ["inspect_header", "quantisation"]

FILE_TYPES: Final = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K - Medium", 11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large",
    14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K",
    19: "IQ2_XXS - 2.0625 bpw", 20: "IQ2_XS - 2.3125 bpw", 21: "Q2_K - Small",
    22: "IQ3_XS - 3.3 bpw", 23: "IQ3_XXS - 3.0625 bpw", 24: "IQ1_S - 1.5625 bpw",
    25: "IQ4_NL - 4.5 bpw", 26: "IQ3_S - 3.4375 bpw", 27: "IQ3_S mix - 3.66 bpw",
    28: "IQ2_S - 2.5 bpw", 29: "IQ2_M - 2.7 bpw", 30: "IQ4_XS - 4.25 bpw",
    31: "IQ1_M - 1.75 bpw", 32: "BF16", 36: "TQ1_0 - 1.69 bpw ternary",
    37: "TQ2_0 - 2.06 bpw ternary", 38: "MXFP4 MoE",
}  # fmt: skip
"""llama.cpp's names of the values of general.file_type."""
POOLINGS: Final = {1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""How models that were trained to embed or to rank texts make one vector of a text."""
RECURRENT: Final = re.compile(r"blk\.\d+\.(ssm_|shortconv\.|time_mix_)")


def inspect_header(header: Metadata, options: LoadOptions) -> Inspection:
    """The model in a file, by its header, as llama.cpp would load it.

    Raises
    ------
    ModelError
        If some of its files are missing.
    ContextError
        If the context exceeds a table of positions.
    """
    parts = list(shards(header))
    _require_all(header, parts)
    if options.n_ctx is not None:
        check_positions(header, options.n_ctx)
    tokens = GgufTokens(header)
    size = sum(part.size for part in parts)
    kinds = (_text(header, f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    return Inspection(
        path=header.path,
        title=_text(header, "general.name"),
        architecture=header.architecture,
        quantisation=quantisation(header),
        n_params=sum(math.prod(t.shape) for part in parts for t in part.tensors.values()),
        n_bytes=size,
        n_vocab=tokens.n_vocab,
        tokenizer=tokens,
        tokenizer_kind=" ".join(filter(None, kinds)),
        n_ctx=options.n_ctx or default_ctx(header),
        n_ctx_train=header.number("context_length"),
        weights=size,
        mapped=True,
        cache=cache_needed(header.path, options),
        remarks=[*_remarks(header, parts)],
    )


def quantisation(header: Metadata) -> str:
    """llama.cpp's name for how the weights are stored; empty if the file does not say."""
    kind = header.values.get("general.file_type")
    return FILE_TYPES.get(kind, f"type {kind}") if isinstance(kind, int) else ""


def _text(header: Metadata, key: str) -> str:
    value = header.values.get(key)
    return value if isinstance(value, str) else ""


def _require_all(header: Metadata, parts: list[Metadata]) -> None:
    count = header.values.get("split.count")
    if isinstance(count, int) and count > len(parts):
        raise ModelError(
            f"'{header.path}' is the first of {count} files of a model, and {count - len(parts)} "
            "of them are not beside it; download them, and keep their names"
        )


def _remarks(header: Metadata, parts: list[Metadata]) -> Iterator[str]:
    pooling = header.values.get(f"{header.architecture}.pooling_type")
    if isinstance(pooling, int) and pooling in POOLINGS:
        yield (
            f"it was trained to embed or rank texts (pooling type {POOLINGS[pooling]}), not to "
            "write them"
        )
    if any(RECURRENT.match(name) for part in parts for name in part.tensors):
        yield "it has recurrent layers, which may not be able to rewind; --load tries it"
