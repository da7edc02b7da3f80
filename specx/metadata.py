"""The metadata of a GGUF file, read in milliseconds and without loading anything.

The reader of the library `gguf` makes an array of every vocabulary entry and takes seconds (6 for
151,936 entries); this one skips what nobody asked for. Layout: the GGUF specification, versions 2
and 3.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from specx.errors import ModelError

__all__ = ["Metadata", "is_gguf", "read_metadata"]

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

Value: TypeAlias = "int | float | bool | str | list[int | float | bool]"


@dataclass(frozen=True)
class Metadata:
    """What a GGUF file says of itself."""

    path: Path
    size: int
    """Bytes of the file."""
    values: Mapping[str, Value]
    """All but strings in arrays, and long arrays."""

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
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        size = len(data)
        try:
            cursor = Cursor(data)
            values = read_values(cursor)
            need = last_tensor(cursor)
        except (struct.error, OverflowError, ValueError, KeyError) as error:
            raise ModelError(f"{path} is damaged: its metadata cannot be read ({error})") from error
    if need > size:
        raise ModelError(f"{path} is cut short: it has {size:,} bytes and needs over {need:,}")
    return Metadata(path, size, values)


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
        return self.data[self.at - length : self.at].decode()

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


def read_values(cursor: Cursor) -> dict[str, Value]:
    """All key-value pairs, the cursor being before the first."""
    values: dict[str, Value] = {}
    for _ in range(cursor.n_values):
        key = cursor.string()
        value = read_value(cursor, cursor.scalar("I"))
        if value is not None:
            values[key] = value
    return values


def read_value(cursor: Cursor, kind: int) -> Value | None:
    """The next value, of GGUF's type `kind`; None if it was skipped."""
    if kind == STRING:
        return cursor.string()
    if kind == ARRAY:
        return read_array(cursor, cursor.scalar("I"), cursor.scalar("Q"))
    return cursor.scalars(SCALARS[kind], 1)[0]


def read_array(cursor: Cursor, kind: int, count: int) -> list[int | float | bool] | None:
    """The next array of numbers; None if it was skipped."""
    if kind == STRING:
        cursor.skip_strings(count)
        return None
    code = SCALARS[kind]
    if count > LONGEST_ARRAY:
        cursor.skip(count * struct.calcsize(code))
        return None
    return list(cursor.scalars(code, count))


def last_tensor(cursor: Cursor) -> int:
    """Where the last tensor's data begins, the cursor being before the first tensor's entry.

    Counted from the end of the entries, without padding: a shorter file was cut.
    """
    offsets = [0]
    for _ in range(cursor.n_tensors):
        cursor.string()
        cursor.skip(8 * cursor.scalar("I"))  # the dimensions
        cursor.skip(4)  # the type
        offsets.append(cursor.scalar("Q"))
    return cursor.at + max(offsets)
