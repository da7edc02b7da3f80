#!/usr/bin/env python3
r"""Does entropy predict a rejection? Runs prompts under rule `token`, or reads traces that did.

    scripts/study.py --suite all --folder study-traces -o study.json     # the demo pair
    scripts/study.py -m VERIFIER.gguf -md DRAFTER.gguf --folder traces -o study.html
    scripts/study.py TRACE...

A trace per prompt is kept in the folder; a second call runs only the prompts that are missing.
docs/study.md has what this found for one pair.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from specx import SamplingParams, SpecxError
from specx.bench.profiling import encode_prompt
from specx.bench.suites import read_prompts, suite
from specx.cli.files import Command, InputFile, OutputPath
from specx.cli.load import load_pair, plan_sides
from specx.cli.options import MODELS, RUNTIME, TEMPLATE, add_options, chat_options
from specx.cli.progress import Progress
from specx.cli.tables import print_rows
from specx.codec import MOST_GAMMA
from specx.errors import UsageError
from specx.output import OutputFile
from specx.records.kinds import require_kind
from specx.records.trace import Trace, read_traces
from specx.runtime.backend import Tokenizer
from specx.runtime.machine import provenance
from specx.shipped import demo_pair
from studies.analysis import analyse
from studies.observations import observe
from studies.render import FORMATS, INTERVALS, as_json, estimate
from studies.running import Plan, run_study, traces_of

INTERRUPTED = 130


class TraceFolder(InputFile):
    """A folder of traces that the command reads and adds to."""

    def files(self, value: Path) -> Iterable[Path]:
        """The traces that it holds now."""
        return value.glob("*.jsonl")


OPTIONS = [
    click.option(
        "--suite",
        default="all",
        show_default=True,
        metavar="KIND[:N],...",
        help="Prompts of specx's own: N of a kind, or of all.",
    ),
    click.option(
        "-f",
        "--file",
        type=InputFile(),
        help="Your own prompts, as JSON Lines: an object with `prompt` on each line.",
    ),
    click.option(
        "--folder",
        type=TraceFolder(),
        help="Keep a trace per prompt here; prompts whose trace is complete are not run again.",
    ),
    click.option("-n", "--predict", type=click.IntRange(min=1), default=64, show_default=True),
    click.option("--gamma", type=click.IntRange(1, MOST_GAMMA), default=4, show_default=True),
    click.option("--temp", type=float, default=1.0, show_default=True, help="Temperature."),
    click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off."),
    click.option("-s", "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True),
    *TEMPLATE,
    click.option("--ignore-eos", is_flag=True, help="Continue after an end token."),
    click.option(
        "-o",
        "--output",
        "outputs",
        multiple=True,
        type=OutputPath("study"),
        help=f"Write to this file ({', '.join(FORMATS)}); may be given several times.",
    ),
    click.option("--json", "as_object", is_flag=True, help="Print one JSON object, nothing else."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log."),
]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command: 0 done, 2 bad input, 130 interrupted; errors are one line."""
    try:
        study.main(words, standalone_mode=False)
    except click.Abort:
        click.echo("study: interrupted", err=True)
        return INTERRUPTED
    except (click.ClickException, SpecxError) as error:
        shown = error.format_message() if isinstance(error, click.ClickException) else error
        click.echo(f"study: {shown}", err=True)
        return 2
    return 0


@click.command(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, type=InputFile(), metavar="[TRACE]...")
@add_options([*MODELS, *OPTIONS, *RUNTIME])
def study(**given: Any) -> None:
    """Measure what predicts a rejection: entropies and margins, tested tokens only.

    Runs prompts under rule token into --folder, or reads TRACE files made with --rule token.
    """
    outputs = [(path.suffix, _output(path)) for path in given["outputs"]]
    traces = _read(given["files"]) if given["files"] else _run(given)
    seen = observe(traces)
    record = analyse(seen, naive=observe(traces, tested_only=False))
    record["provenance"] = traces[0].header.provenance
    for suffix, output in outputs:
        output.write(FORMATS[suffix](record, seen))
    if given["as_object"]:
        click.echo(as_json(record, seen), nl=False)
    else:
        _print(record)


def _output(path: Path) -> OutputFile:
    if path.suffix not in FORMATS:
        raise UsageError(f"-o {path} has no known ending; use one of {', '.join(FORMATS)}")
    return OutputFile(path)


def _read(files: Sequence[Path]) -> list[Trace]:
    return [trace for file in files for trace in read_traces(file)]


def _run(given: dict[str, Any]) -> list[Trace]:
    plan = _plan(given)
    plan.missing()  # traces with other settings are refused before anything is loaded
    _trace(plan, given)  # with the models loaded, traces of other models are refused
    return list(traces_of(plan))


def _plan(given: dict[str, Any]) -> Plan:
    folder: Path | None = given["folder"]
    if folder is None:
        raise UsageError("no --folder for the traces and no TRACE to read; add --folder DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make --folder {folder}: {error.strerror}") from error
    plan = Plan(
        folder=folder,
        prompts=read_prompts(given["file"]) if given["file"] else suite(given["suite"]),
        n=given["predict"],
        gamma=given["gamma"],
        sampling=SamplingParams(temperature=given["temp"], top_p=given["top_p"]),
        seed=given["seed"],
        ignore_eos=given["ignore_eos"],
        raw=given["raw"],
        chat=chat_options(given),
    )
    for prompt in plan.prompts:
        require_kind(plan.file(prompt), "trace", "--folder", remedy="choose another folder")
    return plan


def _trace(plan: Plan, given: dict[str, Any]) -> None:
    progress = Progress(enabled=not given["quiet"])
    model, drafter = given["model"], given["model_draft"]
    if model is None and drafter is None:
        model, drafter = demo_pair()
        given["threads"] = given["threads"] or 1
    if model is None or drafter is None:
        raise UsageError("a study needs both models; add -m VERIFIER.gguf -md DRAFTER.gguf")

    def need_ctx(tokenizer: Tokenizer) -> int:
        texts = [
            encode_prompt(tokenizer, prompt.text, raw=plan.raw, chat=plan.chat)
            for prompt in plan.prompts
        ]
        return max(map(len, texts)) + plan.n + plan.gamma + 1

    sides = plan_sides(model, drafter, given["backend"], given["draft_backend"], given)
    with load_pair(
        sides, need_ctx, verbose=given["verbose"], cached=True, progress=progress
    ) as pair:
        roles = dict(zip(["verifier", "drafter"], pair.models, strict=False))
        facts = provenance(roles, [side.factory.name for side in sides], sys.argv)
        with progress.task("running prompts", len(plan.prompts)) as report:
            run_study(plan, pair, facts, report=report)


def _print(record: dict[str, Any]) -> None:
    click.echo(
        f"{record['n_tokens']} tested tokens of {record['n_prompts']} prompts; "
        f"alpha {estimate(record['alpha'])}; mean sum min(P, Q) {estimate(record['overlap'])}\n"
    )
    rows = [["predictor", "rank correlation", "AUC", "Brier", "of the rate alone"]]
    for found in record["predictors"]:
        scores = [f"{found['brier']:.3f}", f"{found['brier_base']:.3f}"]
        rows.append(
            [found["name"], estimate(found["correlation"]), estimate(found["auc"]), *scores]
        )
    print_rows(rows)
    click.echo(f"{INTERVALS} An AUC of 0.5 predicts nothing.")


if __name__ == "__main__":
    sys.exit(main())
