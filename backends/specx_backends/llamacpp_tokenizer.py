"""Text to ids and back, through the vocabulary in a GGUF file."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError
from specx_backends.llamacpp_loading import Weights

__all__ = ["LlamaCppTokenizer"]

INT_P = ctypes.POINTER(ctypes.c_int32)


class LlamaCppTokenizer:
    """The `specx.backend.Tokenizer` of one model; lives as long as its weights."""

    def __init__(self, lib: Any, weights: Weights) -> None:
        self._lib = lib
        self._weights = weights
        self.n_vocab: int = lib.llama_vocab_n_tokens(weights.vocab)
        self.eog_ids: frozenset[int] = frozenset(self._where(lib.llama_vocab_is_eog, True))
        unused = self._where(lib.llama_vocab_get_attr, lib.LLAMA_TOKEN_ATTR_UNUSED)
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
        n_ids, ids = self._tokenize(data, len(data) + 8, add_special, parse_special)
        if n_ids < 0:
            n_ids, ids = self._tokenize(data, -n_ids, add_special, parse_special)
        if n_ids < 0:
            raise BackendError(f"llama.cpp could not tokenize a text of {len(data)} bytes")
        found: list[int] = ids[:n_ids].tolist()
        return found

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

    def _where(self, attribute: Any, mask: int) -> list[int]:
        """Ids whose `attribute` shares a bit with `mask`; sorted."""
        vocab = self._weights.vocab
        return [token for token in range(self.n_vocab) if attribute(vocab, token) & mask]

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
