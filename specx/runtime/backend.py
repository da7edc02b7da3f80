"""The seam between the algorithm and a runtime: protocols, load options, discovery.

A runtime turns tokens into logits and can forget; everything else is the algorithm's. Backends are
found by name in the entry-point group ``specx.backends``; a third party's comes in by the same door
as ours, and nothing in specx lists them.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError, ContextError, OptionError, UsageError, is_whole
from specx.runtime import plugins

__all__ = [
    "BackendFactory",
    "Clock",
    "LoadOptions",
    "LogitsBackend",
    "Parkable",
    "ParkedState",
    "Rollback",
    "Tokenizer",
    "check_forward",
    "check_model_name",
    "check_state",
    "check_truncate",
    "choose_n_ctx",
    "get_backend",
    "installed_backends",
    "reject_unsupported",
]

GROUP = "specx.backends"

Clock: TypeAlias = Callable[[], float]
"""Seconds from an arbitrary start; `time.perf_counter`, or the toy backend's virtual clock."""

Rollback: TypeAlias = Literal["native", "checkpoint", "none"]
"""How a loaded model forgets: at any position for free; back to a snapshot; or not at all."""


class Tokenizer(Protocol):
    """Text to ids and back. Only the verifier's encodes and decodes a run's text."""

    eog_ids: frozenset[int]
    """Ids that end a generation (end of text, end of turn)."""
    padding_ids: NDArray[np.intp]
    """Ids within the logits' width that have no token behind them; sorted."""
    bos_id: int | None
    eos_id: int | None
    chat_template: str | None
    """Source of the model's own jinja2 template: untrusted data."""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`; `add_special` adds what the model puts around a text (BOS),
        `parse_special` reads control tokens written in the text.
        """

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; empty for control and padding ids."""

    def token_text(self, token: int) -> str:
        """A printable name, control tokens included (``<|im_end|>``); empty for padding ids."""


Model = TypeVar("Model", bound="LogitsBackend")


class LogitsBackend(Protocol):
    """A loaded model with one growing sequence.

    Positions are absolute. After any `forward` and `truncate`, the next logits are those of a fresh
    run over the same tokens (up to the runtime's floating point; the contract suite measures it).
    """

    name: str
    """The backend's name and the model's, for messages: ``llamacpp:file.gguf``."""
    n_vocab: int
    """Width of a row of logits."""
    n_ctx: int
    """Positions the KV cache can hold."""
    rollback: Rollback
    """What `truncate` can do, found by probing the loaded model."""
    tokenizer: Tokenizer
    clock: Clock
    """What this model's time is measured with."""

    @property
    def n_past(self) -> int:
        """Tokens that the KV cache holds."""

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        """Append `tokens` after `n_past`; return the logits of the last `n_logits` of them.

        Returns a fresh array of shape (n_logits, n_vocab) that the caller owns. ``n_logits=0`` is
        prefill and returns shape (0, n_vocab). More tokens than a batch are fed in chunks.

        Raises
        ------
        ContextError
            If ``n_past + len(tokens) > n_ctx``; nothing was fed then.
        BackendError
            If there are no tokens, one is out of range, `n_logits` lies outside
            ``[0, len(tokens)]``, or the runtime failed.
        """

    def truncate(self, n_past: int) -> None:
        """Forget everything from absolute position `n_past` on.

        A no-op at ``self.n_past``; position 0 can always be returned to, and empties the cache of
        what an interrupted call may have left.

        Raises
        ------
        BackendError
            If `n_past` lies outside ``[0, self.n_past]`` or, where rollback is by checkpoint,
            before the last one; if the runtime could not forget.
        """

    def checkpoint(self) -> None:
        """From now on `truncate` can return to any position from ``self.n_past`` on.

        Free where rollback is native; a snapshot where it is not.

        Raises
        ------
        BackendError
            If rollback is "none".
        """

    def describe(self) -> dict[str, object]:
        """What is loaded (JSON values): file, sha256, size in bytes, quantisation, device, threads,
        versions.
        """

    def close(self) -> None:
        """Free the model; safe to call twice. Whatever is asked afterwards is a BackendError."""

    def __enter__(self: Model) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class ParkedState:
    """A copy of what a cache held; only the model that made it can read it."""

    n_past: int
    """Tokens that the cache held."""
    n_bytes: int
    """Memory that the copy takes."""
    maker: Parkable
    data: Any = field(repr=False)


@runtime_checkable
class Parkable(Protocol):
    """What a `LogitsBackend` or a drafter may also be: its cache can be copied out and back in.

    After an import, logits are those that the model would have given where the state was exported.
    """

    name: str

    def export_state(self) -> ParkedState:
        """A copy of the cache, which stays as it is.

        Raises
        ------
        BackendError
            If it cannot be copied, as without enough memory.
        """

    def import_state(self, state: ParkedState) -> None:
        """Replace what the cache holds by `state`, which stays good for further imports.

        Where rollback is by checkpoint, one is made: `truncate` can return to ``state.n_past``.

        Raises
        ------
        BackendError
            If another model exported it, which changes nothing; if the runtime could not copy it,
            which leaves the cache empty, as an interrupt does.
        """


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How to load a model; None leaves the choice to the backend.

    An option that is set and that a backend cannot honour is an error, never ignored.
    """

    n_ctx: int | None = None
    """Positions in the KV cache; by default as `choose_n_ctx` says."""
    n_batch: int | None = None
    """Most tokens fed to the runtime in one call."""
    n_gpu_layers: int | None = None
    """Layers to offload; -1 for all, 0 for none."""
    threads: int | None = None
    cache_type_k: str | None = None
    """Element type of the cached keys, such as ``f16`` or ``q8_0``."""
    cache_type_v: str | None = None
    dtype: str | None = None
    device: str | None = None
    offline: bool | None = None
    """True forbids the network."""
    weights_cache: str | None = None
    """A folder that keeps weights in the form in which they load fastest."""
    drafts: bool = False
    """It only drafts: a backend may choose a coarser number type for it, as that changes how often
    it is right and never the distribution of the text. An option that is set still holds."""
    verbose: bool = False
    """Let the runtime's own log through to standard error."""
    need_ctx: Callable[[Tokenizer], int] | None = None
    """Asked once the tokenizer is known: positions that the run will need at most."""
    progress: Callable[[float], None] | None = None
    """Called with the share of the model that is loaded, 0 to 1."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            _check_number(name, getattr(self, name), least)
        for name in TEXTS:
            _check_text(name, getattr(self, name))
        for name in SWITCHES:
            _check_switch(name, getattr(self, name))
        most = THREADS_PER_CORE * (os.cpu_count() or 1)
        if self.threads is not None and self.threads > most:
            raise OptionError(
                f"threads is {shown(self.threads)}; at most {most} make sense on this machine "
                f"({THREADS_PER_CORE} per logical core)"
            )


LEAST: Final = {"n_ctx": 1, "n_batch": 1, "n_gpu_layers": -1, "threads": 1}
MOST: Final = 2**31 - 1
"""Runtimes hold these numbers in a C int, where a larger one would wrap around."""
THREADS_PER_CORE: Final = 8
"""Runtimes reserve memory for each thread, and die of some thousands."""
TEXTS: Final = ("cache_type_k", "cache_type_v", "dtype", "device", "weights_cache")
SWITCHES: Final = ("offline", "drafts", "verbose")


def _check_number(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if not is_whole(value):
        raise UsageError(f"{name} is {shown(value)}; it must be a whole number, or None")
    if not least <= value <= MOST:
        raise OptionError(
            f"{name} is {shown(value)}; it must be a whole number from {least} to {MOST}"
        )


def _check_text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name} is {shown(value)}; it must be a string, or None")


def _check_switch(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} is {shown(value)}; it must be True or False")


def shown(value: object) -> str:
    """`value` for a message: cut where it is long, as Python refuses to print huge ints."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    return reprlib.repr(value)


NOT_CHOICES = frozenset({"drafts", "verbose", "need_ctx", "progress"})
"""Fields that any backend may pass over without changing what was asked for."""


@runtime_checkable
class BackendFactory(Protocol):
    """What an entry point names: loads models and says what it runs on.

    ``specx --version`` prints the requirements of the extra that is named like the backend, in the
    distribution that registers it. A factory may also have any of these, which specx looks for by
    name:

    ``title: str``
        What people call the runtime, such as ``llama.cpp``; by default `name`.
    ``counterpart: str``
        The backend that ``specx compare`` sets against this one if nothing else is asked for.
    ``memory_needed(model: str, options: LoadOptions) -> specx.runtime.memory.MemoryNeeded | None``
        What the model's cache takes of this machine's memory if all of it is written at load;
        None if it lies elsewhere or its size cannot be told. Loads no model.
    ``inspect(model: str, options: LoadOptions) -> specx.runtime.inspection.Inspection``
        What the model's files say of it, for ``specx check``. Loads no weights.
    ``trim(model: str, keep: int, texts: Iterable[str] | None) -> specx.runtime.trimming.Trimmed``
        The model with fewer vocabulary entries, for ``specx trim``. Loads no weights.
    """

    name: str
    options: frozenset[str]
    """Names of the `LoadOptions` fields that this backend honours."""

    def load(self, model: str, options: LoadOptions) -> LogitsBackend:
        """Load `model` (a path or a name that this backend knows)."""

    def about(self) -> Mapping[str, object]:
        """Versions, build flags and devices; loads no model.

        Raises
        ------
        BackendError
            If the runtime's library is missing; the message holds the install line.
        """


def set_options(options: LoadOptions) -> list[str]:
    """Names of the fields that were set to something a backend must honour."""
    names = (field.name for field in fields(options))
    return [n for n in names if n not in NOT_CHOICES and getattr(options, n) is not None]


def reject_unsupported(factory: BackendFactory, options: LoadOptions) -> None:
    """Raise OptionError if `options` sets what `factory` does not honour."""
    refused = [name for name in set_options(options) if name not in factory.options]
    if refused:
        raise OptionError(
            f"backend '{factory.name}' cannot honour {', '.join(refused)}; "
            f"it honours {', '.join(sorted(factory.options)) or 'no options'}"
        )


def installed_backends() -> list[str]:
    """Names of the backends that are registered, sorted."""
    return list(plugins.registered(GROUP))


def get_backend(name: str) -> BackendFactory:
    """The backend factory registered under `name`.

    Raises
    ------
    BackendError
        If no such backend is registered, or the object registered is not a factory.
    """
    return plugins.load(GROUP, name, "backend", BackendFactory)  # type: ignore[type-abstract]


# For backends: the default context, and mistakes of the caller, which are refused before anything
# is fed or forgotten

DEFAULT_CTX: Final = 4096


def choose_n_ctx(options: LoadOptions, tokenizer: Tokenizer, trained: int | None) -> int:
    """Positions of the KV cache: as asked, else min(trained, max(4096, `options.need_ctx`)).

    A model whose length is not bounded has no `trained` one.
    """
    if options.n_ctx is not None:
        return options.n_ctx
    wanted = max(DEFAULT_CTX, options.need_ctx(tokenizer) if options.need_ctx else 0)
    return wanted if trained is None else min(trained, wanted)


def check_model_name(model: str) -> str:
    """`model` as a string, if it can be a path or a name.

    Raises
    ------
    UsageError
        If it is neither a string nor a path, is empty, or holds a NUL character.
    """
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"model is {model!r}; give the path of a file, or a name")
    return name


def check_forward(
    backend: LogitsBackend, tokens: Sequence[int], n_logits: int
) -> NDArray[np.integer[Any]]:
    """`tokens` as an array of ids, (n,), if `forward` can take them now.

    Raises
    ------
    BackendError
        If they are not a sequence, there are none, fewer than the rows asked for, or one is not
        an id of the vocabulary.
    ContextError
        If they do not fit into what is left of the context.
    """
    ids = _token_ids(backend, tokens)
    if not (is_whole(n_logits) and 0 <= n_logits <= ids.size) or ids.size == 0:
        raise BackendError(
            f"{backend.name}: {shown(n_logits)} rows of {ids.size} tokens were asked for"
        )
    if backend.n_past + ids.size > backend.n_ctx:
        raise ContextError(
            f"{backend.name}: {backend.n_past} tokens and {ids.size} more exceed the context of "
            f"{backend.n_ctx}; load it with a larger n_ctx"
        )
    return ids


def _token_ids(backend: LogitsBackend, tokens: Any) -> NDArray[np.integer[Any]]:
    """`tokens` as an array, (n,), if they are a sequence of ids of the vocabulary."""
    listed = isinstance(tokens, Sequence) and not isinstance(tokens, (str, bytes, bytearray))
    if not listed and not (isinstance(tokens, np.ndarray) and tokens.ndim == 1):
        raise BackendError(
            f"{backend.name}: tokens are a {type(tokens).__name__}; give a list of token ids"
        )
    bad = [t for t in tokens if not (is_whole(t) and 0 <= t < backend.n_vocab)]
    if bad:
        raise BackendError(
            f"{backend.name}: token {shown(bad[0])} is outside its {backend.n_vocab} entries"
        )
    return np.asarray(tokens, dtype=np.int64)


def check_truncate(backend: LogitsBackend, n_past: int) -> None:
    """Raise BackendError unless `n_past` is a position that the cache holds."""
    if not (is_whole(n_past) and 0 <= n_past <= backend.n_past):
        raise BackendError(
            f"{backend.name}: cannot truncate to {shown(n_past)}; the cache holds "
            f"{backend.n_past} tokens"
        )


def check_state(parkable: Parkable, state: ParkedState) -> None:
    """Raise BackendError unless `parkable` itself exported `state`."""
    if state.maker is not parkable:
        raise BackendError(
            f"{parkable.name}: a state that {state.maker.name} exported, loaded apart, cannot be "
            "imported; import what this one exported"
        )
