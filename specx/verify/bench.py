"""The loop of `specx run` in separate parts, so that a fault can be put into any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specx.core.rules import Rule
from specx.core.sampling import LogitsReader, SamplingParams
from specx.core.streams import Streams
from specx.drafters.model import ModelDrafter
from specx.runtime.backend import LogitsBackend
from specx.runtime.vocabulary import drafter_mask, verifier_mask
from specx.schedule import Fixed
from specx.session.decoding import Round, Stop, speculate
from specx.verify.faults import Fault

__all__ = ["Bench"]


@dataclass
class Bench:
    """A loop in separate parts, each of them sound or faulty.

    Parameters
    ----------
    verifier, drafter
        Loaded models with one vocabulary.
    """

    verifier: LogitsBackend
    drafter: LogitsBackend
    sampling: SamplingParams
    rule: type[Rule]
    fault: Fault
    gamma: int

    def __post_init__(self) -> None:
        masked = drafter_mask(self.verifier, self.drafter)
        self.reader = LogitsReader(self.verifier.name, self.sampling, verifier_mask(self.verifier))
        self.draft_reader = LogitsReader(self.drafter.name, self.sampling, masked)
        self.faulty_verifier = self.fault.verifier(self.verifier)

    def rounds(
        self, prompt: Sequence[int], seed: int, trial: int, n_tokens: int
    ) -> Iterator[Round]:
        """Run the loop on `prompt`, a prefix of which the models may already hold."""
        tokenizer = self.verifier.tokenizer
        drafter = ModelDrafter(self.drafter, self.draft_reader, tokenizer.eog_ids)
        return speculate(
            self.faulty_verifier,
            [self.fault.drafter(drafter)],
            list(prompt),
            reader=self.fault.reader(self.reader),
            rule=self.fault.rule(self.rule),
            schedule=Fixed(self.gamma),
            streams=self.fault.streams(Streams(_seed_of(seed, trial))),
            stop=Stop(tokenizer, n_tokens, ignore_eos=True),
        )

    def rewind(self, n_past: int) -> None:
        """Cut both models back to `n_past` tokens."""
        for model in (self.faulty_verifier, self.drafter):
            model.truncate(min(n_past, model.n_past))


def _seed_of(seed: int, trial: int) -> int:
    """A seed of its own for each trial."""
    return int(np.random.SeedSequence([seed, trial]).generate_state(1, np.uint64)[0])
