"""How long the threads of a runtime spin at a barrier before they sleep."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

__all__ = ["SPINS", "spin_briefly"]

SPINS = "1000"
CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Either says how long to spin; the user's own wins."""


def spin_briefly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads of libgomp sleep after some microseconds instead of milliseconds.

    A layer has many barriers. While another program holds a core, threads that spin keep from it
    the very thread they wait for. Has no effect on a libgomp that is loaded already: it reads the
    environment once. See docs/benchmarks.md, on a busy machine.
    """
    if not any(name in environ for name in CHOICES):
        environ["GOMP_SPINCOUNT"] = SPINS
