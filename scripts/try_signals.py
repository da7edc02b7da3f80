#!/usr/bin/env python3
"""Interrupts specx at random moments and checks the files and output it leaves behind.

    scripts/try_signals.py [N] [--seed SEED] [--signal NAME]

Commands over the demo pair take turns; each is sent a signal somewhere between its first import
and a little after its end. The milliseconds before, in which Python itself starts, are Python's.
A trial is sound if the exit code is the signal's (130 for Ctrl-C) or the command had ended, if it
said one line or its footer and no traceback, and if every file it left is whole and wanted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specx.errors import UsageError
from specx.records.trace import read_traces

TIMEOUT = 120.0
START = """
import os, sys
from specx import interrupts
interrupts.listen()
os.write(int(sys.argv.pop(1)), b".")
from specx.__main__ import main
main()
"""
"""As the installed command does; the parent is told when signals are listened to."""

PROMPT = ["-p", "def fibonacci(n):" * 40]
COMMANDS: dict[str, list[str]] = {
    "run": ["run", *PROMPT, "-n", "120", "--trace", "run.jsonl"],
    "run --json": ["run", *PROMPT, "-n", "60", "--json", "--gamma", "2", "--trace", "run.jsonl"],
    "bench": "bench --suite code:1 -r 2 -n 16 --gamma 2 -o b.json --trace b.jsonl".split(),
    "compare": "compare --against-threads 2 --suite code:1 -r 1 -n 16 -o c.json".split(),
    "version": ["--version"],
    "report": ["report", "-o", "page.html"],  # and the trace, which is added
}


@dataclass(frozen=True)
class Trial:
    """One interrupted command."""

    command: str
    after: float
    """Seconds from its first import to the signal."""
    code: int
    faults: tuple[str, ...]


def start(args: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start specx in `folder`; returns once it listens to signals."""
    listening, told = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(told), *args],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[told],
    )
    os.close(told)
    os.read(listening, 1)
    os.close(listening)
    return process


def arguments(command: str, trace: Path) -> list[str]:
    """The arguments after ``specx`` on the command line."""
    return [*COMMANDS[command], *([str(trace)] if command == "report" else [])]


def duration(command: str, trace: Path) -> float:
    """Seconds that the command takes undisturbed."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(arguments(command, trace), Path(folder))
        begun = time.monotonic()
        _, err = process.communicate(timeout=TIMEOUT)
        if process.returncode:
            raise SystemExit(f"specx {command} failed undisturbed: {err.decode()}")
        return time.monotonic() - begun


def interrupt(command: str, after: float, trace: Path, number: int = signal.SIGINT) -> Trial:
    """Send a command the signal `number` after `after` seconds, and judge what it left."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(arguments(command, trace), Path(folder))
        time.sleep(after)
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT)
        code = process.returncode
        faults = [*said_wrong(command, code, out, err.decode()), *left_wrong(Path(folder))]
        if code not in (0, 128 + number):
            faults.append(f"exit code {code}")
        if code == 0:
            faults += missing(command, Path(folder))
        return Trial(command, after, code, tuple(faults))


def said_wrong(command: str, code: int, out: bytes, err: str) -> list[str]:
    """The faults of the output."""
    found = [f"says {word}: {err}" for word in ("Traceback", "Exception ignored") if word in err]
    lines = [line for line in err.splitlines() if line.startswith("specx: ")]
    if len([line for line in lines if "written" not in line]) > 1:
        found.append(f"says {lines}")
    if code and not err.strip() and "--json" not in command:
        found.append("says nothing")
    if "--json" in command and out:
        try:
            json.loads(out)
        except ValueError:
            found.append("half a JSON object")
    return found


def left_wrong(folder: Path) -> list[str]:
    """The faults of the files."""
    found = []
    for file in (path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder)
        try:
            if file.name.startswith("."):
                found.append(f"left {name}")
            elif file.suffix == ".json":
                json.loads(file.read_bytes())
            elif file.suffix == ".jsonl":
                found += unfinished(file)
            elif not file.read_text(encoding="utf-8").rstrip().endswith("</html>"):
                found.append(f"{name} is cut")
        except (ValueError, UsageError) as error:
            found.append(f"{name}: {error}")
    return found


def unfinished(file: Path) -> list[str]:
    """Faults of a trace; that of `specx run` has its summary, however it ended."""
    *_, last = read_traces(file)
    if not file.read_bytes().endswith(b"\n"):
        return [f"{file.name} ends within a line"]
    return [f"{file.name} has no summary"] if file.name == "run.jsonl" and not last.summary else []


def missing(command: str, folder: Path) -> list[str]:
    """Files that a command which ended by itself must have written."""
    args = COMMANDS[command]
    wanted = [args[i + 1] for i, arg in enumerate(args) if arg in ("-o", "--trace")]
    return [f"no {name}" for name in wanted if not (folder / name).is_file()]


def write_trace(folder: Path) -> Path:
    """A trace for `specx report`."""
    path = folder / "trace.jsonl"
    args = ["run", "-p", "import os", "-n", "40", "-s", "1", "--trace", str(path)]
    subprocess.run([sys.executable, "-m", "specx", *args], check=True, capture_output=True)
    return path


def heed_signals() -> None:
    """A shell's background job ignores Ctrl-C, and so would the processes that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> int:
    """Run the trials and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("n", nargs="?", type=int, default=200, help="trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", default="SIGINT", choices=["SIGINT", "SIGTERM", "SIGHUP"])
    given = parser.parse_args()
    heed_signals()
    chance, number = random.Random(given.seed), getattr(signal, given.signal)
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as folder:
        trace = write_trace(Path(folder))
        lengths = {command: duration(command, trace) for command in COMMANDS}
        for place in range(given.n):
            command = list(COMMANDS)[place % len(COMMANDS)]
            after = chance.uniform(0, 1.05 * lengths[command])
            trials.append(interrupt(command, after, trace, number))
            for fault in trials[-1].faults:
                print(f"{command} after {after:.3f} s: {fault}", flush=True)
    print_table(trials, lengths)
    return 1 if any(trial.faults for trial in trials) else 0


def print_table(trials: Sequence[Trial], lengths: dict[str, float]) -> None:
    """One line per command."""
    print(f"{'command':<12}{'seconds':>8}{'trials':>8}{'faults':>8}  exit codes")
    for command, seconds in lengths.items():
        own = [trial for trial in trials if trial.command == command]
        codes = Counter(trial.code for trial in own)
        shown = "  ".join(f"{code}: {n}" for code, n in sorted(codes.items()))
        wrong = sum(bool(trial.faults) for trial in own)
        print(f"{command:<12}{seconds:>8.2f}{len(own):>8}{wrong:>8}  {shown}")


if __name__ == "__main__":
    sys.exit(main())
