"""The settings of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from specx.codec import MOST_GAMMA
from specx.core.accept import find_rule
from specx.core.sampling import SamplingParams
from specx.core.streams import MOST_SEED
from specx.drafters import installed_drafters
from specx.errors import UsageError, whole_number

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that, with the models and the prompt, determine a generation."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    gamma: int | Literal["auto"] = 4
    """Tokens to draft per round, or ``auto`` to pick the fastest number each round."""
    rule: str = "block"
    seed: int = 0
    draft: tuple[str, ...] | None = None
    """Names of the drafters that propose (`specx.drafters`); None for the model if there is one.
    A fixed gamma takes one drafter, auto chooses between several."""
    draft_sampling: SamplingParams | None = None
    """The sampler of the drafter's own draws; None for the verifier's."""
    entropy_stop: float | None = None
    draft_p_min: float | None = None
    """See `specx.schedule.EarlyStop`."""

    def __post_init__(self) -> None:
        _check_types(self)
        find_rule(self.rule)
        _check_drafters(self)


NoneType = type(None)
TYPES: dict[str, tuple[type, ...]] = {
    "sampling": (SamplingParams,),
    "rule": (str,),
    "draft": (tuple, NoneType),
    "draft_sampling": (SamplingParams, NoneType),
    "entropy_stop": (float, int, NoneType),
    "draft_p_min": (float, int, NoneType),
}
"""Types of the fields of `Settings` that are not whole numbers."""


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


def _check_drafters(settings: Settings) -> None:
    names = settings.draft
    if names is None:
        return
    known = installed_drafters()
    if not names or not set(names) <= set(known) or len(set(names)) < len(names):
        raise UsageError(
            f"draft is '{','.join(names)}'; give {' or '.join(known)}, or several with commas"
        )
    if len(names) > 1 and settings.gamma != "auto":
        raise UsageError(
            f"a fixed gamma takes one drafter, and draft is '{','.join(names)}'; leave --gamma out "
            "to choose between them each round"
        )
