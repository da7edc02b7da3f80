"""Files that come with specx: in the installed package, or in the checkout beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specx.errors import ModelError

__all__ = ["DEMO_GAMMA", "DEMO_THREADS", "demo_pair", "packaged", "shipped"]

DEMO_GAMMA = 4
"""The demo pair shows how speculation works; auto would rightly draft nothing."""
DEMO_THREADS = 1
"""It is so small that threads would spend longer waiting for each other than computing."""

PACKAGE = Path(__file__).resolve().parent
PLACES = (PACKAGE / "_models", PACKAGE.parent / "models")
PARTS = ("costs.toml", "registry.toml", "demo/*", "suites/*", "toy/*")
"""In a checkout the folder also holds other models."""


def demo_pair() -> tuple[str, str]:
    """Paths of the verifier and the drafter that come with specx."""
    verifier, drafter = (
        packaged(f"demo/specx-demo-{side}.gguf") for side in ("verifier", "drafter")
    )
    return str(verifier), str(drafter)


def packaged(name: str) -> Path:
    """The path of a file of the `models` folder, such as ``toy/verifier.toml``."""
    path = next((place / name for place in PLACES if (place / name).is_file()), None)
    if path is None:
        raise ModelError(f"{name} is missing from this installation of specx; reinstall it")
    return path


def shipped() -> Iterator[Path]:
    """All files that come with specx."""
    for place in PLACES:
        for part in PARTS:
            yield from place.glob(part)
