"""Two systems from one command line: A as given, B as A with overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specx.cli.load import FIELDS, Side, load_side, plan_sides, require_memory
from specx.cli.progress import Progress
from specx.compare import Traits
from specx.errors import OptionError, UsageError
from specx.runtime.backend import LogitsBackend, Tokenizer, get_backend
from specx.session.pair import Pair

__all__ = ["OVERRIDES", "Planned", "load_both", "plan_both", "traits_of"]

OVERRIDES = {
    "against": "model",
    "against_draft": "model_draft",
    "against_backend": "backend",
    "against_draft_backend": "draft_backend",
    "against_threads": "threads",
    "against_ctk": "cache_type_k",
    "against_ctv": "cache_type_v",
    "against_dtype": "dtype",
}
"""B's options, each with the option of A that it replaces."""


@dataclass(frozen=True)
class Planned:
    """The models to load, each system's verifier first."""

    a: list[Side]
    b: list[Side]
    left_out: list[str]
    """Options of A that no backend of B supports, as they were written."""


def plan_both(given: Mapping[str, Any]) -> Planned:
    """The sides of A and of B.

    Raises
    ------
    UsageError
        If there is no drafter, or B is not specified.
    OptionError
        If no backend supports an option.
    """
    if given["model_draft"] is None:
        raise UsageError(f"compare needs a drafter for -m {given['model']}; add -md DRAFTER")
    changed = _changes(given)
    theirs = {**given, **changed}
    for field in changed:
        if f"{field}_draft" in theirs and field in FIELDS:
            theirs[f"{field}_draft"] = None  # B's options apply to both its models
    theirs, left_out = _honoured(theirs, changed)
    return Planned(_sides(given), _sides(theirs), left_out)


def _changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options in which B differs; by default, the runtime that A's backend names."""
    changes = {field: given[name] for name, field in OVERRIDES.items() if given[name] is not None}
    if changes:
        return changes
    backend = given["backend"]
    other = getattr(get_backend(backend), "counterpart", None)
    if other is None:
        raise UsageError(
            f"nothing to compare backend '{backend}' with; add --against FILE, "
            "--against-backend NAME or another --against option"
        )
    return {"backend": other, "draft_backend": other}


def _honoured(
    theirs: dict[str, Any], changed: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """B's options that its backends support, and those of A that are left out."""
    drafter = [theirs["draft_backend"] or theirs["backend"]]
    candidates = {"": [theirs["backend"], *drafter], "_draft": drafter}
    kept, left_out = dict(theirs), []
    for field, flag in FIELDS.items():
        for suffix, backends in candidates.items():
            value = theirs.get(f"{field}{suffix}")
            if value is None or any(field in get_backend(name).options for name in backends):
                continue
            if field in changed:
                names = ", ".join(dict.fromkeys(backends))
                raise OptionError(
                    f"{_flag(field)} {value} is not supported by backend {names}; leave it out"
                )
            kept[f"{field}{suffix}"] = None
            left_out.append(f"{flag}{suffix[1:2]} {value}")
    return kept, left_out


def _flag(field: str) -> str:
    """The flag of B's option for `field`."""
    name = next(name for name, replaced in OVERRIDES.items() if replaced == field)
    return f"--{name.replace('_', '-')}"


def _sides(given: Mapping[str, Any]) -> list[Side]:
    return plan_sides(
        given["model"], given["model_draft"], given["backend"], given["draft_backend"], given
    )


@contextmanager
def load_both(
    planned: Planned,
    need_ctx: Callable[[Tokenizer], int],
    *,
    verbose: bool,
    progress: Progress,
) -> Iterator[tuple[Pair, Pair]]:
    """Load both systems; a model that they share is loaded once.

    Unless given its own number of threads, B gets A's, so that runtimes with different defaults are
    compared on equal terms.

    Raises
    ------
    BackendError
        If a runtime is not installed; checked before anything is loaded.
    ContextError
        If the caches of all models cannot fit in memory.
    OptionError
        If models that share one number of threads were given different ones.
    """
    alone = [b for a, b in zip(planned.a, planned.b, strict=True) if not _same(a, b)]
    for side in alone:
        side.factory.about()  # raises before A is loaded if the runtime is not installed
    require_memory([*planned.a, *alone])
    with ExitStack() as stack:
        threads: list[tuple[LogitsBackend, object]] = []

        def load(side: Side) -> LogitsBackend:
            model = load_side(side, need_ctx, verbose=verbose, progress=progress)
            threads.append((stack.enter_context(model), model.describe().get("threads")))
            return model

        first = [load(side) for side in planned.a]
        second = [
            twin if _same(a, b) else load(_on_threads_of(twin, b))
            for a, b, twin in zip(planned.a, planned.b, first, strict=True)
        ]
        _require_threads(threads)
        yield Pair(*first), Pair(*second)


def _same(a: Side, b: Side) -> bool:
    """True if both would load the same model in the same way."""
    return (a.model, a.factory.name, a.options) == (b.model, b.factory.name, b.options)


def _on_threads_of(twin: LogitsBackend, side: Side) -> Side:
    threads = twin.describe().get("threads")
    if threads is None or "threads" in side.options or "threads" not in side.factory.options:
        return side
    return replace(side, options={**side.options, "threads": threads})


def _require_threads(loaded: list[tuple[LogitsBackend, object]]) -> None:
    """Refuse different thread counts where a runtime applies the last one to all its models."""
    for model, asked in loaded:
        now = model.describe().get("threads")
        if now != asked:
            raise OptionError(
                f"{model.name} was to use {asked} threads but has {now}: its runtime has one "
                "number for all models of a process; give both the same (-t)"
            )


def traits_of(sides: list[Side], pair: Pair) -> Traits:
    """The traits of a loaded system, as requested, with the number of threads it got."""
    verifier, drafter = sides
    about, about_draft = (model.describe() for model in pair.models)
    quantisation = about.get("quantisation")
    return Traits(
        runtime=verifier.factory.name,
        draft_runtime=drafter.factory.name,
        model=Path(verifier.model).name,
        drafter=Path(drafter.model).name,
        quantisation=quantisation if isinstance(quantisation, str) else None,
        threads=_whole(about.get("threads")),
        draft_threads=_whole(about_draft.get("threads")),
        cache_type_k=verifier.options.get("cache_type_k"),
        cache_type_v=verifier.options.get("cache_type_v"),
        dtype=verifier.options.get("dtype"),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
