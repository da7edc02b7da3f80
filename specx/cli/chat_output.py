"""What a chat prints: answers as they arrive, one quiet line after each, and the statistics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import click

from specx.cli.show import Writer, wants_styles
from specx.session.chat.thinking import Thinking
from specx.session.decoding import Round
from specx.session.generation import Observer
from specx.session.result import Result
from specx.session.tally import merged

__all__ = ["ENDED", "Speaking", "note", "quiet_line", "statistics"]


def note(line: str, *, color: str = "auto") -> None:
    """Write a line beside the conversation: dimmed, on standard error."""
    styled = wants_styles(color, sys.stderr)
    click.echo(click.style(line, dim=True) if styled and line else line, err=True, color=styled)


@dataclass
class _Writer(Writer):
    """Writes an answer, its thinking part dimmed."""

    thinking: Thinking = field(default_factory=Thinking)

    def write(self, piece: str, look: Mapping[str, Any] | None = None) -> None:
        for within, text in self.thinking.push(piece):
            super().write(text, {**(look or {}), "dim": True} if within else look)

    def end(self) -> None:
        for within, text in self.thinking.finish():
            super().write(text, {"dim": True} if within else None)
        super().end()


class Speaking(Observer):
    """Prints one answer.

    Parameters
    ----------
    opened
        True if the answer begins within its thinking part.
    """

    def __init__(self, color: str, show: Literal["origin", "entropy"], *, opened: bool) -> None:
        styled = wants_styles(color, sys.stdout)
        thinking = Thinking(opened=opened)
        self._writer = _Writer(styled=styled, stream=True, mark=show, thinking=thinking)
        self._began = self._broken = False
        self.shades = styled and show == "entropy"
        """True if entropies are to be shown."""

    def round(self, done: Round) -> None:
        self._began = True
        try:
            self._writer.round(done)
        except OSError:  # the reader of the text is gone
            self._broken = True
            raise

    def end(self, result: Result) -> None:
        """Print the rest; nothing if no answer began."""
        if self._began and not self._broken:
            self._writer.write(result.rest)
            self._writer.end()


def quiet_line(result: Result, ends: Mapping[str, str]) -> str:
    """What a person may want to know of an answer; `ends` explains ends not the model's own."""
    tally = result.tally
    n_read = result.n_prompt - result.n_reused
    parts = [
        f"{tally.n_tokens} tokens at {_rate(tally.tok_s)}",
        *([] if tally.alpha is None else [f"alpha {tally.alpha:.2f}"]),
        f"prompt {result.n_reused} reused + {n_read} read",
    ]
    if result.settings.gamma == "auto":
        counts = (
            f"{who} " + " ".join(f"{gamma}:{n}" for gamma, n in sorted(rounds.items()))
            for who, rounds in result.choices.gammas.items()
        )
        parts += [f"rounds by gamma {each}" for each in counts]
    reason = ends.get(str(result.stop_reason))
    return "  ".join([*parts, *([reason] if reason else [])])


ENDED = {
    "length": "length limit reached (/set n)",
    "context": "context full (/reset begins anew)",
    "interrupted": "interrupted",
}
"""Ends of an answer that are not the model's own, with what to do in a chat."""


def statistics(results: Sequence[Result], context: tuple[int, int]) -> list[str]:
    """The figures of a chat; `context` holds the tokens used, and all there are."""
    whole = merged([result.tally for result in results])
    alpha = "-" if whole.alpha is None else f"{whole.alpha:.2f}"
    n_reused = sum(result.n_reused for result in results)
    n_read = sum(result.n_prompt for result in results) - n_reused
    return [
        f"answers   {len(results)}: {whole.n_tokens} tokens at {_rate(whole.tok_s)}, alpha {alpha} "
        f"(accepted {whole.accepted} of {whole.tested} tested)",
        f"prompts   {n_reused} tokens reused, {n_read} read",
        f"context   {context[0]} of {context[1]} tokens used",
    ]


def _rate(tok_s: float | None) -> str:
    return "- tok/s" if tok_s is None else f"{tok_s:.1f} tok/s"
