"""A file for results: whole or not at all, and refused at once where it cannot be written."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from specx.errors import UsageError

__all__ = ["OutputFile"]

TRIAL_BYTES = 2**18
"""More than most results take; a disk without this much room is a full one."""


class OutputFile:
    """Where results will go.

    Raises
    ------
    UsageError
        If the file could not be written now: said before work of minutes begins.
    """

    def __init__(self, path: Path, option: str = "-o") -> None:
        self._given, self._option = path, option
        self.path = self._followed()
        if self.path.exists() and not self.path.is_file():
            raise self._error("it is no regular file")
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise self._error("it is write-protected")
        self._replace(b" " * TRIAL_BYTES, keep=False)

    @property
    def ending(self) -> str:
        """Of the name that was given, wherever a link leads."""
        return self._given.suffix

    def write(self, text: str) -> None:
        """Replace what the file holds."""
        # Half a surrogate pair (an argument that was not UTF-8) is written as JSON escapes it.
        self._replace(text.encode("utf-8", errors="backslashreplace"), keep=True)

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
                os.chmod(name, self._mode())
                os.replace(name, self.path)
        except OSError as error:
            raise self._error(error.strerror) from error
        finally:
            if Path(name).exists():
                os.unlink(name)

    def _followed(self) -> Path:
        """Where a link leads: the file there is replaced, and the link stays one."""
        try:
            return self._given.resolve()
        except (OSError, RuntimeError) as error:  # before Python 3.13 a circle is a RuntimeError
            raise self._error("it is a link that leads nowhere") from error

    def _mode(self) -> int:
        """Permissions of the file that is replaced, or of a new one."""
        if self.path.exists():
            return stat.S_IMODE(self.path.stat().st_mode)
        return 0o666 & ~_umask()

    def _error(self, reason: str | None) -> UsageError:
        return UsageError(
            f"cannot write {self._option} {self._given}: {reason}; choose another place"
        )


def _umask() -> int:
    """What the system takes from a new file's permissions; temporary files ignore it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
