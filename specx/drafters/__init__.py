"""Where proposals come from: drafters, found by entry points as the backends are."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from specx.drafters.base import DrafterFactory
from specx.errors import BackendError, UsageError

__all__ = ["get_drafter", "installed_drafters"]

GROUP = "specx.drafters"
BUILT_IN = ("model", "lookup")


@cache
def installed_drafters() -> tuple[str, ...]:
    """Names of the drafters that are registered, specx's own first."""
    others = {entry.name for entry in entry_points(group=GROUP)} - set(BUILT_IN)
    return (*BUILT_IN, *sorted(others))


@cache
def get_drafter(name: str) -> DrafterFactory:
    """The factory registered under `name`.

    Raises
    ------
    UsageError
        If there is none of that name.
    BackendError
        If what is registered cannot be imported, or is not a factory.
    """
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        raise UsageError(f"unknown drafter '{name}'; installed: {', '.join(installed_drafters())}")
    try:
        factory = found[0].load()
    except ImportError as error:
        raise BackendError(
            f"drafter '{name}' ({found[0].value}) cannot be imported: {error}"
        ) from error
    if not isinstance(factory, DrafterFactory):
        raise BackendError(f"drafter '{name}' ({found[0].value}) is not a drafter factory")
    return factory
