"""From the names of models on the command line to files, before a command begins."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from specx.cli.progress import Progress
from specx.errors import SpecxError, UsageError
from specx.library.hub import PREFIX
from specx.library.names import Named, known_names, resolve

__all__ = ["HUB", "name_models", "names_like"]

HUB = {"hub": "model", "hub_draft": "model_draft"}
"""Options that may download, and the options that they stand for."""


def name_models(params: dict[str, Any], options: Iterable[click.Parameter]) -> None:
    """Replace the names in `params` by files; the name of a pair gives the drafter too.

    Parameters
    ----------
    options
        Those whose values may be names.
    """
    progress = Progress(enabled=not params.get("quiet"))
    for flag, field in HUB.items():
        wanted = params.pop(flag, None)
        if wanted is not None:
            _refuse_both(flag, wanted, params[field])
            params[field] = _downloaded(wanted, progress)
    for option in options:
        field, value = option.name or "", params.get(option.name or "")
        if isinstance(value, str):
            named = resolve(value)
            params[field] = named.model
            if named.draft is not None:
                _add_drafter(params, field, value, named)
        elif value is not None:
            params[field] = tuple(_one(name) for name in value)


def names_like(beginning: str) -> list[CompletionItem]:
    """The names that begin so, for a shell's completion; none if an alias file is damaged."""
    try:
        return [CompletionItem(name) for name in known_names() if name.startswith(beginning)]
    except SpecxError:
        return []


def _refuse_both(flag: str, wanted: str, other: Any) -> None:
    if other:
        d = "d" if flag == "hub_draft" else ""
        raise UsageError(f"-hf{d} {wanted} and -m{d} {other} were both given; leave one out")


def _downloaded(wanted: str, progress: Progress) -> str:
    """`wanted` as a name that `resolve` finds on this machine."""
    from specx.library.pull import pull_missing

    name = wanted if "/" not in wanted or wanted.startswith(PREFIX) else PREFIX + wanted
    pull_missing(name, task=progress.task)
    return name


def _one(name: str) -> str:
    named = resolve(name)
    if named.draft is not None:
        raise UsageError(f"'{name}' is a pair; name one of its models (specx models lists them)")
    return named.model


def _add_drafter(params: dict[str, Any], field: str, pair: str, named: Named) -> None:
    if field != "model" or "model_draft" not in params:
        _one(pair)
    drafters = re.split("[,+]", params.get("draft") or "model")
    if not params["model_draft"] and "model" in drafters:
        several = isinstance(params["model_draft"], tuple)
        params["model_draft"] = (named.draft,) if several else named.draft
