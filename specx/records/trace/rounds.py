"""From a round of the loop to a line of a trace, and its decision made again from that line."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specx.core.rules import Rule
from specx.core.sampling import Distribution, SamplingParams
from specx.records.trace.records import (
    DraftToken,
    Emitted,
    LastToken,
    Origin,
    RoundRecord,
    Uncertainty,
)
from specx.records.trace.uncertainty import uncertainty
from specx.runtime.backend import Tokenizer
from specx.session.decoding import Round

__all__ = ["overlap", "record_round", "replayed_acceptance", "token_label"]


def record_round(
    done: Round,
    *,
    index: int,
    params: SamplingParams,
    tokenizer: Tokenizer,
    gamma: int | str,
) -> RoundRecord:
    """The round as a trace keeps it.

    Parameters
    ----------
    done
        From `Pair.rounds` with ``keep_logits=True``, or its entropies are left out.
    params, gamma
        The loop's.
    """
    proposed = len(done.draft.ids)
    return RoundRecord(
        index=index,
        position=done.length,
        gamma=proposed,
        reason=_reason(done, gamma),
        drafter=done.drafter or None,
        draft=list(_draft_tokens(done, params, tokenizer)),
        expected=done.expected,
        n_accepted=done.verdict.n_accepted,
        last=_last_token(done, params, tokenizer),
        emitted=[
            Emitted(id=token, piece=piece, origin=_origin(done, place))
            for place, (token, piece) in enumerate(zip(done.emitted, done.pieces, strict=True))
        ],
        times=done.times,
    )


def replayed_acceptance(done: RoundRecord, rule: type[Rule]) -> int:
    """How many drafted tokens `rule` keeps by the chances and uniforms of the round's line."""
    passed = [token.uniform < token.chance for token in done.draft]
    return rule.count(np.array(passed, dtype=bool))


def overlap(target: Distribution, draft: Distribution) -> float:
    """sum_x min(P, Q): the chance that rule token accepts a draft."""
    return float(np.minimum(target.probs, draft.over(target)).sum())


def token_label(tokenizer: Tokenizer, token: int) -> str:
    """A token's text, with escapes for bytes that are no text, or its control name."""
    data = tokenizer.token_bytes(token)
    return data.decode("utf-8", errors="backslashreplace") if data else tokenizer.token_text(token)


def _draft_tokens(
    done: Round, params: SamplingParams, tokenizer: Tokenizer
) -> Iterator[DraftToken]:
    if done.judged is None:  # plain decoding
        return
    judged, block, n_accepted = done.judged, done.judged.block, done.verdict.n_accepted
    for i, token in enumerate(block.tokens):
        yield DraftToken(
            id=token,
            text=token_label(tokenizer, token),
            target_prob=float(block.target_probs[i]),
            draft_prob=float(block.draft_probs[i]),
            reach=float(judged.survival[i]),
            chance=float(judged.chances[i]),
            uniform=float(done.uniforms[i]),
            tested=i <= n_accepted,
            accepted=i < n_accepted,
            overlap=overlap(block.target[i], block.draft[i]),
            target=_measured(block.target[i], params),
            draft=_measured(block.draft[i], params),
        )


def _last_token(done: Round, params: SamplingParams, tokenizer: Tokenizer) -> LastToken:
    n, token = done.verdict.n_accepted, done.verdict.token
    replaced = n < len(done.draft.ids)
    return LastToken(
        id=token,
        text=token_label(tokenizer, token),
        origin=_origin(done, n),
        target_prob=float(done.target[n].prob(token)),
        draft_prob=float(done.draft.distributions[n].prob(token)) if replaced else None,
        uniform=float(done.emitting),
        target=_measured(done.target[n], params),
    )


def _measured(chances: Distribution, params: SamplingParams) -> Uncertainty | None:
    return None if chances.logits is None else uncertainty(chances.logits, params)


def _origin(done: Round, place: int) -> Origin:
    if place < done.verdict.n_accepted:
        return "accepted"
    if not done.draft.ids:
        return "plain"
    return "bonus" if done.verdict.n_accepted == len(done.draft.ids) else "correction"


def _reason(done: Round, gamma: int | str) -> str:
    """The schedule's reason for the length of the draft, unless the draft ended by itself."""
    if not done.drafter:
        return "no drafter"
    if len(done.draft.ids) == gamma:
        return done.reason
    return done.draft.ended or done.reason
