"""The user's folders: caches that may be removed at any time, and configuration."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path, user_config_path

__all__ = ["cache_folder", "config_folder"]


def cache_folder() -> Path:
    """Where specx keeps what it can learn again: profiles, checksums; SPECX_CACHE overrides it."""
    chosen = os.environ.get("SPECX_CACHE")
    return Path(chosen) if chosen else user_cache_path("specx", appauthor=False)


def config_folder() -> Path:
    """Where the user's own files are, such as aliases; SPECX_CONFIG overrides it."""
    chosen = os.environ.get("SPECX_CONFIG")
    return Path(chosen) if chosen else user_config_path("specx", appauthor=False)
