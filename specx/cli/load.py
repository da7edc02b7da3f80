"""From command-line options to loaded models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from specx import Pair
from specx.cli.progress import Progress
from specx.errors import OptionError, UsageError
from specx.runtime.backend import BackendFactory, LoadOptions, LogitsBackend, Tokenizer, get_backend
from specx.runtime.memory import MemoryNeeded, check_fits
from specx.runtime.uncached import Uncached
from specx.shipped import DEMO_THREADS, demo_pair

__all__ = [
    "FIELDS",
    "Side",
    "load_pair",
    "load_side",
    "plan_sides",
    "require_memory",
    "with_demo_pair",
]

FIELDS = {
    "n_ctx": "-c",
    "n_batch": "-b",
    "n_gpu_layers": "-ngl",
    "threads": "-t",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "dtype": "--dtype",
    "device": "--device",
    "weights_cache": "--weights-cache",
}
"""Load options and their flags; a flag with the suffix d applies to the drafter."""


@dataclass(frozen=True)
class Side:
    """One of the two models, as requested on the command line."""

    role: str
    model: str
    factory: BackendFactory
    options: dict[str, Any]


def plan_sides(
    model: str,
    drafter: str | None,
    backend: str,
    draft_backend: str | None,
    given: Mapping[str, Any],
) -> list[Side]:
    """The sides to load, the verifier first.

    An option without the suffix applies to every side whose backend supports it.

    Raises
    ------
    OptionError
        If no side supports an option.
    """
    sides = [_side("verifier", model, backend)]
    if drafter is not None:
        sides.append(_side("drafter", drafter, draft_backend or backend))
    for field, flag in FIELDS.items():
        if given[field] is not None:
            _give(sides, field, flag, given[field])
        if given.get(f"{field}_draft") is not None:
            _give(sides[1:], field, f"{flag}d", given[f"{field}_draft"])
    return sides


def _side(role: str, model: str, backend: str) -> Side:
    factory = get_backend(backend)
    # Only -hf and `specx pull` download, so that a run never waits for gigabytes.
    return Side(role, model, factory, {"offline": True} if "offline" in factory.options else {})


def _give(sides: list[Side], field: str, flag: str, value: Any) -> None:
    supporting = [side for side in sides if field in side.factory.options]
    if not supporting:
        names = ", ".join(dict.fromkeys(side.factory.name for side in sides))
        raise OptionError(
            f"option {flag} {value} is not supported by backend {names}; leave it out"
            if names
            else f"option {flag} {value} needs a drafter; add -md DRAFTER"
        )
    for side in supporting:
        side.options[field] = value


def load_pair(
    sides: list[Side],
    need_ctx: Callable[[Tokenizer], int],
    *,
    verbose: bool,
    cached: bool,
    progress: Progress,
) -> Pair:
    """Load the sides; if one fails, none stays loaded.

    Raises
    ------
    ContextError
        If the caches cannot fit in memory; checked before anything is loaded.
    """
    require_memory(sides)
    with ExitStack() as stack:
        models: list[LogitsBackend] = []
        for side in sides:
            model = stack.enter_context(
                load_side(side, need_ctx, verbose=verbose, progress=progress)
            )
            models.append(model if cached else Uncached(model))
        pair = Pair(*models)
        stack.pop_all()
        return pair


def load_side(
    side: Side,
    need_ctx: Callable[[Tokenizer], int],
    *,
    verbose: bool,
    progress: Progress,
) -> LogitsBackend:
    """Load one model."""
    with progress.task(f"loading {side.role}", 1.0) as report:
        options = LoadOptions(
            **side.options,
            drafts=side.role == "drafter",
            verbose=verbose,
            need_ctx=need_ctx,
            progress=report,
        )
        return side.factory.load(side.model, options)


def require_memory(sides: Sequence[Side]) -> None:
    """Raise ContextError if the caches of all sides together cannot fit in memory."""
    check_fits(needed for side in sides if (needed := _memory_needed(side)) is not None)


def _memory_needed(side: Side) -> MemoryNeeded | None:
    """The backend's estimate for the side, if it makes one."""
    ask = getattr(side.factory, "memory_needed", None)
    estimate: MemoryNeeded | None = ask(side.model, LoadOptions(**side.options)) if ask else None
    return estimate


def with_demo_pair(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the models to load: the demo pair if none is named."""
    if given["model"] is None and given["model_draft"] is not None:
        raise UsageError(f"-md {given['model_draft']} needs a verifier; add -m VERIFIER.gguf")
    if given["model"] is not None:
        return dict(given)
    model, drafter = demo_pair()
    threads = given["threads"] or DEMO_THREADS
    return {**given, "model": model, "model_draft": drafter, "threads": threads}
