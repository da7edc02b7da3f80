"""Tables and files of results hold the record's figures, and labels no more than they must."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest

from specx.bench import Arm, ArmRecord, Results, Run, results_record, summarise
from specx.bench.render import (
    FORMATS,
    as_csv,
    as_jsonl,
    as_markdown,
    interval_name,
    interval_of,
    kind_rows,
    label_of,
    speed_rows,
    speedup_of,
)
from specx.codec import to_json
from specx.schedule.costs.curve import Curve, Profile
from specx.session.decoding import Times
from specx.session.tally import Tally

BASE: dict[str, Any] = {
    "backend": "toy", "draft_backend": "toy", "temperature": 0.7, "top_k": 0, "top_p": 0.9,
    "min_p": 0.0,
}  # fmt: skip


def arm(gamma: int = 0, rule: str = "block", **more: Any) -> Arm:
    return ArmRecord(**{**BASE, "gamma": gamma, "rule": rule if gamma else "-", **more}).arm()


def run(prompt: str, kind: str, seconds: float, *, drafted: bool = True) -> Run:
    """Writes 30 tokens: 10 rounds of four proposals, each keeping two and losing the third."""
    counts: dict[str, Any] = {
        "rounds": 10, "proposed": 40, "tested": 30, "accepted": 20,
        "by_position": [[10, 10], [10, 10], [10, 0]], "lengths": {2: 10},
        "times": Times(draft=0.25 * seconds, verify=0.5 * seconds, core=0.125 * seconds),
    } if drafted else {"rounds": 30, "times": Times(verify=seconds)}  # fmt: skip
    return Run(
        prompt=prompt, kind=kind, repetition=0, seed=1, n_prompt=2, prefill_s=0.5,
        stop_reason="length", tally=Tally(**counts, n_tokens=30, total=seconds),
    )  # fmt: skip


def record(*speculative: Arm, kinds: tuple[str, str] = ("code", "maths")) -> dict[str, Any]:
    """On the first prompt speculation is twice as fast, on the second four times."""
    plain = [run(kind, kind, 4.0, drafted=False) for kind in kinds]
    drafted = [run(kinds[0], kinds[0], 2.0), run(kinds[1], kinds[1], 1.0)]
    results = Results(
        n=30,
        runs={arm(): plain, **dict.fromkeys(speculative or [arm(4)], drafted)},
        provenance={"versions": {"specx": "0"}},
        warnings=[{"text": "few", "remedy": "more"}],
        planned=2,
    )
    whole: dict[str, Any] = json.loads(json.dumps(results_record(results, summarise(results))))
    return whole


def labels(*arms: Arm) -> list[str]:
    records = [{"settings": each.record()} for each in arms]
    return [label_of(each, records) for each in records]


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        ([arm(), arm(2), arm(4)], ["verifier alone", "gamma 2", "gamma 4"]),
        ([arm(), arm(2, "block"), arm(2, "token")],
         ["verifier alone", "gamma 2 block", "gamma 2 token"]),
        ([arm(temperature=0.01), arm(2, temperature=0.01), arm(temperature=1.0)],
         ["temp 0.01 verifier alone", "temp 0.01 gamma 2", "temp 1 verifier alone"]),
        ([arm(top_p=0.9), arm(2, top_p=1.0)], ["top-p 0.9 verifier alone", "top-p 1 gamma 2"]),
        ([arm(top_k=5), arm(top_k=0)], ["top-k 5 verifier alone", "top-k 0 verifier alone"]),
        ([arm(), arm(2), arm(2, cached=False)], ["verifier alone", "gamma 2", "gamma 2 no cache"]),
        ([arm(), arm(2, cached=False)], ["verifier alone", "gamma 2 no cache"]),
        ([arm(backend="hf", draft_backend="llamacpp"), arm(2)],
         ["hf+llamacpp verifier alone", "toy gamma 2"]),
        ([arm(temperature=0.0, backend="hf"), arm(2, temperature=0.5)],
         ["hf+toy temp 0 verifier alone", "toy temp 0.5 gamma 2"]),
    ],
)  # fmt: skip
def test_a_label_says_what_tells_an_arm_from_the_others(
    arms: list[Arm], expected: list[str]
) -> None:
    assert labels(*arms) == expected


def tables(markdown: str) -> list[list[dict[str, str]]]:
    """Each table as its rows, by column."""
    blocks = [block.splitlines() for block in markdown.split("\n\n") if block.startswith("|")]
    split = [[line[2:-2].split(" | ") for line in block] for block in blocks]
    return [[dict(zip(rows[0], row, strict=True)) for row in rows[2:]] for rows in split]


def test_markdown_holds_three_tables_warnings_and_provenance() -> None:
    whole = as_markdown(record())
    speeds, times, kinds = tables(whole)
    assert [row["arm"] for row in speeds] == ["verifier alone", "gamma 4"]
    assert (speeds[0]["tok/s"], speeds[1]["tok/s"]) == ("7.50", "22.50")  # medians of two
    assert (speeds[1]["speed-up"], speeds[1]["range"]) == ("3.00x", "2.00 to 4.00")
    assert speeds[0]["speed-up"] == speeds[1]["predicted"] == ""
    parts = ("alpha", "kept", "tau", "draft", "verify", "rollback", "core", "other", "prefill")
    assert [times[1][part] for part in parts] == [
        "0.67", "0.50", "3.00", "25.0%", "50.0%", "0.0%", "12.5%", "12.5%", "1.0 s"]  # fmt: skip
    assert (times[0]["alpha"], times[0]["tau"], times[0]["verify"]) == ("", "1.00", "100.0%")
    assert [(row["kind"], row["arm"], row["tok/s"], row["speed-up"]) for row in kinds] == [
        ("code", "verifier alone", "7.50", ""), ("code", "gamma 4", "15.00", "2.00x"),
        ("maths", "verifier alone", "7.50", ""), ("maths", "gamma 4", "30.00", "4.00x"),
    ]  # fmt: skip
    assert "\n- few; more\n" in whole
    assert json.loads(whole.split("```json\n")[1].split("```")[0]) == record()["provenance"]


def spread(kind: str | None) -> dict[str, Any]:
    """As 0.1.0 wrote it where `kind` is None."""
    ends: dict[str, Any] = {"speedup": 1.5, "speedup_low": 1.2, "speedup_high": 1.8}
    return ends if kind is None else {**ends, "speedup_interval": kind}


@pytest.mark.parametrize(
    ("kinds", "heading", "cells"),
    [
        (["bootstrap"], "95% interval", ["1.20 to 1.80"]),
        (["range", "range"], "range", ["1.20 to 1.80"] * 2),
        ([None, "bootstrap"], "95% interval", ["1.20 to 1.80"] * 2),
        (["bootstrap", "range"], "95% interval", ["1.20 to 1.80", "range 1.20 to 1.80"]),
    ],
)
def test_a_range_is_never_called_an_interval(
    kinds: list[str | None], heading: str, cells: list[str]
) -> None:
    records = [spread(kind) for kind in kinds]
    nothing = {"speedup": None, "speedup_low": None, "speedup_high": None}
    assert interval_name([*records, {**nothing, "speedup_interval": None}]) == heading
    assert [interval_of(each, heading) for each in records] == cells
    assert (interval_of(nothing), speedup_of(nothing)) == ("", "")


def test_a_speed_up_in_one_cell_names_its_range() -> None:
    assert speedup_of(spread("bootstrap")) == speedup_of(spread(None)) == "1.50x (1.20 to 1.80)"
    assert speedup_of(spread("range")) == "1.50x (range 1.20 to 1.80)"


def test_kinds_of_few_prompts_have_ranges_beside_the_interval_of_all() -> None:
    names = [f"p{i}" for i in range(6)]
    kinds = ["code", "maths"] * 3
    runs = {
        arm(): [run(*both, 4.0, drafted=False) for both in zip(names, kinds, strict=True)],
        arm(4): [run(*both, 2.0) for both in zip(names, kinds, strict=True)],
    }
    arms = summarise(Results(n=30, runs=runs, planned=6))
    assert arms[1]["speedup_interval"] == "bootstrap"
    assert arms[0]["speedup_interval"] is None
    assert "95% interval" in speed_rows(arms)[0]
    assert "range" in kind_rows(arms)[0]


def test_one_kind_needs_no_table_of_kinds() -> None:
    whole = record(kinds=("code", "code"))
    assert kind_rows(whole["arms"]) == []
    assert len(tables(as_markdown(whole))) == 2


def test_a_kind_with_a_bar_or_a_line_break_stays_in_its_cell() -> None:
    rows = tables(as_markdown(record(kinds=("a|b", "c\nd"))))[2]
    assert [row["kind"] for row in rows] == ["a\\|b", "a\\|b", "c d", "c d"]


def test_csv_holds_unrounded_figures_and_lists_as_json() -> None:
    whole = record(arm(4), arm(8, cached=False))
    lines = list(csv.DictReader(io.StringIO(as_csv(whole))))
    assert [line["gamma"] for line in lines] == ["0", "4", "8"]
    for line, each in zip(lines, whole["arms"], strict=True):
        assert float(line["tok_s"]) == each["tok_s"]
        assert line["cached"] == str(each["settings"]["cached"])
        assert json.loads(line["alpha_by_position"]) == each["alpha_by_position"]
        assert json.loads(line["by_kind"]) == each["by_kind"]
        assert float(line["verify_s"]) == each["time"]["verify"]
        assert "runs" not in line
    assert float(lines[1]["alpha"]) == 20 / 30
    assert lines[0]["alpha"] == lines[0]["speedup"] == lines[1]["predicted"] == ""


def test_json_lines_hold_an_arm_and_the_provenance_each() -> None:
    whole = record()
    text = as_jsonl(whole)
    assert text.endswith("\n")
    assert [json.loads(line) for line in text.splitlines()] == [
        {**{key: value for key, value in each.items() if key != "runs"},
         "provenance": whole["provenance"]}
        for each in whole["arms"]
    ]  # fmt: skip


def test_json_is_the_whole_record() -> None:
    assert json.loads(FORMATS[".json"](record())) == record()
    assert set(FORMATS) == {".md", ".csv", ".json", ".jsonl"}


def test_without_cache_alone_there_are_figures_and_no_prediction() -> None:
    speeds, times, _ = tables(as_markdown(record(arm(4, cached=False))))
    assert speeds[1]["arm"] == times[1]["arm"] == "gamma 4 no cache"
    assert (speeds[1]["speed-up"], speeds[1]["predicted"], speeds[1]["textbook"]) == (
        "3.00x", "", "")  # fmt: skip


@pytest.mark.parametrize("form", FORMATS.values())
def test_an_arm_that_never_ran_has_empty_figures(form: Any) -> None:
    results = Results(n=1, runs={arm(): [], arm(2): []}, planned=1)
    assert form(results_record(results, summarise(results))).count("gamma") > 0


def degenerate(
    seconds: float, *, plain: bool = True, n_tokens: int = 30, rounds: int = 10
) -> dict[str, Any]:
    """A sweep of runs that took `seconds` each; without `plain`, there is nothing to compare."""
    drafted = run("a", "code", seconds)
    drafted.tally.n_tokens, drafted.tally.rounds = n_tokens, rounds
    if not rounds:
        drafted.tally = Tally(total=seconds)
    alone = [run("a", "code", seconds, drafted=False)] if plain else []
    ones = (1.0, 1.0)
    curve = Curve(
        model="m", bytes=None, quantisation=None, threads=None, n_past=1, repeats=1, widths=(1, 5),
        seconds=ones, low=ones, high=ones,
    )  # fmt: skip
    results = Results(
        n=30,
        runs={arm(): alone, arm(4): [drafted]},
        profiles={"toy": Profile(verifier=curve, drafter=curve)},
        planned=1,
    )
    return results_record(results, summarise(results))


@pytest.mark.parametrize(
    ("whole", "known"),
    [
        (degenerate(0.0), False),
        (degenerate(0.0, n_tokens=0), False),
        (degenerate(2.0, n_tokens=0), False),
        (degenerate(2.0, plain=False), False),
        (degenerate(2.0, rounds=0), False),
        (degenerate(5e-324), False),  # tokens per second overflow
        (degenerate(2.0), True),
    ],
)
def test_what_cannot_be_computed_is_null_in_json(whole: dict[str, Any], known: bool) -> None:
    for text in (to_json(whole), FORMATS[".json"](whole), *as_jsonl(whole).splitlines()):
        json.loads(text, parse_constant=pytest.fail)
    read = json.loads(to_json(whole))["arms"][1]
    for name in ("speedup", "speedup_low", "speedup_high", "speedup_interval"):
        assert (read[name] is not None) == known, name
        assert (read["by_kind"]["code"][name] is not None) == known, name
    assert not re.search(r"\b(nan|inf)", as_markdown(whole))
    assert FORMATS[".csv"](whole)


def test_json_holds_no_infinity_and_no_nan() -> None:
    odd = {"a": [float("inf"), {"b": float("nan")}], "c": (-float("inf"), 1.5), "d": "NaN"}
    assert json.loads(to_json(odd), parse_constant=pytest.fail) == {
        "a": [None, {"b": None}], "c": [None, 1.5], "d": "NaN",
    }  # fmt: skip
