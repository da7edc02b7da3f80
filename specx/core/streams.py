"""Random numbers that a round can ask for again: keyed by seed, purpose and place in the text."""

from __future__ import annotations

import secrets

import numpy as np

from specx.errors import whole_number

__all__ = ["MOST_SEED", "Streams", "draw_seed"]

MOST_SEED = 2**128 - 1
"""Philox's key has 128 bits."""
DRAFTING, ACCEPTING, EMITTING = range(3)


def draw_seed() -> int:
    """A fresh seed, short enough to be typed again."""
    return secrets.randbits(32)


class Streams:
    """Independent streams of uniforms from one seed.

    A stream is named by its purpose and by the text's length at the start of the round; numbers are
    then taken by their offset in the round. Position alone would not do: a rule that looks at later
    tokens of a block tells something about their numbers, and the next round would meet them again.

    Raises
    ------
    UsageError
        If the seed is not a whole number from 0 to `MOST_SEED`.
    """

    def __init__(self, seed: int) -> None:
        self.seed = whole_number("seed", seed, 0, MOST_SEED)

    def drafting(self, length: int) -> np.random.Generator:
        """For the drafter's draws in the round that starts at `length` tokens."""
        return self._stream(DRAFTING, length)

    def accepting(self, length: int) -> np.random.Generator:
        """For the tests of the drafted tokens."""
        return self._stream(ACCEPTING, length)

    def emitting(self, length: int) -> np.random.Generator:
        """For the one token that the verifier adds."""
        return self._stream(EMITTING, length)

    def _stream(self, purpose: int, length: int) -> np.random.Generator:
        # Philox counts up from its low word; the high words keep the streams apart.
        bits = np.random.Philox(key=self.seed, counter=[0, 0, length, purpose])
        return np.random.Generator(bits)
