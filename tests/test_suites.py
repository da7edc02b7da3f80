"""The prompts that come with specx, how they are chosen, and a user's own."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from specx.bench.suites import KINDS, Prompt, read_prompts, suite
from specx.errors import UsageError
from specx.shipped import packaged

SUITES = packaged("suites/prompts.jsonl")
EVERYTHING = read_prompts(SUITES)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def ids(text: str) -> list[str]:
    return [prompt.id for prompt in suite(text)]


def file_of(folder: Path, *lines: str) -> Path:
    path = folder / "own.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """The one line with which the file is refused."""
    with pytest.raises(UsageError) as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What comes with specx


def test_there_are_eight_kinds_of_seven_prompts_in_the_order_of_their_file() -> None:
    assert len(KINDS) == 8
    assert Counter(prompt.kind for prompt in EVERYTHING) == dict.fromkeys(KINDS, 7)
    assert [p.id for p in EVERYTHING] == [f"{kind}-{n}" for kind in KINDS for n in range(1, 8)]


def test_all_texts_differ_also_in_how_they_begin() -> None:
    assert len({prompt.text.casefold() for prompt in EVERYTHING}) == len(EVERYTHING)
    assert len({prompt.text[:40].casefold() for prompt in EVERYTHING}) == len(EVERYTHING)


def test_the_file_holds_nothing_but_the_three_keys() -> None:
    for line in SUITES.read_text(encoding="utf-8").splitlines():
        assert list(json.loads(line)) == ["id", "kind", "prompt"]


@pytest.mark.parametrize("prompt", suite("edit"), ids=lambda prompt: prompt.id)
def test_an_edit_holds_the_whole_code(prompt: Prompt) -> None:
    (code,) = FENCE.findall(prompt.text)
    assert 25 <= len(code.splitlines()) <= 50
    assert any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(code)))


EDITED = {
    "edit-1": "total_value",
    "edit-2": "queue",
    "edit-3": "retries: int = 3",
    "edit-4": "balance",
    "edit-5": 'SEPARATOR = ","',
    "edit-6": "ValueError",
    "edit-7": "def player(self)",
}


@pytest.mark.parametrize("prompt", suite("edit"), ids=lambda prompt: prompt.id)
def test_what_is_to_be_edited_is_in_the_code(prompt: Prompt) -> None:
    (code,) = FENCE.findall(prompt.text)
    assert EDITED[prompt.id] in code


@pytest.mark.parametrize("prompt", suite("translation,json"), ids=lambda prompt: prompt.id)
def test_what_is_to_be_translated_or_extracted_is_a_long_paragraph(prompt: Prompt) -> None:
    assert len(prompt.text.split()) >= 100


# Choosing


def test_a_kind_is_all_of_its_prompts() -> None:
    assert suite("maths") == [prompt for prompt in EVERYTHING if prompt.kind == "maths"]


def test_a_number_is_that_many_from_the_first_on() -> None:
    assert ids("factual:1") == ["factual-1"]
    assert ids("factual:3") == ["factual-1", "factual-2", "factual-3"]
    assert suite("factual:7") == suite("factual")


def test_kinds_come_in_the_order_in_which_they_are_named() -> None:
    assert ids("opinion:2,code:1") == ["opinion-1", "opinion-2", "code-1"]
    assert ids(" code : 1 , factual:1 ") == ["code-1", "factual-1"]


def test_all_is_every_kind_in_the_order_of_the_file() -> None:
    assert suite("all") == EVERYTHING
    assert ids("all:2") == [f"{kind}-{n}" for kind in KINDS for n in (1, 2)]


@pytest.mark.parametrize(
    "text", ["fact", "", "factual,", "Factual", "factual-1", ":2", "code;edit"]
)
def test_an_unknown_kind_is_answered_with_the_known(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        suite(text)
    known = "factual, opinion, code, edit, translation, maths, json, dialogue, all"
    unknown = {"factual,": "", ":2": ""}.get(text, text)
    assert str(caught.value) == f"unknown kind of prompt {unknown!r} in --suite; known: {known}"


@pytest.mark.parametrize("count", ["0", "8", "-1", "", "x", "1.5", "+2", "٢", "1:2", "9" * 40])
def test_a_number_that_is_none_of_the_prompts_is_refused(count: str) -> None:
    for kind in ("code", "all"):
        with pytest.raises(UsageError) as caught:
            suite(f"factual, {kind}:{count}" if kind == "code" else f"{kind}:{count}")
        wanted = f"--suite '{kind}:{count}': the number of prompts must be 1 to 7"
        assert str(caught.value) == wanted


@pytest.mark.parametrize("text", ["code,code", "code:1,maths,code:2", "all:1,code", "code,all:1"])
def test_a_kind_named_twice_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names 'code' twice; name each kind once"):
        suite(text)


# A user's own file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    wanted = [
        Prompt("a", "poem", "Über\u2028zwei Zeilen\nund 你好"),
        Prompt("b", "own", " spaces stay "),
    ]
    lines = [
        json.dumps({"id": p.id, "kind": p.kind, "prompt": p.text}, ensure_ascii=False)
        for p in wanted
    ]
    assert read_prompts(file_of(tmp_path, *lines)) == wanted


def test_kind_and_id_have_defaults_and_other_keys_are_ignored(tmp_path: Path) -> None:
    path = file_of(tmp_path, '{"prompt": "one"}', "", '{"prompt": "two", "score": [1]}', "  ")
    assert read_prompts(path) == [Prompt("own-1", "own", "one"), Prompt("own-3", "own", "two")]


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n{"prompt": "two"}\r\n')
    assert read_prompts(path) == [Prompt("own-1", "own", "one"), Prompt("own-3", "own", "two")]


WRITE = '; write {"prompt": "..."}'
BAD_LINES = {
    "prompt: hello": f' is not JSON (Expecting value): "prompt: hello"{WRITE}',
    '{"prompt": "cut': " is not JSON (Unterminated string starting at): "
    f'"{{\\"prompt\\": \\"cut"{WRITE}',
    '["hello"]': f": expected object, got array{WRITE}",
    '"hello"': f": expected object, got str{WRITE}",
    '{"promt": "x"}': f": object missing required field prompt{WRITE}",
    "{}": f": object missing required field prompt{WRITE}",
    '{"prompt": ""}': f': field prompt: "" is empty{WRITE}',
    '{"prompt": " \\n"}': f': field prompt: " \\n" is empty{WRITE}',
    '{"prompt": 5}': f": field prompt is 5: expected str, got int{WRITE}",
    '{"prompt": null}': f": field prompt is null: expected str, got null{WRITE}",
    '{"prompt": "x", "kind": 1}': f": field kind is 1: expected str, got int{WRITE}",
    '{"prompt": "x", "id": ""}': f': field id: "" is empty{WRITE}',
    '{"prompt": "\\ud83d"}': ": field prompt: it holds half a character, '\\ud83d'; write it whole",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = file_of(tmp_path, '{"prompt": "good"}', "", line)
    assert refusal(path) == f"{path}, line 3{BAD_LINES[line]}"


ENDLESS = {"deep": "[" * 100_000, "number": '{"prompt": ' + "9" * 5000 + "}", "long": "x" * 9999}


@pytest.mark.parametrize("line", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_line_is_refused_in_a_short_one(tmp_path: Path, line: str) -> None:
    path = file_of(tmp_path, line)
    assert len(refusal(path)) < len(str(path)) + 250


def test_an_id_given_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    path = file_of(tmp_path, '{"prompt": "x", "id": "a"}', "", '{"prompt": "y", "id": "a"}')
    assert (
        refusal(path) == f'{path}, line 3: id "a" is also used on line 1; give each prompt its own'
    )


def test_a_default_id_may_not_be_given_to_another_prompt(tmp_path: Path) -> None:
    path = file_of(tmp_path, '{"prompt": "x", "id": "own-2"}', '{"prompt": "y"}')
    assert 'line 2: id "own-2" is also used on line 1' in refusal(path)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str) -> None:
    path = file_of(tmp_path, text)
    assert refusal(path) == f'{path} holds no prompts; write one per line, as {{"prompt": "..."}}'


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        message = refusal(path)
        assert message.startswith(f"cannot read the prompts from '{path}': ")


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "good"}\n{"prompt": "caf\xe9"}\n')
    assert refusal(path) == f"{path}, line 2 is not UTF-8 (byte 0xe9); save it as UTF-8"
