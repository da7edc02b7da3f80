"""Encodes prompts to tokens, through the model's chat template or as they are.

A template is untrusted jinja2 source: `sandbox` limits what it can do, `template` ensures that no
message is left out, and this module encodes the text. The template's own text may name control
tokens; the messages may not.
"""

from __future__ import annotations

from collections.abc import Sequence

from specx.errors import ModelError
from specx.runtime.backend import Tokenizer
from specx.session.chat.template import ChatOptions, Message, Template

__all__ = [
    "ChatOptions",
    "encode_chat",
    "encode_raw",
    "has_template",
    "model_template",
    "render_chat",
    "spelled",
]

PLAIN = ChatOptions()


def has_template(tokenizer: Tokenizer) -> bool:
    """True if the model has a chat template that is not empty."""
    return bool((tokenizer.chat_template or "").strip())


def model_template(tokenizer: Tokenizer, options: ChatOptions = PLAIN) -> Template:
    """The tokenizer's own template, compiled.

    Raises
    ------
    ModelError
        If there is none, or it is broken.
    UsageError
        If it does not use one of the options' arguments.
    """
    if not has_template(tokenizer):
        raise ModelError("the model has no chat template; pass --raw to do without it")
    bos, eos = _name(tokenizer, tokenizer.bos_id), _name(tokenizer, tokenizer.eos_id)
    return Template(tokenizer.chat_template or "", options, bos=bos, eos=eos)


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str = "",
    eos: str = "",
    options: ChatOptions = PLAIN,
) -> str:
    """Render `messages` with `template`, ready for the assistant's turn.

    Raises
    ------
    ModelError
        If the template is broken, refuses the messages, leaves one out, takes too much time or
        memory, or reaches outside its sandbox.
    """
    return Template(template, options, bos=bos, eos=eos).chat(messages).text


def encode_chat(
    tokenizer: Tokenizer, messages: Sequence[Message], *, options: ChatOptions = PLAIN
) -> list[int]:
    """Ids of `messages` under the tokenizer's own template; one BOS, even if both add it.

    A control token named in a message (``<|im_end|>``) is encoded as text, never as the token.

    Raises
    ------
    ModelError
        As `render_chat`; also if a message names a control token and the template alters messages.
    """
    chat = model_template(tokenizer, options).chat(messages)
    named = [m["role"] for m in messages if _names_controls(tokenizer, m["content"])]
    if not named:
        return encode_raw(tokenizer, chat.text)
    if chat.contents is None:
        raise ModelError(
            f"the {named[0]} message names a control token, and the model's chat template alters "
            "the message, so the two cannot be told apart; remove the token's name"
        )
    return _encode_apart(tokenizer, chat.text, chat.contents)


def encode_raw(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` as it is, control tokens included; one BOS, even if the text has it."""
    bos = _name(tokenizer, tokenizer.bos_id)
    has_bos = bool(bos) and text.lstrip().startswith(bos)
    return tokenizer.encode(text, add_special=not has_bos, parse_special=True)


def _name(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


def _names_controls(tokenizer: Tokenizer, text: str) -> bool:
    special, plain = (
        tokenizer.encode(text, add_special=False, parse_special=parse) for parse in (True, False)
    )
    return special != plain


def _encode_apart(
    tokenizer: Tokenizer, text: str, contents: Sequence[tuple[int, int]]
) -> list[int]:
    """Ids of `text`, with the spans `contents` encoded as plain text."""
    whole = encode_raw(tokenizer, text)
    bare = tokenizer.encode(text, add_special=False, parse_special=True)
    head = next((n for n in range(2) if whole[n : n + len(bare)] == bare), 0)
    ids, at = whole[:head], 0
    for begin, end in contents:
        ids += _piece(tokenizer, text[at:begin], at > 0, parse_special=True)
        ids += _piece(tokenizer, text[begin:end], begin > 0, parse_special=False)
        at = end
    return [
        *ids,
        *_piece(tokenizer, text[at:], at > 0, parse_special=True),
        *whole[head + len(bare) :],
    ]


GUARDS = ("\n", ".", "0")


def _piece(tokenizer: Tokenizer, text: str, inside: bool, *, parse_special: bool) -> list[int]:
    """Ids of a part of a text, without the space that some tokenizers put before a whole one."""
    if not text:
        return []
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    data = text.encode("utf-8", "surrogateescape")
    if not inside or spelled(tokenizer, ids) == data:
        return ids
    for guard in GUARDS:
        longer = tokenizer.encode(guard + text, add_special=False, parse_special=parse_special)
        for cut in range(1, min(len(longer), 4)):
            if spelled(tokenizer, longer[cut:]) == data:
                return longer[cut:]
    return ids


def spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """The text of `ids`, control tokens by their names."""
    return b"".join(tokenizer.token_bytes(t) or tokenizer.token_text(t).encode() for t in ids)
