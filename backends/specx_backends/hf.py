"""PyTorch and transformers behind the seam: GGUF files, folders and cached hub ids.

Weights of a GGUF file are dequantised, so that the same weights run on two runtimes. Only the rows
of logits that are asked for are computed. A sliding window is a mask here, not a shorter cache:
what has slid out of a shorter one would be missing after a rollback.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError, ContextError, LogitsError, ModelError, SpecxError
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
from specx_backends.hf_library import (
    describe_library,
    first_line,
    quiet,
    require,
    synchronize,
    versions,
)
from specx_backends.hf_loading import (
    Loaded,
    check_options,
    choose_n_ctx,
    describe_model,
    load,
    without_weights,
)

__all__ = ["HfFactory", "HfModel", "backend"]

DEFAULT_BATCH = 512
MOST_ROUNDING = 0.02
"""Of the spread of logits; 16-bit types reach some 0.005 of it."""
NO_ROWS: NDArray[np.float32] = np.empty((0, 0), np.float32)


class HfFactory:
    """Loads GGUF files, folders and cached hub ids; `specx.runtime.backend.BackendFactory`."""

    name = "hf"
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
        n_ctx = choose_n_ctx(loaded, options, loaded.tokenizer)
        with quiet(options.verbose):
            return HfModel(loaded, n_ctx, options.n_batch or DEFAULT_BATCH)

    def about(self) -> Mapping[str, object]:
        """Versions and devices; loads no model."""
        return describe_library()


backend = HfFactory()


class HfModel:
    """A causal language model with one sequence in its cache; a `LogitsBackend`."""

    def __init__(self, loaded: Loaded, n_ctx: int, n_batch: int) -> None:
        self.name = f"hf:{loaded.name}"
        self.n_vocab = loaded.n_vocab
        self.n_ctx = n_ctx
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.clock: Clock = time.perf_counter
        self._torch = require("torch")
        self._loaded = loaded
        self._model: Any = loaded.model
        self._facts = describe_model(loaded)
        self._n_batch = n_batch
        self._cache: Any = None
        self._n_past = 0
        self._snapshot: Snapshot | None = None
        self._takes = frozenset(inspect.signature(loaded.model.forward).parameters)
        self.rollback: Rollback = "none"
        self._together = True
        self.rollback = self._probe()
        self._together = self.rollback == "native" or self._goes_on_together()
        self._empty()

    @property
    def n_past(self) -> int:
        return self._n_past

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

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        """Append `tokens`; return the logits of the last `n_logits`, as `LogitsBackend` says."""
        self._require_open()
        ids = check_forward(self, tokens, n_logits)
        rows = np.empty((n_logits, self.n_vocab), np.float32)
        n_past = self._n_past
        try:
            self._feed(ids, rows)
        except SpecxError:
            self._undo(n_past)
            raise
        except Exception as error:
            failure = self._failure(error, ids.size)
            self._undo(n_past)
            raise failure from error
        except BaseException:  # Ctrl-C: some layers may hold more than others
            self._undo(n_past)
            raise
        return rows

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on, as `LogitsBackend` says."""
        self._require_open()
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
        self._require_open()
        if self.rollback == "none":
            raise BackendError(f"{self.name} cannot forget tokens, so it cannot be rewound")
        if self.rollback == "checkpoint":
            self._snapshot = Snapshot(self._n_past, self._copied(self._cache))

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

    def __enter__(self) -> HfModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._model is None:
            raise BackendError(f"{self.name} was closed; load it again")

    # Feeding

    def _feed(self, ids: NDArray[np.integer[Any]], rows: NDArray[np.float32]) -> None:
        """Run `ids` through the model in chunks and fill `rows` with the last logits."""
        n_filled = 0
        rest = self._n_batch if self._together else 1
        first = rest if self._n_past else self._n_batch
        for start, stop, n_wanted in chunks(ids.size, len(rows), first, rest):
            logits = self._run(ids[start:stop], n_wanted)
            if n_wanted:
                rows[n_filled : n_filled + n_wanted] = logits.float().cpu().numpy()
            n_filled += n_wanted
        if not len(rows):
            synchronize(self._torch, self._loaded.device)  # else the next call pays for it

    def _run(self, ids: NDArray[np.integer[Any]], n_wanted: int) -> Any:
        """Logits of the last `n_wanted` of `ids`, (n_wanted, n_vocab), on the device."""
        torch = self._torch
        with torch.inference_mode():
            row = torch.as_tensor(ids, dtype=torch.long, device=self._loaded.device)[None]
            logits = self._model(input_ids=row, **self._arguments(ids.size, n_wanted)).logits[0]
            wanted = logits[len(logits) - n_wanted :]
            self._check_range(wanted)
        self._n_past += ids.size
        if self._snapshot is not None:
            self._snapshot.tokens_since.extend(ids.tolist())
        return wanted

    def _check_range(self, rows: Any) -> None:
        """Name the remedy where a float16 overflowed: models trained in bfloat16 can exceed it."""
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

    def _failure(self, error: Exception, n_tokens: int) -> SpecxError:
        """What to raise for `error`, which torch raised."""
        where = f"{self.name}: {n_tokens} tokens at position {self._n_past}"
        if isinstance(error, (MemoryError, self._torch.OutOfMemoryError)):
            return ContextError(f"{where} found no room in memory; try a smaller n_batch or prompt")
        return BackendError(f"{where} were not computed: {first_line(error)}")

    # Forgetting

    def _empty(self) -> None:
        """Forget all: what can forget nothing else can do that."""
        self._cache = new_cache(self._model.config)
        self._n_past = 0
        self._snapshot = Snapshot() if self.rollback == "checkpoint" else None

    def _forget(self, n_past: int) -> None:
        if n_past == 0:
            self._empty()
        elif self._snapshot is not None:
            self._replay(self._snapshot, n_past)
        elif self.rollback == "native":
            self._crop(n_past)
        else:
            raise BackendError(f"{self.name} cannot forget tokens; it can only be emptied")

    def _crop(self, n_past: int) -> None:
        """Cut every layer to `n_past` positions: an interrupted call leaves them uneven."""
        with self._torch.inference_mode():
            for layer in self._cache.layers:
                if (excess := length_of(layer) - n_past) > 0:
                    layer.crop(-excess)
        if (length := self._cache.get_seq_length()) != n_past:
            raise BackendError(f"{self.name}: cropped to {n_past}, the cache holds {length} tokens")
        self._n_past = n_past

    def _undo(self, n_past: int) -> None:
        """After a failed call: back to `n_past`, or to an empty cache where that fails too."""
        try:
            self._forget(n_past)
        except Exception:  # torch's own too, such as no memory to copy a snapshot
            self._empty()

    def _replay(self, snapshot: Snapshot, n_past: int) -> None:
        """Back to the snapshot, then feed again what came after it, up to `n_past`."""
        if n_past < snapshot.n_past:
            raise BackendError(
                f"{self.name}: cannot truncate to {n_past}, before the checkpoint at "
                f"{snapshot.n_past}"
            )
        tokens = snapshot.tokens_since[: n_past - snapshot.n_past]
        self._restore(snapshot)
        if tokens:
            self._feed(np.asarray(tokens), NO_ROWS)

    def _restore(self, snapshot: Snapshot) -> None:
        """To the snapshot's state; the snapshot stays good for another time."""
        known = snapshot.state is not None
        self._cache = self._copied(snapshot.state) if known else new_cache(self._model.config)
        self._n_past = snapshot.n_past
        snapshot.tokens_since.clear()

    def _copied(self, cache: Any) -> Any:
        with self._torch.inference_mode():
            return copy.deepcopy(cache)

    # What this model can do

    def _probe(self) -> Rollback:
        """Feed tokens and take some back: what a model can do shows best by doing it."""
        if not self._takes & {"cache", "past_key_values"}:
            raise ModelError(f"{self.name} keeps no KV cache; give a model that has one")
        token = np.array([self.tokenizer.bos_id or 0])
        other = (token + 1) % self.n_vocab
        able: tuple[Rollback, ...] = ("native", "checkpoint")
        try:
            return next((way for way in able if self._comes_back(token, other, way)), "none")
        except SpecxError:
            raise
        except Exception as error:
            raise self._failure(error, token.size) from error

    def _comes_back(
        self, token: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]], way: Rollback
    ) -> bool:
        """Whether logits after a rollback are those before it."""
        self.rollback = way
        self._empty()
        self._run(token, 0)
        self.checkpoint()
        wanted = self._run(other, 1)
        if wanted.shape[-1] != self.n_vocab:
            raise ModelError(
                f"{self.name} has logits of {wanted.shape[-1]} tokens, its configuration says "
                f"{self.n_vocab}; the files do not belong together"
            )
        self._run(token, 0)
        try:
            self._forget(1)
        except (SpecxError, AttributeError, RuntimeError, ValueError, NotImplementedError):
            return False
        return bool(self._torch.equal(self._run(other, 1), wanted))

    def _goes_on_together(self) -> bool:
        """Whether several tokens fed after others see their state.

        Some recurrent layers of transformers start a call of several tokens from an empty state.
        Then the difference is of the size of the logits, far above that of rounding.
        """
        ids = np.arange(12) % self.n_vocab
        alone, together = (self._fed_after_eight(ids, width) for width in (1, 4))
        spread = alone.max() - alone.min()
        return bool((alone - together).abs().max() <= MOST_ROUNDING * spread)

    def _fed_after_eight(self, ids: NDArray[np.integer[Any]], width: int) -> Any:
        """Logits of all `ids` after the first eight, which were fed together."""
        self._empty()
        self._run(ids[:8], 0)
        parts = [self._run(ids[i : i + width], width) for i in range(8, ids.size, width)]
        return self._torch.cat(parts).float()


@dataclass
class Snapshot:
    """The state at `n_past`, None for an empty one, and the tokens fed since."""

    n_past: int = 0
    state: Any = None
    tokens_since: list[int] = field(default_factory=list)


def new_cache(config: Any) -> Any:
    """An empty cache for a model: its recurrent layers as they are, its sliding ones whole."""
    utils = require("transformers.cache_utils")
    cache = utils.DynamicCache(config=config)
    for index, layer in enumerate(cache.layers):
        if type(layer) is utils.DynamicSlidingWindowLayer:
            cache.layers[index] = utils.DynamicLayer()
    return cache


def length_of(layer: Any) -> int:
    """Positions that a cache's layer holds; 0 for one that borrows another's."""
    length = getattr(layer, "get_seq_length", None)
    return int(length()) if length is not None else 0


def chunks(n_tokens: int, n_logits: int, first: int, rest: int) -> Iterator[tuple[int, int, int]]:
    """Cut a feed into calls: (start, stop, wanted rows, which are the last of the call).

    The first is at most `first` tokens wide, the others at most `rest`.
    """
    start = 0
    while start < n_tokens:
        stop = min(n_tokens, start + (rest if start else first))
        yield start, stop, max(0, stop - max(start, n_tokens - n_logits))
        start = stop
