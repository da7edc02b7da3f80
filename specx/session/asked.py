"""Checks the arguments of `Session.generate` and converts them for a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np

from specx.core.sampling import SamplingParams
from specx.core.streams import draw_seed
from specx.errors import UsageError, whole_number
from specx.runtime.backend import Tokenizer, shown
from specx.session.chat import ChatOptions, encode_chat, encode_raw, has_template
from specx.session.chat.template import Message
from specx.session.decoding import Stop
from specx.session.settings import Settings

if TYPE_CHECKING:
    from specx.session.generation import Observer

__all__ = ["DEFAULTS", "Asked", "Options", "Prompt"]

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int]"

MOST_TOKENS = 2**31 - 1
DEFAULTS = Settings(sampling=SamplingParams(temperature=0.7, top_p=0.9), gamma="auto")
"""Default settings of the command line and of `Session.generate`."""


class Options(TypedDict, total=False):
    """Keyword arguments of `Session.generate`; those of `Settings` and `SamplingParams` too."""

    max_tokens: int
    """Maximum number of tokens to generate; 256 by default."""
    stop: str | Sequence[str]
    """Strings before which the text ends."""
    ignore_eos: bool
    raw: bool
    """True to use a text as it is, without the model's chat template."""
    template: ChatOptions
    """Inputs of the chat template besides the messages."""
    observers: Sequence[Observer]
    seed: int | None
    """Random seed, which reproduces a text under equal settings; by default drawn, see
    `Result.settings`."""
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    gamma: int | Literal["auto"]
    rule: str
    draft: tuple[str, ...] | None
    draft_sampling: SamplingParams | None
    entropy_stop: float | None
    draft_p_min: float | None


class Asked:
    """One call of `Session.generate`, checked.

    Raises
    ------
    UsageError
        If an option does not exist or has an invalid value.
    """

    def __init__(
        self, tokenizer: Tokenizer, defaults: Settings, options: Mapping[str, Any]
    ) -> None:
        rest = dict(options)
        self._tokenizer = tokenizer
        self._raw = rest.pop("raw", False)
        self._template = rest.pop("template", ChatOptions())
        self.observers: Sequence[Observer] = rest.pop("observers", ())
        limit = whole_number("max_tokens", rest.pop("max_tokens", 256), 0, MOST_TOKENS)
        self.stop = Stop(
            tokenizer,
            limit,
            stops=_strings("stop", rest.pop("stop", ())),
            ignore_eos=rest.pop("ignore_eos", False),
        )
        seed = rest.pop("seed", None)
        self.live = seed is None
        """True if costs may be learned from the clock: a drawn seed need not reproduce its text."""
        rest["seed"] = draw_seed() if seed is None else seed
        self.settings = _changed(defaults, rest)

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's tokens.

        Raises
        ------
        UsageError
            If it is not a text, messages or tokens.
        ModelError
            If the chat template refuses the messages.
        """
        if isinstance(prompt, str):
            if self._raw or not has_template(self._tokenizer):
                return encode_raw(self._tokenizer, prompt)
            prompt = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, (Sequence, np.ndarray)) or isinstance(prompt, bytes):
            raise UsageError(f"prompt is {shown(prompt)}; give a text, chat messages, or tokens")
        if len(prompt) and isinstance(prompt[0], Mapping):
            messages = [_message(place, each) for place, each in enumerate(prompt)]
            return encode_chat(self._tokenizer, messages, options=self._template)
        return list(prompt)  # type: ignore[arg-type]


def _strings(name: str, value: Any) -> list[str]:
    """One string, or several, as a list."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or not all(isinstance(each, str) for each in strings):
        raise UsageError(f"{name} is {shown(value)}; give a string, or a list of strings")
    return list(strings)


def _message(place: int, message: Any) -> Message:
    """`message`, if it is one."""
    texts = message if isinstance(message, Mapping) else {}
    if not all(isinstance(texts.get(name), str) for name in ("role", "content")):
        raise UsageError(
            f"message {place} is {shown(message)}; give a role and a content, both strings"
        )
    return texts


def _changed(defaults: Settings, changes: dict[str, Any]) -> Settings:
    filters = {field.name for field in fields(SamplingParams)}
    known = filters | {field.name for field in fields(Settings)}
    if unknown := sorted(set(changes) - known):
        raise UsageError(
            f"unknown option '{unknown[0]}'; known: {', '.join(sorted(Options.__annotations__))}"
        )
    sampling = {name: changes.pop(name) for name in sorted(filters & set(changes))}
    if sampling:
        changes["sampling"] = replace(changes.get("sampling", defaults.sampling), **sampling)
    return replace(defaults, **changes)
