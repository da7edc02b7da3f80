"""From a path to weights and a context, each failure told in one line with its remedy."""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specx.errors import BackendError, ContextError, ModelError, OptionError
from specx.runtime.backend import LoadOptions, Tokenizer, choose_n_ctx
from specx.runtime.metadata import Metadata
from specx_backends.files import check_file, warn_beyond_training
from specx_backends.llamacpp_header import check_header, check_positions, is_odd
from specx_backends.llamacpp_library import LOG, devices, has_gpu
from specx_backends.llamacpp_trial import require_survival
from specx_backends.threads import physical_cores

__all__ = [
    "MAX_ROWS",
    "Context",
    "Weights",
    "cache_type",
    "check_options",
    "gpu_layers",
    "load_weights",
    "make_context",
]

CACHE_TYPES = {
    name: f"GGML_TYPE_{name.upper()}"
    for name in ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
}
BF16 = 30  # in ggml_type; the bindings leave it out
DEFAULT_BATCH = 512
MAX_ROWS = 64
"""Rows of logits that one call to llama.cpp may ask for; more are fetched in several calls.

llama.cpp keeps them twice, once among its compute buffers: at 151,936 entries 39 MB each, where its
own default of a whole batch takes 311 MB each. It aborts the process when asked for more.
"""

REBUILD = (
    "CMAKE_ARGS=-DGGML_CUDA=on (or -DGGML_METAL=on, -DGGML_VULKAN=on) "
    "pip install --force-reinstall --no-cache-dir llama-cpp-python"
)


class Weights:
    """A model file in memory; freed by `close`, by the collector, or when the process ends."""

    def __init__(self, lib: Any, pointer: Any, header: Metadata, n_gpu_layers: int) -> None:
        self.path = header.path
        self.header = header
        self.n_gpu_layers = n_gpu_layers
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(pointer)
        self._lib = lib
        self._pointer = pointer
        self._vocab = lib.llama_model_get_vocab(pointer)
        self._free = weakref.finalize(self, lib.llama_model_free, pointer)

    @property
    def pointer(self) -> Any:
        self.require_open()
        return self._pointer

    @property
    def vocab(self) -> Any:
        self.require_open()
        return self._vocab

    def require_open(self) -> None:
        """Raise BackendError after `close`, where llama.cpp would crash."""
        if not self._free.alive:
            raise BackendError(f"{self.path.name} was closed; load it again")

    def metadata(self, key: str) -> str | None:
        """A scalar of the file's metadata; None where it lacks the key."""
        buffer = ctypes.create_string_buffer(256)
        size = self._lib.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if size >= 0 else None

    def close(self) -> None:
        self._free()


class Context:
    """A KV cache and its compute buffers; keeps its weights, which must be freed after it."""

    def __init__(
        self, lib: Any, weights: Weights, pointer: Any, n_ctx: int, n_threads: int
    ) -> None:
        self.pointer = pointer
        self._weights = weights
        self.memory = lib.llama_get_memory(pointer)
        self.n_batch: int = lib.llama_n_batch(pointer)
        self.n_ctx = min(n_ctx, lib.llama_n_ctx(pointer))  # llama.cpp rounds up to 256
        self.n_threads = n_threads
        self.close = weakref.finalize(self, lib.llama_free, pointer)


def check_options(options: LoadOptions) -> None:
    """Raise OptionError for a value that no model could be loaded with."""
    for name in ("cache_type_k", "cache_type_v"):
        value = getattr(options, name)
        if value is not None and value not in (*CACHE_TYPES, "bf16"):
            raise OptionError(f"{name} '{value}' is unknown; known: {', '.join(CACHE_TYPES)}, bf16")


def load_weights(
    lib: Any, path: Path, options: LoadOptions, *, vocab_only: bool = False
) -> Weights:
    """Load the file's tensors, offloaded as `options` say, or its tokenizer alone."""
    check_file(path)
    header = check_header(path)
    if is_odd(header):
        require_survival(path)
    progress = _Progress(options.progress)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = gpu_layers(lib, options.n_gpu_layers)
    params.vocab_only = vocab_only
    params.progress_callback = callback = lib.llama_progress_callback(progress)
    pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
    del callback  # referenced up to here: llama.cpp calls it while it loads, and not later
    weights = Weights(lib, pointer, header, params.n_gpu_layers) if pointer else None
    if progress.error is not None:
        raise progress.error
    if weights is None:
        raise ModelError(_load_failure(path, LOG.reason("no reason given")))
    _check_kind(lib, weights)
    return weights


class _Progress:
    """Reports the loaded share; an exception (Ctrl-C too) stops the load and is kept for later."""

    def __init__(self, report: Callable[[float], None] | None) -> None:
        self.error: BaseException | None = None
        self._report = report or (lambda share: None)

    def __call__(self, share: float, _user: object) -> bool:
        try:
            self._report(share)
        except BaseException as error:
            self.error = error
        return self.error is None


def _load_failure(path: Path, reason: str) -> str:
    remedy = "the file may be cut or damaged: download it again"
    if "architecture" in reason or "pre-tokenizer" in reason:
        remedy = "a newer llama.cpp may know it: pip install -U llama-cpp-python"
    return f"llama.cpp cannot load '{path}' ({reason}); {remedy}"


def _check_kind(lib: Any, weights: Weights) -> None:
    """Refuse what has no next-token distribution given the tokens before it."""
    kinds = {
        "an encoder-decoder": lib.llama_model_has_encoder,
        "a diffusion": lib.llama_model_is_diffusion,
    }
    for kind, is_kind in kinds.items():
        if is_kind(weights.pointer):
            raise ModelError(
                f"'{weights.path}' is {kind} model; give one that decodes left to right"
            )


def gpu_layers(lib: Any, asked: int | None) -> int:
    """Layers to offload: all where there is a GPU, unless `asked` for a number; -1 means all."""
    gpu = has_gpu(devices(lib))
    if asked and not gpu:
        raise OptionError(
            f"n_gpu_layers is {asked}, but this llama.cpp sees no GPU; leave it out, or: {REBUILD}"
        )
    if asked is None:
        return -1 if gpu else 0
    return asked


def make_context(lib: Any, weights: Weights, options: LoadOptions, tokenizer: Tokenizer) -> Context:
    """Allocate KV cache and compute buffers."""
    if options.n_ctx is not None:
        check_positions(weights.header, options.n_ctx)
    n_ctx = choose_n_ctx(options, tokenizer, weights.n_ctx_train)
    warn_beyond_training(weights.path, n_ctx, weights.n_ctx_train)
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = options.n_batch or DEFAULT_BATCH
    params.n_ubatch = min(params.n_batch, DEFAULT_BATCH)
    params.n_outputs_max = min(params.n_batch, MAX_ROWS)
    params.n_outputs_max_per_seq = params.n_outputs_max
    params.n_threads = params.n_threads_batch = options.threads or physical_cores()
    params.type_k = cache_type(lib, options.cache_type_k)
    params.type_v = cache_type(lib, options.cache_type_v)
    params.swa_full = True  # a sliding window's cache forgets what a rewind would need
    pointer = lib.llama_init_from_model(weights.pointer, params)
    if not pointer:
        raise _context_failure(weights, n_ctx)
    context = Context(lib, weights, pointer, n_ctx, params.n_threads)
    if not context.memory:
        raise ModelError(f"'{weights.path}' has no KV cache (an embedding model?); give a decoder")
    return context


def cache_type(lib: Any, name: str | None) -> int:
    """The ggml_type of a cache element; f16 by default.

    A quantised V needs flash attention, which llama.cpp turns on by itself then.
    """
    number: int = BF16 if name == "bf16" else getattr(lib, CACHE_TYPES[name or "f16"])
    return number


def _context_failure(weights: Weights, n_ctx: int) -> OptionError | ContextError:
    reason = LOG.reason("not enough memory?")
    if re.match("[KV] cache type|model does not support different K", reason):
        return OptionError(f"{weights.path.name}: {reason}; choose another cache type")
    return ContextError(
        f"{weights.path.name}: no context of {n_ctx} positions ({reason}); try a smaller n_ctx"
    )
