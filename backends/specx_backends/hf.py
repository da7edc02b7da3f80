"""PyTorch and transformers behind the seam: GGUF files, folders and cached hub ids.

Weights of a GGUF file are dequantised, so that the same weights run on two runtimes. Only the rows
of logits that are asked for are computed. A sliding window is a mask here, not a shorter cache:
what has slid out of a shorter one would be missing after a rollback.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from specx.errors import BackendError, ContextError, LogitsError, ModelError, SpecxError
from specx.runtime.backend import LoadOptions, check_model_name, reject_unsupported
from specx.runtime.inspection import Inspection
from specx_backends.hf_inspection import inspect_model
from specx_backends.hf_library import describe_library, quiet, require, synchronize, versions
from specx_backends.hf_loading import (
    Loaded,
    check_options,
    describe_model,
    load,
    n_ctx_of,
    without_weights,
)
from specx_backends.library import first_line
from specx_backends.rewinding import Ids, RewindingModel, Rows

__all__ = ["HfFactory", "HfModel", "backend"]

DEFAULT_BATCH = 512
MOST_ROUNDING = 0.02
"""Of the spread of logits; 16-bit types reach some 0.005 of it."""


class HfFactory:
    """Loads GGUF files, folders and cached hub ids; `specx.runtime.backend.BackendFactory`."""

    name = "hf"
    title = "transformers"
    counterpart = "llamacpp"
    options = frozenset(
        {"n_ctx", "n_batch", "threads", "dtype", "device", "offline", "weights_cache"}
    )

    def load(self, model: str, options: LoadOptions) -> HfModel:
        """Load the GGUF file or the folder at the path `model`, or the hub id `model`."""
        model = check_model_name(model)
        reject_unsupported(self, options)
        check_options(options)
        require("torch")
        require("transformers")
        with quiet(options.verbose):
            loaded = load(model, options)
        n_ctx = n_ctx_of(loaded, options)
        with quiet(options.verbose):
            return HfModel(loaded, n_ctx, options.n_batch or DEFAULT_BATCH)

    def inspect(self, model: str, options: LoadOptions) -> Inspection:
        """What the files of `model` say; nothing is downloaded, and torch is not loaded."""
        reject_unsupported(self, options)
        check_options(options)
        return inspect_model(check_model_name(model), options)

    def about(self) -> Mapping[str, object]:
        """Versions and devices; loads no model."""
        return describe_library()


backend = HfFactory()


class HfModel(RewindingModel[Any]):
    """A causal language model with one sequence in its cache; a `LogitsBackend`."""

    def __init__(self, loaded: Loaded, n_ctx: int, n_batch: int) -> None:
        super().__init__(
            name=f"hf:{loaded.name}",
            n_vocab=loaded.n_vocab,
            n_ctx=n_ctx,
            tokenizer=loaded.tokenizer,
            n_batch=n_batch,
        )
        self._torch = require("torch")
        self._loaded = loaded
        self._model: Any = loaded.model
        self._facts = describe_model(loaded)
        self._cache: Any = None
        self._takes = frozenset(inspect.signature(loaded.model.forward).parameters)
        if not self._takes & {"cache", "past_key_values"}:
            raise ModelError(f"{self.name} keeps no KV cache; give a model that has one")
        with self._in_words(1):
            self._find_rollback()
            self._together = self.rollback == "native" or self._goes_on_together()
            self._empty()

    @property
    def module(self) -> Any:
        """The `transformers` model itself, for a use of the same weights beside this cache.

        Raises
        ------
        BackendError
            If the model was closed.
        """
        self._require_open()
        return self._model

    def describe(self) -> dict[str, object]:
        """What is loaded, as JSON values.

        ``sha256`` is there for files up to 64 MiB only: hashing some gigabytes takes seconds.
        """
        return {
            **self._facts,
            "n_vocab": self.n_vocab,
            "n_ctx": self.n_ctx,
            "n_ctx_train": self._loaded.n_ctx_train,
            "n_batch": self._n_batch,
            "devices": [str(self._loaded.device)],
            "threads": self._torch.get_num_threads(),
            "rollback": self.rollback,
            "versions": dict(versions()),
        }

    def close(self) -> None:
        """Free the model; safe to call twice."""
        if self._model is not None:
            self._model = self._cache = self._snapshot = None
            self._loaded = without_weights(self._loaded)
            if self._loaded.device.type == "cuda":
                self._torch.cuda.empty_cache()

    def _require_open(self) -> None:
        if self._model is None:
            raise BackendError(f"{self.name} was closed; load it again")

    # Feeding

    def _run(self, ids: Ids, rows: Rows) -> None:
        with self._in_words(ids.size), self._torch.inference_mode():
            logits = self._logits(ids, len(rows))
            if len(rows):
                rows[:] = logits.float().cpu().numpy()

    def _logits(self, ids: Ids, n_wanted: int) -> Any:
        """Logits of the last `n_wanted` of `ids`, (n_wanted, n_vocab), on the device."""
        torch = self._torch
        row = torch.as_tensor(ids, dtype=torch.long, device=self._loaded.device)[None]
        logits = self._model(input_ids=row, **self._arguments(ids.size, n_wanted)).logits[0]
        wanted = logits[len(logits) - n_wanted :]
        self._check(wanted)
        return wanted

    def _check(self, rows: Any) -> None:
        """Refuse logits of another width, or out of float16's range, as in bfloat16 models."""
        if rows.shape[-1] != self.n_vocab:
            raise ModelError(
                f"{self.name} has logits of {rows.shape[-1]} tokens, its configuration says "
                f"{self.n_vocab}; the files do not belong together"
            )
        if rows.dtype == self._torch.float16 and not rows.amax(-1).isfinite().all():
            raise LogitsError(
                f"{self.name} after position {self._n_past}: the logits hold nan or inf, as "
                "float16 ends at 65,504; try --dtype float32"
            )

    def _arguments(self, n_tokens: int, n_wanted: int) -> dict[str, Any]:
        """What else this model's forward takes; of logits at least one row, since 0 means all."""
        torch = self._torch
        ends = (self._n_past, self._n_past + n_tokens)
        positions = torch.arange(*ends, device=self._loaded.device)
        offered = {
            "cache": self._cache,
            "past_key_values": self._cache,
            "position_ids": positions[None],
            "cache_position": positions,
            "logits_to_keep": max(1, n_wanted),
        }
        return {"use_cache": True} | {k: v for k, v in offered.items() if k in self._takes}

    @contextmanager
    def _in_words(self, n_tokens: int) -> Iterator[None]:
        """Turn what torch raises while it feeds `n_tokens` into one line."""
        try:
            yield
        except SpecxError:
            raise
        except Exception as error:
            where = f"{self.name}: {n_tokens} tokens at position {self._n_past}"
            if isinstance(error, (MemoryError, self._torch.OutOfMemoryError)):
                raise ContextError(
                    f"{where} ran out of memory; try a smaller n_batch or prompt"
                ) from error
            raise BackendError(f"{where} were not computed: {first_line(error)}") from error

    def _synchronize(self) -> None:
        synchronize(self._torch, self._loaded.device)

    # Forgetting

    def _clear(self) -> None:
        self._cache = new_cache(self._model.config)

    def _cut(self, n_past: int) -> None:
        """Cut every layer to `n_past` positions: an interrupted call leaves them uneven."""
        with self._torch.inference_mode():
            for layer in self._cache.layers:
                if (excess := length_of(layer) - n_past) > 0:
                    layer.crop(-excess)
        if (length := self._cache.get_seq_length()) != n_past:
            raise BackendError(f"{self.name}: cropped to {n_past}, the cache holds {length} tokens")

    def _save(self) -> Any:
        return self._copied(self._cache)

    def _restore(self, state: Any, n_past: int) -> None:
        self._cache = self._copied(state)

    def _export(self) -> tuple[Any, int]:
        made: dict[int, Any] = {}
        copied = self._copied(self._cache, made)
        return copied, sum(storage_sizes(made.values()).values())

    def _import(self, state: Any, n_past: int) -> None:
        self._restore(state, n_past)

    def _copied(self, cache: Any, made: dict[int, Any] | None = None) -> Any:
        """A copy; all objects that were copied for it go into `made`."""
        with self._torch.inference_mode():
            return copy.deepcopy(cache, made)

    # What this model can do

    def _comes_back(self) -> bool:
        """Whether logits after a rollback are those before it: a cache may only claim to be cut."""
        token = np.array([self.tokenizer.bos_id or 0])
        other = (token + 1) % self.n_vocab
        self._call(token)
        self.checkpoint()
        wanted = self._rows(other)
        self._call(token)
        try:
            self._forget(1)
        except (SpecxError, AttributeError, RuntimeError, ValueError, NotImplementedError):
            return False
        return np.array_equal(self._rows(other), wanted)

    def _rows(self, ids: Ids) -> Rows:
        """Logits of all `ids`, fed in one call."""
        rows = np.empty((ids.size, self.n_vocab), np.float32)
        self._call(ids, rows)
        return rows

    def _goes_on_together(self) -> bool:
        """Whether several tokens fed after others see their state.

        Some recurrent layers of transformers start a call of several tokens from an empty state.
        Then the difference is of the size of the logits, far above that of rounding.
        """
        ids = np.arange(12) % self.n_vocab
        alone, together = (self._fed_after_eight(ids, width) for width in (1, 4))
        spread = alone.max() - alone.min()
        return bool(np.abs(alone - together).max() <= MOST_ROUNDING * spread)

    def _fed_after_eight(self, ids: Ids, width: int) -> Rows:
        """Logits of all `ids` after the first eight, which were fed together."""
        self._empty()
        self._call(ids[:8])
        return np.concatenate([self._rows(ids[i : i + width]) for i in range(8, ids.size, width)])


def new_cache(config: Any) -> Any:
    """An empty cache for a model: its recurrent layers as they are, its sliding ones whole."""
    utils = require("transformers.cache_utils")
    cache = utils.DynamicCache(config=config)
    for index, layer in enumerate(cache.layers):
        if type(layer) is utils.DynamicSlidingWindowLayer:
            cache.layers[index] = utils.DynamicLayer()
    return cache


def storage_sizes(values: Iterable[Any]) -> dict[int, int]:
    """Bytes by address of what the tensors among `values` keep, with what cropping left there."""
    storages = [value.untyped_storage() for value in values if hasattr(value, "untyped_storage")]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def length_of(layer: Any) -> int:
    """Positions that a cache's layer holds; 0 for one that borrows another's."""
    length = getattr(layer, "get_seq_length", None)
    return int(length()) if length is not None else 0
