"""One run of specx in a process of its own, and what it must not do."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

__all__ = ["Case", "Outcome", "try_case"]

SECONDS = 15.0
MB = 10**6
LARGE_MB, KILL_MB = 500, 3000
"""Beyond the first, and the size of the input files, a run fails; beyond the second it is ended."""
CODES = (0, 1, 2)
STREAM_END = 10**6
"""Characters of a stream that are kept."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    code: int
    seconds: float
    peak_mb: float
    stdout: bytes
    stderr: str
    faults: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """In a word or two: ok, refused, or what went wrong first."""
        if self.faults:
            return self.faults[0].partition(":")[0]
        return {0: "ok", 1: "ok, exit 1"}.get(self.code, "refused")

    @property
    def line(self) -> str:
        """The line of standard error that says most."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        marked = [line for line in lines if line.startswith("specx:")]
        return (marked or lines[-1:] or [""])[-1]


@dataclass(frozen=True)
class Case:
    """Arguments of specx, and what must hold beside the rules for every run."""

    row: str
    what: str
    words: tuple[str, ...]
    stdin: bytes | Path | None = b""
    """Bytes, a path to be opened, or None: closed."""
    environ: Mapping[str, str | None] = field(default_factory=dict)
    """None takes a variable out."""
    codes: tuple[int, ...] = CODES
    check: Callable[[Outcome], str | None] | None = None
    """The faults of an outcome, if any."""
    keeps: tuple[Path, ...] = ()
    """Files that must hold the same bytes afterwards."""
    closed_stdout: bool = False
    stdout: Path | None = None
    """Where standard output goes, such as a full device."""
    file_limit: int | None = None
    """Bytes that a file may have."""
    cwd: Path | None = None


def try_case(case: Case, seconds: float = SECONDS) -> Outcome:
    """Run it, and hold it against the rules."""
    before = [_digest(path) for path in case.keeps]
    outcome = _run(case, seconds)
    faults = list(outcome.faults) or list(_faults(case, outcome))
    if [_digest(path) for path in case.keeps] != before:
        faults.append("a file was changed that had to stay")
    return Outcome(**{**vars(outcome), "faults": tuple(faults)})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "none"


def _faults(case: Case, outcome: Outcome) -> list[str]:
    found = []
    if outcome.code < 0:
        found.append(f"died: {_signal(-outcome.code)}")
    elif outcome.code not in CODES:
        found.append(f"exit code: {outcome.code}")
    elif outcome.code not in case.codes:
        found.append(f"unexpected exit code: {outcome.code}")
    if "Traceback (most recent call last)" in outcome.stderr:
        found.insert(0, "traceback")
    elif outcome.code == 2 and "-v" not in case.words and not _one_line(outcome.stderr):
        found.append("not one line that begins with specx:")
    if outcome.peak_mb > LARGE_MB + _size_mb(case):
        found.append(f"memory: {outcome.peak_mb:.0f} MB")
    if not found and case.check is not None and (wrong := case.check(outcome)):
        found.append(wrong)
    return found


def _one_line(stderr: str) -> bool:
    return stderr.startswith("specx:") and stderr.count("\n") == 1 and stderr.endswith("\n")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _size_mb(case: Case) -> float:
    """Of the files among the words."""
    files = {Path(word) for word in case.words if len(word) < 500 and "\0" not in word}
    return sum(path.stat().st_size for path in files if path.is_file()) / MB


def _run(case: Case, seconds: float) -> Outcome:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            _command(case), env=_environ(case), cwd=case.cwd, start_new_session=True,
            stdin=subprocess.PIPE, stdout=out, stderr=err,
        )  # fmt: skip
        _feed(process, case)
        begun = time.monotonic()
        peak, fault = _watch(process, begun + seconds, KILL_MB + _size_mb(case))
        spent = time.monotonic() - begun
        return Outcome(
            process.returncode, spent, peak, _read(out), _read(err).decode("utf-8", "replace"),
            (fault,) if fault else (),
        )  # fmt: skip


def _command(case: Case) -> list[str]:
    """Through a shell only where a stream is closed or a limit set before specx starts."""
    command = [sys.executable, "-m", "specx", *case.words]
    setup = []
    if case.file_limit is not None:
        setup.append(f"ulimit -f {max(1, case.file_limit // 1024)}; trap '' XFSZ")
    redirect = ""
    if case.stdin is None:
        redirect += " <&-"
    elif isinstance(case.stdin, Path):
        redirect += f" <{case.stdin}"
    if case.closed_stdout:
        redirect += " >&-"
    elif case.stdout is not None:
        redirect += f" >{case.stdout}"
    if not setup and not redirect:
        return command
    return ["bash", "-c", "; ".join([*setup, f'exec "$@"{redirect}']), "bash", *command]


def _environ(case: Case) -> dict[str, str]:
    found: dict[str, str | None] = {**os.environ, **case.environ}
    return {name: value for name, value in found.items() if value is not None}


def _feed(process: subprocess.Popen[bytes], case: Case) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(case.stdin if isinstance(case.stdin, bytes) else b"")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it did not want to read


def _watch(
    process: subprocess.Popen[bytes], end: float, most_mb: float
) -> tuple[float, str | None]:
    """Wait; the most memory seen, and why the run was ended where it was."""
    watched, peak = psutil.Process(process.pid), 0.0
    while process.poll() is None:
        peak = max(peak, _memory_mb(watched))
        over = time.monotonic() > end
        if over or peak > most_mb:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return peak, "hang: no end in time" if over else f"memory: {peak:.0f} MB and more"
        time.sleep(0.02)
    return peak, None


def _memory_mb(process: psutil.Process) -> float:
    """Of the process and its children."""
    try:
        family = [process, *process.children(recursive=True)]
        return sum(float(each.memory_info().rss) for each in family) / MB
    except psutil.Error:
        return 0.0  # it has ended


def _read(file: IO[Any]) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - STREAM_END))
    return bytes(file.read())
