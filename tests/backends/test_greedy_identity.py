"""Greedy text with a drafter equals plain greedy text, token for token, on real models.

A difference is accepted only where the verifier's two best logits lie closer than twice what its
own kernels differ between a batch and single rows; each one is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specx import LoadOptions, LogitsBackend, Pair, SamplingParams, Settings, Stop, get_backend
from specx.audit import batch_deviation, fresh_logits, top_two_gap
from specx.chat import encode_chat

PROMPTS = [
    "Explain photosynthesis.",
    "Write a Python function that reverses a linked list.",
    "Why is the sky blue?",
    "List the planets of the solar system with one fact each.",
    "Translate 'good morning, my friend' into French, German and Spanish.",
    "What is 17 times 23? Show your work.",
    "Write a short story about a lighthouse keeper.",
    "Give me a JSON object with the fields name, age and city.",
    "Is it better to rent or to buy a home?",
    "def quicksort(items):",
    "Summarise how a refrigerator works.",
    "Write a SQL query that counts orders per customer.",
    "What are the causes of the First World War?",
    "Write a haiku about rivers 🌊.",
    "How do I undo the last commit in git?",
    "Compare TCP and UDP.",
    "Write an e-mail that declines an invitation politely.",
    "Explain recursion to a child.",
    "Write a regular expression that matches an ISO date.",
    "Who was Ada Lovelace?",
]
N_TOKENS, GAMMA = 128, 4


class Noisy:
    """A model whose logits are disturbed, so that a drafter is often wrong."""

    def __init__(self, model: LogitsBackend) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        rows = self.model.forward(tokens, n_logits)
        rng = np.random.default_rng(self.model.n_past)
        return rows + rng.normal(0, 1.5, rows.shape).astype(np.float32)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def load(stack: ExitStack, path: Path, backend: str = "llamacpp") -> LogitsBackend:
    return stack.enter_context(get_backend(backend).load(str(path), LoadOptions(n_ctx=1024)))


def encode(model: LogitsBackend, prompt: str) -> list[int]:
    if model.tokenizer.chat_template is None:
        return model.tokenizer.encode(prompt, add_special=True, parse_special=False)
    return encode_chat(model.tokenizer, [{"role": "user", "content": prompt}])


def write(pair: Pair, prompt: list[int]) -> tuple[list[int], int]:
    """Greedy tokens after `prompt`, and how many drafted tokens were rejected."""
    for model in pair.models:
        model.truncate(0)
    tokens, rejected = list(prompt), 0
    pair.prefill(tokens)
    settings = Settings(sampling=SamplingParams(temperature=0), gamma=GAMMA)
    for done in pair.rounds(tokens, settings, Stop(pair.verifier.tokenizer, N_TOKENS)):
        rejected += done.verdict.n_accepted < len(done.draft.ids)
    return tokens[len(prompt) :], rejected


def assert_identical(verifier: LogitsBackend, drafter: LogitsBackend, *, rejections: bool) -> None:
    plain, pair = Pair(verifier), Pair(verifier, drafter)
    text = encode(verifier, " ".join(PROMPTS))
    allowed = 2 * batch_deviation(verifier, text, GAMMA + 1).largest
    print(f"\n{verifier.name}: a gap up to {allowed:.4f} may turn")
    rejected = 0
    for prompt in PROMPTS:
        tokens = encode(verifier, prompt)
        expected, (found, wrong) = write(plain, tokens)[0], write(pair, tokens)
        rejected += wrong
        if found != expected:
            assert_near_tie(verifier, tokens, expected, found, allowed)
    assert (rejected > 0) == rejections


def assert_near_tie(
    verifier: LogitsBackend, prompt: list[int], one: list[int], other: list[int], allowed: float
) -> None:
    pairs = zip(one, other, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    gap = top_two_gap(fresh_logits(verifier, prompt + one[:place])[0])
    print(f"differs at token {place} of the text, where the gap is {gap:.4f}")
    assert gap <= allowed


@pytest.mark.parametrize("noisy", [False, True])
def test_smollm2(stack: ExitStack, smollm2: Path, noisy: bool) -> None:
    verifier, drafter = load(stack, smollm2), load(stack, smollm2)
    assert_identical(verifier, Noisy(drafter) if noisy else drafter, rejections=noisy)


@pytest.mark.parametrize("quantisation", ["q4_k_m", "f16"])
def test_qwen(
    stack: ExitStack, request: pytest.FixtureRequest, qwen05: Path, quantisation: str
) -> None:
    name = "qwen15" if quantisation == "q4_k_m" else "qwen15_f16"
    verifier = load(stack, request.getfixturevalue(name))
    assert_identical(verifier, load(stack, qwen05), rejections=True)
