"""Models in several GGUF files, which are named ``NAME-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from pathlib import Path

from specx.errors import ModelError

__all__ = ["require_shards", "shard_names", "shards_of"]

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
MOST = 1000
"""A name that promises more files than this is no shard's."""


def shard_names(name: str) -> list[str]:
    """Names of all files of the model that the file `name` belongs to, in order.

    A model in one file has that name alone.
    """
    found = SHARD.fullmatch(name)
    if found is None or not 1 <= int(found["number"]) <= int(found["count"]) <= MOST:
        return [name]
    stem, count = found["stem"], found["count"]
    return [f"{stem}-{number:05d}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def shards_of(path: Path) -> list[Path]:
    """All files of the model that the file `path` belongs to, in order; some may be missing."""
    return [path.with_name(name) for name in shard_names(path.name)]


def require_shards(path: Path) -> None:
    """Raise ModelError unless `path` is the first file of a model, and the others are there."""
    first, *others = shards_of(path)
    if path.name != first.name:
        raise ModelError(
            f"'{path}' is a later shard of a model in {len(others) + 1} files; name the first, "
            f"'{first.name}'"
        )
    missing = [shard.name for shard in others if not shard.is_file()]
    if missing:
        raise ModelError(
            f"'{path}' is the first of {len(others) + 1} files of a model, of which "
            f"{len(missing)} {'is' if len(missing) == 1 else 'are'} missing, beginning with "
            f"'{missing[0]}'; put it beside the first"
        )
