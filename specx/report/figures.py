"""The numbers of a report: the same sums as in a run's footer, formatted the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specx.records.trace import Trace
from specx.session.tally import Tally

__all__ = [
    "MOST_TEXTS",
    "Figure",
    "brief",
    "facts",
    "figures",
    "generation_rows",
    "length_rows",
    "position_rows",
    "settings_of",
    "time_rows",
    "title_of",
]

MOST_TEXTS = 6
"""Generations shown token by token; of more, as in a sweep, only the first are, so that the page
opens at once."""


@dataclass(frozen=True)
class Figure:
    """One number of a report."""

    name: str
    value: str
    meaning: str = ""


def figures(trace: Trace) -> list[Figure]:
    """The numbers of one generation."""
    tally = trace.tally()
    return [
        Figure("tokens", str(tally.n_tokens), "emitted"),
        Figure("tok/s", _number(tally.tok_s, 1), "emitted tokens per second of decoding"),
        Figure("rounds", str(tally.rounds), "passes of the verifier"),
        *(_speculation(trace, tally) if trace.header.drafter else []),
        Figure("time", f"{tally.total:.2f} s", "of decoding, prefill not included"),
        *_shares(tally),
        *_ending(trace),
    ]


def generation_rows(traces: Sequence[Trace]) -> list[list[str]]:
    """A header, then a row per generation with all its figures; "-" for those it lacks."""
    found = [{figure.name: figure.value for figure in figures(trace)} for trace in traces]
    names = list(dict.fromkeys(name for values in found for name in values))
    rows = [
        [title_of(trace), *(values.get(name, "-") for name in names)]
        for trace, values in zip(traces, found, strict=True)
    ]
    return [["generation", *names], *rows]


def brief(trace: Trace) -> str:
    """A generation in one line."""
    named = {figure.name: figure.value for figure in figures(trace)}
    shown = [f"{named['tokens']} tokens at {named['tok/s']} tok/s"]
    shown += [f"{name} {named[name]}" for name in ("alpha", "kept", "tau") if name in named]
    return ", ".join(shown)


def _speculation(trace: Trace, tally: Tally) -> Iterator[Figure]:
    yield Figure("alpha", _number(tally.alpha), "acceptance rate: accepted / tested")
    yield Figure("accepted", str(tally.accepted), "drafted tokens that were kept")
    yield Figure("tested", str(tally.tested), "drafted tokens that were accepted or rejected")
    yield Figure("proposed", str(tally.proposed), "drafted tokens")
    yield Figure("kept", _number(tally.kept), "accepted / proposed")
    yield Figure("tau", _number(tally.tau), "tokens decided per verifier pass")
    for rule, tokens in (tally.expected_a_round() or {}).items():
        own = ", the rule in use" if rule == trace.header.rule else ""
        meaning = f"expected accepted tokens per round under this rule{own}"
        yield Figure(f"expected, {rule}", f"{tokens:.2f}", meaning)


def _shares(tally: Tally) -> Iterator[Figure]:
    for part, seconds, share in time_rows(tally):
        yield Figure(f"time, {part}", share, f"{seconds} s")


def _ending(trace: Trace) -> Iterator[Figure]:
    if trace.summary is None:
        yield Figure("end", "none", "the run died; nothing is known after its last complete round")
        return
    yield Figure("stopped by", str(trace.summary.stop_reason))
    yield Figure("prompt", f"{len(trace.header.prompt_ids)} tokens", "template included")
    total = trace.summary.time["total"]
    share = trace.summary.trace_s / total if total else 0.0
    meaning = "of the time, counted in time, other"
    yield Figure("time, this trace", f"{share:.1%}", meaning)


def time_rows(tally: Tally) -> list[tuple[str, str, str]]:
    """Part, seconds, share of the time."""
    time = tally.time()
    total = time.pop("total")
    return [
        (part, f"{seconds:.3f}", f"{seconds / total:.1%}" if total else "-")
        for part, seconds in time.items()
    ]


def position_rows(tally: Tally) -> list[tuple[str, str, str, str]]:
    """Position in the draft, tested, accepted, acceptance rate there."""
    return [
        (str(place), str(tested), str(accepted), f"{accepted / tested:.2f}")
        for place, (tested, accepted) in enumerate(tally.by_position, 1)
    ]


def length_rows(tally: Tally) -> list[tuple[str, str, str]]:
    """Accepted tokens, rounds that accepted that many, their share."""
    return [
        (str(accepted), str(rounds), f"{rounds / tally.rounds:.1%}")
        for accepted, rounds in sorted(tally.lengths.items())
    ]


def title_of(trace: Trace) -> str:
    """A generation's name among others: its labels, else its settings."""
    labels = " ".join(f"{key} {value}" for key, value in trace.header.labels.items())
    if labels:
        return labels
    header = trace.header
    if header.drafter is None:
        return f"verifier alone, seed {header.seed}"
    return f"{header.rule}, gamma {header.gamma}, seed {header.seed}"


def settings_of(trace: Trace) -> dict[str, Any]:
    """The settings that ``specx run --json`` printed, as far as a footer asks."""
    header = trace.header
    return {
        "seed": header.seed,
        "template": "-",
        "rule": header.rule,
        "predict": "-",
        "demo_pair": False,
        "draft": header.drafter is not None,
        "gamma_by": "fixed",
        **header.settings,
    }


def facts(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested mapping as flat rows, such as ``models.verifier.sha256``."""
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if isinstance(entry, Mapping):
            yield from facts(entry, f"{name}.")
        elif isinstance(entry, list) and any(isinstance(one, Mapping) for one in entry):
            yield from facts({str(i): one for i, one in enumerate(entry)}, f"{name}.")
        else:
            listed = ", ".join(map(str, entry)) if isinstance(entry, list) else entry
            yield name, "-" if entry is None else str(listed)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
