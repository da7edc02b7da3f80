"""llama-cpp-python's prompt lookup: drafts what followed the last tokens earlier in the text.

Its chain of samplers applies top-p before temperature, which gives a different distribution. A
logits processor that divides by the temperature puts it first; the chain's own temperature is 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from peers.sides import PeerFailed, Question, Speed
from specx import SamplingParams

__all__ = ["PromptLookup", "open_lookup", "sampler_options"]


class PromptLookup:
    """A `llama_cpp.Llama` with a lookup as its draft model.

    Parameters
    ----------
    llama
        Has the draft model `draft`.
    ends
        Tokens that end a generation.
    """

    def __init__(
        self,
        llama: Any,
        draft: Any,
        options: dict[str, Any],
        ends: frozenset[int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._llama, self._draft = llama, draft
        self._options = options
        self._ends = ends
        self._clock = clock

    def run(self, prompt: Question, gamma: int, seed: int, n: int) -> Speed:
        self._draft.num_pred_tokens = gamma
        self._llama.set_seed(seed)
        self._llama.reset()
        written = self._llama.generate(list(prompt.ids), **self._options)
        times = self._times(written, n)
        if len(times) < 2:
            raise PeerFailed(f"wrote {len(times)} tokens after prompt {prompt.id}")
        # The first token comes with the prompt's pass and is drafted by nobody.
        seconds, n_tokens = times[-1] - times[0], len(times) - 1
        return Speed(tok_s=n_tokens / seconds, n_tokens=n_tokens, seconds=seconds)

    def _times(self, written: Iterable[int], n: int) -> list[float]:
        """When each token came, of at most `n`."""
        times: list[float] = []
        for token in written:
            if token in self._ends:
                break
            times.append(self._clock())
            if len(times) == n:
                break
        return times


def sampler_options(sampling: SamplingParams, processors: Callable[[Any], Any]) -> dict[str, Any]:
    """Arguments of `Llama.generate` for temperature first, then top-p, and nothing else.

    Parameters
    ----------
    processors
        `llama_cpp.LogitsProcessorList`.
    """
    off = {"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
    if sampling.greedy:
        return {**off, "top_p": 1.0, "temp": 0.0}

    def tempered(_ids: Any, logits: Any) -> Any:
        return logits / sampling.temperature

    return {
        **off,
        "top_p": sampling.top_p,
        "temp": 1.0,
        "logits_processor": processors([tempered]),
    }


def open_lookup(
    model: str, sampling: SamplingParams, threads: int, n_ctx: int, ends: frozenset[int]
) -> PromptLookup:
    """Load `model` a second time; its file's pages are shared with the first.

    It keeps `n_ctx` rows of logits, 0.6 MB each for a vocabulary of 151,936: no more than needed.
    """
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = LlamaPromptLookupDecoding()
    llama = llama_cpp.Llama(
        model,
        n_ctx=n_ctx,
        n_threads=threads,
        n_threads_batch=threads,
        draft_model=draft,
        verbose=False,
    )
    return PromptLookup(
        llama, draft, sampler_options(sampling, llama_cpp.LogitsProcessorList), ends
    )
