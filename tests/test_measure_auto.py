"""The measurement of `--gamma auto`: planted runs are scored right, and a call goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import measure_auto as script
from specx.bench.suites import suite

ROOT = Path(__file__).parent.parent
PROMPT = "code-1"
ROLES = ("verifier", "drafter")


def settings(**changes: Any) -> dict[str, Any]:
    kept = {"gammas": ["0", "2", "4"], "repetitions": 3}
    return {**kept, **changes}


def planted(speeds: dict[str, list[float]], **changes: Any) -> script.Record:
    """A record of one prompt with these tokens a second by arm."""
    runs: dict[script.Key, script.Run] = {
        (PROMPT, arm, i): {
            "tok_s": speed,
            "rounds": 10,
            "text": 7,
            "gammas": {"model": {"0": 4, "3": 6}},
        }
        for arm, each in speeds.items()
        for i, speed in enumerate(each)
    }
    return script.Record(settings(**changes), runs)


SPEEDS = {
    "0": [10.0, 10.0, 10.0],
    "2": [20.0, 12.0, 20.0],
    "4": [15.0, 15.0, 15.0],
    "auto": [18.0, 30.0, 16.0],
}


def test_the_best_fixed_gamma_is_scored_where_it_was_not_chosen() -> None:
    record = planted(SPEEDS)
    assert record.best(PROMPT) == ["2", "4", "2"]
    # Repetition 0: chosen in 1 and 2, gammas 4 and 2, which then gave 15 and 20.
    assert record.against_best(PROMPT) == pytest.approx(
        [(18 / 15 + 18 / 20) / 2, 30 / 12, (16 / 20 + 16 / 15) / 2]
    )
    assert record.against_plain(PROMPT) == pytest.approx([1.8, 3.0, 1.6])


def test_one_repetition_is_scored_on_itself() -> None:
    record = planted({arm: each[:1] for arm, each in SPEEDS.items()}, repetitions=1)
    assert record.against_best(PROMPT) == pytest.approx([18 / 20])


def test_the_table_has_the_kinds_and_what_was_drafted() -> None:
    lines = planted(SPEEDS).table().splitlines()
    assert lines[2].startswith("| code-1 | 2, 4 | 1.05x (range ")
    assert lines[2].endswith(" | 1.80x (range 1.60 to 3.00) | 3.0 tokens in 60% of rounds |")
    assert lines[-1].startswith("| **all** | 2, 4 | 1.05x (range ")


def test_without_fixed_gammas_the_table_compares_with_the_verifier_alone() -> None:
    speeds = {arm: SPEEDS[arm] for arm in ("0", "auto")}
    header, _, row, _ = planted(speeds, gammas=["0"]).table().splitlines()
    assert header == "| kind | auto / alone | auto drafted |"
    assert row.startswith("| code-1 | 1.80x (range ")


def test_another_text_is_told() -> None:
    record = planted(SPEEDS)
    assert record.same_text()
    record.runs[PROMPT, "4", 2]["text"] = 8
    assert not record.same_text()


def test_the_words_name_a_drafters_own_number_type() -> None:
    how = {"n": 96, "temperature": 0.0, "costs": "profile", "live": True}
    assert planted(SPEEDS, **how).words().startswith(" (96 tokens, temperature 0, ")
    words = planted(SPEEDS, **how, draft_dtype="bfloat16").words()
    assert words.startswith(" (drafter in bfloat16, 96 tokens, temperature 0, ")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the script on the toy pair, which knows two letters."""

    def run(*words: str, code: int = 0) -> Path:
        verifier, drafter = (str(ROOT / "models" / "toy" / f"{name}.toml") for name in ROLES)
        output = tmp_path / "auto.json"
        toy = ["--backend", "toy", "-m", verifier, "-md", drafter, "-p", "ab", "-p", "abba"]
        given = [*toy, "--gamma", "0,2,auto", "-n", "12", *words, "-o", str(output)]
        monkeypatch.setattr(sys, "argv", ["measure_auto.py", *given])
        assert script.main() == code
        return output

    return run


def test_what_specx_bench_measured_makes_a_table(
    call: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = call("-r", "1")
    record = script.read(path)
    assert record.settings == {
        "draft_dtype": None, "costs": "table", "live": True, "gammas": ["0", "2"],
        "temperature": 0.0, "n": 12, "repetitions": 1,
    }  # fmt: skip
    assert {key[:2] for key in record.runs} == {
        (prompt, arm) for prompt in ("own-1", "own-2") for arm in ("0", "2", "auto")
    }
    assert record.same_text()
    assert all(run["tok_s"] > 0 for run in record.runs.values())
    drafted = record.runs["own-1", "2", 0]["gammas"]["model"]
    assert sum(drafted.values()) == record.runs["own-1", "2", 0]["rounds"]
    table = record.table()
    assert capsys.readouterr().out == f"{table}\n"
    rows = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    assert rows == ["| own-1", "| own-2", "| **all**"]


def test_a_second_call_goes_on_and_other_settings_are_another_measurement(call: Any) -> None:
    path = call("-r", "1")
    before = json.loads(path.read_text())["arms"]
    call("-r", "1")
    assert json.loads(path.read_text())["arms"] == before
    call("-r", "1", "--temp", "0.5", code=2)
    assert json.loads(path.read_text())["arms"] == before


@pytest.mark.parametrize("gammas", ["0,2", "2,4"])
def test_a_sweep_without_auto_is_refused(call: Any, gammas: str) -> None:
    with pytest.raises(SystemExit, match="one arm for each of 0, auto and some fixed gammas"):
        call("-r", "1", "--gamma", gammas)


def test_two_arms_of_auto_are_refused(call: Any) -> None:
    with pytest.raises(SystemExit, match="auto.json is incomplete, or has not one arm"):
        call("-r", "1", "--draft", "model,lookup")


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "benchmarks").glob("auto-*.json")))
def test_earlier_records_still_make_tables(path: Path) -> None:
    record = script.read(path)
    assert record.table().count("\n") == len(record.prompts) + 3
    assert record.prompts == [prompt.id for prompt in suite(record.settings["suite"])]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(SystemExit, match="is not a record of scripts/measure_auto.py"):
        script.read(tmp_path / "a.json")
