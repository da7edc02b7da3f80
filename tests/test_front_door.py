"""The front door: `specx.load`, `generate`, `stream`, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_session import PLAIN, TABLE, table, toys

import specx
from specx import (
    LoadOptions,
    Pair,
    Session,
    Settings,
    get_backend,
)
from specx.errors import ContextError, UsageError
from specx_backends.toy import Toy


@pytest.fixture
def pair() -> Pair:
    return Pair(Toy(TABLE), Toy(TABLE))


def test_ten_lines_write_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    with specx.load() as session:
        result = session.generate("def fibonacci(n):", max_tokens=24, seed=1)
        stream = session.stream("def fibonacci(n):", max_tokens=24, seed=1)
        pieces = list(stream)
    assert "".join(pieces) == stream.result.text == result.text
    assert len(pieces) > 1
    assert (result.n_tokens, result.stop_reason) == (24, "length")
    assert 0 < (result.alpha or 0) <= 1
    assert stream.result.n_reused > 0


def test_a_drawn_seed_is_told_and_repeats_the_text() -> None:
    session = Session(toys("native"), defaults=Settings(sampling=PLAIN))
    one = session.generate([0, 1], max_tokens=20)
    again = session.generate([0, 1], max_tokens=20, seed=one.settings.seed)
    other = session.generate([0, 1], max_tokens=20)
    assert one.tokens == again.tokens != other.tokens


def test_options_change_the_defaults_for_one_text() -> None:
    session = Session(toys("native"), defaults=Settings(sampling=PLAIN))
    greedy = session.generate([0], temperature=0, gamma=2, rule="token", stop="ba", max_tokens=30)
    assert greedy.settings.sampling.greedy
    assert (greedy.settings.gamma, greedy.settings.rule) == (2, "token")
    assert "ba" not in greedy.text
    assert session.generate([0], max_tokens=1).settings.sampling == PLAIN


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, "unknown option 'temprature'; known: .*temperature"),
        ({"max_tokens": -1}, "max_tokens is -1; it must be a whole number"),
        ({"temperature": -1.0}, "temperature"),
        ({"seed": -1}, "seed is -1"),
        ({"gamma": "many"}, "gamma is 'many'"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"top_k": None}, "top_k is None"),
        ({"stop": 5}, "stop is 5; give a string"),
        ({"stop": ["a", 5]}, "stop is .*; give a string"),
    ],
)
def test_options_that_do_not_exist_are_refused_by_name(
    options: dict[str, Any], words: str, pair: Pair
) -> None:
    with pytest.raises(UsageError, match=words):
        Session(pair).generate([0], **options)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (5, "prompt is 5; give a text, chat messages, or tokens"),
        (b"ab", "prompt is b'ab'"),
        ([{"role": "user"}], "message 0 is .*; give a role and a content"),
        ([{"role": "user", "content": "a"}, "b"], "message 1 is 'b'"),
        ([], "tokens is empty"),
        (["a"], r"tokens\[0\] is 'a'"),
    ],
)
def test_prompts_of_another_kind_are_refused_by_name(prompt: Any, words: str, pair: Pair) -> None:
    with pytest.raises(UsageError, match=words):
        Session(pair).generate(prompt)


def test_messages_go_through_the_chat_template() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}d"
    models = [Toy(table(seed, chat_template=template)) for seed in (1, 2)]
    session = Session(Pair(*models))
    asked: Any = [{"role": "user", "content": "ab"}, {"role": "user", "content": "c"}]
    assert session.generate(asked, max_tokens=1).n_prompt == 4
    assert session.generate("ab", max_tokens=1).n_prompt == 3
    assert session.generate("ab", max_tokens=1, raw=True).n_prompt == 2


def test_loading_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="unknown option 'context'; known: .*n_ctx"):
        specx.load(context=5)
    with pytest.raises(UsageError, match="draft is d.gguf, which needs a verifier"):
        specx.load(draft="d.gguf")


def test_a_prompt_longer_than_the_context_says_so_and_leaves_the_session_right() -> None:
    session = Session(Pair(Toy(table(1), n_ctx=8)), defaults=Settings(sampling=PLAIN))
    before = session.generate([0, 1], max_tokens=4, seed=1)
    with pytest.raises(ContextError, match="prompt has 20 tokens"):
        session.generate([0, 1] * 10)
    assert session.generate([0, 1], max_tokens=4, seed=1).tokens == before.tokens


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", None),
        ("gamma", "4"),
        ("gamma", -1),
        ("gamma", 1.5),
        ("seed", -1),
        ("seed", None),
        ("rule", None),
        ("rule", "best"),
        ("sampling", None),
        ("draft", "model"),
        ("draft_sampling", 0.5),
        ("entropy_stop", "0.5"),
    ],
)
def test_settings_of_another_kind_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}.*{value}"):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_ctx", "5"), ("threads", 1.5), ("n_batch", True), ("dtype", 16), ("offline", "no")],
)
def test_load_options_of_another_kind_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value!r}"):
        LoadOptions(**{name: value})


@pytest.mark.parametrize("backend", ["toy", "llamacpp", "hf"])
@pytest.mark.parametrize("model", ["a\0b", "", None, 5, Path("a\0b")])
def test_what_cannot_be_a_models_name_is_refused(backend: str, model: Any) -> None:
    with pytest.raises(UsageError, match="model is .*; give the path of a file, or a name"):
        get_backend(backend).load(model, LoadOptions())
