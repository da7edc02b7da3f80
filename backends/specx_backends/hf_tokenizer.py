"""Text to ids and back, through the tokenizer that transformers makes of a folder or a GGUF file.

A GGUF file says less of its tokenizer than llama.cpp knows, such as which pre-tokenizers look whole
words up. `gguf_tokenizer` adds that knowledge, so that both runtimes give the same ids for the same
file. Names and rules are those of llama.cpp's ``src/llama-vocab.cpp`` (as in llama-cpp-python
0.3.36).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.errors import BackendError, ModelError
from specx_backends.gguf_tokens import (
    BYTE_TOKEN,
    BYTES,
    LLAMA3,
    Roles,
    added_ends,
    end_ids,
    gguf_roles,
)
from specx_backends.hf_library import require

__all__ = ["HfTokenizer", "folder_roles", "folder_tokenizer", "gguf_tokenizer"]

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

    @property
    def adds_bos(self) -> bool:
        """True if BOS is put before a text."""
        return self.bos_id in self.encode("", add_special=True, parse_special=False)

    @property
    def adds_eos(self) -> bool:
        """True if EOS is put after a text."""
        return self.eos_id in self.encode("", add_special=True, parse_special=False)

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
    roles = folder_roles(fast, n_vocab, python.bos_token_id, python.eos_token_id, ends)
    template = python.chat_template
    template = template.get("default") if isinstance(template, dict) else template
    return HfTokenizer(fast, n_vocab, roles, template)


def folder_roles(
    fast: Any, n_vocab: int, bos_id: int | None, eos_id: int | None, ends: Iterable[int]
) -> Roles:
    """Which ids of a folder's tokenizer are more than text; `ends` as in `folder_tokenizer`."""
    added = fast.get_added_tokens_decoder().items()
    special = {entry.content: token for token, entry in added if entry.special}
    eog = {*ends, *end_ids(special), *([] if eos_id is None else [eos_id])}
    return Roles(
        bos_id=bos_id,
        eos_id=eos_id,
        eog=frozenset(token for token in eog if token < n_vocab),
        padding=[token for token in range(n_vocab) if fast.id_to_token(token) is None],
        silent=frozenset([*special.values(), *eog]),
    )


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
    fast.post_processor = _around(fast, added_ends(metadata, roles))
    return HfTokenizer(fast, n_vocab, roles, metadata.get("tokenizer.chat_template"))


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
