"""Enumeration that proves or refutes a rule: every draft, every outcome, with its probability.

Runs on whatever numbers the tables hold. With `fractions.Fraction` the distributions are exact, and
equality is equality. What is enumerated is `specx.core.rules.Rule.decide`, which the loop calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from specx.core.rules import Block, Rule
from specx.core.sampling import Distribution

__all__ = ["Law", "Table", "emitted_law", "outcome_law", "target_law", "total_variation"]

Table: TypeAlias = Callable[[tuple[int, ...]], Distribution]
"""The distribution of the next token after a context, as drafter or verifier has it."""

Law: TypeAlias = dict[tuple[int, ...], Any]
"""Distribution of texts: the probability of each sequence of tokens; 0 where it is missing."""


def outcome_law(rule: type[Rule], block: Block) -> dict[tuple[int, int], Any]:
    """Probability of each (n_accepted, token) for one block, over all uniforms.

    Every uniform is tried once in each interval on which the outcome is constant.
    """
    judged = rule(block)
    law: dict[tuple[int, int], Any] = defaultdict(int)
    for weight, uniforms in _test_cells(judged.chances):
        n = judged.count(uniforms < judged.chances)
        for mass, u in _draw_cells(judged.next_token(n)):
            verdict = judged.decide(uniforms, u)
            law[verdict.n_accepted, verdict.token] += weight * mass
    return dict(law)


def emitted_law(
    rule: type[Rule], target: Table, draft: Table, g: int, proposals: Law | None = None
) -> Law:
    """Distribution of the first g + 1 tokens: one round, then plain decoding up to that length.

    Parameters
    ----------
    proposals
        Distribution of the drafts, of at most g tokens; by default g tokens drawn from `draft`.
    """
    law: Law = defaultdict(int)
    for tokens, chance in (proposals or target_law(draft, g)).items():
        prefixes = [tokens[:i] for i in range(len(tokens) + 1)]
        block = Block([target(p) for p in prefixes], [draft(p) for p in prefixes[:-1]], tokens)
        for (n, token), mass in outcome_law(rule, block).items():
            emitted = (*tokens[:n], token)
            for rest, more in target_law(target, g - n, emitted).items():
                law[emitted + rest] += chance * mass * more
    return dict(law)


def target_law(table: Table, length: int, context: tuple[int, ...] = ()) -> Law:
    """Distribution of the next `length` tokens drawn one by one from `table`."""
    law: Law = {(): 1}
    for _ in range(length):
        law = {
            (*tokens, token): chance * mass
            for tokens, chance in law.items()
            for token, mass in _support(table(context + tokens))
        }
    return law


def total_variation(one: Law, other: Law) -> Any:
    """Half the sum of absolute differences."""
    return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other}) / 2


def _support(chances: Distribution) -> Iterator[tuple[int, Any]]:
    ids = range(len(chances.probs)) if chances.ids is None else chances.ids.tolist()
    return ((i, mass) for i, mass in zip(ids, chances.probs, strict=True) if mass > 0)


def _test_cells(chances: Any) -> Iterator[tuple[Any, Any]]:
    """(probability, uniforms) of every combination of tests passed and failed."""
    for passed in product([True, False], repeat=len(chances)):
        weight: Any = 1
        uniforms = []
        for chance, passes in zip(chances, passed, strict=True):
            weight = weight * (chance if passes else 1 - chance)
            uniforms.append(chance / 2 if passes else (chance + 1) / 2)
        if weight > 0:
            yield weight, np.array(uniforms, dtype=chances.dtype)


def _draw_cells(chances: Distribution) -> Iterator[tuple[Any, Any]]:
    """(probability, uniform) for each token that can be drawn."""
    below: Any = 0
    for _, mass in _support(chances):
        yield mass, below + mass / 2
        below = below + mass
