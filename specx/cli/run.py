"""`specx run`: text with the verifier's own distribution, faster where possible."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

from specx import Result, Session, Stop, interrupts
from specx.cli.drafting import DRAFTING, Chosen, DraftOptions
from specx.cli.files import Command, InputFile
from specx.cli.generating import (
    MARKS,
    NO_DRAFT,
    RULE,
    VERBOSE,
    Interruptible,
    loading_of,
    refuse_template_options,
    seed_option,
    settings_of,
    sides_of,
    stop_option,
)
from specx.cli.load import FIELDS, load_pair
from specx.cli.options import (
    MODELS,
    RUNTIME,
    SAMPLING,
    TEMPLATE,
    add_options,
    chat_options,
    pick,
)
from specx.cli.progress import Progress, Reading
from specx.cli.prompt import from_argument, from_file, from_input
from specx.cli.show import Printing
from specx.cli.streams import is_terminal
from specx.cli.tracing import TRACE, Described, Tracing
from specx.core.sampling import SAMPLING_ORDER
from specx.core.streams import draw_seed
from specx.errors import UsageError
from specx.interrupts import held
from specx.runtime.backend import Tokenizer
from specx.runtime.fatal import last_words
from specx.runtime.prefill import PREFILL_SLICE
from specx.session.chat import ChatOptions, encode_chat, encode_raw, has_template, model_template
from specx.session.generation import Generation

__all__ = ["run"]

SAMPLE_PROMPT = "def fibonacci(n):"

EPILOG = """\b
Filters apply in this order: temperature, top-k, top-p, min-p, each renormalising before the next.
llama.cpp's own tools apply the temperature last and use other defaults (top-k 40, top-p 0.95,
min-p 0.05). Repetition penalties, grammars and logit bias are not supported.
An option without a suffix applies to both models; with the suffix d (-ngld, -cd), only to the
drafter."""


PROMPT = [
    click.option(
        "-p",
        "--prompt",
        help="The prompt; without -p or -f, standard input (UTF-8, without one final newline).",
    ),
    click.option(
        "-f",
        "--file",
        type=InputFile(),
        help="Read the prompt from a file, like standard input.",
    ),
    click.option("-sys", "--system-prompt", help="System message for the chat template."),
    *TEMPLATE,
]

GENERATION = [
    click.option(
        "-n",
        "--predict",
        "--max-tokens",
        type=click.IntRange(min=0),
        default=256,
        show_default=True,
        help="Maximum number of tokens to generate.",
    ),
    RULE,
    *SAMPLING,
    seed_option(
        "the same seed and settings reproduce a text.  [default: drawn, and shown in the footer]"
    ),
    stop_option("text"),
    click.option("--ignore-eos", is_flag=True, help="Continue after an end token."),
    NO_DRAFT,
    click.option(
        "--no-cache", is_flag=True, help="Feed the whole text at every step (a slow baseline)."
    ),
]

OUTPUT = [
    TRACE,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else."),
    click.option("--no-stream", is_flag=True, help="Print the text when it is complete."),
    *MARKS,
    click.option("-q", "--quiet", is_flag=True, help="No footer and no progress."),
    VERBOSE,
]


@click.command(cls=Command, epilog=EPILOG)
@add_options([*MODELS, *PROMPT, *GENERATION, *DRAFTING, *RUNTIME, *OUTPUT])
def run(**given: Any) -> int:
    """Generate text with a verifier and, for speed, a drafter."""
    return _Run(given).run()


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options of PROMPT and GENERATION."""

    prompt: str | None
    file: Path | None
    system_prompt: str | None
    raw: bool
    template_arg: dict[str, Any]
    template_date: str | None
    predict: int
    rule: str
    seed: int | None
    stop: Sequence[str]
    ignore_eos: bool
    no_cache: bool


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The options of OUTPUT."""

    trace_file: Path | None
    as_json: bool
    no_stream: bool
    color: str
    show: Literal["origin", "entropy"]
    quiet: bool
    verbose: bool


class _Run:
    """One run, from options to printed output."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.text = pick(TextOptions, given)
        self.output = pick(OutputOptions, given)
        self.drafting = pick(DraftOptions, given)
        seed = draw_seed() if self.text.seed is None else self.text.seed
        self.settings = settings_of(given, self.drafting, seed)
        self.demo = given["model"] is None
        self.loading = loading_of(given, self.drafting)
        self.sides = sides_of(self.loading)
        self.chat = chat_options(given)
        self.prompt = _read_prompt(self.text, self.demo)
        self.chosen = Chosen(self.drafting)
        self.progress = Progress(enabled=not self.output.quiet)

    def run(self) -> int:
        """Load, generate and print; return the exit code."""
        if self.prompt is SAMPLE_PROMPT and not (self.output.quiet or self.output.as_json):
            click.echo(f"specx: no prompt given; using an example: {self.prompt}\n", err=True)
        with ExitStack() as stack:
            with held():  # else Ctrl-C may leave an empty trace behind
                tracing = stack.enter_context(Tracing(self.output.trace_file, self.progress))
            pair = stack.enter_context(
                load_pair(
                    self.sides,
                    lambda tokenizer: len(self._encode(tokenizer)) + self.text.predict,
                    verbose=self.output.verbose,
                    cached=not self.text.no_cache,
                    progress=self.progress,
                )
            )
            tokens = self._encode(pair.verifier.tokenizer)
            if not tokens:
                raise UsageError(
                    "the prompt is empty and the model has no token to begin a text with; "
                    "write a prompt (-p 'Once upon a time')"
                )
            session = stack.enter_context(
                Session(pair, costs=self.chosen.costs(pair, self.settings))
            )
            result = self._generate(session, tokens, tracing)
        return interrupts.exit_code() if result.stop_reason == "interrupted" else 0

    def _generate(self, session: Session, tokens: list[int], tracing: Tracing) -> Result:
        printing = Printing(self.output, self.shown, self._record)
        rounds = session.rounds(
            tokens,
            self.settings,
            Stop(
                session.pair.verifier.tokenizer,
                self.text.predict,
                stops=self.text.stop,
                ignore_eos=self.text.ignore_eos,
            ),
            # The trace of choices ends last: if it cannot be written, the text is already out.
            [
                tracing.of(self._described),
                Reading(self.progress),
                printing,
                Interruptible(),
                self.chosen,
            ],
            schedule=self.chosen.schedule,
            live=self.drafting.live,
            size=self.loading["n_batch"] or PREFILL_SLICE,
            keep_logits=tracing.wanted or printing.shades,
        )
        with held(), last_words(lambda reason: rounds.generation.finish("failed")):
            for _ in rounds:
                pass
        return rounds.result

    def _encode(self, tokenizer: Tokenizer) -> list[int]:
        return _encode(tokenizer, self.prompt, self.text, self.chat)

    def _described(self, generation: Generation) -> Described:
        backends = [side.factory.name for side in self.sides]
        return Described(prompt=self.prompt, backends=backends, shown=self.shown(generation))

    def _record(self, generation: Generation, result: Result) -> dict[str, Any]:
        """The result, as ``--json`` prints it."""
        models = zip(["verifier", "drafter"], generation.pair.models, self.sides, strict=False)
        return {
            **result.record(),
            "settings": self.shown(generation),
            "models": {
                role: {"backend": side.factory.name, **model.describe()}
                for role, model, side in models
            },
            "backend": self.loading["backend"],
        }

    def shown(self, generation: Generation) -> dict[str, Any]:
        """The settings, as ``--json`` prints them."""
        settings, text, drafters = self.settings, self.text, generation.drafters
        pair = generation.pair
        return {
            **asdict(settings.sampling),
            "filter_order": list(SAMPLING_ORDER),
            "seed": settings.seed,
            "gamma": settings.gamma if drafters else 0,
            "gamma_by": self.chosen.by(generation),
            "rule": "greedy" if settings.sampling.greedy else settings.rule,
            "predict": text.predict,
            "stop": list(text.stop),
            "ignore_eos": text.ignore_eos,
            "demo_pair": self.demo,
            "draft": [drafter.kind for drafter in drafters],
            "draft_sampling": settings.draft_sampling and asdict(settings.draft_sampling),
            "entropy_stop": settings.entropy_stop,
            "draft_p_min": settings.draft_p_min,
            "cache": not text.no_cache,
            **_template_settings(pair.verifier.tokenizer, text, self.chat),
            "n_prompt": generation.n_prompt,
            "n_ctx": [model.n_ctx for model in pair.models],
            "draft_backend": self.loading["draft_backend"] or self.loading["backend"],
            **{field: self.loading[field] for field in FIELDS if field != "n_ctx"},
        }


def _read_prompt(text: TextOptions, demo: bool) -> str:
    if text.prompt is not None and text.file is not None:
        raise UsageError("-p and -f were both given; leave one out")
    if text.prompt is not None:
        return from_argument(text.prompt)
    if text.file is not None:
        return from_file(text.file)
    if sys.stdin is None or is_terminal(sys.stdin):
        if demo:
            return SAMPLE_PROMPT
        raise UsageError("no prompt; pass -p TEXT, -f FILE, or pipe one in")
    return from_input()


def _encode(tokenizer: Tokenizer, prompt: str, text: TextOptions, chat: ChatOptions) -> list[int]:
    """The prompt's tokens, through the chat template if there is one."""
    system = text.system_prompt
    if _template_name(tokenizer, text) == "none":
        refuse_template_options(system, chat, text.template_date, raw=text.raw)
        return encode_raw(tokenizer, prompt)
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return encode_chat(tokenizer, messages, options=chat)


def _template_name(tokenizer: Tokenizer, text: TextOptions) -> str:
    return "none" if text.raw or not has_template(tokenizer) else "the model's own"


def _template_settings(
    tokenizer: Tokenizer, text: TextOptions, chat: ChatOptions
) -> dict[str, Any]:
    """Settings besides the text that determine the prompt's tokens; the date only if used."""
    name = _template_name(tokenizer, text)
    shown: dict[str, Any] = {"template": name, "template_args": text.template_arg}
    if name != "none" and model_template(tokenizer, chat).asks_date:
        shown["template_date"] = str(chat.today)
    return shown
