"""llama.cpp behind the seam: drives ``llama_decode`` with a batch of its own.

Logits are asked for on the wanted rows only, and copied out at once: the memory that llama.cpp
points at belongs to its next call. No buffer of n_ctx x n_vocab exists anywhere.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError, ContextError, SpecxError
from specx.runtime.backend import (
    Clock,
    LoadOptions,
    Rollback,
    Tokenizer,
    check_forward,
    check_model_name,
    check_truncate,
    reject_unsupported,
)
from specx_backends.llamacpp_library import LOG, describe_library, devices, library, versions
from specx_backends.llamacpp_loading import (
    MAX_ROWS,
    Context,
    Weights,
    check_options,
    load_weights,
    make_context,
)
from specx_backends.llamacpp_tokenizer import LlamaCppTokenizer

__all__ = ["LlamaCppFactory", "LlamaCppModel", "backend"]

SEQUENCE = 0
HASHED_BYTES = 64 << 20
NO_ROWS: NDArray[np.float32] = np.empty((0, 0), np.float32)


class LlamaCppFactory:
    """Loads GGUF files; `specx.runtime.backend.BackendFactory`."""

    name = "llamacpp"
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

    def about(self) -> Mapping[str, object]:
        """Versions, build flags and devices; loads no model."""
        return describe_library()


backend = LlamaCppFactory()


class LlamaCppModel:
    """A GGUF model with one sequence in its KV cache; `specx.runtime.backend.LogitsBackend`."""

    def __init__(
        self,
        lib: Any,
        weights: Weights,
        context: Context,
        tokenizer: LlamaCppTokenizer,
        options: LoadOptions,
    ) -> None:
        self.name = f"llamacpp:{weights.path.name}"
        self.n_vocab: int = tokenizer.n_vocab
        self.n_ctx: int = context.n_ctx
        self.tokenizer: Tokenizer = tokenizer
        self.clock: Clock = time.perf_counter
        self._lib = lib
        self._weights = weights
        self._context = context
        self._options = options
        self._buffers = dict(LOG.buffers)
        self._batch = Batch(lib, context.n_batch)
        self._n_past = 0
        self._snapshot: Snapshot | None = None
        self.rollback: Rollback = "none"
        self.rollback = self._probe()
        if self.rollback == "checkpoint":
            self._snapshot = Snapshot()

    @property
    def n_past(self) -> int:
        return self._n_past

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        """Append `tokens`; return the logits of the last `n_logits`, as `LogitsBackend` says."""
        self._weights.require_open()
        ids = check_forward(self, tokens, n_logits)
        rows = np.empty((n_logits, self.n_vocab), np.float32)
        n_past = self._n_past
        try:
            self._feed(ids, rows)
        except BaseException:  # Ctrl-C too: the cache may hold more than we counted
            self._undo(n_past)
            raise
        return rows

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on, as `LogitsBackend` says."""
        self._weights.require_open()
        check_truncate(self, n_past)
        if n_past < self._n_past:
            self._forget(n_past)

    def checkpoint(self) -> None:
        """From now on `truncate` can return to any position from `n_past` on.

        Raises
        ------
        BackendError
            If this model cannot forget at all (`rollback` is ``none``).
        """
        self._weights.require_open()
        if self.rollback == "none":
            raise BackendError(f"{self.name} cannot forget tokens, so it cannot be rewound")
        if self._snapshot is not None:
            self._snapshot = self._take_snapshot()

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
            "n_batch": self._context.n_batch,
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

    def __enter__(self) -> LlamaCppModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _devices(self) -> list[object]:
        """Names of the devices it runs on: a GPU only where layers were offloaded."""
        idle = () if self._weights.n_gpu_layers else ("gpu", "igpu")
        return [device["name"] for device in devices(self._lib) if device["type"] not in idle]

    def _feed(self, ids: NDArray[np.integer[Any]], rows: NDArray[np.float32]) -> None:
        """Decode `ids` in chunks and fill `rows` with the last logits."""
        n_filled = 0
        for start, stop, n_wanted in chunks(ids.size, len(rows), self._batch.width):
            self._decode(ids[start:stop], n_wanted)
            self._copy_logits(stop - start, rows[n_filled : n_filled + n_wanted])
            n_filled += n_wanted
        if not len(rows):
            self._lib.llama_synchronize(self._context.pointer)  # else the next call pays for it

    def _decode(self, ids: NDArray[np.integer[Any]], n_wanted: int) -> None:
        batch = self._batch.fill(ids, self._n_past, n_wanted)
        code = self._lib.llama_decode(self._context.pointer, batch)
        if code != 0:
            raise self._decode_failure(code, ids.size)
        self._n_past += ids.size
        if self._snapshot is not None:
            self._snapshot.tokens_since.extend(ids.tolist())

    def _decode_failure(self, code: int, n_tokens: int) -> SpecxError:
        where = f"{self.name}: {n_tokens} tokens at position {self._n_past}"
        if code == 1:
            return ContextError(f"{where} found no room in the KV cache of {self.n_ctx}")
        if code == 2:
            return BackendError(f"{where} were not computed: llama.cpp was told to stop")
        reason = LOG.reason("it gave no reason")
        return BackendError(f"{where} were not computed: llama.cpp failed with {code} ({reason})")

    def _copy_logits(self, n_fed: int, rows: NDArray[np.float32]) -> None:
        target, n_bytes = rows.ctypes.data, self.n_vocab * rows.itemsize
        for index in range(n_fed - len(rows), n_fed):
            source = self._lib.llama_get_logits_ith(self._context.pointer, index)
            if not source:
                raise BackendError(f"{self.name}: llama.cpp holds no logits of row {index}")
            ctypes.memmove(target, source, n_bytes)
            target += n_bytes

    def _forget(self, n_past: int) -> None:
        if self._snapshot is not None and n_past > 0:
            self._replay(self._snapshot, n_past)
        else:
            self._remove(n_past)

    def _remove(self, n_past: int) -> None:
        """Drop cache entries from `n_past` on; whatever can forget nothing can forget all."""
        if not self._remove_entries(n_past):
            raise BackendError(f"{self.name}: llama.cpp could not forget what follows {n_past}")
        self._n_past = n_past
        if self._snapshot is not None:
            self._snapshot = Snapshot()

    def _remove_entries(self, n_past: int) -> bool:
        """Whether the cache now ends before position `n_past`."""
        memory = self._context.memory
        if not self._lib.llama_memory_seq_rm(memory, SEQUENCE, n_past, -1):
            return False
        last: int = self._lib.llama_memory_seq_pos_max(memory, SEQUENCE)
        return last < n_past

    def _undo(self, n_past: int) -> None:
        """After a failed call: back to `n_past`, or to an empty cache where that fails too."""
        try:
            self._forget(n_past)
        except SpecxError:
            self._remove(0)

    def _take_snapshot(self) -> Snapshot:
        lib, context = self._lib, self._context.pointer
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = lib.llama_state_seq_get_size_ext(context, SEQUENCE, flags)
        state = (ctypes.c_uint8 * size)()
        if (
            not size
            or lib.llama_state_seq_get_data_ext(context, state, size, SEQUENCE, flags) != size
        ):
            raise BackendError(f"{self.name}: llama.cpp could not save its state")
        return Snapshot(self._n_past, state)

    def _replay(self, snapshot: Snapshot, n_past: int) -> None:
        """Back to the snapshot, then feed again what came after it, up to `n_past`."""
        if n_past < snapshot.n_past:
            raise BackendError(
                f"{self.name}: cannot truncate to {n_past}, before the checkpoint at "
                f"{snapshot.n_past}"
            )
        tokens = snapshot.tokens_since[: n_past - snapshot.n_past]
        self._restore(snapshot)
        snapshot.tokens_since.clear()
        if tokens:
            self._feed(np.asarray(tokens), NO_ROWS)

    def _restore(self, snapshot: Snapshot) -> None:
        lib, context, state = self._lib, self._context.pointer, snapshot.state
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        if state is not None and not lib.llama_state_seq_set_data_ext(
            context, state, len(state), SEQUENCE, flags
        ):
            raise BackendError(f"{self.name}: llama.cpp could not restore its state")
        if not self._remove_entries(snapshot.n_past):
            raise BackendError(f"{self.name}: llama.cpp restored another position than it saved")
        self._n_past = snapshot.n_past

    def _probe(self) -> Rollback:
        """Feed two tokens and take one back: what this model can do shows best by doing it."""
        token = np.array([self.tokenizer.bos_id or 0])
        self._feed(np.repeat(token, 2), NO_ROWS)
        native = self._remove_entries(1)
        able: Rollback = "native" if native else self._probe_checkpoint(token)
        self._remove(0)
        return able

    def _probe_checkpoint(self, token: NDArray[np.integer[Any]]) -> Rollback:
        self._remove(0)
        self._feed(token, NO_ROWS)
        try:
            snapshot = self._take_snapshot()
            self._feed(token, NO_ROWS)
            self._restore(snapshot)
        except BackendError:
            return "none"
        return "checkpoint"


@dataclass
class Snapshot:
    """The state at `n_past`, None for an empty one, and the tokens fed since."""

    n_past: int = 0
    state: ctypes.Array[ctypes.c_uint8] | None = None
    tokens_since: list[int] = field(default_factory=list)


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

    def fill(self, ids: NDArray[np.integer[Any]], n_past: int, n_wanted: int) -> Any:
        """The batch of `ids` from position `n_past` on, logits wanted on the last `n_wanted`."""
        size = ids.size
        self._tokens[:size] = ids
        np.add(self._offsets[:size], n_past, out=self._positions[:size])
        self._wanted[: size - n_wanted] = 0
        self._wanted[size - n_wanted : size] = 1
        self._struct.n_tokens = size
        return self._struct


def chunks(n_tokens: int, n_logits: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Cut a feed into calls: (start, stop, wanted rows, which are the last of the call).

    Each is at most `width` tokens wide and asks for at most `MAX_ROWS` rows.
    """
    first_wanted = n_tokens - n_logits
    start = 0
    while start < n_tokens:
        stop = min(n_tokens, start + width, max(start, first_wanted) + MAX_ROWS)
        yield start, stop, max(0, stop - max(start, first_wanted))
        start = stop


def describe_file(path: Path) -> dict[str, object]:
    """Path as given, size, and the hash where it is quick."""
    size = path.stat().st_size
    told: dict[str, object] = {"file": str(path), "bytes": size}
    if size <= HASHED_BYTES:
        told["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return told
