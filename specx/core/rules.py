"""Which drafted tokens survive, and what follows them: pure functions of arrays and uniforms.

A rule is a class. Called on a block it gives its judgement: before any random number is drawn, the
chance with which each drafted token passes its test, and what is drawn after the survivors.
`Rule.decide` adds the uniforms. The same code runs on float64 and on arrays of
`fractions.Fraction`, so what the tests enumerate is what the loop calls.

To add a rule, write its class here and name it in `RULES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from specx.core.sampling import Distribution, Numbers
from specx.errors import UsageError

__all__ = [
    "RULES",
    "Block",
    "BlockRule",
    "MatchRule",
    "Rule",
    "TokenRule",
    "Verdict",
    "judgements",
    "residual",
]


@dataclass(frozen=True, eq=False)
class Block:
    """One round's g drafted tokens, with the distributions of drafter and verifier.

    Parameters
    ----------
    target
        The verifier's g + 1 distributions: before each drafted token, and after the last.
    draft
        The g distributions that the drafted tokens were really drawn from.
    tokens
        The g drafted tokens.
    parents
        As in `specx.drafters.base.Draft`; None is a path.
    """

    target: Sequence[Distribution]
    draft: Sequence[Distribution]
    tokens: Sequence[int]
    parents: Sequence[int] | None = None

    def __post_init__(self) -> None:
        g = len(self.tokens)
        if len(self.draft) != g or len(self.target) != g + 1:
            raise UsageError(
                f"{g} drafted tokens need {g} draft and {g + 1} target distributions; "
                f"got {len(self.draft)} and {len(self.target)}"
            )
        if self.parents is not None and len(self.parents) != g:
            raise UsageError(f"{g} drafted tokens need {g} parents; got {len(self.parents)}")

    @property
    def is_path(self) -> bool:
        """Whether each token follows the one before it."""
        return self.parents is None or list(self.parents) == list(range(-1, len(self.tokens) - 1))

    @cached_property
    def target_probs(self) -> Numbers:
        """The verifier's probability of each drafted token, shape (g,)."""
        rows = zip(self.target, self.tokens, strict=False)
        return np.array([row.prob(token) for row, token in rows])

    @cached_property
    def draft_probs(self) -> Numbers:
        """The drafter's probability of each drafted token, shape (g,).

        Raises
        ------
        UsageError
            If one is 0: that token was not drawn from the distribution given for it.
        """
        rows = zip(self.draft, self.tokens, strict=True)
        probs = np.array([row.prob(token) for row, token in rows])
        if (probs == 0).any():
            place = int(np.flatnonzero(probs == 0)[0])
            raise UsageError(
                f"drafted token {self.tokens[place]} at place {place} has draft probability 0; "
                "give the distribution that it was drawn from"
            )
        return probs


@dataclass(frozen=True)
class Verdict:
    """The drafted tokens that stay, and the token drawn after them."""

    accepted: tuple[int, ...]
    token: int

    @property
    def n_accepted(self) -> int:
        """How many drafted tokens stay."""
        return len(self.accepted)


class Rule:
    """A lossless rule applied to one block: for any draft, the emitted tokens have the verifier's
    distribution.

    A subclass is a rule, and names itself; an instance is what the rule says of one block. Each
    number is computed when it is first asked for, and once. By default the first failed test ends
    the draft, and the token after it is drawn from what the verifier has beyond the drafter.

    Raises
    ------
    UsageError
        If the block is a tree.
    """

    name: ClassVar[str]

    def __init__(self, block: Block) -> None:
        if not block.is_path:
            raise UsageError(
                f"rule '{self.name}' judges a path, and the draft is a tree (parents "
                f"{block.parents}); propose one token after the other"
            )
        self.block = block

    @cached_property
    def chances(self) -> Numbers:
        """Chance that each drafted token passes its test, shape (g,)."""
        raise NotImplementedError

    @cached_property
    def survival(self) -> Numbers:
        """Numbers whose means over drafts are the chances that i tokens or more are accepted,
        shape (g,). They vary with the draft alone, and are known beyond a rejection too.
        """
        survival: Numbers = np.cumprod(self.chances)
        return survival

    @property
    def expected(self) -> Any:
        """The sum of `survival`, whose mean over drafts is the mean number of accepted tokens."""
        return self.survival.sum()

    @staticmethod
    def count(passed: NDArray[np.bool_]) -> int:
        """How many drafted tokens stay, given which tests passed, shape (g,)."""
        return int(np.logical_and.accumulate(passed).sum())

    def scale(self, n: int) -> Any:
        """The factor of the target in the residual after `n` < g accepted tokens."""
        return 1

    def after(self, n: int) -> Distribution:
        """The distribution of the token after `n` < g accepted ones."""
        return residual(self.block.target[n], self.block.draft[n], self.scale(n))

    def next_token(self, n: int) -> Distribution:
        """The distribution of the token after `n` accepted ones, a full acceptance included."""
        return self.block.target[n] if n == len(self.block.tokens) else self.after(n)

    def decide(self, uniforms: NDArray[Any], u: Any) -> Verdict:
        """Decide the block.

        Parameters
        ----------
        uniforms
            Shape (g,), in [0, 1): token i passes its test while ``uniforms[i] < chances[i]``.
        u
            In [0, 1), independent of `uniforms` and of the draft: draws the token after the
            survivors.
        """
        n = self.count(uniforms < self.chances)
        return Verdict(tuple(self.block.tokens[:n]), self.next_token(n).draw(u))


class TokenRule(Rule):
    """Token by token, up to the first rejection.

    Draft x is accepted with probability min(1, P(x) / Q(x)); at the first rejection a token is
    drawn from max(P - Q, 0), normalised. Leviathan et al. 2023, arXiv 2211.17192, algorithm 1;
    Chen et al. 2023, arXiv 2302.01318, theorem 1.
    """

    name = "token"

    @cached_property
    def chances(self) -> Numbers:
        target, draft = self.block.target_probs, self.block.draft_probs
        return np.minimum(target, draft) / draft  # min(1, P/Q) without overflow


class BlockRule(Rule):
    """The block as a whole: a good later token can carry a poor earlier one.

    Never accepts fewer tokens in expectation than `TokenRule`. Sun et al. 2025, arXiv 2403.10444,
    algorithm 2.
    """

    name = "block"

    @cached_property
    def chances(self) -> Numbers:
        block, chances = self.block, self._carried[1:]
        for i in range(1, len(block.tokens)):
            left = _excess(block.target[i], block.draft[i], self._carried[i]).sum()
            lost = 1 - self._carried[i]
            chances[i - 1] = left / (left + lost) if left + lost > 0 else 1
        return np.array(chances, dtype=block.target_probs.dtype)

    @cached_property
    def survival(self) -> Numbers:
        return np.array(self._carried[1:], dtype=self.block.target_probs.dtype)

    @staticmethod
    def count(passed: NDArray[np.bool_]) -> int:
        """The longest prefix whose test passed; an earlier failure does not end the scan."""
        return int(np.flatnonzero(passed)[-1]) + 1 if passed.any() else 0

    def scale(self, n: int) -> Any:
        return self._carried[n]

    @cached_property
    def _carried(self) -> list[Any]:
        """p_0 = 1, p_i = min(1, p_(i-1) P(x_i) / Q(x_i)): g + 1 numbers."""
        carried: list[Any] = [1]
        for target, draft in zip(self.block.target_probs, self.block.draft_probs, strict=True):
            reached = carried[-1] * target
            carried.append(reached / draft if reached < draft else 1)
        return carried


class MatchRule(Rule):
    """The verifier draws for itself, and the draft stays while both agree.

    What llama.cpp's server and mlx-lm do; here for comparison. A draft x stays with probability
    P(x), and the token after it is drawn from P without x, which gives the same distribution.
    """

    name = "match"

    @cached_property
    def chances(self) -> Numbers:
        return self.block.target_probs

    def after(self, n: int) -> Distribution:
        target, token = self.block.target[n], np.array([self.block.tokens[n]])
        return residual(target, Distribution(target.at(token), token))


RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (TokenRule, BlockRule, MatchRule)}


def judgements(block: Block, rule: type[Rule]) -> dict[str, Rule]:
    """By name, what every rule says of `block`; `rule` takes the place of its name's."""
    return {name: each(block) for name, each in {**RULES, rule.name: rule}.items()}


def residual(target: Distribution, draft: Distribution, scale: Any = 1) -> Distribution:
    """max(scale * target - draft, 0) normalised, over the whole of the target's support.

    Where rounding leaves nothing (target and draft agree to the last bit) the target itself is
    returned: such a rejection has probability 0, and its token still lies in the target's support.
    """
    excess = _excess(target, draft, scale)
    total = excess.sum()
    if not total > 0:
        return target
    return Distribution(excess / total, target.ids)


def _excess(target: Distribution, draft: Distribution, scale: Any) -> Numbers:
    excess: Numbers = np.maximum(scale * target.probs - draft.over(target), 0)
    return excess
