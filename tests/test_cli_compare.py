"""`specx compare` on the command line: two systems, their tables, its file, and what it refuses."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from specx.cli import main, systems
from specx.compare import read_comparison
from specx.errors import UsageError

TOY = Path(__file__).parent.parent / "models" / "toy"
PAIR = ["--backend", "toy", "-m", str(TOY / "verifier.toml"), "-md", str(TOY / "drafter.toml")]
SHORT = ["-n", "40", "-r", "2", "--temp", "1", "--top-p", "1", "--ignore-eos"]

STEEP = """
vocabulary = ["<s>", ".", "a", "b"]
bos = "<s>"
eog = ["."]
[cost]
forward = [0.01, 0.02]
[[row]]
next = { a = 0.4, b = 0.4, "." = 0.2 }
[[row]]
after = ["a"]
next = { a = 0.5, b = 0.3, "." = 0.2 }
[[row]]
after = ["b"]
next = { a = 0.3, b = 0.5, "." = 0.2 }
"""

command = importlib.import_module("specx.cli.compare")  # the package's name is the command's


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "abba", "id": "one"}\n{"prompt": "bab", "id": "two"}\n')
    return file


@pytest.fixture
def steep(tmp_path: Path) -> Path:
    """The toy verifier, but each token of a pass costs a whole one."""
    file = tmp_path / "steep.toml"
    file.write_text(STEEP)
    return file


def compare(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, args)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_steeper_verifier_is_told_to_be_the_runtimes_fault(
    prompts: Path, steep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.json"
    assert compare(*PAIR, *SHORT, "-f", prompts, "--against", steep, "-o", output) == 0
    out, err = capsys.readouterr()
    assert out.startswith("A is verifier, B is steep; gamma 4\n")
    for heading in ("Speed", "Agreement", "Acceptance", "Cost of a pass", "A round", "Where"):
        assert f"\n{heading}" in out
    assert "a pass of 5 tokens costs 1 single passes on verifier and 5 on steep" in out
    assert "because of the runtime (cost)" in out
    assert re.search(r"drafters +the same loaded model", out)
    assert f"written to {output}" in err
    record = read_comparison(output)
    assert record["verdict"]["cause"] == "runtime"
    assert record["verdict"]["words"] in out


def test_json_is_one_object_that_holds_every_run_and_position(
    prompts: Path, steep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*PAIR, *SHORT, "-f", prompts, "--against", steep, "--json") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    record: dict[str, Any] = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert record["specx_compare"] == 1
    assert {"sides", "agreement", "split", "verdict", "provenance", "warnings"} <= set(record)
    assert (record["blocks"], record["planned"], record["complete"]) == (4, 4, True)
    for side in record["sides"].values():
        assert [len(side[arm]["runs"]) for arm in ("plain", "speculative")] == [4, 4]
        assert side["profile"]["verifier"]["widths"] == [1, 2, 3, 4, 5]
    texts = record["agreement"]["verifier"]["prompts"]
    assert {name: len(one["kl"]) for name, one in texts.items()} == {"one": 40, "two": 40}
    split = record["split"]
    terms = [split[name]["nats"] for name in ("algorithm", "runtime", "rest")]
    assert sum(terms) == pytest.approx(split["total"]["nats"], abs=1e-12)
    assert sum(split[name]["share"] for name in ("algorithm", "runtime", "rest")) == (
        pytest.approx(1)
    )
    warned = [warning["text"] for warning in record["warnings"]]
    assert sum("too few for an interval" in text for text in warned) == 1
    assert [text.split(":")[0] for text in warned if "too steep" in text] == ["verifier", "steep"]
    assert record["differences"] == {"model": ["verifier.toml", "steep.toml"]}
    assert set(record["provenance"]["models"]) == {
        f"{side} {role}" for side in "AB" for role in ("verifier", "drafter")
    }


def test_an_infinite_divergence_is_null_in_json(
    prompts: Path, steep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = steep.read_text().replace("a = 0.5, b = 0.3", "a = 0.8, b = 0.0")
    steep.write_text(text)
    assert compare(*PAIR, *SHORT, "-f", prompts, "--against", steep, "--json") == 0
    record = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    found = record["agreement"]["verifier"]
    nulls = [value for one in found["prompts"].values() for value in one["kl"] if value is None]
    assert len(nulls) == found["mean"]["kl_infinite"] > 0
    assert found["mean"]["kl"] == pytest.approx(0, abs=1e-6)  # elsewhere the tables are the same


def test_markdown_holds_tables_verdict_and_provenance(
    prompts: Path, steep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.md"
    assert compare(*PAIR, *SHORT, "-f", prompts, "--against", steep, "-o", output, "-q") == 0
    text = output.read_text(encoding="utf-8")
    assert text.count("| --- |") == 6
    assert "```json\n" in text
    (verdict,) = (line for line in text.splitlines() if line.startswith("With speculation"))
    assert verdict in capsys.readouterr().out


def test_an_interruption_shows_what_whole_blocks_gave(
    prompts: Path,
    steep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = command.run_comparison

    def interrupted(*args: Any, **kwargs: Any) -> None:
        def report(runs: int) -> None:
            if runs == 10:
                raise KeyboardInterrupt

        real(*args, report=report)

    monkeypatch.setattr(command, "run_comparison", interrupted)
    output = tmp_path / "found.json"
    code = compare(*PAIR, *SHORT, "-f", prompts, "--against", steep, "-o", output)
    assert code == 130
    assert "incomplete: 2 of 4 runs of each arm" in capsys.readouterr().out
    record = read_comparison(output)
    assert (record["blocks"], record["complete"]) == (2, False)


def test_an_interruption_before_a_block_leaves_the_file_alone(
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_comparison", interrupted)
    output = tmp_path / "found.json"
    code = compare(*PAIR, "-f", prompts, "--against-backend", "toy", "-o", output)
    out, err = capsys.readouterr()
    assert (code, out) == (130, "")
    assert err == "specx: interrupted before every arm had run once\n"
    assert not output.exists()


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["-md", "x.gguf"], "-md x.gguf needs a verifier; add -m VERIFIER.gguf"),
        (["-m", "x.gguf"], "compare needs a drafter for -m x.gguf; add -md DRAFTER"),
        (PAIR, "nothing to compare backend 'toy' with; add --against FILE"),
        ([*PAIR, "--against-backend", "lama"], "unknown backend 'lama'; installed: "),
        (
            [*PAIR, "--against-threads", "2"],
            "--against-threads 2 is not supported by backend toy; leave it out",
        ),
        (
            [*PAIR, "--against-ctk", "q8_0"],
            "--against-ctk q8_0 is not supported by backend toy; leave it out",
        ),
        ([*PAIR, "--against", "no.toml"], "no.toml: No such file or directory"),
        (["-t", "0"], "Invalid value for '-t'"),
        (["-n", "1"], "-n 1 leaves nothing to draft; give 2 or more"),
        (["--gamma", "0"], "Invalid value for '--gamma'"),
        (["--gamma", "2,4"], "Invalid value for '--gamma'"),
        (["--temp", "-1"], "temperature is -1.0; it must be 0 (greedy) or more"),
        (["--suite", "odes"], "unknown kind of prompt 'odes' in --suite"),
        (["-o", "found.csv"], "-o found.csv has no supported extension; use one of .json, .md"),
        (["-o", "no/such/folder/found.json"], "cannot write -o no/such/folder/found.json"),
        (["extra"], "Got unexpected extra argument (extra)"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], line: str, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*args, *(["-f", prompts] if PAIR[0] in args else [])) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("specx: ")
    assert err.count("\n") == 1
    assert line in err


def test_tokenizers_that_differ_are_refused_in_one_line(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("verifier", "drafter"):
        text = (TOY / f"{side}.toml").read_text()
        (tmp_path / f"{side}.toml").write_text(text.replace('"a", "b"]', '"b", "a"]'))
    against = [
        "--against",
        tmp_path / "verifier.toml",
        "--against-draft",
        tmp_path / "drafter.toml",
    ]
    assert compare(*PAIR, "-f", prompts, *against) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "encode prompt one as different tokens (from position 1 on" in err


def test_a_file_that_is_no_comparison_is_refused(tmp_path: Path) -> None:
    for text, line in (
        ("{", "is not JSON"),
        ("[]", "is not a result of"),
        ("{}", "is not a result of"),
    ):
        file = tmp_path / "x.json"
        file.write_text(text)
        with pytest.raises(UsageError, match=line):
            read_comparison(file)
    with pytest.raises(UsageError, match="cannot read"):
        read_comparison(tmp_path / "none.json")


def test_the_help_says_that_both_must_fit_and_what_the_words_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare("--help") == 0
    out = capsys.readouterr().out
    assert "Both must fit in memory" in out
    assert "algorithm  effect of A's acceptance in place of B's" in out


def test_a_runtime_that_is_not_installed_is_told_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(systems, "load_side", lambda *_, **__: pytest.fail("loaded"))
    assert compare() == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "pip install" in err


DEMO = ["-n", "12", "-r", "1", "--suite", "code:1"]


def test_the_demo_pair_is_one_model_on_both_runtimes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert compare(*DEMO, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [side["name"] for side in record["sides"].values()] == ["llama.cpp", "transformers"]
    for role in ("verifier", "drafter"):
        mean = record["agreement"][role]["mean"]
        assert mean["positions"] > 0
        assert mean["top1"] >= 0.9
        assert mean["total_variation"] < 0.02
        assert mean["kl"] < 0.001
    assert [side["threads"] for side in record["sides"].values()] == [1, 1]
    assert record["split"]["algorithm"]["factor"] == pytest.approx(1, abs=0.2)


def test_threads_of_a_are_bs_too_where_nothing_else_is_said(
    demo_verifier: Path, demo_drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pair = "-m", demo_verifier, "-md", demo_drafter
    assert compare(*pair, *DEMO, "-ctk", "f16", "--json") == 0
    a, b = json.loads(capsys.readouterr().out)["sides"].values()
    assert (a["name"], b["name"]) == (
        "llama.cpp, keys in f16",
        "transformers, keys in the default type",
    )
    assert a["threads"] == a["draft_threads"] == b["threads"] == b["draft_threads"]
    assert compare(*pair, *DEMO) == 0
    assert "threads, the default of A's runtime (set it with -t)" in capsys.readouterr().err


def test_an_option_of_as_runtime_alone_is_said_to_be(
    demo_verifier: Path, demo_drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert compare("-m", demo_verifier, "-md", demo_drafter, *DEMO, "-ngl", "0", "-t", "1") == 0
    err = capsys.readouterr().err
    assert "specx: -ngl 0 applies to A only: B's runtime does not support it\n" in err
    assert "the default of A's runtime" not in err


def test_two_numbers_of_threads_in_a_runtime_that_has_one_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    assert compare("--backend", "hf", "-t", "2", "--against-threads", "1", *DEMO) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "was to use 2 threads but has 1" in err


def test_threads_of_llamacpp_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llama_cpp")
    assert compare(*DEMO, "--against-threads", "2", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [side["name"] for side in record["sides"].values()] == ["1 thread", "2 threads"]
    assert record["agreement"]["verifier"]["mean"]["top1"] >= 0.9
