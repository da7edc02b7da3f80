"""A verifier and its drafter as one thing that generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import Literal
from weakref import WeakValueDictionary

from specx.codec import MOST_GAMMA
from specx.core.accept import find_rule
from specx.core.sampling import LogitsReader, SamplingParams
from specx.core.streams import MOST_SEED, Streams
from specx.drafters.base import Drafter, ModelDrafter
from specx.drafters.lookup import LookupDrafter
from specx.errors import BackendError, UsageError, whole_number
from specx.runtime.backend import LogitsBackend
from specx.runtime.uncached import Uncached
from specx.runtime.vocabulary import drafter_mask, readable, verifier_mask
from specx.schedule import Auto, Costs, EarlyStop, Fixed, Schedule, table_profile
from specx.schedule.costs.curve import Profile
from specx.session.decoding import Round, Stop, autoregress, prefill, speculate

__all__ = ["DRAFTERS", "Pair", "Settings"]

DRAFTERS = ("model", "lookup")

PREFILL_SLICE = 256


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides a generation, besides the models and the prompt."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    gamma: int | Literal["auto"] = 4
    """Tokens to propose in a round, or ``auto`` to choose each round what pays most."""
    rule: str = "block"
    seed: int = 0
    draft: tuple[str, ...] | None = None
    """Who proposes, of `DRAFTERS`; None for the model where there is one. A fixed gamma takes one
    drafter, auto chooses between several."""
    draft_sampling: SamplingParams | None = None
    """What the drafter's draws are made with; None for the same as the verifier's."""
    entropy_stop: float | None = None
    draft_p_min: float | None = None
    """See `specx.schedule.EarlyStop`."""

    def __post_init__(self) -> None:
        _check_types(self)
        find_rule(self.rule)
        _check_drafters(self)


class Pair:
    """A verifier and, where there is one, a drafter that speaks its vocabulary.

    Raises
    ------
    VocabularyError
        If the two do not share a vocabulary.
    BackendError
        If a model cannot forget, which every round asks of both.
    UsageError
        If one loaded model is to be both.
    """

    def __init__(self, verifier: LogitsBackend, drafter: LogitsBackend | None = None) -> None:
        if drafter is not None and _loaded(verifier) is _loaded(drafter):
            raise UsageError(
                f"{verifier.name} is both verifier and drafter, and has one cache; load it twice"
            )
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
    ) -> list[float]:
        """Feed a prompt to both models, all but its last token; the seconds that each took.

        Parameters
        ----------
        size
            Tokens fed between two reports, and the longest wait of a Ctrl-C.
        report
            Called with the number of tokens that the model being fed holds.

        Raises
        ------
        UsageError
            If the verifier lacks one of `tokens`.
        ContextError
            If a context cannot hold them.
        """
        _check_tokens(tokens, self.verifier)
        seconds = []
        with self._owned():
            for model in self.models:
                fed = tokens if model is self.verifier else readable(tokens, model.n_vocab)
                begun = model.clock()
                prefill(model, fed, size, report)
                seconds.append(model.clock() - begun)
        return seconds

    def rounds(
        self,
        tokens: list[int],
        settings: Settings,
        stop: Stop,
        schedule: Schedule | None = None,
        *,
        keep_logits: bool = False,
    ) -> Iterator[Round]:
        """Generate after `tokens`, which grows in place: one `Round` a verifier pass.

        Parameters
        ----------
        schedule
            By default the one that `settings` ask for; see there.
        keep_logits
            Leaves each distribution of a round the logits it was made of, as a trace wants them; a
            round then holds up to 2 g + 1 rows of the vocabulary's size.

        Raises
        ------
        UsageError
            If `tokens` is not a list, is empty, or holds what is not an id of the verifier.
        BackendError
            If one of the models is already generating: now, or where the first round is asked for.
            An iterator that is exhausted, closed or collected no longer counts.
        """
        if not isinstance(tokens, list):
            raise UsageError(
                f"tokens is of type {type(tokens).__name__}; give a list, which grows in place"
            )
        _check_tokens(tokens, self.verifier)
        rounds = self._rounds(tokens, settings, stop, schedule, keep_logits)
        return self._owning(rounds)

    def _rounds(
        self,
        tokens: list[int],
        settings: Settings,
        stop: Stop,
        schedule: Schedule | None,
        keep_logits: bool,
    ) -> Iterator[Round]:
        reader = self.reader(settings.sampling, keep_logits=keep_logits)
        streams = Streams(settings.seed)
        drafters = self.drafters(settings, keep_logits=keep_logits, eog_ids=stop.eog_ids)
        if not drafters:
            return autoregress(self.verifier, tokens, reader=reader, streams=streams, stop=stop)
        return speculate(
            self.verifier,
            drafters,
            tokens,
            reader=reader,
            rule=find_rule(settings.rule),
            schedule=schedule or self.schedule(settings),
            streams=streams,
            stop=stop,
        )

    def _owning(self, rounds: Iterator[Round]) -> Iterator[Round]:
        with self._owned():
            yield from rounds

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """The models are this generation's alone: two would mix their texts in one cache."""
        owner = _Owner()
        try:
            for model in self.models:
                _own(model, owner)
            yield
        finally:
            for model in self.models:
                _disown(model, owner)

    def drafters(
        self,
        settings: Settings,
        *,
        keep_logits: bool = False,
        eog_ids: frozenset[int] | None = None,
    ) -> list[Drafter]:
        """Those that `settings` name, in that order; none without a drafter.

        Parameters
        ----------
        eog_ids
            Tokens after which they draft no further; by default those that end a text.
        """
        names = settings.draft
        if names is None:
            names = () if self.drafter is None else ("model",)
        ends = self.verifier.tokenizer.eog_ids if eog_ids is None else eog_ids
        return [self._drafter(name, settings, keep_logits, ends) for name in names]

    def _drafter(
        self, name: str, settings: Settings, keep_logits: bool, eog_ids: frozenset[int]
    ) -> Drafter:
        if name == "lookup":
            _require_rollback(self.verifier)
            return LookupDrafter(self._masked.tolist(), eog_ids)
        if self.drafter is None:
            raise UsageError("drafting with a model needs one; add a drafter, or draft by lookup")
        sampling = settings.draft_sampling or settings.sampling
        reader = LogitsReader(self.drafter.name, sampling, self._masked_draft, keep_logits)
        return ModelDrafter(self.drafter, reader, eog_ids)

    def schedule(self, settings: Settings, costs: Costs | None = None) -> Schedule:
        """What decides how far to draft; `costs` are for ``gamma="auto"``, by default a table's."""
        gamma = settings.gamma
        chosen: Schedule = Auto(costs or self.costs()) if gamma == "auto" else Fixed(gamma)
        if settings.entropy_stop is None and settings.draft_p_min is None:
            return chosen
        return EarlyStop(chosen, entropy=settings.entropy_stop, p_min=settings.draft_p_min)

    def costs(self, profile: Profile | None = None, *, live: bool = False) -> Costs:
        """What rounds of this pair cost.

        Parameters
        ----------
        profile
            Measured; by default a shipped table by quantisation.
        live
            Whether to learn from the run's own times. The text then depends on the machine (its law
            does not); without, a seed repeats.
        """
        if profile is None:
            return Costs(table_profile(self.verifier, self.drafter), "table", live=live)
        if self.drafter is not None and profile.drafter is None:
            raise UsageError("the profile holds no drafter's curve; measure it with the drafter")
        return Costs(profile, "profile", live=live)

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


NoneType = type(None)
TYPES: dict[str, tuple[type, ...]] = {
    "sampling": (SamplingParams,),
    "rule": (str,),
    "draft": (tuple, NoneType),
    "draft_sampling": (SamplingParams, NoneType),
    "entropy_stop": (float, int, NoneType),
    "draft_p_min": (float, int, NoneType),
}
"""What the fields of `Settings` may be, those apart that are whole numbers."""


def _check_types(settings: Settings) -> None:
    if not isinstance(settings.gamma, str):
        whole_number("gamma", settings.gamma, 0, MOST_GAMMA)
    elif settings.gamma != "auto":
        raise UsageError(f"gamma is {settings.gamma!r}; give a whole number or 'auto'")
    whole_number("seed", settings.seed, 0, MOST_SEED)
    for name, kinds in TYPES.items():
        value = getattr(settings, name)
        if not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise UsageError(f"{name} is {value!r}; it must be of type {names}")


class _Owner:
    """A generation under way; to forget it is to release its models."""


_OWNERS: WeakValueDictionary[int, _Owner] = WeakValueDictionary()
"""By the id of a loaded model. Weak, so that none stays locked where Ctrl-C kept a block from its
end."""
_LOCK = Lock()


def _own(model: LogitsBackend, owner: _Owner) -> None:
    with _LOCK:
        if _OWNERS.setdefault(id(_loaded(model)), owner) is not owner:
            raise BackendError(
                f"{model.name} is in use by another generation, and has one cache; finish or close "
                "that one first, or load the model again"
            )


def _disown(model: LogitsBackend, owner: _Owner) -> None:
    with _LOCK:
        if _OWNERS.get(id(_loaded(model))) is owner:
            del _OWNERS[id(_loaded(model))]


def _loaded(model: LogitsBackend) -> object:
    """The model itself, within what wraps it."""
    return model.wrapped if isinstance(model, Uncached) else model


def _check_tokens(tokens: Sequence[int], verifier: LogitsBackend) -> None:
    """Raise UsageError for what no text of `verifier` can begin with."""
    if len(tokens) == 0:
        raise UsageError("tokens is empty; a text begins with one token at least, such as BOS")
    for place, token in enumerate(tokens):
        whole_number(f"tokens[{place}]", token, 0, verifier.n_vocab - 1)


def _check_drafters(settings: Settings) -> None:
    names = settings.draft
    if names is None:
        return
    unknown = [name for name in names if name not in DRAFTERS]
    if unknown or not names or len(set(names)) < len(names):
        raise UsageError(
            f"draft is '{','.join(names)}'; give {' or '.join(DRAFTERS)}, or both with a comma"
        )
    if len(names) > 1 and settings.gamma != "auto":
        raise UsageError(
            f"a fixed gamma takes one drafter, and draft is '{','.join(names)}'; leave --gamma out "
            "to choose between them each round"
        )


def _require_rollback(*models: LogitsBackend) -> None:
    for model in models:
        if model.rollback == "none":
            raise BackendError(
                f"{model.name} cannot forget tokens, which speculation needs; "
                "leave the drafter out (no -md, or run --no-draft)"
            )
