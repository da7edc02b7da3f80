"""llama.cpp behind the seam: drives ``llama_decode`` with a batch of its own.

Logits are asked for on the wanted rows only, and copied out at once: the memory that llama.cpp
points at belongs to its next call. No buffer of n_ctx x n_vocab exists anywhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from specx.errors import BackendError, ContextError, SpecxError
from specx.runtime.backend import LoadOptions, check_model_name, reject_unsupported
from specx.runtime.inspection import Inspection
from specx.runtime.memory import MemoryNeeded
from specx.runtime.trimming import Trimmed
from specx_backends.files import check_file, describe_file
from specx_backends.gguf_inspection import inspect_header
from specx_backends.llamacpp_header import check_header, is_odd
from specx_backends.llamacpp_library import LOG, describe_library, devices, library, versions
from specx_backends.llamacpp_loading import (
    MAX_ROWS,
    Context,
    Weights,
    check_options,
    gpu_layers,
    load_weights,
    make_context,
)
from specx_backends.llamacpp_memory import cache_needed
from specx_backends.llamacpp_tokenizer import LlamaCppTokenizer
from specx_backends.llamacpp_trimming import trim_file
from specx_backends.rewinding import Ids, RewindingModel, Rows

__all__ = ["LlamaCppFactory", "LlamaCppModel", "backend"]

SEQUENCE = 0
WHOLE = 0
"""Flags for a state with all that the sequence has, not only what cannot be cut."""
State: TypeAlias = "ctypes.Array[ctypes.c_uint8]"


class LlamaCppFactory:
    """Loads GGUF files; `specx.runtime.backend.BackendFactory`."""

    name = "llamacpp"
    title = "llama.cpp"
    counterpart = "hf"
    options = frozenset(
        {"n_ctx", "n_batch", "n_gpu_layers", "threads", "cache_type_k", "cache_type_v", "offline"}
    )

    def load(self, model: str, options: LoadOptions) -> LlamaCppModel:
        """Load the GGUF file at the path `model`."""
        model = check_model_name(model)
        reject_unsupported(self, options)
        check_options(options)
        lib = library()
        LOG.start(options.verbose)
        weights = load_weights(lib, Path(model), options)
        tokenizer = LlamaCppTokenizer(lib, weights)
        context = make_context(lib, weights, options, tokenizer)
        return LlamaCppModel(lib, weights, context, tokenizer, options)

    def memory_needed(self, model: str, options: LoadOptions) -> MemoryNeeded | None:
        """What the KV cache takes of this machine's memory: llama.cpp writes all of it at once."""
        reject_unsupported(self, options)
        check_options(options)
        on_gpu = gpu_layers(library(), options.n_gpu_layers)
        return None if on_gpu else cache_needed(Path(check_model_name(model)), options)

    def inspect(self, model: str, options: LoadOptions) -> Inspection:
        """What the GGUF file at the path `model` says; llama.cpp itself is not loaded."""
        reject_unsupported(self, options)
        check_options(options)
        path = Path(check_model_name(model))
        check_file(path)
        header = check_header(path)
        found = inspect_header(header, options)
        if not is_odd(header):
            return found
        remark = "it is a rare kind of file, which llama.cpp may not survive; --load tries it"
        return replace(found, remarks=[*found.remarks, remark])

    def trim(self, model: str, keep: int, texts: Iterable[str] | None) -> Trimmed:
        """The GGUF file at the path `model` with fewer vocabulary entries."""
        lib = library()
        LOG.start(verbose=False)
        return trim_file(lib, Path(check_model_name(model)), keep, texts)

    def about(self) -> Mapping[str, object]:
        """Versions, build flags and devices; loads no model."""
        return describe_library()


backend = LlamaCppFactory()


class LlamaCppModel(RewindingModel[State]):
    """A GGUF model with one sequence in its KV cache; `specx.runtime.backend.LogitsBackend`."""

    def __init__(
        self,
        lib: Any,
        weights: Weights,
        context: Context,
        tokenizer: LlamaCppTokenizer,
        options: LoadOptions,
    ) -> None:
        super().__init__(
            name=f"llamacpp:{weights.path.name}",
            n_vocab=tokenizer.n_vocab,
            n_ctx=context.n_ctx,
            tokenizer=tokenizer,
            n_batch=context.n_batch,
            most_rows=MAX_ROWS,
        )
        self._lib = lib
        self._weights = weights
        self._context = context
        self._options = options
        self._buffers = dict(LOG.buffers)
        self._batch = Batch(lib, context.n_batch)
        self._find_rollback()

    def describe(self) -> dict[str, object]:
        """What is loaded, as JSON values.

        ``sha256`` is there for files up to 64 MiB only: hashing some gigabytes takes seconds.
        ``buffers_mib`` are the sizes that llama.cpp logged while loading.
        """
        lib, model, options = self._lib, self._weights.pointer, self._options
        return {
            **describe_file(self._weights.path),
            "quantisation": lib.llama_ftype_name(lib.llama_model_ftype(model)).decode(),
            "architecture": self._weights.metadata("general.architecture"),
            "n_params": lib.llama_model_n_params(model),
            "n_vocab": self.n_vocab,
            "n_ctx": self.n_ctx,
            "n_ctx_train": self._weights.n_ctx_train,
            "n_batch": self._n_batch,
            "n_gpu_layers": self._weights.n_gpu_layers,
            "devices": self._devices(),
            "threads": self._context.n_threads,
            "cache_type_k": options.cache_type_k or "f16",
            "cache_type_v": options.cache_type_v or "f16",
            "buffers_mib": self._buffers,
            "rollback": self.rollback,
            "versions": versions(lib),
        }

    def close(self) -> None:
        """Free context and weights; safe to call twice."""
        self._context.close()
        self._weights.close()

    def _devices(self) -> list[object]:
        """Names of the devices it runs on: a GPU only where layers were offloaded."""
        idle = () if self._weights.n_gpu_layers else ("gpu", "igpu")
        return [device["name"] for device in devices(self._lib) if device["type"] not in idle]

    def _require_open(self) -> None:
        self._weights.require_open()

    # Feeding

    def _run(self, ids: Ids, rows: Rows) -> None:
        batch = self._batch.fill(ids, self._n_past, len(rows))
        code = self._lib.llama_decode(self._context.pointer, batch)
        if code != 0:
            raise self._decode_failure(code, ids.size)
        self._copy_logits(ids.size, rows)

    def _decode_failure(self, code: int, n_tokens: int) -> SpecxError:
        where = f"{self.name}: {n_tokens} tokens at position {self._n_past}"
        if code == 1:
            return ContextError(f"{where} found no room in the KV cache of {self.n_ctx}")
        if code == 2:
            return BackendError(f"{where} were not computed: llama.cpp was told to stop")
        reason = LOG.reason("it gave no reason")
        return BackendError(f"{where} were not computed: llama.cpp failed with {code} ({reason})")

    def _copy_logits(self, n_fed: int, rows: Rows) -> None:
        target, n_bytes = rows.ctypes.data, self.n_vocab * rows.itemsize
        for index in range(n_fed - len(rows), n_fed):
            source = self._lib.llama_get_logits_ith(self._context.pointer, index)
            if not source:
                raise BackendError(f"{self.name}: llama.cpp holds no logits of row {index}")
            ctypes.memmove(target, source, n_bytes)
            target += n_bytes

    def _synchronize(self) -> None:
        self._lib.llama_synchronize(self._context.pointer)

    # Forgetting

    def _clear(self) -> None:
        self._cut(0)  # what can forget nothing else can forget all

    def _cut(self, n_past: int) -> None:
        """Drop cache entries from `n_past` on; a recurrent state that cannot be cut says so."""
        memory = self._context.memory
        removed = self._lib.llama_memory_seq_rm(memory, SEQUENCE, n_past, -1)
        last = self._lib.llama_memory_seq_pos_max(memory, SEQUENCE)
        if not removed or last != n_past - 1:
            raise BackendError(f"{self.name}: llama.cpp could not forget what follows {n_past}")

    def _save(self) -> State:
        return self._read_state(self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)

    def _restore(self, state: State, n_past: int) -> None:
        self._write_state(state, self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._cut(n_past)

    def _export(self) -> tuple[State, int]:
        state = self._read_state(WHOLE)
        return state, len(state)

    def _import(self, state: State, n_past: int) -> None:
        self._write_state(state, WHOLE)
        self._cut(n_past)  # nothing is cut, but it says where the cache ends

    def _read_state(self, flags: int) -> State:
        lib, context = self._lib, self._context.pointer
        size = lib.llama_state_seq_get_size_ext(context, SEQUENCE, flags)
        state: State = (ctypes.c_uint8 * size)()
        if (
            not size
            or lib.llama_state_seq_get_data_ext(context, state, size, SEQUENCE, flags) != size
        ):
            raise BackendError(f"{self.name}: llama.cpp could not save its state")
        return state

    def _write_state(self, state: State, flags: int) -> None:
        lib, context = self._lib, self._context.pointer
        if not lib.llama_state_seq_set_data_ext(context, state, len(state), SEQUENCE, flags):
            raise BackendError(f"{self.name}: llama.cpp could not restore its state")

    def _comes_back(self) -> bool:
        """Whether llama.cpp says so: it knows what it could not remove."""
        token = np.array([self.tokenizer.bos_id or 0])
        try:
            self._feed(token)
            self.checkpoint()
            self._feed(token)
            self._forget(1)
        except BackendError:
            return False
        return True


class Batch:
    """One llama_batch for good, over arrays that NumPy fills; sequence 0 throughout."""

    def __init__(self, lib: Any, width: int) -> None:
        self.width = width
        self._tokens = np.zeros(width, np.int32)
        self._positions = np.zeros(width, np.int32)
        self._wanted = np.zeros(width, np.int8)
        self._offsets = np.arange(width, dtype=np.int32)
        self._struct = lib.llama_batch(
            token=self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            pos=self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, ids: Ids, n_past: int, n_wanted: int) -> Any:
        """The batch of `ids` from position `n_past` on, logits wanted on the last `n_wanted`."""
        size = ids.size
        self._tokens[:size] = ids
        np.add(self._offsets[:size], n_past, out=self._positions[:size])
        self._wanted[: size - n_wanted] = 0
        self._wanted[size - n_wanted : size] = 1
        self._struct.n_tokens = size
        return self._struct
