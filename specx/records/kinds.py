"""Recognises results of specx, those of 0.1.0 included, by the beginning of a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from specx.errors import UsageError

__all__ = ["kind_of", "require_kind"]

HEAD = 2**16
"""Bytes that are examined."""

BEGINNINGS = {
    "trace": rb'\{\s*"kind"\s*:\s*"file"',
    "gamma trace": rb'\{\s*"length"\s*:\s*\d+\s*,\s*"drafter"\s*:',
    "bench result": rb'\{\s*"specx_bench"\s*:|\{\s*"settings"\s*:\s*\{\s*"backend"\s*:'
    rb"|backend,draft_backend,temperature,|\| arm \| tok/s \| speed-up \|",
    "profile": rb'\{\s*"specx_profile"\s*:',
    "comparison": rb'\{\s*"specx_compare"\s*:|A is [^\n]+, B is [^\n]+; gamma \d+\.\n',
    "chat": rb'\{\s*"specx_chat"\s*:',
    "report": rb"\s*<!doctype html>.{,2000}<title>specx report",
    "trimmed model": rb"GGUF.{28}specx\.trim\.",
    "study": rb'\{\s*"n_tokens"\s*:\s*\d+\s*,\s*"n_prompts"\s*:'
    rb"|prompt,kind,position,accepted,overlap,|\s*<!doctype html>.{,2000}<title>specx study",
}
"""Patterns by kind, for all formats that it is written in."""
KINDS = {kind: re.compile(pattern, re.DOTALL) for kind, pattern in BEGINNINGS.items()}


def kind_of(path: Path) -> str | None:
    """A key of `BEGINNINGS`; None for a file of any other origin, or an unreadable one."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return None
    return next((kind for kind, pattern in KINDS.items() if pattern.match(head)), None)


def require_kind(path: Path, kind: str, option: str, *, remedy: str) -> None:
    """Raise UsageError if `path` holds anything but a result of this kind.

    A missing or empty file has nothing to lose.
    """
    if not os.path.exists(path) or not os.path.getsize(path):
        return
    actual = kind_of(path)
    if actual != kind:
        holds = "is not a result of specx" if actual is None else f"holds a {actual}, not a {kind}"
        raise UsageError(f"{option} {path} would overwrite a file that {holds}; {remedy}")
