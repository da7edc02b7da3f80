"""The tokens of a GGUF file: their bytes, and which of them are more than text.

A GGUF file says less of its tokenizer than llama.cpp knows: which texts end a generation, which
pre-tokenizers put BOS first. Names and rules are those of llama.cpp's ``src/llama-vocab.cpp`` (as
in llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.runtime.metadata import Metadata, read_strings
from specx_backends.llamacpp_header import token_kinds

__all__ = [
    "BYTES",
    "BYTE_TOKEN",
    "LLAMA3",
    "GgufTokens",
    "Roles",
    "added_ends",
    "end_ids",
    "gguf_roles",
]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # tokenizer.ggml.token_type

END_TEXTS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
    "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> "
    "<eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["
).split()
FILL_TEXTS = {
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]".split(),
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>".split(),
    "fim_sep": ["<|file_sep|>"],
}
"""Tokens of fill-in-the-middle that end a generation too; the first that is there counts."""
PRINTS_NOTHING = frozenset(END_TEXTS).union(*FILL_TEXTS.values())
"""Texts that are no part of the output, whatever kind of token a file says they are."""
SHOWN_TEXTS = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
"""Control tokens of gpt-oss that belong to the text."""

LLAMA3 = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano".split()
)
BOS_UNLESS_SAID = LLAMA3 | {"tekken", "chameleon"}

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes, as letter -> byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


BYTES = byte_alphabet()


@dataclass(frozen=True)
class Roles:
    """Which ids are more than text."""

    bos_id: int | None
    eos_id: int | None
    eog: frozenset[int]
    padding: Sequence[int]
    """Sorted."""
    silent: frozenset[int]
    """Ids that print nothing, beside padding."""


SPELLED = str.maketrans(
    {chr(code): "\uffff" for code in range(256)} | {letter: chr(b) for letter, b in BYTES.items()}
)
"""From GPT-2's letters to the characters of their bytes; others become one that is no byte."""


class GgufTokens:
    """The tokens of a GGUF file as llama.cpp prints them; `specx.runtime.vocabulary.Tokens`."""

    def __init__(self, header: Metadata) -> None:
        texts = [
            text.decode("utf-8", "surrogateescape")
            for text in read_strings(header, "tokenizer.ggml.tokens")
        ]
        self.n_vocab = len(texts)
        kinds = token_kinds(header).tolist()[: self.n_vocab] or [NORMAL] * self.n_vocab
        facts = {
            **header.values,
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": kinds,
        }
        self._roles = roles = gguf_roles(facts)
        self._texts, self._kinds = texts, kinds
        self._silent = roles.silent | frozenset(roles.padding)
        self._byte_level = header.values.get("tokenizer.ggml.model") == "gpt2"
        self.padding_ids: NDArray[np.intp] = np.array(roles.padding, dtype=np.intp)
        self.bos_id, self.eos_id = roles.bos_id, roles.eos_id
        self.adds_bos, self.adds_eos = (end is not None for end in added_ends(facts, roles))
        template = header.values.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; empty for control and padding ids."""
        return b"" if token in self._silent else self._spell(token)

    def token_text(self, token: int) -> str:
        """A printable name, control tokens included."""
        return self._spell(token).decode("utf-8", "replace")

    def _spell(self, token: int) -> bytes:
        text, kind = self._texts[token], self._kinds[token]
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            return text.encode("utf-8", "surrogateescape")
        if self._byte_level:
            try:
                return text.translate(SPELLED).encode("latin-1")
            except UnicodeEncodeError:
                return text.encode("utf-8", "surrogateescape")
        if text.startswith("<") and (byte := BYTE_TOKEN.fullmatch(text)):
            return bytes.fromhex(byte[1])
        return text.replace("\u2581", " ").encode("utf-8", "surrogateescape")


def gguf_roles(metadata: Mapping[str, Any]) -> Roles:
    """Which ids llama.cpp takes for more than text."""
    texts: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds = np.asarray(metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(texts))
    ids = {text: token for token, text in enumerate(texts)}
    eog = end_ids(ids, _named(metadata))
    shown = {ids[text] for text in SHOWN_TEXTS & ids.keys()}
    shown |= {ids[text] for text in ("<|end|>", "</s>") if text in ids} - eog
    silent = set(np.flatnonzero((kinds == UNKNOWN) | (kinds == CONTROL)).tolist())
    # An end token that only the file names stays text, as llama.cpp prints it.
    silent |= {token for token in eog if texts[token] in PRINTS_NOTHING}
    padding = [
        token
        for token in np.flatnonzero((kinds == UNUSED) | (kinds == CONTROL)).tolist()
        if kinds[token] == UNUSED or "unused" in texts[token]
    ]
    named = _named(metadata)
    return Roles(
        bos_id=named.get("bos"),
        eos_id=named.get("eos"),
        eog=frozenset(eog),
        padding=padding,
        silent=frozenset(silent - shown),
    )


def end_ids(ids: Mapping[str, int], named: Mapping[str, int] | None = None) -> set[int]:
    """Ids that end a generation, by their texts and by the names that a file gives them."""
    named = named or {}
    ends = {ids[text] for text in END_TEXTS if text in ids}
    ends |= {named[name] for name in ("eos", "eot", "eom") if name in named}
    for name, texts in FILL_TEXTS.items():
        found = [named[name]] if name in named else [ids[text] for text in texts if text in ids]
        ends |= set(found[:1])
    for text in _not_ends({text for text in END_TEXTS if text in ids}):
        ends.discard(ids[text])
    return ends


def _not_ends(texts: set[str]) -> set[str]:
    """End-like texts that are none beside certain others (gpt-oss, Solar, Gemma 4)."""
    call = {"<|call|>", "<|calls|>"} & texts
    inner = {"<|end|>"} if call and {"<|return|>", "<|flush|>"} & texts else set()
    return (inner | ({"</s>"} if "<|tool_response>" in texts else set())) & texts


def _named(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Special ids by llama.cpp's names for them; SentencePiece files may be silent on two."""
    spm = metadata.get("tokenizer.ggml.model") == "llama"
    named = {"bos": 1, "eos": 2} if spm else {}
    for name in ("bos", "eos", "eot", "eom", *FILL_TEXTS):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in metadata:
            named[name] = metadata[key]
    known = range(len(metadata["tokenizer.ggml.tokens"]))
    return {name: token for name, token in named.items() if token in known}


def added_ends(metadata: Mapping[str, Any], roles: Roles) -> tuple[int | None, int | None]:
    """The tokens that `add_special` puts before and after a text."""
    model, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    unless_said = model == "llama" or pre in BOS_UNLESS_SAID
    forced = "gemma4" in (model, pre)
    bos = metadata.get("tokenizer.ggml.add_bos_token", unless_said) or forced
    eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    return roles.bos_id if bos else None, roles.eos_id if eos else None
