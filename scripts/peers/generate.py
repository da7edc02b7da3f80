"""transformers' own speculative decoding: ``generate(assistant_model=...)``.

Its order of filters is ours: temperature, then top-k, then top-p.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from peers.sides import PeerFailed, Question, Speed
from specx import SamplingParams

__all__ = ["Generate", "Rounds"]


class Generate:
    """Both modules are those that specx runs on; each call makes its own caches.

    Parameters
    ----------
    verifier, drafter
        Modules of transformers.
    ends
        Tokens that end a generation.
    """

    def __init__(
        self,
        verifier: Any,
        drafter: Any,
        sampling: SamplingParams,
        ends: frozenset[int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._verifier, self._drafter = verifier, drafter
        self._sampling = sampling
        self._ends = sorted(ends)
        self._clock = clock

    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        import torch

        draft_exactly(self._drafter, gamma)
        torch.manual_seed(seed)
        ids = torch.tensor([prompt.ids], device=self._verifier.device)
        rounds = Rounds(self._clock)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of processors given twice, of generation defaults
            self._verifier.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._config(n),
                assistant_model=self._drafter,
                streamer=rounds,
            )
        return rounds.speed(gamma)

    def _config(self, n: int) -> Any:
        """Every field that would otherwise come from the model's own settings."""
        import transformers

        make: Any = transformers.GenerationConfig  # untyped
        law = {"temperature": self._sampling.temperature, "top_p": self._sampling.top_p}
        return make(
            max_new_tokens=n,
            do_sample=not self._sampling.greedy,
            **({} if self._sampling.greedy else {**law, "top_k": 0}),
            repetition_penalty=1.0,
            eos_token_id=self._ends,
            pad_token_id=self._ends[0],
        )


def draft_exactly(drafter: Any, gamma: int) -> None:
    """Let `generate` draft `gamma` tokens each round, however sure the drafter is."""
    config = drafter.generation_config
    config.num_assistant_tokens = gamma
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0


class Rounds:
    """A streamer that keeps when each round's tokens came, and how many.

    `generate` hands it the prompt first, then each round's tokens. The first round holds the
    prefill of both models, so decoding is what comes after it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: list[float] = []
        self._sizes: list[int] = []

    def put(self, tokens: Any) -> None:
        self._times.append(self._clock())
        self._sizes.append(int(tokens.numel()))

    def end(self) -> None:
        """Nothing is held back."""

    def speed(self, gamma: int) -> Speed:
        """Of the rounds after the first."""
        times, sizes = self._times[1:], self._sizes[1:]
        if len(times) < 2:
            raise PeerFailed(f"ended within {len(times)} rounds; ask for more tokens")
        seconds, n_tokens = times[-1] - times[0], sum(sizes[1:])
        whole = sizes[:-1]  # the last round may have been cut
        accepted, tested = sum(whole) - len(whole), sum(min(size, gamma) for size in whole)
        return Speed(
            tok_s=n_tokens / seconds,
            n_tokens=n_tokens,
            seconds=seconds,
            kept=accepted / (gamma * len(whole)),
            alpha=accepted / tested,
        )
