"""The command line over toy tables: output, footers, options, and one line for bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from inprocess import specx

from specx.cli import main
from specx.cli.show import Writer
from specx.session.decoding import Round

TABLE = """
vocabulary = ["<s>", "</s>", "one", " two", " three", " \\u001b[31m", "<0xF0>", "<0x9F>",
              "<0x98>", "<0x80>"]
bos = "<s>"
eog = ["</s>"]
[[row]]
next = { one = 1.0 }
[[row]]
after = ["one"]
next = { " two" = 0.7, " three" = 0.3 }
[[row]]
after = [" two"]
next = { " three" = 0.6, "one" = 0.4 }
"""

EMOJI = TABLE.replace("next = { one = 1.0 }", 'next = { "<0xF0>" = 1.0 }') + "".join(
    f'[[row]]\nafter = ["<0x{a}>"]\nnext = {{ "<0x{b}>" = 1.0 }}\n'
    for a, b in [("F0", "9F"), ("9F", "98"), ("98", "80"), ("80", "F0")]
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    return str(path)


def run(table: str, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return specx("run", "--backend", "toy", "-m", table, *args, **more)


def as_json(table: str, *args: str) -> dict[str, Any]:
    done = run(table, "-p", "one", "--json", *args)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_text_goes_to_stdout_and_the_footer_to_stderr(table: str) -> None:
    process = start(table, "-md", table, "-n", "12", "-s", "5", "--gamma", "4")
    out, err = process.communicate(timeout=60)
    done = run(table, "-md", table, "-p", "one", "-n", "12", "-s", "5", "--gamma", "4")
    assert (process.returncode, out) == (0, done.stdout)  # a process of its own does the same
    assert err.split()[:8] == done.stderr.split()[:8]
    assert done.returncode == 0
    assert done.stdout.startswith(" t")
    assert "\x1b" not in done.stdout + done.stderr
    for word in ("seed 5", "template none", "length limit (-n 12)", "tok/s", "alpha 1.00", "tau"):
        assert word in done.stderr
    assert "speed-up" not in done.stderr + done.stdout


def test_quiet_prints_the_text_alone(table: str) -> None:
    done = run(table, "-p", "one", "-q")
    assert done.stderr == ""
    assert done.stdout.strip()


def test_the_seed_shown_repeats_the_text(table: str) -> None:
    first = as_json(table, "-md", table)
    again = as_json(table, "-md", table, "-s", str(first["settings"]["seed"]))
    assert again["tokens"] == first["tokens"]
    assert as_json(table, "-md", table)["settings"]["seed"] != first["settings"]["seed"]


def test_streamed_text_equals_the_text_printed_at_the_end(table: str) -> None:
    streamed, whole = (
        run(table, "-p", "one", "-s", "1", *extra) for extra in ([], ["--no-stream"])
    )
    assert streamed.stdout == whole.stdout


def test_json_counts_add_up(table: str) -> None:
    result = as_json(table, "-md", table, "-n", "20", "--gamma", "3", "--temp", "1", "--top-p", "1")
    assert (result["n_tokens"], len(result["tokens"])) == (20, 20)
    assert (result["alpha"], result["kept"], result["tau"], result["rounds"]) == (1.0, 1.0, 4.0, 5)
    parts = ["draft", "verify", "rollback", "core", "other"]
    assert sum(result["time"][p] for p in parts) == pytest.approx(result["time"]["total"])
    assert result["tok_s"] == pytest.approx(20 / result["time"]["total"])
    assert result["stop_reason"] == "length"
    assert result["backend"] == result["models"]["verifier"]["backend"] == "toy"
    assert result["settings"]["gamma"] == 3


def test_without_a_draft_rates_are_null_and_tau_one(table: str) -> None:
    result = as_json(table, "-md", table, "--gamma", "4", "--no-draft")
    assert (result["alpha"], result["kept"], result["tau"]) == (None, None, 1.0)
    assert "drafter" not in result["models"]
    nothing = as_json(table, "-n", "0")
    assert (nothing["rounds"], nothing["tau"], nothing["text"]) == (0, None, "")


def test_no_cache_writes_the_same_text_and_costs_more(table: str) -> None:
    cached, uncached = (
        as_json(table, "-md", table, "-s", "3", "-n", "16", *extra)
        for extra in ([], ["--no-cache"])
    )
    assert cached["text"] == uncached["text"]
    assert uncached["settings"]["cache"] is False


@pytest.mark.parametrize("source", ["-p", "-f", "stdin"])
def test_the_prompt_comes_from_where_it_is_given(table: str, tmp_path: Path, source: str) -> None:
    (tmp_path / "prompt").write_text("one two")
    args = {"-p": ["-p", "one two"], "-f": ["-f", str(tmp_path / "prompt")], "stdin": []}[source]
    done = run(table, *args, "--json", stdin="one two" if source == "stdin" else "")
    assert json.loads(done.stdout)["settings"]["n_prompt"] == 3


def test_stop_strings_end_the_text_before_them(table: str) -> None:
    result = as_json(table, "--stop", "three", "--stop", "e two", "--temp", "0")
    assert (result["text"], result["stop_reason"]) == (" two ", "stop")
    result = as_json(table, "--stop", "wo th", "--temp", "0")
    assert (result["text"], result["tokens"]) == (" t", [3, 4])


def test_characters_are_never_torn(tmp_path: Path) -> None:
    path = tmp_path / "emoji.toml"
    path.write_text(EMOJI)
    done = specx("run", "--backend", "toy", "-m", str(path), "-p", "", "-n", "10", "-q")
    assert done.stdout == "😀😀\ufffd\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--backend", "lama"], ["unknown backend 'lama'", "installed:", "toy"]),
        (["--draft-backend", "lama", "-md", "x"], ["unknown backend 'lama'"]),
        (["--gamma", "-1", "-md", "x"], ["--gamma", "-1"]),
        (["--gamma", "2"], ["--gamma 2 needs a drafter", "-md"]),
        (["-n", "-1"], ["-n", "-1"]),
        (["--temp", "-0.5"], ["temperature is -0.5"]),
        (["--temp", "nan"], ["temperature is nan"]),
        (["--top-p", "0"], ["top-p is 0.0"]),
        (["--top-p", "1.01"], ["top-p is 1.01"]),
        (["-f", "nosuch"], ["-p and -f"]),
        (["-ngl", "1"], ["-ngl 1", "toy"]),
        (["-cd", "9"], ["-cd 9", "needs a drafter"]),
        (["-c", "1"], ["prompt has 2 tokens", "holds 1"]),
        (["-sys", "be kind"], ["-sys", "template"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)  # fmt: skip
def test_bad_options_get_one_line_and_exit_code_2(
    table: str, args: list[str], words: list[str]
) -> None:
    assert_one_line(run(table, "-p", "one", *args), words)


def assert_one_line(done: subprocess.CompletedProcess[str], words: list[str]) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_a_missing_or_half_given_pair_gets_one_line(table: str) -> None:
    assert_one_line(specx("run", "-md", table, "-p", "x"), ["-md", "-m VERIFIER.gguf"])
    assert_one_line(specx("run", "--backend", "toy", "-m", "no.toml", "-p", "x"), ["no.toml"])
    assert_one_line(run(table, "-f", "nosuch.txt"), ["nosuch.txt", "no such file"])


def test_an_empty_prompt_needs_a_bos(table: str, tmp_path: Path) -> None:
    assert as_json_empty(table)["n_tokens"] == 256
    path = tmp_path / "nobos.toml"
    path.write_text(TABLE.replace('bos = "<s>"\n', 'control = ["<s>"]\n'))
    done = specx("run", "--backend", "toy", "-m", str(path), "-p", "")
    assert_one_line(done, ["prompt is empty", "-p"])


def as_json_empty(table: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(table, "-p", "", "--json").stdout)
    return result


def test_nan_logits_name_model_and_position(table: str, tmp_path: Path) -> None:
    path = tmp_path / "nan.toml"
    path.write_text(TABLE.replace('" three" = 0.6', '" three" = nan'))
    done = specx("run", "--backend", "toy", "-m", str(path), "-p", "one two", "-q")
    assert_one_line(done, ["nan.toml", "position 3", "nan"])


def test_vocabularies_that_differ_are_refused(table: str, tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text(TABLE.replace(" three", " drei"))
    done = run(table, "-md", str(path), "-p", "one")
    assert_one_line(done, ["id 4 is ' drei' in the drafter and ' three' in the verifier"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("extra", [[], ["--json"], ["--no-stream"]])
def test_unwritable_output_gets_one_line(table: str, extra: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [
            sys.executable,
            "-m",
            "specx",
            "run",
            "--backend",
            "toy",
            "-m",
            table,
            "-p",
            "one",
        ]
        done = subprocess.run(
            [*command, *extra], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot write the output: No space left" in done.stderr


def start(table: str, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "specx", "run", "--backend", "toy", "-m", table, "-p", "one"]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, *args], stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A shell's background job ignores Ctrl-C, and so would the processes that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_the_text_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text("context = 100000000\n" + TABLE)
    with start(str(path), "-n", "90000000") as process:
        assert process.stdout is not None
        process.stdout.read(1)  # by now it writes
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "stopped by an interrupt" in err


def test_ctrl_c_leaves_whole_json(
    table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Writer, done: Round) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "round", interrupted)
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--backend", "toy", "-m", table, "-p", "one", "--json"])
    assert exit_.value.code == 130
    result = json.loads(capsys.readouterr().out)
    assert (result["stop_reason"], result["rounds"], result["n_tokens"]) == ("interrupted", 1, 1)


def test_a_closed_pipe_is_silent(table: str) -> None:
    with start(table, "-n", "3000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(20)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 1  # as click has it


def test_colour_marks_origins_and_no_color_keeps_the_marks(table: str) -> None:
    args = ["-md", table, "-p", "one", "-n", "10", "--gamma", "4", "--color", "on", "-q"]
    coloured, plain = run(table, *args), run(table, *args, env={**os.environ, "NO_COLOR": "1"})
    assert "\x1b[36m" in coloured.stdout  # bonus in cyan
    assert "\x1b[36m" not in plain.stdout
    assert "\x1b[1m" in plain.stdout  # and bold without it


SURE_OR_NOT = """
vocabulary = ["<s>", " sure", " a", " b", " c", " d", " e", " f", " g", " h", " i", " j", " k",
              " l", " m", " n", " o", " p", " q", " r", " s", " t", " u", " v", "one"]
bos = "<s>"
[[row]]
next = { " sure" = 1.0 }
[[row]]
after = [" sure"]
next = { " a" = 0.75, " b" = 0.25 }
[[row]]
after = [" a"]
[row.next]
" c" = 0.125
" d" = 0.125
" e" = 0.125
" f" = 0.125
" g" = 0.125
" h" = 0.125
" i" = 0.125
" j" = 0.125
"""
"""Entropies before the tokens, in nats: 0, 0.56, 2.08, 0, ..."""


@pytest.mark.parametrize("draft", [False, True])
def test_entropy_shades_each_token_by_the_verifiers_doubt(draft: bool, tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_text(SURE_OR_NOT)
    args = ["-p", "one", "-n", "4", "--temp", "0", "--show", "entropy", "--color", "on"]
    args += ["-md", str(path)] if draft else []
    coloured = run(str(path), *args)
    one, two = "\x1b[38;5;16m\x1b[48;5;229m", "\x1b[38;5;16m\x1b[48;5;216m\x1b[4m"
    assert coloured.stdout == f" sure{one} a\x1b[0m{two} c\x1b[0m sure\n"
    assert "verifier's entropy, nats: under 0.5" in coloured.stderr
    assert "3.0 and more" in coloured.stderr
    plain = run(str(path), *args, "-q", env={**os.environ, "NO_COLOR": "1"})
    assert plain.stdout == " sure a\x1b[4m c\x1b[0m sure\n"


def test_help_says_where_shades_begin() -> None:
    text = " ".join(specx("run", "--help").stdout.split())
    assert "entropy at temperature 1; shades start at 0.5, 1.5, 3.0 nats" in text


def test_version_names_the_runtimes() -> None:
    done = specx("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"specx {version('specx')}, python ")
    assert f"llamacpp: llama-cpp-python {version('llama-cpp-python')}\n" in done.stdout
    assert f"toy: numpy {version('numpy')}\n" in done.stdout
    assert ", torch " in done.stdout


def test_devices_says_how_the_runtimes_were_built() -> None:
    done = specx("--devices")
    assert done.returncode == 0
    assert re.search("^llamacpp: llama-cpp-python .*; devices: .*CPU", done.stdout, re.M)
    assert "toy: python " in done.stdout


def test_the_footer_tells_the_verifiers_prompt_speed_apart(table: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.toml"
    slow.write_text(TABLE + "\n[cost]\nforward = [0.5]\n")
    args = ["-md", str(slow), "-n", "2", "-s", "1", "--gamma", "2"]
    result = as_json(table, *args)
    own = result["prefill_s"] - result["prefill_draft_s"]
    assert result["prefill_draft_s"] == pytest.approx(50 * own)
    assert f"tokens at {1 / own:.1f} tok/s by the verifier" in run(table, "-p", "one", *args).stderr
    assert as_json(table, "-n", "2")["prefill_draft_s"] == 0


def test_help_says_what_users_of_llama_cpp_must_know() -> None:
    text = " ".join(specx("run", "--help").stdout.split())
    assert "temperature, top-k, top-p, min-p" in text
    assert "llama.cpp's own tools apply the temperature last" in text
    assert "Repetition penalties, grammars and logit bias are not supported" in text


def test_auto_is_the_default_and_says_what_it_chose_by(table: str) -> None:
    args = ["-md", table, "-n", "40", "-p", "one"]
    done = run(table, *args, "-s", "1")
    assert "gamma by the shipped table; rounds by gamma: model 0:40" in done.stderr
    assert "speculating 0 tokens in 0.00 s  plain 40 tokens in 0.40 s" in done.stderr
    settings = as_json(table, "-md", table, "-n", "4")["settings"]
    assert (settings["gamma"], settings["draft"]) == ("auto", ["model"])
    assert settings["gamma_by"] == "live timings, from the shipped table"
    assert as_json(table, "-n", "4")["settings"]["gamma"] == 0  # nobody to draft


def test_lookup_needs_no_second_model(table: str) -> None:
    result = as_json(table, "--draft", "lookup", "--gamma", "3", "-n", "60", "--temp", "0")
    assert result["text"] == as_json(table, "-n", "60", "--temp", "0")["text"]
    assert list(result["models"]) == ["verifier"]
    assert result["gammas"]["lookup"]["3"] > 10
    assert result["speculating"]["n_tokens"] + result["plain"]["n_tokens"] == 60


def test_a_gamma_trace_is_replayed(table: str, tmp_path: Path) -> None:
    trace = str(tmp_path / "trace.jsonl")
    args = ["-md", table, "--draft", "model,lookup", "-n", "50", "-s", "7"]
    one = as_json(table, *args, "--gamma-trace", trace)
    two = as_json(table, *args, "--gamma-replay", trace)
    assert (one["tokens"], one["gammas"]) == (two["tokens"], two["gammas"])
    assert len(Path(trace).read_text().splitlines()) == one["rounds"]


def test_draft_side_sampling_and_early_stop_are_in_the_settings(table: str) -> None:
    extra = ["--draft-temp", "0", "--entropy-stop", "0.5", "--draft-p-min", "0.3"]
    settings = as_json(table, "-md", table, "--gamma", "3", "-n", "9", *extra)["settings"]
    assert settings["draft_sampling"]["temperature"] == 0
    assert (settings["entropy_stop"], settings["draft_p_min"]) == (0.5, 0.3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gamma", "many", "-md", "x"], ["--gamma", "many", "auto"]),
        (["--gamma", "²", "-md", "x"], ["--gamma", "²", "a whole number from 0 to 1024"]),
        (["--gamma", "1025", "-md", "x"], ["--gamma", "1025", "a whole number from 0 to 1024"]),
        (["--gamma", "9" * 5000, "-md", "x"], ["--gamma", "a whole number from 0 to 1024"]),
        (["--draft", "guess"], ["--draft is 'guess'", "lookup"]),
        (["--draft", "model"], ["--draft model needs a drafter", "-md"]),
        (["--draft", "lookup", "-md", "x"], ["-md x is not used by --draft lookup"]),
        (["--draft", "model,lookup", "-md", "x", "--gamma", "2"], ["a fixed gamma takes one"]),
        (["--draft", "lookup", "--draft-temp", "-1"], ["the drafter's temperature is -1.0"]),
        (["--draft", "lookup", "--profile", "none.json"], ["the profile from 'none.json'"]),
        (["--draft", "lookup", "--gamma-replay", "none"], ["the gamma trace from 'none'"]),
        (["--draft", "lookup", "--gamma-trace", "no/t"], ["write --gamma-trace no/t: No such"]),
        (["--draft", "lookup", "--gamma", "1", "--gamma-replay", "t"], ["both given"]),
        (["--entropy-stop", "2"], ["--entropy-stop", "2"]),
    ],
)  # fmt: skip
def test_bad_drafting_options_get_one_line(table: str, args: list[str], words: list[str]) -> None:
    assert_one_line(run(table, "-p", "one", *args), words)
