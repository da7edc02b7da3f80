"""scripts/try_cases.py: its rules, its files, and a few quick rows."""

from __future__ import annotations

import random
import signal
import sys
from itertools import islice
from pathlib import Path

import pytest

gguf = pytest.importorskip("gguf")

import try_cases  # noqa: E402 - needs gguf
from cases import fuzz, odd_gguf, rows, running  # noqa: E402
from cases.running import Case, try_case  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the script needs bash")


def python(monkeypatch: pytest.MonkeyPatch, code: str) -> Case:
    """A case whose program is `code`."""
    monkeypatch.setattr(running, "_command", lambda case: [sys.executable, "-c", code])
    return Case("0", "made up", ())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("print('fine')", "ok"),
        ("raise SystemExit(1)", "ok, exit 1"),
        ("import sys; print('specx: no', file=sys.stderr); raise SystemExit(2)", "refused"),
        ("import sys; print('no', file=sys.stderr); raise SystemExit(2)", "not one line"),
        ("import sys; print('specx: a\\nb', file=sys.stderr); raise SystemExit(2)", "not one line"),
        ("raise SystemExit(3)", "exit code"),
        ("1 / 0", "traceback"),
        ("import os; os.abort()", "died"),
        ("import time; time.sleep(60)", "hang"),
        ("import time; x = b'1' * 10**9; time.sleep(1)", "memory"),
    ],
)
def test_what_a_run_must_not_do(monkeypatch: pytest.MonkeyPatch, code: str, kind: str) -> None:
    seconds = 1.0 if kind == "hang" else 30.0
    outcome = try_case(python(monkeypatch, code), seconds)
    assert outcome.kind.startswith(kind), outcome
    assert bool(outcome.faults) == (not kind.startswith(("ok", "refused")))


def test_a_file_that_has_to_stay_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "model"
    file.write_text("weights")
    case = python(monkeypatch, f"open({str(file)!r}, 'w')")
    assert try_case(case).faults == ()
    file.write_text("weights")
    outcome = try_case(Case("0", "made up", (), keeps=(file,)))
    assert outcome.faults == ("a file was changed that had to stay",)


def test_a_death_is_named_by_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = try_case(python(monkeypatch, "import os; os.abort()"))
    assert outcome.code == -signal.SIGABRT
    assert outcome.faults == ("died: SIGABRT",)


def test_sound_rows_pass(tmp_path: Path) -> None:
    """A sound tiny model runs; no GGUF file is refused in one line; a value is refused."""
    tiny = odd_gguf.tiny_llama(tmp_path / "tiny.gguf")
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"no model")
    for case, kind in (
        (Case("0", "sound", rows.run("-m", tiny, "-p", "Hi"), codes=(0,)), "ok"),
        (Case("0", "junk", rows.run("-m", junk, "-p", "Hi")), "refused"),
        (Case("0", "nan", rows.run("-p", "Hi", "--temp", "nan")), "refused"),
        (Case("0", "a folder", rows.run("-f", tmp_path)), "refused"),
    ):
        outcome = try_case(case)
        assert (outcome.faults, outcome.kind) == ((), kind), outcome


def test_every_row_has_words_and_its_files(tmp_path: Path) -> None:
    made = [case for part in (rows.prompts, rows.models, rows.streams, rows.options)
            for case in part(tmp_path / part.__name__)]  # fmt: skip
    assert {"9", "20", "26", "40", "60", "82"} <= {case.row for case in made}
    for case in made:
        for word in case.words:
            if word.startswith(str(tmp_path)):
                assert Path(word).exists(), case


@pytest.mark.parametrize("name", ["mutate", "templates", "options"])
def test_a_seed_repeats_its_inputs(name: str, tmp_path: Path) -> None:
    texts = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        found = list(islice(fuzz.FUZZERS[name](folder, random.Random(5), 12), 12))
        files = [path.read_bytes() for path in sorted(folder.iterdir())]
        texts.append(([case.what for case in found], files))
    assert texts[0] == texts[1]
    assert len(set(texts[0][0])) > 3


def test_the_script_fails_when_a_run_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = Case("1", "bad\x1b", ("--no-such",), codes=(0,)), Case("2", "good", ("--no-such",))
    monkeypatch.setattr(try_cases, "cases", lambda folder: iter([bad, good]))
    monkeypatch.setattr(sys, "argv", ["try_cases.py", "--files", str(tmp_path)])
    assert try_cases.main() == 1
    said = capsys.readouterr().out
    assert "2 runs, 1 failed" in said
    assert "FAILED: unexpected exit code: 2" in said
    assert "\x1b" not in said
    monkeypatch.setattr(sys, "argv", ["try_cases.py", "--rows", "2", "--files", str(tmp_path)])
    assert try_cases.main() == 0
