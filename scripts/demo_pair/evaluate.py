"""Evaluation of the trained models on text they never saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from demo_pair.corpus import Ids
from demo_pair.model import Llama

AGREEMENT_TEMPERATURES = (0.7, 1.0)


def windows(stream: Ids, context: int, stride: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield inputs, targets and the first position that counts, each target counted once.

    With a stride below the context, every position but the first ones is predicted from at least
    `context - stride` tokens, as it is in the middle of a generation.
    """
    for start in range(0, len(stream) - 1, stride):
        stop = min(start + context, len(stream) - 1)
        inputs = torch.from_numpy(stream[start:stop].copy())
        inputs[0] = int(stream[0])
        first = 0 if start == 0 else context - stride
        if stop - start > first:
            yield inputs[None], torch.from_numpy(stream[start + 1 : stop + 1]), first


@torch.no_grad()
def nats_per_token(model: Llama, stream: Ids, context: int) -> float:
    """Mean negative log-likelihood of the stream, cut into windows, in nats per token."""
    total = sum(
        float(functional.cross_entropy(model(inputs)[0].float(), targets, reduction="sum"))
        for inputs, targets, _ in windows(stream, context, context)
    )
    return total / (len(stream) - 1)


@dataclass(frozen=True)
class Scores:
    """Nats per token by role, and agreement by temperature."""

    nats: dict[str, float]
    agreement: dict[str, float]


@torch.no_grad()
def score(verifier: Llama, drafter: Llama, stream: Ids, context: int, stride: int) -> Scores:
    """Score both models in one pass over the stream, each token counted once.

    Agreement is the mean over positions of sum_x min(draft(x), target(x)): the chance that a
    drafted token is accepted under the rule `token` (Leviathan et al. 2023, corollary 3.6), on
    held-out text in the place of generated text.
    """
    nats = {"verifier": 0.0, "drafter": 0.0}
    common = dict.fromkeys(AGREEMENT_TEMPERATURES, 0.0)
    for inputs, targets, first in windows(stream, context, stride):
        target, draft = (model(inputs)[0, first:].float() for model in (verifier, drafter))
        for name, logits in (("verifier", target), ("drafter", draft)):
            lost = functional.cross_entropy(logits, targets[first:], reduction="sum")
            nats[name] += float(lost)
        for temperature in common:
            probabilities = ((x / temperature).softmax(-1) for x in (target, draft))
            common[temperature] += float(torch.minimum(*probabilities).sum())
    count = len(stream) - 1
    return Scores(
        {name: total / count for name, total in nats.items()},
        {str(temperature): round(total / count, 4) for temperature, total in common.items()},
    )
