"""`specx run`: text that the verifier would have written, faster where that can be."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import click

from specx import RULES, Pair, SamplingParams, Settings, Stop, Tally, interrupts
from specx.cli.drafting import DRAFTING, Chosen, draft_settings, drafter_needed, estimate
from specx.cli.files import Command, InputFile
from specx.cli.load import FIELDS, Side, load_pair, plan_sides
from specx.cli.options import MODELS, RUNTIME, SAMPLING, TEMPLATE, add_options, chat_options
from specx.cli.progress import Progress
from specx.cli.prompt import from_argument, from_file, from_input
from specx.cli.show import Writer, footer, legend, wants_styles
from specx.cli.streams import is_terminal
from specx.cli.tracing import TRACE, Tracing
from specx.codec import to_json
from specx.core.streams import draw_seed
from specx.errors import SpecxError, UsageError
from specx.interrupts import held
from specx.output import OutputFile
from specx.records.trace.uncertainty import ENTROPY_STEPS
from specx.runtime.backend import Tokenizer
from specx.runtime.fatal import last_words
from specx.session.chat import ChatOptions, encode_chat, encode_raw, has_template, model_template
from specx.session.pair import PREFILL_SLICE
from specx.session.tally import Choices
from specx.shipped import demo_pair

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
    click.option(
        "-p",
        "--prompt",
        help="The prompt; without -p or -f, standard input (UTF-8, less one newline at its end).",
    ),
    click.option(
        "-f",
        "--file",
        type=InputFile(),
        help="Read the prompt from a file, as from standard input.",
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


@click.command(cls=Command, epilog=EPILOG)
@add_options([*MODELS, *PROMPT, *GENERATION, *DRAFTING, *RUNTIME, *OUTPUT])
def run(**given: Any) -> int:
    """Write a text with a verifier and, for speed, a drafter."""
    settings = _settings(given)
    sides = _sides(given)
    chat = chat_options(given)
    prompt = _read_prompt(given)
    if given["gamma_trace"] is not None:
        given["gamma_trace"] = OutputFile(given["gamma_trace"], "--gamma-trace")
    progress = Progress(enabled=not given["quiet"])
    if prompt is SAMPLE_PROMPT and not (given["quiet"] or given["as_json"]):
        click.echo(f"specx: no prompt given; continuing one: {prompt}\n", err=True)

    def need_ctx(tokenizer: Tokenizer) -> int:
        return len(_encode(tokenizer, prompt, given, chat)) + int(given["predict"])

    cached = not given["no_cache"]
    with ExitStack() as stack:
        with held():  # else Ctrl-C may leave an empty trace behind
            tracing = stack.enter_context(Tracing(given["trace_file"]))
        pair = stack.enter_context(
            load_pair(sides, need_ctx, verbose=given["verbose"], cached=cached, progress=progress)
        )
        tokens = _encode(pair.verifier.tokenizer, prompt, given, chat)
        if not tokens:
            raise UsageError(
                "the prompt is empty and the model has no token to begin a text with; "
                "write a prompt (-p 'Once upon a time')"
            )
        generation = _Generation(pair, settings, sides, given, tokens, tracing)
        return generation.run(prompt, progress)


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
        self.prefill_s: list[float] = []
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

    def run(self, prompt: str, progress: Progress) -> int:
        """Generate and print; the exit code."""
        try:
            self._begin_trace(prompt, progress)
            self._prefill(progress)
        except KeyboardInterrupt:
            self.stop.reason = "interrupted"
            self._end_trace()
            raise
        with held(), last_words(self._broken):  # a signal waits for the end of a round
            try:
                self._decode()
            except KeyboardInterrupt:
                self.stop.reason = "interrupted"
            except SpecxError:
                self._broken("")
                raise
            except OSError:  # nobody takes the text any more; the trace gets its end all the same
                self.stop.reason = "interrupted"
                self._end_trace()
                raise
            self.writer.write(self._end_trace())
            self._close()
            self.chosen.write_trace()  # last: if it cannot be written, the text is out
        return interrupts.exit_code() if self.stop.reason == "interrupted" else 0

    def _broken(self, _reason: str) -> None:
        """Save what there is when the runtime is about to end the process."""
        self.stop.reason = "failed"
        self.writer.write(self._end_trace())
        if self.tally.n_tokens:  # else the reason says all
            self._close()
            self.chosen.write_trace()

    def _begin_trace(self, prompt: str, progress: Progress) -> None:
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

    def _end_trace(self) -> str:
        """Write the trace's summary; the text that was held back."""
        del self.tokens[self.n_prompt + self.tally.n_tokens :]  # of a round that was broken off
        rest = self.stop.finish()
        self.tracing.end(self.tally, self.stop, self.prefill_s, rest, self._estimate())
        return rest

    @property
    def _shades(self) -> bool:
        """Whether entropies are to be shown."""
        return self.writer.styled and self.writer.stream and self.writer.mark == "entropy"

    def _prefill(self, progress: Progress) -> None:
        with progress.task("reading the prompt", self.n_prompt - 1) as report:
            size = self.given["n_batch"] or PREFILL_SLICE
            self.prefill_s = self.pair.prefill(self.tokens, size=size, report=report)

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
                if interrupts.received():
                    interrupts.taken()
                    self.stop.reason = "interrupted"
                    break
        finally:
            self.tally.total = clock() - begun

    def _close(self) -> None:
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
            "prefill_s": sum(self.prefill_s),
            "prefill_draft_s": sum(self.prefill_s[1:]),
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
            **_template_settings(self.pair.verifier.tokenizer, given),
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
        return from_argument(given["prompt"])
    if given["file"] is not None:
        return from_file(given["file"])
    if sys.stdin is None or is_terminal(sys.stdin):
        if given["model"] is None:
            return SAMPLE_PROMPT
        raise UsageError("no prompt; pass -p TEXT, -f FILE, or pipe one in")
    return from_input()


def _encode(
    tokenizer: Tokenizer, prompt: str, given: dict[str, Any], chat: ChatOptions
) -> list[int]:
    """The prompt's tokens, through the chat template where there is one."""
    system = given["system_prompt"]
    if _template_name(tokenizer, given) == "none":
        asked = {
            "-sys": system,
            "--template-arg": chat.arguments or None,
            "--template-date": given["template_date"],
        }
        for flag, value in asked.items():
            if value is not None:
                raise UsageError(
                    f"{flag} needs a chat template, and none is in use"
                    + (" (--raw)" if given["raw"] else "; the model has none")
                )
        return encode_raw(tokenizer, prompt)
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return encode_chat(tokenizer, messages, options=chat)


def _template_name(tokenizer: Tokenizer, given: dict[str, Any]) -> str:
    return "none" if given["raw"] or not has_template(tokenizer) else "the model's own"


def _template_settings(tokenizer: Tokenizer, given: dict[str, Any]) -> dict[str, Any]:
    """What the prompt's tokens depend on beside its text; the date only if the template asks."""
    name = _template_name(tokenizer, given)
    shown: dict[str, Any] = {"template": name, "template_args": given["template_arg"]}
    chat = chat_options(given)
    if name != "none" and model_template(tokenizer, chat).asks_date:
        shown["template_date"] = str(chat.today)
    return shown
