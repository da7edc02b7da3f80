"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["markdown_table"]


def markdown_table(rows: Sequence[Sequence[str]], *, figures: Collection[str] = ()) -> str:
    """A table as lines of Markdown, each with its newline.

    Parameters
    ----------
    rows
        A header, then the rows; what would end a cell or the table is escaped.
    figures
        Names of the columns that are aligned to the right.
    """
    header, *body = rows
    rule = ["---:" if name in figures else "---" for name in header]
    return "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in [header, rule, *body])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
