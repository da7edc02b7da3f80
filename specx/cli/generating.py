"""What `specx run` and `specx chat` share: options of a generation, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from specx import RULES, Settings, interrupts
from specx.cli.drafting import DraftOptions
from specx.cli.load import Side, plan_sides, with_demo_pair
from specx.cli.options import sampling_params
from specx.core.logits import ENTROPY_STEPS
from specx.errors import UsageError
from specx.session.chat import ChatOptions
from specx.session.decoding import Round
from specx.session.generation import Generation, Observer

__all__ = [
    "MARKS",
    "NO_DRAFT",
    "RULE",
    "VERBOSE",
    "Interruptible",
    "loading_of",
    "refuse_template_options",
    "seed_option",
    "settings_of",
    "sides_of",
    "stop_option",
]

DEFAULT_RULE = "block"

RULE = click.option(
    "--rule",
    type=click.Choice(list(RULES)),
    default=DEFAULT_RULE,
    show_default=True,
    help="Acceptance rule; all are exact, and block accepts the most tokens.",
)
NO_DRAFT = click.option(
    "--no-draft", is_flag=True, help="Use the verifier alone, with the same loop and sampler."
)
MARKS = [
    click.option(
        "--color",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Mark tokens; see --show.",
    ),
    click.option(
        "--show",
        type=click.Choice(["origin", "entropy"]),
        default="origin",
        show_default=True,
        help="What the marks show: the token's origin, or the verifier's uncertainty before it "
        f"(entropy at temperature 1; shades start at {', '.join(map(str, ENTROPY_STEPS))} nats).",
    ),
]
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log.")


def seed_option(words: str) -> Callable[[Any], Any]:
    """-s, with help that ends in `words`."""
    return click.option(
        "-s", "--seed", type=click.IntRange(0, 2**64 - 1), help=f"Random seed; {words}"
    )


def stop_option(what: str) -> Callable[[Any], Any]:
    """--stop, for a command that writes a `what`."""
    return click.option(
        "--stop", multiple=True, help=f"End the {what} before this string; repeatable."
    )


def settings_of(given: Mapping[str, Any], drafting: DraftOptions, seed: int) -> Settings:
    """The settings of a generation with this seed."""
    sampling = sampling_params(given)
    return Settings(sampling=sampling, rule=given["rule"], seed=seed, **drafting.settings(sampling))


def loading_of(given: Mapping[str, Any], drafting: DraftOptions) -> dict[str, Any]:
    """The load options, with the models to load."""
    loading = with_demo_pair(given)
    if not drafting.needs_model(loading["model_draft"]):
        loading["model_draft"] = None
    if drafting.no_draft:
        loading |= {key: None for key in loading if key.endswith("_draft")}
    return loading


def sides_of(loading: Mapping[str, Any]) -> list[Side]:
    """The sides to load, the verifier first."""
    names = ("model", "model_draft", "backend", "draft_backend")
    model, drafter, backend, draft_backend = (loading[name] for name in names)
    return plan_sides(model, drafter, backend, draft_backend, loading)


def refuse_template_options(
    system: str | None, chat: ChatOptions, day: str | None, *, raw: bool
) -> None:
    """Refuse what needs a chat template, where --raw disables it or the model has none."""
    asked = {
        "-sys": system,
        "--template-arg": chat.arguments or None,
        "--template-date": day,
    }
    for flag, value in asked.items():
        if value is not None:
            raise UsageError(
                f"{flag} needs a chat template, "
                + ("which --raw disables" if raw else "which the model lacks")
                + "; leave it out"
            )


class Interruptible(Observer):
    """Ends a generation cleanly after a signal, between rounds or slices of the prompt."""

    def begin(self, generation: Generation) -> None:
        self._stop = generation.stop

    def fed(self, n_tokens: int) -> None:
        if interrupts.received():
            interrupts.taken()
            raise KeyboardInterrupt

    def round(self, done: Round) -> None:
        if interrupts.received():
            interrupts.taken()
            self._stop.reason = "interrupted"
