"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import date, datetime
from typing import Any, TypeVar

import click

from specx.cli.files import CacheFolder, HubModel, InputFile, Model
from specx.core.sampling import SAMPLING_ORDER, SamplingParams
from specx.errors import UsageError
from specx.session.chat import ChatOptions

__all__ = [
    "MODELS",
    "RUNTIME",
    "SAMPLING",
    "TEMPLATE",
    "TEMPLATE_INPUTS",
    "add_options",
    "asked_of_template",
    "chat_options",
    "pick",
    "prompt_options",
    "runtime_options",
    "sampling_params",
]


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """The sampler that SAMPLING's options describe."""
    return SamplingParams(**{name: given[name] for name in SAMPLING_ORDER})


T = TypeVar("T")


def pick(kind: type[T], given: Mapping[str, Any]) -> T:
    """An instance of `kind`, filled from the command's parameters of the same names."""
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return kind(**{name: given[name] for name in names})


def add_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """A decorator that adds `options` to a command, in order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _both(flag: str, field: str, kind: Any, text: str) -> list[Callable[[Any], Any]]:
    """An option for both models, and its counterpart for the drafter alone."""
    return [
        click.option(flag, field, type=kind, help=text),
        click.option(f"{flag}d", f"{field}_draft", type=kind, help="The same for the drafter."),
    ]


MODELS = [
    click.option(
        "-m",
        "--model",
        type=Model(),
        help="The verifier: a GGUF file, a name that specx models lists (a pair's name gives the "
        "drafter too), or another name that the backend accepts.",
    ),
    click.option(
        "-md",
        "--model-draft",
        "--draft-model",
        "--assistant-model",
        type=Model(),
        help="The drafter.",
    ),
    click.option(
        "-hf",
        "--hub",
        type=HubModel(),
        metavar="NAME",
        help="Like -m, but download what is not on this machine: OWNER/NAME:FILE.gguf on the hub, "
        "or a name that specx models lists.",
    ),
    click.option("-hfd", "--hub-draft", type=HubModel(), metavar="NAME", help="The same for -md."),
    click.option(
        "--backend", default="llamacpp", show_default=True, help="Runtime of the verifier."
    ),
    click.option("--draft-backend", help="Runtime of the drafter.  [default: the verifier's]"),
]


def runtime_options(context: str) -> list[Callable[[Any], Any]]:
    """Options of the runtime, for a command whose context has this size by default."""
    return [
        *_both(
            "-ngl", "n_gpu_layers", int, "Layers to offload.  [default: all, if there is a GPU]"
        ),
        *_both("-t", "threads", click.IntRange(min=1), "Threads.  [default: physical cores]"),
        *_both(
            "-c",
            "n_ctx",
            click.IntRange(min=1),
            f"Context size in tokens.  [default: {context}]",
        ),
        *_both(
            "-b",
            "n_batch",
            click.IntRange(min=1),
            "Maximum number of tokens per call of the runtime.",
        ),
        *_both("-ctk", "cache_type_k", str, "Element type of cached keys (f16, q8_0, ...)."),
        *_both("-ctv", "cache_type_v", str, "Element type of cached values."),
        click.option("--dtype", help="Number type of the weights (hf): float32, bfloat16, ..."),
        click.option(
            "--dtyped",
            "dtype_draft",
            help="The same for the drafter.  [default: bfloat16 on a CPU with instructions for it]",
        ),
        click.option("--device", help="Device for the weights (hf): cpu, cuda, mps."),
        click.option(
            "--weights-cache",
            type=CacheFolder(),
            metavar="DIR",
            help="Keep dequantised GGUF weights in this folder (hf).",
        ),
    ]


RUNTIME = runtime_options("as needed, from 4096 up to the trained size")

SAMPLING = [
    click.option(
        "--temp",
        "temperature",
        type=float,
        default=0.7,
        show_default=True,
        help="Temperature; 0 is greedy.",
    ),
    click.option("--top-k", type=int, default=0, show_default=True, help="0 is off."),
    click.option("--top-p", type=float, default=0.9, show_default=True, help="1 is off."),
    click.option("--min-p", type=float, default=0.0, show_default=True, help="0 is off."),
]


def _arguments(context: click.Context, option: Any, given: Sequence[str]) -> dict[str, Any]:
    """NAME=JSON as a dictionary."""
    arguments: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.isidentifier() and equals):
            raise UsageError(f"--template-arg {text} is not NAME=JSON, as in enable_thinking=false")
        try:
            arguments[name] = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"--template-arg {name}: {value} is not JSON; a string needs double quotes "
                f"({name}='\"text\"')"
            ) from error
    return arguments


def _iso_date(context: click.Context, option: Any, given: datetime | None) -> str | None:
    return None if given is None else given.date().isoformat()


TEMPLATE_INPUTS = [
    click.option(
        "--template-arg",
        multiple=True,
        metavar="NAME=JSON",
        callback=_arguments,
        help="A variable of the chat template, such as enable_thinking=false; repeatable.",
    ),
    click.option(
        "--template-date",
        type=click.DateTime(["%Y-%m-%d"]),
        metavar="YYYY-MM-DD",
        callback=_iso_date,
        help="The date that the chat template sees, at midnight.  [default: today]",
    ),
]

TEMPLATE = [
    click.option(
        "--raw",
        is_flag=True,
        help="Do not apply the model's chat template; the prompt may name control tokens.",
    ),
    *TEMPLATE_INPUTS,
]


def chat_options(given: Mapping[str, Any]) -> ChatOptions:
    """Options for the chat template; the date stays the same throughout a run."""
    asked = given["template_date"]
    for flag, value in (("--template-arg", given["template_arg"]), ("--template-date", asked)):
        if given["raw"] and value:
            raise UsageError(f"{flag} needs the chat template, which --raw disables; leave one out")
    today = date.today() if asked is None else date.fromisoformat(asked)
    return ChatOptions(arguments=given["template_arg"], today=today)


def asked_of_template(given: Mapping[str, Any]) -> dict[str, Any]:
    """The template options that were set, for a record."""
    names = {"template_args": "template_arg", "template_date": "template_date"}
    return {name: given[option] for name, option in names.items() if given[option]}


def prompt_options(default: str) -> list[Callable[[Any], Any]]:
    """Options for the prompts to measure on, by default the suite `default`."""
    return [
        click.option(
            "--suite",
            default=default,
            show_default=True,
            metavar="KIND[:N],...",
            help="Built-in prompts: N of one kind, or of each.",
        ),
        click.option(
            "-f",
            "--file",
            type=InputFile(),
            help="Your own prompts, as JSON Lines with a `prompt` field.",
        ),
        *TEMPLATE,
        click.option(
            "-n",
            "--predict",
            type=click.IntRange(min=1),
            default=64,
            show_default=True,
            help="Maximum number of tokens per run.",
        ),
        click.option(
            "-r",
            "--repetitions",
            type=click.IntRange(min=1),
            default=2,
            show_default=True,
            help="Runs per arm and prompt.",
        ),
        click.option(
            "-s",
            "--seed",
            type=click.IntRange(0, 2**32 - 1),
            default=0,
            show_default=True,
            help="Random seed.",
        ),
        click.option("--ignore-eos", is_flag=True, help="Continue after an end token."),
    ]
