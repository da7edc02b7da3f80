"""A comparison as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specx.bench.records import Results, results_record
from specx.bench.summary import summarise
from specx.compare.agreement import Agreement, binned, means
from specx.compare.findings import Findings, findings_of
from specx.compare.names import Traits, differences
from specx.compare.reading import FORMAT
from specx.compare.run import Comparison
from specx.compare.split import round_parts
from specx.compare.words import verdict
from specx.schedule.costs.curve import profile_record

__all__ = ["comparison_record"]

BINS = 4


def comparison_record(
    found: Comparison, traits: tuple[Traits, Traits], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """The contents of the JSON file; `found` must hold a whole block.

    Raises
    ------
    UsageError
        If nothing was drafted, so that there is nothing to compare.
    """
    findings = findings_of(found)
    agreement = {
        "verifier": _agreement(found.verifiers),
        "drafter": _agreement(found.drafters),
    }
    told = verdict(findings, agreement["verifier"] and agreement["verifier"]["mean"])
    sides = zip(("a", "b"), found.names, traits, found.results, strict=True)
    return {
        "specx_compare": FORMAT,
        "gamma": findings.gamma,
        "n": found.results[0].n,
        "planned": found.results[0].planned,
        "blocks": found.n_blocks,
        "complete": found.complete,
        "differences": differences(*traits),
        "sides": {
            key: {"name": name, **asdict(its), **_side(results)}
            for key, name, its, results in sides
        },
        "round": _rounds(findings),
        "agreement": agreement,
        "split": _split(findings),
        "verdict": asdict(told),
        "provenance": dict(provenance),
        "warnings": _warnings(found),
    }


def _warnings(found: Comparison) -> list[dict[str, str]]:
    """Merge the warnings: a shared one appears once, any other after the name of its side."""
    a, b = (side.warnings for side in found.results)
    shared = [warning for warning in a if warning in b]
    alone = [
        {**warning, "text": f"{name}: {warning['text']}"}
        for name, side in zip(found.names, (a, b), strict=True)
        for warning in side
        if warning not in shared
    ]
    return [*shared, *alone]


def _side(results: Results) -> dict[str, Any]:
    plain, speculative = results_record(results, summarise(results))["arms"]
    (profile,) = results.profiles.values()
    return {"plain": plain, "speculative": speculative, "profile": profile_record(profile)}


def _rounds(findings: Findings) -> dict[str, dict[str, float]]:
    """The cost and yield of a round on each side, in tokens of plain decoding."""
    return {
        key: {
            "tokens": side.acceptance.tokens,
            "after_full": side.acceptance.full,
            **round_parts(side.costs, findings.gamma, side.acceptance.full),
        }
        for key, side in (("a", findings.a), ("b", findings.b))
    }


def _agreement(found: Mapping[str, Agreement]) -> dict[str, Any] | None:
    """The agreement of two models; None if both sides share the model."""
    if not found:
        return None
    return {
        "mean": means(list(found.values())),
        "bins": binned(found, BINS),
        "prompts": {
            prompt: {**asdict(one), "kl": [_finite(value) for value in one.kl]}
            for prompt, one in found.items()
        },
    }


def _finite(value: float) -> float | None:
    """A JSON value: JSON has no infinity, so null stands for it."""
    return value if math.isfinite(value) else None


def _split(findings: Findings) -> dict[str, Any]:
    split, shares = findings.split, findings.split.shares()
    return {
        **{name: {**_term(nats), "share": shares[name]} for name, nats in split.terms().items()},
        "total": _term(split.total),
        "plain_ratio": asdict(findings.plain_ratio),
        "speculative_ratio": asdict(findings.speculative_ratio),
        "predicted": {"a": findings.a.predicted, "b": findings.b.predicted},
    }


def _term(nats: float) -> dict[str, float]:
    return {"nats": nats, "factor": math.exp(nats)}
