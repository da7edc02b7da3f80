"""The tables of the comparison, from its records; ``TABLES`` of scripts/benchmarks.py has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from peers.record import Record, read
from specx.bench.speedup import median_speedup
from specx.records.markdown import markdown_table

__all__ = ["GROUPS", "Group", "file_of", "peers_table", "rules_of", "rules_table", "tables_of"]

RECORDS = Path(__file__).resolve().parent.parent.parent / "docs" / "benchmarks"

PLAIN, PAIR, MIXED = "specx verifier alone", "specx pair", "specx mixed pair"
SIMPLE, LOOKUP = "llama-speculative-simple", "prompt lookup of llama-cpp-python"
GENERATE = "generate(assistant_model)"

LIMITS = {
    SIMPLE: "drafts the drafter's most likely tokens and keeps one only where its own draw from "
    "the verifier is the same token (the rule match); it has no rejection sampling. With its "
    "default filters (top-k 40, top-p 0.95, min-p 0.05, temperature last) it has another "
    "distribution.",
    LOOKUP: "takes no draft model's weights, only what the text already holds. Its sampler "
    "options apply top-p before temperature; the same distribution was reached with a logits "
    "processor that divides by the temperature. It keeps n_ctx x n_vocab logits.",
    GENERATE: "has token-by-token rejection sampling only (the rule token), and its drafter must "
    "be a module of transformers: it cannot run the mixed pair.",
}
"""The limitations of each peer, in words."""

Row = list[str]


class Group:
    """The sides that are measured together, and which are compared."""

    def __init__(self, name: str, peers: Sequence[str], ours: Sequence[str]) -> None:
        self.name = name
        self.peers = peers
        self.ours = ours

    @property
    def sides(self) -> list[str]:
        """All, the verifier alone first."""
        return [PLAIN, *self.ours, *self.peers]

    def comparisons(self) -> Iterator[tuple[str, str]]:
        """(side, the one it is divided by)."""
        for ours in self.ours:
            for other in [*self.peers, PLAIN]:
                yield ours, other
        for peer in self.peers:
            yield peer, PLAIN


GROUPS = {
    "llamacpp": Group("llama.cpp", [SIMPLE, LOOKUP], [PAIR]),
    "transformers": Group("transformers", [GENERATE], [PAIR, MIXED]),
}


def file_of(group: str) -> Path:
    """Where a group's record is kept."""
    return RECORDS / f"peers-{group}.json"


def peers_table() -> str:
    """Ratios, speeds, and what the peers cannot do, of every group that has a record."""
    return "\n".join(tables_of(group, record) for group, record in records())


def rules_table() -> str:
    """Expected accepted tokens per round by rule, from the same arrays, on every runtime."""
    return rules_of(list(records()))


def records() -> Iterator[tuple[str, Record]]:
    """(group, record) of those that were measured."""
    for group in GROUPS:
        if file_of(group).exists():
            yield group, read(file_of(group))


def tables_of(group: str, record: Record) -> str:
    """Both tables of a group, and the words before and after."""
    parts = [heading(GROUPS[group], record)]
    parts += [ratio_table(GROUPS[group], record), speed_table(GROUPS[group], record)]
    return "\n".join([*parts, limits(GROUPS[group], record)])


def heading(group: Group, record: Record) -> str:
    """The measurement described in a sentence."""
    settings = record.data["settings"]
    tried = ", ".join(map(str, settings["gammas"]))
    return (
        f"On {group.name}: {settings['verifier']} with {settings['drafter']}, temperature "
        f"{settings['temperature']:g}, top-p {settings['top_p']:g}, at most {settings['n']} "
        f"tokens, {settings['threads']} threads; each side at its best gamma of {tried} on each "
        f"prompt, specx with the rule {settings['rule']}.\n"
    )


def ratio_table(group: Group, record: Record) -> str:
    """Medians of ratios of runs that took turns."""
    prompts = record.data["settings"]["prompts"]
    header = [group.name, "divided by", "ratio", *prompts]
    return markdown(header, [ratio_row(record, *both) for both in group.comparisons()])


def ratio_row(record: Record, side: str, other: str) -> Row:
    """The median over prompts of each prompt's median; each prompt's median and its range."""
    ratios = record.ratios(side, other)
    whole = median_speedup(ratios)
    shown = "" if whole is None else str(whole)
    each = [ranged(ratios.get(prompt, [])) for prompt in record.data["settings"]["prompts"]]
    return [side, other, shown, *each]


def ranged(values: Sequence[float]) -> str:
    """Median, least and most; a dash for what was not measured."""
    if not values:
        return "-"
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def speed_table(group: Group, record: Record) -> str:
    """Tokens per second of every side at its best gamma."""
    prompts = record.data["settings"]["prompts"]
    header = [f"tok/s, {group.name}", "gamma by prompt", *prompts]
    rows = []
    for side in group.sides:
        speeds = record.speeds(side)
        each = [ranged(speeds.get(prompt, [])) for prompt in prompts]
        rows.append([side, gammas(record, side), *each])
    return markdown(header, rows)


def gammas(record: Record, side: str) -> str:
    """Best gammas in the order of the prompts."""
    best = [record.best_gamma(prompt, side) for prompt in record.data["settings"]["prompts"]]
    return "none" if best == [None] * len(best) else ", ".join(str(gamma or "-") for gamma in best)


def limits(group: Group, record: Record) -> str:
    """A line for each peer: what it cannot do, and what failed here."""
    failures = record.data["failures"]
    lines = []
    for peer in group.peers:
        failed = f" Not measured here: {failures[peer]}." if peer in failures else ""
        lines.append(f"- {peer} {LIMITS[peer]}{failed}\n")
    return "".join(lines)


def rules_of(measured: Sequence[tuple[str, Record]]) -> str:
    """The rules' table of these groups."""
    header = ["runtime", "prompt, temperature", "gamma", "block", "token", "match"]
    header += ["accepted", "alpha, rule that ran", "rounds"]
    rows = [row for group, record in measured for row in rule_rows(GROUPS[group].name, record)]
    return markdown(header, rows)


def rule_rows(runtime: str, record: Record) -> Iterator[Row]:
    """One row per prompt and gamma."""
    for entry in record.data["acceptance"]:
        expected = [f"{entry['expected'].get(r, 0):.2f}" for r in ("block", "token", "match")]
        alpha = "-" if entry["alpha"] is None else f"{entry['alpha']:.2f}, {entry['rule']}"
        yield [
            runtime,
            f"{entry['prompt']}, {entry['temperature']:g}",
            str(entry["gamma"]),
            *expected,
            f"{entry['accepted']:.2f}",
            alpha,
            str(entry["rounds"]),
        ]


def markdown(header: Row, rows: Iterable[Row]) -> str:
    """A table; the columns after the first two are figures."""
    return markdown_table([header, *rows], figures=header[2:])
