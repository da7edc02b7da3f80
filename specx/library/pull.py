"""Downloads models into the hub's own cache: resumed, verified, and only when asked.

huggingface_hub finds, authorises and transfers. Its `hf_hub_download` does not download here: in
version 2 it throws away what an interrupted download had, and never computes a checksum. Here the
part stays, beside the place of the whole file, and what has a wrong checksum never gets that place.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from specx.codec import to_json
from specx.errors import ModelError, SpecxError, UsageError
from specx.library.hub import LAST, HubFile, HubFolder
from specx.library.names import Known, find, known_names
from specx.output import OutputFile
from specx.runtime.folders import cache_folder
from specx.runtime.hub import WANTED
from specx.runtime.memory import gigabytes

__all__ = ["Task", "pull", "pull_missing", "pull_named"]

Task: TypeAlias = Callable[[str, float], AbstractContextManager[Callable[[float], None]]]
"""Shows how far a task of this name and size is; see `specx.cli.progress.Progress.task`."""

SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
ETAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{7,127}")
"""What may become the name of a file."""
HASHED_AT_ONCE = 1 << 20
SPARE = 64 << 20
"""Bytes that stay free on a disk."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _untold(label: str, total: float) -> AbstractContextManager[Callable[[float], None]]:
    return nullcontext(lambda done: None)


def pull_named(text: str, *, update: bool = False, task: Task = _untold) -> list[Path]:
    """Bring the model, or both models of the pair, that `text` names onto this machine.

    Raises
    ------
    UsageError
        If nothing of that name is known.
    ModelError
        As `pull`.
    """
    return [
        known.place if isinstance(known.place, Path) else pull(known, update=update, task=task)
        for known in _named(text)
    ]


def pull_missing(text: str, *, task: Task = _untold) -> None:
    """As `pull_named`, but only what is not on this machine; the rest is not verified."""
    for known in _named(text):
        if not isinstance(known.place, Path) and known.place.model is None:
            pull(known, task=task)


def _named(text: str) -> tuple[Known, ...]:
    found = find(text)
    if not found:
        names = ", ".join(known_names())
        raise UsageError(f"no model is called '{text}'; known: {names}, hf:OWNER/NAME:FILE.gguf")
    return found


def pull(known: Known, *, update: bool = False, task: Task = _untold) -> Path:
    """Bring a model of the hub onto this machine; return its folder, or the first of its files.

    What is there is verified; the hub is not asked for a file that is there.

    Parameters
    ----------
    known
        Its checksum, if given, is of its only file.
    update
        Ask the hub for the newest file of the revision, even if its checksum is not the known one.

    Raises
    ------
    ModelError
        If it cannot be downloaded, or is not what it was; says which.
    """
    place, learnt = known.place, _learnt()
    assert not isinstance(place, Path)
    with _told(place):
        files = place.shards if isinstance(place, HubFile) else _files(place)
        expected = {
            file: None if update else known.sha256 or learnt.get(str(file)) for file in files
        }
        lacking = [file for file in files if update or not _is_sound(file, expected[file], task)]
        if lacking:
            _require_network(place)
            remotes = [_ask(file, expected[file]) for file in lacking]
            _require_space(remotes)
            for remote in remotes:
                _fetch(remote, task)
        if isinstance(place, HubFolder):
            _complete(place)
        path = place.model
    if path is None:
        raise ModelError(f"{place} changed on the hub while it was downloaded; pull it again")
    return path


def _files(folder: HubFolder) -> list[HubFile]:
    """The files of a model in a repository, as the hub lists them, or as they are cached."""
    from huggingface_hub import HfApi, constants

    here = folder.model
    if here is None:
        _require_network(folder)
    if here is None or not constants.is_offline_mode():
        names = HfApi().list_repo_files(folder.repo, revision=folder.revision)
    else:
        names = [path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()]
    wanted = list(_hub_utils().filter_repo_objects(names, **WANTED))
    if LAST not in wanted or not any(name.endswith(".safetensors") for name in wanted):
        ggufs = sorted(name for name in names if name.endswith(".gguf"))
        remedy = f"name one of its files, such as {ggufs[0]!a:.120}" if ggufs else "see its page"
        raise ModelError(f"{folder} holds no model in the form that transformers loads; {remedy}")
    ordered = sorted(wanted, key=lambda name: (name == LAST, name))
    return [HubFile(folder.repo, name, folder.revision) for name in ordered]


def _complete(folder: HubFolder) -> None:
    """Have the hub's own tools note that the folder is whole, as far as `WANTED` goes."""
    from huggingface_hub import snapshot_download

    if folder.model is None:
        snapshot_download(folder.repo, revision=folder.revision, **WANTED)


@dataclass(frozen=True)
class _Remote:
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


def _hub_utils() -> Any:
    """What huggingface_hub offers there, of which a type checker sees nothing."""
    return import_module("huggingface_hub.utils")


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _folder(file: HubFile) -> str:
    from huggingface_hub.file_download import repo_folder_name

    name: str = repo_folder_name(repo_id=file.repo, repo_type="model")
    return name


def _require_network(place: HubFile | HubFolder) -> None:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise ModelError(
            f"{place} is not on this machine, and the network is off (HF_HUB_OFFLINE); unset it to "
            "download"
        )


def _ask(file: HubFile, expected: str | None) -> _Remote:
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
    return _Remote(file, commit, size, etag, expected or known)


def _require_space(remotes: list[_Remote]) -> None:
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


def _fetch(remote: _Remote, task: Task) -> None:
    """Download one file, verify it, and put it into the cache."""
    from huggingface_hub import hf_hub_download

    remote.lock.parent.mkdir(parents=True, exist_ok=True)
    with _hub_utils().WeakFileLock(remote.lock):  # else two processes would write one part
        digest = _sha256(remote.blob, task) if remote.blob.is_file() else None
        if digest is None or digest != (remote.sha256 or digest):
            digest = _download(remote, task)
            remote.part.replace(remote.blob)
        file = remote.file
        copy = replace(file, revision=remote.commit).path  # in a cache without links
        if copy is not None and not copy.is_symlink() and _sha256(copy, task) != digest:
            copy.unlink()
        hf_hub_download(file.repo, file.file, revision=file.revision)  # finds it; makes the link
    _learn(file, digest)


def _download(remote: _Remote, task: Task) -> str:
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
            headers=_hub_utils().build_hf_headers(),
            expected_size=remote.bytes,
            tqdm_class=_hub_utils().silent_tqdm,
        )
    digest = _sha256(remote.part, task)
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


def _is_sound(file: HubFile, expected: str | None, task: Task) -> bool:
    """True if the file is on this machine, and has the checksum that it should have.

    The hub's cache names a content by its checksum. Of a content that is named otherwise, the
    first pull learns it.
    """
    path = file.path
    if path is None:
        return False
    name = path.resolve().name
    digest = _sha256(path, task)
    right = expected or (name if SHA256.fullmatch(name) else digest)
    if digest == right:
        _learn(file, digest)
    return digest == right


def _sha256(path: Path, task: Task) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file, task("verifying", path.stat().st_size) as report:
        while chunk := file.read(HASHED_AT_ONCE):
            digest.update(chunk)
            done += len(chunk)
            report(done)
    return digest.hexdigest()


# Checksums that were learnt


def _learnt() -> dict[str, str]:
    """Checksums by the name of the file; none if the record is damaged."""
    try:
        learnt = json.loads((cache_folder() / "downloads.json").read_bytes())
        return {str(name): str(digest) for name, digest in learnt.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def _learn(file: HubFile, digest: str) -> None:
    learnt = _learnt()
    if learnt.get(str(file)) == digest:
        return
    with suppress(OSError, UsageError):  # the model is there all the same
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        OutputFile(folder / "downloads.json").write(to_json({**learnt, str(file): digest}))


@contextmanager
def _told(place: HubFile | HubFolder) -> Iterator[None]:
    """Turn whatever is raised about a download into one line."""
    _hub_utils().logging.set_verbosity_error()  # it tells of each attempt
    try:
        yield
    except SpecxError:
        raise
    except Exception as error:  # of the HTTP client, of the hub, of the file system
        raise ModelError(_refusal(place, error) or _failure(place, error)) from error


def _refusal(place: HubFile | HubFolder, error: Exception) -> str | None:
    """What to say if the hub does not give the file; None for any other error."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"the hub gives {place} only to those who accepted its terms; accept them on the page "
            f"of {place.repo}, then: hf auth login"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"repository {place.repo} has no revision {place.revision}; check the name"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return (
            f"{place}: the repository has no such file at revision {place.revision}; check the "
            "name on its page"
        )
    if isinstance(error, errors.RepositoryNotFoundError) or (
        isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403)
    ):
        return (
            f"the hub has no repository {place.repo}, or it is private; check the name, or: hf "
            "auth login"
        )
    return None


def _failure(place: HubFile | HubFolder, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in FULL:
        reason = "the disk is full; free some room"
    else:
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        reason = f"{first!a:.200}; check the network"
    return (
        f"{place} is not downloaded: {reason}, then pull it again, which goes on from where it "
        "stopped"
    )
