"""Options of `specx run` for drafting: the drafters, the draft length, and the costs for auto."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from specx.cli.files import InputFile, OutputPath
from specx.codec import MOST_GAMMA, shortened
from specx.core.sampling import SAMPLING_ORDER, SamplingParams
from specx.drafters import get_drafter, installed_drafters
from specx.errors import UsageError
from specx.output import OutputFile
from specx.schedule import Costs, Replay, Schedule, Step, Traced, read_steps, write_step
from specx.schedule.costs.curve import Profile, read_profile
from specx.session.generation import Generation, Observer
from specx.session.pair import Pair
from specx.session.result import Result
from specx.session.settings import Settings
from specx.shipped import DEMO_GAMMA

__all__ = ["DRAFTING", "DRAWING", "GAMMA", "Chosen", "DraftOptions", "DrawOptions", "check_profile"]


def _gamma(
    context: click.Context, option: click.Parameter, value: str | None
) -> int | Literal["auto"] | None:
    if value is None or value == "auto":
        return value  # type: ignore[return-value]
    if not re.fullmatch(r"0*[0-9]{1,4}", value) or int(value[-4:]) > MOST_GAMMA:
        raise click.BadParameter(
            f"{shortened(value)} is neither auto nor a whole number from 0 to {MOST_GAMMA}"
        )
    return int(value[-4:])


SHARE = click.FloatRange(0, 1)

DRAWING = [
    click.option(
        "--draft-temp",
        "draft_temperature",
        type=float,
        help="The drafter's temperature.  [default: --temp]",
    ),
    click.option("--draft-top-k", type=int, help="The drafter's top-k.  [default: --top-k]"),
    click.option("--draft-top-p", type=float, help="The drafter's top-p.  [default: --top-p]"),
    click.option(
        "--entropy-stop",
        type=SHARE,
        help="End a model's draft (after at least one token) when the entropy of its next "
        "distribution / ln(vocabulary size) exceeds this.  [default: off]",
    ),
    click.option(
        "--draft-p-min",
        type=SHARE,
        help="End a model's draft when the best probability of its next distribution is below "
        "this.  [default: off]",
    ),
    click.option(
        "--profile",
        type=InputFile(),
        metavar="FILE",
        help="Measured costs for --gamma auto.  [default: what specx tune saved, or else a shipped "
        "table by quantisation; without -s, also the run's own times]",
    ),
]
"""Options for sampling drafts, and for the costs that auto uses; `specx bench` has them too."""

GAMMA = [
    click.option(
        "--gamma",
        "--draft-max",
        "--num-draft-tokens",
        callback=_gamma,
        metavar="N|auto",
        help="Tokens to draft per round; auto picks the fastest number each round, which may be "
        f"none.  [default: auto; {DEMO_GAMMA} for the demo pair]",
    ),
    click.option(
        "--draft",
        help="Drafters: model, lookup (what followed the same tokens earlier in the text; needs no "
        "second model), or model,lookup to choose each round.  [default: model with -md]",
    ),
]

DRAFTING = [
    *GAMMA,
    *DRAWING,
    click.option(
        "--gamma-trace",
        type=OutputPath("gamma trace"),
        metavar="FILE",
        help="Save the choice made in each round.",
    ),
    click.option(
        "--gamma-replay",
        type=InputFile(),
        metavar="FILE",
        help="Repeat the choices saved in FILE.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """The options of DRAWING."""

    draft_temperature: float | None
    draft_top_k: int | None
    draft_top_p: float | None
    entropy_stop: float | None
    draft_p_min: float | None
    profile: Path | None


@dataclass(frozen=True, kw_only=True)
class DraftOptions(DrawOptions):
    """The options of DRAFTING, and those of other lists that they depend on."""

    gamma: int | Literal["auto"] | None
    draft: str | None
    gamma_trace: Path | None
    gamma_replay: Path | None
    no_draft: bool
    model: str | None
    model_draft: str | None
    seed: int | None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The drafters named by --draft; None for the default."""
        if self.draft is None or self.no_draft:
            return None
        names, known = tuple(self.draft.split(",")), installed_drafters()
        if not set(names) <= set(known):
            raise UsageError(
                f"--draft is '{self.draft}'; give {', '.join(known)}, or several with commas"
            )
        return names

    @property
    def live(self) -> bool:
        """True if auto may learn costs from the clock: a seed is given to reproduce a text."""
        return self.seed is None

    def needs_model(self, drafter: str | None) -> bool:
        """True if a draft model must be loaded. Refuses options that contradict each other."""
        if self.gamma is not None and self.gamma_replay is not None:
            raise UsageError(
                f"--gamma {self.gamma} and --gamma-replay were both given; leave one out"
            )
        if self.no_draft:
            return False
        names = self.names
        if names is None:
            if self.gamma and self.gamma != "auto" and drafter is None:
                raise UsageError(
                    f"--gamma {self.gamma} needs a drafter; add -md DRAFTER.gguf or --draft "
                    "lookup, or leave --gamma out"
                )
            return drafter is not None
        needed = any(get_drafter(name).needs_model for name in names)
        if needed and drafter is None:
            raise UsageError(f"--draft {self.draft} needs a drafter; add -md DRAFTER.gguf")
        if not needed and self.model_draft is not None:
            raise UsageError(
                f"-md {drafter} is not used by --draft {self.draft}; leave one out, or give "
                "--draft model,lookup"
            )
        return needed

    def settings(self, sampling: SamplingParams) -> dict[str, Any]:
        """The fields of `Settings` that these options set."""
        gamma = self.gamma
        if gamma is None:
            demo = self.model is None and self.names in (None, ("model",))
            gamma = DEMO_GAMMA if demo else "auto"
        return {
            "gamma": gamma,
            "draft": self.names,
            "draft_sampling": _draft_sampling(sampling, self),
            "entropy_stop": self.entropy_stop,
            "draft_p_min": self.draft_p_min,
        }


def _draft_sampling(sampling: SamplingParams, given: DrawOptions) -> SamplingParams | None:
    """The drafter's own sampler, if an option asks for one."""
    options = {name: getattr(given, f"draft_{name}", None) for name in SAMPLING_ORDER}
    changed = {name: value for name, value in options.items() if value is not None}
    try:
        return replace(sampling, **changed) if changed else None
    except UsageError as error:
        raise UsageError(f"the drafter's {error}") from error


class Chosen(Observer):
    """The schedule of a run, with a description; writes the choices made, if requested."""

    def __init__(self, options: DraftOptions) -> None:
        self._options = options
        path = options.gamma_trace
        self._trace = None if path is None else OutputFile(path, "--gamma-trace")
        self._steps: list[Step] = []

    def costs(self, pair: Pair, settings: Settings) -> Costs | None:
        """The costs of --profile for auto; None for those of the pair. It is read either way."""
        path = self._options.profile
        profile = None if path is None else check_profile(read_profile(path), path, pair)
        if profile is None or settings.gamma != "auto":
            return None
        return pair.costs(profile, live=self._options.live)

    def schedule(self, schedule: Schedule) -> Schedule:
        """The schedule to use: a replay if requested, else `schedule`."""
        options, chosen = self._options, schedule
        if options.gamma_replay is not None:
            chosen = Replay(read_steps(options.gamma_replay))
        return chosen if self._trace is None else Traced(chosen, self._steps.append)

    def by(self, generation: Generation) -> str:
        """The source of gamma, as shown in the footer and in ``settings``."""
        options = self._options
        if not generation.drafters:
            return "no drafter"
        if options.gamma_replay is not None:
            return f"replay of {options.gamma_replay}"
        if generation.settings.gamma != "auto":
            return "fixed"
        profile = options.profile
        source = generation.pair.costs_by if profile is None else f"profile {profile}"
        return f"live timings, from {source}" if options.live else source

    def end(self, result: Result) -> None:
        """Write the choices."""
        if self._trace is not None and result.stop_reason is not None:
            self._trace.write("".join(map(write_step, self._steps)))


def check_profile(profile: Profile, path: Path, pair: Pair) -> Profile:
    """Refuse a profile of other models than the pair's; `path` is named in the error."""
    for (role, curve), model in zip(profile.curves().items(), pair.models, strict=False):
        if curve.model != model.name:
            raise UsageError(
                f"the {role} of profile {path} is {curve.model}, this run's is {model.name}; "
                "measure this pair (specx bench --curve -o FILE)"
            )
    return profile
