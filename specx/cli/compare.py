"""`specx compare`: one pair on two systems, to separate the algorithm from the runtime."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from specx.bench import Arm, ArmRecord, Plan, Results, warnings_of
from specx.bench.profiling import encode_prompt
from specx.bench.suites import read_prompts, suite
from specx.cli.files import Command, Model, OutputPath
from specx.cli.load import with_demo_pair
from specx.cli.options import (
    MODELS,
    RUNTIME,
    SAMPLING,
    add_options,
    asked_of_template,
    chat_options,
    prompt_options,
)
from specx.cli.progress import Progress
from specx.cli.systems import load_both, plan_both, traits_of
from specx.cli.tables import print_rows
from specx.codec import MOST_GAMMA, to_json
from specx.compare import (
    Comparison,
    System,
    Traits,
    comparison_record,
    names_of,
    run_comparison,
)
from specx.compare.render import FORMATS, headings, tables
from specx.core.rules import RULES
from specx.core.sampling import SAMPLING_ORDER
from specx.errors import UsageError
from specx.interrupts import held
from specx.output import OutputFile
from specx.runtime.backend import Tokenizer
from specx.runtime.machine import Watch, provenance
from specx.session.pair import Pair

__all__ = ["compare"]

INTERRUPTED = 130

AGAINST = [
    click.option("--against", type=Model(), metavar="FILE", help="B's verifier."),
    click.option("--against-draft", type=Model(), metavar="FILE", help="B's drafter."),
    click.option("--against-backend", metavar="NAME", help="Runtime of B's verifier."),
    click.option("--against-draft-backend", metavar="NAME", help="Runtime of B's drafter."),
    click.option("--against-threads", type=click.IntRange(min=1), help="Threads of B."),
    click.option("--against-ctk", metavar="TYPE", help="Element type of B's cached keys."),
    click.option("--against-ctv", metavar="TYPE", help="Element type of B's cached values."),
    click.option("--against-dtype", metavar="TYPE", help="Number type of B's weights (hf)."),
]

DRAFTING = [
    click.option(
        "--gamma",
        type=click.IntRange(1, MOST_GAMMA),
        default=4,
        show_default=True,
        help="Tokens to draft per round.",
    ),
    click.option(
        "--rule",
        type=click.Choice(list(RULES)),
        default="block",
        show_default=True,
        help="Acceptance rule.",
    ),
    *SAMPLING,
]

OUTPUT = [
    click.option(
        "-o",
        "--output",
        type=OutputPath("comparison"),
        help="Write to this file: " + ", ".join(FORMATS) + ".",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log."),
]

EPILOG = """\b
A is the pair that the options describe; B is A with the changes of the --against options: another
runtime, quantisation, drafter, cache type or number of threads. By default, B is A on the other
runtime. Both must fit in memory together; a model that they share is loaded once.
Both use A's number of threads unless --against-threads is given.
An option that B's runtime does not support (-ngl, -ctk) applies to A only, and a note says so.
agreement  both models fed A's plain text: first choice, total variation, KL(A||B)
algorithm  effect of A's acceptance in place of B's on the predicted speed-up, over both costs
runtime    effect of A's costs in place of B's, over both acceptances
rest       measured over predicted; the three factors multiply to the ratio of the speed-ups"""


@click.command(cls=Command, epilog=EPILOG)
@add_options(
    [
        *MODELS,
        *AGAINST,
        *DRAFTING,
        # Three kinds cover the range of acceptance; eight take long on the slower runtime.
        *prompt_options("factual:1,opinion:1,code:1"),
        *RUNTIME,
        *OUTPUT,
    ]
)
def compare(**given: Any) -> int:
    """Separate the algorithm's effect from the runtime's: one pair on two systems.

    Both decode the same prompts with the same random streams, in turns, with and without
    speculation. The difference between their speed-ups is split into acceptance (the algorithm),
    cost (the runtime) and a rest that neither explains.
    """
    output = _output(given["output"])
    progress = Progress(enabled=not given["quiet"])
    return _Comparing(with_demo_pair(given), output, progress).run()


def _output(path: Path | None) -> OutputFile | None:
    if path is None:
        return None
    if path.suffix not in FORMATS:
        raise UsageError(f"-o {path} has no supported extension; use one of {', '.join(FORMATS)}")
    return OutputFile(path)


class _Comparing:
    """One comparison, from options to printed results."""

    def __init__(
        self, given: dict[str, Any], output: OutputFile | None, progress: Progress
    ) -> None:
        self.given, self.output, self.progress = given, output, progress
        self.plan = _plan(given)
        self.arm = _arm(given, given["backend"], given["draft_backend"])
        self.sampling = self.arm.sampling
        self.planned = plan_both(given)
        self.watch = Watch()

    def run(self) -> int:
        """Measure, print and write; return the exit code."""
        for option in self.planned.left_out:
            self._note(f"{option} applies to A only: B's runtime does not support it")
        with load_both(
            self.planned, self._need_ctx, verbose=self.given["verbose"], progress=self.progress
        ) as pairs:
            return self._compare(pairs)

    def _compare(self, pairs: tuple[Pair, Pair]) -> int:
        a, b = self.planned.a, self.planned.b
        traits = traits_of(a, pairs[0]), traits_of(b, pairs[1])
        self._tell_threads(traits)
        names = names_of(*traits)
        first, second = map(self._system, names, traits, pairs)
        systems = first, second
        comparison = Comparison(names, (Results(n=self.plan.n), Results(n=self.plan.n)))
        code = self._measure(systems, comparison)
        if not comparison.n_blocks:
            click.echo("specx: interrupted before every arm had run once", err=True)
            return code
        for side in comparison.results:
            side.warnings = warnings_of(side, self.watch)
        record = comparison_record(comparison, traits, self._provenance(systems))
        with held():
            self._show(record)
        return code

    def _measure(self, systems: tuple[System, System], comparison: Comparison) -> int:
        """Fill `comparison`; return the exit code."""
        try:
            with self.progress.task("measuring", 4 * self.plan.runs_an_arm) as report:
                run_comparison(systems, self.plan, comparison, report=report)
        except KeyboardInterrupt:
            return INTERRUPTED
        return 0

    def _system(self, name: str, traits: Traits, pair: Pair) -> System:
        arm = _arm(self.given, traits.runtime, traits.draft_runtime)
        return System(name, pair, arm)

    def _tell_threads(self, traits: tuple[Traits, Traits]) -> None:
        a, b = traits
        asked = self.given["threads"] or self.given["against_threads"]
        if not asked and a.threads is not None and (a.runtime, a.threads) != (b.runtime, b.threads):
            self._note(
                f"both sides use {a.threads} threads, the default of A's runtime (set it with -t)"
            )

    def _note(self, text: str) -> None:
        if not (self.given["quiet"] or self.given["as_json"]):
            click.echo(f"specx: {text}", err=True)

    def _need_ctx(self, tokenizer: Tokenizer) -> int:
        lengths = [
            len(encode_prompt(tokenizer, prompt.text, raw=self.plan.raw, chat=self.plan.chat))
            for prompt in self.plan.prompts
        ]
        return max(lengths) + self.plan.n + self.arm.longest_draft + 1

    def _provenance(self, systems: tuple[System, System]) -> dict[str, Any]:
        models = {
            f"{side} {role}": model
            for side, system in zip("AB", systems, strict=True)
            for role, model in (("verifier", system.pair.verifier), ("drafter", system.drafter))
        }
        backends = [side.factory.name for side in (*self.planned.a, *self.planned.b)]
        with self.progress.task("hashing the files", 1.0) as report:
            facts = provenance(models, backends, sys.argv[1:], report)
        return {**facts, "settings": self._settings()}

    def _settings(self) -> dict[str, Any]:
        sampling, given = self.sampling, self.given
        return {
            **asdict(sampling),
            "gamma": self.arm.gamma,
            "rule": self.arm.rule,
            "seed": self.plan.seed,
            "repetitions": self.plan.repetitions,
            "prompts": [prompt.id for prompt in self.plan.prompts],
            "ignore_eos": given["ignore_eos"],
            "raw": given["raw"],
            **asked_of_template(given),
            "left_out_of_b": self.planned.left_out,
        }

    def _show(self, record: dict[str, Any]) -> None:
        """Print, then write the file, so that a full disk does not cost the results."""
        as_json = self.given["as_json"]
        if as_json:
            click.echo(to_json(record))
        else:
            _print(record)
        if self.output is not None:
            self.output.write(FORMATS[self.output.ending](record))
            if not as_json:
                click.echo(f"written to {self.given['output']}", err=True)


def _print(record: dict[str, Any]) -> None:
    click.echo(f"{headings(record)}\n")
    for heading, rows in tables(record).items():
        click.echo(heading)
        print_rows(rows)
    if not record["complete"]:
        click.echo(f"incomplete: {record['blocks']} of {record['planned']} runs of each arm\n")
    click.echo(record["verdict"]["words"])
    for warning in record["warnings"]:
        click.echo(f"warning: {warning['text']}\n  remedy: {warning['remedy']}", err=True)


def _plan(given: dict[str, Any]) -> Plan:
    if given["predict"] < 2:
        raise UsageError(f"-n {given['predict']} leaves nothing to draft; give 2 or more")
    prompts = read_prompts(given["file"]) if given["file"] is not None else suite(given["suite"])
    return Plan(
        arms=(),
        prompts=prompts,
        n=given["predict"],
        repetitions=given["repetitions"],
        seed=given["seed"],
        ignore_eos=given["ignore_eos"],
        raw=given["raw"],
        chat=chat_options(given),
    )


def _arm(given: dict[str, Any], backend: str, draft_backend: str | None) -> Arm:
    record = ArmRecord(
        backend=backend,
        draft_backend=draft_backend or backend,
        **{name: given[name] for name in SAMPLING_ORDER},
        gamma=given["gamma"],
        rule=given["rule"],
    )
    return record.arm()  # refuses values out of range
