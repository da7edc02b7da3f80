"""Options of `specx run` that say who drafts, how far, and by which costs that is decided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from specx.cli.files import InputFile, OutputPath
from specx.codec import MOST_GAMMA, shortened
from specx.core.sampling import SamplingParams
from specx.errors import UsageError
from specx.output import OutputFile
from specx.schedule import Costs, Replay, Schedule, Step, Traced, read_steps, write_step
from specx.schedule.costs.curve import Profile, read_profile
from specx.session.pair import DRAFTERS, Pair, Settings
from specx.session.tally import Choices, Tally

__all__ = ["DRAFTING", "Chosen", "draft_settings", "drafter_needed", "estimate"]

DEMO_GAMMA = 4
"""The demo pair shows how speculation works; auto would rightly decode plainly."""
LEAST_PLAIN_ROUNDS = 8


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

DRAFTING = [
    click.option(
        "--gamma",
        "--draft-max",
        "--num-draft-tokens",
        callback=_gamma,
        metavar="N|auto",
        help="Tokens to propose in a round; auto chooses each round what pays most, 0 where "
        f"nothing does.  [default: auto; {DEMO_GAMMA} for the demo pair]",
    ),
    click.option(
        "--draft",
        help="Who proposes: model, lookup (how the text went on before; no second model), or "
        "model,lookup, chosen round by round.  [default: model with -md]",
    ),
    click.option("--draft-temp", type=float, help="The drafter's temperature.  [default: --temp]"),
    click.option("--draft-top-k", type=int, help="The drafter's top-k.  [default: --top-k]"),
    click.option("--draft-top-p", type=float, help="The drafter's top-p.  [default: --top-p]"),
    click.option(
        "--entropy-stop",
        type=SHARE,
        help="End a model's draft, after one token, before a draw whose entropy / ln(vocabulary) "
        "exceeds this.  [default: off]",
    ),
    click.option(
        "--draft-p-min",
        type=SHARE,
        help="End a model's draft before a draw whose best probability is under this.  "
        "[default: off]",
    ),
    click.option(
        "--profile",
        type=InputFile(),
        metavar="FILE",
        help="Measured costs for --gamma auto.  [default: a shipped table by quantisation, and "
        "without -s the run's own times]",
    ),
    click.option(
        "--gamma-trace",
        type=OutputPath("gamma trace"),
        metavar="FILE",
        help="Write each round's choice to FILE.",
    ),
    click.option(
        "--gamma-replay",
        type=InputFile(),
        metavar="FILE",
        help="Repeat the choices in such a FILE.",
    ),
]


def drafter_needed(given: Mapping[str, Any], drafter: str | None) -> bool:
    """Whether a drafter's model is to be loaded; complains of options that contradict it."""
    names = _names(given)
    gamma, no_model = given["gamma"], drafter is None
    if gamma is not None and given["gamma_replay"] is not None:
        raise UsageError(f"--gamma {gamma} and --gamma-replay were both given; leave one out")
    if given["no_draft"]:
        return False
    if names is None:
        if gamma and gamma != "auto" and no_model:
            raise UsageError(
                f"--gamma {gamma} needs a drafter; add -md DRAFTER.gguf or --draft lookup, or "
                "leave --gamma out"
            )
        return not no_model
    if "model" in names and no_model:
        raise UsageError(f"--draft {given['draft']} needs a drafter; add -md DRAFTER.gguf")
    if "model" not in names and given["model_draft"] is not None:
        raise UsageError(
            f"-md {drafter} is not used by --draft {given['draft']}; leave one out, or give "
            "--draft model,lookup"
        )
    return "model" in names


def draft_settings(given: Mapping[str, Any], sampling: SamplingParams) -> dict[str, Any]:
    """The fields of `Settings` that these options fill."""
    gamma = given["gamma"]
    if gamma is None:
        demo = given["model"] is None and _names(given) in (None, ("model",))
        gamma = DEMO_GAMMA if demo else "auto"
    drafting = {name: given[f"draft_{name}"] for name in ("temp", "top_k", "top_p")}
    changed = {name: value for name, value in drafting.items() if value is not None}
    return {
        "gamma": gamma,
        "draft": None if given["no_draft"] else _names(given),
        "draft_sampling": _changed(sampling, changed) if changed else None,
        "entropy_stop": given["entropy_stop"],
        "draft_p_min": given["draft_p_min"],
    }


def _changed(sampling: SamplingParams, changed: Mapping[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(
            temperature=changed.get("temp", sampling.temperature),
            top_k=changed.get("top_k", sampling.top_k),
            top_p=changed.get("top_p", sampling.top_p),
            min_p=sampling.min_p,
        )
    except UsageError as error:
        raise UsageError(f"the drafter's {error}") from error


def _names(given: Mapping[str, Any]) -> tuple[str, ...] | None:
    if given["draft"] is None:
        return None
    names = tuple(str(given["draft"]).split(","))
    if not set(names) <= set(DRAFTERS):
        raise UsageError(f"--draft is '{given['draft']}'; give model, lookup or model,lookup")
    return names


@dataclass
class Chosen:
    """The schedule of a run, and how it came to be."""

    schedule: Schedule | None
    costs: Costs | None
    by: str
    """What decides: for people, and for ``settings``."""
    trace: OutputFile | None = None
    steps: list[Step] = field(default_factory=list)

    @classmethod
    def of(cls, pair: Pair, settings: Settings, given: Mapping[str, Any]) -> Chosen:
        """What the options ask for; files are read."""
        profile, trace = _read_profile(given["profile"], pair), given["gamma_trace"]
        if not pair.drafters(settings):
            return cls(None, None, "no drafter", trace)
        if given["gamma_replay"] is not None:
            steps = read_steps(given["gamma_replay"])
            found = cls(Replay(steps), None, f"replay of {given['gamma_replay']}", trace)
        elif settings.gamma == "auto":
            live = given["seed"] is None
            costs = pair.costs(profile, live=live)
            schedule = pair.schedule(settings, costs)
            found = cls(schedule, costs, _by(given["profile"], live), trace)
        else:
            found = cls(pair.schedule(settings), None, "fixed", trace)
        if trace is not None and found.schedule is not None:
            found.schedule = Traced(found.schedule, found.steps.append)
        return found

    def write_trace(self) -> None:
        """Write the choices made, if that was asked for."""
        if self.trace is not None:
            self.trace.write("".join(map(write_step, self.steps)))


def _by(profile: Path | None, live: bool) -> str:
    source = "the shipped table" if profile is None else f"profile {profile}"
    return f"live timings, from {source}" if live else source


def _read_profile(path: Path | None, pair: Pair) -> Profile | None:
    if path is None:
        return None
    profile = read_profile(path)
    for (role, curve), model in zip(profile.curves().items(), pair.models, strict=False):
        if curve.model != model.name:
            raise UsageError(
                f"the {role} of profile {path} is {curve.model}, this run's is {model.name}; "
                "measure it"
            )
    return profile


def estimate(tally: Tally, choices: Choices, costs: Costs | None) -> dict[str, Any] | None:
    """Speed against plain decoding, which did not run: from plain rounds, or from the costs."""
    if not tally.tok_s or not choices.speculating.rounds:
        return None
    if choices.plain.rounds >= LEAST_PLAIN_ROUNDS and choices.plain.seconds > 0:
        plain, by = choices.plain.rounds / choices.plain.seconds, "this run's plain rounds"
    elif costs is not None and (costs.live or costs.source == "profile"):
        plain = 1 / costs.plain
        by = "live timings" if costs.live else "the profile"
    else:
        return None
    return {"plain_tok_s": plain, "ratio": tally.tok_s / plain, "by": by}
