"""From the name of a model, or of a pair, to files."""

from __future__ import annotations

import difflib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from specx.errors import ModelError, UsageError
from specx.library.hub import PREFIX, HubFile, HubFolder, hub_name
from specx.library.registry import KnownPair, alias_file, aliases, registry
from specx.runtime.memory import gigabytes

__all__ = ["Known", "Named", "find", "known_names", "resolve"]

CLOSE = 0.8
"""How like a known name an unknown one must be, of 1, to be taken for a slip."""


@dataclass(frozen=True)
class Known:
    """One model that a name stands for."""

    place: HubFile | HubFolder | Path
    sha256: str | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Named:
    """Files, or names that only a backend knows: of one model, or of a pair."""

    model: str
    draft: str | None = None


def resolve(text: str) -> Named:
    """What `text` stands for: itself if it exists or is unknown, else files on this machine.

    Raises
    ------
    ModelError
        If it is the name of a model that is not on this machine; nothing is downloaded here.
    UsageError
        If it is not quite a known name.
    """
    if os.path.exists(text):
        return Named(text)
    found = find(text)
    if not found:
        _refuse_slips(text)
        return Named(text)
    return Named(*(_on_disk(known, text) for known in found))


def find(text: str) -> tuple[Known, ...]:
    """The model, or the verifier and the drafter, that a name stands for; empty if unknown.

    A name is the user's alias, a known model or pair, or a name on the hub after ``hf:``.
    """
    alias = aliases().get(text)
    if isinstance(alias, KnownPair):
        return _alias_target(alias.model), _alias_target(alias.draft)
    if alias is not None:
        return (_alias_target(alias),)
    if pair := registry().pairs.get(text):
        return _known(pair.model), _known(pair.draft)
    if text in registry().models:
        return (_known(text),)
    return (Known(hub_name(text)),) if text.startswith(PREFIX) else ()


def known_names() -> list[str]:
    """All names of models and pairs, the user's own first."""
    return list(dict.fromkeys([*aliases(), *registry().pairs, *registry().models]))


def _known(name: str) -> Known:
    model = registry().models[name]
    return Known(model.hub_file, model.sha256, model.bytes)


def _alias_target(text: str) -> Known:
    if text.startswith(PREFIX):
        return Known(hub_name(text))
    if text in registry().models:
        return _known(text)
    return Known(alias_file().parent / Path(text).expanduser())


def _on_disk(known: Known, text: str) -> str:
    if isinstance(known.place, Path):
        return str(known.place)
    path = known.place.model
    if path is None:
        size = f" ({gigabytes(known.bytes)})" if known.bytes else ""
        raise ModelError(
            f"model '{text}' is not on this machine; download it{size}: "
            f"specx pull {shlex.quote(text)}"
        )
    return str(path)


def _refuse_slips(text: str) -> None:
    if text.endswith(".gguf") or "/" in text or os.sep in text:
        return  # a file that is not there, or a folder on the hub: the backend says so
    close = difflib.get_close_matches(text, known_names(), n=1, cutoff=CLOSE)
    if close:
        raise UsageError(
            f"no model is called '{text}'; did you mean '{close[0]}'? (specx models lists the "
            "names)"
        )
