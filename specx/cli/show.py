"""Output of a run: text marked with the origin of its tokens, and the footer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TextIO

import click

from specx.cli.streams import is_terminal
from specx.codec import to_json
from specx.core.logits import ENTROPY_STEPS, entropy, entropy_level
from specx.core.sampling import Distribution
from specx.session.decoding import Round
from specx.session.generation import Generation, Observer
from specx.session.result import Result
from specx.session.tally import Tally
from specx.session.text import visible

__all__ = ["PrintOptions", "Printing", "Writer", "footer", "legend", "wants_styles"]

ORIGINS: dict[str, dict[str, Any]] = {
    "accepted": {},
    "correction": {"underline": True, "fg": "yellow"},
    "bonus": {"bold": True, "fg": "cyan"},
}
"""Styles by origin of a token; each has an attribute, so that colour is never the only mark."""

SHADES: list[dict[str, Any]] = [
    {},
    {"fg": 16, "bg": 229},
    {"fg": 16, "bg": 216, "underline": True},
    {"fg": 16, "bg": 203, "underline": True, "bold": True},
]
"""Styles by level of the verifier's entropy."""

DEMO_NOTE = [
    "models: the demo pair, which writes Python; too small to gain from speculation on a CPU.",
    "For a speed-up: -m VERIFIER.gguf -md DRAFTER.gguf; see the README and specx run --help",
]


def wants_styles(color: str, stream: TextIO | None) -> bool:
    """True if tokens are to be marked in `stream`."""
    if color != "auto":
        return color == "on"
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


class PrintOptions(Protocol):
    """Options that control printing."""

    @property
    def as_json(self) -> bool: ...
    @property
    def no_stream(self) -> bool: ...
    @property
    def color(self) -> str: ...
    @property
    def show(self) -> str: ...
    @property
    def quiet(self) -> bool: ...


@dataclass
class Writer:
    """Writes a generation's text to standard output, as it arrives or at the end."""

    styled: bool
    stream: bool
    mark: str = "origin"
    """Meaning of the marks: ``origin``, or the verifier's ``entropy`` before each token."""

    def __post_init__(self) -> None:
        self.written: list[str] = []
        self._terminal = is_terminal(sys.stdout)

    def round(self, done: Round) -> None:
        """Write the text that a round completed."""
        last = done.verdict.n_accepted
        origin = "bonus" if last == len(done.draft.ids) else "correction"
        if not done.draft.ids:
            origin = "accepted"  # nothing was proposed: an ordinary token
        for position, piece in enumerate(done.pieces):
            if self.mark == "entropy":
                look = _shade(done.target[position])
            else:
                look = ORIGINS["accepted" if position < last else origin]
            self.write(piece, look)

    def write(self, piece: str, look: Mapping[str, Any] | None = None) -> None:
        """Write one piece of text, styled as `look` if marks are wanted."""
        self.written.append(piece)
        if not self.stream or not piece:
            return
        shown = visible(piece) if self._terminal else piece
        click.echo(self._styled(shown, look or {}), nl=False, color=self.styled)

    def end(self) -> None:
        """Write the text that was held back, and end the last line."""
        if not self.stream:
            whole = "".join(self.written)
            click.echo(visible(whole) if self._terminal else whole, nl=False)
        if self._terminal or not "".join(self.written[-1:]).endswith("\n"):
            click.echo()

    def _styled(self, text: str, look: Mapping[str, Any]) -> str:
        allowed = _allowed(look) if self.styled else {}
        return click.style(text, **allowed) if allowed else text


class Printing(Observer):
    """Prints a generation: its text as it arrives or at the end, then the footer or JSON.

    Parameters
    ----------
    shown
        Settings of a generation, as ``--json`` prints them.
    record
        The JSON object of ``--json``.
    """

    def __init__(
        self,
        options: PrintOptions,
        shown: Callable[[Generation], Mapping[str, Any]],
        record: Callable[[Generation, Result], Mapping[str, Any]],
    ) -> None:
        self._options, self._shown, self._record = options, shown, record
        self._prefilled = self._broken = False
        self.writer = Writer(
            styled=wants_styles(options.color, sys.stdout),
            stream=not (options.as_json or options.no_stream),
            mark=options.show,
        )

    @property
    def shades(self) -> bool:
        """True if entropies are to be shown."""
        return self.writer.styled and self.writer.stream and self.writer.mark == "entropy"

    def begin(self, generation: Generation) -> None:
        self._generation = generation

    def prefilled(self) -> None:
        self._prefilled = True

    def round(self, done: Round) -> None:
        try:
            self.writer.round(done)
        except OSError:  # the reader of the text is gone
            self._broken = True
            raise

    def end(self, result: Result) -> None:
        """Print the rest; nothing if the error message alone is enough."""
        if not self._prefilled or self._broken:
            return
        self.writer.write(result.rest)
        if result.stop_reason == "failed" and not result.n_tokens:
            return
        if self._options.as_json:
            click.echo(to_json(self._record(self._generation, result)))
            return
        self.writer.end()
        if not self._options.quiet:
            self._footer(result)

    def _footer(self, result: Result) -> None:
        styled = self.writer.styled and wants_styles(self._options.color, sys.stderr)
        marked = styled and (self.shades or self._generation.pair.drafter is not None)
        shown = self._shown(self._generation)
        for line in ["", *footer(result, shown), legend(marked, self.writer.mark)]:
            click.echo(line, err=True, color=styled)


def _shade(before: Distribution) -> dict[str, Any]:
    return {} if before.logits is None else SHADES[entropy_level(entropy(before.logits))]


def _allowed(look: Mapping[str, Any]) -> dict[str, Any]:
    colours = ("fg", "bg") if os.environ.get("NO_COLOR") else ()
    return {key: value for key, value in look.items() if key not in colours}


def legend(styled: bool, mark: str = "origin") -> str:
    """The line that explains the marks; empty without styles."""
    if not styled:
        return ""
    looks = ORIGINS if mark == "origin" else dict(zip(_levels(), SHADES, strict=True))
    kind = "tokens" if mark == "origin" else "verifier's entropy, nats"
    names = (click.style(name, **_allowed(look)) for name, look in looks.items())
    return f"{kind}: " + "  ".join(names)


def _levels() -> list[str]:
    first, *_, last = ENTROPY_STEPS
    between = (f"{low} to {high}" for low, high in pairwise(ENTROPY_STEPS))
    return [f"under {first}", *between, f"{last} and more"]


def footer(result: Result, shown: Mapping[str, Any]) -> list[str]:
    """The closing lines of a run; `shown` holds its settings, as ``--json`` prints them."""
    tally, n_prompt = result.tally, result.n_prompt
    lines = [
        f"seed {shown['seed']}  template {shown['template']}  "
        f"stopped by {_reason(result, shown['predict'])}",
        f"{tally.n_tokens} tokens at {_rate(tally.n_tokens, tally.total)}"
        f"  prompt {n_prompt} tokens {_prompt_rate(result, n_prompt - 1)}",
    ]
    if shown["draft"]:
        lines.append(
            f"alpha {_number(tally.alpha)} (accepted {tally.accepted} of {tally.tested} tested)"
            f"  kept {_number(tally.kept)} (of {tally.proposed} proposed)"
            f"  tau {_number(tally.tau)} tokens per verifier pass"
        )
        lines += _expected(tally, shown["rule"])
        lines += _choices(result, shown["gamma_by"])
    lines.append(_shares(tally.time()))
    return lines + DEMO_NOTE if shown["demo_pair"] else lines


def _expected(tally: Tally, rule: str) -> list[str]:
    """Expected acceptance per rule, from the same rounds; empty if greedy, where all agree."""
    expected = tally.expected_a_round()
    if expected is None or rule == "greedy":
        return []
    rates = "  ".join(f"{name} {tokens:.2f}" for name, tokens in expected.items())
    return [f"rule {rule}; expected accepted tokens per round: {rates}"]


def _choices(result: Result, gamma_by: str) -> list[str]:
    """Rounds by number of proposals, and the gain; empty where gamma is fixed."""
    lines, choices = [], result.choices
    if gamma_by != "fixed":
        counts = "; ".join(
            f"{who} " + " ".join(f"{gamma}:{n}" for gamma, n in sorted(rounds.items()))
            for who, rounds in choices.gammas.items()
        )
        lines.append(f"gamma by {gamma_by}; rounds by gamma: {counts or 'none'}")
        phases = {"speculating": choices.speculating, "plain": choices.plain}
        lines.append(
            "  ".join(
                f"{name} {phase.n_tokens} tokens in {phase.seconds:.2f} s"
                for name, phase in phases.items()
            )
        )
    estimated = result.estimated
    if estimated is not None:
        lines.append(
            f"estimated {estimated['ratio']:.2f} times plain decoding "
            f"({estimated['plain_tok_s']:.1f} tok/s, estimated from {estimated['by']})"
        )
    return lines


def _shares(time: Mapping[str, float]) -> str:
    total = time["total"]
    parts = [name for name in time if name != "total"]
    shares = "  ".join(f"{name} {time[name] / total:.1%}" for name in parts) if total else "-"
    return f"time {total:.2f} s: {shares}"


def _reason(result: Result, predict: object) -> str:
    words = {
        "eos": "the end token",
        "stop": "a stop string",
        "length": f"the length limit (-n {predict})",
        "context": "a full context (raise -c for more)",
        "interrupted": "an interrupt",
        "failed": "a failure of the runtime",
    }
    return words.get(str(result.stop_reason), "an unknown cause (the trace is incomplete)")


def _prompt_rate(result: Result, n_fed: int) -> str:
    """The verifier's speed on the prompt, if its time alone is known."""
    if result.prefill_draft_s is None:
        return f"in {result.prefill_s:.2f} s"
    by = " by the verifier" if result.prefill_draft_s else ""
    return f"at {_rate(n_fed, result.prefill_s - result.prefill_draft_s)}{by}"


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f} tok/s" if seconds > 0 and count > 0 else "- tok/s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
