"""`specx bench`: speculation against the verifier alone, and the cost of a pass by width."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

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
from specx.bench.suites import OWN, Prompt, read_prompts, suite
from specx.bench.values import choices, combinations, gammas, numbers
from specx.cli.bench_tracing import BENCH_TRACE, BenchTracing
from specx.cli.curve import CurveOptions, measure_curves
from specx.cli.drafting import DRAWING, DrawOptions, check_profile
from specx.cli.files import Command, InputFile, OutputPath
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
from specx.cli.prompt import from_argument
from specx.cli.tables import print_comparison, print_results
from specx.codec import MOST_GAMMA, to_json
from specx.core.rules import RULES
from specx.drafters import get_drafter, installed_drafters
from specx.errors import SpecxError, UsageError
from specx.interrupts import held
from specx.output import OutputFile
from specx.runtime.backend import Tokenizer, installed_backends
from specx.runtime.machine import Watch, peak_memory_mib, provenance
from specx.schedule.costs.curve import Profile, read_profile
from specx.session.chat import ChatOptions
from specx.session.pair import Pair

__all__ = ["bench"]

INTERRUPTED = 130
OPTIONS = frozenset({*FIELDS, *(f"{field}_draft" for field in FIELDS)} - {"weights_cache"})
"""Load options that may change the speed."""

SWEEP = [
    click.option(
        "--gamma",
        default="2,4,8",
        show_default=True,
        help="Tokens to draft per round; auto picks the fastest number each round.",
    ),
    click.option(
        "--draft",
        help="Drafters, each measured separately: model, lookup, or model+lookup to choose between "
        "them each round (needs --gamma auto).  [default: model with -md]",
    ),
    click.option(
        "--rule",
        default="block",
        show_default=True,
        help="Acceptance rules: " + ", ".join(RULES) + ".",
    ),
    click.option("--temp", default="0.7", show_default=True, help="Temperature; 0 is greedy."),
    click.option("--top-p", default="0.9", show_default=True, help="1 is off."),
    click.option("--top-k", type=int, default=0, show_default=True, help="One value; 0 is off."),
    click.option("--min-p", type=float, default=0.0, show_default=True, help="One value."),
    click.option("--cache", is_flag=True, help="Measure arms with KV caches (default)."),
    click.option("--no-cache", is_flag=True, help="Measure arms without them; with --cache, both."),
    *DRAWING,
]

PROMPT = click.option(
    "-p",
    "--prompt",
    multiple=True,
    help="A prompt to use instead of a suite, as in specx run; repeatable.",
)


def _kind_of_output(given: Mapping[str, Any]) -> str | None:
    if given["resume"]:
        return None  # resuming checks the file itself
    return "profile" if given["curve"] else "bench result"


OUTPUT = [
    click.option("--curve", is_flag=True, help="Measure only the cost of a pass by its width."),
    click.option("--widths", default="1-32", show_default=True, help="Widths for --curve."),
    click.option(
        "-o",
        "--output",
        type=OutputPath(_kind_of_output),
        help="Write to this file: " + ", ".join(FORMATS) + ".",
    ),
    click.option("--resume", is_flag=True, help="Continue the sweep in -o FILE.json."),
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
--gamma, --draft, --temp, --top-p, --rule and --backend take lists (2,4,8); numbers also take ranges
(1-8, 2-10+4). The verifier alone is always measured. All arms with the same sampler take turns on
each prompt, after a warm-up, with empty caches. auto starts afresh in each run and learns from
measured times, as specx run does without -s, so a seed does not reproduce its text.
speed-up    median over prompts of the median of paired ratios, and its bootstrap interval
predicted   from the measured cost curve and the measured acceptance by position
textbook    from alpha alone, as if a pass of any width cost the same
Both assume a draft model that proposes gamma tokens each round; neither covers auto or lookup.
A sweep with -o FILE.json is written after each prompt; --resume continues it."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(DrawOptions):
    """The options of SWEEP and MODELS, which define the arms."""

    model: str
    model_draft: str | None
    backend: str
    draft_backend: str | None
    gamma: str
    draft: str | None
    rule: str
    temp: str
    top_p: str
    top_k: int
    min_p: float
    cache: bool
    no_cache: bool

    def arms(self) -> list[Arm]:
        """The arms, each sampler's baseline before those that are measured against it."""
        backends = choices("--backend", self.backend, installed_backends())
        samplers = product(numbers("--temp", self.temp), numbers("--top-p", self.top_p))
        drafting = self._drafting()
        arms: dict[Arm, None] = {}
        for backend, (temperature, top_p) in product(backends, list(samplers)):
            alone = ArmRecord(
                backend=backend,
                draft_backend=(self.model_draft and self.draft_backend) or backend,
                temperature=temperature,
                top_k=self.top_k,
                top_p=top_p,
                min_p=self.min_p,
                gamma=0,
                rule="-",
            )
            records = [alone, *(replace(alone, **changes) for changes in drafting)]
            arms |= dict.fromkeys(record.arm() for record in records)
        return list(arms)

    def _drafting(self) -> list[dict[str, Any]]:
        """The settings in which each drafting arm differs from its baseline."""
        drafts, rules = self._drafts(), choices("--rule", self.rule, list(RULES))
        listed = self._gammas(drafts)
        caches = [True] * (self.cache or not self.no_cache) + [False] * self.no_cache
        drawn = {
            "draft_temperature": self.draft_temperature,
            "draft_top_k": self.draft_top_k,
            "draft_top_p": self.draft_top_p,
            "entropy_stop": self.entropy_stop,
            "draft_p_min": self.draft_p_min,
        }
        return [
            {**drawn, "draft": "+".join(names), "gamma": gamma, "rule": rule, "cached": cached}
            for cached, names, gamma, rule in product(caches, drafts, listed, rules)
            if gamma == "auto" or (gamma and len(names) == 1)
        ]

    def _gammas(self, drafts: Sequence[tuple[str, ...]]) -> list[int | Literal["auto"]]:
        """The gammas of --gamma. Refuses options that need a gamma that is not listed."""
        listed = gammas("--gamma", self.gamma, MOST_GAMMA)
        if any(listed) and not drafts and _typed("gamma", "rule"):
            raise UsageError("--gamma and --rule need a drafter; add -md DRAFTER or --draft lookup")
        remedy = f"write --gamma {self.gamma},auto"
        if "auto" not in listed and (several := [names for names in drafts if len(names) > 1]):
            raise UsageError(
                f"--draft {'+'.join(several[0])} chooses a drafter each round, as only auto can; "
                + remedy
            )
        if "auto" not in listed and self.profile is not None:
            raise UsageError(f"--profile {self.profile} is used only by auto; {remedy}")
        return listed

    def _drafts(self) -> list[tuple[str, ...]]:
        """The drafters of each arm."""
        if self.draft is None:
            return [] if self.model_draft is None else [("model",)]
        drafts = combinations("--draft", self.draft, installed_drafters())
        needed = any(get_drafter(name).needs_model for names in drafts for name in names)
        if needed and self.model_draft is None:
            raise UsageError(f"--draft {self.draft} needs a drafter; add -md DRAFTER.gguf")
        if not needed and _typed("model_draft"):
            raise UsageError(
                f"-md {self.model_draft} is not used by --draft {self.draft}; leave one out, or "
                "give --draft model,lookup"
            )
        return drafts

    def costs(self) -> Profile | None:
        """The measured costs that auto starts from, if a profile was given."""
        if self.profile is None:
            return None
        if "," in self.backend:
            raise UsageError(
                f"--profile {self.profile} covers one runtime, and --backend is {self.backend}; "
                "measure one backend at a time"
            )
        return read_profile(self.profile)


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """The options of PROMPT and `prompt_options`."""

    prompt: Sequence[str]
    suite: str
    file: Path | None
    raw: bool
    predict: int
    repetitions: int
    seed: int
    ignore_eos: bool

    def prompts(self, default: str) -> list[Prompt]:
        """The prompts to measure, by default those of the suite `default`."""
        if not self.prompt:
            return suite(default) if self.file is None else read_prompts(self.file)
        for flag, given in (("-f", self.file is not None), ("--suite", _typed("suite"))):
            if given:
                raise UsageError(f"-p and {flag} were both given; leave one out")
        return [
            Prompt(f"{OWN}-{number}", OWN, from_argument(text))
            for number, text in enumerate(self.prompt, 1)
        ]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The options of OUTPUT."""

    curve: bool
    output: Path | None
    resume: bool
    trace_file: Path | None
    loaded: Sequence[Path]
    as_json: bool
    quiet: bool
    verbose: bool

    def refuse_clashes(self) -> None:
        """Refuse options that cannot be combined with --trace."""
        clashes = {"--load": self.loaded, "--resume": self.resume, "--curve": self.curve}
        for flag, given in clashes.items():
            if given and self.trace_file is not None:
                raise UsageError(
                    f"--trace {self.trace_file} records only whole sweeps; "
                    f"leave out --trace or {flag}"
                )

    def file(self) -> OutputFile | None:
        """The file for the results, if any."""
        path = self.output
        if self.resume and (path is None or path.suffix != ".json" or self.curve):
            raise UsageError("--resume continues a sweep's file; add -o FILE.json")
        if path is None:
            return None
        endings = [".json"] if self.curve else list(FORMATS)
        if path.suffix not in endings:
            raise UsageError(
                f"-o {path} has no supported extension; use one of {', '.join(endings)}"
            )
        return OutputFile(path)


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


def _typed(*options: str) -> bool:
    """True if any of `options` was given rather than left at its default."""
    sources = map(click.get_current_context().get_parameter_source, options)
    return any(source is not ParameterSource.DEFAULT for source in sources)


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
