"""`specx bench --trace` over toy tables: what the file holds, what it costs, and its report."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from test_cli_bench import (
    DRAFTER,
    PROMPTS,
    VERIFIER,
    WARM_UPS,
    Output,
    assert_one_line,
    bench,
    forbid_loading,
    interrupt,
    measured,
)

from specx.bench.render import speed_rows
from specx.cli import main
from specx.errors import BackendError, UsageError
from specx.records.trace import BenchSummary, TraceWriter, read_traces
from specx.report import INSTALL, MOST_TEXTS, can_plot, page, sweeps_of
from specx.report.sweep import series_of, sweep_plots, sweep_tables
from specx.runtime import machine
from specx_backends.toy import CLOCK

SCHEMA = json.loads((Path(__file__).parent.parent / "specx/records/trace/schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MEASURE = ["--gamma", "2,4", "-n", "30", "-r", "2"]
ARMS, LINES = ["verifier alone", "gamma 2", "gamma 4"], 6


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a sweep that writes t.jsonl; the test runs in its folder."""
    monkeypatch.chdir(tmp_path)
    Path("v.toml").write_text(VERIFIER)
    Path("d.toml").write_text(DRAFTER)
    lines = [json.dumps({"id": i, "kind": kind, "prompt": text}) for i, kind, text in PROMPTS]
    Path("p.jsonl").write_text("\n".join(lines))
    models = ["--backend", "toy", "-m", "v.toml", "-md", "d.toml", "-f", "p.jsonl"]
    return [*models, *MEASURE, "--trace", "t.jsonl"]


@pytest.fixture
def plotless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the extra: plots take a second a page."""
    monkeypatch.setattr("specx.report.plots.find_spec", lambda name: None)


def lines(path: str = "t.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def without(whole: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in whole.items() if name not in names}


# What the file holds


def test_every_line_follows_the_schema(sweep: list[str]) -> None:
    assert bench(*sweep) == 0
    found = lines()
    for line in found:
        VALIDATOR.validate(line)
    kinds = [line["kind"] for line in found]
    assert (kinds[0], kinds[-1]) == ("file", "bench")
    assert {kind: kinds.count(kind) for kind in ("file", "header", "summary", "bench")} == {
        "file": 1, "header": 3 * LINES, "summary": 3 * LINES, "bench": 1}  # fmt: skip


def test_auto_and_lookup_are_traced_and_shown(sweep: list[str], capsys: Output) -> None:
    sweep = [*sweep, "--gamma", "2,4,auto", "--draft", "model,lookup", "--draft-temp", "1"]
    whole = measured(capsys, *sweep, "-r", "1")
    for line in lines():
        VALIDATOR.validate(line)
    traces = read_traces(Path("t.jsonl"))
    by_arm = {trace.header.labels["arm"]: trace.header for trace in traces}
    assert list(by_arm) == [
        "verifier alone", "gamma 2 model", "gamma 4 model", "gamma auto model", "gamma 2 lookup",
        "gamma 4 lookup", "gamma auto lookup",
    ]  # fmt: skip
    assert by_arm["gamma auto model"].gamma == "auto"
    assert list(by_arm["gamma auto lookup"].provenance["models"]) == ["verifier"]
    (bench_summary,) = sweeps_of(traces)
    found = series_of(bench_summary)
    assert [(series.name, series.gammas) for series in found] == [
        ("model", [2, 4]), ("lookup", [2, 4])]  # fmt: skip
    assert {series.plain for series in found} == {whole["arms"][0]["tok_s"]}
    for _, header, rows in sweep_tables(bench_summary)[:2]:
        assert header[0] == "arm"
        assert [row[0] for row in rows] == list(by_arm)


@pytest.mark.parametrize(("key", "value"), [("complete", 1), ("planned", -1), ("other", 0)])
def test_the_schema_refuses_another_last_line(sweep: list[str], key: str, value: object) -> None:
    assert bench(*sweep) == 0
    line = lines()[-1]
    assert not VALIDATOR.is_valid({**line, key: value})
    arm = {**line["arms"][0], "runs": []}
    assert not VALIDATOR.is_valid({**line, "arms": [arm]})


def test_every_measured_run_is_one_generation_and_no_warm_up_is(
    sweep: list[str], capsys: Output
) -> None:
    whole = measured(capsys, *sweep)
    traces = read_traces(Path("t.jsonl"))
    labels = [trace.header.labels for trace in traces]
    assert [label["arm"] for label in labels[:6]] == [*ARMS, *ARMS[1:], ARMS[0]]
    for name, arm in zip(ARMS, whole["arms"], strict=True):
        mine = [trace for trace in traces if trace.header.labels["arm"] == name]
        runs = arm["runs"]
        assert len(mine) == len(runs) == LINES
        for trace, run in zip(mine, runs, strict=True):
            told = without(trace.header.labels, "arm")
            assert told == {key: run[key] for key in ("prompt", "kind", "repetition")}
            assert trace.header.seed == run["seed"]
            tally = json.loads(json.dumps(without(asdict(trace.tally()), "_last_was_full")))
            assert tally == run["tally"]
            assert trace.summary is not None
            assert trace.summary.stop_reason == run["stop_reason"]
            assert (trace.summary.prefill_s, trace.summary.trace_s) == (run["prefill_s"], 0)


def test_headers_say_what_decided_a_run(sweep: list[str], capsys: Output) -> None:
    measured(capsys, *sweep)
    plain, drafted = read_traces(Path("t.jsonl"))[:2]
    assert (plain.header.prompt, plain.header.gamma, plain.header.drafter) == ("a", 0, None)
    assert (drafted.header.gamma, drafted.header.rule) == (2, "block")
    assert drafted.header.settings == {
        "backend": "toy", "draft_backend": "toy", "temperature": 0.7, "top_k": 0, "top_p": 0.9,
        "min_p": 0.0, "gamma": 2, "rule": "block", "cached": True, "draft": "model",
        "draft_temperature": None, "draft_top_k": None, "draft_top_p": None, "draft_min_p": None,
        "entropy_stop": None, "draft_p_min": None, "seed": drafted.header.seed,
        "predict": 30, "ignore_eos": False, "raw": False, "template_args": {},
    }  # fmt: skip
    hashes = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in ("v.toml", "d.toml")]
    models = drafted.header.provenance["models"]
    assert [models[role]["sha256"] for role in ("verifier", "drafter")] == hashes
    assert list(plain.header.provenance["models"]) == ["verifier"]
    assert all(token.target is not None for done in drafted.rounds for token in done.draft)


def test_models_are_hashed_once(sweep: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    original = machine._described

    def counted(models: Any, report: Any) -> Any:
        asked.append(list(models))
        return original(models, report)

    monkeypatch.setattr(machine, "_described", counted)
    assert bench(*sweep) == 0
    assert asked == [["verifier", "drafter"]]


def test_arms_without_cache_are_traced_too(sweep: list[str], capsys: Output) -> None:
    measured(capsys, *sweep, "--no-cache", "-r", "1")
    names = {trace.header.labels["arm"] for trace in read_traces(Path("t.jsonl"))}
    assert names == {"verifier alone", "gamma 2 no cache", "gamma 4 no cache"}


@pytest.mark.usefixtures("plotless")
def test_a_verifier_alone_is_traced_too(sweep: list[str], capsys: Output) -> None:
    alone = [word for word in sweep if word not in ("-md", "d.toml", "--gamma", "2,4")]
    measured(capsys, *alone)
    traces = read_traces(Path("t.jsonl"))
    assert len(traces) == LINES
    assert series_of(sweeps_of(traces)[0]) == []
    assert "Measured and predicted speed" in page(traces)


# What it costs


def test_figures_are_those_of_a_sweep_without_a_trace(
    sweep: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing a round takes a second here, a hundred times what a round takes."""
    original = TraceWriter.round

    def slow(self: TraceWriter, *args: Any) -> None:
        CLOCK.advance(1.0)
        original(self, *args)

    bare = measured(capsys, *sweep[:-2])
    monkeypatch.setattr(TraceWriter, "round", slow)
    traced = measured(capsys, *sweep)
    assert len(traced["arms"]) == len(bare["arms"]) == 3
    for one, other in zip(traced["arms"], bare["arms"], strict=True):
        assert one["n_tokens"] == other["n_tokens"]
        assert one["tok_s"] == pytest.approx(other["tok_s"], rel=1e-9)
        assert one["speedup"] == (other["speedup"] and pytest.approx(other["speedup"], rel=1e-9))
        assert one["time"] == pytest.approx(other["time"], rel=1e-9, abs=1e-9)


# Interruption, failure, refusal


@pytest.mark.parametrize("error", [None, BackendError("the device is gone")])
def test_a_sweep_that_breaks_off_leaves_what_it_measured(
    sweep: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch, error: BackendError | None
) -> None:
    interrupt(monkeypatch, after=WARM_UPS + 1 + 3 * 2 + 1, error=error)
    assert bench(*sweep, "--json") == (2 if error else 130)
    whole = json.loads(capsys.readouterr().out)
    traces = read_traces(Path("t.jsonl"))
    assert len(traces) == 3 * 2 + 1
    assert all(trace.summary for trace in traces)
    (summary,) = sweeps_of(traces)
    assert summary.complete is whole["complete"] is False
    assert [arm["n_runs"] for arm in summary.arms] == [2, 2, 2]


@pytest.mark.usefixtures("plotless")
def test_ctrl_c_within_a_run_keeps_its_rounds(
    sweep: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = TraceWriter.round, [45]

    def round_(self: TraceWriter, *args: Any) -> None:
        original(self, *args)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(TraceWriter, "round", round_)
    assert bench(*sweep) == 130
    *whole, last = read_traces(Path("t.jsonl"))
    assert sum(len(trace.rounds) for trace in [*whole, last]) == 45
    assert last.rounds
    assert last.summary is None
    assert all(trace.summary for trace in whole)
    assert last.bench is None  # no prompt was done under all arms
    assert page([*whole, last])


@pytest.mark.usefixtures("plotless")
def test_a_killed_sweep_is_readable_without_its_last_line(sweep: list[str]) -> None:
    assert bench(*sweep) == 0
    data = Path("t.jsonl").read_bytes()
    Path("t.jsonl").write_bytes(data[: data.rindex(b'{"kind": "bench"') + 99])
    traces = read_traces(Path("t.jsonl"))
    assert len(traces) == 3 * LINES
    assert sweeps_of(traces) == []
    assert f"the first {MOST_TEXTS} of {3 * LINES} generations" in page(traces)


def test_a_trace_that_fails_costs_nothing_that_was_measured(
    sweep: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = TraceWriter.begin, [7]

    def begin(self: TraceWriter, *args: Any) -> None:
        if not left[0]:
            self._file.close()
            raise UsageError("cannot write the trace to t.jsonl: No space left on device")
        left[0] -= 1
        original(self, *args)

    monkeypatch.setattr(TraceWriter, "begin", begin)
    assert bench(*sweep, "-o", "a.csv") == 2
    found = capsys.readouterr()
    assert f"incomplete: 2 of {LINES} runs of each arm" in found.out
    assert found.err.splitlines()[-1].startswith("specx: cannot write the trace")
    assert Path("a.csv").read_text().count("\n") == 4
    assert len(read_traces(Path("t.jsonl"))) == 7


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--resume", "-o", "a.json"], "leave out --trace or --resume"),
        (["--curve"], "leave out --trace or --curve"),
        (["--load", "a.json"], "leave out --trace or --load"),
        (["-o", "./t.jsonl"], "--trace t.jsonl is the file that -o t.jsonl writes"),
        (["--trace", "no/t.jsonl"], "cannot write the trace to no/t.jsonl"),
        (["--gamma", "x"], "--gamma x is not a list"),
    ],
)
def test_what_cannot_be_traced_is_refused_before_anything_is_loaded(
    sweep: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    forbid_loading(monkeypatch)
    assert bench(*sweep, *args) == 2
    assert_one_line(capsys, words)
    assert not list(Path().glob("t.jsonl"))


def test_a_pair_that_cannot_be_loaded_spares_the_earlier_trace(
    sweep: list[str], capsys: Output
) -> None:
    earlier = '{"kind": "file"}\n'
    Path("t.jsonl").write_text(earlier)
    assert bench(*sweep, "-md", "nosuch.toml") == 2
    assert_one_line(capsys, "nosuch.toml")
    assert Path("t.jsonl").read_text() == earlier


# Reading and reporting


def report(*args: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["report", *args])
    return exit_.value.code


def summary_of_sweep() -> BenchSummary:
    (found,) = sweeps_of(read_traces(Path("t.jsonl")))
    return found


def test_the_last_line_holds_benchs_own_figures(sweep: list[str], capsys: Output) -> None:
    whole = measured(capsys, *sweep)
    found = summary_of_sweep()
    assert found.arms == [without(arm, "runs") for arm in whole["arms"]]
    told = without(asdict(found), "kind", "arms")
    assert told == {name: whole[name] for name in told}
    assert set(told) == {"n", "planned", "complete", "profiles", "warnings"}


def test_the_last_line_comes_back_as_it_was_written(sweep: list[str]) -> None:
    assert bench(*sweep) == 0
    found = summary_of_sweep()
    with TraceWriter(Path("b.jsonl"), argv=[]) as trace:
        trace.end_bench(found)
        assert BenchSummary(**lines("b.jsonl")[-1]) == found


def test_a_sweeps_settings_are_checked_and_a_filter_they_do_not_name_is_off(
    sweep: list[str],
) -> None:
    assert bench(*sweep) == 0
    before, path = summary_of_sweep(), Path("t.jsonl")
    *rest, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rest, last.replace(', "min_p": 0.0', "")]))
    assert summary_of_sweep() == before
    path.write_text("".join([*rest, last.replace('"cached": true', '"cached": 1')]))
    words = r"arms\[0\].settings: field cached is 1: expected bool, got int"
    with pytest.raises(UsageError, match=words):
        summary_of_sweep()


def test_files_joined_keep_a_sweep_each(sweep: list[str]) -> None:
    assert bench(*sweep) == 0
    data = Path("t.jsonl").read_bytes()
    early = data[: data.index(b'{"kind": "bench"')]
    Path("t.jsonl").write_bytes(early + data)
    traces = read_traces(Path("t.jsonl"))
    assert [trace.bench is not None for trace in traces] == [False] * 3 * LINES + [True] * 3 * LINES


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd](?: scope=\"\w+\")?>([^<]*)</t[hd]>", row) for row in rows]


@pytest.mark.usefixtures("plotless")
def test_the_page_has_predicted_and_measured_figures(sweep: list[str], capsys: Output) -> None:
    whole = measured(capsys, *sweep)
    found = cells(page(read_traces(Path("t.jsonl"))))
    for row in speed_rows(whole["arms"]):
        assert row in found
    (series,) = series_of(summary_of_sweep())
    assert (series.gammas, series.plain) == ([2, 4], whole["arms"][0]["tok_s"])
    for name in ("tok_s", "speedup", "speedup_low", "predicted", "predicted_textbook"):
        assert series.figures(name) == [arm[name] for arm in whole["arms"][1:]]
        assert None not in series.figures(name)


def test_each_sampler_rule_and_cache_has_its_plot_against_its_own_baseline(
    sweep: list[str], capsys: Output
) -> None:
    grid = ["--temp", "0,0.5", "--rule", "token,match", "--cache", "--no-cache", "-r", "1"]
    whole = measured(capsys, *sweep, *grid)
    found = series_of(summary_of_sweep())
    assert [series.name for series in found] == [
        "temp 0 greedy", "temp 0 greedy no cache",
        "temp 0.5 token", "temp 0.5 match", "temp 0.5 token no cache", "temp 0.5 match no cache",
    ]  # fmt: skip
    plain = {
        arm["settings"]["temperature"]: arm["tok_s"]
        for arm in whole["arms"]
        if not arm["settings"]["gamma"]
    }
    assert [series.plain for series in found] == [plain[0]] * 2 + [plain[0.5]] * 4
    pytest.importorskip("matplotlib", reason="needs the extra 'report'")
    assert len(sweep_plots(summary_of_sweep(), "s")) == 6  # no cache has no prediction to draw


def test_an_arm_that_has_not_run_is_left_out(sweep: list[str]) -> None:
    assert bench(*sweep) == 0
    found = summary_of_sweep()
    arms: list[Any] = [*found.arms[:-1], {**found.arms[-1], "n_runs": 0}]
    found = replace(found, arms=arms)
    assert [row[0] for row in sweep_tables(found)[0][2]] == ["verifier alone", "gamma 2"]
    assert [series.gammas for series in series_of(found)] == [[2]]


@pytest.mark.usefixtures("plotless")
def test_the_page_shows_some_texts_and_all_numbers(sweep: list[str], capsys: Output) -> None:
    measured(capsys, *sweep)
    traces = read_traces(Path("t.jsonl"))
    html = page(traces)
    assert html.count('class="trace"') == MOST_TEXTS
    assert f"the first {MOST_TEXTS} of {len(traces)} generations" in html
    rows = {row[0]: row for row in cells(html) if row and row[0].startswith("arm ")}
    assert len(rows) == len(traces)
    for trace in traces:
        label = trace.header.labels
        name = " ".join(f"{key} {value}" for key, value in label.items())
        assert rows[name][1:3] == ["30", f"{trace.tally().tok_s:.1f}"]
    assert "generations. The numbers" not in page(traces[:MOST_TEXTS])


@pytest.mark.usefixtures("plotless")
def test_a_page_of_hundreds_of_runs_stays_small(sweep: list[str]) -> None:
    assert bench(*sweep) == 0
    traces = read_traces(Path("t.jsonl"))
    many = [each for each in traces for _ in range(30)]
    few = len(page(traces[: MOST_TEXTS + 1]).encode())
    assert len(page(many).encode()) - few < 500 * len(many)


@pytest.mark.usefixtures("plotless")
def test_a_page_of_a_sweep_trusts_no_kind_of_prompt(sweep: list[str]) -> None:
    prompt = {"id": "<b>", "kind": "<script>alert(1)</script>\x1b", "prompt": "a"}
    with Path("p.jsonl").open("a") as file:
        file.write("\n" + json.dumps(prompt))
    assert bench(*sweep, "-r", "1") == 0
    html = page(read_traces(Path("t.jsonl")))
    assert html.count("<script") == MOST_TEXTS + 1
    assert "<b>" not in html
    assert "\x1b" not in html


def test_the_page_has_the_plot_or_says_how_to_get_it(
    sweep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(*sweep) == 0
    traces = read_traces(Path("t.jsonl"))
    if can_plot():
        assert "<figcaption>Speed by gamma</figcaption><svg" in page(traces)
    monkeypatch.setattr("specx.report.plots.find_spec", lambda name: None)
    html = page(traces)
    assert "<svg" not in html
    assert INSTALL.replace("'", "&#39;") in html
    assert "Measured and predicted speed" in html


def test_the_terminal_shows_the_arms_and_a_line_a_run(sweep: list[str], capsys: Output) -> None:
    assert bench(*sweep) == 0
    told = capsys.readouterr().out.split("peak memory")[0]
    assert report("t.jsonl") == 0
    out = capsys.readouterr().out
    assert out.startswith(told)
    name = "arm gamma 4 prompt p3 kind long repetition 1"
    assert [line for line in out.splitlines() if line.startswith(name)]
    assert report("t.jsonl", "-o", "t.html") == 0
    assert "Measured and predicted speed" in Path("t.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("plotless")
def test_a_trace_without_a_sweep_has_no_table_of_arms(sweep: list[str]) -> None:
    assert bench(*sweep) == 0
    html = page([replace(trace, bench=None) for trace in read_traces(Path("t.jsonl"))])
    assert "Measured and predicted speed" not in html
