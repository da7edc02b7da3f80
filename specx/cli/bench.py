"""`specx bench`: speculation against the verifier alone, and the cost of a pass by width."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from specx.bench import (
    Arm,
    ArmRecord,
    Plan,
    Results,
    read_results,
    results_record,
    run_sweep,
    summarise,
    warnings_of,
)
from specx.bench.profiling import encode_prompt
from specx.bench.render import FORMATS
from specx.cli.bench_options import (
    EPILOG,
    OUTPUT,
    PROMPT,
    SWEEP,
    OutputOptions,
    PromptOptions,
    SweepOptions,
)
from specx.cli.bench_tracing import BenchTracing
from specx.cli.curve import CurveOptions, measure_curves
from specx.cli.drafting import check_profile
from specx.cli.files import Command, InputFile
from specx.cli.load import FIELDS, load_pair, plan_sides, with_demo_pair
from specx.cli.options import (
    MODELS,
    RUNTIME,
    add_options,
    asked_of_template,
    chat_options,
    pick,
    prompt_options,
)
from specx.cli.progress import Progress
from specx.cli.tables import print_comparison, print_results
from specx.codec import to_json
from specx.errors import SpecxError, UsageError
from specx.interrupts import held
from specx.output import OutputFile
from specx.runtime.backend import Tokenizer
from specx.runtime.machine import Watch, peak_memory_mib, provenance
from specx.session.chat import ChatOptions
from specx.session.pair import Pair

__all__ = ["bench"]

INTERRUPTED = 130
OPTIONS = frozenset({*FIELDS, *(f"{field}_draft" for field in FIELDS)} - {"weights_cache"})
"""Load options that may change the speed."""


@click.command(cls=Command, epilog=EPILOG)
@add_options([*MODELS, *SWEEP, PROMPT, *prompt_options("all:1"), *RUNTIME, *OUTPUT])
@click.argument("files", nargs=-1, type=InputFile(), metavar="[FILES]...")
def bench(files: Sequence[Path], **given: Any) -> int:
    """Measure the speed of a pair against its verifier alone.

    FILES are more files for --load.
    """
    output = pick(OutputOptions, given)
    if output.loaded:
        output.refuse_clashes()
        return _show([*output.loaded, *files], output)
    if files:
        raise UsageError(f"unexpected argument {files[0]}; --load shows earlier files")
    file = output.file()
    output.refuse_clashes()
    if output.curve:
        return _measure_curves(given, output, file)
    return _Sweep(given, output, file).run()


def _show(files: Sequence[Path], output: OutputOptions) -> int:
    if output.output is not None:
        raise UsageError(f"-o {output.output} writes new measurements; leave out -o or --load")
    records = {str(file): _record(read_results(file)) for file in files}
    if output.as_json:
        click.echo(to_json(records))
        return 0
    for name, record in records.items():
        click.echo(f"{name}\n")
        print_results(record)
    if len(records) > 1:
        print_comparison(records)
    return 0


def _record(results: Results) -> dict[str, Any]:
    return results_record(results, summarise(results))


def _measure_curves(
    given: Mapping[str, Any], output: OutputOptions, file: OutputFile | None
) -> int:
    loading, chat = with_demo_pair(given), chat_options(given)
    model, drafter = loading["model"], loading["model_draft"]
    prompt = pick(PromptOptions, given).prompts("edit:1")[0]
    return measure_curves(
        pick(CurveOptions, given),
        plan_sides(model, drafter, given["backend"], given["draft_backend"], loading),
        lambda tokenizer: encode_prompt(tokenizer, prompt.text, raw=given["raw"], chat=chat),
        file,
        Progress(enabled=not output.quiet),
    )


class _Sweep:
    """One sweep, from options to printed results."""

    def __init__(
        self, given: Mapping[str, Any], output: OutputOptions, file: OutputFile | None
    ) -> None:
        self.loading, self.output, self.file = with_demo_pair(given), output, file
        self.options = pick(SweepOptions, self.loading)
        self.plan = _plan(self.options, pick(PromptOptions, given), chat_options(given))
        if not any(arm.needs_model for arm in self.plan.arms):
            self.loading["model_draft"] = None
        self.results = Results(n=self.plan.n)
        self.identity = _identity(self.plan, self.options, self.loading)
        if output.resume and file is not None and file.path.exists():
            self.results = _resumed(file.path, self.identity)
        self.results.provenance.setdefault("sweep", self.identity)
        self.progress = Progress(enabled=not output.quiet)
        self.watch = Watch()
        self._report: Callable[[float], None] = lambda runs: None

    def run(self) -> int:
        """Measure, print and write; return the exit code."""
        with ExitStack() as stack:
            with held():  # else Ctrl-C may leave an empty trace behind
                self.tracing = stack.enter_context(BenchTracing(self.output.trace_file, self.plan))
            return self._run()

    def _run(self) -> int:
        before, code = self.results.n_done, 0
        try:
            run_sweep(
                self.plan,
                self._load,
                self.results,
                report=lambda runs: self._report(runs),
                save=self._save,
                watch=self.tracing.watch,
            )
        except KeyboardInterrupt:
            code = INTERRUPTED
        except SpecxError:
            if self.results.n_done > before:  # a later error must not lose what was measured
                self._finish()
            raise
        self._finish()
        return code

    def _finish(self) -> None:
        with held():
            self._close()

    def _close(self) -> None:
        about = self.results.provenance
        about["peak_memory_mib"] = max(round(peak_memory_mib()), about.get("peak_memory_mib", 0))
        self.results.warnings = warnings_of(self.results, self.watch)
        record = _record(self.results)
        self._print(record)
        self._write(record)
        if self.results.n_done:
            self.tracing.end(record)

    def _print(self, record: dict[str, Any]) -> None:
        if self.output.as_json:
            click.echo(to_json(record))
        elif not self.results.n_done:
            click.echo("specx: interrupted before every arm had run once", err=True)
        else:
            print_results(record)

    def _write(self, record: dict[str, Any]) -> None:
        """Write the file; called after printing, so that a full disk does not cost the results."""
        if self.file is not None and self.results.n_done:
            self.file.write(FORMATS[self.file.ending](record))
            if not self.output.as_json:
                click.echo(f"written to {self.output.output}", err=True)

    def _save(self) -> None:
        """Save the results after each prompt, so that none is lost."""
        if self.file is not None and self.file.ending == ".json":
            self.file.write(FORMATS[".json"](_record(self.results)))

    @contextmanager
    def _load(self, backend: str, draft_backend: str) -> Iterator[Pair]:
        model, drafter = self.loading["model"], self.loading["model_draft"]
        sides = plan_sides(model, drafter, backend, draft_backend, self.loading)
        with load_pair(
            sides,
            self._need_ctx,
            verbose=self.output.verbose,
            cached=True,
            progress=self.progress,
        ) as pair:
            if self.plan.profile is not None and self.options.profile is not None:
                check_profile(self.plan.profile, self.options.profile, pair)
            self._describe(pair)
            total = self.plan.runs_an_arm * len(self.plan.arms)
            with self.progress.task("measuring", total) as report:
                self._report = report
                yield pair

    def _need_ctx(self, tokenizer: Tokenizer) -> int:
        lengths = [
            len(encode_prompt(tokenizer, prompt.text, raw=self.plan.raw, chat=self.plan.chat))
            for prompt in self.plan.prompts
        ]
        widest = max(arm.longest_draft for arm in self.plan.arms) + 1
        return max(lengths) + self.plan.n + widest

    def _describe(self, pair: Pair) -> None:
        roles = dict(zip(["verifier", "drafter"], pair.models, strict=False))
        names = [name for arm in self.plan.arms for name in (arm.backend, arm.draft_backend)]
        with self.progress.task("hashing models", 1.0) as report:
            facts = provenance(roles, names, sys.argv[1:], report)
        self.tracing.provenance = facts
        known = self.results.provenance.get("models", {})
        keyed = {f"{roles[role].name} ({role})": about for role, about in facts["models"].items()}
        self.results.provenance |= {**facts, "models": {**known, **keyed}}
        if any(arm.gamma == "auto" for arm in self.plan.arms):
            given = self.options.profile
            costs = pair.costs_by if given is None else f"profile {given.name}"
            self.results.provenance["costs"] = costs


def _plan(options: SweepOptions, asked: PromptOptions, chat: ChatOptions) -> Plan:
    return Plan(
        arms=options.arms(),
        prompts=asked.prompts(asked.suite),
        n=asked.predict,
        repetitions=asked.repetitions,
        seed=asked.seed,
        ignore_eos=asked.ignore_eos,
        raw=asked.raw,
        chat=chat,
        profile=options.costs(),
    )


def _identity(plan: Plan, options: SweepOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that two runs of the command must share to be one sweep."""
    profile = {} if options.profile is None else {"profile": options.profile.name}
    return {
        "model": Path(options.model).name,
        "model_draft": options.model_draft and Path(options.model_draft).name,
        "prompts": [f"{p.id} {zlib.crc32(p.text.encode()):08x}" for p in plan.prompts],
        "n": plan.n,
        "repetitions": plan.repetitions,
        "seed": plan.seed,
        "ignore_eos": plan.ignore_eos,
        "raw": plan.raw,
        **asked_of_template(given),
        **profile,
        "arms": [_words(arm) for arm in plan.arms],
        "options": {name: given[name] for name in given if name in OPTIONS and given[name]},
    }


def _words(arm: Arm) -> str:
    """An arm as 0.1.0 wrote it, so that its sweeps can be resumed; newer settings are named."""
    record = arm.record()
    named = {each.name for each in fields(ArmRecord) if each.default is None}
    known = [str(value) for name, value in record.items() if name not in named]
    news = {name: record[name] for name in record if name in named and record[name] is not None}
    if news.get("draft") == "model":
        del news["draft"]
    return " ".join([*known, *(f"{name}={value}" for name, value in news.items())])


def _resumed(path: Path, identity: dict[str, Any]) -> Results:
    results = read_results(path)
    before = results.provenance.get("sweep", {})
    for key, value in identity.items():
        if before.get(key) != value:
            raise UsageError(
                f"{path} holds another sweep ({key}: {_difference(before.get(key), value)}); "
                "repeat its options, or choose another -o"
            )
    return results


def _difference(before: Any, now: Any) -> str:
    """The first entries that differ, where these are lists."""
    if isinstance(before, list) and isinstance(now, list):
        pairs = zip_longest(before, now, fillvalue="none")
        before, now = next((pair for pair in pairs if pair[0] != pair[1]), (before, now))
    return f"{before}, now {now}"
