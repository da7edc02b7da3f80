"""Where proposals come from: drafters, found by entry points as the backends are."""

from __future__ import annotations

from specx.drafters.base import DrafterFactory
from specx.runtime import plugins

__all__ = ["get_drafter", "installed_drafters"]

GROUP = "specx.drafters"


def installed_drafters() -> list[str]:
    """Names of the drafters that are registered, sorted."""
    return list(plugins.registered(GROUP))


def get_drafter(name: str) -> DrafterFactory:
    """The factory registered under `name`.

    Raises
    ------
    BackendError
        If there is none of that name, it cannot be imported, or is not a factory.
    """
    return plugins.load(GROUP, name, "drafter", DrafterFactory)  # type: ignore[type-abstract]
