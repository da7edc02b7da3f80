"""Memory that llama.cpp's KV cache will take, told from a file's tensors before anything is loaded.

llama.cpp itself cannot be asked: its interface knows the KV heads of the first layer only, and the
layers of a hybrid model not at all. The shapes of the tensors that compute keys and values know it,
layer by layer and whatever the architecture is called. Every figure is a lower bound: what is
refused by it would not have fitted; the reverse does not hold.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from specx.runtime.backend import DEFAULT_CTX, LoadOptions
from specx.runtime.memory import MemoryNeeded
from specx.runtime.metadata import Metadata, Tensor, is_gguf, read_metadata
from specx.runtime.shards import shards_of

__all__ = ["cache_needed", "cached_elements", "default_ctx", "shards"]

ELEMENT_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Of an element of a cache, by its type; ggml stores quantised ones in blocks of 32."""
IN_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
NOT_COUNTED = ("ssm_", "nextn.")
"""Beginnings of the names of tensors in layers with a recurrent state, some of which have keys and
values that are not cached, and in layers that predict further tokens, which are not run."""


def cache_needed(path: Path, options: LoadOptions) -> MemoryNeeded | None:
    """What the cache of the model at `path` takes; None if that is no GGUF file.

    Raises
    ------
    ModelError
        If the file is damaged.
    """
    if not is_gguf(path):
        return None
    metadata = read_metadata(path)
    keys, values = cached_elements(metadata)
    return MemoryNeeded(
        name=path.name,
        n_ctx=options.n_ctx or default_ctx(metadata),
        bytes_per_position=keys * ELEMENT_BYTES[options.cache_type_k or "f16"]
        + values * ELEMENT_BYTES[options.cache_type_v or "f16"],
    )


def default_ctx(metadata: Metadata) -> int:
    """Positions of the cache if nothing is asked for, at least."""
    return min(DEFAULT_CTX, metadata.number("context_length") or DEFAULT_CTX)


def cached_elements(metadata: Metadata) -> tuple[int, int]:
    """Elements of keys and of values that the cache holds for each position, at least.

    Layers with a sliding window count in full: their caches are allocated whole, because a shorter
    one forgets what a rewind needs.
    """
    layers: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    for part in shards(metadata):
        for name, tensor in part.tensors.items():
            if found := IN_LAYER.fullmatch(name):
                layers[int(found[1])][found[2]] = tensor
    n_own = max(layers, default=-1) + 1 - (metadata.number("attention.shared_kv_layers") or 0)
    counts = [layer_elements(tensors) for layer, tensors in layers.items() if layer < n_own]
    return sum(keys for keys, _ in counts), sum(values for _, values in counts)


def layer_elements(tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Elements of keys and of values that one layer caches for each position, at least.

    None where it stores something else (latent attention, a recurrent state).
    """
    if any(name.startswith(NOT_COUNTED) for name in tensors):
        return 0, 0
    keys, values = (width(tensors, f"attn_{part}.weight", -1) for part in "kv")
    if keys:
        return keys, values
    queries = width(tensors, "attn_output.weight", 0)
    together = width(tensors, "attn_qkv.weight", -1) - queries if queries else 0
    return max(0, together) // 2, max(0, together) // 2


def width(tensors: Mapping[str, Tensor], name: str, dimension: int) -> int:
    """A dimension of a matrix; 0 where there is no such matrix."""
    shape = tensors[name].shape if name in tensors else ()
    return shape[dimension] if len(shape) == 2 else 0


def shards(metadata: Metadata) -> Iterator[Metadata]:
    """The file, and the others of a model in several files, as far as they are there."""
    yield metadata
    for path in shards_of(metadata.path)[1:]:
        if is_gguf(path):
            yield read_metadata(path)
