"""`specx chat` through a pipe: answers, commands, files, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_models import with_template
from inprocess import specx

import specx.cli.chat as cli_chat
from specx.cli.generating import Interruptible
from specx.session.chat import render_chat
from specx.session.decoding import Round

SIGNS = "".join(map(chr, range(32, 127)))
EACH = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
ROWS = '[[row]]\nnext = { a = 0.5, b = 0.3, "</s>" = 0.2 }\n'
THINKS = (
    '[[row]]\nnext = { "<think>" = 1 }\n[[row]]\nafter = ["<think>"]\nnext = { a = 1 }\n'
    '[[row]]\nafter = ["a"]\nnext = { "</think>" = 1 }\n'
    '[[row]]\nafter = ["</think>"]\nnext = { b = 1 }\n'
    '[[row]]\nafter = ["b"]\nnext = { "</s>" = 1 }\n'
)

Table = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    def write(template: str = EACH, rows: str = ROWS, name: str = "model") -> Path:
        words = ["<s>", "</s>", "<think>", "</think>", "\n", *SIGNS]
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f"vocabulary = {json.dumps(words)}\nbos = '<s>'\neog = ['</s>']\n"
            f"chat_template = {json.dumps(template)}\n{rows}"
        )
        return path

    return write


def chat(model: Path, typed: str, *args: str) -> subprocess.CompletedProcess[str]:
    return specx("chat", "--backend", "toy", "-m", str(model), "-s", "1", *args, stdin=typed)


def talked(model: Path, typed: str, *args: str) -> tuple[list[str], list[str]]:
    """The answers, and the lines beside them."""
    done = chat(model, typed, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def complaint(model: Path, typed: str, *args: str) -> str:
    done = chat(model, typed, *args)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


# Answers


def test_the_first_answer_is_that_of_run(table: Table) -> None:
    model, sampling = table(), ["--temp", "0.8", "-n", "40", "-s", "2"]
    ran = specx("run", "--backend", "toy", "-m", str(model), *sampling, "-p", "hi")
    answers, _ = talked(model, "hi\n", *sampling)
    assert answers == ran.stdout.splitlines()
    assert len(answers[0]) > 2


def test_the_first_answer_is_that_of_run_on_the_demo_pair(demo_verifier: Path) -> None:
    args = ["-s", "3", "-n", "40"]
    ran = specx("run", *args, "-p", "def fibonacci(n):")
    assert specx("chat", *args, stdin="def fibonacci(n):").stdout == ran.stdout


# The end of a turn is a token of its own, so that the text before it has the tokens that it had.
CODE = "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}"


def test_greedy_turns_are_those_of_run_on_the_whole_transcript_with_every_prefix_reused(
    demo_verifier: Path, demo_drafter: Path, tmp_path: Path
) -> None:
    model = with_template(demo_verifier, tmp_path / "model.gguf", CODE)
    pair = ["-m", str(model), "-md", str(demo_drafter), "--temp", "0", "-t", "1", "--gamma", "3"]
    questions = [f"def f{number}(x):" for number in range(10)]
    saved = tmp_path / "chat.json"
    done = specx("chat", *pair, "-n", "12", stdin="\n".join([*questions, f"/save {saved}"]))
    assert done.returncode == 0, done.stderr
    messages = json.loads(saved.read_text())["messages"]
    lengths = []
    for turn in range(10):
        text = render_chat(CODE, messages[: 2 * turn + 1])
        ran = specx("run", *pair, "-n", "12", "--raw", "--json", "-p", text)
        found = json.loads(ran.stdout)
        assert messages[2 * turn + 1]["content"] == found["text"]
        assert found["n_tokens"] > 5
        lengths.append(found["settings"]["n_prompt"] + found["n_tokens"])
    reused = [int(n) for n in re.findall(r"prompt (\d+) reused", done.stderr)]
    # A cache never holds the last token of a text: nothing followed it.
    assert reused == [0, *(length - 1 for length in lengths[:-1])]


def test_each_answer_has_the_next_seed(table: Table, tmp_path: Path) -> None:
    model, saved = table(), tmp_path / "chat.json"
    talked(model, f"hi\nho\n/regen\n/save {saved}\n", "-n", "30")
    found = json.loads(saved.read_text())
    asked, answer = found["messages"][2:]
    assert (asked["content"], answer["seed"], found["n_asked"]) == ("ho", 3, 3)
    text = render_chat(EACH, found["messages"][:3])
    args = ["--backend", "toy", "-m", str(model), "-n", "30", "-s", "3"]
    assert specx("run", *args, "--raw", "-p", text).stdout == answer["content"] + "\n"


def test_without_a_template_messages_and_answers_are_one_text(table: Table, tmp_path: Path) -> None:
    model, saved = table(""), tmp_path / "chat.json"
    _, beside = talked(model, f"hi\nho\n/save {saved}\n", "-n", "9")
    assert beside[0] == "the model has no chat template: messages and answers form one plain text"
    first = json.loads(saved.read_text())["messages"][1]["content"]
    assert read_in_all("".join(beside)) == [3, len("<hi") + len(first) + len("\nho")]


# Lines


@pytest.mark.parametrize("typed", ["hi\nho\n", "hi\r\nho", "\ufeffhi\n\n  \nho\n"])
def test_each_line_is_a_message_however_it_ends(typed: str, table: Table) -> None:
    model = table()
    plain = chat(model, "hi\nho\n")
    assert (chat(model, typed).stdout, plain.stdout.count("\n")) == (plain.stdout, 2)


def test_nothing_but_answers_goes_to_standard_output_and_quiet_is_quiet(table: Table) -> None:
    answers, beside = talked(table(), "hi\n/help\n/stats\nho\n")
    assert all(set(answer) <= {"a", "b"} for answer in answers)
    assert len(answers) == 2
    assert any("/regen" in line for line in beside)
    assert talked(table(), "hi\nho\n", "-q") == (answers, [])


def test_a_message_may_begin_with_a_slash(table: Table, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    talked(table(), f"//etc\n/save {saved}\n")
    assert json.loads(saved.read_text())["messages"][0]["content"] == "/etc"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("/sett\n", "unknown command '/sett'; /help lists them"),
        ("/\n", "unknown command '/'"),
        ("/undo\n", "there is no answer yet; ask something first"),
        ("/regen\n", "there is no answer yet; ask something first"),
        ("/undo 2\n", "/undo takes nothing after it; leave '2' out"),
        ("/set temp hot\n", "/set temp: 'hot' is not a valid float; /set shows all"),
        ("/set temp -1\n", "temperature is -1.0; it must be 0 (greedy) or more"),
        ("/set gamma many\n", '/set gamma: "many" is neither auto nor a whole number'),
        ("/set rule best\n", "/set rule: 'best' is not one of"),
        ("/set n 0\n", "/set n: 0 is not in the range x>=1"),
        ("/set seed -1\n", "/set seed: -1 is not in the range"),
        ("/set warmth 1\n", "unknown setting 'warmth'; known: n, rule, temp, top-k"),
        ("/set temp\n", "/set temp lacks a value; /set temp 0.3 sets one"),
        ("/save\n", "/save needs a file; /save chat.json names one"),
        ("/load\n", "/load needs a file"),
        ("/load none.json\n", "none.json"),
        ("/save no/such/folder.json\n", "cannot write /save no/such/folder.json: No such file"),
    ],
)
def test_what_cannot_be_obeyed_is_one_line_and_ends_the_pipe(
    typed: str, words: str, table: Table
) -> None:
    assert words in complaint(table(), typed)
    assert chat(table(), f"{typed}hi\n").stdout == ""


def test_a_line_that_is_not_text_is_named(table: Table) -> None:
    done = specx("chat", "--backend", "toy", "-m", str(table()), "-q", stdin=b"hi\nh\xff\n")
    assert done.returncode == 2
    assert done.stderr == (
        "specx: line 2 of standard input is not UTF-8: byte 1 is 0xff; convert it to UTF-8\n"
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--raw", "-sys", "be"], "-sys needs a chat template, which --raw disables"),
        (["-n", "0"], "0 is not in the range"),
        (["--temp", "-1"], "temperature is -1.0"),
        (["--gamma", "4"], "--gamma 4 needs a drafter"),
        (["--load", "none.json"], "none.json"),
    ],
)
def test_options_that_make_no_sense_are_one_line(args: list[str], words: str, table: Table) -> None:
    assert words in complaint(table(), "hi\n", *args)


# Commands


def said(*typed: str, model: Path, folder: Path, args: tuple[str, ...] = ()) -> list[str]:
    """The contents of the conversation that the lines come to, the system message first."""
    saved = folder / "said.json"
    saved.unlink(missing_ok=True)
    talked(model, "\n".join([*typed, f"/save {saved}"]), *args)
    found = json.loads(saved.read_text())
    return [found["system"], *(message["content"] for message in found["messages"])]


def test_undo_reset_and_regen(table: Table, tmp_path: Path) -> None:
    model = table()
    both = said("hi", "ho", model=model, folder=tmp_path)
    assert said("hi", "ho", "/undo", model=model, folder=tmp_path) == both[:3]
    assert said("hi", "ho", "/reset", model=model, folder=tmp_path) == [None]
    assert said("ho", "/reset", "hi", "ho", model=model, folder=tmp_path) == both
    again = said("hi", "ho", "/regen", model=model, folder=tmp_path)
    assert again[:4] == both[:4]
    assert again[4] != both[4]


def test_the_system_message_is_shown_changed_and_removed(table: Table, tmp_path: Path) -> None:
    model = table()
    _, beside = talked(model, "/system\n/system be\n/system\nhi\n/system off\n/system\n")
    assert beside[:3] == ["system message: none", "system message changed", "system message: be"]
    assert beside[3].endswith("reused + 9 read")  # <s>[be][hi]
    assert beside[4:] == ["system message removed", "system message: none"]
    assert said("/system be", "hi", model=model, folder=tmp_path)[0] == "be"
    kept = said("/reset", model=model, folder=tmp_path, args=("-sys", "be"))
    assert kept == ["be"]
    assert "needs a chat template" in complaint(table(""), "/system be\n")


def test_set_changes_what_the_next_answer_uses_and_default_takes_it_back(table: Table) -> None:
    _, beside = talked(table(), "/set temp 0\n/set n 5\n/set seed 7\n/set --top-p 0.5\n/set\n")
    wanted = "n 5  rule block  temp 0.0  top-k 0  top-p 0.5  min-p 0.0  seed 7  gamma auto"
    assert beside[-1] == wanted
    answers, _ = talked(table(), "/set temp 0\n/set n 5\nhi\n/set n 3\n/regen\n")
    assert answers == ["aaaaa", "aaa"]
    _, beside = talked(table(), "/set temp 0\n/set temp default\n")
    assert "temp 0.7 " in beside[-1]


def test_a_seed_that_is_set_is_the_next_answers(table: Table) -> None:
    first, _ = talked(table(), "hi\n", "-s", "9")
    later, _ = talked(table(), "ho\n/undo\n/set seed 9\nhi\n")
    assert later[1] == first[0]


def test_stats_tell_the_settings_and_the_context(table: Table) -> None:
    _, beside = talked(table(), "hi\n/stats\n", "-n", "6", "--temp", "0", "-c", "64")
    assert beside[-4].startswith("answers   1: 6 tokens at ")
    assert beside[-3:] == [
        "prompts   0 tokens reused, 5 read",
        "context   11 of 64 tokens used",
        "settings  n 6  rule block  temp 0.0  top-k 0  top-p 0.9  min-p 0.0  seed 1  gamma auto",
    ]


def test_exit_ends_what_is_piped(table: Table) -> None:
    assert talked(table(), "/exit\nhi\n") == ([], [])


# The context


def test_a_full_context_drops_nothing_by_itself(table: Table) -> None:
    args = ("-c", "40", "-n", "8", "--temp", "0")
    line = complaint(table(), "hello\nhello\nhello\n", *args)
    assert line == (
        "specx: the context of 40 tokens is full (this message needs 42); put /reset before it, "
        "or pass a larger -c; message: 'hello'"
    )
    answers, _ = talked(table(), "hello\nhello\n/reset\nhello\n", *args)
    assert len(answers) == 3


def test_a_message_that_does_not_fit_alone_is_refused(table: Table) -> None:
    line = complaint(table(), "x" * 60 + "\n", "-c", "40", "-n", "8")
    assert "the message has 63 tokens, and the context of 40 has room for 32; shorten it" in line


def test_an_answer_that_fills_the_context_says_so(table: Table) -> None:
    _, beside = talked(table(), "hi\n", "-c", "20", "--temp", "0")
    assert beside[0].endswith("context full (/reset begins anew)")


# Thinking


def test_thinking_is_dimmed_and_not_sent_again_where_the_template_knows_of_it(
    table: Table,
) -> None:
    cuts = EACH + "{# </think> #}"
    done = chat(table(cuts, THINKS), "hi\nho\n", "--color", "on")
    styled = "\x1b[2m<think>\x1b[0m\x1b[2ma\x1b[0m\x1b[2m</think>\x1b[0mb\n"
    assert (done.returncode, done.stdout) == (0, styled * 2)
    n_prompt = len("<[hi][b][ho]")
    assert read_in_all(done.stderr) == [5, n_prompt]
    assert "altered" not in done.stderr


def test_thinking_that_the_template_opens_is_seen(table: Table) -> None:
    done = chat(table(EACH + "<think>", THINKS), "hi\nho\n", "--color", "on")
    assert done.stdout == "\x1b[2ma\x1b[0m\x1b[2m</think>\x1b[0mb\n" * 2
    assert read_in_all(done.stderr) == [6, len("<[hi][b][ho]t")]


def test_thinking_stays_where_the_template_does_not_know_of_it(table: Table) -> None:
    done = chat(table(EACH, THINKS), "hi\nho\n", "-n", "9")
    assert done.stdout == "<think>a</think>b\n" * 2
    assert read_in_all(done.stderr) == [5, len("<[hi][tatb][ho]")]


def read_in_all(beside: str) -> list[int]:
    """Prompt tokens of each answer, reused and read."""
    found = re.findall(r"prompt (\d+) reused \+ (\d+) read", beside)
    return [int(reused) + int(read) for reused, read in found]


# A person at a terminal, as far as no terminal is needed


class Person:
    """Types what it is given; may be interrupted before an answer begins."""

    interactive = True

    def __init__(self, *typed: str) -> None:
        self.typed = list(typed)
        self.offered: list[str] = []

    def read(self, offered: str = "") -> str | None:
        self.offered.append(offered)
        return self.typed.pop(0) if self.typed else None

    def agrees(self, question: str) -> bool:
        return False


def test_a_message_whose_answer_never_began_is_offered_again(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "chat.json"
    person = Person("hi", "ho", "/system be", "/regen", f"/save {saved}", "x" * 99)
    fed = iter([False, True, True])

    def interrupted(self: Interruptible, n_tokens: int) -> None:
        if next(fed):
            raise KeyboardInterrupt

    monkeypatch.setattr(Interruptible, "fed", interrupted)
    monkeypatch.setattr(cli_chat, "open_input", lambda: person)
    done = chat(table(), "", "-c", "60", "--temp", "0", "-n", "3")
    assert done.returncode == 0, done.stderr
    assert person.offered == ["", "", "ho", "", "", "", "x" * 99]
    messages = json.loads(saved.read_text())["messages"]
    assert [message["content"] for message in messages] == ["hi", "aaa"]
    assert done.stdout == "aaa\n"


def test_what_was_said_stays_where_an_interrupt_could_not_wait_for_the_round(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "chat.json"
    person = Person("hi", f"/save {saved}")

    def interrupted(self: Interruptible, done: Round) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Interruptible, "round", interrupted)
    monkeypatch.setattr(cli_chat, "open_input", lambda: person)
    done = chat(table(), "", "--temp", "0")
    assert (done.returncode, done.stdout) == (0, "a\n"), done.stderr
    _, answer = json.loads(saved.read_text())["messages"]
    assert (answer["content"], answer["stopped"]) == ("a", "interrupted")


# Files


def test_a_chat_goes_on_from_its_file_under_its_settings(table: Table, tmp_path: Path) -> None:
    model, saved = table(), tmp_path / "chat.json"
    args = ("-n", "9", "--temp", "0.9", "-sys", "be")
    whole, _ = talked(model, "hi\nho\nhe\n", *args)
    talked(model, f"hi\nho\n/save {saved}\n", *args)
    load = ["chat", "--backend", "toy", "-m", str(model), "--load", str(saved)]
    resumed = specx(*load, stdin="he\n")
    assert resumed.stdout.splitlines() == whole[2:]
    assert resumed.stderr.splitlines()[0] == f"loaded {saved}: 2 turns"
    told = specx(*load, "-n", "2", "-sys", "no", stdin="/set\n/system\n").stderr.splitlines()
    assert told[1].startswith("n 2  rule block  temp 0.9 ")
    assert told[2] == "system message: no"
    within, _ = talked(model, f"ho\n/load {saved}\nhe\n")
    assert within[1:] == whole[2:]


def test_another_model_is_told(table: Table, tmp_path: Path) -> None:
    model, saved = table(), tmp_path / "chat.json"
    talked(model, f"hi\n/save {saved}\n")
    same = table(name="copy")
    _, beside = talked(same, f"/load {saved}\n")
    assert len(beside) == 1
    other = table(template=EACH + " ", name="other")
    _, beside = talked(other, f"/load {saved}\n")
    assert beside[1] == f"{saved} was written with toy:model.toml; this is toy:other.toml"


def test_a_broken_file_is_one_line_before_a_model_is_loaded(tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    saved.write_text('{"specx_chat": 1, "messages": 3}')
    line = complaint(tmp_path / "no model", "hi\n", "--load", str(saved))
    assert line.startswith(f"specx: {saved}: ")
    assert "/save FILE in specx chat writes a chat" in line


def test_settings_that_cannot_be_used_leave_the_chat_as_it_is(table: Table, tmp_path: Path) -> None:
    model, saved = table(), tmp_path / "chat.json"
    talked(model, f"hi\n/save {saved}\n")
    record = json.loads(saved.read_text())
    record["settings"]["temperature"] = -2
    saved.write_text(json.dumps(record))
    line = complaint(model, f"/load {saved}\n")
    assert line == f"specx: {saved}: temperature is -2.0; it must be 0 (greedy) or more"


def test_nothing_is_overwritten_but_the_chats_own_file(table: Table, tmp_path: Path) -> None:
    model, saved, notes = table(), tmp_path / "chat.json", tmp_path / "notes.txt"
    notes.write_text("mine")
    assert "holds" in complaint(model, f"hi\n/save {notes}\n") or notes.read_text() == "mine"
    assert notes.read_text() == "mine"
    talked(model, f"hi\n/save {saved}\nho\n/save {saved}\n")
    before = saved.read_text()
    line = complaint(model, f"hi\n/save {saved}\n")
    assert line == f"specx: /save {saved} would overwrite another chat; name another file"
    assert saved.read_text() == before
    talked(model, f"/load {saved}\nhe\n/save {saved}\n")
    assert len(json.loads(saved.read_text())["messages"]) == 6


KILLED = """
import os, signal
fsync, calls = os.fsync, []
def die(number):
    calls.append(number)  # the first is the trial before the work
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(number)
os.fsync = die
from specx.__main__ import main
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_a_save_that_is_killed_leaves_the_old_file(table: Table, tmp_path: Path) -> None:
    model, saved = table(), tmp_path / "chat.json"
    talked(model, f"hi\n/save {saved}\n")
    before = saved.read_text()
    command = [sys.executable, "-c", KILLED, "chat", "--backend", "toy", "-m", str(model)]
    typed = f"/load {saved}\nho\n/save {saved}\n"
    done = subprocess.run(command, input=typed, text=True, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert saved.read_text() == before
