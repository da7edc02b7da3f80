"""Results saved to a JSON file after each step, from which a later call continues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specx.errors import UsageError
from specx.output import OutputFile

__all__ = ["PEERS", "Form", "Record", "read", "take_up"]

FORMAT = 1

Data = dict[str, Any]


class Form(NamedTuple):
    """A kind of record."""

    mark: str
    """The key that holds the format's number."""
    script: str
    """The script that writes it."""
    parts: tuple[str, ...]
    """Names of the lists of results."""


PEERS = Form("specx_peers", "scripts/bench_peers.py", ("choice", "blocks", "acceptance"))


class Record:
    """The results of one group; `data` is what the file holds.

    ``choice`` has a run for each prompt, side and gamma; ``blocks`` a run of every side for each
    prompt and repetition; ``acceptance`` the rules' expected acceptance for each prompt and gamma.
    """

    def __init__(self, data: Data, file: OutputFile | None = None) -> None:
        self.data = data
        self._file = file

    def save(self) -> None:
        """Write the file, whole or not at all."""
        if self._file is not None:
            self._file.write(json.dumps(self.data, indent=1) + "\n")

    def add(self, kind: str, entry: Data, key: Iterable[str]) -> None:
        """Replace the entry with the same values of `key` by `entry`, and save."""
        key = list(key)
        others = [old for old in self.data[kind] if any(old[k] != entry[k] for k in key)]
        self.data[kind] = [*others, entry]
        self.save()

    def extend(self, kind: str, entries: Iterable[Data]) -> None:
        """Add new entries, and save."""
        self.data[kind] += entries
        self.save()

    def has(self, kind: str, **values: object) -> bool:
        """Whether there is an entry with these values."""
        return any(all(e[k] == v for k, v in values.items()) for e in self.data[kind])

    def block(self, prompt: str, repetition: int) -> Mapping[str, Data]:
        """Runs by side; empty where the block was not measured."""
        for block in self.data["blocks"]:
            if (block["prompt"], block["repetition"]) == (prompt, repetition):
                runs: Mapping[str, Data] = block["runs"]
                return runs
        return {}

    def best_gamma(self, prompt: str, side: str) -> int | None:
        """The gamma of the fastest run; None where none was measured."""
        runs = [e for e in self.data["choice"] if (e["prompt"], e["side"]) == (prompt, side)]
        if not runs:
            return None
        best: int = max(runs, key=lambda run: run["run"]["tok_s"])["gamma"]
        return best

    def speeds(self, side: str) -> dict[str, list[float]]:
        """Tokens per second by prompt, one value per repetition."""
        found: dict[str, list[float]] = {}
        for block in self.data["blocks"]:
            if side in block["runs"]:
                found.setdefault(block["prompt"], []).append(block["runs"][side]["tok_s"])
        return found

    def ratios(self, side: str, other: str) -> dict[str, list[float]]:
        """`side` over `other`, by prompt: one for each repetition that ran both."""
        found: dict[str, list[float]] = {}
        for block in self.data["blocks"]:
            runs = block["runs"]
            if side in runs and other in runs:
                ratio = runs[side]["tok_s"] / runs[other]["tok_s"]
                found.setdefault(block["prompt"], []).append(ratio)
        return found


def take_up(path: Path, settings: Data, form: Form = PEERS) -> Record:
    """The record in `path`, or a new one; the same settings, or none of it can be compared.

    Raises
    ------
    UsageError
        If the file cannot be written, is no such record, or has other settings.
    """
    file = OutputFile(path)
    if not path.exists():
        empty: Data = {**{part: [] for part in form.parts}, "failures": {}}
        return Record({form.mark: FORMAT, "settings": settings, **empty}, file)
    data = read(path, form).data
    for name, value in settings.items():
        if data["settings"].get(name) != value:
            raise UsageError(
                f"{path} was measured with {name} {data['settings'].get(name)!r}, not {value!r}; "
                "give another file with -o"
            )
    return Record(data, file)


def read(path: Path, form: Form = PEERS) -> Record:
    """The record in `path`.

    Raises
    ------
    UsageError
        If it cannot be read or is not such a record.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}); give another file with -o") from error
    if not isinstance(data, dict) or data.get(form.mark) != FORMAT:
        raise UsageError(f"{path} is not a record of {form.script}; name another with -o")
    return Record(data)
