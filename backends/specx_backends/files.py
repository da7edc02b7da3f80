"""What both runtimes ask of a model file, and what they say of one."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

from specx.errors import ModelError
from specx.runtime.shards import require_shards, shards_of

__all__ = ["check_file", "describe_file", "warn_beyond_training"]

HASHED_BYTES = 64 << 20
"""Hashing some gigabytes takes seconds."""


def check_file(path: Path) -> None:
    """Raise ModelError unless `path` is a GGUF file, and the first of all its shards."""
    if path.is_dir():
        raise ModelError(f"'{path}' is a directory; name the .gguf file in it")
    if path.exists() and not path.is_file():
        raise ModelError(f"cannot read model '{path}': it is not a regular file; give a .gguf file")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelError(f"cannot read model '{path}': {reason}; give a .gguf file") from error
    if magic != b"GGUF":
        raise ModelError(f"'{path}' is not a GGUF file (it begins with {magic!r}, not b'GGUF')")
    require_shards(path)


def describe_file(path: Path) -> dict[str, object]:
    """Path as given, size of all its shards, and the hash where it is quick."""
    shards = shards_of(path)
    size = sum(shard.stat().st_size for shard in shards)
    told: dict[str, object] = {"file": str(path), "bytes": size}
    if size <= HASHED_BYTES and len(shards) == 1:
        told["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return told


def warn_beyond_training(path: Path, n_ctx: int, trained: int) -> None:
    """Warn of a context that is longer than what the model was trained on."""
    if n_ctx > trained:
        warnings.warn(
            f"n_ctx {n_ctx} exceeds the {trained} positions that {path.name} was trained on; "
            "text beyond them may be poor",
            stacklevel=3,
        )
