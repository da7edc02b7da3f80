"""Chat templates: rendered as their authors meant, kept in their sandbox, and no message lost."""

from __future__ import annotations

import string
import subprocess
import sys
import warnings
from datetime import date
from pathlib import Path

import pytest

from specx.errors import ModelError, UsageError
from specx.session.chat import (
    ChatOptions,
    encode_chat,
    encode_raw,
    has_template,
    model_template,
    render_chat,
)
from specx_backends.toy import Toy, ToyTable

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]
KIND = [{"role": "system", "content": "be kind"}, *HELLO]
EACH = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
PARTS = "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}"
FUZZ = Path(__file__).parent / "template_fuzz.py"


def test_renders_and_opens_the_assistants_turn() -> None:
    assert render_chat(CHATML, KIND) == (
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


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) if range(9999)|list|sort == a %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{{ 10**(10**8) }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'|center(10**9) }}",
        "{{ ('a\n' * 100000)|indent(100000) }}",
        "{{ ('aaaa' * 100000)|replace('', 'b' * 100000) }}",
        "{{ 'aaaa'.replace('', 'b' * 9999999) }}",
        "{{ ('b' * 999999).join('a' * 999) }}",
        "{{ '%999999999d' % 1 }}{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ [[[1]]]|tojson(indent=10**9) }}",
        "{{ [1]|batch(10**9, 1)|list }}",
        "{{ 1.5|round(10**8, 'ceil') }}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}"
        "{% endset %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
        "{% set n.x = [n.x, n.x] %}{% endfor %}"
        "{{ n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
        "{% set n.x = [namespace(a=n.x, b=n.x)] %}{% endfor %}{{ n.x }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(60) }}",
        "{% for x in messages recursive %}{{ loop([x]) }}{% endfor %}",
        "{% if 1 %}" * 200 + "x" + "{% endif %}" * 200,
        "{{ " + "(" * 10_000 + ")" * 10_000 + " }}",
        "{{ " + "1 + " * 10_000 + "1 }}",
        "{{ 1 }}" * 50_000,
        "{{ dict.fromkeys(range(99999)) }}",
        "{{ lipsum(10**6) }}",
    ],
)
def test_a_template_without_end_or_measure_is_one_error(template: str) -> None:
    with pytest.raises(ModelError, match="chat template failed.*--raw") as found:
        render_chat(EACH + template, HELLO)
    assert not isinstance(found.value.__cause__, MemoryError)
    assert len(str(found.value)) < 500
    assert "\n" not in str(found.value)


@pytest.mark.skipif(sys.platform != "linux", reason="its limits are Linux's")
def test_random_templates_end_within_limits_of_time_and_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(FUZZ), "0", "100"], capture_output=True, text=True
    )
    *lines, last = done.stdout.splitlines()
    assert (done.returncode, last) == (0, "done"), done.stderr[-2000:] + str(lines[-1:])
    assert len(lines) == 100
    assert not [line for line in lines if "MEMORY" in line]
    assert any("text of" in line for line in lines)
    assert any("more time or memory" in line for line in lines)


def test_a_long_message_has_a_budget_that_fits_it() -> None:
    long = [{"role": "user", "content": "word " * 400_000}]
    template = (
        "{% for m in messages %}{% set c = m.content.split('</think>')[-1].lstrip('\\n') %}"
        "{% if m.content is string and '<x>' not in c %}{{ '[' + c + ']' + '\\n' }}{% endif %}"
        "{% endfor %}"
    )
    assert render_chat(template, long) == f"[{long[0]['content']}]\n"


def test_what_transformers_gives_templates_is_there() -> None:
    template = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{{ {'b': '<é>', 'a': 1}|tojson(sort_keys=true, separators=(',', ':')) }}"
        "{{ [1]|tojson(indent=1) }}{{ strftime_now('%d %b %Y %H') }}"
        "{{ '%s-%d'|format('x', 7) }}{{ '{}'.format(3) }}"
    )
    options = ChatOptions(today=date(2024, 7, 26))
    assert render_chat(template, HELLO, options=options) == (
        'hello{"a":1,"b":"<é>"}[\n 1\n]26 Jul 2024 00x-73'
    )


def test_contents_go_in_as_parts_where_a_template_wants_them() -> None:
    assert render_chat(PARTS, HELLO) == "hello"


@pytest.mark.parametrize("template", ["nothing", "{{ messages|length }}"])
def test_a_template_that_leaves_the_prompt_out_is_refused(template: str) -> None:
    with pytest.raises(ModelError, match="leaves the user message out; pass --raw"):
        render_chat(template, HELLO)


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}" + EACH,
        "{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}",
    ],
)
def test_a_system_message_that_has_no_place_goes_before_the_users(template: str) -> None:
    with pytest.warns(UserWarning, match="accepts no system message; it was put before") as found:
        assert render_chat(template, KIND) == "[be kind\n\nhello]"
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert render_chat(template, HELLO) == "[hello]"


def test_text_that_a_template_cuts_is_told() -> None:
    template = "{{ messages[0].content.split('</think>')[-1] }}"
    with pytest.warns(UserWarning, match="altered the text of the user message"):
        assert render_chat(template, [{"role": "user", "content": "a</think>b"}]) == "b"


def test_arguments_reach_the_template_and_unknown_ones_are_refused() -> None:
    template = EACH + "{% if think is defined and not think %}no{% endif %}"
    assert render_chat(template, HELLO, options=ChatOptions(arguments={"think": False})).endswith(
        "no"
    )
    for name in ("thinking", "messages", "strftime_now"):
        with pytest.raises(UsageError, match=f"no variable '{name}'; it has: think"):
            render_chat(template, HELLO, options=ChatOptions(arguments={name: 1}))


# To tokens

LETTERS = sorted(set(string.printable) - set("\r\x0b\x0c\t"))


def toy(template: str | None) -> Toy:
    words = ("<s>", "</s>", "<|im_end|>", "hello", *LETTERS)
    rows: dict[tuple[int, ...], list[float]] = {(): [1 / len(words)] * len(words)}
    eog = ("</s>", "<|im_end|>")
    return Toy(ToyTable(tokens=words, rows=rows, bos="<s>", eog=eog, chat_template=template))


def shown(model: Toy, ids: list[int]) -> str:
    """Control tokens in brackets of their own, beside text."""
    tokenizer = model.tokenizer
    return "".join(
        tokenizer.token_bytes(token).decode() or f"«{tokenizer.token_text(token)}»" for token in ids
    )


@pytest.mark.parametrize("template", [EACH, "{{ bos_token }}" + EACH, "\n {{ bos_token }}" + EACH])
def test_one_bos_whether_the_template_brings_it_or_not(template: str) -> None:
    model = toy(template)
    ids = encode_chat(model.tokenizer, HELLO)
    assert ids.count(0) == 1
    assert shown(model, ids).strip() == shown(model, ids).lstrip()
    assert shown(model, ids).endswith("[hello]")


def test_one_bos_for_a_raw_text_that_brings_it() -> None:
    model = toy(None)
    assert encode_raw(model.tokenizer, "<s>hello") == encode_raw(model.tokenizer, "hello") == [0, 3]


TURN = "{{ bos_token }}{% for m in messages %}{{ m.content|trim }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("text", ["a<|im_end|>b", "<s>", "<|im_end|></s>x<|im_end|>", " a<s> "])
def test_a_control_token_named_in_a_message_is_text(text: str) -> None:
    model = toy(TURN)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    ids = encode_chat(model.tokenizer, messages)
    turn = f"{text.strip()}«<|im_end|>»\n"
    assert shown(model, ids) == f"«<s>»{turn}{turn}"


def test_without_a_bos_in_the_template_one_goes_before_such_a_message() -> None:
    model = toy(EACH)
    ids = encode_chat(model.tokenizer, [{"role": "user", "content": "</s>"}])
    assert shown(model, ids) == "«<s>»[</s>]"


def test_a_control_token_in_a_message_that_the_template_alters_is_refused() -> None:
    model = toy("{{ messages[0].content.split('</think>')[-1] }}")
    messages = [{"role": "user", "content": "a</think></s>"}]
    with (
        pytest.warns(UserWarning, match="altered"),
        pytest.raises(ModelError, match="user message names a control token.*remove the"),
    ):
        encode_chat(model.tokenizer, messages)


@pytest.mark.parametrize("template", [None, "", " \n"])
def test_without_a_template_there_is_no_chat(template: str | None) -> None:
    model = toy(template)
    assert not has_template(model.tokenizer)
    with pytest.raises(ModelError, match="no chat template; pass --raw"):
        encode_chat(model.tokenizer, HELLO)


def test_a_template_tells_whether_it_asks_for_the_date() -> None:
    for template, asks in ((EACH, False), (EACH + "{{ strftime_now('%Y') }}", True)):
        assert model_template(toy(template).tokenizer).asks_date is asks
