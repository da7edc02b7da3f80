"""Objects that installed packages register by entry point: backends and drafters."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from specx.errors import BackendError

__all__ = ["load", "registered"]

T = TypeVar("T")


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Entry points of `group` by name, sorted; read once, as that takes milliseconds."""
    found = {entry.name: entry for entry in entry_points(group=group)}
    return dict(sorted(found.items()))


def load(group: str, name: str, kind: str, protocol: type[T]) -> T:
    """The object registered under `name`, which is a `kind` (for messages) of `protocol`.

    Raises
    ------
    BackendError
        If there is none of that name, it cannot be imported, or is something else.
    """
    entry = registered(group).get(name)
    if entry is None:
        installed = ", ".join(registered(group)) or "none"
        raise BackendError(f"unknown {kind} '{name}'; installed: {installed}")
    where = f"{kind} '{name}' ({entry.value})"
    try:
        found = entry.load()
    except ImportError as error:
        raise BackendError(f"{where} cannot be imported: {error}") from error
    if not isinstance(found, protocol):
        raise BackendError(f"{where} is not a {kind} factory")
    return found
