"""What a folder of safetensors, or a GGUF file, says of the model in it; torch is not loaded.

Except where weights would not fit into main memory, as only torch knows of a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from specx.errors import BackendError, ModelError
from specx.runtime.backend import DEFAULT_CTX, LoadOptions
from specx.runtime.inputs import read_text
from specx.runtime.inspection import Inspection
from specx.runtime.memory import MemoryNeeded, available_memory
from specx.runtime.metadata import read_metadata
from specx_backends.gguf_inspection import inspect_header
from specx_backends.hf_library import INSTALL, choose_device, require
from specx_backends.hf_loading import ENCODERS, choose_dtype
from specx_backends.hf_locating import locate
from specx_backends.hf_tokenizer import HfTokenizer, folder_roles
from specx_backends.hf_weights import (
    STORED,
    check_folder_fits,
    check_gguf_fits,
    check_gguf_kind,
    safetensors_header,
    weight_files,
)
from specx_backends.llamacpp_memory import ELEMENT_BYTES

__all__ = ["inspect_model"]

BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
WRITERS: Final = ("CausalLM", "LMHeadModel", "ConditionalGeneration")
READERS: Final = ("MaskedLM", "Classification", "QuestionAnswering")
"""Ends of the names of models that write text, and of some that do not."""
RECURRENT: Final = ("state_size", "mamba_d_state", "linear_num_value_heads", "conv_L_cache")
"""Settings of models with recurrent layers."""


def inspect_model(name: str, options: LoadOptions) -> Inspection:
    """The GGUF file, the folder or the cached hub id `name`, as it would be loaded on a CPU.

    Raises
    ------
    SpecxError
        If it is not there, could not be loaded, or transformers is not installed.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise BackendError(f"{package} is not installed; {INSTALL}")
    path = locate(name, replace(options, offline=True))
    size = BYTES.get(options.dtype or "float32", 4)
    found = _gguf(path, options, size) if path.is_file() else _folder(path, options, size)
    if not found.mapped and found.weights > available_memory():
        _require_room(path, options)
    return found


def _require_room(path: Path, options: LoadOptions) -> None:
    """Refuse what loading would refuse; a GPU may hold the weights, which only torch can tell."""
    torch = require("torch")
    device = choose_device(torch, options.device)
    if device.type == "cpu":
        check_fits = check_gguf_fits if path.is_file() else check_folder_fits
        check_fits(path, choose_dtype(torch, device, options, torch.float32))


def _gguf(path: Path, options: LoadOptions, size: int) -> Inspection:
    check_gguf_kind(path)
    found = inspect_header(read_metadata(path), options)
    cache = found.cache
    if cache is not None:
        width = cache.bytes_per_position * size / ELEMENT_BYTES["f16"]
        cache = replace(cache, bytes_per_position=width)
    return replace(found, weights=found.n_params * size, mapped=False, cache=cache)


def _folder(folder: Path, options: LoadOptions, size: int) -> Inspection:
    config = _json(folder / "config.json")
    _require_decoder(folder, config)
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    n_vocab = _number(text, "vocab_size")
    if n_vocab is None:
        raise ModelError(f"'{folder}' has no vocab_size in its config.json; download it again")
    trained = _number(text, "max_position_embeddings") or _number(text, "n_positions")
    n_ctx = options.n_ctx or min(DEFAULT_CTX, trained or DEFAULT_CTX)
    files = weight_files(folder)
    stored = [entry for file in files for entry in safetensors_header(file)]
    n_params = sum(math.prod(shape) for _, shape in stored)
    kinds = {kind for kind, _ in stored}
    mapped = {STORED.get(kind) for kind in kinds} == {options.dtype or "float32"}
    per_position = _cached_numbers(text)
    return Inspection(
        path=folder,
        title="",
        architecture=str(config.get("model_type", "")),
        quantisation=", ".join(sorted(kinds)),
        n_params=n_params,
        n_bytes=sum(file.stat().st_size for file in files),
        n_vocab=n_vocab,
        tokenizer=_tokenizer(folder, config, n_vocab),
        tokenizer_kind="tokenizer.json",
        n_ctx=n_ctx,
        n_ctx_train=trained,
        weights=n_params * size,
        mapped=mapped,
        cache=None
        if per_position is None
        else MemoryNeeded(name=folder.name, n_ctx=n_ctx, bytes_per_position=per_position * size),
        remarks=[*_remarks(config)],
    )


def _json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; empty where there is no such file."""
    if not file.exists():
        return {}
    try:
        value = json.loads(read_text(file, "the model's settings"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{file}' is damaged; download it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"'{file}' is damaged; download it again")
    return value


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and 0 < value < 2**31 else None


def _cached_numbers(text: Mapping[str, Any]) -> int | None:
    """Numbers that the cache holds per position; None where the configuration does not say."""
    layers, heads = _number(text, "num_hidden_layers"), _number(text, "num_attention_heads")
    hidden = _number(text, "hidden_size")
    if layers is None or heads is None or hidden is None:
        return None
    width = _number(text, "head_dim") or hidden // heads
    return 2 * layers * width * (_number(text, "num_key_value_heads") or heads)


def _names(config: Mapping[str, Any]) -> list[str]:
    """Names of the classes that the weights were saved from."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _require_decoder(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("is_encoder_decoder"):
        raise ModelError(f"'{folder}' is an encoder-decoder model; {ENCODERS}")
    if any(name.endswith(READERS) for name in _names(config)):
        raise ModelError(f"'{folder}' is no decoder ({_names(config)[0]}); {ENCODERS}")


def _remarks(config: Mapping[str, Any]) -> Iterable[str]:
    names = _names(config)
    if names and not any(name.endswith(WRITERS) for name in names):
        yield f"its configuration names {names[0]}, which may write no text; --load tries it"
    if any(key in config for key in RECURRENT):
        yield "it has recurrent layers, which may not be able to rewind; --load tries it"


def _tokenizer(folder: Path, config: Mapping[str, Any], n_vocab: int) -> HfTokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BackendError(
            f"'{folder}' has no tokenizer.json, so its tokens cannot be told without loading it; "
            "try specx run"
        )
    settings = _json(folder / "tokenizer_config.json")
    try:
        fast = require("tokenizers").Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises the base class itself
        raise ModelError(f"'{file}' is damaged ({error}); download it again") from error
    bos, eos = (_special(fast, settings.get(f"{end}_token")) for end in ("bos", "eos"))
    ends = [
        token
        for source in (config, _json(folder / "generation_config.json"))
        for token in _listed(source.get("eos_token_id"))
        if isinstance(token, int)
    ]
    roles = folder_roles(fast, n_vocab, bos, eos, ends)
    return HfTokenizer(fast, n_vocab, roles, _template(folder, settings))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _special(fast: Any, token: Any) -> int | None:
    """The id of a special token, which is written as its text or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    found: int | None = fast.token_to_id(text) if isinstance(text, str) else None
    return found


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or in the tokenizer's settings, one or several."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_text(file, "the chat template")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
