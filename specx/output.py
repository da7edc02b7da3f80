"""A file for results: whole or not at all, and refused at once where it cannot be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specx.errors import UsageError

__all__ = ["OutputFile"]

TRIAL_BYTES = 2**18
"""More than results take; a disk without this much room is a full one."""


class OutputFile:
    """Where results will go.

    Raises
    ------
    UsageError
        If the file could not be written now: said before work of minutes begins.
    """

    def __init__(self, path: Path, option: str = "-o") -> None:
        self.path, self._given, self._option = path.resolve(), path, option
        if self.path.exists() and not self.path.is_file():
            raise self._error("it is no regular file")
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise self._error("it is write-protected")
        self._replace(b" " * TRIAL_BYTES, keep=False)

    def write(self, text: str) -> None:
        """Replace what the file holds."""
        self._replace(text.encode("utf-8"), keep=True)

    def _replace(self, content: bytes, *, keep: bool) -> None:
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as error:
            raise self._error(error.strerror) from error
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if keep:
                os.chmod(name, 0o666 & ~_umask())
                os.replace(name, self.path)
        except OSError as error:
            raise self._error(error.strerror) from error
        finally:
            if Path(name).exists():
                os.unlink(name)

    def _error(self, reason: str | None) -> UsageError:
        return UsageError(
            f"cannot write {self._option} {self._given}: {reason}; choose another place"
        )


def _umask() -> int:
    """What the system takes from a new file's permissions; temporary files ignore it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
