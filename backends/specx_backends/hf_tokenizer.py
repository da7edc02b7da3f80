"""Text to ids and back, through the tokenizer that transformers makes of a folder or a GGUF file.

A GGUF file says less of its tokenizer than llama.cpp knows: which texts end a generation, which
pre-tokenizers put BOS first or look whole words up. `gguf_tokenizer` adds that knowledge, so that
both runtimes give the same ids for the same file. Names and rules are those of llama.cpp's
``src/llama-vocab.cpp`` (as in llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError, ModelError
from specx_backends.hf_library import require

__all__ = ["HfTokenizer", "folder_tokenizer", "gguf_tokenizer"]

UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # tokenizer.ggml.token_type

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
SHOWN_TEXTS = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
"""Control tokens of gpt-oss that belong to the text."""

LLAMA3 = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano".split()
)
BOS_UNLESS_SAID = LLAMA3 | {"tekken", "chameleon"}
WHOLE_WORDS = LLAMA3 | {"tekken", "minicpm5", "youtu", "glm4", "glm5", "granite-embed-multi-97m"}
"""Pre-tokenizers after which a word that is a token is not put together by merges."""
SINGLE_DIGITS = frozenset(
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2".split()
)
"""Pre-tokenizers that are GPT-2's after cutting out each digit; transformers knows only GPT-2's."""
LIKE_GPT2 = frozenset(
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt "
    "olmo jais trillion granite-docling exaone4".split()
)

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


class HfTokenizer:
    """A `specx.runtime.backend.Tokenizer` over a `tokenizers.Tokenizer`.

    Parameters
    ----------
    fast
        Its post-processor adds what `add_special` asks for.
    n_vocab
        Width of a row of logits.
    roles
        Ids with a meaning.
    chat_template
        Source of the template.
    """

    def __init__(self, fast: Any, n_vocab: int, roles: Roles, chat_template: str | None) -> None:
        self.eog_ids = roles.eog
        self.padding_ids: NDArray[np.intp] = np.array(roles.padding, dtype=np.intp)
        self.bos_id = roles.bos_id
        self.eos_id = roles.eos_id
        self.chat_template = chat_template
        self._fast = fast
        self._n_vocab = n_vocab
        self._padding = frozenset(roles.padding)
        self._silent = roles.silent | self._padding
        added = fast.get_added_tokens_decoder()
        self._added: dict[int, str] = {token: entry.content for token, entry in added.items()}
        self._byte_level = _is_byte_level(fast)
        fast.no_truncation()
        fast.no_padding()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`.

        Raises
        ------
        BackendError
            If `text` holds half of a surrogate pair, or a token that the model has no logit for.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BackendError(f"text holds {text[error.start]!a}, which is no character") from None
        self._fast.encode_special_tokens = not parse_special
        ids: list[int] = self._fast.encode(text, add_special_tokens=add_special).ids
        for token in ids:
            self._check(token)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; empty for control and padding ids."""
        self._check(token)
        return b"" if token in self._silent else self._spell(token)

    def token_text(self, token: int) -> str:
        """A printable name, control tokens included; empty for padding ids."""
        self._check(token)
        return "" if token in self._padding else self._spell(token).decode("utf-8", "replace")

    def _spell(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text: str = self._fast.id_to_token(token)
        if self._byte_level:
            known = all(letter in BYTES for letter in text)
            return bytes(BYTES[letter] for letter in text) if known else text.encode()
        byte = BYTE_TOKEN.fullmatch(text)
        return bytes.fromhex(byte[1]) if byte else text.replace("▁", " ").encode()

    def _check(self, token: int) -> None:
        if not 0 <= token < self._n_vocab:
            raise BackendError(f"token {token} is outside the vocabulary of {self._n_vocab}")


def _is_byte_level(fast: Any) -> bool:
    """Whether tokens are spelled in GPT-2's letters."""
    decoder = fast.decoder
    parts = json.loads(decoder.__getstate__()) if decoder is not None else {}
    return any(part.get("type") == "ByteLevel" for part in [parts, *parts.get("decoders", [])])


def folder_tokenizer(folder: Path, n_vocab: int, ends: Iterable[int]) -> HfTokenizer:
    """The tokenizer in a model's folder; `ends` are the end tokens that its configuration names.

    Raises
    ------
    ModelError
        If there is none, or none that the library `tokenizers` can run.
    """
    auto = require("transformers").AutoTokenizer
    python = auto.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    fast = getattr(python, "backend_tokenizer", None)
    if fast is None:
        raise ModelError(f"'{folder}' has no fast tokenizer; give a model with a tokenizer.json")
    special = {
        entry.content: token
        for token, entry in fast.get_added_tokens_decoder().items()
        if entry.special
    }
    eos_id: int | None = python.eos_token_id
    eog = {*ends, *end_ids(special), *([] if eos_id is None else [eos_id])}
    roles = Roles(
        bos_id=python.bos_token_id,
        eos_id=eos_id,
        eog=frozenset(token for token in eog if token < n_vocab),
        padding=[token for token in range(n_vocab) if fast.id_to_token(token) is None],
        silent=frozenset([*special.values(), *eog]),
    )
    template = python.chat_template
    template = template.get("default") if isinstance(template, dict) else template
    return HfTokenizer(fast, n_vocab, roles, template)


def gguf_tokenizer(path: Path, metadata: Mapping[str, Any], n_vocab: int) -> HfTokenizer:
    """The tokenizer of a GGUF file.

    Parameters
    ----------
    path
        The file.
    metadata
        Its key-value pairs, the tokens as a list.
    n_vocab
        Width of a row of logits.
    """
    python = require("transformers").PreTrainedTokenizerFast.from_pretrained(
        str(path.parent), gguf_file=path.name, local_files_only=True
    )
    fast = python.backend_tokenizer
    roles = gguf_roles(metadata)
    _split_as_llamacpp(fast, metadata, path)
    _match_control_texts(fast, metadata, roles)
    fast.post_processor = _around(fast, _added_ends(metadata, roles))
    return HfTokenizer(fast, n_vocab, roles, metadata.get("tokenizer.chat_template"))


def gguf_roles(metadata: Mapping[str, Any]) -> Roles:
    """Which ids llama.cpp takes for more than text."""
    texts: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(texts)
    ids = {text: token for token, text in enumerate(texts)}
    eog = end_ids(ids, _named(metadata))
    shown = {ids[text] for text in SHOWN_TEXTS & ids.keys()}
    shown |= {ids[text] for text in ("<|end|>", "</s>") if text in ids} - eog
    silent = {token for token, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL)}
    padding = [
        token
        for token, kind in enumerate(kinds)
        if kind == UNUSED or (kind == CONTROL and "unused" in texts[token])
    ]
    named = _named(metadata)
    return Roles(
        bos_id=named.get("bos"),
        eos_id=named.get("eos"),
        eog=frozenset(eog),
        padding=padding,
        silent=frozenset((silent - shown) | eog),
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
    return named


def _split_as_llamacpp(fast: Any, metadata: Mapping[str, Any], path: Path) -> None:
    """Cut text into words as llama.cpp does where transformers falls back to GPT-2's way."""
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    if pre in WHOLE_WORDS:
        fast.model.ignore_merges = True
    known = require("transformers.integrations.gguf.gguf_tokenizer_mapping")
    if pre in SINGLE_DIGITS:
        tokenizers = require("tokenizers")
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{N}"), "isolated")
        words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, words])
    elif pre not in LIKE_GPT2 and pre not in known.GGUF_PRE_TOKENIZER_SPLITS:
        warnings.warn(
            f"{path.name}: transformers does not know the pre-tokenizer '{pre}' and splits text "
            "like GPT-2; ids may differ from the trained ones, the folder of the original model "
            "is safer",
            stacklevel=2,
        )


def _match_control_texts(fast: Any, metadata: Mapping[str, Any], roles: Roles) -> None:
    """Let `parse_special` read the end tokens that a file does not mark as control tokens."""
    texts = metadata["tokenizer.ggml.tokens"]
    added = fast.get_added_tokens_decoder()
    special = {token for token, entry in added.items() if entry.special}
    entry = require("tokenizers").AddedToken
    missing = [texts[token] for token in sorted(roles.eog - special)]
    present = [text for text in missing if fast.token_to_id(text) is not None]
    fast.add_special_tokens([entry(text, normalized=False, special=True) for text in present])


def _added_ends(metadata: Mapping[str, Any], roles: Roles) -> tuple[int | None, int | None]:
    """The tokens that `add_special` puts before and after a text."""
    model, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    unless_said = model == "llama" or pre in BOS_UNLESS_SAID
    forced = "gemma4" in (model, pre)
    bos = metadata.get("tokenizer.ggml.add_bos_token", unless_said) or forced
    eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    return roles.bos_id if bos else None, roles.eos_id if eos else None


def _around(fast: Any, ends: tuple[int | None, int | None]) -> Any:
    """A post-processor that puts the given tokens before and after a text."""
    bos, eos = ((token, fast.id_to_token(token)) if token is not None else None for token in ends)
    names = [bos and f"{bos[1]}:0", "$A:0", eos and f"{eos[1]}:0"]
    return require("tokenizers").processors.TemplateProcessing(
        single=[name for name in names if name],
        special_tokens=list(
            dict.fromkeys((text, token) for token, text in filter(None, (bos, eos)))
        ),
    )
