"""Files that come with specx: in the installed package, or in the checkout beside it."""

from __future__ import annotations

from pathlib import Path

from specx.errors import ModelError

__all__ = ["packaged"]

PACKAGE = Path(__file__).resolve().parent
PLACES = (PACKAGE / "_models", PACKAGE.parent / "models")


def packaged(name: str) -> Path:
    """The path of a file of the `models` folder, such as ``toy/verifier.toml``."""
    found = next((place / name for place in PLACES if (place / name).is_file()), None)
    if found is None:
        raise ModelError(f"{name} is missing from this installation of specx; install it again")
    return found
