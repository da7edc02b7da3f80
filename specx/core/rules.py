"""Which drafted tokens survive, and what follows them: pure functions of arrays and uniforms.

A rule says, before any random number is drawn, with what chance each drafted token passes its test
and what is drawn after the survivors. `decide` adds the uniforms. The same functions run on float64
and on arrays of `fractions.Fraction`, so what the tests enumerate is what the loop calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

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
    "decide",
    "residual",
]


@dataclass(frozen=True, eq=False)
class Block:
    """One round's g drafted tokens, with what drafter and verifier say of them.

    Parameters
    ----------
    target
        The verifier's g + 1 distributions: before each drafted token, and after the last.
    draft
        The g distributions that the drafted tokens were really drawn from.
    tokens
        The g drafted tokens.
    """

    target: Sequence[Distribution]
    draft: Sequence[Distribution]
    tokens: Sequence[int]

    def __post_init__(self) -> None:
        g = len(self.tokens)
        if len(self.draft) != g or len(self.target) != g + 1:
            raise UsageError(
                f"{g} drafted tokens need {g} draft and {g + 1} target distributions; "
                f"got {len(self.draft)} and {len(self.target)}"
            )

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
    """What a rule decided: the first `n_accepted` drafted tokens stay, then comes `token`."""

    n_accepted: int
    token: int


class Rule(Protocol):
    """A lossless rule: for any draft, the emitted tokens follow the verifier's law."""

    name: str

    def acceptance(self, block: Block) -> Numbers:
        """Chance that each drafted token passes its test, shape (g,)."""

    def n_accepted(self, passed: NDArray[np.bool_]) -> int:
        """How many drafted tokens stay, given which tests passed, shape (g,)."""

    def after(self, block: Block, n: int) -> Distribution:
        """What the token after `n` < g accepted ones is drawn from."""

    def survival(self, block: Block) -> Numbers:
        """Numbers whose means over drafts are the chances that i tokens or more are accepted,
        shape (g,): no noise but the draft's, and to be had beyond a rejection too.
        """

    def expected(self, block: Block) -> Any:
        """Their sum; its mean over drafts is the mean of n_accepted."""


class TokenRule:
    """Token by token, up to the first rejection.

    Draft x is accepted with probability min(1, P(x) / Q(x)); at the first rejection a token is
    drawn from max(P - Q, 0), normalised. Leviathan et al. 2023, arXiv 2211.17192, algorithm 1;
    Chen et al. 2023, arXiv 2302.01318, theorem 1.
    """

    name = "token"

    def acceptance(self, block: Block) -> Numbers:
        target, draft = block.target_probs, block.draft_probs
        return np.minimum(target, draft) / draft  # min(1, P/Q) without overflow

    def n_accepted(self, passed: NDArray[np.bool_]) -> int:
        return _before_first_failure(passed)

    def after(self, block: Block, n: int) -> Distribution:
        return residual(block.target[n], block.draft[n])

    def survival(self, block: Block) -> Numbers:
        survival: Numbers = np.cumprod(self.acceptance(block))
        return survival

    def expected(self, block: Block) -> Any:
        return self.survival(block).sum()


class BlockRule:
    """The block as a whole: a good later token can carry a poor earlier one.

    Never accepts fewer tokens in expectation than `TokenRule`. Sun et al. 2025, arXiv 2403.10444,
    algorithm 2.
    """

    name = "block"

    def acceptance(self, block: Block) -> Numbers:
        carried = self.carried(block)
        chances = carried[1:]
        for i in range(1, len(block.tokens)):
            left = _excess(block.target[i], block.draft[i], carried[i]).sum()
            lost = 1 - carried[i]
            chances[i - 1] = left / (left + lost) if left + lost > 0 else 1
        return np.array(chances, dtype=block.target_probs.dtype)

    def n_accepted(self, passed: NDArray[np.bool_]) -> int:
        """The longest prefix whose test passed; an earlier failure does not end the scan."""
        return int(np.flatnonzero(passed)[-1]) + 1 if passed.any() else 0

    def after(self, block: Block, n: int) -> Distribution:
        return residual(block.target[n], block.draft[n], self.carried(block)[n])

    def survival(self, block: Block) -> Numbers:
        return np.array(self.carried(block)[1:], dtype=block.target_probs.dtype)

    def expected(self, block: Block) -> Any:
        return self.survival(block).sum()

    def carried(self, block: Block) -> list[Any]:
        """p_0 = 1, p_i = min(1, p_(i-1) P(x_i) / Q(x_i)): g + 1 numbers."""
        carried: list[Any] = [1]
        for target, draft in zip(block.target_probs, block.draft_probs, strict=True):
            reached = carried[-1] * target
            carried.append(reached / draft if reached < draft else 1)
        return carried


class MatchRule:
    """The verifier draws for itself, and the draft stays while it says the same.

    What llama.cpp's server and mlx-lm do; here for comparison. A draft x stays with probability
    P(x), and the token after it is drawn from P without x, which is the same law.
    """

    name = "match"

    def acceptance(self, block: Block) -> Numbers:
        return block.target_probs

    def n_accepted(self, passed: NDArray[np.bool_]) -> int:
        return _before_first_failure(passed)

    def after(self, block: Block, n: int) -> Distribution:
        token = np.array([block.tokens[n]])
        return residual(block.target[n], Distribution(block.target[n].at(token), token))

    def survival(self, block: Block) -> Numbers:
        survival: Numbers = np.cumprod(self.acceptance(block))
        return survival

    def expected(self, block: Block) -> Any:
        return self.survival(block).sum()


RULES: dict[str, Rule] = {rule.name: rule for rule in (TokenRule(), BlockRule(), MatchRule())}


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


def _before_first_failure(passed: NDArray[np.bool_]) -> int:
    return int(np.logical_and.accumulate(passed).sum())


def decide(rule: Rule, block: Block, uniforms: NDArray[Any], u: Any) -> Verdict:
    """Decide one block.

    Parameters
    ----------
    uniforms
        Shape (g,), in [0, 1): token i passes its test while ``uniforms[i] < acceptance[i]``.
    u
        In [0, 1), independent of `uniforms` and of the draft: draws the token after the survivors.
    """
    n = rule.n_accepted(uniforms < rule.acceptance(block))
    last = block.target[n] if n == len(block.tokens) else rule.after(block, n)
    return Verdict(n, last.draw(u))
