"""The rules for an engine of your own: arrays in, a verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from specx.core.rules import RULES, Block, Rule, Verdict
from specx.core.sampling import Distribution
from specx.errors import UsageError

__all__ = ["accept", "expected_accepted", "find_rule"]

Rows: TypeAlias = "ArrayLike | Sequence[Distribution]"

TOLERANCE = 1e-3
"""How far a row's sum may lie from 1: a softmax in half precision is about this good."""


def accept(
    target_probs: Rows,
    draft_probs: Rows,
    tokens: Sequence[int],
    *,
    rule: str = "block",
    rng: np.random.Generator,
) -> Verdict:
    """Decide how many drafted tokens stay, and draw the one that follows them.

    The emitted tokens, `accepted` and then `token`, have the target's distribution, whatever
    `draft_probs` are, as long as `tokens` were really drawn from them.

    Parameters
    ----------
    target_probs
        The verifier's probabilities before each drafted token and after the last: shape (g + 1, V),
        or g + 1 Distributions.
    draft_probs
        The probabilities that each token was drawn from: shape (g, V), or g Distributions.
    tokens
        The g drafted tokens, g >= 0.
    rule
        ``block`` (arXiv 2403.10444), ``token`` (arXiv 2211.17192) or ``match``.
    rng
        Independent of what `tokens` were drawn with.

    Returns
    -------
    Verdict
        With `accepted`, the first tokens of the draft, and `token`.

    Raises
    ------
    UsageError
        If shapes do not fit, a row is no distribution, or a token has draft probability 0.

    Examples
    --------
    >>> import numpy as np
    >>> target = [[0.3, 0.5, 0.2], [0.1, 0.1, 0.8]]
    >>> draft = [[0.6, 0.4, 0.0]]
    >>> accept(target, draft, [1], rng=np.random.default_rng(0))
    Verdict(accepted=(1,), token=2)
    """
    block = _block(target_probs, draft_probs, tokens)
    return find_rule(rule)(block).decide(rng.random(len(block.tokens)), rng.random())


def expected_accepted(
    target_probs: Rows, draft_probs: Rows, tokens: Sequence[int]
) -> dict[str, float]:
    """For each rule, a number whose mean over drafts is the mean of ``n_accepted``.

    Parameters are those of `accept`. All rules are computed from the same arrays, so they differ by
    no noise but the draft's own.

    Examples
    --------
    For P = (1/3, 2/3) and Q = (2/3, 1/3), drafting two tokens, the means are 10/9 and 11/9:

    >>> target, draft = [[1 / 3, 2 / 3]] * 3, [[2 / 3, 1 / 3]] * 2
    >>> drafts = [(a, b) for a in (0, 1) for b in (0, 1)]
    >>> chances = [draft[0][a] * draft[1][b] for a, b in drafts]
    >>> found = [expected_accepted(target, draft, tokens) for tokens in drafts]
    >>> [round(sum(p * e[rule] for p, e in zip(chances, found)) * 9) for rule in ("token", "block")]
    [10, 11]
    """
    block = _block(target_probs, draft_probs, tokens)
    return {name: float(rule(block).expected) for name, rule in RULES.items()}


def find_rule(name: str) -> type[Rule]:
    """The rule called `name`."""
    if name not in RULES:
        raise UsageError(f"unknown rule '{name}'; known: {', '.join(RULES)}")
    return RULES[name]


def _block(target_probs: Rows, draft_probs: Rows, tokens: Sequence[int]) -> Block:
    target, draft = _rows("target_probs", target_probs), _rows("draft_probs", draft_probs)
    ids = [int(token) for token in tokens]
    if any(token < 0 for token in ids):
        raise UsageError(f"tokens hold {min(ids)}; ids are 0 or more")
    return Block(target, draft, ids)


def _rows(name: str, rows: Any) -> list[Distribution]:
    if len(rows) and isinstance(rows[0], Distribution):
        return list(rows)
    table = np.asarray(rows, dtype=np.float64)
    if table.size and table.ndim != 2:
        raise UsageError(f"{name} has shape {table.shape}; give one row per position, (n, V)")
    return [_row(f"{name}[{i}]", row) for i, row in enumerate(table)]


def _row(name: str, row: Any) -> Distribution:
    total = row.sum()
    if not abs(total - 1) <= TOLERANCE or not (row >= 0).all():
        raise UsageError(
            f"{name} is no distribution (sum {total:.6g}, least {row.min():.3g}); "
            "give probabilities, not logits"
        )
    return Distribution(row / total)
