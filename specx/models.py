"""Files that come with specx: in the installed package, or in the checkout beside it."""

from __future__ import annotations

from pathlib import Path

from specx.errors import ModelError

__all__ = ["demo_pair", "packaged"]

PACKAGE = Path(__file__).resolve().parent
PLACES = (PACKAGE / "_models", PACKAGE.parent / "models")


def demo_pair() -> tuple[str, str]:
    """Paths of the verifier and the drafter that come with specx."""
    verifier, drafter = (
        packaged(f"demo/specx-demo-{side}.gguf") for side in ("verifier", "drafter")
    )
    return str(verifier), str(drafter)


def packaged(name: str) -> Path:
    """The path of a file of the `models` folder, such as ``toy/verifier.toml``."""
    found = next((place / name for place in PLACES if (place / name).is_file()), None)
    if found is None:
        raise ModelError(f"{name} is missing from this installation of specx; install it again")
    return found
