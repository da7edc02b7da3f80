"""`specx bench`: the verifier alone against speculation, and what a pass costs."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from specx.bench import (
    Arm,
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
from specx.bench.suites import read_prompts, suite
from specx.bench.values import choices, numbers, whole_numbers
from specx.cli.bench_tracing import BENCH_TRACE, BenchTracing, refuse_clashes
from specx.cli.curve import measure_curves
from specx.cli.files import Command, InputFile, OutputPath
from specx.cli.load import FIELDS, load_pair, plan_sides, with_demo_pair
from specx.cli.options import (
    MODELS,
    RUNTIME,
    add_options,
    asked_of_template,
    chat_options,
    prompt_options,
)
from specx.cli.progress import Progress
from specx.cli.tables import print_comparison, print_results
from specx.codec import MOST_GAMMA, to_json
from specx.core.rules import RULES
from specx.errors import SpecxError, UsageError
from specx.interrupts import held
from specx.output import OutputFile
from specx.runtime.backend import Tokenizer, installed_backends
from specx.runtime.machine import Watch, peak_memory_mib, provenance
from specx.session.pair import Pair

__all__ = ["bench"]

INTERRUPTED = 130
OPTIONS = frozenset({*FIELDS, *(f"{field}_draft" for field in FIELDS)} - {"weights_cache"})
"""Of loading; each may change the speed."""

SWEEP = [
    click.option(
        "--gamma", default="2,4,8", show_default=True, help="Tokens to propose in a round."
    ),
    click.option(
        "--rule", default="block", show_default=True, help="Of: " + ", ".join(RULES) + "."
    ),
    click.option("--temp", default="0.7", show_default=True, help="Temperature; 0 is greedy."),
    click.option("--top-p", default="0.9", show_default=True, help="1 is off."),
    click.option("--top-k", type=int, default=0, show_default=True, help="One value; 0 is off."),
    click.option("--min-p", type=float, default=0.0, show_default=True, help="One value."),
    click.option("--cache", is_flag=True, help="Arms with KV caches (the default)."),
    click.option("--no-cache", is_flag=True, help="Arms without; with --cache, both."),
]


def _kind_of_output(given: Mapping[str, Any]) -> str | None:
    if given["resume"]:
        return None  # what is not a result cannot be resumed
    return "profile" if given["curve"] else "bench result"


OUTPUT = [
    click.option(
        "--curve", is_flag=True, help="Measure what a pass costs by its width, and nothing else."
    ),
    click.option("--widths", default="1-32", show_default=True, help="Widths of --curve."),
    click.option(
        "-o",
        "--output",
        type=OutputPath(_kind_of_output),
        help="Write to this file: " + ", ".join(FORMATS) + ".",
    ),
    click.option("--resume", is_flag=True, help="Go on with what -o FILE.json holds."),
    BENCH_TRACE,
    click.option(
        "--load",
        "loaded",
        multiple=True,
        type=InputFile(),
        help="Show an earlier -o FILE.json instead; repeat to compare.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log."),
]

EPILOG = """\b
--gamma, --temp, --top-p, --rule and --backend take lists (2,4,8) and the numbers ranges (1-8,
2-10+4). All arms of one sampler take turns on each prompt, after a warm-up, from empty caches.
speed-up    median over prompts of the median of paired ratios, and its bootstrap interval
predicted   from the measured cost curve and the measured acceptance by position
textbook    from alpha alone, as if a pass of any width cost the same
A sweep with -o FILE.json is written after each prompt; --resume goes on with it."""


@click.command(cls=Command, epilog=EPILOG)
@add_options([*MODELS, *SWEEP, *prompt_options("all:1"), *RUNTIME, *OUTPUT])
@click.argument("files", nargs=-1, type=InputFile(), metavar="[FILES]...")
def bench(**given: Any) -> int:
    """Measure the speed of a pair against its verifier alone.

    FILES are more files for --load.
    """
    if given["loaded"]:
        refuse_clashes(given)
        return _show([*given["loaded"], *given["files"]], given)
    if given["files"]:
        raise UsageError(f"unexpected argument {given['files'][0]}; --load shows earlier files")
    if given["model"] is not None and given["model_draft"] is None and _typed("gamma", "rule"):
        raise UsageError("--gamma and --rule need a drafter; add -md DRAFTER")
    output = _output(given)
    refuse_clashes(given)
    progress = Progress(enabled=not given["quiet"])
    if given["curve"]:
        return measure_curves(with_demo_pair(given), output, progress)
    return _Sweep(given, output, progress).run()


def _typed(*options: str) -> bool:
    """Whether one of `options` was given, not left at its default."""
    sources = map(click.get_current_context().get_parameter_source, options)
    return any(source is not ParameterSource.DEFAULT for source in sources)


def _show(files: list[Path], given: dict[str, Any]) -> int:
    if given["output"] is not None:
        raise UsageError(f"-o {given['output']} is for what is measured; leave out -o or --load")
    records = {str(file): _record(read_results(file)) for file in files}
    if given["as_json"]:
        click.echo(to_json(records))
        return 0
    for file, record in records.items():
        click.echo(f"{file}\n")
        print_results(record)
    if len(records) > 1:
        print_comparison(records)
    return 0


def _record(results: Results) -> dict[str, Any]:
    return results_record(results, summarise(results))


def _output(given: dict[str, Any]) -> OutputFile | None:
    path: Path | None = given["output"]
    if given["resume"] and (path is None or path.suffix != ".json" or given["curve"]):
        raise UsageError("--resume goes on with a sweep's file; add -o FILE.json")
    if path is None:
        return None
    endings = [".json"] if given["curve"] else list(FORMATS)
    if path.suffix not in endings:
        raise UsageError(f"-o {path} has no known ending; use one of {', '.join(endings)}")
    return OutputFile(path)


class _Sweep:
    """One sweep from its options to what is printed."""

    def __init__(
        self, given: dict[str, Any], output: OutputFile | None, progress: Progress
    ) -> None:
        self.given, self.output, self.progress = with_demo_pair(given), output, progress
        self.plan = _plan(self.given)
        self.results = Results(n=self.plan.n)
        self.identity = _identity(self.plan, self.given)
        if given["resume"] and output is not None and output.path.exists():
            self.results = _resumed(output.path, self.identity)
        self.results.provenance.setdefault("sweep", self.identity)
        self.watch = Watch()
        self._report: Callable[[float], None] = lambda runs: None

    def run(self) -> int:
        """Measure, print and write; the exit code."""
        with ExitStack() as stack:
            with held():  # else Ctrl-C may leave an empty trace behind
                self.tracing = stack.enter_context(
                    BenchTracing(self.given["trace_file"], self.plan)
                )
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
            if self.results.n_done > before:  # an error later on does not cost what was measured
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
        if self.given["as_json"]:
            click.echo(to_json(record))
        elif not self.results.n_done:
            click.echo("specx: interrupted before every arm had run once", err=True)
        else:
            print_results(record)

    def _write(self, record: dict[str, Any]) -> None:
        """After printing, so that a disk that filled up meanwhile does not cost the results."""
        if self.output is not None and self.results.n_done:
            self.output.write(FORMATS[self.output.ending](record))
            if not self.given["as_json"]:
                click.echo(f"written to {self.given['output']}", err=True)

    def _save(self) -> None:
        """After each prompt, so that nothing measured is lost."""
        if self.output is not None and self.output.ending == ".json":
            self.output.write(FORMATS[".json"](_record(self.results)))

    @contextmanager
    def _load(self, backend: str, draft_backend: str) -> Iterator[Pair]:
        given = self.given
        sides = plan_sides(given["model"], given["model_draft"], backend, draft_backend, given)
        with load_pair(
            sides, self._need_ctx, verbose=given["verbose"], cached=True, progress=self.progress
        ) as pair:
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
        widest = max((arm.gamma for arm in self.plan.arms), default=0) + 1
        return max(lengths) + self.plan.n + widest

    def _describe(self, pair: Pair) -> None:
        roles = dict(zip(["verifier", "drafter"], pair.models, strict=False))
        names = [name for arm in self.plan.arms for name in (arm.backend, arm.draft_backend)]
        with self.progress.task("hashing models", 1.0) as report:
            found = provenance(roles, names, sys.argv[1:], report)
        self.tracing.provenance = found
        known = self.results.provenance.get("models", {})
        keyed = {f"{roles[role].name} ({role})": about for role, about in found["models"].items()}
        self.results.provenance |= {**found, "models": {**known, **keyed}}


def _plan(given: dict[str, Any]) -> Plan:
    prompts = read_prompts(given["file"]) if given["file"] is not None else suite(given["suite"])
    return Plan(
        arms=_arms(given),
        prompts=prompts,
        n=given["predict"],
        repetitions=given["repetitions"],
        seed=given["seed"],
        ignore_eos=given["ignore_eos"],
        raw=given["raw"],
        chat=chat_options(given),
    )


def _arms(given: dict[str, Any]) -> list[Arm]:
    """Each sampler's baseline before the arms that are measured against it."""
    gammas = [gamma for gamma in whole_numbers("--gamma", given["gamma"], MOST_GAMMA) if gamma]
    backends = choices("--backend", given["backend"], installed_backends())
    rules = choices("--rule", given["rule"], list(RULES))
    caches = [True] * (given["cache"] or not given["no_cache"]) + [False] * given["no_cache"]
    arms: dict[Arm, None] = {}
    for backend in backends:
        for temperature in numbers("--temp", given["temp"]):
            for top_p in numbers("--top-p", given["top_p"]):
                base = _baseline(backend, temperature, top_p, given)
                arms[base] = None
                arms |= _against(base, gammas, rules, caches) if given["model_draft"] else {}
    return list(arms)


def _baseline(backend: str, temperature: float, top_p: float, given: dict[str, Any]) -> Arm:
    arm = Arm(
        backend=backend,
        draft_backend=(given["model_draft"] and given["draft_backend"]) or backend,
        temperature=temperature,
        top_k=given["top_k"],
        top_p=top_p,
        min_p=given["min_p"],
        gamma=0,
        rule="-",
    )
    _ = arm.sampling  # refuses values out of range
    return arm


def _against(base: Arm, gammas: list[int], rules: list[str], caches: list[bool]) -> dict[Arm, None]:
    rules = ["greedy"] if base.sampling.greedy else rules
    return {
        replace(base, gamma=gamma, rule=rule, cached=cached): None
        for cached in caches
        for gamma in gammas
        for rule in rules
    }


def _identity(plan: Plan, given: dict[str, Any]) -> dict[str, Any]:
    """What must be equal for two runs of the command to be one sweep."""
    return {
        "model": Path(given["model"]).name,
        "model_draft": given["model_draft"] and Path(given["model_draft"]).name,
        "prompts": [f"{p.id} {zlib.crc32(p.text.encode()):08x}" for p in plan.prompts],
        "n": plan.n,
        "repetitions": plan.repetitions,
        "seed": plan.seed,
        "ignore_eos": plan.ignore_eos,
        "raw": plan.raw,
        **asked_of_template(given),
        "arms": [" ".join(map(str, asdict(arm).values())) for arm in plan.arms],
        "options": {name: given[name] for name in given if name in OPTIONS and given[name]},
    }


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
