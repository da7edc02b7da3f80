"""A file on the model hub: its name, checked so that it cannot leave the hub's cache."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from specx.errors import UsageError
from specx.runtime.shards import shard_names

__all__ = ["PREFIX", "HubFile"]

PREFIX = "hf:"
REPO = re.compile(r"[A-Za-z0-9][\w.-]{,95}/[A-Za-z0-9][\w.-]{,95}", re.ASCII)
REVISION = re.compile(r"\w[\w.-]{,99}(/\w[\w.-]{,99}){,4}", re.ASCII)
NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f-\x9f\ud800-\udfff\\:*?"<>|]')
"""Control characters, and what some system reads as more than a part of a name."""
FORM = "write hf:OWNER/NAME:FILE.gguf"


@dataclass(frozen=True)
class HubFile:
    """A GGUF file of a repository on the hub, or the first of a model's files.

    Raises
    ------
    UsageError
        If a part of the name could stand for a place outside of the repository's folder.
    """

    repo: str
    file: str
    revision: str = "main"

    def __post_init__(self) -> None:
        if not REPO.fullmatch(self.repo) or ".." in self.repo or "--" in self.repo:
            raise UsageError(f"{self.repo!a:.120} is not the name of a repository; {FORM}")
        if not REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise UsageError(
                f"{self.revision!a:.120} is not a revision; write a branch, a tag or a commit "
                "(hf:OWNER/NAME@REVISION:FILE.gguf)"
            )
        parts = self.file.split("/")
        if any(part.strip(". ") == "" or NOT_IN_NAMES.search(part) for part in parts):
            raise UsageError(f"{self.file!a:.120} is not the name of a file; {FORM}")
        if len(self.file.encode()) > 400 or not self.file.endswith(".gguf"):
            raise UsageError(f"{self.file!a:.120} does not name a .gguf file; {FORM}")

    @classmethod
    def parse(cls, text: str) -> HubFile:
        """The file that ``hf:OWNER/NAME:FILE``, or ``OWNER/NAME@REVISION:FILE``, names."""
        place, colon, file = text.removeprefix(PREFIX).partition(":")
        if not colon:
            raise UsageError(f"{text!a:.120} names no file of a repository; {FORM}")
        repo, at, revision = place.partition("@")
        return cls(repo, file, revision if at else "main")

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{PREFIX}{self.repo}{at}:{self.file}"

    @property
    def shards(self) -> list[HubFile]:
        """All files of the model, the first one first."""
        folder, slash, name = self.file.rpartition("/")
        return [replace(self, file=f"{folder}{slash}{shard}") for shard in shard_names(name)]

    @property
    def path(self) -> Path | None:
        """Where this one file is in the hub's cache; None if it is not there."""
        from huggingface_hub import try_to_load_from_cache  # a quarter of a second

        found = try_to_load_from_cache(self.repo, self.file, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    @property
    def model(self) -> Path | None:
        """Where the model's first file is; None unless all its files are there."""
        paths = [shard.path for shard in self.shards]
        return paths[0] if all(paths) else None
