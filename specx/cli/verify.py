"""`specx verify`: proof that the rules are exact, and a test of a pair on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import click

from specx import SamplingParams, __version__
from specx.cli.files import Command
from specx.cli.load import load_pair, plan_sides
from specx.cli.options import MODELS, RUNTIME, add_options
from specx.cli.progress import Progress
from specx.core.accept import find_rule
from specx.core.rules import RULES
from specx.core.streams import draw_seed
from specx.errors import UsageError
from specx.session.pair import Pair
from specx.verify import LAW_GAMMA, LAW_TOP_K, Bench, Check, check_models, check_rule
from specx.verify.faults import FAULTS, Fault

__all__ = ["verify"]

REFUTED = 1
PROMPT = "The old lighthouse stood at the edge of the cliff, and every evening its keeper"

EPILOG = "\b\nFaults for --plant, each of which must be refuted:\n" + "\n".join(
    f"  {fault.name}: {fault.summary}"
    + ("" if fault.rules == Fault.rules else f" ({', '.join(fault.rules)} only)")
    for fault in FAULTS.values()
)


@click.command(cls=Command, epilog=EPILOG)
@add_options(MODELS)
@click.option("-p", "--prompt", default=PROMPT, help="The text before the round.")
@click.option("--trials", type=click.IntRange(min=100), default=4000, show_default=True,
              help="Rounds to sample from the models.")  # fmt: skip
@click.option("--rule", type=click.Choice(list(RULES)),
              help="Check one rule.  [default: all; block on models]")  # fmt: skip
@click.option("--plant", type=click.Choice(list(FAULTS)), metavar="NAME",
              help="Plant a known fault; listed below.")  # fmt: skip
@click.option("-s", "--seed", type=click.IntRange(0, 2**32 - 1), help="Random seed.")
@add_options(RUNTIME)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log.")
def verify(**given: Any) -> int:
    """Prove the rules exact, and test a pair of models.

    Without models: enumeration of the rules, the sampler as it runs, and the loop over several
    rounds of a small table. With -m and -md, also the models' caches and the distribution of one
    round of the loop. Exits 0 if all checks hold and 1 if one is refuted.
    """
    given["seed"] = draw_seed() if given["seed"] is None else given["seed"]
    fault = FAULTS[given["plant"]] if given["plant"] else Fault()
    rules = _rules(given["rule"], fault)
    progress = Progress(enabled=not given["quiet"])
    pair = _pair(given, progress)
    checks: list[Check] = []
    with pair or nullcontext():
        models = [] if pair is None else [model.describe() for model in pair.models]
        for check in _checks(pair, rules, given, fault, progress):
            checks.append(check)
            if not given["as_json"]:
                click.echo(_line(check))
    return _close(checks, given, models)


def _rules(asked: str | None, fault: Fault) -> list[str]:
    if asked is not None and asked not in fault.rules:
        only = ", ".join(fault.rules)
        raise UsageError(
            f"--plant {fault.name} is a fault of rule {only}, not of {asked}; leave out --rule"
        )
    return list(fault.rules) if asked is None else [asked]


def _checks(
    pair: Pair | None, rules: list[str], given: dict[str, Any], fault: Fault, progress: Progress
) -> Iterator[Check]:
    """Yield the checks as they finish; the models' first, so that a bad prompt fails early."""
    if pair is not None:
        yield from _model_checks(pair, given, fault, progress)
    for name in rules:
        with progress.task(f"rule {name}", 1.0) as report:
            yield from check_rule(find_rule(name), fault, given["seed"], report)


def _pair(given: dict[str, Any], progress: Progress) -> Pair | None:
    model, drafter = given["model"], given["model_draft"]
    if model is None and drafter is None:
        return None
    if model is None or drafter is None:
        raise UsageError("a test of models needs both: -m VERIFIER and -md DRAFTER")
    sides = plan_sides(model, drafter, given["backend"], given["draft_backend"], given)
    return load_pair(sides, lambda _: 0, verbose=given["verbose"], cached=True, progress=progress)


def _model_checks(
    pair: Pair, given: dict[str, Any], fault: Fault, progress: Progress
) -> Iterator[Check]:
    assert pair.drafter is not None
    sampling = SamplingParams(temperature=1, top_k=LAW_TOP_K, top_p=1)
    rule = find_rule(given["rule"] or "block")
    bench = Bench(pair.verifier, pair.drafter, sampling, rule, fault, LAW_GAMMA)
    tokenizer = pair.verifier.tokenizer
    prompt = tokenizer.encode(given["prompt"], add_special=True, parse_special=False)
    with progress.task("models", 1.0) as report:
        yield from check_models(bench, prompt, given["trials"], given["seed"], report)


def _close(checks: list[Check], given: dict[str, Any], models: list[dict[str, object]]) -> int:
    refuted = [check for check in checks if not check.holds]
    false_positive = sum(check.figures.get("false_positive", 0) for check in checks)
    if given["as_json"]:
        result = {
            "holds": not refuted,
            "planted": given["plant"],
            "false_positive": false_positive,
            "seed": given["seed"],
            "version": __version__,
            "models": models,
            "prompt": given["prompt"] if models else None,
            "checks": [check.as_json() for check in checks],
        }
        click.echo(json.dumps(result, allow_nan=False))
    else:
        planted = f", with the fault {given['plant']} planted" if given["plant"] else ""
        verdict = f"{len(refuted)} of {len(checks)} refuted" if refuted else "all hold"
        alarms = f"false alarms of the whole run {false_positive:.0e}"
        click.echo(f"\n{verdict}{planted}; {alarms}  (seed {given['seed']})")
    return REFUTED if refuted else 0


def _line(check: Check) -> str:
    mark = "holds  " if check.holds else "REFUTED"
    return f"{mark}  {check.name}: {check.subject}\n         {check.found}\n         {check.means}"
