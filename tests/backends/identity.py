"""Greedy text of a pair against greedy text of its verifier alone, token for token.

A difference is accepted only where the verifier's two best logits lie closer than twice what its
own kernels differ between a batch and single rows; each one is printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from specx import LogitsBackend, Pair, SamplingParams, Session, Settings, Stop
from specx.core.logits import lead
from specx.session.chat import encode_chat
from specx.verify.audit import batch_deviation

N_TOKENS, GAMMA = 128, 4


def encode(model: LogitsBackend, prompt: str) -> list[int]:
    if model.tokenizer.chat_template is None:
        return model.tokenizer.encode(prompt, add_special=True, parse_special=False)
    return encode_chat(model.tokenizer, [{"role": "user", "content": prompt}])


def write(pair: Pair, prompt: list[int], ignore_eos: bool = False) -> tuple[list[int], int]:
    """Greedy tokens after `prompt`, and how many drafts were rejected in part."""
    rejected = 0
    settings = Settings(sampling=SamplingParams(temperature=0), gamma=GAMMA)
    stop = Stop(pair.verifier.tokenizer, N_TOKENS, ignore_eos=ignore_eos)
    with Session(pair) as session:
        rounds = session.rounds(prompt, settings, stop)
        for done in rounds:
            rejected += done.verdict.n_accepted < len(done.draft.ids)
    return rounds.result.tokens, rejected


def plain_texts(
    verifier: LogitsBackend, prompts: Sequence[str], *, ignore_eos: bool = False
) -> list[list[int]]:
    """What the verifier alone writes after each prompt."""
    return [write(Pair(verifier), encode(verifier, text), ignore_eos)[0] for text in prompts]


def assert_identical(
    verifier: LogitsBackend,
    drafter: LogitsBackend,
    prompts: Sequence[str],
    plain: Sequence[list[int]],
    *,
    rejections: bool,
    ignore_eos: bool = False,
) -> float:
    """With the drafter, the verifier writes `plain` too; drafts are rejected only as said.

    Returns the gap of logits up to which a difference is accepted.
    """
    pair = Pair(verifier, drafter)
    allowed = 2 * batch_deviation(verifier, encode(verifier, " ".join(prompts)), GAMMA + 1).largest
    print(f"\n{verifier.name} with {drafter.name}: a gap up to {allowed:.3g} may turn")
    rejected = 0
    for prompt, expected in zip(prompts, plain, strict=True):
        tokens = encode(verifier, prompt)
        found, wrong = write(pair, tokens, ignore_eos)
        rejected += wrong
        if found != expected:
            assert_near_tie(verifier, tokens, expected, found, allowed)
    assert (rejected > 0) == rejections
    return allowed


def assert_near_tie(
    verifier: LogitsBackend, prompt: list[int], one: list[int], other: list[int], allowed: float
) -> None:
    pairs = zip(one, other, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    verifier.truncate(0)
    gap = lead(verifier.forward(prompt + one[:place])[0])
    print(f"differs at token {place} of the text, where the gap is {gap:.3g}")
    assert gap <= allowed
