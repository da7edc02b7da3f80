"""Names on the model hub, checked so that none can leave the hub's cache, and what is cached."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from specx.errors import UsageError
from specx.runtime.hub import WANTED
from specx.runtime.shards import shard_names

__all__ = ["LAST", "PREFIX", "HubFile", "HubFolder", "hub_name", "hub_utils"]

PREFIX = "hf:"
REPO = re.compile(r"[A-Za-z0-9][\w.-]{,95}/[A-Za-z0-9][\w.-]{,95}", re.ASCII)
REVISION = re.compile(r"\w[\w.-]{,99}(/\w[\w.-]{,99}){,4}", re.ASCII)
NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f-\x9f\ud800-\udfff\\:*?"<>|]')
"""Control characters, and what some system reads as more than a part of a name."""
MOST_BYTES = 400
LAST = "config.json"
"""Downloaded last, so that what was interrupted is not taken for a model."""
FORM = "write hf:OWNER/NAME:FILE.gguf"


@dataclass(frozen=True)
class HubFolder:
    """A repository with a model in the form that transformers loads.

    Raises
    ------
    UsageError
        If a part of the name could stand for a place outside of the repository's folder.
    """

    repo: str
    revision: str = "main"

    def __post_init__(self) -> None:
        if not REPO.fullmatch(self.repo) or ".." in self.repo or "--" in self.repo:
            raise UsageError(f"{self.repo!a:.120} is not the name of a repository; {FORM}")
        if not REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise UsageError(
                f"{self.revision!a:.120} is not a revision; write a branch, a tag or a commit "
                "(hf:OWNER/NAME@REVISION:FILE.gguf)"
            )

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{PREFIX}{self.repo}{at}"

    @property
    def model(self) -> Path | None:
        """Where it is in the hub's cache; None unless all its files are there."""
        from huggingface_hub import snapshot_download  # a quarter of a second

        named: dict[str, Any] = {"revision": self.revision, "local_files_only": True, **WANTED}
        try:
            folder = Path(snapshot_download(self.repo, **named))
        except (OSError, ValueError):
            return None
        # Without a list of its files the cache takes any part of a folder for the whole.
        whole = (folder / LAST).is_file() and any(folder.glob("*.safetensors"))
        return folder if whole else None


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; of a model in several files, any of them.

    Raises
    ------
    UsageError
        As `HubFolder`.
    """

    repo: str
    file: str
    revision: str = "main"

    def __post_init__(self) -> None:
        parts = self.file.split("/")
        if any(part.strip(". ") == "" or NOT_IN_NAMES.search(part) for part in parts):
            raise UsageError(f"{self.file!a:.120} is not the name of a file; {FORM}")
        if len(self.file.encode()) > MOST_BYTES:
            raise UsageError(f"{self.file!a:.120} is too long for the name of a file; {FORM}")
        _ = self.folder  # refuses what is no repository

    def __str__(self) -> str:
        return f"{self.folder}:{self.file}"

    @property
    def folder(self) -> HubFolder:
        """The repository."""
        return HubFolder(self.repo, self.revision)

    @property
    def shards(self) -> list[HubFile]:
        """All files of the model, the first one first."""
        folder, slash, name = self.file.rpartition("/")
        return [replace(self, file=f"{folder}{slash}{shard}") for shard in shard_names(name)]

    @property
    def path(self) -> Path | None:
        """Where this one file is in the hub's cache; None if it is not there."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo, self.file, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    @property
    def model(self) -> Path | None:
        """Where the model's first file is; None unless all its files are there."""
        paths = [shard.path for shard in self.shards]
        return paths[0] if all(paths) else None


def hub_name(text: str) -> HubFile | HubFolder:
    """What ``hf:OWNER/NAME:FILE.gguf`` names, or ``hf:OWNER/NAME``, both with ``@REVISION``."""
    place, colon, file = text.removeprefix(PREFIX).partition(":")
    repo, at, revision = place.partition("@")
    folder = HubFolder(repo, revision if at else "main")
    if not colon:
        return folder
    if not file.endswith(".gguf"):
        raise UsageError(f"{file!a:.120} does not name a .gguf file; {FORM}")
    return HubFile(folder.repo, file, folder.revision)


def hub_utils() -> Any:
    """What huggingface_hub offers there, of which a type checker sees nothing."""
    return import_module("huggingface_hub.utils")
