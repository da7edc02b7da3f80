"""A verifier and its drafter as one thing that generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from specx.accept import find_rule
from specx.backend import LogitsBackend
from specx.decoding import Round, Stop, autoregress, prefill, speculate
from specx.drafting import ModelDrafter
from specx.errors import BackendError, UsageError
from specx.sampling import LogitsReader, SamplingParams
from specx.streams import Streams
from specx.vocabulary import drafter_mask, readable, verifier_mask

__all__ = ["Pair", "Settings"]

PREFILL_SLICE = 256


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides a generation, besides the models and the prompt."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    gamma: int = 4
    rule: str = "block"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise UsageError(f"gamma is {self.gamma}; it must be 0 (no drafting) or more")
        find_rule(self.rule)


class Pair:
    """A verifier and, where there is one, a drafter that speaks its vocabulary.

    Raises
    ------
    VocabularyError
        If the two do not share a vocabulary.
    BackendError
        If a model cannot forget, which every round asks of both.
    """

    def __init__(self, verifier: LogitsBackend, drafter: LogitsBackend | None = None) -> None:
        self.verifier = verifier
        self.drafter = drafter
        self._masked = verifier_mask(verifier)
        if drafter is not None:
            _require_rollback(verifier, drafter)
            self._masked_draft = drafter_mask(verifier, drafter)

    @property
    def models(self) -> list[LogitsBackend]:
        """The loaded models, the verifier first."""
        return [self.verifier] if self.drafter is None else [self.verifier, self.drafter]

    def reader(self, params: SamplingParams, *, keep_logits: bool = False) -> LogitsReader:
        """Reads the verifier's logits."""
        return LogitsReader(self.verifier.name, params, self._masked, keep_logits)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        size: int = PREFILL_SLICE,
        report: Callable[[int], None] = lambda fed: None,
    ) -> None:
        """Feed a prompt to both models, all but its last token.

        Parameters
        ----------
        size
            Tokens fed between two reports, and the longest wait of a Ctrl-C.
        report
            Called with the number of tokens that the model being fed holds.
        """
        for model in self.models:
            prefill(model, readable(tokens, model.n_vocab), size, report)

    def rounds(
        self, tokens: list[int], settings: Settings, stop: Stop, *, keep_logits: bool = False
    ) -> Iterator[Round]:
        """Generate after `tokens`, which grows in place: one `Round` a verifier pass.

        `keep_logits` leaves each distribution of a round the logits it was made of, as a trace
        wants them; a round then holds up to 2 g + 1 rows of the vocabulary's size.
        """
        reader = self.reader(settings.sampling, keep_logits=keep_logits)
        streams = Streams(settings.seed)
        if self.drafter is None:
            return autoregress(self.verifier, tokens, reader=reader, streams=streams, stop=stop)
        draft_reader = LogitsReader(
            self.drafter.name, settings.sampling, self._masked_draft, keep_logits
        )
        return speculate(
            self.verifier,
            ModelDrafter(self.drafter, draft_reader, self.verifier.tokenizer.eog_ids),
            tokens,
            reader=reader,
            rule=find_rule(settings.rule),
            gamma=settings.gamma,
            streams=streams,
            stop=stop,
        )

    def close(self) -> None:
        """Free both models."""
        for model in self.models:
            model.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _require_rollback(*models: LogitsBackend) -> None:
    for model in models:
        if model.rollback == "none":
            raise BackendError(
                f"{model.name} cannot forget tokens, which speculation needs; "
                "leave the drafter out (no -md, or run --no-draft)"
            )
