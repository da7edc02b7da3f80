"""Lets transformers read a GGUF model that lies in several files.

Its readers take one path, and refuse the later files, which say nothing of the model. Given the
first file, each reader here returns what it would return of the same model in one file.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from specx.runtime.shards import shards_of
from specx_backends.hf_library import require

__all__ = ["whole_model_readers"]


def whole_model_readers() -> dict[tuple[Any, str], Any]:
    """Replacements of transformers' readers, by the object and the name of the attribute.

    The one of the gguf package parses a model once; transformers asks for the configuration and
    again for the weights.
    """
    gguf, quantizer = require("gguf"), require("transformers.quantizers.quantizer_gguf")
    integration = require("transformers.integrations.gguf")
    read, load = gguf.GGUFReader, quantizer.load_gguf_state_dict
    header_of, metadata_of = quantizer.GgufHeader.from_file, integration.read_gguf_metadata

    def later_tensors(path: str) -> list[Any]:
        readers = (read(str(shard)) for shard in shards_of(Path(path))[1:])
        return [tensor for reader in readers for tensor in reader.tensors]

    def whole_reader(path: str) -> Any:
        first = read(path)
        first.tensors.extend(later_tensors(path))
        return first

    def whole_metadata(path: str, *named: Any) -> tuple[Any, tuple[str, ...]]:
        metadata, names = metadata_of(path, *named)
        return metadata, (*names, *(tensor.name for tensor in later_tensors(path)))

    def headers(path: str) -> list[Any]:
        first = header_of(path)
        later = (read(str(shard)) for shard in shards_of(Path(path))[1:])
        return [first, *(_header(first, reader) for reader in later)]

    def whole_header(path: str) -> Any:
        first, *later = headers(path)
        return first._replace(tensors=sum((header.tensors for header in later), first.tensors))

    def all_weights(header: Any) -> dict[str, Any]:
        return {name: of for part in headers(header.path) for name, of in load(part).items()}

    return {
        (gguf, "GGUFReader"): functools.lru_cache(1)(whole_reader),
        (integration, "read_gguf_metadata"): whole_metadata,
        (quantizer.GgufHeader, "from_file"): whole_header,
        (quantizer, "load_gguf_state_dict"): all_weights,
    }


def _header(first: Any, reader: Any) -> Any:
    """What a later file holds, in the form of the first file's header; offsets are the file's."""
    info = require("transformers.integrations.gguf.reader").TensorInfo
    tensors = tuple(
        info(
            tensor.name,
            tuple(int(size) for size in reversed(tensor.shape)),
            int(tensor.tensor_type),
            int(tensor.data_offset),
            int(tensor.n_bytes),
        )
        for tensor in reader.tensors
    )
    path = reader.data.filename
    return first._replace(path=str(path), tensors=tensors, data_start=0)
