"""The measurement of `--gamma auto`: planted runs are scored right, and a call goes on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import measure_auto as script
from specx.bench.suites import suite

ROOT = Path(__file__).parent.parent
PROMPT = suite("code:1")[0]


def settings(**changes: Any) -> dict[str, Any]:
    kept = {"suite": "code:1", "gammas": ["0", "2", "4"], "repetitions": 3}
    return {**kept, **changes}


def planted(speeds: dict[str, list[float]], **changes: Any) -> script.Record:
    """A record of one prompt with these tokens a second by arm."""
    runs: dict[script.Key, script.Run] = {
        (PROMPT.id, arm, i): {
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
    record.runs[PROMPT.id, "4", 2]["text"] = 8
    assert not record.same_text()


def test_the_words_name_a_drafters_own_number_type() -> None:
    how = {"n": 96, "temperature": 0.0, "costs": "profile", "live": True}
    assert planted(SPEEDS, **how).words().startswith(" (96 tokens, temperature 0, ")
    words = planted(SPEEDS, **how, draft_dtype="bfloat16").words()
    assert words.startswith(" (drafter in bfloat16, 96 tokens, temperature 0, ")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the script on the toy pair, which knows two letters."""
    spellable = replace(PROMPT, text="ab")
    monkeypatch.setattr(script, "suite", lambda words: [spellable])

    def run(*words: str) -> Path:
        toy = [str(ROOT / "models" / "toy" / f"{name}.toml") for name in ("verifier", "drafter")]
        output = tmp_path / "auto.json"
        given = [*toy, "--backend", "toy", "--suite", "code:1", "--gamma", "0,2", "-n", "12"]
        monkeypatch.setattr(sys, "argv", ["measure_auto.py", *given, *words, "-o", str(output)])
        script.main()
        return output

    return run


def test_every_arm_runs_once_and_a_second_call_goes_on(
    call: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = call("-r", "1")
    first = json.loads(path.read_text())
    assert {run["arm"] for run in first["runs"]} == {"0", "2", "auto"}
    assert script.read(path).same_text()
    capsys.readouterr()
    call("-r", "2")
    assert "tok/s" in capsys.readouterr().out
    runs = json.loads(path.read_text())["runs"]
    assert runs[:3] == first["runs"]
    assert [run["repetition"] for run in runs] == [0, 0, 0, 1, 1, 1]


def test_other_settings_are_another_measurement(call: Any) -> None:
    path = call("-r", "1")
    before = path.read_bytes()
    with pytest.raises(SystemExit, match="measured with other settings"):
        call("-r", "1", "--temp", "0.5")
    assert path.read_bytes() == before


def test_the_drafters_number_type_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings_for(*words: str) -> dict[str, Any]:
        given = ["measure_auto.py", "v.gguf", "d.gguf", "-o", "a.json", *words]
        monkeypatch.setattr(sys, "argv", given)
        return script.settings_of(script.parse_options())

    assert settings_for() != settings_for("--dtyped", "bfloat16")


def test_a_record_that_names_no_number_type_goes_on(call: Any) -> None:
    path = call("-r", "1")
    record = json.loads(path.read_text())
    del record["settings"]["draft_dtype"]
    path.write_text(json.dumps(record))
    call("-r", "2")
    assert json.loads(path.read_text())["runs"][:3] == record["runs"]
