"""`specx run`: text that the verifier would have written, faster where that can be."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from specx import RULES, Pair, SamplingParams, Settings, Stop, Tally
from specx.backend import Tokenizer
from specx.chat import encode_chat
from specx.cli.drafting import DRAFTING, Chosen, draft_settings, drafter_needed, estimate
from specx.cli.load import FIELDS, Side, load_pair, plan_sides
from specx.cli.options import MODELS, RUNTIME, SAMPLING, add_options
from specx.cli.progress import Progress
from specx.cli.show import Writer, footer, legend, wants_styles
from specx.cli.tracing import TRACE, Tracing
from specx.codec import to_json
from specx.errors import UsageError
from specx.models import demo_pair
from specx.pair import PREFILL_SLICE
from specx.stats import Choices
from specx.streams import draw_seed
from specx.trace.uncertainty import ENTROPY_STEPS

__all__ = ["run"]

DEFAULT_RULE = "block"
SAMPLE_PROMPT = "def fibonacci(n):"

EPILOG = """\b
Filters apply in this order: temperature, top-k, top-p, min-p, each renormalising before the next.
llama.cpp's own tools apply the temperature last and have other defaults (top-k 40, top-p 0.95,
min-p 0.05). Repetition penalties, grammars and logit bias are not supported.
An option without suffix goes to both models; the same option with the suffix d (-ngld, -cd) is the
drafter's alone."""


PROMPT = [
    click.option("-p", "--prompt", help="The prompt; without -p or -f, standard input."),
    click.option(
        "-f", "--file", type=click.Path(path_type=Path), help="Read the prompt from a file."
    ),
    click.option("-sys", "--system-prompt", help="System message for the chat template."),
    click.option("--raw", is_flag=True, help="Do not apply the model's chat template."),
]

GENERATION = [
    click.option(
        "-n",
        "--predict",
        "--max-tokens",
        type=click.IntRange(min=0),
        default=256,
        show_default=True,
        help="Most tokens to write.",
    ),
    click.option(
        "--rule",
        type=click.Choice(list(RULES)),
        default=DEFAULT_RULE,
        show_default=True,
        help="How drafted tokens are accepted; all are exact, and block accepts most.",
    ),
    *SAMPLING,
    click.option(
        "-s",
        "--seed",
        type=click.IntRange(0, 2**64 - 1),
        help="Repeats a text under equal settings.  [default: drawn, and shown]",
    ),
    click.option("--stop", multiple=True, help="End the text before this string; repeatable."),
    click.option("--ignore-eos", is_flag=True, help="Go on after an end token."),
    click.option("--no-draft", is_flag=True, help="The verifier alone: same loop, same sampler."),
    click.option(
        "--no-cache", is_flag=True, help="Feed the whole text at every step (a baseline)."
    ),
]

OUTPUT = [
    TRACE,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else."),
    click.option("--no-stream", is_flag=True, help="Print the text at its end."),
    click.option(
        "--color",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Mark tokens, as --show says.",
    ),
    click.option(
        "--show",
        type=click.Choice(["origin", "entropy"]),
        default="origin",
        show_default=True,
        help="What the marks say: where a token came from, or how unsure the verifier was before "
        f"it; its entropy at temperature 1 is shaded from {', '.join(map(str, ENTROPY_STEPS))} "
        "nats on.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="No footer and no progress."),
    click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own log."),
]


@click.command(epilog=EPILOG)
@add_options([*MODELS, *PROMPT, *GENERATION, *DRAFTING, *RUNTIME, *OUTPUT])
def run(**given: Any) -> int:
    """Write a text with a verifier and, for speed, a drafter."""
    settings = _settings(given)
    sides = _sides(given)
    prompt = _read_prompt(given)
    progress = Progress(enabled=not given["quiet"])
    if prompt is SAMPLE_PROMPT and not (given["quiet"] or given["as_json"]):
        click.echo(f"specx: no prompt given; continuing one: {prompt}\n", err=True)

    def need_ctx(tokenizer: Tokenizer) -> int:
        return len(_encode(tokenizer, prompt, given)) + int(given["predict"])

    cached = not given["no_cache"]
    with (
        Tracing(given["trace_file"]) as tracing,
        load_pair(
            sides, need_ctx, verbose=given["verbose"], cached=cached, progress=progress
        ) as pair,
    ):
        tokens = _encode(pair.verifier.tokenizer, prompt, given)
        if not tokens:
            raise UsageError(
                "the prompt is empty and the model has no token to begin a text with; "
                "write a prompt (-p 'Once upon a time')"
            )
        generation = _Generation(pair, settings, sides, given, tokens, tracing)
        generation.begin_trace(prompt, progress)
        return generation.run(progress)


class _Generation:
    """One run from its prompt's tokens to what is printed."""

    def __init__(
        self,
        pair: Pair,
        settings: Settings,
        sides: list[Side],
        given: dict[str, Any],
        tokens: list[int],
        tracing: Tracing,
    ) -> None:
        self.pair, self.settings, self.sides, self.given = pair, settings, sides, given
        self.tracing = tracing
        self.n_prompt, self.tokens = len(tokens), tokens
        self.tally, self.choices = Tally(), Choices()
        self.prefill_s = 0.0
        self.chosen = Chosen.of(pair, settings, given)
        self.stop = Stop(
            pair.verifier.tokenizer,
            given["predict"],
            stops=given["stop"],
            ignore_eos=given["ignore_eos"],
        )
        self.writer = Writer(
            styled=wants_styles(given["color"], sys.stdout),
            stream=not (given["as_json"] or given["no_stream"]),
            mark=given["show"],
        )

    def begin_trace(self, prompt: str, progress: Progress) -> None:
        """Say in the trace what is about to run, before any of it does."""
        self.tracing.begin(
            self.pair,
            self.settings,
            self.tokens,
            prompt,
            backends=[side.factory.name for side in self.sides],
            shown=self._settings(),
            progress=progress,
        )

    def run(self, progress: Progress) -> int:
        """Generate and print; the exit code."""
        self._prefill(progress)
        try:
            self._decode()
        except KeyboardInterrupt:
            self.stop.reason = "interrupted"
        rest = self.stop.finish()
        self.writer.write(rest)
        self.tracing.end(self.tally, self.stop, self.prefill_s, rest, self._estimate())
        self._close()
        return 130 if self.stop.reason == "interrupted" else 0

    @property
    def _shades(self) -> bool:
        """Whether entropies are to be shown."""
        return self.writer.styled and self.writer.stream and self.writer.mark == "entropy"

    def _prefill(self, progress: Progress) -> None:
        clock = self.pair.verifier.clock
        begun = clock()
        with progress.task("reading the prompt", self.n_prompt - 1) as report:
            size = self.given["n_batch"] or PREFILL_SLICE
            self.pair.prefill(self.tokens, size=size, report=report)
        self.prefill_s = clock() - begun

    def _decode(self) -> None:
        clock = self.pair.verifier.clock
        begun = clock()
        try:
            schedule, keep = self.chosen.schedule, self.tracing.wanted or self._shades
            for done in self.pair.rounds(
                self.tokens, self.settings, self.stop, schedule, keep_logits=keep
            ):
                self.tally.add(done)
                self.choices.add(done)
                self.tracing.round(done)
                self.writer.round(done)
        finally:
            self.tally.total = clock() - begun

    def _close(self) -> None:
        self.chosen.write_trace()
        result = self._result()
        if self.given["as_json"]:
            click.echo(to_json(result))
            return
        self.writer.end()
        if self.given["quiet"]:
            return
        styled = self.writer.styled and wants_styles(self.given["color"], sys.stderr)
        for line in [
            "",
            *footer(result, self.tally, self.n_prompt),
            legend(styled and (self._shades or self.pair.drafter is not None), self.writer.mark),
        ]:
            click.echo(line, err=True, color=styled)

    def _result(self) -> dict[str, Any]:
        tally, names = self.tally, ["verifier", "drafter"]
        models = zip(names, self.pair.models, self.sides, strict=False)
        return {
            "text": "".join(self.writer.written),
            "tokens": self.tokens[self.n_prompt :],
            "n_tokens": tally.n_tokens,
            "stop_reason": self.stop.reason,
            "tok_s": tally.tok_s,
            "prefill_s": self.prefill_s,
            "rounds": tally.rounds,
            "alpha": tally.alpha,
            "kept": tally.kept,
            "tau": tally.tau,
            "expected_accepted": tally.expected_a_round(),
            "time": tally.time(),
            **self.choices.record(),
            "estimated": self._estimate(),
            "settings": self._settings(),
            "models": {
                role: {"backend": side.factory.name, **model.describe()}
                for role, model, side in models
            },
            "backend": self.given["backend"],
        }

    def _estimate(self) -> dict[str, Any] | None:
        return estimate(self.tally, self.choices, self.chosen.costs)

    def _settings(self) -> dict[str, Any]:
        sampling, given = self.settings.sampling, self.given
        drafters = self.pair.drafters(self.settings)
        return {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "filter_order": ["temperature", "top_k", "top_p", "min_p"],
            "seed": self.settings.seed,
            "gamma": self.settings.gamma if drafters else 0,
            "gamma_by": self.chosen.by,
            "rule": "greedy" if sampling.greedy else self.settings.rule,
            "predict": given["predict"],
            "stop": list(given["stop"]),
            "ignore_eos": given["ignore_eos"],
            "demo_pair": given["model"] is None,
            "draft": [drafter.kind for drafter in drafters],
            "draft_sampling": _sampling(self.settings.draft_sampling),
            "entropy_stop": self.settings.entropy_stop,
            "draft_p_min": self.settings.draft_p_min,
            "cache": not given["no_cache"],
            "template": _template_name(self.pair.verifier.tokenizer, given),
            "n_prompt": self.n_prompt,
            "n_ctx": [model.n_ctx for model in self.pair.models],
            "draft_backend": given["draft_backend"] or given["backend"],
            **{field: given[field] for field in FIELDS if field != "n_ctx"},
        }


def _settings(given: dict[str, Any]) -> Settings:
    sampling = SamplingParams(
        temperature=given["temp"],
        top_k=given["top_k"],
        top_p=given["top_p"],
        min_p=given["min_p"],
    )
    return Settings(
        sampling=sampling,
        rule=given["rule"],
        seed=draw_seed() if given["seed"] is None else given["seed"],
        **draft_settings(given, sampling),
    )


def _sampling(params: SamplingParams | None) -> dict[str, Any] | None:
    return None if params is None else asdict(params)


def _sides(given: dict[str, Any]) -> list[Side]:
    """Check what was asked for, and say which models to load how."""
    model, drafter = given["model"], given["model_draft"]
    if model is None and drafter is not None:
        raise UsageError(f"-md {drafter} needs a verifier to draft for; add -m VERIFIER.gguf")
    if model is None:
        model, drafter = demo_pair()
        # So small that threads wait for each other longer than they compute.
        given["threads"] = given["threads"] or 1
    if not drafter_needed(given, drafter):
        drafter = None
    if given["no_draft"]:
        given = {key: None if key.endswith("_draft") else value for key, value in given.items()}
    return plan_sides(model, drafter, given["backend"], given["draft_backend"], given)


def _read_prompt(given: dict[str, Any]) -> str:
    if given["prompt"] is not None and given["file"] is not None:
        raise UsageError("-p and -f were both given; one prompt is needed")
    if given["prompt"] is not None:
        return str(given["prompt"])
    if given["file"] is not None:
        return _read_file(given["file"])
    if sys.stdin is None or sys.stdin.isatty():
        if given["model"] is None:
            return SAMPLE_PROMPT
        raise UsageError("no prompt; pass -p TEXT, -f FILE, or pipe one in")
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the prompt from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from error


def _encode(tokenizer: Tokenizer, prompt: str, given: dict[str, Any]) -> list[int]:
    """The prompt's tokens, through the chat template where there is one."""
    system = given["system_prompt"]
    if _template_name(tokenizer, given) == "none":
        if system is not None:
            raise UsageError(
                "-sys needs a chat template, and none is in use"
                + (" (--raw)" if given["raw"] else "; the model has none")
            )
        return tokenizer.encode(prompt, add_special=True, parse_special=True)
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return encode_chat(tokenizer, messages)


def _template_name(tokenizer: Tokenizer, given: dict[str, Any]) -> str:
    return "none" if given["raw"] or tokenizer.chat_template is None else "the model's own"
