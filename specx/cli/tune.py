"""`specx tune`: what speculation gains with a pair on this machine, and what to use."""

from __future__ import annotations

import time
from typing import Any

import click

from specx.cli.files import Command, InputFile, Model
from specx.cli.generating import RULE, VERBOSE
from specx.cli.options import MODELS, RUNTIME, SAMPLING, TEMPLATE, add_options
from specx.codec import to_json
from specx.errors import UsageError

__all__ = ["tune"]

BUDGET, DEMO_BUDGET = 90.0, 20.0
LONGEST_BUDGET = 86400

EPILOG = """\b
Short generations over a suite of prompts alternate with timed passes until the budget is spent.
The table has the speed-up over plain decoding by gamma and kind of prompt; * marks the best of a
column, "pays from" the acceptance rate from which that gamma is faster than none.
Costs are saved in the user's cache folder (SPECX_CACHE), and from then on used by specx run, chat,
serve and bench for --gamma auto with the same models, runtime and threads; specx profiles lists
them.
--what-if takes KEY=VALUE parts separated by commas: draft=COST of a draft step relative to a plain
verifier step (0 for lookup), verify-curve=WIDTH:COST,... with width 1, and alpha=RATE,... or
alpha=KIND:RATE,... (by default .5 to .9)."""

DRAFTERS = click.option(
    "-md",
    "--model-draft",
    "--draft-model",
    "--assistant-model",
    "drafters",
    type=Model(),
    multiple=True,
    help="A drafter; repeat to compare several.",
)


def _budget(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 1 <= value <= LONGEST_BUDGET:
        raise click.BadParameter(f"{value:g} is not from 1 to {LONGEST_BUDGET} seconds")
    return value


@click.command(cls=Command, epilog=EPILOG)
@add_options(
    [
        MODELS[0],
        DRAFTERS,
        *MODELS[2:],
        click.option(
            "--budget",
            type=float,
            callback=_budget,
            metavar="SECONDS",
            help=f"Time for everything, loading included.  [default: {BUDGET:g}; {DEMO_BUDGET:g} "
            "for the demo pair]",
        ),
        click.option(
            "--threads",
            "thread_counts",
            metavar="N,...",
            help="Thread counts to compare, such as 1,2,4, instead of -t.",
        ),
        click.option(
            "--suite",
            default="all",
            show_default=True,
            metavar="KIND[:N],...",
            help="Built-in prompts: N of one kind, or of each.",
        ),
        click.option(
            "-f",
            "--file",
            type=InputFile(),
            help="Your own prompts, as JSON Lines with a `prompt` and optionally a `kind` field.",
        ),
        *TEMPLATE,
        RULE,
        *SAMPLING,
        click.option(
            "-s",
            "--seed",
            type=click.IntRange(0, 2**32 - 1),
            default=0,
            show_default=True,
            help="Random seed.",
        ),
        *RUNTIME,
        click.option(
            "--what-if",
            metavar="ASSUMPTIONS",
            help="Answer from assumed costs instead, without models; see below.",
        ),
        click.option("--no-save", is_flag=True, help="Do not save the costs."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON object, nothing else."
        ),
        click.option("-q", "--quiet", is_flag=True, help="No progress."),
        VERBOSE,
    ]
)
def tune(**given: Any) -> int:
    """Measure what speculation gains with a pair, and say what to use."""
    if given["what_if"] is not None:
        return _what_if(given)
    begun = time.monotonic()
    from specx.cli.tuning import Tuning  # scipy.stats takes a second, which the budget covers

    demo = given["model"] is None
    budget = given.pop("budget") or (DEMO_BUDGET if demo else BUDGET)
    return Tuning(given, begun, budget).run()


def _what_if(given: dict[str, Any]) -> int:
    from specx.cli.tune_show import print_what_if, what_if_record
    from specx.tune.whatif import parse_what_if

    for flag, name in (("-m", "model"), ("-md", "drafters")):
        if given[name]:
            raise UsageError(f"--what-if needs no models; leave out {flag}, or --what-if")
    asked = parse_what_if(given["what_if"])
    if given["as_json"]:
        click.echo(to_json(what_if_record(asked)))
    else:
        print_what_if(asked)
    return 0
