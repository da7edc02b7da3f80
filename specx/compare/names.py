"""Names for two systems, built from their differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from specx.runtime.backend import get_backend

__all__ = ["Traits", "differences", "names_of"]

SAME = ("the first", "the second")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The settings that describe a system."""

    runtime: str
    draft_runtime: str
    model: str
    drafter: str
    quantisation: str | None = None
    threads: int | None = None
    draft_threads: int | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    dtype: str | None = None


def differences(a: Traits, b: Traits) -> dict[str, tuple[object, object]]:
    """The traits in which two systems differ, with both values."""
    ours, theirs = asdict(a), asdict(b)
    return {key: (ours[key], theirs[key]) for key in ours if ours[key] != theirs[key]}


def names_of(a: Traits, b: Traits) -> tuple[str, str]:
    """A name for each system, built from their differences."""
    differ = differences(a, b)
    first, second = (_name(side, differ) for side in (a, b))
    if not first:
        return SAME
    return (first, second) if first != second else (f"{first} (A)", f"{second} (B)")


def _name(side: Traits, differ: Mapping[str, object]) -> str:
    parts = [*_runtimes(side, differ), *_files(side, differ), *_threads(side, differ)]
    for key, words in (("cache_type_k", "keys"), ("cache_type_v", "values")):
        if key in differ:
            parts.append(f"{words} in {getattr(side, key) or 'the default type'}")
    if "dtype" in differ:
        parts.append(side.dtype or "the default dtype")
    return ", ".join(parts)


def _runtimes(side: Traits, differ: Mapping[str, object]) -> list[str]:
    verifier, drafter = map(_title, (side.runtime, side.draft_runtime))
    parts = [verifier] if "runtime" in differ else []
    # If both models of a side changed together, naming its one runtime is enough.
    if not (parts and verifier == drafter) and differ.keys() & {"runtime", "draft_runtime"}:
        parts.append(f"drafter on {drafter}")
    return parts


def _title(backend: str) -> str:
    """The usual name of a backend's runtime."""
    return str(getattr(get_backend(backend), "title", backend))


def _files(side: Traits, differ: Mapping[str, object]) -> list[str]:
    parts = []
    if "model" in differ:
        told = side.quantisation if "quantisation" in differ else None
        parts.append(told or _stem(side.model))
    if "drafter" in differ:
        parts.append(f"drafter {_stem(side.drafter)}")
    return parts


def _threads(side: Traits, differ: Mapping[str, object]) -> list[str]:
    if "threads" in differ:
        return [_count(side.threads)]
    if "draft_threads" in differ:
        return [f"drafter on {_count(side.draft_threads)}"]
    return []


def _count(threads: int | None) -> str:
    if threads is None:
        return "threads unknown"
    return "1 thread" if threads == 1 else f"{threads} threads"


def _stem(model: str) -> str:
    path = Path(model)
    return path.stem if path.suffix in (".gguf", ".toml") else path.name
