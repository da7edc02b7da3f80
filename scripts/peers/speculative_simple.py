"""llama.cpp's own example, ``llama-speculative-simple``: run as a program, its figures parsed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from peers.sides import PeerFailed, Question, Speed
from specx import SamplingParams

__all__ = ["SpeculativeSimple", "law", "parse", "version_of"]

FIGURES = {
    "prompt": r"encoded +(\d+) tokens in",
    "tokens": r"decoded +(\d+) tokens in",
    "seconds": r"decoded +\d+ tokens in +([\d.]+) seconds",
    "drafted": r"n_drafted += +(\d+)",
    "accepted": r"n_accept += +(\d+)",
}
MOST_SECONDS = 900


class SpeculativeSimple:
    """One process per run; its printed decoding figures leave out loading and the prompt.

    Parameters
    ----------
    program
        Path of the executable.
    models
        Paths of the verifier's and the drafter's file.
    n_ctx
        Positions of both caches.
    """

    def __init__(
        self,
        program: Path,
        models: tuple[str, str],
        sampling: SamplingParams,
        threads: int,
        n_ctx: int,
    ) -> None:
        self._program = program
        verifier, drafter = models
        self._fixed = [
            *("-m", verifier, "-md", drafter, "--spec-type", "draft-simple"),
            *("-t", str(threads), "-td", str(threads), "-c", str(n_ctx)),
            *law(sampling),
        ]

    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        # It continues until it has written more than -n tokens.
        length = ["-n", str(n - 1), "--spec-draft-n-max", str(gamma), "-s", str(seed)]
        speed, n_prompt = parse(self._output([*length, "--no-escape", "-p", prompt.text]))
        if n_prompt != len(prompt.ids):
            raise PeerFailed(
                f"read {n_prompt} tokens of prompt {prompt.id} where specx reads {len(prompt.ids)}"
            )
        return speed

    def _output(self, words: Sequence[str]) -> str:
        """What it logs."""
        command = [str(self._program), *self._fixed, *words]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=MOST_SECONDS,
            )
        except OSError as error:
            raise PeerFailed(f"cannot be started: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(f"was not done after {MOST_SECONDS} seconds") from error
        if done.returncode:
            last = ([""] + [line for line in done.stderr.splitlines() if line.strip()])[-1]
            raise PeerFailed(f"ended with exit code {done.returncode}: {last[:200]}")
        return done.stderr


def law(sampling: SamplingParams) -> list[str]:
    """Options for temperature first, then top-p, and none of its other filters."""
    return [
        *("--samplers", "temperature;top_p", "--temp", f"{sampling.temperature:g}"),
        *("--top-p", f"{sampling.top_p:g}", "--top-k", "0", "--min-p", "0"),
    ]


def parse(log: str) -> tuple[Speed, int]:
    """Its decoding speed, and the number of tokens it read as the prompt.

    Raises
    ------
    PeerFailed
        If the log does not have its figures.
    """
    found = {name: figure(log, name) for name in FIGURES}
    if not found["seconds"] or not found["tokens"]:
        raise PeerFailed("decoded nothing")
    drafted = found["drafted"]
    speed = Speed(
        tok_s=found["tokens"] / found["seconds"],
        n_tokens=int(found["tokens"]),
        seconds=found["seconds"],
        kept=found["accepted"] / drafted if drafted else None,
    )
    return speed, int(found["prompt"])


def figure(log: str, name: str) -> float:
    """One of its figures."""
    found = re.search(FIGURES[name], log)
    if found is None:
        raise PeerFailed(f"its log has no line like '{FIGURES[name]}'; another version of it?")
    return float(found[1])


def version_of(program: Path) -> str | None:
    """The first line of ``--version``; None if the program cannot be run."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True)
    except OSError:
        return None
    return next(iter((done.stdout + done.stderr).splitlines()), None)
