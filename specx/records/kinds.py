"""Which files are results of specx, told by how they begin; files of 0.1.0 begin alike."""

from __future__ import annotations

import os
import re
from pathlib import Path

from specx.errors import UsageError

__all__ = ["kind_of", "require_kind"]

HEAD = 2**16
"""Bytes that are looked at."""

BEGINNINGS = {
    "trace": rb'\{\s*"kind"\s*:\s*"file"',
    "gamma trace": rb'\{\s*"length"\s*:\s*\d+\s*,\s*"drafter"\s*:',
    "bench result": rb'\{\s*"specx_bench"\s*:|\{\s*"settings"\s*:\s*\{\s*"backend"\s*:'
    rb"|backend,draft_backend,temperature,|\| arm \| tok/s \| speed-up \|",
    "profile": rb'\{\s*"specx_profile"\s*:',
    "comparison": rb'\{\s*"specx_compare"\s*:|A is [^\n]+, B is [^\n]+; gamma \d+\.\n',
    "report": rb"\s*<!doctype html>.{,2000}<title>specx report",
    "study": rb'\{\s*"n_tokens"\s*:\s*\d+\s*,\s*"n_prompts"\s*:'
    rb"|prompt,kind,position,accepted,overlap,|\s*<!doctype html>.{,2000}<title>specx study",
}
"""By kind, in all formats that it is written in."""
KINDS = {kind: re.compile(pattern, re.DOTALL) for kind, pattern in BEGINNINGS.items()}


def kind_of(path: Path) -> str | None:
    """One of `BEGINNINGS`; None for a file of any other origin, or one that cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return None
    return next((kind for kind, pattern in KINDS.items() if pattern.match(head)), None)


def require_kind(path: Path, kind: str, option: str, *, remedy: str) -> None:
    """Raise UsageError if `path` holds something else than a result of this kind.

    A file that is not there, or empty, holds nothing that could be lost.
    """
    if not os.path.exists(path) or not os.path.getsize(path):
        return
    found = kind_of(path)
    if found != kind:
        holds = "is not a result of specx" if found is None else f"holds a {found}, not a {kind}"
        raise UsageError(f"{option} {path} would overwrite a file that {holds}; {remedy}")
