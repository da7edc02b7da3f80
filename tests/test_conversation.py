"""A conversation without a terminal: what is sent, taken back, dropped, saved and loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specx.errors import ModelError, UsageError
from specx.records.chat import ChatModel, ChatSettings, SavedChat, read_chat, write_chat
from specx.records.kinds import kind_of
from specx.session.chat import ChatOptions
from specx.session.conversation import Conversation, Encoding, Turn, plain
from specx_backends.toy import ToyTokenizer
from specx_backends.toy_table import parse_table

SETTINGS = ChatSettings(
    temperature=0.3, top_k=0, top_p=0.9, min_p=0.0, gamma="auto", rule="block", predict=None
)


def turn(number: int, **more: Any) -> Turn:
    return Turn(question=f"q{number}", answer=f"a{number}", **more)


def talk(count: int, system: str | None = None) -> Conversation:
    return Conversation(system, [turn(number) for number in range(count)], count)


def contents(conversation: Conversation, question: str, **more: Any) -> list[str]:
    return [message["content"] for message in conversation.messages(question, **more)]


def test_the_messages_are_the_turns_and_the_question() -> None:
    messages = talk(1, "be").messages("q")
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert contents(talk(1, "be"), "q") == ["be", "q0", "a0", "q"]
    assert contents(talk(3), "q", skip=2) == ["q2", "a2", "q"]


def test_thinking_is_sent_as_the_template_takes_it() -> None:
    conversation = Conversation(turns=[turn(0, thought="<think>hm</think>")])
    assert contents(conversation, "q")[1] == "<think>hm</think>a0"
    assert contents(conversation, "q", history="answer")[1] == "a0"
    named = conversation.messages("q", history="reasoning_content")[1]
    assert named == {"role": "assistant", "content": "a0", "reasoning_content": "hm"}


def test_undo_takes_the_last_turn_and_refuses_at_the_beginning() -> None:
    conversation = talk(2)
    assert conversation.undo() == turn(1)
    assert contents(conversation, "q") == ["q0", "a0", "q"]
    conversation.undo()
    with pytest.raises(UsageError, match="no answer yet; ask something first"):
        conversation.undo()


def test_a_reset_keeps_the_system_message_and_begins_the_seeds_anew() -> None:
    conversation = talk(2, "be")
    conversation.reset()
    assert (contents(conversation, "q"), conversation.n_asked) == (["be", "q"], 0)


@pytest.mark.parametrize(("room", "count"), [(7, 0), (6, 1), (5, 1), (3, 2), (1, 3), (0, None)])
def test_no_more_turns_are_dropped_than_must_be(room: int, count: int | None) -> None:
    conversation = talk(3)
    found = conversation.to_drop(lambda skip: len(conversation.messages("q", skip=skip)) <= room)
    assert found == count
    conversation.drop(count or 0)
    assert len(conversation.turns) == 3 - (count or 0)


def test_a_plain_text_begins_each_message_on_a_line_of_its_own() -> None:
    messages = [
        {"role": role, "content": content}
        for role, content in [("user", "a"), ("assistant", "b"), ("user", "c"),
                              ("assistant", "d\n"), ("user", "e")]
    ]  # fmt: skip
    assert plain(messages) == "ab\ncd\ne"


def tokenizer(template: str) -> ToyTokenizer:
    words = ["<s>", "</s>", "a", "b", "[", "]", "\n", "<think>"]
    row = {"next": {"a": 1.0}}
    table = {"vocabulary": words, "bos": "<s>", "eog": ["</s>"], "row": [row]}
    return ToyTokenizer(parse_table({**table, "chat_template": template}), "toy")


EACH = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


@pytest.mark.parametrize(
    ("template", "opens"), [(EACH, False), (EACH + "<think>", True), (EACH + "<think>\n", True)]
)
def test_a_prompt_that_opens_the_thinking_part_is_seen(template: str, opens: bool) -> None:
    encoding = Encoding(tokenizer(template), ChatOptions(), raw=False)
    tokens = encoding.encode([{"role": "user", "content": "a"}])
    assert encoding.opens_thinking(tokens) is opens


def test_a_broken_template_is_refused_at_once_and_none_is_plain_text() -> None:
    with pytest.raises(ModelError, match="template failed"):
        Encoding(tokenizer("{% if %}"), ChatOptions(), raw=False)
    assert Encoding(tokenizer("{% if %}"), ChatOptions(), raw=True).raw
    assert Encoding(tokenizer(""), ChatOptions(), raw=False).raw


# Saved chats


def saved() -> SavedChat:
    first = turn(0, thought="<think>hm</think>", stopped="interrupted", seed=7)
    return SavedChat(
        conversation=Conversation("be", [first, turn(1)], 3),
        settings=SETTINGS,
        seed=7,
        model=ChatModel(name="toy:a", sha256="12"),
    )


def test_a_saved_chat_is_read_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(write_chat(saved()), encoding="utf-8")
    assert read_chat(path) == saved()
    assert kind_of(path) == "chat"


def changed(path: str, value: Any) -> Any:
    record = json.loads(write_chat(saved()))
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at = record
    for step in parents:
        at = at[step]
    at[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("specx_chat", 2, "has format 2; this specx reads 1"),
        ("settings.temperature", "hot", 'field settings.temperature is "hot": expected `float`'),
        ("settings.gamma", -1, "settings.gamma is -1"),
        ("settings.predict", 0, "settings.predict is 0"),
        ("settings.draft_p_min", 1.5, "settings.draft_p_min is 1.5"),
        ("seed", -1, "seed is -1"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("system", 3, "field system is 3"),
        ("messages.0.role", "system", 'messages[0].role is "system"'),
        ("messages.0.role", "assistant", "messages[0] is of role assistant, not user"),
        ("messages.1.content", None, "messages[1].content is null"),
        ("messages.1.stopped", "bored", 'messages[1].stopped is "bored"'),
        ("messages", [{"role": "user", "content": "q"}], "the last message has no answer"),
    ],
)
def test_a_chat_with_a_wrong_value_is_one_line_that_names_it(
    path: str, value: Any, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(changed(path, value)), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        read_chat(file)
    line = str(error.value)
    assert line.startswith(str(file))
    assert words.replace("`", "") in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "is not a saved chat; /save FILE"), ("{", "is not JSON"), ("{}", "not a saved chat")],
)
def test_another_file_is_no_chat(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_chat(file)


def test_a_model_is_told_by_its_hash_where_both_are_known() -> None:
    model = ChatModel(name="toy:a", sha256="12")
    assert not model.differs(replace(model, name="toy:b"))
    assert model.differs(replace(model, sha256="34"))
    assert model.differs(ChatModel(name="toy:b"))
    assert not model.differs(ChatModel(name="toy:a"))
