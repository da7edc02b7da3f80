"""Thinking parts: found however the text is cut, and only where they can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specx.session.chat import render_chat
from specx.session.chat.thinking import Thinking, answered, history_of, split

WHOLE = [
    ("<think>a</think>b", ("<think>a</think>", "b")),
    ("\n <think>a</think>\n\nb", ("\n <think>a</think>", "\n\nb")),
    ("<think>a", ("<think>a", "")),
    ("<think>a</thin", ("<think>a</thin", "")),
    ("<thin", ("", "<thin")),
    ("<thinks>a</think>b", ("", "<thinks>a</think>b")),
    ("the tag <think>a</think>", ("", "the tag <think>a</think>")),
    ("<think>a<think>b</think>c</think>", ("<think>a<think>b</think>", "c</think>")),
    ("<think></think>", ("<think></think>", "")),
    ("", ("", "")),
    (" ", ("", " ")),
]
OPENED = [
    ("a</think>b", ("a</think>", "b")),
    ("a", ("a", "")),
    ("</think><think>b", ("</think>", "<think>b")),
    ("<think>a</think>b", ("<think>a</think>", "b")),
]


@pytest.mark.parametrize(("text", "parts"), WHOLE)
def test_thinking_is_what_the_tags_at_the_beginning_enclose(
    text: str, parts: tuple[str, str]
) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(("text", "parts"), OPENED)
def test_a_template_that_opens_the_tag_begins_within(text: str, parts: tuple[str, str]) -> None:
    assert split(text, opened=True) == parts


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "thi", "nk>", "/", "a", " ", "\n"])),
    st.booleans(),
    st.data(),
)
def test_the_pieces_do_not_matter(words: list[str], opened: bool, data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    thinking, spans = Thinking(opened=opened), []
    for begin, end in pairwise(cuts):
        spans += thinking.push(text[begin:end])
    spans += thinking.finish()
    sides = ["".join(t for within, t in spans if within is side) for side in (True, False)]
    assert tuple(sides) == split(text, opened=opened)
    assert "".join(t for _, t in spans) == text


def test_nothing_is_held_back_that_can_be_no_tag() -> None:
    thinking = Thinking()
    assert thinking.push("Hello") == [(False, "Hello")]
    assert thinking.push(" <") == [(False, " <")]
    assert thinking.finish() == []


EACH = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
CUTS = (
    "{% for m in messages %}[{{ m.content.split('</think>')[-1] }}]{% endfor %}<assistant><think>"
)
NAMES = (
    "{% for m in messages %}{% if m.reasoning_content and loop.last %}{{ m.reasoning_content }}"
    "{% endif %}[{{ m.content }}]{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (EACH, "[hi][<think>\nhm\n</think>\n\nyes][go]"),
        (CUTS, "[hi][\n\nyes][go]<assistant><think>"),
        (NAMES, "[hi][yes][go]"),
        (NAMES.replace("loop.last", "true"), "[hi]hm[yes][go]"),
    ],
)
def test_thinking_is_left_to_a_template_that_knows_of_it_without_a_false_alarm(
    template: str, shown: str
) -> None:
    thought, answer = split("<think>\nhm\n</think>\n\nyes")
    messages = [
        {"role": "user", "content": "hi"},
        answered(thought, answer, history_of(template)),
        {"role": "user", "content": "go"},
    ]
    assert render_chat(template, messages) == shown  # a warning is an error in this suite


def test_an_answer_that_is_all_thinking_leaves_an_empty_one() -> None:
    thought, answer = split("<think>hm")
    messages = [{"role": "user", "content": "hi"}, answered(thought, answer, history_of(CUTS))]
    assert render_chat(CUTS, messages) == "[hi][]<assistant><think>"
