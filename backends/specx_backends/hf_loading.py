"""From a name to weights and a tokenizer, each failure told in one line with its remedy."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specx.errors import BackendError, ContextError, ModelError, OptionError, SpecxError
from specx.runtime.backend import LoadOptions, choose_n_ctx
from specx.runtime.shards import shards_of
from specx_backends.files import describe_file, warn_beyond_training
from specx_backends.hf_library import INSTALL, Remark, choose_device, require, versions
from specx_backends.hf_locating import locate
from specx_backends.hf_shards import whole_model_readers
from specx_backends.hf_tokenizer import HfTokenizer, folder_tokenizer, gguf_tokenizer
from specx_backends.hf_weights import (
    check_folder_fits,
    check_gguf_fits,
    check_gguf_kind,
    check_gguf_layers,
    check_layers,
    pretrained,
)
from specx_backends.library import first_line
from specx_backends.threads import physical_cores

__all__ = [
    "Loaded",
    "check_options",
    "describe_model",
    "load",
    "n_ctx_of",
    "without_weights",
]

LOCAL = {"local_files_only": True, "trust_remote_code": False}
GGUF_DTYPES = {0: "float32", 1: "float16", 32: "bfloat16"}
"""The element type of a GGUF file that is not quantised, by its general.file_type."""
ENCODERS = "give a model that decodes left to right"


@dataclass(frozen=True)
class Loaded:
    """A model in memory, ready to be fed."""

    path: Path
    """The GGUF file, or the folder."""
    name: str
    model: Any
    tokenizer: HfTokenizer
    n_vocab: int
    n_ctx_train: int | None
    device: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Of a GGUF file."""


def check_options(options: LoadOptions) -> None:
    """Raise OptionError for a value that no model could be loaded with."""
    cache = options.weights_cache
    if cache is not None and not Path(cache).is_dir():
        raise OptionError(f"weights_cache '{cache}' is not a folder; make it first")


def load(name: str, options: LoadOptions) -> Loaded:
    """Load the GGUF file, the folder or the cached hub id `name`."""
    torch = require("torch")
    device = choose_device(torch, options.device)
    path = locate(name, options)
    # Torch counts slow cores too; fewer than that is somebody's choice (OMP_NUM_THREADS).
    torch.set_num_threads(options.threads or min(torch.get_num_threads(), physical_cores()))
    return (
        load_gguf(path, device, options)
        if path.is_file()
        else load_folder(name, path, device, options)
    )


# What it is computed in


BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""What torch calls the instructions with which bfloat16 was seen to be faster than float32."""


def choose_dtype(torch: Any, device: Any, options: LoadOptions, own: Any) -> Any:
    """The torch.dtype that was asked for; else float32 on the CPU and the model's own elsewhere.

    What only drafts computes in bfloat16 on a CPU with instructions for it: a step reads half as
    much.

    Raises
    ------
    OptionError
        If torch has no such type, or the device cannot compute in it.
    """
    name = options.dtype
    if name is None and device.type == "cpu":
        return torch.bfloat16 if options.drafts and has_bfloat16(torch) else torch.float32
    if name is None:
        return own
    dtype = getattr(torch, name, None)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise OptionError(f"dtype '{name}' is unknown; known: float32, float16, bfloat16, float64")
    try:
        row = torch.ones(2, 2, device=device, dtype=dtype)
        torch.nn.functional.layer_norm(row @ row, (2,)).softmax(-1)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise OptionError(
            f"device '{device}' cannot compute in {name} ({first_line(error)}); try float32"
        ) from error
    return dtype


def has_bfloat16(torch: Any) -> bool:
    """Whether this processor has instructions for bfloat16; an old torch cannot tell."""
    tell = getattr(torch.cpu, "get_capabilities", None)
    known = tell() if tell is not None else {}
    return any(known.get(name) for name in BFLOAT16)


def n_ctx_of(loaded: Loaded, options: LoadOptions) -> int:
    """The bound on positions: as asked, else what the run needs within the trained length."""
    trained = loaded.n_ctx_train
    n_ctx = choose_n_ctx(options, loaded.tokenizer, trained)
    if trained is not None and n_ctx > trained:
        if learns_positions(loaded.model, trained):
            raise OptionError(
                f"n_ctx {n_ctx} exceeds the {trained} positions that {loaded.path.name} has a "
                f"table of; give {trained} or less"
            )
        warn_beyond_training(loaded.path, n_ctx, trained)
    return n_ctx


def learns_positions(model: Any, trained: int) -> bool:
    """Whether a table gives each of the `trained` positions a row, so that there are no others.

    Some tables begin with two rows for padding.
    """
    tables = (*model.named_parameters(), *model.named_buffers())
    return any(
        table.dim() == 2 and 0 <= len(table) - trained <= 2
        for name, table in tables
        if re.search(r"position|wpe", name)
    )


# Folders


def load_folder(name: str, folder: Path, device: Any, options: LoadOptions) -> Loaded:
    """Load a folder as `save_pretrained` writes it."""
    transformers, torch = require("transformers"), require("torch")
    with one_line(folder):
        config = transformers.AutoConfig.from_pretrained(str(folder), **LOCAL)
    check_kind(config, folder)
    dtype = choose_dtype(torch, device, options, "auto")
    with one_line(folder):
        check_folder_fits(folder, dtype)
        model = from_folder(folder, config, dtype, device)
        tokenizer = folder_tokenizer(folder, n_vocab_of(config), config_ends(model))
    report(options, 1.0)
    return Loaded(
        folder, name.rstrip("/"), model, tokenizer, n_vocab_of(config), n_trained(config), device
    )


def from_folder(folder: Path, config: Any, dtype: Any, device: Any) -> Any:
    """The model in `folder`, on `device`."""
    model = pretrained(
        folder, str(folder), config=config, dtype=dtype, use_safetensors=True, **LOCAL
    )
    return model.to(device)


def config_ends(model: Any) -> set[int]:
    """End tokens that a model's configurations name: none, one or several each."""
    named = (
        getattr(config, "eos_token_id", None) for config in (model.config, model.generation_config)
    )
    return {
        token
        for ids in named
        if ids is not None
        for token in (ids if isinstance(ids, (list, tuple)) else [ids])
    }


def check_kind(config: Any, path: Path) -> None:
    """Refuse what has no next-token distribution given the tokens before it."""
    known = require("transformers").models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    kind = config.model_type
    if config.is_encoder_decoder:
        raise ModelError(f"'{path}' is an encoder-decoder model ({kind}); {ENCODERS}")
    if kind not in known or not getattr(config, "is_decoder", True):
        raise ModelError(f"'{path}' is no decoder ({kind}), so it has no KV cache; {ENCODERS}")
    check_layers(path, config)


def n_vocab_of(config: Any) -> int:
    """Width of a row of logits."""
    n_vocab: int = config.get_text_config().vocab_size
    return n_vocab


def n_trained(config: Any) -> int | None:
    """Positions that a model was trained on; None where it says nothing (recurrent models)."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


@contextmanager
def one_line(path: Path) -> Iterator[None]:
    """Turn whatever transformers raises about `path` into one line."""
    try:
        yield
    except SpecxError:
        raise
    except ImportError as error:  # "accelerate is required", "install gguf"
        raise BackendError(f"{first_line(error)}; it comes with: {INSTALL}") from error
    except (MemoryError, require("torch").OutOfMemoryError) as error:
        raise ContextError(
            f"not enough memory to load '{path}'; try a narrower --dtype or a smaller model"
        ) from error
    except Exception as error:  # of transformers, safetensors, gguf, struct, json: no common base
        raise ModelError(_failure(path, first_line(error))) from error


def _failure(path: Path, reason: str) -> str:
    remedy = "the file may be cut or damaged: download it again"
    if "not support" in reason or "model type" in reason or "model_type" in reason:
        remedy = "a newer transformers may know it: pip install -U transformers"
    return f"transformers cannot load '{path}' ({reason}); {remedy}"


# GGUF files


def load_gguf(path: Path, device: Any, options: LoadOptions) -> Loaded:
    """Load a GGUF file, its weights dequantised."""
    torch = require("torch")
    require("accelerate")  # without it transformers refuses GGUF files, with another install line
    with one_line(path):
        check_gguf_kind(path)
        metadata = read_gguf(path)
    own = getattr(torch, GGUF_DTYPES.get(metadata.get("general.file_type", -1), "float32"))
    dtype = choose_dtype(torch, device, options, own)
    n_vocab = len(metadata["tokenizer.ggml.tokens"])
    with one_line(path):
        tokenizer = gguf_tokenizer(path, metadata, n_vocab)
        report(options, 0.1)
        model = gguf_model(path, dtype, device, options)
    report(options, 1.0)
    trained = n_trained(model.config)
    return Loaded(path, path.name, model, tokenizer, n_vocab, trained, device, metadata)


def read_gguf(path: Path) -> Mapping[str, Any]:
    """The file's key-value pairs; of the long arrays, only the tokens are there as a list."""
    integration = require("transformers.integrations.gguf")
    read = whole_model_readers()[integration, "read_gguf_metadata"]
    metadata, tensors = read(str(path), ("tokenizer.ggml.tokens",))
    if "tokenizer.ggml.tokens" not in metadata:
        raise ModelError(f"'{path}' has no vocabulary; give a file with a tokenizer")
    check_gguf_layers(path, metadata, tensors)
    return dict(metadata)


def gguf_model(path: Path, dtype: Any, device: Any, options: LoadOptions) -> Any:
    """The model in a GGUF file, from the cache of dequantised weights where there is one."""
    if options.weights_cache is None:
        return dequantise(path, dtype, options).to(device)
    folder = Path(options.weights_cache) / cache_key(path, dtype)
    if folder.is_dir():
        try:
            return stored(folder, dtype, device)
        except ModelError as error:
            reason = first_line(error.__cause__ or error)
            remark = f"weights_cache: '{folder}' is damaged ({reason}); it is made again"
            warnings.warn(remark, Remark, stacklevel=2)
            remove(folder)
    store(dequantise(path, dtype, options), folder)
    return stored(folder, dtype, device)


def dequantise(path: Path, dtype: Any, options: LoadOptions) -> Any:
    """The model in a GGUF file, every weight a plain number."""
    transformers = require("transformers")
    where = {"gguf_file": path.name, **LOCAL}
    with parsed_once(options):
        config = transformers.AutoConfig.from_pretrained(str(path.parent), **where)
        check_kind(config, path)
        check_gguf_fits(path, dtype)
        return pretrained(
            path,
            str(path.parent),
            config=config,
            dtype=dtype,
            **PLAIN(transformers),
            **where,
        )


def PLAIN(transformers: Any) -> dict[str, Any]:
    return {"quantization_config": transformers.GgufConfig(dequantize=True)}


@contextmanager
def parsed_once(options: LoadOptions) -> Iterator[None]:
    """While a GGUF model is loaded: read all its files, build its table of names once, report.

    transformers builds the table for each of the model's modules: more than half of the time for a
    model of 135M.
    """
    gguf, loader = require("gguf"), require("transformers.modeling_gguf_pytorch_utils")
    own = {
        **whole_model_readers(),
        (gguf, "get_tensor_name_map"): functools.lru_cache(1)(gguf.get_tensor_name_map),
        (loader, "tqdm"): functools.partial(reported, options),
    }
    theirs = {place: getattr(*place) for place in own}
    try:
        for (module, name), value in own.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in theirs.items():
            setattr(module, name, value)


def reported(options: LoadOptions, tensors: list[Any], **_: Any) -> Iterator[Any]:
    """In place of a bar: the tensors, each reported when the next is asked for."""
    for n_done, tensor in enumerate(tensors):
        report(options, 0.2 + 0.7 * n_done / len(tensors))
        yield tensor


def report(options: LoadOptions, share: float) -> None:
    """Tell how much is loaded."""
    if options.progress is not None:
        options.progress(share)


# Dequantised weights on disk


def cache_key(path: Path, dtype: Any) -> str:
    """A folder's name that changes with the file, the type, and the code that made it."""
    facts = [shard.stat() for shard in shards_of(path)]
    files = [fact for file in facts for fact in (file.st_size, file.st_mtime_ns)]
    parts = (path.resolve(), *files, dtype, versions()["transformers"])
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()
    return f"{path.stem}-{digest[:16]}"


def stored(folder: Path, dtype: Any, device: Any) -> Any:
    """The model that `store` wrote to `folder`."""
    with one_line(folder):
        config = require("transformers").AutoConfig.from_pretrained(str(folder), **LOCAL)
        return from_folder(folder, config, dtype, device)


def remove(folder: Path) -> None:
    """Remove dequantised weights that cannot be loaded."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise OptionError(
            f"weights_cache: '{folder}' is damaged and cannot be removed "
            f"({error.strerror or error})"
        ) from error


def store(model: Any, folder: Path) -> None:
    """Write `model` to `folder`, which appears only when it is whole."""
    model.hf_quantizer = model.config.quantization_config = None
    partial = partial_folder(folder.parent)
    try:
        model.save_pretrained(str(partial))
        _publish(partial, folder)
    except (OSError, require("safetensors").SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise OptionError(
            f"weights_cache '{folder.parent}' cannot be written ({reason}); free some "
            "room, or leave it out"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_folder(parent: Path) -> Path:
    """A new folder in `parent`."""
    try:
        return Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    except OSError as error:
        raise OptionError(
            f"weights_cache '{parent}' cannot be written ({error.strerror or error})"
        ) from error


def _publish(partial: Path, folder: Path) -> None:
    try:
        os.replace(partial, folder)
    except OSError:
        if not folder.is_dir():  # else another process was quicker
            raise


# What was loaded


def describe_model(loaded: Loaded) -> dict[str, object]:
    """What was loaded, as JSON values."""
    config = loaded.model.config
    return {
        **describe_path(loaded.path),
        "quantisation": quantisation(loaded),
        "architecture": config.model_type,
        "n_params": sum(weight.numel() for weight in loaded.model.parameters()),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "attention": config._attn_implementation,
    }


def describe_path(path: Path) -> dict[str, object]:
    """Path as given and size of the weights."""
    if path.is_file():
        return describe_file(path)
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return {"file": str(path), "bytes": size}


def quantisation(loaded: Loaded) -> str | None:
    """What the weights were stored in, where that was not a plain type."""
    if loaded.metadata:
        kind = require("gguf").LlamaFileType(loaded.metadata.get("general.file_type", 0))
        return str(kind.name).removeprefix("MOSTLY_").removeprefix("ALL_")
    stored = getattr(loaded.model.config, "quantization_config", None)
    method = getattr(stored, "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))


def without_weights(loaded: Loaded) -> Loaded:
    """The same without what takes memory."""
    return Loaded(**{**loaded.__dict__, "model": None, "metadata": {}})
