"""A runtime's library, imported on first use; a failure is told in one line with its remedy."""

from __future__ import annotations

import importlib
from typing import Any

from specx.errors import BackendError
from specx_backends.openmp import spin_briefly

__all__ = ["first_line", "import_library"]


def import_library(module: str, install: str, reinstall: str) -> Any:
    """The module, imported; its threads spin briefly.

    Parameters
    ----------
    install, reinstall
        The commands for a library that is missing, and for one that does not load.

    Raises
    ------
    BackendError
        If it is missing or does not load; the message holds the command.
    """
    spin_briefly()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise BackendError(f"{missing} is not installed; {install}") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"{module} does not load ({first_line(error)}); {reinstall}") from error


def first_line(error: BaseException) -> str:
    """The first line of an exception's text; its kind where it has none."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
