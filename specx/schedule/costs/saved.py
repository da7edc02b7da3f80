"""Costs that `specx tune` measured and saved, found again by what they were measured with.

A file per pair (or verifier alone) in the user's cache folder. Its name is a hash of all that a
cost depends on: the content of the models, backends, devices, threads and cache types. Costs are
saved at several context lengths, since attention makes a pass dearer as the text grows.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any

from specx.codec import Chance, Count, convert, parse, refuse, shortened, to_json
from specx.errors import UsageError
from specx.output import OutputFile
from specx.runtime.backend import LogitsBackend
from specx.runtime.folders import cache_folder
from specx.runtime.identity import identity
from specx.runtime.inputs import read_bytes
from specx.schedule.costs.curve import Curve, Profile, ProfileRecord, profile_record

__all__ = ["ModelUsed", "SavedCosts", "find_saved", "model_used", "read_saved", "saved_files"]

FORMAT = 1
REMEDY = "specx tune measures it again"
FARTHEST = 2.0
"""Costs are extrapolated up to this many times the distance between the measured contexts: farther,
the noise of two measurements would look like attention's work."""


@dataclass(frozen=True, kw_only=True)
class ModelUsed:
    """A model, and the settings that its costs depend on."""

    name: str
    """For display; not part of the key."""
    file: str
    """Where it was; not part of the key."""
    identity: str
    backend: str
    devices: tuple[str, ...]
    threads: Count | None
    settings: dict[str, str]
    """Cache types, layers on the GPU, number type."""
    versions: dict[str, str]
    """Of the runtime, whose next version may compute differently; not part of the key."""

    def key(self) -> dict[str, Any]:
        """What two runs must share for the costs of one to hold for the other."""
        own = asdict(self)
        return {name: own[name] for name in own if name not in ("name", "file", "versions")}


SETTINGS = ("cache_type_k", "cache_type_v", "dtype", "n_gpu_layers")


def model_used(model: LogitsBackend) -> ModelUsed | None:
    """A loaded model as a profile names it; None if it is not made of files."""
    about = model.describe()
    file = about.get("file")
    content = identity(Path(file)) if isinstance(file, str) else None
    if content is None:
        return None
    devices, versions, threads = (about.get(name) for name in ("devices", "versions", "threads"))
    backend, _, name = model.name.partition(":")
    return ModelUsed(
        name=name,
        file=str(Path(str(file)).absolute()),
        identity=content,
        backend=backend,
        devices=tuple(map(str, devices)) if isinstance(devices, Sequence) else (),
        threads=threads if isinstance(threads, int) else None,
        settings={name: str(about[name]) for name in SETTINGS if about.get(name) is not None},
        versions={str(name): str(value) for name, value in versions.items()}
        if isinstance(versions, Mapping)
        else {},
    )


@dataclass(frozen=True, kw_only=True)
class SavedCosts:
    """One measurement of a pair, as saved."""

    verifier: ModelUsed
    drafter: ModelUsed | None = None
    profiles: list[ProfileRecord]
    """At rising context lengths."""
    acceptance: dict[str, list[Chance]] = field(default_factory=dict)
    """By kind of prompt: the acceptance rate at each position of a draft."""
    advice: str = ""
    """The recommendation that `specx tune` gave."""
    made: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    @property
    def id(self) -> str:
        """The name of its file, without the ending."""
        both = [self.verifier.key(), self.drafter and self.drafter.key()]
        return hashlib.sha256(json.dumps(both, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """The mean over kinds of prompt; empty if none was measured."""
        return tuple(map(fmean, zip(*self.acceptance.values(), strict=False)))

    def at(self, n_past: int) -> Profile:
        """The costs after `n_past` tokens of text.

        They grow linearly with the context, as attention's work does.
        """
        known = [record.profile("the saved costs") for record in self.profiles]
        if len(known) == 1:
            return known[0]
        longer = (i for i, each in enumerate(known[1:-1], 1) if n_past < each.verifier.n_past)
        place = next(longer, len(known) - 1)
        short, long = known[place - 1], known[place]
        drafter = None
        if short.drafter is not None and long.drafter is not None:
            drafter = _between(short.drafter, long.drafter, n_past)
        return replace(
            short, verifier=_between(short.verifier, long.verifier, n_past), drafter=drafter
        )

    def save(self) -> Path:
        """Write it, replacing an earlier measurement of the same.

        Raises
        ------
        UsageError
            If it cannot be written.
        """
        path = _folder() / f"{self.id}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot make the folder {path.parent}: {error.strerror}; set SPECX_CACHE to "
                "another one"
            ) from error
        record = {"specx_costs": FORMAT, **asdict(self)}
        record["profiles"] = [profile_record(each.profile("")) for each in self.profiles]
        OutputFile(path, "profile").write(to_json(record, indent=1) + "\n")
        return path


def _between(short: Curve, long: Curve, n_past: int) -> Curve:
    """The curve at `n_past`, from those at two lengths."""
    share = (n_past - short.n_past) / (long.n_past - short.n_past)
    share = min(max(share, 0.0), FARTHEST)

    def grown(width: int, seconds: float) -> float:
        known = min(width, long.widths[-1])  # beyond, attention's part grows with the width
        return seconds + share * max(long(known) - short(known), 0.0) * width / known

    seconds, low, high = (
        tuple(map(grown, short.widths, known)) for known in (short.seconds, short.low, short.high)
    )
    return replace(short, n_past=n_past, seconds=seconds, low=low, high=high)


def find_saved(verifier: LogitsBackend, drafter: LogitsBackend | None) -> SavedCosts | None:
    """The saved costs of loaded models; None if there are none.

    Costs that cannot be used (unreadable, of another format, of another version of the runtime)
    are ignored with one warning.
    """
    used = [model_used(model) for model in (verifier, drafter) if model is not None]
    if None in used:
        return None
    wanted = SavedCosts(verifier=used[0], drafter=(*used, None)[1], profiles=[])  # type: ignore[arg-type]
    path = _folder() / f"{wanted.id}.json"
    if not path.exists():
        return None
    try:
        found = read_saved(path)
        _require_current(found, wanted)
    except UsageError as error:
        warnings.warn(f"saved costs are ignored: {error}", stacklevel=3)
        return None
    return found


def _require_current(found: SavedCosts, wanted: SavedCosts) -> None:
    place = f"profile {wanted.id}"
    if found.id != wanted.id:
        raise UsageError(f"{place} holds costs of other models or settings; {REMEDY}")
    for had, has in ((found.verifier, wanted.verifier), (found.drafter, wanted.drafter)):
        if had is not None and has is not None and had.versions != has.versions:
            name = next(
                name
                for name in {**had.versions, **has.versions}
                if had.versions.get(name) != has.versions.get(name)
            )
            raise UsageError(
                f"{place} was measured with {name} {had.versions.get(name, 'unknown')}, and this "
                f"is {has.versions.get(name, 'unknown')}; {REMEDY}"
            )


def read_saved(path: Path) -> SavedCosts:
    """Read a file of saved costs.

    Raises
    ------
    UsageError
        If it cannot be read or used; the message names the file and the field.
    """
    place = f"profile {path.stem}"
    record = parse(read_bytes(path, "the profile"), place, REMEDY)
    if not isinstance(record, dict) or "specx_costs" not in record:
        raise UsageError(f"{place} holds no costs; {REMEDY}")
    if record["specx_costs"] != FORMAT:
        shown = shortened(record["specx_costs"])
        raise UsageError(f"{place} has format {shown}, and this specx reads {FORMAT}; {REMEDY}")
    found = convert(record, SavedCosts, place, REMEDY)
    if not found.profiles:
        refuse(place, "profiles", "there are none", REMEDY)
    for number, each in enumerate(found.profiles):
        profile = each.profile(f"{place}, profiles[{number}]", REMEDY)
        if (profile.drafter is None) != (found.drafter is None):
            refuse(place, f"profiles[{number}].drafter", "expected as many as models", REMEDY)
    lengths = [each.verifier.n_past for each in found.profiles]
    if lengths != sorted(set(lengths)):
        refuse(place, "profiles", f"context lengths must rise, and are {lengths}", REMEDY)
    return found


def saved_files() -> list[Path]:
    """The files of all saved costs, by name."""
    return sorted(_folder().glob("*.json"))


def _folder() -> Path:
    return cache_folder() / "profiles"
