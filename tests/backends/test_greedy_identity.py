"""Greedy text with a drafter equals plain greedy text, token for token, on real models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from identity import assert_identical, plain_texts
from numpy.typing import NDArray

from specx import LoadOptions, LogitsBackend, get_backend

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


def test_smollm2(stack: ExitStack, smollm2: Path) -> None:
    """With few prompts, for time: all of them go through larger models, where those are."""
    verifier, drafter = load(stack, smollm2), load(stack, smollm2)
    prompts = PROMPTS[::5]
    plain = plain_texts(verifier, prompts)
    assert_identical(verifier, drafter, prompts, plain, rejections=False)
    assert_identical(verifier, Noisy(drafter), prompts, plain, rejections=True)


@pytest.mark.parametrize("quantisation", ["q4_k_m", "f16"])
def test_qwen(
    stack: ExitStack, request: pytest.FixtureRequest, qwen05: Path, quantisation: str
) -> None:
    name = "qwen15" if quantisation == "q4_k_m" else "qwen15_f16"
    verifier = load(stack, request.getfixturevalue(name))
    drafter, plain = load(stack, qwen05), plain_texts(verifier, PROMPTS)
    assert_identical(verifier, drafter, PROMPTS, plain, rejections=True)
