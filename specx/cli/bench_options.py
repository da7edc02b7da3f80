"""Options of `specx bench`, and the arms and prompts that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from specx.bench import (
    Arm,
    ArmRecord,
)
from specx.bench.render import FORMATS
from specx.bench.suites import OWN, Prompt, read_prompts, suite
from specx.bench.values import choices, combinations, gammas, numbers
from specx.cli.bench_tracing import BENCH_TRACE
from specx.cli.drafting import DRAWING, DrawOptions
from specx.cli.files import InputFile, OutputPath
from specx.cli.prompt import from_argument
from specx.codec import MOST_GAMMA
from specx.core.rules import RULES
from specx.drafters import get_drafter, installed_drafters
from specx.errors import UsageError
from specx.output import OutputFile
from specx.runtime.backend import installed_backends
from specx.schedule.costs.curve import Profile, read_profile

__all__ = ["EPILOG", "OUTPUT", "PROMPT", "SWEEP", "OutputOptions", "PromptOptions", "SweepOptions"]

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


def _typed(*options: str) -> bool:
    """True if any of `options` was given rather than left at its default."""
    sources = map(click.get_current_context().get_parameter_source, options)
    return any(source is not ParameterSource.DEFAULT for source in sources)
