"""Chat templates of models: untrusted jinja2 source, rendered in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specx.backend import Tokenizer
from specx.errors import ModelError

__all__ = ["encode_chat", "render_chat"]


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], *, bos: str = "", eos: str = ""
) -> str:
    """The text that `template` makes of `messages`, ready for the assistant's turn.

    Raises
    ------
    ModelError
        If the template is broken, refuses the messages, or reaches outside its sandbox.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=True, bos_token=bos, eos_token=eos
        )
    # A template is data of unknown origin: whatever it raises while it runs is its own fault.
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as e:
        raise ModelError(
            f"the model's chat template failed: {e}; pass --raw to do without it"
        ) from e


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of `messages` under the tokenizer's own template; one BOS, also when both bring it."""
    if tokenizer.chat_template is None:
        raise ModelError("the model has no chat template; pass --raw to do without it")
    bos, eos = _name(tokenizer, tokenizer.bos_id), _name(tokenizer, tokenizer.eos_id)
    text = render_chat(tokenizer.chat_template, messages, bos=bos, eos=eos)
    brings_bos = bool(bos) and text.startswith(bos)
    return tokenizer.encode(text, add_special=not brings_bos, parse_special=True)


def _name(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
