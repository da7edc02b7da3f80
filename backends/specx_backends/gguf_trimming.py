"""Which vocabulary entries of a GGUF file to keep, and the tokenizer that has only those.

Both kinds of tokenizer handled here start from single characters and merge neighbours, the best
pair first (byte-pair encoding: the pair's place in the list of merges; SentencePiece: the score of
the token that the pair spells). A token that is kept with every token on its own way from single
characters is found as before: on that way the best pair of the whole tokenizer is still there, and
no pair has been added. A pair whose result is kept and whose parts are not could never meet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specx.errors import ModelError
from specx.runtime.metadata import STRING, Metadata, read_strings
from specx_backends.llamacpp_header import BYTE_TOKEN, FLOAT32, INT32, token_kinds

__all__ = ["Vocabulary", "choose", "is_within", "parts_of", "trimmed_values", "way_to"]

UINT32, ARRAY = 4, 9  # of GGUF's types
NORMAL, UNUSED = 1, 5  # in tokenizer.ggml.token_type
LETTERS = frozenset(map(chr, [*range(33, 127), *range(161, 173), *range(174, 324)]))
"""GPT-2's letters for the 256 bytes."""
DEFAULT_IDS = range(12)
"""Where llama.cpp looks for special tokens that a file does not name: up to GPT-2's 11."""
LONGEST = 256
"""Characters of a token; the way to a longer one takes quadratic time, and no text needs it."""
MARK = "specx.trim.vocab_size"
WHOLE_TOKENIZER = "tokenizer.huggingface.json"
"""A copy of the whole tokenizer that some files carry; it would contradict the rest."""

Rank: TypeAlias = Callable[[str, str], float]
"""When a pair of neighbours is merged: the lowest first, those at infinity never."""


class Vocabulary:
    """The tokenizer of a GGUF file."""

    def __init__(self, header: Metadata) -> None:
        self.header = header
        self.tokens = read_strings(header, "tokenizer.ggml.tokens")
        self.texts = [text.decode("utf-8", "surrogateescape") for text in self.tokens]
        self.ids = {text: token for token, text in enumerate(self.texts)}
        self.kinds = token_kinds(header)[: len(self.texts)]
        self.merges = read_strings(header, "tokenizer.ggml.merges")
        self.byte_pair = header.values["tokenizer.ggml.model"] == "gpt2"

    @property
    def named(self) -> dict[str, int]:
        """Ids of special tokens, by the keys of the file."""
        return {
            key: value
            for key, value in self.header.values.items()
            if key.startswith("tokenizer.ggml.")
            and key.endswith("_token_id")
            and isinstance(value, int)
            and 0 <= value < len(self.texts)
        }

    def always(self) -> set[int]:
        """Special tokens and bytes, which any text may need."""
        special = np.flatnonzero((self.kinds != NORMAL) & (self.kinds != UNUSED))
        found = {*special.tolist(), *self.named.values(), *DEFAULT_IDS[: len(self.texts)]}
        if self.byte_pair:
            return found | {self.ids[letter] for letter in LETTERS & self.ids.keys()}
        return found | {i for i, token in enumerate(self.tokens) if BYTE_TOKEN.fullmatch(token)}

    def rank(self) -> Rank:
        """The order in which this tokenizer merges."""
        if self.byte_pair:
            places = {parts_of(merge): place for place, merge in enumerate(self.merges)}
            return lambda left, right: places.get((left, right), inf)
        scores = self.numbers("scores", "<f4")
        order = {text: -score for text, score in zip(self.texts, scores.tolist(), strict=True)}
        return lambda left, right: order.get(left + right, inf)

    def numbers(self, name: str, kind: str) -> NDArray[np.generic]:
        """Of each token, by the name of the array.

        Raises
        ------
        ModelError
            If the file has no such array.
        """
        array = self.header.arrays.get(f"tokenizer.ggml.{name}")
        if array is None:
            raise ModelError(
                f"'{self.header.path}' lacks tokenizer.ggml.{name}, which its kind of tokenizer "
                "needs; download it again"
            )
        return np.fromfile(self.header.path, kind, len(self.texts), offset=array.at)


def parts_of(merge: bytes) -> tuple[str, str]:
    """The two texts of an entry of ``tokenizer.ggml.merges``."""
    left, _, right = merge.decode("utf-8", "surrogateescape").partition(" ")
    return left, right


def choose(
    vocabulary: Vocabulary, always: Collection[int], order: Iterable[int], keep: int
) -> NDArray[np.intp]:
    """Ids to keep, sorted: those of `always`, then of `order` as long as there is room.

    A token takes along the tokens that it is merged from; one that merging does not reach is left
    out, as is one whose company exceeds the room that is left.
    """
    kept, rank = set(always), vocabulary.rank()
    for token in order:
        if len(kept) >= keep:
            break
        if token in kept:
            continue
        needed = way_to(vocabulary.texts[token], rank, vocabulary.ids)
        if needed and len(kept) + len(needed - kept) <= keep:
            kept |= needed
    return np.array(sorted(kept), dtype=np.intp)


def way_to(text: str, rank: Rank, ids: Mapping[str, int]) -> set[int]:
    """The tokens on the way from single characters to `text`, itself included.

    Empty if merging ends elsewhere, or passes through a text that is no token.
    """
    parts = list(text[: LONGEST + 1])
    formed = set(parts)
    while len(parts) > 1 and len(text) <= LONGEST:
        ranks = [rank(left, right) for left, right in pairwise(parts)]
        best = min(ranks)
        if best == inf:
            break
        at = ranks.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        formed.add(parts[at])
    reached = parts == [text] and formed <= ids.keys()
    return {ids[part] for part in formed} if reached else set()


def trimmed_values(vocabulary: Vocabulary, kept: NDArray[np.intp]) -> dict[str, bytes | None]:
    """The values that differ from the whole file's, encoded with their types; None if dropped."""
    header, n_whole = vocabulary.header, len(vocabulary.texts)
    new_ids = {old: new for new, old in enumerate(kept.tolist())}
    values: dict[str, bytes | None] = {
        MARK: number(n_whole),
        WHOLE_TOKENIZER: None,
        "tokenizer.ggml.tokens": strings([vocabulary.tokens[token] for token in kept]),
    }
    for name, kind, code in (("scores", FLOAT32, "<f4"), ("token_type", INT32, "<i4")):
        key = f"tokenizer.ggml.{name}"
        if key in header.arrays:
            values[key] = array(kind, vocabulary.numbers(name, code)[kept])
    if vocabulary.merges:
        texts = {vocabulary.texts[token] for token in kept}
        kept_merges = [m for m in vocabulary.merges if is_within(parts_of(m), texts)]
        values["tokenizer.ggml.merges"] = strings(kept_merges)
    for key, token in vocabulary.named.items():
        values[key] = number(new_ids[token])
    suppressed = header.values.get("tokenizer.ggml.suppress_tokens")
    if isinstance(suppressed, list):
        left = [new_ids[int(token)] for token in suppressed if token in new_ids]
        values["tokenizer.ggml.suppress_tokens"] = array(INT32, np.array(left, "<i4"))
    if header.has("vocab_size"):
        values[f"{header.architecture}.vocab_size"] = number(kept.size)
    return values


def is_within(merge: tuple[str, str], texts: Collection[str]) -> bool:
    """Whether the parts of a merge and its result are all among `texts`."""
    left, right = merge
    return left in texts and right in texts and left + right in texts


def number(value: int) -> bytes:
    """A whole number as a GGUF value."""
    return struct.pack("<II", UINT32, value)


def array(kind: int, items: NDArray[np.generic]) -> bytes:
    """Numbers of GGUF's type `kind` as a GGUF value."""
    return struct.pack("<IIQ", ARRAY, kind, items.size) + items.tobytes()


def strings(items: Sequence[bytes]) -> bytes:
    """Strings as a GGUF value."""
    body = b"".join(struct.pack("<Q", len(item)) + item for item in items)
    return struct.pack("<IIQ", ARRAY, STRING, len(items)) + body
