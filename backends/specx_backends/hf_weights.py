"""Whether weights are all there, belong to their configuration, and fit into memory.

transformers fills what a file lacks with random numbers and passes over what it has no place for,
with no more than a line in a log. A model of such weights writes text that looks like text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specx.errors import ContextError, ModelError
from specx.runtime.memory import available_memory, gigabytes
from specx.runtime.metadata import read_metadata, what_else
from specx.runtime.shards import shards_of
from specx_backends.hf_library import require

__all__ = [
    "check_folder_fits",
    "check_gguf_fits",
    "check_gguf_kind",
    "check_gguf_layers",
    "check_layers",
    "pretrained",
]

STORED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Number types of safetensors that are converted when a model is loaded in another one."""


def pretrained(path: Path, where: str, **named: Any) -> Any:
    """The model at `path`, which transformers finds by `where` and `named`.

    Raises
    ------
    ModelError
        If tensors are missing, of another shape than the configuration says, or without a place.
    """
    model, info = require("transformers").AutoModelForCausalLM.from_pretrained(
        where,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # told below, by name
        **named,
    )
    check_complete(path, model, info)
    return model


def check_complete(path: Path, model: Any, info: Mapping[str, Any]) -> None:
    """Raise ModelError unless the weights of `path` are `model`'s, by what transformers tells."""
    wanted = model.state_dict().keys()
    kind = model.config.model_type
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"'{path}' lacks {len(missing)} of the {len(wanted)} tensors of a {kind} model "
            f"({some(missing)}); download it again, or correct its model_type"
        )
    if misfits := sorted(info["mismatched_keys"]):
        name, found, right = misfits[0]
        raise ModelError(
            f"'{path}' has {len(misfits)} tensors of another shape than its configuration says "
            f"({name}: {list(found)}, not {list(right)}); its files do not belong together"
        )
    if unused := sorted(without_place(info["unexpected_keys"], wanted)):
        raise ModelError(
            f"'{path}' has {len(unused)} tensors that a {kind} model of its configuration has no "
            f"place for ({some(unused)}); correct its model_type or its number of layers"
        )


def some(names: list[str]) -> str:
    """The first of `names`."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def without_place(names: Iterable[str], wanted: Collection[str]) -> Iterator[str]:
    """Those of `names` that a layer would need, or that are a further layer's.

    Others are left out on purpose: a picture's encoder, tables that are computed anew.
    """
    layers = {re.sub(r"\d+", "#", name) for name in wanted if re.search(r"\d", name)}
    modules = {module for name in wanted for module in above(name) if re.search(r"\d", module)}
    for name in names:
        learned = name.endswith((".weight", ".bias"))
        owner = name.rpartition(".")[0]
        if re.sub(r"\d+", "#", name) in layers or (learned and owner.rpartition(".")[0] in modules):
            yield name


def above(name: str) -> list[str]:
    """``a``, ``a.b`` of ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def check_layers(path: Path, config: Any) -> None:
    """Raise ModelError if the configuration says that the model has no layers."""
    n_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if n_layers is not None and n_layers < 1:
        raise ModelError(f"'{path}' has {n_layers} layers by its configuration; download it again")


# GGUF files


def check_gguf_kind(path: Path) -> None:
    """Raise ModelError if `path` is a part of a model, or an addition to one."""
    try:
        metadata = read_metadata(path)
    except ModelError:  # transformers reads it next, and its reason comes with a remedy
        return
    values = metadata.values
    count, number = values.get("split.count"), values.get("split.no")
    if isinstance(count, int) and count > 1 and count != len(shards_of(path)):
        part = f"part {number + 1}" if isinstance(number, int) else "a part"
        raise ModelError(
            f"'{path}' is {part} of a model in {count} files and does not have a part's name; "
            f"rename the parts to NAME-00001-of-{count:05d}.gguf and so on"
        )
    if other := what_else(metadata):
        raise ModelError(f"'{path}' is {other}; give the GGUF file of a language model")


def check_gguf_layers(path: Path, metadata: Mapping[str, Any], tensors: Collection[str]) -> None:
    """Raise ModelError unless the file has tensors of as many layers as it says."""
    held = len({found[1] for name in tensors if (found := re.search(r"\bblk\.(\d+)\.", name))})
    prefix = metadata["general.architecture"]
    said = metadata.get(f"{prefix}.block_count", held)
    least = said - metadata.get(f"{prefix}.nextn_predict_layers", 0)  # these may be left out
    if held == 0 or not least <= held <= said:
        raise ModelError(
            f"'{path}' says that it has {said} layers, and holds {held}; download it again"
        )


# Memory


def check_folder_fits(folder: Path, dtype: Any) -> None:
    """Raise ContextError if the weights of `folder`, converted to `dtype`, exceed free memory.

    Weights that are stored in `dtype` stay mapped from their files, and count nothing.
    """
    torch = require("torch")
    if isinstance(dtype, torch.dtype):
        stored = [entry for file in weight_files(folder) for entry in safetensors_header(file)]
        names = STORED.items()
        convert = {short for short, name in names if getattr(torch, name) != dtype}
        n_numbers = sum(math.prod(shape) for kind, shape in stored if kind in convert)
        _check_fits(folder, n_numbers, dtype)


def check_gguf_fits(path: Path, dtype: Any) -> None:
    """Raise ContextError if the weights of a GGUF file, dequantised to `dtype`, exceed free memory.

    A file whose types transformers' own reader does not know counts nothing.
    """
    reader = require("transformers.integrations.gguf.reader")
    try:
        tensors = reader.GgufHeader.from_file(str(path)).tensors
    except ValueError:
        return
    _check_fits(path, sum(math.prod(tensor.shape) for tensor in tensors), dtype)


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers takes weights from."""
    whole = folder / "model.safetensors"
    return [whole] if whole.is_file() else sorted(folder.glob("model-*.safetensors"))


def safetensors_header(file: Path) -> list[tuple[str, list[int]]]:
    """Type and shape of each tensor: eight bytes of length, then JSON. Empty if it is damaged."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        text = stream.read(min(size, MOST_HEADER))
    try:
        tensors = json.loads(text)
        tensors.pop("__metadata__", None)
        return [(tensor["dtype"], tensor["shape"]) for tensor in tensors.values()]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


MOST_HEADER = 100_000_000
"""The format's own limit."""


def _check_fits(path: Path, n_numbers: int, dtype: Any) -> None:
    needed, free = n_numbers * dtype.itemsize, available_memory()
    if needed > free:
        narrower = "try --dtype bfloat16, or " if dtype.itemsize > 2 else "try "
        raise ContextError(
            f"the weights of '{path}' take {gigabytes(needed)} in "
            f"{str(dtype).removeprefix('torch.')}, {gigabytes(free)} of memory are available; "
            f"{narrower}a smaller model"
        )
