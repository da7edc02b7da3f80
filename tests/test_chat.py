"""Chat templates: rendered like their authors meant, and kept in their sandbox."""

from __future__ import annotations

import pytest

from specx.chat import encode_chat, render_chat
from specx.errors import ModelError
from specx_backends.toy import Toy, ToyTable

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]


def test_renders_and_opens_the_assistants_turn() -> None:
    messages = [{"role": "system", "content": "be kind"}, *HELLO]
    assert render_chat(CHATML, messages) == (
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('only one turn') }}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{{ messages[7].content }}{{ nothing.at.all }}",
    ],
)
def test_what_a_template_must_not_do_is_one_error(template: str) -> None:
    with pytest.raises(ModelError, match="chat template failed.*--raw"):
        render_chat(template, HELLO)


def toy(template: str | None) -> Toy:
    words = ("<s>", "</s>", "hello", "!")
    rows: dict[tuple[int, ...], list[float]] = {(): [0, 0, 0.5, 0.5]}
    return Toy(ToyTable(tokens=words, rows=rows, bos="<s>", eog=("</s>",), chat_template=template))


def test_one_bos_whether_the_template_brings_it_or_not() -> None:
    for template in ("{{ messages[0].content }}!", "{{ bos_token + messages[0].content }}!"):
        assert encode_chat(toy(template).tokenizer, HELLO) == [0, 2, 3]


def test_without_a_template_there_is_no_chat() -> None:
    with pytest.raises(ModelError, match="no chat template; pass --raw"):
        encode_chat(toy(None).tokenizer, HELLO)
