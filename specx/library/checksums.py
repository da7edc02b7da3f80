"""Checksums: computed, and those that first downloads taught."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TypeAlias

from specx.codec import to_json
from specx.errors import UsageError
from specx.library.hub import HubFile
from specx.output import OutputFile
from specx.runtime.folders import cache_folder

__all__ = ["SHA256", "Task", "learn", "learnt", "sha256_of", "untold"]

Task: TypeAlias = Callable[[str, float], AbstractContextManager[Callable[[float], None]]]
"""Shows how far a task of this name and size is; see `specx.cli.progress.Progress.task`."""

SHA256 = re.compile(r"[0-9a-f]{64}")
AT_ONCE = 1 << 20
RECORD = "downloads.json"


def untold(label: str, total: float) -> AbstractContextManager[Callable[[float], None]]:
    """Show nothing."""
    return nullcontext(lambda done: None)


def sha256_of(path: Path, task: Task) -> str:
    """The SHA-256 of a file."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file, task("verifying", path.stat().st_size) as report:
        while chunk := file.read(AT_ONCE):
            digest.update(chunk)
            done += len(chunk)
            report(done)
    return digest.hexdigest()


def learnt() -> dict[str, str]:
    """Checksums by the name of the file; none if the record is damaged."""
    try:
        record = json.loads((cache_folder() / RECORD).read_bytes())
        return {str(name): str(digest) for name, digest in record.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def learn(file: HubFile, digest: str) -> None:
    """Record the checksum of a file that is there."""
    known = learnt()
    if known.get(str(file)) == digest:
        return
    with suppress(OSError, UsageError):  # the model is there all the same
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        OutputFile(folder / RECORD).write(to_json({**known, str(file): digest}))
