"""Reads requests: the JSON of ``/v1/chat/completions`` and ``/v1/completions``.

Fields and their types are those of OpenAI's API, with llama.cpp's additions for local models. A
null means the default. Unknown fields are accepted, since clients send many that change nothing;
those that would change the text and are not supported are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from specx.codec import convert, parse, to_json
from specx.errors import UsageError
from specx.session.asked import Prompt

__all__ = ["Refused", "Wanted", "read_chat", "read_completion"]

MOST_CHOICES = 16
"""Texts that one request may ask for: prompts times n."""
MOST_LOGPROBS = 20
COMPLETION_TOKENS = 16
"""OpenAI's default for ``/v1/completions``; a chat answer ends by itself."""
UNLIMITED = 2**31 - 1
REMEDY = "see the API's reference"

OFF: Mapping[str, Sequence[Any]] = {
    "best_of": (1,),
    "continue_final_message": (False,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "json_schema": (),
    "logit_bias": ({}, []),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n_predict": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "repeat_penalty": (1,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "samplers": (),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tfs_z": (1,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_a": (0,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}
"""Fields that would change the text, with the values at which they do not."""
INSTEAD = {"n_predict": "max_tokens"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class Refused(Exception):
    """A request that is answered with an error.

    Parameters
    ----------
    param
        The field at fault.
    code
        What it is, for programs: OpenAI's word where there is one.
    headers
        Of the answer.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that is answered, in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a request asks for."""

    prompts: Sequence[Prompt]
    n: int
    """Texts for each prompt."""
    options: dict[str, Any]
    """Keyword arguments of `Session.generate`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template."""
    chat: bool
    stream: bool
    usage_chunk: bool
    """Whether a stream ends with a chunk that holds the usage."""
    n_alternatives: int | None
    """Alternatives to list beside each token's log-probability; None for none of these at all."""
    timings: bool
    """Whether each chunk of a stream holds timings."""
    origins: bool
    """Whether each chunk of a stream says where its tokens come from."""

    @property
    def n_choices(self) -> int:
        """Texts to generate."""
        return len(self.prompts) * self.n

    def choice(self, index: int) -> tuple[Prompt, dict[str, Any]]:
        """Prompt and options of one text. With a seed, each of several takes the next one."""
        options = dict(self.options)
        if "seed" in options:
            options["seed"] += index % self.n
        return self.prompts[index // self.n], options


Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class StreamOptions(Struct):
    """How to stream."""

    include_usage: bool | None = None


class Common(Struct, kw_only=True):
    """Fields that both kinds of request have."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=UNLIMITED)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    ignore_eos: bool | None = None
    timings_per_token: bool | None = None
    specx_tokens: bool | None = None

    def options(self, limit: int) -> dict[str, Any]:
        """What `Session.generate` takes of them; a request's nulls stay the server's defaults."""
        names = ("seed", "temperature", "top_p", "top_k", "min_p", "ignore_eos")
        given = {name: getattr(self, name) for name in names}
        options = {name: value for name, value in given.items() if value is not None}
        return {**options, "max_tokens": limit, "stop": self.stop or []}

    def streaming(self) -> dict[str, Any]:
        """The fields of `Wanted` that say how the answer is sent."""
        asked = self.stream_options or StreamOptions()
        if self.stream_options is not None and not self.stream:
            raise Refused("stream_options needs stream: true; leave it out", param="stream_options")
        return {
            "stream": bool(self.stream),
            "usage_chunk": bool(asked.include_usage),
            "timings": bool(self.timings_per_token),
            "origins": bool(self.specx_tokens),
        }


class Part(Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(Struct):
    """One message."""

    role: str
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    """What an assistant thought, apart from what it said."""


class ChatRequest(Common, kw_only=True):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=0, le=UNLIMITED)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(Common, kw_only=True):
    """The body of ``/v1/completions``."""

    prompt: str | list[Any] | UnsetType | None = UNSET
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None


def read_chat(body: bytes) -> Wanted:
    """A request for a chat answer.

    Raises
    ------
    Refused
        With what is wrong and the field's name.
    """
    asked = _read(body, ChatRequest)
    limits = [n for n in (asked.max_completion_tokens, asked.max_tokens) if n is not None]
    if asked.top_logprobs and not asked.logprobs:
        raise Refused("top_logprobs needs logprobs: true", param="top_logprobs")
    return Wanted(
        prompts=[[_message(place, each) for place, each in enumerate(asked.messages)]],
        n=asked.n or 1,
        options=asked.options(limits[0] if limits else UNLIMITED),
        arguments=asked.chat_template_kwargs or {},
        chat=True,
        n_alternatives=asked.top_logprobs or 0 if asked.logprobs else None,
        **asked.streaming(),
    )


def read_completion(body: bytes) -> Wanted:
    """A request to continue a text, or several.

    Raises
    ------
    Refused
        With what is wrong and the field's name.
    """
    asked = _read(body, CompletionRequest)
    limit = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    wanted = Wanted(
        prompts=_prompts(asked.prompt),
        n=asked.n or 1,
        options={**asked.options(limit), "raw": True},
        chat=False,
        n_alternatives=asked.logprobs,
        **asked.streaming(),
    )
    if wanted.n_choices > MOST_CHOICES:
        raise Refused(
            f"{wanted.n_choices} texts were asked for (prompts times n); at most {MOST_CHOICES} "
            "are possible in one request",
            param="prompt",
        )
    return wanted


Request = TypeVar("Request", bound=Common)


def _read(body: bytes, kind: type[Request]) -> Request:
    try:
        raw = parse(body, "the body", "send a JSON object")
        if not isinstance(raw, dict):
            raise UsageError(f"the body is a JSON {type(raw).__name__}; send a JSON object")
        _refuse_unsupported(raw)
        _require_whole_characters(raw)
        return convert(raw, kind, "the body", REMEDY)
    except UsageError as error:
        raise Refused(str(error), param=_field_of(str(error))) from error


def _require_whole_characters(raw: Mapping[str, Any]) -> None:
    """Refuse half a surrogate pair, which JSON can write and no tokenizer can read."""
    try:
        to_json(raw).encode()
    except UnicodeEncodeError as error:
        raise UsageError("the body holds half a character; send whole ones") from error


def _field_of(message: str) -> str | None:
    """The field that an error of `specx.codec` names."""
    found = re.search(r"field (\w+)", message)
    return found[1] if found else None


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    for name, neutral in OFF.items():
        value = raw.get(name)
        if value is not None and value not in neutral:
            remedy = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
            raise Refused(
                f"{name} would change the text and is not supported; {remedy}",
                param=name,
                code="unsupported_parameter",
            )


def _message(place: int, message: ChatMessage) -> dict[str, str]:
    param = f"messages[{place}]"
    if message.role not in ROLES:
        raise Refused(
            f"{param}.role is {message.role!r:.60}; it must be {', '.join(ROLES)}", param=param
        )
    content = message.content if message.content is not None else ""
    if not isinstance(content, str):
        content = "".join(_text(param, part) for part in content)
    thought = message.reasoning_content
    return {
        "role": ROLES[message.role],
        "content": content,
        **({} if thought is None else {"reasoning_content": thought}),
    }


def _text(param: str, part: Part) -> str:
    if part.type != "text" or part.text is None:
        raise Refused(
            f"{param}.content has a part of type {part.type!r:.60}; only text parts are supported",
            param=param,
        )
    return part.text


def _prompts(prompt: Any) -> list[Prompt]:
    """One prompt or several; each a text or token ids."""
    if prompt is UNSET or prompt is None or prompt == []:
        raise Refused("prompt is missing; send a text, or a list of them", param="prompt")
    if isinstance(prompt, str) or all(_is_id(each) for each in prompt):
        return [prompt]
    for each in prompt:
        if not isinstance(each, str) and not (
            isinstance(each, list) and each and all(_is_id(token) for token in each)
        ):
            raise Refused(
                "prompt must be a text, a list of token ids, or a list of either", param="prompt"
            )
    return list(prompt)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
