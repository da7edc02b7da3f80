"""A verifier and its drafter: loaded models that fit together."""

from __future__ import annotations

from functools import cached_property

from specx.closing import Closing
from specx.core.sampling import LogitsReader, SamplingParams
from specx.drafters.base import Models
from specx.errors import BackendError, UsageError
from specx.runtime.backend import LogitsBackend
from specx.runtime.uncached import unwrapped
from specx.runtime.vocabulary import drafter_mask, verifier_mask
from specx.schedule import Costs, table_profile
from specx.schedule.costs.curve import Profile
from specx.schedule.costs.saved import SavedCosts, find_saved
from specx.session.settings import Settings

__all__ = ["Pair"]


class Pair(Closing):
    """A verifier and, optionally, a drafter that shares its vocabulary.

    Raises
    ------
    VocabularyError
        If the two do not share a vocabulary.
    BackendError
        If a model cannot forget tokens, as every round needs.
    UsageError
        If one loaded model is given as both.
    """

    def __init__(self, verifier: LogitsBackend, drafter: LogitsBackend | None = None) -> None:
        if drafter is not None and unwrapped(verifier) is unwrapped(drafter):
            raise UsageError(
                f"{verifier.name} is both verifier and drafter, and has one cache; load it twice"
            )
        self.verifier = verifier
        self.drafter = drafter
        self._masked = self._masked_draft = verifier_mask(verifier)
        if drafter is not None:
            _require_rollback(verifier, drafter)
            self._masked_draft = drafter_mask(verifier, drafter)

    @property
    def models(self) -> list[LogitsBackend]:
        """The loaded models, the verifier first."""
        return [self.verifier] if self.drafter is None else [self.verifier, self.drafter]

    def reader(self, params: SamplingParams, *, keep_logits: bool = False) -> LogitsReader:
        """A reader of the verifier's logits."""
        return LogitsReader(self.verifier.name, params, self._masked, keep_logits)

    @property
    def parts(self) -> Models:
        """The models and masks that drafters are built from."""
        saved = None if self.drafter is None else self.saved_costs
        acceptance = () if saved is None else saved.acceptance_by_position
        return Models(self.verifier, self.drafter, self._masked, self._masked_draft, acceptance)

    def draft_names(self, settings: Settings) -> tuple[str, ...]:
        """Names of the drafters in `settings`; by default the model's, if there is one.

        Raises
        ------
        BackendError
            If the verifier cannot forget tokens, as every round with a draft needs.
        """
        names = settings.draft
        if names is None:
            names = () if self.drafter is None else ("model",)
        if names:
            _require_rollback(self.verifier)
        return names

    @cached_property
    def saved_costs(self) -> SavedCosts | None:
        """What `specx tune` measured and saved for this pair; looked for once.

        Models run without a cache have other costs, and use none.
        """
        if any(unwrapped(model) is not model for model in self.models):
            return None
        return find_saved(self.verifier, self.drafter)

    @property
    def costs_by(self) -> str:
        """Where `costs` come from, in words."""
        saved = self.saved_costs
        if saved is None:
            return "the shipped table"
        return f"profile {saved.id} ({saved.made[:10]})"

    def costs(
        self, profile: Profile | None = None, *, live: bool = False, n_past: int = 0
    ) -> Costs:
        """The costs of this pair's rounds.

        Parameters
        ----------
        profile
            Measured; by default what `specx tune` saved, or else a shipped table by quantisation.
        live
            True to learn from the run's own times. The text then depends on the machine (its
            distribution does not); otherwise a seed reproduces it.
        n_past
            Tokens of the text, which saved costs depend on.
        """
        if profile is None:
            if self.saved_costs is not None:
                return Costs(self.saved_costs.at(n_past), "profile", live=live)
            return Costs(table_profile(self.verifier, self.drafter), "table", live=live)
        if self.drafter is not None and profile.drafter is None:
            raise UsageError(
                "the profile has no curve for the drafter; measure it with the drafter"
            )
        return Costs(profile, "profile", live=live)

    def close(self) -> None:
        """Free both models."""
        for model in self.models:
            model.close()


def _require_rollback(*models: LogitsBackend) -> None:
    for model in models:
        if model.rollback == "none":
            raise BackendError(
                f"{model.name} cannot forget tokens, which speculation needs; "
                "leave the drafter out (no -md, or run --no-draft)"
            )
