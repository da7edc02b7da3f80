"""Output files: written whole or not at all, or line by line by a single process."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from specx.errors import UsageError
from specx.interrupts import held

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["LineFile", "OutputFile"]

TRIAL_BYTES = 2**18
"""Larger than most results; a disk without this much room counts as full."""
LOCKED_BYTE = 2**31 - 2
"""On Windows a lock makes its bytes unreadable to others, so this one is beyond any trace."""


class OutputFile:
    """A file for results.

    Raises
    ------
    UsageError
        If the file cannot be written; checked here, before minutes of work begin.
    """

    def __init__(self, path: Path, option: str = "-o") -> None:
        self._given, self._option = path, option
        self.path = self._followed()
        if self.path.exists() and not self.path.is_file():
            raise self._error("it is not a regular file")
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise self._error("it is write-protected")
        with held():
            self._replace([b" " * TRIAL_BYTES], keep=False)

    @property
    def ending(self) -> str:
        """Extension of the name that was given, even if it is a link."""
        return self._given.suffix

    def write(self, text: str) -> None:
        """Replace the content of the file."""
        with held():  # a result took long to get, and is written in no time
            # A lone surrogate, as in a file name that is not UTF-8, becomes its escape.
            self._replace([text.encode("utf-8", errors="backslashreplace")], keep=True)

    def write_chunks(self, chunks: Iterable[bytes]) -> None:
        """Replace the content of the file; an interrupt leaves the old one."""
        self._replace(chunks, keep=True)

    def _replace(self, chunks: Iterable[bytes], *, keep: bool) -> None:
        name = ""
        try:
            with held():  # else Ctrl-C may leave the temporary file behind
                handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
                file = os.fdopen(handle, "wb")
            with file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            if keep:
                os.chmod(name, self._mode())
                os.replace(name, self.path)
        except OSError as error:
            raise self._error(error.strerror) from error
        finally:
            with held():
                if name and Path(name).exists():
                    os.unlink(name)

    def _followed(self) -> Path:
        """The target of a link: that file is replaced, and the link stays."""
        try:
            return self._given.resolve()
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # a loop; the same before Python 3.13; a NUL
            raise self._error("it is a broken link") from error

    def _mode(self) -> int:
        """Permissions of the file to replace, or of a new one."""
        if self.path.exists():
            return stat.S_IMODE(self.path.stat().st_mode)
        return 0o666 & ~_umask()

    def _error(self, reason: str | None) -> UsageError:
        return UsageError(
            f"cannot write {self._option} {self._given}: {reason}; choose another path"
        )


class LineFile:
    """A file written by a single process, one whole line at a time, without buffering.

    Existing content is kept until `restart`.

    Raises
    ------
    OSError
        Here and from every method, also if only part of a line could be written; EBUSY if another
        process is writing the file.
    """

    def __init__(self, path: Path) -> None:
        if os.path.exists(path) and not os.path.isfile(
            path
        ):  # a named pipe would block until it is read
            raise OSError(errno.EINVAL, "it is not a regular file")
        self.path = path
        self._file = FileIO(path, "ab")
        try:
            _lock(self._file)
            if not os.path.samestat(os.stat(path), os.fstat(self._file.fileno())):
                raise _busy()  # removed by its writer after it was opened here
            self.new = os.fstat(self._file.fileno()).st_size == 0
            """True if the file was empty when it was opened."""
        except OSError:
            self._file.close()
            raise

    @property
    def closed(self) -> bool:
        """True if the file is closed."""
        return self._file.closed

    def restart(self) -> None:
        """Discard the content of the file."""
        self._file.truncate(0)

    def write(self, line: bytes) -> None:
        """Append `line`."""
        rest = memoryview(line)
        while rest:  # the system may write only a part if space runs out
            rest = rest[self._file.write(rest) :]

    def close(self, *, remove: bool = False) -> None:
        """Close the file, and remove it if asked to."""
        if remove and sys.platform != "win32":  # while the lock is held
            self.path.unlink(missing_ok=True)
        self._file.close()
        if remove and sys.platform == "win32":  # which removes no open file
            self.path.unlink(missing_ok=True)


def _busy() -> OSError:
    return OSError(errno.EBUSY, "another process is writing it")


def _lock(file: FileIO) -> None:
    """Lock `file` until it is closed; without effect on file systems that have no locks."""
    try:
        if sys.platform == "win32":
            os.lseek(file.fileno(), LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise _busy() from error


def _umask() -> int:
    """The umask, which temporary files ignore."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
