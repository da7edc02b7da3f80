"""Brings models onto this machine, and verifies those that are there."""

from __future__ import annotations

from pathlib import Path

from specx.errors import ModelError, UsageError
from specx.library.checksums import SHA256, Task, learn, learnt, sha256_of, untold
from specx.library.download import ask, fetch, require_space
from specx.library.failures import told
from specx.library.hub import LAST, HubFile, HubFolder, hub_utils
from specx.library.names import Known, find, known_names
from specx.runtime.hub import WANTED

__all__ = ["pull", "pull_missing", "pull_named"]


def pull_named(text: str, *, update: bool = False, task: Task = untold) -> list[Path]:
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


def pull_missing(text: str, *, task: Task = untold) -> None:
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


def pull(known: Known, *, update: bool = False, task: Task = untold) -> Path:
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
    place, taught = known.place, learnt()
    assert not isinstance(place, Path)
    with told(place):
        files = place.shards if isinstance(place, HubFile) else _files(place)
        expected = {
            file: None if update else known.sha256 or taught.get(str(file)) for file in files
        }
        lacking = [file for file in files if update or not _is_sound(file, expected[file], task)]
        if lacking:
            _require_network(place)
            remotes = [ask(file, expected[file]) for file in lacking]
            require_space(remotes)
            for remote in remotes:
                fetch(remote, task)
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
    wanted = list(hub_utils().filter_repo_objects(names, **WANTED))
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


def _require_network(place: HubFile | HubFolder) -> None:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        raise ModelError(
            f"{place} is not on this machine, and the network is off (HF_HUB_OFFLINE); unset it to "
            "download"
        )


def _is_sound(file: HubFile, expected: str | None, task: Task) -> bool:
    """True if the file is on this machine, and has the checksum that it should have.

    The hub's cache names a content by its checksum. Of a content that is named otherwise, the
    first pull learns it.
    """
    path = file.path
    if path is None:
        return False
    name = path.resolve().name
    digest = sha256_of(path, task)
    right = expected or (name if SHA256.fullmatch(name) else digest)
    if digest == right:
        learn(file, digest)
    return digest == right
