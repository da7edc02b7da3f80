"""`specx chat` under a terminal: editing, pasting, interrupts, resizing, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from try_signals import heed_signals

pexpect: Any = pytest.importorskip(
    "pexpect", reason="pexpect is missing: pip install -e '.[dev]' brings it"
)
pytestmark = pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals of POSIX")

SIGNS = "".join(map(chr, range(32, 127)))
ENDLESS = """
context = 1000000
vocabulary = %s
bos = "<s>"
eog = ["</s>"]
chat_template = '''{%% for m in messages %%}[{{ m.content }}]{%% endfor %%}'''
[[row]]
next = { a = 1 }
""" % json.dumps(["<s>", "</s>", "\n", *SIGNS])  # noqa: UP031
ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A"
WAIT = 60.0
"""Seconds after which something that does not come is missing."""
STYLE = re.compile(r"\x1b\[[0-9;]*m")

READY = r"\x1b\[\?2004h|> "
"""The editor takes keys by now, as it asked for pastes in brackets, or a plain prompt."""

Spawn = Callable[..., Any]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    (tmp_path / "endless.toml").write_text(ENDLESS)
    running = []

    def begin(*args: str, n: str | None = "4", env: dict[str, str] | None = None) -> Any:
        command = ["-m", "specx", "chat", "--backend", "toy", "-m", "endless.toml", "-s", "1"]
        # A terminal that nobody sees answers no question about its cursor.
        given = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **(env or {})}
        given = {name: value for name, value in given.items() if value != "unset"}
        child = pexpect.spawn(
            sys.executable,
            [*command, *(() if n is None else ("-n", n)), *args],
            cwd=str(tmp_path), env=given, encoding="utf-8", timeout=WAIT, dimensions=(50, 100),
            preexec_fn=heed_signals,
        )  # fmt: skip
        running.append(child)
        return child

    yield begin
    for child in running:
        child.close(force=True)


def ended(child: Any) -> int:
    """The exit code, once all has been said."""
    child.expect(pexpect.EOF)
    child.close()
    code: int = child.exitstatus if child.signalstatus is None else -child.signalstatus
    return code


def ask(child: Any, text: str, answer: str = "aaaa\r\n") -> None:
    child.send(text + ENTER)
    child.expect_exact(answer)
    child.expect("prompt .* read")


def conversation(child: Any, folder: Path) -> list[str]:
    child.send("/save said.json" + ENTER)
    child.expect_exact("saved said.json")
    return [each["content"] for each in json.loads((folder / "said.json").read_text())["messages"]]


def test_a_conversation_with_its_commands(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn()
    child.expect_exact("endless.toml; /help lists the commands, Ctrl-D leaves")
    ask(child, "hi")
    child.send("/sett" + ENTER)
    child.expect_exact("specx: unknown command '/sett'; /help lists them")
    child.send("/set temp hot" + ENTER)
    child.expect_exact("'hot' is not a valid float")
    ask(child, "//etc")
    child.send("/regen" + ENTER)
    child.expect_exact("another answer, with seed 3")
    child.expect("prompt .* read")
    child.send("/stats" + ENTER)
    child.expect_exact("answers   3: 12 tokens")
    child.send("/save no/folder.json" + ENTER)
    child.expect_exact("cannot write /save no/folder.json: No such file or directory; choose")
    child.send("/undo" + ENTER)
    child.expect_exact("took back '/etc' and its answer")
    assert conversation(child, tmp_path) == ["hi", "aaaa"]
    child.send("/exit" + ENTER)
    assert ended(child) == 0


def test_a_new_line_by_backslash_and_alt_enter_a_paste_and_the_history(
    spawn: Spawn, tmp_path: Path
) -> None:
    child = spawn()
    child.expect(READY)
    ask(child, f"one\\{ENTER}two{ALT_ENTER}three")
    lines = [f"line {number}" for number in range(40)]
    ask(child, "\x1b[200~" + ENTER.join(lines) + "\x1b[201~")
    ask(child, UP)
    assert conversation(child, tmp_path)[::2] == ["one\ntwo\nthree", *["\n".join(lines)] * 2]
    child.send(CTRL_D)
    assert ended(child) == 0


def test_ctrl_c_ends_the_answer_and_the_next_one_too_but_not_the_chat(
    spawn: Spawn, tmp_path: Path
) -> None:
    child = spawn(n=None)
    child.expect(READY)
    for question in ("hi", "ho", "he", "hu"):  # a third Ctrl-C ends any other command at once
        child.send(question + ENTER)
        child.expect_exact("aaaaaaaa")
        child.send(CTRL_C)
        child.expect("prompt .* read .*interrupted")
    child.send("/stats" + ENTER)
    child.expect_exact("last      interrupted; the part that was said is the answer")
    child.send("/set n 4" + ENTER)
    ask(child, "hm")
    found = conversation(child, tmp_path)
    assert found[::2] == ["hi", "ho", "he", "hu", "hm"]
    assert all(re.fullmatch("aaaaaaaa+", answer) for answer in found[1:9:2])
    child.send(CTRL_D)
    assert ended(child) == 0


def test_ctrl_c_at_the_prompt_clears_the_line_and_then_says_how_to_leave(spawn: Spawn) -> None:
    child = spawn()
    child.expect(READY)
    child.send("some words" + CTRL_C + CTRL_C)
    child.expect_exact("/exit or Ctrl-D leaves the chat")
    ask(child, "hi")
    child.kill(signal.SIGINT)  # not typed: sent by another process
    child.expect_exact("/exit or Ctrl-D leaves the chat")
    ask(child, "ho")
    child.send(CTRL_D)
    assert ended(child) == 0


@pytest.mark.parametrize("answering", [False, True])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_to_end_ends_in_order(name: str, code: int, answering: bool, spawn: Spawn) -> None:
    child = spawn(n=None)
    child.expect(READY)
    if answering:
        child.send("hi" + ENTER)
        child.expect_exact("aaaaaaaa")
    child.kill(getattr(signal, name))
    child.expect_exact(f"specx: ended by {name}")
    assert ended(child) == code
    assert "Traceback" not in child.before


def test_a_resize_in_mid_answer_changes_nothing(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn(n="3000")
    child.expect(READY)
    child.send("hi" + ENTER)
    child.expect_exact("aaaaaaaa")
    child.setwinsize(20, 40)
    child.expect("prompt .* read")
    assert conversation(child, tmp_path) == ["hi", "a" * 3000]
    child.setwinsize(60, 120)
    child.send("/exit" + ENTER)
    assert ended(child) == 0


@pytest.mark.parametrize(
    ("env", "marked"),
    [({}, True), ({"TERM": "dumb"}, False), ({"TERM": "unset"}, True), ({"NO_COLOR": "1"}, True)],
)
def test_marks_are_what_the_terminal_and_the_reader_can_take(
    env: dict[str, str], marked: bool, spawn: Spawn
) -> None:
    child = spawn("--draft", "lookup", "--gamma", "2", n="20", env={"NO_COLOR": "unset", **env})
    child.expect(READY)
    child.send("aaaa" + ENTER)
    child.expect("prompt .* read")
    child.send("/exit" + ENTER)
    text = child.before
    assert ended(child) == 0
    text += child.before
    styles = set(STYLE.findall(text))
    assert ("\x1b[2m" in styles) is marked
    colours = {style for style in styles if re.search(r"\[(3[1-7]|9[0-7])m", style)}
    assert bool(colours) is (marked and "NO_COLOR" not in env)
    if not marked:
        assert "\x1b[" not in text


def test_older_turns_are_dropped_only_where_the_person_agrees(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn("-c", "40", n="8")
    child.expect(READY)
    for question in ("hello", "hallo"):
        ask(child, question, "aaaaaaaa\r\n")
    child.send("howdy" + ENTER)
    child.expect_exact("full (this message needs 42); drop the oldest turn ('hello')? [y/N]")
    child.send("n" + ENTER)
    child.expect_exact("not sent: the context is full; /reset begins anew")
    child.send(ENTER)  # the message is offered again
    child.expect_exact("[y/N]")
    child.send("y" + ENTER)
    child.expect_exact("aaaaaaaa\r\n")
    child.expect("prompt .* read")
    assert conversation(child, tmp_path)[::2] == ["hallo", "howdy"]
    child.send("x" * 40 + ENTER)
    child.expect_exact("the message has 43 tokens, and the context of 40 has room for 32")
    child.send(CTRL_C + "/exit" + ENTER)
    assert ended(child) == 0


def test_another_chats_file_is_overwritten_only_where_the_person_agrees(
    spawn: Spawn, tmp_path: Path
) -> None:
    child = spawn()
    child.expect(READY)
    ask(child, "hi")
    conversation(child, tmp_path)
    child.send(CTRL_D)
    assert ended(child) == 0
    before = (tmp_path / "said.json").read_text()
    child = spawn()
    child.expect(READY)
    for answer, words in (("n", "would overwrite another chat"), ("y", "saved said.json")):
        assert (tmp_path / "said.json").read_text() == before
        child.send("/save said.json" + ENTER)
        child.expect_exact("said.json holds another chat; overwrite it? [y/N]")
        child.send(answer + ENTER)
        child.expect_exact(words)
    assert conversation(child, tmp_path) == []  # its own file by now
    child.send(CTRL_D)
    assert ended(child) == 0


def test_a_broken_file_to_load_is_one_line(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    child = spawn("--load", "broken.json")
    child.expect_exact("specx: broken.json is not JSON")
    assert ended(child) == 2
    assert "Traceback" not in child.before


def test_answers_may_go_to_a_file_while_a_person_types(spawn: Spawn, tmp_path: Path) -> None:
    spawn().close(force=True)
    command = f"exec '{sys.executable}' -m specx chat --backend toy -m endless.toml -s 1 -n 4 > out"
    child = pexpect.spawn(
        "sh", ["-c", command], cwd=str(tmp_path), encoding="utf-8", timeout=WAIT,
        preexec_fn=heed_signals,
    )  # fmt: skip
    child.expect(READY)
    child.send("hi\n")
    child.expect("prompt .* read")
    child.expect(READY)
    child.send("/sett\n")
    child.expect_exact("unknown command '/sett'")
    child.send(CTRL_C)
    child.expect_exact("/exit or Ctrl-D leaves the chat")
    child.send("ho\n")
    child.expect("prompt .* read")
    child.send(CTRL_D)
    assert ended(child) == 0
    assert (tmp_path / "out").read_text() == "aaaa\naaaa\n"
