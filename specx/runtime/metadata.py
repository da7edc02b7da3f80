"""The metadata of a GGUF file, read in milliseconds and without loading anything.

The reader of the library `gguf` makes an array of every vocabulary entry and takes seconds (6 for
151,936 entries); this one skips what nobody asked for. Layout: the GGUF specification, versions 2
and 3.
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from specx.errors import ModelError

__all__ = ["Array", "Metadata", "Tensor", "is_gguf", "read_metadata", "read_strings", "what_else"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
LONGEST_ARRAY = 4096
"""Longer arrays are vocabularies, and skipped; a value a layer is far shorter."""

MOST_KEYS = 100_000
DEEPEST_ARRAY = 8
"""Of arrays in arrays; the specification sets no limit, files have one level."""

Value: TypeAlias = "int | float | bool | str | list[int | float | bool]"


@dataclass(frozen=True)
class Array:
    """An array of the metadata: where it lies."""

    kind: int
    """GGUF's number of the elements' type; 8 is a string."""
    count: int
    at: int
    """The byte where its elements begin."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file."""

    shape: tuple[int, ...]
    """GGUF's order: the contiguous dimension first."""
    kind: int
    """The ggml_type of its elements."""


@dataclass(frozen=True)
class Metadata:
    """What a GGUF file says of itself."""

    path: Path
    size: int
    """Bytes of the file."""
    values: Mapping[str, Value]
    """All but strings in arrays, and long arrays."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """Such as ``qwen2``; empty when the file does not say."""
        value = self.values.get("general.architecture", "")
        return value if isinstance(value, str) else ""

    def has(self, key: str) -> bool:
        """Whether this architecture's `key` has a value."""
        return f"{self.architecture}.{key}" in self.values

    def number(self, key: str) -> int | None:
        """The whole number at `key` of this architecture (``block_count``), None if absent.

        Raises
        ------
        ModelError
            If there is something else.
        """
        value = self.values.get(f"{self.architecture}.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ModelError(f"{self.path}: metadata {self.architecture}.{key} is {value!r}")
        return value

    def numbers(self, key: str, count: int) -> list[int] | None:
        """Like `number`, for what may differ from layer to layer: `count` of them."""
        value = self.values.get(f"{self.architecture}.{key}")
        if not isinstance(value, list):
            same = self.number(key)
            return None if same is None else [same] * count
        numbers = [int(item) for item in value if isinstance(item, int) and item >= 0]
        if len(numbers) != len(value) or len(value) < count:
            raise ModelError(
                f"{self.path}: metadata {self.architecture}.{key} has {len(numbers)} values "
                f"for {count} layers"
            )
        return numbers[:count]


def is_gguf(path: Path) -> bool:
    """Whether a file starts as GGUF files of a version known here do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(8)
    return head[:4] == MAGIC and int.from_bytes(head[4:], "little") in VERSIONS


def read_metadata(path: Path) -> Metadata:
    """What the GGUF file `path` says of itself.

    Raises
    ------
    ModelError
        If there is no such file, it is not GGUF, it is damaged, or it ends before its tensors do.
    """
    if not is_gguf(path):
        what = "is not a GGUF file" if path.exists() else "does not exist"
        raise ModelError(f"{path} {what}")
    facts = path.stat()
    return _read(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(8)
def _read(path: Path, *_identity: int) -> Metadata:
    """A run asks for a file's metadata more than once: for its memory, and before it is loaded."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = len(data)
        try:
            cursor = Cursor(data)
            values, arrays = read_values(cursor)
            tensors, need = read_tensors(cursor)
        except (struct.error, OverflowError, ValueError, KeyError) as error:
            raise ModelError(f"{path} is damaged: its metadata cannot be read ({error})") from error
    if need > size:
        raise ModelError(
            f"{path} is cut short: it has {size:,} bytes and needs over {need:,}; download it again"
        )
    return Metadata(path, size, values, arrays, tensors)


def what_else(metadata: Metadata) -> str | None:
    """What a GGUF file is instead of a language model; None where it may be one."""
    return next((what for test, what in OTHERS if test(metadata)), None)


def _is_later_shard(metadata: Metadata) -> bool:
    number = metadata.values.get("split.no", 0)
    return isinstance(number, int) and number > 0


def _lacks_tokenizer(metadata: Metadata) -> bool:
    model = metadata.values.get("tokenizer.ggml.model")
    return model in (None, "no_vocab", "none") or "tokenizer.ggml.tokens" not in metadata.arrays


def _is_of_type(*kinds: str) -> Callable[[Metadata], bool]:
    return lambda metadata: metadata.values.get("general.type") in kinds


EMBEDDERS = (
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "t5encoder gemma-embedding llama-embed"
).split()
DIFFUSERS = ("dream", "llada", "llada-moe", "rnd1")
OTHERS: list[tuple[Callable[[Metadata], bool], str]] = [
    (_is_later_shard, "a later shard of a model in several files; name its first shard"),
    (lambda found: found.architecture == "clip", "the vision part of a model (mmproj)"),
    (_is_of_type("mmproj"), "the vision part of a model (mmproj)"),
    (_is_of_type("adapter"), "an adapter (LoRA), not a whole model"),
    (_is_of_type("imatrix"), "an importance matrix"),
    (lambda found: found.architecture in EMBEDDERS, "an embedding model, which writes no text"),
    (lambda found: found.architecture == "t5",
     "an encoder-decoder model, which specx cannot run"),
    (lambda found: found.architecture in DIFFUSERS,
     "a diffusion model, which does not write from left to right"),
    (_lacks_tokenizer, "a model that has no tokenizer (a head for EAGLE or the like)"),
    (lambda found: not found.tensors and "split.count" not in found.values,
     "a vocabulary without weights; it holds no tensors"),
]  # fmt: skip


class Cursor:
    """A place in a GGUF file; it moves on over what it reads."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 8
        self.n_tensors = self.scalar("Q")
        self.n_values = self.scalar("Q")

    def scalar(self, code: str) -> int:
        """The next number of a `struct` format that is whole."""
        return int(self.scalars(code, 1)[0])

    def scalars(self, code: str, count: int) -> tuple[int | float | bool, ...]:
        """The next `count` numbers of one `struct` format."""
        self.need(count * struct.calcsize(code))
        numbers = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.skip(count * struct.calcsize(code))
        return numbers

    def string(self) -> str:
        """The next string."""
        length = self.scalar("Q")
        self.skip(length)
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def skip(self, size: int) -> None:
        """Move on over `size` bytes."""
        self.need(size)
        self.at += size

    def skip_strings(self, count: int) -> None:
        """Move on over an array of strings: the one loop that is long, so kept tight."""
        self.need(8 * count)
        data, at, length_at = self.data, self.at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
        self.skip(at - self.at)

    def need(self, size: int) -> None:
        """Raise ValueError unless the file has `size` bytes more."""
        if size > len(self.data) - self.at:
            raise ValueError(f"byte {self.at:,} promises more than the file has")


def read_strings(metadata: Metadata, key: str) -> list[bytes]:
    """The strings of the array at `key`; none where there is no such array of strings."""
    array = metadata.arrays.get(key)
    if array is None or array.kind != STRING:
        return []
    with (
        metadata.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        strings, at, length_at = [], array.at, struct.Struct("<Q").unpack_from
        for _ in range(array.count):
            begin = at + 8
            at = begin + length_at(data, at)[0]
            strings.append(data[begin:at])
        return strings


def read_values(cursor: Cursor) -> tuple[dict[str, Value], dict[str, Array]]:
    """All key-value pairs, and where the arrays lie; the cursor being before the first."""
    values: dict[str, Value] = {}
    arrays: dict[str, Array] = {}
    if cursor.n_values > MOST_KEYS:
        raise ValueError(f"it promises {cursor.n_values:,} keys")
    for _ in range(cursor.n_values):
        key, kind = cursor.string(), cursor.scalar("I")
        if kind == ARRAY:
            arrays[key] = array = Array(cursor.scalar("I"), cursor.scalar("Q"), cursor.at)
            numbers = read_array(cursor, array)
            if numbers is not None:
                values[key] = numbers
        else:
            values[key] = read_value(cursor, kind)
    return values, arrays


def read_value(cursor: Cursor, kind: int) -> int | float | bool | str:
    """The next value, of GGUF's type `kind`, which is no array."""
    return cursor.string() if kind == STRING else cursor.scalars(SCALARS[kind], 1)[0]


def read_array(cursor: Cursor, array: Array) -> list[int | float | bool] | None:
    """The numbers of an array; None if it was skipped, being long or of something else."""
    code = SCALARS.get(array.kind)
    if code is None or array.count > LONGEST_ARRAY:
        skip_array(cursor, array.kind, array.count)
        return None
    return list(cursor.scalars(code, array.count))


def skip_array(cursor: Cursor, kind: int, count: int, depth: int = 1) -> None:
    """Move on over the `count` elements of an array."""
    if kind == STRING:
        cursor.skip_strings(count)
    elif kind == ARRAY:
        cursor.need(12 * count)
        if depth >= DEEPEST_ARRAY:
            raise ValueError("its arrays are nested too deeply")
        for _ in range(count):
            skip_array(cursor, cursor.scalar("I"), cursor.scalar("Q"), depth + 1)
    else:
        cursor.skip(count * struct.calcsize(SCALARS[kind]))


def read_tensors(cursor: Cursor) -> tuple[dict[str, Tensor], int]:
    """All tensors, the cursor being before the first one's entry; and the bytes a file needs.

    Those are counted from the end of the entries to the beginning of the last tensor, without
    padding: a shorter file was cut.
    """
    tensors: dict[str, Tensor] = {}
    furthest = 0
    cursor.need(24 * cursor.n_tensors)
    for _ in range(cursor.n_tensors):
        name, n_dimensions = cursor.string(), cursor.scalar("I")
        cursor.need(8 * n_dimensions)
        shape = tuple(int(size) for size in cursor.scalars("Q", n_dimensions))
        tensors[name] = Tensor(shape, cursor.scalar("I"))
        furthest = max(furthest, cursor.scalar("Q"))
    return tensors, cursor.at + furthest
