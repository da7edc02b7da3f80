"""Refuses to mix traces: a study is of one pair under one sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specx.codec import shortened
from specx.errors import UsageError
from specx.records.trace import Trace

__all__ = ["difference", "models_difference", "require_alike"]

IDENTITY = (
    "sha256", "bytes", "quantisation", "architecture", "n_params", "n_vocab", "dtype",
    "cache_type_k", "cache_type_v",
)  # fmt: skip
"""The fields of `LogitsBackend.describe` that identify a model; the others affect only speed."""


def require_alike(traces: Sequence[Trace]) -> None:
    """Refuse traces of different pairs or samplers.

    Raises
    ------
    UsageError
        With the names of two files and the first setting in which they differ.
    """
    for trace in traces[1:]:
        first = traces[0]
        found = difference(vars(first.header.sampling), vars(trace.header.sampling), "and") or (
            models_difference(first.header.provenance, trace.header.provenance, "and")
        )
        if found:
            raise UsageError(
                f"{first.path} and {trace.path} differ in {found}; study them one at a time"
            )


def difference(before: Mapping[str, Any], now: Mapping[str, Any], word: str = "now") -> str:
    """The first value that differs, such as ``gamma 4, now 2``; empty where none does."""
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            return f"{name} {shortened(before.get(name))}, {word} {shortened(now.get(name))}"
    return ""


def models_difference(before: Mapping[str, Any], now: Mapping[str, Any], word: str = "now") -> str:
    """The runtime or model in which two provenances differ; empty if no difference is known.

    A trace that does not say which models it is of is taken for one of others, unless neither does.
    """
    backends = [list(each["backends"]) for each in (before, now) if each.get("backends")]
    if len(backends) == 2 and backends[0] != backends[1]:
        shown = ["+".join(map(str, names)) for names in backends]
        return f"backend {shown[0]}, {word} {shown[1]}"
    ours, theirs = _models(before), _models(now)
    for role in {**theirs, **ours}:
        if found := _model_difference(ours.get(role), theirs.get(role), word):
            return f"{role} {found}"
    return ""


def _models(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    models = provenance.get("models")
    return models if isinstance(models, Mapping) else {}


def _model_difference(before: Any, now: Any, word: str) -> str:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return "(recorded in only one of them)"
    # A file that was renamed is the same model; without its hash the name must do.
    hashed = before.get("sha256") and now.get("sha256")
    facts = IDENTITY if hashed else ("file", *IDENTITY)
    known = [name for name in facts if name in before and name in now]
    return difference(
        {name: before[name] for name in known}, {name: now[name] for name in known}, word
    )
