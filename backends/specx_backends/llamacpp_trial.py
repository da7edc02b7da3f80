"""A trial of an odd model file in a process of its own, which llama.cpp may end.

``python -m specx_backends.llamacpp_trial FILE`` loads the file on the CPU, names all its tokens,
tokenizes every byte and feeds two tokens; it exits 0 if it lives. Sound files are never tried: a
trial takes as long as a load.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specx.errors import ModelError, SpecxError
from specx.runtime.fatal import exit_code_when_dying

__all__ = ["require_survival"]

LONGEST = 120.0
"""Seconds; a file that takes longer is large rather than odd."""
REFUSED = 2
IN_TRIAL = "--in-trial"


def require_survival(path: Path) -> None:
    """Raise ModelError, with what llama.cpp said, if it does not survive the file."""
    if IN_TRIAL in sys.argv:
        return
    command = [sys.executable, "-m", "specx_backends.llamacpp_trial", str(path), IN_TRIAL]
    try:
        ended = subprocess.run(
            command, capture_output=True, timeout=LONGEST, stdin=subprocess.DEVNULL
        )
    except (subprocess.TimeoutExpired, OSError):
        return
    if ended.returncode == 0:
        return
    said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    told = [line.removeprefix("specx: ") for line in said if line.startswith("specx: ")]
    reason = told[-1] if told else f"llama.cpp crashes on it (exit code {ended.returncode})"
    raise ModelError(f"'{path}' cannot be used: {reason}")


def try_file(path: str) -> int:
    """Do with the file what a run does; the exit code."""
    from specx.runtime.backend import LoadOptions, get_backend

    try:
        with get_backend("llamacpp").load(path, LoadOptions(n_ctx=64, threads=1)) as model:
            tokenizer = model.tokenizer
            for token in range(model.n_vocab):
                tokenizer.token_text(token)
            every_byte = "".join(map(chr, range(1, 128))) + "é中\U0001f600"
            for text in (every_byte, "Hi"):
                tokenizer.encode(text, add_special=True, parse_special=True)
            model.forward([0, 0])
    except SpecxError as error:
        print(f"specx: {' '.join(str(error).split())}", file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    with exit_code_when_dying(REFUSED):
        code = try_file(sys.argv[1])
    sys.exit(code)
