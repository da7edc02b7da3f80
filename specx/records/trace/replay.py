"""Makes a trace's decisions again, from its probabilities and uniforms alone."""

from __future__ import annotations

import numpy as np

from specx.core.rules import Block, BlockRule, Rule
from specx.core.sampling import Distribution
from specx.records.trace.records import RoundRecord

__all__ = ["replayed_acceptance"]


def replayed_acceptance(done: RoundRecord, rule: Rule) -> int:
    """How many drafted tokens `rule` keeps, from what the round's line says of them.

    Block's chances need whole distributions, of which a line holds but the drafted tokens'
    probabilities: there the recorded ones are taken.
    """
    tokens = [token.id for token in done.draft]
    block = Block(
        [_only(token.id, token.target_prob) for token in done.draft] + [_only(0, 1.0)],
        [_only(token.id, token.draft_prob) for token in done.draft],
        tokens,
    )
    if isinstance(rule, BlockRule):
        chances = np.array([token.chance for token in done.draft])
    else:
        chances = rule.acceptance(block)
    uniforms = np.array([token.uniform for token in done.draft])
    return rule.n_accepted(uniforms < chances)


def _only(token: int, prob: float) -> Distribution:
    """The one entry of a distribution that a line holds."""
    return Distribution(np.array([prob]), np.array([token]))
