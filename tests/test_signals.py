"""Signals, streams that are closed or narrow, and how quickly the command starts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from specx import interrupts
from specx.cli import COMMANDS as SHOWN
from specx.cli import cli, exit_code_of
from specx.records.trace import read_trace
from try_signals import duration, heed_signals, interrupt, start, write_trace

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

LONG = ["run", "-p", "def f(n):", "-n", "3000", "--ignore-eos", "-c", "4096", "--trace", "t.jsonl"]
ARROWS = """
vocabulary = ["<s>", "→", "😀"]
bos = "<s>"
[[row]]
next = { "→" = 0.5, "😀" = 0.5 }
"""


@pytest.fixture(autouse=True)
def heeds_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    heed_signals()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as before `nohup`
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("trace"))


@pytest.mark.parametrize(
    ("command", "times"),
    [("run", 9), ("run --json", 6), ("bench", 5), ("report", 2)],
)
@pytest.mark.usefixtures("demo_verifier")
def test_an_interrupt_at_any_moment_leaves_one_line_and_whole_files(
    command: str, times: int, trace: Path
) -> None:
    chance, seconds = random.Random(command), duration(command, trace)
    trials = [interrupt(command, chance.uniform(0, seconds), trace) for _ in range(times)]
    assert [trial for trial in trials if trial.faults] == []


def test_an_interrupt_at_the_first_import_is_one_line(tmp_path: Path) -> None:
    process = start(["--version"], tmp_path)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"specx: interrupted\n")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.usefixtures("demo_verifier")
def test_a_signal_while_text_is_written_ends_text_trace_and_footer(
    name: str, code: int, tmp_path: Path
) -> None:
    process = start(LONG, tmp_path)
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)  # by now it writes
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    found = read_trace(tmp_path / "t.jsonl")
    assert found.summary is not None
    assert found.summary.stop_reason == "interrupted"
    assert (first + out).decode().rstrip() == found.text.rstrip()
    assert "stopped by an interrupt" in err.decode()
    assert "Traceback" not in err.decode()


def test_a_signal_before_anything_began_is_one_line(tmp_path: Path) -> None:
    process = start(["run", "--backend", "toy", "-m", "x"], tmp_path)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, b"specx: ended by SIGTERM\n")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_an_interrupt_within_a_callback_of_c_is_raised_after_it() -> None:
    done = python(
        "import ctypes, signal, time\n"
        "from specx import interrupts\n"
        "interrupts.listen(); interrupts.begun()\n"
        "def log(_):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "ctypes.CFUNCTYPE(None, ctypes.c_int)(log)(0)\n"
        "try:\n"
        "    time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    print('raised')\n"
    )
    assert (done.stdout, done.stderr) == ("raised\n", "")


def test_an_interrupt_within_a_destructor_is_raised_after_it() -> None:
    done = python(
        "import signal, time\n"
        "from specx import interrupts\n"
        "interrupts.listen(); interrupts.begun()\n"
        "class Model:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "try:\n"
        "    Model(); time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    print('raised')\n"
    )
    assert (done.stdout, done.stderr) == ("raised\n", "")


HELD = (
    "import signal, sys\n"
    "from specx import interrupts\n"
    "interrupts.listen()\n"
    "try:\n"
    "    with interrupts.held():\n"
    "        for _ in range(int(sys.argv[1])): signal.raise_signal(signal.SIGINT)\n"
    "        print('whole', flush=True)\n"
    "    print('too far')\n"
    "except KeyboardInterrupt:\n"
    "    signal.raise_signal(signal.SIGINT)\n"
    "    print('footer')\n"
)


@pytest.mark.parametrize(("times", "shown"), [("1", "whole\nfooter\n"), ("3", "")])
def test_what_belongs_together_is_held_and_the_third_signal_ends_at_once(
    times: str, shown: str
) -> None:
    command = [sys.executable, "-c", HELD, times]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == shown
    assert done.returncode == (130 if times == "3" else 0)


RESUMED = (
    "import signal, sys, time\n"
    "from specx import interrupts\n"
    "interrupts.PATIENCE = 0.2\n"
    "interrupts.listen(); interrupts.begun()\n"
    "def answer(*signals):\n"
    "    try:\n"
    "        with interrupts.held():\n"
    "            for each in signals: signal.raise_signal(each)\n"
    "    except KeyboardInterrupt:\n"
    "        print('ended', interrupts.received(), interrupts.resumed(), interrupts.received())\n"
)


def test_after_a_ctrl_c_that_was_taken_the_next_is_the_first_again() -> None:
    done = python(
        f"{RESUMED}"
        "for _ in range(5): answer(signal.SIGINT)\n"  # without it the third would end the process
        "kill, signal.pthread_kill = signal.pthread_kill, lambda *_: print('reminded')\n"
        "time.sleep(0.5)\n"  # no reminder of those five wakes what comes after
        "print('quiet')\n"
        "signal.pthread_kill = kill\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('raised')\n"
    )
    assert done.stdout == "ended True True False\n" * 5 + "quiet\nraised\n", done.stderr


@pytest.mark.parametrize("signals", ["SIGTERM", "SIGINT, signal.SIGTERM", "SIGTERM, signal.SIGINT"])
def test_a_signal_that_is_to_end_the_process_is_not_gone_on_from(signals: str) -> None:
    done = python(f"{RESUMED}answer(signal.{signals})")
    assert done.stdout == "ended True False True\n", done.stderr


def test_a_ctrl_c_that_comes_while_the_last_is_put_away_belongs_to_it_or_is_raised() -> None:
    """A signal at every line of `resumed`: never lost between two states, never a stale one."""
    done = python(
        f"{RESUMED}"
        "armed = []\n"
        "def trace(frame, event, arg):\n"
        "    if event == 'line' and armed and frame.f_code.co_name == 'resumed':\n"
        "        armed[0] -= 1\n"
        "        if not armed[0]:\n"
        "            armed.clear(); signal.raise_signal(signal.SIGINT)\n"
        "    return trace\n"
        "for line in range(1, 9):\n"
        "    sys.settrace(trace)\n"  # ends with the exception that it raises
        "    armed.append(line)\n"
        "    try:\n"
        "        answer(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        print('raised', interrupts.received(), interrupts.resumed())\n"
        "    armed.clear()\n"
        "    assert not interrupts.received()\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT); print('lost')\n"
        "    except KeyboardInterrupt:\n"
        "        assert interrupts.resumed()\n"
    )
    assert done.stderr == ""
    took = [line.split()[0] for line in done.stdout.splitlines()]
    assert took == ["ended"] * 4 + ["raised"] * 3 + ["ended"]


def test_a_library_that_turns_an_interrupt_into_its_own_error_is_seen_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interrupts, "received", lambda: True)
    assert exit_code_of(["run", "--nonsense"]) == 130
    assert capsys.readouterr().err == "specx: interrupted\n"


def test_a_pipe_that_nobody_reads_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(ARROWS, encoding="utf-8")
    args = ["run", "--backend", "toy", "-m", "t.toml", "-p", "", "--trace", "t.jsonl"]
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while os.write(full, b" " * 4096):
            pass
    os.set_blocking(full, True)
    process = subprocess.Popen(
        [sys.executable, "-m", "specx", *args], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE
    )
    while not (tmp_path / "t.jsonl").is_file() or b'"round"' not in trace_of(tmp_path):
        assert process.poll() is None
        time.sleep(0.01)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.returncode == 130
    assert process.stderr is not None
    assert process.stderr.read() == b"specx: interrupted\n"
    process.stderr.close()
    os.close(unread)
    os.close(full)


def trace_of(folder: Path) -> bytes:
    return (folder / "t.jsonl").read_bytes()


def test_a_ctrl_c_ends_a_chat_that_is_piped_after_what_was_said(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("context = 1000000\n" + ARROWS, encoding="utf-8")
    command = [sys.executable, "-m", "specx", "chat", "--backend", "toy", "-m", "t.toml"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("→\n😀\n".encode())
    process.stdin.flush()
    first = os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + out).decode().count("\n") == 1
    assert err.decode().splitlines()[-1] == "specx: interrupted"
    assert "interrupted" in err.decode().splitlines()[-2]
    assert "Traceback" not in err.decode()


# Streams


def narrow(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "cp1252", **more}


@pytest.mark.parametrize("extra", [[], ["--json"], ["--no-stream"]])
@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "cp1252"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_redirected_text_is_utf_8_whatever_the_locale(
    extra: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t.toml").write_text(ARROWS, encoding="utf-8")
    args = ["run", "--backend", "toy", "-m", "t.toml", "-p", "", "-n", "8", "-s", "1", *extra]
    done = subprocess.run(
        [sys.executable, "-m", "specx", *args],
        cwd=tmp_path, env={**os.environ, **env}, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("utf-8")
    text = json.loads(text)["text"] if extra == ["--json"] else text.strip()
    assert set(text) == set("→😀")
    assert len(text) == 8


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
def test_a_file_name_that_is_not_utf_8_is_kept_in_json(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.toml"
    with open(name, "w", encoding="utf-8") as file:
        file.write(ARROWS)
    args = [b"run", b"--backend", b"toy", b"-m", name, b"-p", b"", b"-n", b"2", b"--json"]
    done = subprocess.run([sys.executable, "-m", "specx", *args], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    file_name = json.loads(done.stdout.decode("utf-8"))["models"]["verifier"]["file"]
    assert os.fsencode(file_name) == name


@pytest.mark.parametrize("term", [None, "dumb", "xterm"])
def test_a_narrow_terminal_shows_what_it_can(term: str | None, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(ARROWS, encoding="utf-8")
    env = narrow(**({} if term is None else {"TERM": term}))
    if term is None:
        env.pop("TERM", None)
    master, slave = os.openpty()
    args = ["run", "--backend", "toy", "-m", "t.toml", "-p", "", "-n", "4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "specx", *args],
        cwd=tmp_path, env=env, stdout=slave, stderr=slave, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.wait(timeout=60) == 0
    os.close(slave)
    shown = os.read(master, 65536)
    os.close(master)
    assert b"????" in shown
    assert b"Traceback" not in shown


@pytest.mark.parametrize(
    ("closed", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("<&-", 0), (">&- 2>&- <&-", 0)]
)
def test_closed_streams_are_no_failure(closed: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(ARROWS, encoding="utf-8")
    args = "run --backend toy -m t.toml -p '' -n 4 --trace t.jsonl"
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m specx {args} {closed}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    found = read_trace(tmp_path / "t.jsonl")  # no other output went into the file
    assert found.summary is not None
    assert found.summary.n_tokens == 4


def test_a_closed_stream_leaves_no_descriptor_for_the_next_file(tmp_path: Path) -> None:
    code = (
        "from specx.cli.streams import prepare; prepare(); print(open('f', 'w').fileno(), file=f)"
    )
    code = f"f = open('said', 'w'); import os; os.dup2(f.fileno(), 9); f = open(9, 'w'); {code}"
    subprocess.run(
        ["sh", "-c", f'\'{sys.executable}\' -c "{code}" <&- >&- 2>&-'],
        cwd=tmp_path, check=True, timeout=60,
    )  # fmt: skip
    assert int((tmp_path / "said").read_text()) > 2


def test_without_a_standard_input_a_prompt_is_asked_for_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(ARROWS, encoding="utf-8")
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m specx run --backend toy -m t.toml <&-"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "specx: no prompt; pass -p TEXT, -f FILE, or pipe one in\n"


def test_a_reader_that_leaves_costs_the_trace_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("context = 1000000\n" + ARROWS, encoding="utf-8")
    args = ["run", "--backend", "toy", "-m", "t.toml", "-p", "", "-n", "900000"]
    process = start([*args, "--trace", "t.jsonl"], tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1
    process.stderr.close()
    found = read_trace(tmp_path / "t.jsonl")
    assert found.summary is not None
    assert found.summary.stop_reason == "interrupted"


# Start-up


HEAVY = {"numpy", "scipy", "psutil", "jinja2", "torch", "transformers", "llama_cpp", "rich"}


@pytest.mark.parametrize("args", [["--help"], ["--version"], []])
def test_help_and_version_import_nothing_heavy(args: list[str]) -> None:
    done = python(
        "import sys\nfrom specx.cli import exit_code_of\n"
        f"exit_code_of({args!r})\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    assert done.stderr == "[]\n"
    assert "specx" in done.stdout


@pytest.mark.parametrize("name", ["run", "chat"])
def test_a_commands_help_loads_no_runtime(name: str) -> None:
    done = python(
        f"import sys\nfrom specx.cli import exit_code_of\nexit_code_of([{name!r}, '--help'])\n"
        "print(sorted({'scipy', 'torch', 'llama_cpp', 'rich', 'prompt_toolkit'}"
        " & set(sys.modules)), file=sys.stderr)"
    )
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("name", SHOWN)
def test_the_list_of_commands_says_what_their_own_help_says(name: str) -> None:
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert str(command.help).startswith(SHOWN[name].rstrip("."))
