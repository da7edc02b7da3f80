"""Text to ids and back, through the vocabulary in a GGUF file."""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError
from specx_backends.llamacpp_header import CONTROL, UNUSED, token_kinds
from specx_backends.llamacpp_loading import Weights

__all__ = ["LlamaCppTokenizer"]

INT_P = ctypes.POINTER(ctypes.c_int32)
SHORT = 4096
"""Characters that any thread's stack has room for."""
STACK_A_CHARACTER, STACK_BASE = 1024, 16 << 20
"""Bytes: llama.cpp splits text with regular expressions of C++, which recurse once per character of
a match; some 320 bytes were measured."""
LONGEST_WORD = 1_000_000

Result = TypeVar("Result")
_stack_size = threading.Lock()


class LlamaCppTokenizer:
    """The `specx.runtime.backend.Tokenizer` of one model; lives as long as its weights."""

    def __init__(self, lib: Any, weights: Weights) -> None:
        self._lib = lib
        self._weights = weights
        self.n_vocab: int = lib.llama_vocab_n_tokens(weights.vocab)
        everything = range(self.n_vocab)
        self.eog_ids = frozenset(self._where(lib.llama_vocab_is_eog, True, everything))
        unused = self._where(
            lib.llama_vocab_get_attr, lib.LLAMA_TOKEN_ATTR_UNUSED, self._maybe_unused()
        )
        self.padding_ids: NDArray[np.intp] = np.array(unused, dtype=np.intp)
        self.bos_id: int | None = self._special(lib.llama_vocab_bos, "bos")
        self.eos_id: int | None = self._special(lib.llama_vocab_eos, "eos")
        template = lib.llama_model_chat_template(weights.pointer, None)
        self.chat_template: str | None = template and template.decode("utf-8", "replace")
        self._bytes: list[bytes | None] = [None] * self.n_vocab
        self._buffer = ctypes.create_string_buffer(256)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`; bytes that a shell could not decode (surrogates) are passed as bytes."""
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BackendError(f"text holds {text[error.start]!a}, which is no character") from None
        run = functools.partial(self._ids, data, add_special, parse_special)
        return run() if len(text) <= SHORT else with_deep_stack(run, longest_word(text))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; empty for control and padding ids."""
        self._check(token)
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._piece(token, False)
        return known

    def token_text(self, token: int) -> str:
        """A printable name, control tokens included; empty for padding ids."""
        self._check(token)
        return self._piece(token, True).decode("utf-8", "replace")

    def _ids(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        n_ids, ids = self._tokenize(data, len(data) + 8, add_special, parse_special)
        if n_ids < 0:
            n_ids, ids = self._tokenize(data, -n_ids, add_special, parse_special)
        if n_ids < 0:
            raise BackendError(f"llama.cpp could not tokenize a text of {len(data)} bytes")
        found: list[int] = ids[:n_ids].tolist()
        return found

    def _tokenize(
        self, data: bytes, room: int, add_special: bool, parse_special: bool
    ) -> tuple[int, NDArray[np.int32]]:
        ids = np.empty(room, np.int32)
        n_ids: int = self._lib.llama_tokenize(
            self._weights.vocab,
            data,
            len(data),
            ids.ctypes.data_as(INT_P),
            room,
            add_special,
            parse_special,
        )
        return n_ids, ids

    def _piece(self, token: int, special: bool) -> bytes:
        buffer, vocab = self._buffer, self._weights.vocab
        n_bytes = self._lib.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
        if n_bytes < 0:
            self._buffer = ctypes.create_string_buffer(-n_bytes)
            return self._piece(token, special)
        return ctypes.string_at(buffer, n_bytes)

    def _check(self, token: int) -> None:
        # llama.cpp throws at such an id, and an exception of C++ ends the process.
        if not 0 <= token < self.n_vocab:
            raise BackendError(f"token {token} is outside the vocabulary of {self.n_vocab}")

    def _where(self, attribute: Any, mask: int, tokens: Iterable[int]) -> list[int]:
        """Those of `tokens` whose `attribute` shares a bit with `mask`."""
        vocab = self._weights.vocab
        return [token for token in tokens if attribute(vocab, token) & mask]

    def _maybe_unused(self) -> list[int]:
        """Ids that may be marked as unused: to ask llama.cpp of all takes a tenth of a load."""
        kinds = token_kinds(self._weights.header)
        found: list[int] = np.flatnonzero((kinds == CONTROL) | (kinds == UNUSED)).tolist()
        return found

    def _special(self, get: Any, name: str) -> int | None:
        """The special token `name`, where the file names one.

        For byte-pair vocabularies llama.cpp answers GPT-2's id 11 where the file is silent.
        """
        token: int = get(self._weights.vocab)
        byte_pair = (
            self._lib.llama_vocab_type(self._weights.vocab) == self._lib.LLAMA_VOCAB_TYPE_BPE
        )
        silent = self._weights.metadata(f"tokenizer.ggml.{name}_token_id") is None
        return None if token < 0 or (byte_pair and silent) else token


def longest_word(text: str) -> int:
    """Characters of the longest run without white space, or of nothing else."""
    return max(len(found[0]) for found in re.finditer(r"\S+|\s+", text))


def with_deep_stack(run: Callable[[], Result], n_characters: int) -> Result:
    """What `run` returns, in a thread whose stack has room for a match of `n_characters`.

    Raises
    ------
    BackendError
        If there are too many of them, or there is no memory for such a stack.
    """
    if n_characters > LONGEST_WORD:
        raise BackendError(
            f"the text has {n_characters:,} characters in a row without a blank; the tokenizer "
            f"takes {LONGEST_WORD:,}: break them up"
        )
    done: list[Result] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(run())
        except BaseException as error:
            failed.append(error)

    thread = _started(work, STACK_BASE + STACK_A_CHARACTER * n_characters)
    try:
        thread.join()
    finally:
        thread.join()  # Ctrl-C too: the model must not be freed under it
    if failed:
        raise failed[0]
    return done[0]


def _started(work: Callable[[], None], stack: int) -> threading.Thread:
    thread = threading.Thread(target=work)
    with _stack_size:  # the size is the process's setting for threads to come
        before = threading.stack_size(stack)
        try:
            thread.start()
        except RuntimeError as error:
            raise BackendError(
                f"no memory for a stack of {stack >> 20} MiB to tokenize the text; shorten it"
            ) from error
        finally:
            threading.stack_size(before)
    return thread
