"""A GGUF file written anew: some values replaced, some tensors cut to chosen rows.

All else is copied byte for byte. Rows of a quantised matrix are whole blocks, so a choice of rows
needs no dequantisation. Layout: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specx.runtime.metadata import (
    ARRAY,
    MAGIC,
    Cursor,
    Metadata,
    Tensor,
    read_tensors,
    read_value,
    skip_array,
)
from specx_backends.llamacpp_header import ALIGNMENT

__all__ = ["Rewritten", "rewrite"]

CHUNK = 4 << 20


@dataclass(frozen=True)
class Piece:
    """The data of a tensor of the source: rows of equal size, and which of them to take."""

    at: int
    shape: tuple[int, ...]
    """Of what is taken."""
    n_rows: int
    row_bytes: int
    rows: NDArray[np.intp] | None
    """All if None."""

    @property
    def whole_bytes(self) -> int:
        return self.row_bytes * self.n_rows

    @property
    def n_bytes(self) -> int:
        """Of the rows that are taken."""
        return self.row_bytes * (self.n_rows if self.rows is None else self.rows.size)

    def chunks(self, data: NDArray[np.uint8]) -> Iterator[bytes]:
        """The rows, taken out of the bytes of a file."""
        whole = data[self.at : self.at + self.whole_bytes]
        if self.rows is None:
            for begin in range(0, whole.size, CHUNK):
                yield whole[begin : begin + CHUNK].tobytes()
            return
        matrix, step = whole.reshape(self.n_rows, self.row_bytes), CHUNK // self.row_bytes + 1
        for begin in range(0, self.rows.size, step):
            yield matrix[self.rows[begin : begin + step]].tobytes()


@dataclass(frozen=True)
class Rewritten:
    """A file that is ready to be written."""

    source: Path
    head: bytes
    """All before the first tensor's data."""
    pieces: list[Piece]
    alignment: int

    @property
    def n_bytes(self) -> int:
        return len(self.head) + sum(aligned(piece.n_bytes, self.alignment) for piece in self.pieces)

    def chunks(self) -> Iterator[bytes]:
        """The content, in order."""
        yield self.head
        data = np.memmap(self.source, np.uint8, "r")
        for piece in self.pieces:
            yield from piece.chunks(data)
            yield bytes(aligned(piece.n_bytes, self.alignment) - piece.n_bytes)


def rewrite(
    header: Metadata,
    values: Mapping[str, bytes | None],
    rows: Mapping[str, NDArray[np.intp]],
    row_bytes: Callable[[int, int], int],
) -> Rewritten:
    """The file of `header`, changed.

    Parameters
    ----------
    values
        Encoded values by key, put first where the file lacks the key; None drops it.
    rows
        The rows to keep of some tensors, by name.
    row_bytes
        What a row of a ggml_type, with so many elements, takes.
    """
    alignment = int(header.values.get("general.alignment", ALIGNMENT))  # type: ignore[arg-type]
    with (
        header.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as source,
    ):
        cursor, version = Cursor(source), source[4:8]
        entries = changed(dict(_entries(cursor)), values)
        read_tensors(cursor)
        at = aligned(cursor.at, alignment)
    infos, pieces, offset = [], [], 0
    for name, tensor in header.tensors.items():
        # One after the other, as in the source: llama.cpp, which has read it, allows no gaps.
        piece = piece_of(tensor, at, rows.get(name), row_bytes)
        pieces.append(piece)
        infos.append(info(name, piece.shape, tensor.kind, offset))
        at += aligned(piece.whole_bytes, alignment)
        offset += aligned(piece.n_bytes, alignment)
    counts = struct.pack("<QQ", len(infos), len(entries))
    head = b"".join([MAGIC, version, counts, *entries.values(), *infos])
    head += bytes(aligned(len(head), alignment) - len(head))
    return Rewritten(header.path, head, pieces, alignment)


def piece_of(
    tensor: Tensor, at: int, rows: NDArray[np.intp] | None, row_bytes: Callable[[int, int], int]
) -> Piece:
    """The tensor at byte `at`, or some of its rows; those of a vector are single numbers."""
    if rows is None:
        width, *others = tensor.shape
        return Piece(at, tensor.shape, prod(others), row_bytes(tensor.kind, width), None)
    *inner, n_rows = tensor.shape
    return Piece(at, (*inner, rows.size), n_rows, row_bytes(tensor.kind, prod(inner)), rows)


def changed(entries: dict[str, bytes], values: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Entries of the metadata with some values put in, new ones first, or dropped."""
    put = {key: string(key) + value for key, value in values.items() if value is not None}
    new = {key: entry for key, entry in put.items() if key not in entries}
    kept = {key: entry for key, entry in entries.items() if values.get(key, b"") is not None}
    return {**new, **kept, **put}


def _entries(cursor: Cursor) -> Iterator[tuple[str, bytes]]:
    """Every key, and its entry as it stands in the file."""
    for _ in range(cursor.n_values):
        begin = cursor.at
        key, kind = cursor.string(), cursor.scalar("I")
        if kind == ARRAY:
            skip_array(cursor, cursor.scalar("I"), cursor.scalar("Q"))
        else:
            read_value(cursor, kind)
        yield key, cursor.data[begin : cursor.at]


def aligned(size: int, alignment: int) -> int:
    """`size` rounded up."""
    return -(-size // alignment) * alignment


def string(text: str) -> bytes:
    """A string as GGUF writes it."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def info(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """The entry of a tensor."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
