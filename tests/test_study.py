"""The study finds planted relations, shows the bias of wrong labels, and resumes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specx import Pair, SamplingParams
from specx.bench.suites import Prompt
from specx.errors import UsageError
from specx.records.kinds import kind_of
from specx.records.trace import (
    DraftToken,
    FileStart,
    Header,
    LastToken,
    RoundRecord,
    Trace,
    Uncertainty,
    read_trace,
)
from specx.session.chat import ChatOptions
from specx.session.decoding import Times
from specx_backends.toy import Toy, ToyTable
from studies.analysis import _held_out, analyse, auc, mean_estimate, rank_correlation
from studies.observations import PREDICTORS, observe
from studies.render import FORMATS, estimate
from studies.running import Plan, run_study
from study import main
from study_doc import study_page

GAMMA = 4
PLAIN = SamplingParams(temperature=1.0, top_p=1.0)
SCRIPT = Path(__file__).parent.parent / "scripts" / "study.py"


def chance(entropy: float, slope: float) -> float:
    """The planted relation: acceptance falls with the draft's entropy."""
    return float(1 / (1 + np.exp(slope * (entropy - 2) - 1)))


def made_up(prompts: int, rounds: int, slope: float, *, seed: int = 0) -> list[Trace]:
    """Traces whose drafted tokens are accepted with `chance` of their entropy."""
    rng = np.random.default_rng(seed)
    return [_trace(number, rounds, slope, rng) for number in range(prompts)]


def _trace(number: int, rounds: int, slope: float, rng: np.random.Generator) -> Trace:
    header = Header(
        prompt="",
        prompt_ids=[0],
        rule="token",
        gamma=GAMMA,
        seed=0,
        sampling=PLAIN,
        n_vocab=100,
        drafter="made up",
        labels={"kind": "odd" if number % 2 else "even"},
    )
    start = FileStart(schema=1, specx="", created="", argv=[])
    ease = rng.normal(0, 0.3)  # prompts differ, so that their tokens are no independent witnesses
    done = [_round(i, slope, ease, rng) for i in range(rounds)]
    return Trace(Path(f"{number}.jsonl"), start, header, done)


def _round(index: int, slope: float, ease: float, rng: np.random.Generator) -> RoundRecord:
    entropies = rng.uniform(0, 4, GAMMA)
    chances = [chance(entropy - ease, slope) for entropy in entropies]
    passed = rng.random(GAMMA) < chances
    n = int(np.logical_and.accumulate(passed).sum())
    sure = [
        Uncertainty(
            entropy=e, entropy_normalised=0, raw_entropy=e, raw_entropy_normalised=0, margin=4 - e
        )
        for e in entropies
    ]
    draft = [
        DraftToken(
            id=0, text="", target_prob=0.5, draft_prob=0.5, reach=1, chance=chances[i],
            uniform=0.5, tested=i <= n, accepted=i < n, overlap=chances[i], target=sure[i],
            draft=sure[i],
        )
        for i in range(GAMMA)
    ]  # fmt: skip
    last = LastToken(
        id=0, text="", origin="bonus", target_prob=1, draft_prob=None, uniform=0.5, target=None
    )
    return RoundRecord(
        index=index, position=1, gamma=GAMMA, reason="fixed", drafter="made up", draft=draft,
        expected={}, n_accepted=n, last=last, emitted=[], times=Times(),
    )  # fmt: skip


def true_alpha(slope: float) -> float:
    """Mean chance over entropies and prompts, by brute force."""
    rng = np.random.default_rng(99)
    entropies, ease = rng.uniform(0, 4, 200_000), rng.normal(0, 0.3, 200_000)
    return float(np.mean(1 / (1 + np.exp(slope * (entropies - ease - 2) - 1))))


@pytest.fixture(scope="module")
def planted() -> list[Trace]:
    return made_up(40, 60, 1.5)


@pytest.fixture(scope="module")
def record(planted: list[Trace]) -> dict[str, Any]:
    return analyse(observe(planted), naive=observe(planted, tested_only=False))


def of(record: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (p for p in record["predictors"] if p["name"] == name)
    return dict(found)


def test_intervals_cover_the_planted_relation(record: dict[str, Any]) -> None:
    large = observe(made_up(1000, 60, 1.5, seed=1))
    x = large.predictors["draft_entropy"]
    truth = {
        "correlation": rank_correlation(x, large.accepted),
        "correlation_overlap": rank_correlation(x, large.overlap),
        "auc": auc(x, ~large.accepted),
    }
    found = of(record, "draft_entropy")
    for name, value in truth.items():
        assert found[name]["low"] <= value <= found[name]["high"], name
    assert found["auc"]["low"] > 0.7
    assert record["alpha"]["low"] <= true_alpha(1.5) <= record["alpha"]["high"]
    for part in found["bins"]:
        assert part["alpha"]["low"] - 0.05 <= part["overlap"] <= part["alpha"]["high"] + 0.05


def test_no_relation_is_found_where_there_is_none() -> None:
    found = of(analyse(observe(made_up(40, 60, 0.0)), resamples=300), "draft_entropy")
    assert found["correlation"]["low"] < 0 < found["correlation"]["high"]
    assert found["auc"]["low"] < 0.5 < found["auc"]["high"]
    assert found["brier"] >= found["brier_base"] - 0.002


def test_a_margin_counts_the_other_way(record: dict[str, Any]) -> None:
    entropy, margin = of(record, "draft_entropy"), of(record, "draft_margin")
    assert margin["auc"]["value"] == pytest.approx(entropy["auc"]["value"])
    assert margin["correlation"]["value"] == pytest.approx(-entropy["correlation"]["value"])


def test_the_fit_predicts_prompts_that_it_has_not_seen(record: dict[str, Any]) -> None:
    found = of(record, "draft_entropy")
    assert found["brier"] < found["brier_base"] - 0.02
    for part in found["calibration"]:
        assert part["predicted"] == pytest.approx(part["seen"], abs=0.12)


def test_every_token_is_predicted_from_other_prompts(planted: list[Trace]) -> None:
    seen, predicted = observe(planted), np.zeros(40 * 60 * GAMMA)

    def fit(train: NDArray[np.bool_], test: NDArray[np.bool_]) -> NDArray[np.float64]:
        assert not set(seen.prompt[train]) & set(seen.prompt[test])
        predicted[: len(seen)] += test
        return np.zeros(int(test.sum()))

    _held_out(seen, fit)
    assert set(predicted[: len(seen)]) == {1}


def test_calling_untested_tokens_rejected_biases_every_answer(
    planted: list[Trace], record: dict[str, Any]
) -> None:
    naive = record["untested_called_rejected"]
    truth = true_alpha(1.5)
    assert abs(record["alpha"]["value"] - truth) < 0.03
    assert naive["alpha"] < truth - 0.15
    assert naive["alpha"] < record["alpha"]["low"]
    assert naive["auc"]["draft_entropy"] < of(record, "draft_entropy")["auc"]["low"]
    assert naive["n_tokens"] == 40 * 60 * GAMMA > record["n_tokens"]


def test_the_bootstrap_draws_prompts_not_tokens() -> None:
    accepted, prompt = np.repeat([True, False], 50), np.repeat(np.arange(10), 10)
    alike = mean_estimate(accepted, prompt)  # five prompts accept all, five nothing
    apart = mean_estimate(accepted, np.arange(100))
    assert (alike.value, apart.value) == (0.5, 0.5)
    assert alike.low == pytest.approx(0.2, abs=0.1)
    assert apart.low == pytest.approx(0.4, abs=0.03)


def test_kinds_and_positions_add_up(record: dict[str, Any]) -> None:
    for groups in (record["by_kind"], record["by_position"]):
        assert sum(group["n"] for group in groups) == record["n_tokens"]
    assert [group["group"] for group in record["by_position"]] == [1, 2, 3, 4]
    assert [group["group"] for group in record["by_kind"]] == ["even", "odd"]


@pytest.mark.parametrize(
    ("score", "positive", "value"),
    [([1, 2, 3, 4], [0, 0, 1, 1], 1.0), ([1, 2, 3, 4], [1, 1, 0, 0], 0.0), ([1, 1], [0, 1], 0.5)],
)
def test_auc_counts_pairs(score: list[int], positive: list[int], value: float) -> None:
    assert auc(np.array(score, float), np.array(positive, bool)) == value


def test_other_rules_and_empty_traces_are_refused() -> None:
    (trace,) = made_up(1, 3, 1.0)
    other = replace(trace, header=replace(trace.header, rule="block"))
    with pytest.raises(UsageError, match="rule block; a study needs rule token"):
        observe([other])
    with pytest.raises(UsageError, match="no drafted token was tested"):
        observe([replace(trace, rounds=[])])


def study(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--suite", "code:3", "-n", "24", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=170)


def test_the_demo_pair_has_a_study_that_resumes(demo_verifier: Path, tmp_path: Path) -> None:
    folder, files = (
        tmp_path / "traces",
        [tmp_path / f"a{end}" for end in (".json", ".csv", ".html")],
    )
    outputs = [word for file in files for word in ("-o", str(file))]
    done = study("--folder", str(folder), *outputs, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["n_prompts"] == 3
    assert [found["name"] for found in record["predictors"]] == list(PREDICTORS)
    assert json.loads(files[0].read_text()) == record
    assert files[1].read_text().count("\n") == record["n_tokens"] + 1
    assert "What predicts a rejection" in files[2].read_text()
    traces = sorted(folder.glob("*.jsonl"))
    torn = traces[1].read_bytes()
    traces[1].write_bytes(torn[: len(torn) // 2])  # as a kill leaves it
    before = [trace.stat().st_mtime_ns for trace in traces]
    again = study("--folder", str(folder), "--json")
    assert json.loads(again.stdout)["predictors"] == record["predictors"]
    after = [trace.stat().st_mtime_ns for trace in traces]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, True]
    assert read_trace(traces[1]).summary is not None
    other = study("--folder", str(folder), "--gamma", "2")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "was made with gamma 4, now 2; choose another folder" in other.stderr


def toy_plan(folder: Path, **more: Any) -> Plan:
    settings = {
        "prompts": [Prompt("p", "own", "a")],
        "n": 6,
        "gamma": 2,
        "sampling": SamplingParams(temperature=1, top_p=1),
    }
    return Plan(folder=folder, **{**settings, **more})


def toy_pair(*, template: str | None = None) -> Pair:
    table = ToyTable(
        tokens=("<s>", "a", "b"), rows={(): (0.0, 0.5, 0.5)}, bos="<s>", chat_template=template
    )
    return Pair(Toy(table), Toy(table))


FACTS: dict[str, Any] = {
    "backends": {"toy": {}},
    "models": {"verifier": {"file": "v", "sha256": "1"}, "drafter": {"file": "d"}},
}


def with_model(role: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {**FACTS, "models": {**FACTS["models"], role: facts}}


def test_a_folder_is_resumed_by_its_own_models_only(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path)
    run_study(plan, toy_pair(), FACTS)
    (path,) = tmp_path.iterdir()
    kept = path.read_bytes()
    renamed = {**FACTS, "models": {**FACTS["models"], "verifier": {"file": "w", "sha256": "1"}}}
    run_study(plan, toy_pair(), renamed)  # the same file under another name
    for role, other in (("verifier", {"sha256": "2"}), ("drafter", {"file": "e"})):
        facts = with_model(role, {**FACTS["models"][role], **other})
        with pytest.raises(UsageError, match=f"{path} was made with {role} .*, now "):
            run_study(plan, toy_pair(), facts)
    with pytest.raises(UsageError, match=f"{path} holds the prompt as other tokens"):
        run_study(plan, toy_pair(template="b{{ messages[0].content }}"), FACTS)
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n": 7}, "n 6, now 7"),
        ({"gamma": 3}, "gamma 2, now 3"),
        ({"seed": 1}, "seed "),
        ({"ignore_eos": True}, "ignore_eos false, now true"),
        ({"sampling": SamplingParams(temperature=0.7, top_p=1)}, "temperature 1.0, now 0.7"),
        ({"sampling": SamplingParams(temperature=1, top_p=0.9)}, "top_p 1.0, now 0.9"),
        ({"prompts": [Prompt("p", "code", "a")]}, 'kind "own", now "code"'),
        ({"prompts": [Prompt("p", "own", "b")]}, 'prompt "a", now "b"'),
        ({"chat": ChatOptions(arguments={"x": 1})}, 'template_args null, now {"x": 1}'),
    ],
)
def test_a_folder_of_other_settings_is_refused_by_name(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run_study(toy_plan(tmp_path), toy_pair(), FACTS)
    (path,) = tmp_path.iterdir()
    kept = path.read_bytes()
    for step in (lambda plan: plan.missing(), lambda plan: run_study(plan, toy_pair(), FACTS)):
        with pytest.raises(UsageError, match=re.escape(f"{path} was made with {words}")):
            step(toy_plan(tmp_path, **changed))
    assert path.read_bytes() == kept


def test_a_trace_of_another_rule_is_refused(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path)
    run_study(plan, toy_pair(), FACTS)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"rule": "token"', '"rule": "block"'))
    with pytest.raises(UsageError, match='was made with rule "block", now "token"'):
        plan.missing()


@pytest.mark.parametrize("recorded", [FACTS, {}])
def test_another_runtime_or_an_unknown_pair_is_refused(
    recorded: dict[str, Any], tmp_path: Path
) -> None:
    run_study(toy_plan(tmp_path), toy_pair(), recorded)
    now = {**FACTS, "backends": {"hf": {}, "toy": {}}}
    words = "backend toy, now hf.toy" if recorded else "verifier .recorded in only one"
    with pytest.raises(UsageError, match=f"was made with {words}"):
        run_study(toy_plan(tmp_path), toy_pair(), now)


def test_a_study_with_template_arguments_resumes(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, chat=ChatOptions(arguments={"x": "b"}))
    template = "{{ x }}{{ messages[0].content }}"
    run_study(plan, toy_pair(template=template), FACTS)
    (path,) = tmp_path.iterdir()
    assert len(read_trace(path).header.prompt_ids) == 3
    run_study(plan, toy_pair(template=template), FACTS)
    assert plan.missing() == []


def other_header(trace: Trace, **changes: Any) -> Trace:
    return replace(trace, header=replace(trace.header, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampling": replace(PLAIN, temperature=0.5)}, "temperature 1.0, and 0.5"),
        ({"sampling": replace(PLAIN, top_k=9)}, "top_k 0, and 9"),
        ({"provenance": with_model("verifier", {"sha256": "2"})}, 'verifier sha256 "1", and "2"'),
        ({"provenance": with_model("drafter", {"file": "e"})}, 'drafter file "d", and "e"'),
        ({"provenance": {}}, "verifier (recorded in only one of them)"),
        ({"provenance": {**FACTS, "backends": {"hf": {}}}}, "backend toy, and hf"),
    ],
)
def test_traces_of_different_pairs_or_samplers_are_not_mixed(
    changes: dict[str, Any], words: str
) -> None:
    alike = [other_header(trace, provenance=FACTS) for trace in made_up(3, 3, 1.0)]
    assert len(observe(alike))
    mixed = [*alike[:2], other_header(alike[2], **changes)]
    with pytest.raises(UsageError, match=re.escape(f"0.jsonl and 2.jsonl differ in {words}")):
        observe(mixed)


def test_few_prompts_have_no_interval() -> None:
    accepted = np.tile([True, False, True, True], 5)
    few = mean_estimate(accepted[:16], np.repeat(np.arange(4), 4))
    assert (few.value, few.low, few.high) == (0.75, None, None)
    assert mean_estimate(accepted, np.repeat(np.arange(5), 4)).low == 0.75
    assert estimate(asdict(few)) == "0.75"
    found = analyse(observe(made_up(4, 20, 1.5)), resamples=5)
    assert found["alpha"]["low"] is None
    assert of(found, "draft_entropy")["auc"]["low"] is None
    assert "bootstrap over prompts; none for fewer than 5" in FORMATS[".html"](
        {**found, "provenance": {}}, observe(made_up(4, 20, 1.5))
    )


TABLE = """
vocabulary = ["<s>", "one", " two"]
bos = "<s>"
[[row]]
next = { one = 0.5, " two" = 0.5 }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a toy pair and a suite, which is also the working one."""
    for name in ("v.toml", "d.toml"):
        (tmp_path / name).write_text(TABLE)
    (tmp_path / "suite.jsonl").write_text('{"prompt": "one"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


TOYS = "--backend toy -m v.toml -md d.toml -f suite.jsonl --folder traces --raw -n 8 -q".split()


@pytest.mark.usefixtures("place")
def test_every_format_is_known_as_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    files = [Path(f"s{ending}") for ending in FORMATS]
    assert main([*TOYS, *(word for file in files for word in ("-o", str(file)))]) == 0
    assert [kind_of(file) for file in files] == ["study"] * len(FORMATS)
    (trace,) = Path("traces").iterdir()
    assert main([str(trace), "--json"]) == 0
    assert '"n_prompts": 1' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["t.jsonl", "-o", "t.jsonl"], "-o t.jsonl is the file that t.jsonl reads"),
        ([*TOYS, "-o", "suite.jsonl"], "-o suite.jsonl is the file that -f suite.jsonl reads"),
        (["--folder", ".", "-o", "old.jsonl"], "the file that --folder . reads"),
        (["t.jsonl", "-o", "a.csv", "-o", "a.csv"], "the file that -o a.csv writes"),
        ([*TOYS, "--template-date", "2024-07-26"], "--raw disables; leave one out"),
        (["--nonsense"], "No such option"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--force"]])
def test_what_is_read_is_not_overwritten(
    place: Path, args: list[str], words: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "old.jsonl").write_text("notes")
    assert main([*args, *more]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("study: ")
    assert words in err
    assert (place / "old.jsonl").read_text() == "notes"


def test_foreign_files_in_the_folder_are_left_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(TOYS) == 0
    (trace,) = (place / "traces").iterdir()
    trace.write_text("notes of mine\n")
    capsys.readouterr()
    for more in ([], ["--force"]):
        assert main([*TOYS, *more]) == 2
        err = capsys.readouterr().err
        assert f"--folder {trace.relative_to(place)}" in err
        assert "not a result of specx" in err
    assert trace.read_text() == "notes of mine\n"
    trace.write_text('{"kind": "file", "sch')  # a run that died as it began
    assert main(TOYS) == 0
    assert read_trace(trace).summary is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line.replace('"schema": 1', '"schema": 2'), "in schema 2; this one reads"),
        (lambda line: "a diary", "line 1 is not JSON"),
    ],
)
def test_what_cannot_be_read_is_kept_and_refused(
    change: Callable[[str], str], words: str, tmp_path: Path
) -> None:
    plan = toy_plan(tmp_path)
    run_study(plan, toy_pair(), FACTS)
    (path,) = tmp_path.iterdir()
    first, *rest = path.read_text().split("\n")
    path.write_text("\n".join([change(first), *rest]))
    kept = path.read_bytes()
    with pytest.raises(UsageError, match=words):
        run_study(plan, toy_pair(), FACTS)
    assert path.read_bytes() == kept


@pytest.mark.parametrize("left", ["", '{"kind": "file", "sche', "first line"])
def test_a_run_that_died_before_its_header_is_run_again(left: str, tmp_path: Path) -> None:
    plan = toy_plan(tmp_path)
    run_study(plan, toy_pair(), FACTS)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().split("\n")[0] + "\n" if left == "first line" else left)
    run_study(plan, toy_pair(), FACTS)
    assert plan.missing() == []


def test_an_infinite_margin_is_null_in_json_and_inf_on_the_page(planted: list[Trace]) -> None:
    def certain(token: DraftToken) -> DraftToken:
        assert token.draft is not None
        return replace(token, draft=replace(token.draft, margin=None))

    traces = [
        replace(trace, rounds=[replace(r, draft=[*map(certain, r.draft)]) for r in trace.rounds])
        for trace in planted[:5]
    ]
    seen = observe(traces)
    found = analyse(seen, naive=seen, resamples=5)
    assert of(found, "draft_margin")["bins"][0]["median"] is None
    json.loads(FORMATS[".json"](found, seen), parse_constant=pytest.fail)
    assert "inf" in study_page("", found)
    assert FORMATS[".html"]({**found, "provenance": {}}, seen)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "add --folder DIR"),
        (["-o", "a.pdf"], "a.pdf has no known ending; use one of .json, .csv, .html"),
        (["-m", "x.gguf", "--folder", "traces"], "needs both models"),
        (["-o", "missing/a.json"], "cannot write -o missing/a.json"),
    ],
)
def test_bad_input_gets_one_line(args: list[str], words: str, tmp_path: Path) -> None:
    args = [str(tmp_path / word) if word == "traces" else word for word in args]
    done = study(*args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


def test_the_page_of_docs_holds_what_was_measured(record: dict[str, Any]) -> None:
    page = study_page("# Words", record)
    alpha = record["alpha"]
    assert page.startswith("# Words\n\n## Measured\n")
    assert f"{alpha['value']:.2f} ({alpha['low']:.2f} to {alpha['high']:.2f})" in page
    assert all(found["meaning"] in page for found in record["predictors"])
    assert f"Acceptance rate {record['untested_called_rejected']['alpha']:.2f}." in page
