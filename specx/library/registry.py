"""Models that specx knows by name: from ``models/registry.toml``, and the user's own aliases."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from specx.codec import convert
from specx.errors import UsageError
from specx.library.hub import HubFile
from specx.runtime.folders import config_folder
from specx.runtime.inputs import read_text
from specx.shipped import packaged

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["KnownModel", "KnownPair", "Registry", "alias_file", "aliases", "registry"]

T = TypeVar("T")


class KnownModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on the hub."""

    repo: str
    file: str
    licence: str
    revision: str = "main"
    bytes: int | None = None
    """Of all its files."""
    sha256: str | None = None
    """Of its only file; None where it has to be learnt from the first download."""
    drafts: tuple[str, ...] = ()
    """Names of models that fit as drafters: smaller, with the same tokens."""

    @property
    def hub_file(self) -> HubFile:
        """Where it is on the hub."""
        return HubFile(self.repo, self.file, self.revision)


class KnownPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verifier and a drafter that go well together, by name."""

    model: str
    draft: str


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The known models and pairs, by name."""

    models: dict[str, KnownModel]
    pairs: dict[str, KnownPair]


@functools.cache
def registry() -> Registry:
    """The registry that comes with specx."""
    return _read(packaged("registry.toml"), Registry, "reinstall specx")


def alias_file() -> Path:
    """Where the user's own names are kept."""
    return config_folder() / "aliases.toml"


def aliases() -> dict[str, str | KnownPair]:
    """The user's own names: of a file, a name on the hub, a known model, or a pair of those."""
    path = alias_file()
    if not path.exists():
        return {}
    remedy = 'each line is NAME = "MODEL" or NAME = { model = "MODEL", draft = "MODEL" }'
    return _read(path, dict[str, str | KnownPair], remedy)


def _read(path: Path, kind: type[T], remedy: str) -> T:
    try:
        value = tomllib.loads(read_text(path, "the names of models"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML ({error}); {remedy}") from error
    return convert(value, kind, str(path), remedy)
