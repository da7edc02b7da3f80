"""Downloads one file into the hub's own cache: resumed, and verified before it gets its place.

huggingface_hub finds, authorises and transfers. Its `hf_hub_download` does not download here: in
version 2 it throws away what an interrupted download had, and never computes a checksum. Here the
part stays, beside the place of the whole file, and what has a wrong checksum never gets that place.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specx.errors import ModelError
from specx.library.checksums import SHA256, Task, learn, sha256_of
from specx.library.hub import HubFile, hub_utils
from specx.runtime.memory import gigabytes

__all__ = ["Remote", "ask", "fetch", "require_space"]

COMMIT = re.compile(r"[0-9a-f]{40}")
ETAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{7,127}")
"""What may become the name of a file."""
SPARE = 64 << 20
"""Bytes that stay free on a disk."""


@dataclass(frozen=True)
class Remote:
    """A file as the hub has it now."""

    file: HubFile
    commit: str
    bytes: int
    etag: str
    sha256: str | None
    """None where neither the hub nor an earlier download tells."""

    @property
    def blob(self) -> Path:
        """Where the hub's cache keeps the content."""
        return _cache() / _folder(self.file) / "blobs" / self.etag

    @property
    def part(self) -> Path:
        """Where the content grows; no other program writes there."""
        return self.blob.with_name(f"{self.etag}.specx.incomplete")

    @property
    def lock(self) -> Path:
        """Locked by the process that fills the part."""
        return _cache() / ".locks" / _folder(self.file) / f"{self.etag}.specx.lock"

    @property
    def bytes_left(self) -> int:
        """Bytes that are still to come."""
        if self.blob.exists():
            return 0
        return self.bytes - (self.part.stat().st_size if self.part.exists() else 0)


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _folder(file: HubFile) -> str:
    from huggingface_hub.file_download import repo_folder_name

    name: str = repo_folder_name(repo_id=file.repo, repo_type="model")
    return name


def ask(file: HubFile, expected: str | None) -> Remote:
    """Ask the hub for a file's facts; a name that it gives is checked before it names a file."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    facts = get_hf_file_metadata(hf_hub_url(file.repo, file.file, revision=file.revision))
    etag, commit, size = facts.etag or "", facts.commit_hash or "", facts.size
    if not ETAG.fullmatch(etag) or not COMMIT.fullmatch(commit) or size is None:
        raise ModelError(
            f"the answer for {file} is not a model hub's (etag {etag!a:.80}, commit "
            f"{commit!a:.80}, {size} bytes); check HF_ENDPOINT"
        )
    known = etag if SHA256.fullmatch(etag) else None
    if expected and known and expected != known:
        raise ModelError(
            f"{file} is another file on the hub now (SHA-256 {known[:12]}..., and "
            f"{expected[:12]}... is expected); name the commit that had it (hf:OWNER/NAME@COMMIT:"
            "FILE), or take the new one: specx pull --update"
        )
    return Remote(file, commit, size, etag, expected or known)


def require_space(remotes: list[Remote]) -> None:
    """Raise ModelError unless all files fit on the disk of the cache."""
    folder = remotes[0].blob.parent
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(remote.bytes_left for remote in remotes)
    free = shutil.disk_usage(folder).free - SPARE
    if needed > free:
        raise ModelError(
            f"{remotes[0].file} takes {gigabytes(needed)} more, and {gigabytes(max(free, 0))} are "
            f"free in {folder}; free some room, or set HF_HUB_CACHE to a folder on another disk"
        )


def fetch(remote: Remote, task: Task) -> None:
    """Download one file, verify it, and put it into the cache."""
    from huggingface_hub import hf_hub_download

    remote.lock.parent.mkdir(parents=True, exist_ok=True)
    with hub_utils().WeakFileLock(remote.lock):  # else two processes would write one part
        digest = sha256_of(remote.blob, task) if remote.blob.is_file() else None
        if digest is None or digest != (remote.sha256 or digest):
            digest = _download(remote, task)
            remote.part.replace(remote.blob)
        file = remote.file
        copy = replace(file, revision=remote.commit).path  # in a cache without links
        if copy is not None and not copy.is_symlink() and sha256_of(copy, task) != digest:
            copy.unlink()
        hf_hub_download(file.repo, file.file, revision=file.revision)  # finds it; makes the link
    learn(file, digest)


def _download(remote: Remote, task: Task) -> str:
    """Fill the part, from where it ends; return its checksum, which is right."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get

    file = remote.file
    label = f"downloading {file.file.rpartition('/')[2]}"
    with task(label, remote.bytes) as report, _Part(remote.part, remote.bytes, report) as part:
        http_get(
            hf_hub_url(file.repo, file.file, revision=remote.commit),
            part,
            resume_size=part.tell(),
            headers=hub_utils().build_hf_headers(),
            expected_size=remote.bytes,
            tqdm_class=hub_utils().silent_tqdm,
        )
    digest = sha256_of(remote.part, task)
    if digest != (remote.sha256 or digest):
        remote.part.unlink()
        raise ModelError(
            f"{file} arrived with SHA-256 {digest[:12]}... instead of "
            f"{(remote.sha256 or '')[:12]}..., and was thrown away; pull it again"
        )
    return digest


class _Part(io.BufferedWriter):
    """A file that grows, and tells how far it is."""

    def __init__(self, path: Path, most: int, report: Callable[[float], None]) -> None:
        if path.exists() and path.stat().st_size > most:
            path.unlink()
        super().__init__(io.FileIO(path, "ab"))
        self._report = report

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._report(self.tell())
        return written
