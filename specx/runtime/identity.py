"""Recognises a model by the content of its file, in milliseconds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["identity"]

HEAD = 2**20
"""Bytes at the beginning that are read whole: a GGUF file has its metadata there, and with them
the shapes and formats that decide what a pass costs."""
SAMPLES, SAMPLE = 16, 2**16
"""Pieces of the rest that are read: they tell fine-tunes of one model apart."""


def identity(path: Path) -> str | None:
    """A short hash of a model: of its size, its head and pieces of the rest; None if unreadable.

    The path is not part of it, so a file that was moved keeps its identity, and another model under
    the same name has a new one. Reading all of a large file would take longer than a short run.
    Of a folder, every file in it counts; of a model in several shards, the first one.
    """
    digest = hashlib.sha256()
    try:
        files = sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]
        for file in files:
            if file != path:
                digest.update(file.name.encode(errors="surrogateescape"))
            for piece in _pieces(file):
                digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest()[:32]


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        size = path.stat().st_size
        yield f"{size} ".encode()
        yield file.read(HEAD)
        rest = max(size - HEAD - SAMPLE, 0)
        for i in range(SAMPLES if rest else 0):
            file.seek(HEAD + rest * i // (SAMPLES - 1))
            yield file.read(SAMPLE)
