"""The command line within this process: the same code, without half a second of imports a call.

What only a process has (signals, descriptors, exit, locale, imports) is tested in processes of its
own, most of it in test_signals.py.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from specx.cli import exit_code_of
from specx.cli.streams import finish, prepare

__all__ = ["specx"]


def specx(
    *args: str,
    stdin: str | bytes = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `specx` as the process does: over streams of bytes, with warnings as lines."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    streams = {name: io.TextIOWrapper(io.BytesIO(), write_through=True) for name in ("out", "err")}
    before = Path.cwd()
    with (
        patch.multiple(
            sys,
            argv=["specx", *args],
            stdin=io.TextIOWrapper(io.BytesIO(given)),
            stdout=streams["out"],
            stderr=streams["err"],
        ),
        patch.dict(os.environ, os.environ if env is None else env, clear=True),
        warnings.catch_warnings(),
    ):
        warnings.resetwarnings()  # to what Python starts with, nearly: this suite makes them errors
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            os.chdir(before if cwd is None else cwd)
            prepare()
            code = finish(exit_code_of(None))
        finally:
            os.chdir(before)
    out, err = (stream.buffer.getvalue().decode() for stream in streams.values())
    return subprocess.CompletedProcess(["specx", *args], code, out, err)
