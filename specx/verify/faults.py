"""Known faults of speculative decoders, planted on purpose to prove that the checks find them.

Each is planted through a public interface: the rule, the reader of logits, the drafter, the random
streams, or the model. They are taken from public implementations and papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specx.core.rules import RULES, Rule, residual
from specx.core.sampling import Distribution, LogitsReader, SamplingParams
from specx.core.streams import Streams
from specx.drafters.base import Draft, GoOn
from specx.drafters.model import ModelDrafter
from specx.runtime.backend import LogitsBackend

__all__ = ["FAULTS", "Fault"]


class Fault:
    """A change to one part of a decoder; the base class changes nothing."""

    name = "none"
    summary = "nothing is wrong"
    rules = tuple(RULES)
    """The rules it can be planted in."""

    def rule(self, rule: type[Rule]) -> type[Rule]:
        """The rule in use, or a faulty replacement."""
        return rule

    def reader(self, reader: LogitsReader) -> LogitsReader:
        """The reader of the verifier's logits."""
        return reader

    def drafter(self, drafter: ModelDrafter) -> ModelDrafter:
        """The drafter in use."""
        return drafter

    def streams(self, streams: Streams) -> Streams:
        """The random numbers."""
        return streams

    def verifier(self, model: LogitsBackend) -> LogitsBackend:
        """The model that verifies."""
        return model


class OtherResidual(Fault):
    """A fault in the distribution from which the token after a rejection is drawn."""

    def rule(self, rule: type[Rule]) -> type[Rule]:
        def after(judged: Rule, n: int) -> Distribution:
            block = judged.block
            left: Distribution = self.left(
                block.target[n], block.draft[n], block.tokens[n], judged.scale(n)
            )
            return left

        faulty: type[Rule] = type(rule.__name__, (rule,), {"after": after})
        return faulty

    def left(self, target: Distribution, draft: Distribution, token: int, scale: Any) -> Any:
        """The faulty distribution; `scale` is the factor of `target` in the sound residual."""
        raise NotImplementedError


class OneHotResidual(OtherResidual):
    name = "one-hot-residual"
    summary = "after a rejection, only the drafted token's own mass is subtracted"

    def left(self, target: Distribution, draft: Distribution, token: int, scale: Any) -> Any:
        only = np.array([token])
        return residual(target, Distribution(draft.at(only), only), scale)


class SoftmaxResidual(OtherResidual):
    name = "softmax-residual"
    summary = "the residual is put through a softmax instead of being normalised"

    def left(self, target: Distribution, draft: Distribution, token: int, scale: Any) -> Any:
        weights = np.exp(residual(target, draft, scale).probs.astype(np.float64))
        return Distribution(weights / weights.sum(), target.ids)


class ResidualByPlace(OtherResidual):
    name = "residual-by-place"
    summary = "the residual subtracts entry from entry where the filters left different tokens"

    def left(self, target: Distribution, draft: Distribution, token: int, scale: Any) -> Any:
        probs = np.zeros(len(target.probs), dtype=draft.probs.dtype)
        size = min(len(probs), len(draft.probs))
        probs[:size] = draft.probs[:size]
        return residual(target, Distribution(probs, target.ids), scale)


class BlockWithTokenResidual(OtherResidual):
    name = "block-with-token-residual"
    summary = "block's acceptance with token's residual"
    rules = ("block",)

    def left(self, target: Distribution, draft: Distribution, token: int, scale: Any) -> Any:
        return residual(target, draft)


class _OtherQ(ModelDrafter):
    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        draft = super().propose(tokens, limit, random, go_on, hindsight)
        draft.distributions = [_sharpened(chances) for chances in draft.distributions]
        return draft


def _sharpened(chances: Distribution) -> Distribution:
    weights = np.asarray(chances.probs, dtype=np.float64) ** 2
    return Distribution(weights / weights.sum(), chances.ids)


class OtherDraftSettings(Fault):
    name = "other-draft-settings"
    summary = "Q is recomputed at another temperature than the draft was drawn at"

    def drafter(self, drafter: ModelDrafter) -> ModelDrafter:
        return _OtherQ(drafter.model, drafter.reader, drafter.eog_ids)


class _GreedyDrafter(ModelDrafter):
    def draw(self, chances: Distribution, random: np.random.Generator) -> int:
        place = int(np.argmax(chances.probs))
        return place if chances.ids is None else int(chances.ids[place])


class GreedyDraft(Fault):
    name = "greedy-draft"
    summary = "the draft is taken greedily, and judged as if it had been drawn from Q"

    def drafter(self, drafter: ModelDrafter) -> ModelDrafter:
        return _GreedyDrafter(drafter.model, drafter.reader, drafter.eog_ids)


class _CroppingDrafter(ModelDrafter):
    """A drafter that crops its draft before the first token that `unwanted` selects."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        random: np.random.Generator,
        go_on: GoOn | None = None,
        hindsight: int = 0,
    ) -> Draft:
        draft = super().propose(tokens, limit, random, go_on, hindsight)
        pairs = enumerate(zip(draft.ids, draft.distributions, strict=True))
        size = next((i for i, pair in pairs if self.unwanted(*pair)), len(draft.ids))
        return Draft(draft.ids[:size], draft.distributions[:size], draft.core_seconds)

    def unwanted(self, token: int, chances: Distribution) -> bool:
        raise NotImplementedError


class _RareDropper(_CroppingDrafter):
    def unwanted(self, token: int, chances: Distribution) -> bool:
        return bool(chances.prob(token) < 0.5 * chances.probs.max())


class DropAfterDraw(Fault):
    name = "drop-after-draw"
    summary = "a drafted token is dropped because its own probability turned out low"

    def drafter(self, drafter: ModelDrafter) -> ModelDrafter:
        return _RareDropper(drafter.model, drafter.reader, drafter.eog_ids)


class _EndDropper(_CroppingDrafter):
    def unwanted(self, token: int, chances: Distribution) -> bool:
        return token in self.eog_ids


class CropBeforeEnd(Fault):
    name = "crop-before-end"
    summary = "the draft is cropped before its end token"

    def drafter(self, drafter: ModelDrafter) -> ModelDrafter:
        return _EndDropper(drafter.model, drafter.reader, drafter.eog_ids)


class _WarmBonusReader(LogitsReader):
    def read(self, rows: NDArray[np.float32], position: int) -> list[Distribution]:
        if len(rows) == 1:  # nothing was drafted, so there is no bonus token
            return super().read(rows, position)
        warm = SamplingParams(temperature=2 * self.params.temperature, top_p=1)
        last = LogitsReader(self.model, warm, self.masked).read(rows[-1:], position)
        return [*super().read(rows[:-1], position), *last]


class WarmBonus(Fault):
    name = "warm-bonus"
    summary = "the bonus token is drawn at another temperature and without the filters"

    def reader(self, reader: LogitsReader) -> LogitsReader:
        return _WarmBonusReader(reader.model, reader.params, reader.masked)


class _SharedStreams(Streams):
    def emitting(self, length: int) -> np.random.Generator:
        return self.drafting(length)


class SharedEmitting(Fault):
    name = "shared-residual-randomness"
    summary = "the residual is drawn with the numbers that the draft was drawn with"

    def streams(self, streams: Streams) -> Streams:
        return _SharedStreams(streams.seed)


class _SharedTests(Streams):
    def accepting(self, length: int) -> np.random.Generator:
        return self.drafting(length)


class SharedAccepting(Fault):
    name = "shared-test-randomness"
    summary = "drafted tokens are tested with the numbers they were drawn with"

    def streams(self, streams: Streams) -> Streams:
        return _SharedTests(streams.seed)


class _ByPosition:
    """Uniforms for the tests of one round, each keyed by its position alone."""

    def __init__(self, streams: Streams, length: int) -> None:
        self._streams, self._length = streams, length

    def random(self, size: int) -> NDArray[np.float64]:
        places = range(self._length, self._length + size)
        return np.array([Streams.accepting(self._streams, place).random() for place in places])


class _PositionStreams(Streams):
    def accepting(self, length: int) -> Any:
        return _ByPosition(self, length)


class KeyedByPosition(Fault):
    name = "keyed-by-position"
    summary = "random numbers are keyed by position alone, and met again in the next round"
    rules = ("block",)

    def streams(self, streams: Streams) -> Streams:
        return _PositionStreams(streams.seed)


class _Wrapped:
    """A model that forwards everything to another."""

    def __init__(self, model: LogitsBackend) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class _StaleCache(_Wrapped):
    def __init__(self, model: LogitsBackend) -> None:
        super().__init__(model)
        self._fed: list[int] = []

    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        start = self.model.n_past
        # The entry that should have been forgotten remains and stands in for the first token's.
        stale = self._fed[start : start + 1] or list(tokens[:1])
        fed = [*stale, *tokens[1:]]
        self._fed[start:] = fed
        return self.model.forward(fed, n_logits)


class CacheOneTooLong(Fault):
    name = "cache-one-too-long"
    summary = "the cache keeps a rejected token in the place of its correction"

    def verifier(self, model: LogitsBackend) -> LogitsBackend:
        faulty: Any = _StaleCache(model)
        return faulty  # type: ignore[no-any-return]


class _ShiftedRows(_Wrapped):
    def forward(self, tokens: Sequence[int], n_logits: int = 1) -> NDArray[np.float32]:
        return np.roll(self.model.forward(tokens, n_logits), 1, axis=0)


class ShiftedRows(Fault):
    name = "shifted-rows"
    summary = "the verifier's rows are shifted by one position"

    def verifier(self, model: LogitsBackend) -> LogitsBackend:
        faulty: Any = _ShiftedRows(model)
        return faulty  # type: ignore[no-any-return]


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        OneHotResidual(),
        SoftmaxResidual(),
        OtherDraftSettings(),
        GreedyDraft(),
        ResidualByPlace(),
        DropAfterDraw(),
        BlockWithTokenResidual(),
        WarmBonus(),
        SharedEmitting(),
        SharedAccepting(),
        CacheOneTooLong(),
        ShiftedRows(),
        CropBeforeEnd(),
        KeyedByPosition(),
    )
}
"""The faults by name; `docs/exactness.md` says which check refutes which."""
