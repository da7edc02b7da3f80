"""`specx.load`: opens a session from the names of models."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

from specx.errors import UsageError
from specx.library.names import resolve
from specx.runtime.backend import LoadOptions, get_backend
from specx.session.asked import DEFAULTS
from specx.session.pair import Pair
from specx.session.session import Session
from specx.shipped import DEMO_GAMMA, DEMO_THREADS, demo_pair

__all__ = ["load"]


def load(
    model: str | os.PathLike[str] | None = None,
    draft: str | os.PathLike[str] | None = None,
    *,
    backend: str = "llamacpp",
    draft_backend: str | None = None,
    **options: Any,
) -> Session:
    """Load models, and open a session on them; without arguments, the demo pair.

    Parameters
    ----------
    model
        The verifier: a GGUF file, the name of a known model or pair, or another name that the
        backend accepts. Nothing is downloaded: `specx pull` does that.
    draft
        The drafter, if any; by default the one of a named pair.
    backend, draft_backend
        Runtimes of the two; the drafter's is the verifier's by default.
    options
        Fields of `LoadOptions`, for both models.

    Raises
    ------
    SpecxError
        If an option does not exist, a model cannot be loaded, or the two are incompatible.

    Examples
    --------
    >>> with specx.load() as session:  # doctest: +SKIP
    ...     print(session.generate("def fibonacci(n):", max_tokens=32, seed=1).text)
    """
    known = {field.name for field in fields(LoadOptions)}
    if unknown := sorted(set(options) - known):
        raise UsageError(f"unknown option '{unknown[0]}'; known: {', '.join(sorted(known))}")
    if model is None and draft is not None:
        raise UsageError(f"draft is {draft}, which needs a verifier; pass model")
    defaults = DEFAULTS
    if model is None:
        model, draft = demo_pair()
        options["threads"] = options.get("threads") or DEMO_THREADS
        defaults = replace(DEFAULTS, gamma=DEMO_GAMMA)
    named = resolve(os.fspath(model))
    if draft is None:
        draft = named.draft
    with ExitStack() as stack:
        load_options = LoadOptions(**options)
        models = [stack.enter_context(get_backend(backend).load(named.model, load_options))]
        if draft is not None:
            factory = get_backend(draft_backend or backend)
            drafting = replace(load_options, drafts=True)
            drafter = resolve(os.fspath(draft)).model
            models.append(stack.enter_context(factory.load(drafter, drafting)))
        session = Session(Pair(*models), defaults=defaults, closes_models=True)
        stack.pop_all()
        return session
