"""Traces: what their lines say, that decisions follow from them, and what survives a death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema
import numpy as np
import pytest
from hypothesis import strategies as st
from traces import traced

import trace_schema
from specx import RULES, Block, LoadOptions, Pair, SamplingParams, Session, Settings, Stop, Tally
from specx import get_backend as backend_named
from specx.cli import main
from specx.core.sampling import Distribution, LogitsReader
from specx.errors import UsageError
from specx.records.trace import (
    RoundRecord,
    Trace,
    TraceWriter,
    read_trace,
    read_traces,
    replayed_acceptance,
    uncertainty,
)
from specx.runtime.prefill import prefill
from specx.session.decoding import Round
from specx_backends.toy import Toy, ToyFactory, ToyTable

SCHEMA = json.loads((Path(__file__).parent.parent / "specx/records/trace/schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
WORDS = ("<s>", "</s>", "a", "b", "c", "d")
PLAIN = SamplingParams(temperature=1, top_p=1)


def toy(seed: int) -> Toy:
    rng = np.random.default_rng(seed)
    rows: dict[tuple[int, ...], list[float]] = {(): [0.0, 0.0, *rng.dirichlet(np.ones(4))]}
    rows |= {(t,): [0.0, 0.0, *rng.dirichlet(np.ones(4))] for t in range(2, 6)}
    return Toy(ToyTable(tokens=WORDS, rows=rows, bos="<s>", eog=("</s>",), padding=2))


def toy_pair() -> Pair:
    return Pair(toy(1), toy(2))


@pytest.fixture(scope="module")
def demo_pair(demo_verifier: Path, demo_drafter: Path) -> Iterator[Pair]:
    load = backend_named("llamacpp").load
    models = [load(str(path), LoadOptions(threads=1)) for path in (demo_verifier, demo_drafter)]
    with Pair(*models) as pair:
        yield pair


def generate(
    pair: Pair, path: Path, settings: Settings, n: int = 40, prompt: tuple[int, ...] = (0,)
) -> Tally:
    """A traced generation of `n` tokens; the pair is reset first."""
    with TraceWriter(path) as trace:
        return traced(pair, trace, settings, n, list(prompt), "<s>").tally


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def replay(trace: Trace) -> list[tuple[int, int]]:
    rule = RULES[trace.header.rule]
    return [(done.n_accepted, replayed_acceptance(done, rule)) for done in trace.rounds]


SETTINGS = [
    Settings(rule=rule, sampling=sampling, gamma=3, seed=5)
    for rule in RULES
    for sampling in (PLAIN, SamplingParams(), SamplingParams(temperature=0))
]


def names(settings: Settings) -> str:
    return f"{settings.rule}-{settings.sampling.temperature}"


@pytest.mark.parametrize("settings", SETTINGS, ids=names)
def test_every_line_follows_the_schema(settings: Settings, tmp_path: Path) -> None:
    generate(toy_pair(), tmp_path / "a.jsonl", settings)
    found = lines(tmp_path / "a.jsonl")
    for line in found:
        VALIDATOR.validate(line)
    assert [line["kind"] for line in found[:3]] == ["file", "header", "round"]
    assert found[-1]["kind"] == "summary"


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [(2, "uniform", 1.0), (2, "chance", -0.1), (1, "rule", ""), (0, "schema", 2)],
)
def test_the_schema_refuses_what_is_wrong(
    place: int, key: str, value: object, tmp_path: Path
) -> None:
    generate(toy_pair(), tmp_path / "a.jsonl", SETTINGS[0])
    line = lines(tmp_path / "a.jsonl")[place]
    (line["draft"][0] if place == 2 else line)[key] = value
    assert not VALIDATOR.is_valid(line)


@pytest.mark.parametrize("settings", SETTINGS, ids=names)
def test_replaying_a_toy_trace_makes_every_decision_again(
    settings: Settings, tmp_path: Path
) -> None:
    generate(toy_pair(), tmp_path / "a.jsonl", settings, 200)
    decisions = replay(read_trace(tmp_path / "a.jsonl"))
    assert [again for _, again in decisions] == [n for n, _ in decisions]
    assert len({n for n, _ in decisions}) > 1 or settings.sampling.greedy


@pytest.mark.parametrize("rule", ["token", "match"])
def test_recorded_chances_follow_from_the_recorded_probabilities(rule: str, tmp_path: Path) -> None:
    """Of token and match; block's chances need whole distributions."""
    settings = Settings(rule=rule, sampling=PLAIN, gamma=3, seed=5)
    generate(toy_pair(), tmp_path / "a.jsonl", settings, 200)
    for done in read_trace(tmp_path / "a.jsonl").rounds:
        for token in done.draft:
            p, q = token.target_prob, token.draft_prob
            assert token.chance == (p if rule == "match" else min(p, q) / q)


@pytest.mark.parametrize("settings", SETTINGS, ids=names)
def test_replaying_a_trace_of_the_demo_pair_makes_every_decision_again(
    settings: Settings, demo_pair: Pair, tmp_path: Path
) -> None:
    generate(demo_pair, tmp_path / "a.jsonl", settings, 100)
    decisions = replay(read_trace(tmp_path / "a.jsonl"))
    assert len({n for n, _ in decisions}) > 1
    assert [again for _, again in decisions] == [n for n, _ in decisions]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("models", ["toy", "demo"])
def test_rerunning_the_models_gives_the_probabilities_and_every_last_token(
    rule: str, models: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pair = toy_pair() if models == "toy" else request.getfixturevalue("demo_pair")
    generate(pair, tmp_path / "a.jsonl", Settings(rule=rule, seed=3), 60)
    trace = read_trace(tmp_path / "a.jsonl")
    origins = set()
    for done, block in rerun(pair, trace):
        assert [token.target_prob for token in done.draft] == block.target_probs.tolist()
        assert [token.draft_prob for token in done.draft] == block.draft_probs.tolist()
        judged = RULES[rule](block)
        assert [token.reach for token in done.draft] == judged.survival.tolist()
        assert [token.chance for token in done.draft] == judged.chances.tolist()
        assert sum(token.reach for token in done.draft) == pytest.approx(done.expected[rule])
        whole = done.n_accepted == len(done.draft)
        after = judged.next_token(done.n_accepted)
        assert after.draw(done.last.uniform) == done.last.id
        assert done.last.target_prob == block.target[done.n_accepted].prob(done.last.id)
        lost = None if whole else block.draft[done.n_accepted].prob(done.last.id)
        assert done.last.draft_prob == lost
        origins.add(done.last.origin)
    assert {"correction", "bonus"} <= origins


def rerun(pair: Pair, trace: Trace) -> Iterator[tuple[RoundRecord, Block]]:
    """Feeds the models as the loop did, but with the tokens that the trace names."""
    assert pair.drafter is not None
    verifier, drafter = pair.verifier, pair.drafter
    for model in pair.models:
        model.truncate(0)
    params = trace.header.sampling
    tokens = list(trace.header.prompt_ids)
    for model in pair.models:
        prefill(model, tokens)
    draft_reader = LogitsReader(drafter.name, params, pair._masked_draft)
    for done in trace.rounds:
        ids = [token.id for token in done.draft]
        draft: list[Distribution] = []
        for i in range(len(ids)):
            fed = tokens[drafter.n_past :] if i == 0 else [ids[i - 1]]
            draft += draft_reader.read(drafter.forward(fed), 0)
        rows = verifier.forward([*tokens[verifier.n_past :], *ids], len(ids) + 1)
        yield done, Block(pair.reader(params).read(rows, 0), draft, ids)
        tokens += [token.id for token in done.emitted]
        for model in pair.models:
            model.truncate(min(model.n_past, len(tokens) - 1))


def test_tested_and_accepted_mark_the_decided_tokens(tmp_path: Path) -> None:
    tally = generate(toy_pair(), tmp_path / "a.jsonl", SETTINGS[0], 200)
    drafts = [done.draft for done in read_trace(tmp_path / "a.jsonl").rounds]
    assert sum(token.tested for draft in drafts for token in draft) == tally.tested
    assert sum(token.accepted for draft in drafts for token in draft) == tally.accepted
    assert tally.tested < tally.proposed


def test_the_overlap_is_the_sum_of_the_smaller_probabilities(tmp_path: Path) -> None:
    pair = toy_pair()
    generate(pair, tmp_path / "a.jsonl", Settings(sampling=PLAIN, gamma=2))
    for done, block in rerun(pair, read_trace(tmp_path / "a.jsonl")):
        for token, target, draft in zip(done.draft, block.target, block.draft, strict=False):
            both = [min(target.prob(x), draft.prob(x)) for x in range(len(WORDS))]
            assert token.overlap == pytest.approx(sum(both), abs=1e-12)


def test_origins_and_text_are_those_of_the_run(tmp_path: Path) -> None:
    generate(toy_pair(), tmp_path / "a.jsonl", SETTINGS[0], 50)
    trace = read_trace(tmp_path / "a.jsonl")
    assert len(trace.text) == 50
    for done in trace.rounds:
        kinds = [token.origin for token in done.emitted]
        assert kinds[: done.n_accepted] == ["accepted"] * min(done.n_accepted, len(kinds))
        if len(kinds) > done.n_accepted and done.draft:
            full = done.n_accepted == len(done.draft)
            assert kinds[-1] == ("bonus" if full else "correction")


def test_plain_decoding_is_traced_too(tmp_path: Path) -> None:
    generate(Pair(toy(1)), tmp_path / "a.jsonl", SETTINGS[0], 5)
    trace = read_trace(tmp_path / "a.jsonl")
    assert trace.header.drafter is None
    assert {done.reason for done in trace.rounds} == {"no drafter"}
    assert {done.last.origin for done in trace.rounds} == {"plain"}
    assert all(done.last.target is not None for done in trace.rounds)


def test_a_lookup_without_a_match_is_traced_as_such(tmp_path: Path) -> None:
    settings = Settings(sampling=PLAIN, gamma=3, seed=5, draft=("lookup",))
    generate(toy_pair(), tmp_path / "a.jsonl", settings, 50)
    rounds = read_trace(tmp_path / "a.jsonl").rounds
    assert rounds[0].reason == "no match"
    assert {done.reason for done in rounds if not done.draft and done is not rounds[-1]} == {
        "no match"
    }


def test_shorter_drafts_say_why(tmp_path: Path) -> None:
    generate(toy_pair(), tmp_path / "a.jsonl", SETTINGS[0], 50)
    rounds = read_trace(tmp_path / "a.jsonl").rounds
    assert {(done.gamma == 3, done.reason) for done in rounds} <= {
        (True, "fixed"),
        (False, "no room"),
    }


ROWS = st.lists(st.floats(-60, 60, width=32), min_size=2, max_size=50)


@hypothesis.settings(derandomize=True, deadline=None)
@hypothesis.given(
    row=ROWS, temperature=st.sampled_from([0.01, 0.3, 0.7, 1.0, 1.5, 20.0]), masked=st.booleans()
)
def test_entropies_are_those_of_the_unfiltered_distributions(
    row: list[float], temperature: float, masked: bool
) -> None:
    logits = np.array([*row, *([-np.inf] * 9 * masked)], dtype=np.float32)
    before = logits.copy()
    found = uncertainty(logits, SamplingParams(temperature=temperature, top_k=1))
    assert found.entropy == pytest.approx(entropy(row, temperature), rel=1e-4, abs=2e-5)
    assert found.raw_entropy == pytest.approx(entropy(row, 1), rel=1e-4, abs=2e-5)
    assert found.entropy_normalised == pytest.approx(found.entropy / np.log(len(logits)), rel=1e-5)
    first, second = sorted(row)[-1:-3:-1]
    assert found.margin == pytest.approx(first - second, rel=1e-5)
    assert (logits == before).all()


def entropy(row: list[float], temperature: float) -> float:
    """In float64, from the definition."""
    x = np.array(row) / temperature
    p = np.exp(x - x.max())
    p = p[p > 0] / p.sum()
    return float(-(p * np.log(p)).sum())


def test_greedy_has_no_tempered_entropy_and_one_choice_no_margin() -> None:
    row = np.array([1, 1, -np.inf], dtype=np.float32)
    found = uncertainty(row, SamplingParams(temperature=0))
    assert (found.entropy, found.margin) == (0, 0)
    assert found.raw_entropy == pytest.approx(np.log(2), rel=1e-5)
    row[1] = -np.inf
    assert uncertainty(row, PLAIN).margin is None
    assert uncertainty(row, PLAIN).raw_entropy == pytest.approx(0, abs=1e-30)


@pytest.mark.parametrize("keep", [False, True])
def test_logits_are_kept_only_where_asked_for(keep: bool) -> None:
    pair, tokens = toy_pair(), [0]
    stop = Stop(pair.verifier.tokenizer, 6)
    for done in Session(pair).rounds(tokens, SETTINGS[0], stop, keep_logits=keep):
        rows = [*done.target, *done.draft.distributions]
        assert {chances.logits is not None for chances in rows} == {keep}


def test_the_tally_of_a_trace_is_that_of_the_run_to_the_last_bit(tmp_path: Path) -> None:
    tally = generate(toy_pair(), tmp_path / "a.jsonl", Settings(sampling=PLAIN), 100)
    trace = read_trace(tmp_path / "a.jsonl")
    assert asdict(trace.tally()) == asdict(tally)
    assert trace.summary is not None
    assert (trace.summary.alpha, trace.summary.tau) == (tally.alpha, tally.tau)


def test_one_file_holds_several_generations(tmp_path: Path) -> None:
    path, pair = tmp_path / "a.jsonl", toy_pair()
    with TraceWriter(path, argv=["specx"]) as trace:
        for seed in (1, 2):
            traced(pair, trace, Settings(seed=seed), 0, labels={"seed": seed})
    assert [found.header.labels for found in read_traces(path)] == [{"seed": 1}, {"seed": 2}]
    with pytest.raises(UsageError, match="2 generations.*read_traces"):
        read_trace(path)
    path.write_bytes(path.read_bytes() * 2)  # cat a b
    assert len(read_traces(path)) == 4


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    generate(toy_pair(), tmp_path / "a.jsonl", SETTINGS[0])
    data = (tmp_path / "a.jsonl").read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    torn = tmp_path / "torn.jsonl"
    last = [end - 1 for end in ends[2:]]
    for cut in [*range(ends[2], ends[3], 7), *range(ends[-2], len(data), 7), *ends[1:], *last]:
        torn.write_bytes(data[:cut])
        found = read_trace(torn)
        whole = sum(end - 1 <= cut for end in ends)  # whole but for its newline
        assert len(found.rounds) == min(whole, len(ends) - 1) - 2
        assert (found.summary is not None) == (whole == len(ends))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no generation"),
        ("hello\nworld\n", "a.jsonl, line 1 is not JSON"),
        ('{"a": 1}\n', "line 1: field kind: null is not one of file, header, round"),
        ("[1]\n", "line 1: expected an object, got .1."),
        ('{"kind": "summary"}\n', "line 1: object missing required field n_tokens"),
        (
            '{"kind": "file", "schema": 9, "specx": "7.0", "created": "", "argv": []}\n',
            'specx "7.0" in schema 9; this one reads schema 1',
        ),
    ],
)
def test_what_is_no_trace_is_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UsageError, match=words):
        read_traces(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("way", "value", "words"),
    [
        (("n_accepted",), None, "field n_accepted is null: expected int"),
        (("n_accepted",), True, "field n_accepted is true: expected int, got bool"),
        (("n_accepted",), 9, "n_accepted is 9, and 3 tokens were drafted"),
        (("gamma",), 2, "gamma is 2, and 3 tokens were drafted"),
        (("position",), -1, "field position is -1: expected int >= 0"),
        (("emitted", 0, "piece"), 5, r"field emitted\[0\].piece is 5: expected str, got int"),
        (("emitted", 0, "origin"), "lucky", r"field emitted\[0\].origin is \"lucky\": invalid"),
        (("emitted", 0, "origin"), "plain", r"emitted\[0\].origin is 'plain', and"),
        (("draft", 0, "uniform"), [0.5], r"field draft\[0\].uniform: expected float, got array"),
        (
            ("draft", 1, "target_prob"),
            1.5,
            r"field draft\[1\].target_prob is 1.5: expected float <=",
        ),
        (("draft", 0, "draft_prob"), 0, r"field draft\[0\].draft_prob is 0: expected float > 0"),
        (("draft", 0, "overlap"), float("nan"), r"draft\[0\].overlap is NaN: expected a finite"),
        (("times", "draft"), float("inf"), "field times.draft is Infinity: expected a finite"),
        (("times",), {"draft": 1.0}, "field times: object missing required field verify"),
        (("expected", "token"), None, r"field expected\[...\]: expected float, got null"),
        (("last", "target"), 3, "field last.target is 3: expected object"),
    ],
)
def test_a_field_of_another_type_is_named_at_reading(
    way: tuple[str | int, ...], value: object, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    generate(toy_pair(), path, SETTINGS[0])
    whole = lines(path)
    at = next(i for i, line in enumerate(whole) if line.get("n_accepted") and line["gamma"] == 3)
    held: Any = whole[at]
    for key in way[:-1]:
        held = held[key]
    held[way[-1]] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in whole))
    with pytest.raises(UsageError, match=words) as raised:
        read_traces(path)
    assert str(raised.value).startswith(f"{path}, line {at + 1}: ")


def test_a_trace_nested_without_end_is_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    generate(toy_pair(), path, SETTINGS[0])
    for depth in (40, 100_000):
        deep = "[" * depth + "]" * depth
        text = path.read_text().replace('"labels": {}', f'"labels": {{"x": {deep}}}')
        (tmp_path / "deep.jsonl").write_text(text)
        with pytest.raises(UsageError, match="line 2 is nested more than 32 levels deep"):
            read_traces(tmp_path / "deep.jsonl")


def test_a_filter_that_an_earlier_specx_did_not_have_is_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    generate(toy_pair(), path, Settings(sampling=SamplingParams(top_k=3)))
    text = path.read_text()
    path.write_text(text.replace(', "top_p": 0.9, "min_p": 0.0', ""))
    assert read_trace(path).header.sampling == SamplingParams(top_k=3, top_p=1)
    for old, new, words in (
        ('"temperature": 0.7, ', "", "field sampling: object missing required field temperature"),
        ('"top_p": 0.9', '"top_p": 9', "line 2: top-p is 9.0; it must lie in"),
        ('"top_k": 3', '"top_k": true', "field sampling.top_k is true: expected int, got bool"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(UsageError, match=words):
            read_trace(path)


def test_what_a_later_specx_may_add_to_a_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    generate(toy_pair(), path, SETTINGS[0])
    before = read_trace(path)
    path.write_text("".join(json.dumps({**line, "more": [1]}) + "\n" for line in lines(path)))
    assert read_trace(path) == before


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the trace from .*none.jsonl': no such file"):
        read_traces(tmp_path / "none.jsonl")


def test_a_broken_line_before_the_last_is_an_error(tmp_path: Path) -> None:
    generate(toy_pair(), tmp_path / "a.jsonl", SETTINGS[0])
    data = (tmp_path / "a.jsonl").read_bytes().split(b"\n")
    data[3] = data[3][:50]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(data))
    with pytest.raises(UsageError, match="line 4 is not JSON"):
        read_trace(tmp_path / "a.jsonl")


def test_odd_text_comes_back_as_it_was(tmp_path: Path) -> None:
    path, pair = tmp_path / "a.jsonl", toy_pair()
    odd = "</script>\u2028\x1b[31m \x00 \U0001f600 \u202eabc \r\n \udc80"
    with TraceWriter(path, argv=[odd]) as trace:
        traced(pair, trace, Settings(), 0, prompt=odd)
    found = read_trace(path)
    assert (found.header.prompt, found.start.argv) == (odd, [odd])


TABLE = """
context = 100000000
vocabulary = ["<s>", "</s>", "one", " two", " three", " four"]
bos = "<s>"
eog = ["</s>"]
[[row]]
next = { one = 0.2, " two" = 0.3, " three" = 0.5 }
[[row]]
after = [" two"]
next = { " three" = 0.6, " four" = 0.4 }
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "verifier.toml").write_text(TABLE)
    (tmp_path / "drafter.toml").write_text(TABLE.replace("0.2", "0.4").replace("0.5", "0.3"))
    return str(tmp_path / "verifier.toml")


def command(table: str, *args: str) -> list[str]:
    drafter = table.replace("verifier", "drafter")
    return ["run", "--backend", "toy", "-m", table, "-md", drafter, "-p", "one", *args]


def exit_code(*args: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(args)
    return exit_.value.code


@pytest.mark.parametrize("rule", RULES)
def test_json_and_summary_hold_the_same_numbers(
    rule: str, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    code = exit_code(
        *command(table, "-n", "60", "-s", "1", "--json", "--rule", rule, "--trace", str(path))
    )
    assert code == 0
    shown = json.loads(capsys.readouterr().out)
    trace = read_trace(path)
    for line in lines(path):
        VALIDATOR.validate(line)
    assert trace.summary is not None
    same = {key: value for key, value in asdict(trace.summary).items() if key in shown}
    assert same == {key: shown[key] for key in same}
    assert len(same) == 12
    assert (trace.text, trace.header.settings) == (shown["text"], shown["settings"])
    models = trace.header.provenance["models"]
    assert all(len(models[role]["sha256"]) == 64 for role in ("verifier", "drafter"))


@pytest.mark.parametrize("target", ["missing/a.jsonl", ".", "/dev/full"])
def test_a_target_that_cannot_be_written_is_found_before_anything_is_loaded(
    target: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if target == "/dev/full" and not Path(target).exists():
        pytest.skip("needs /dev/full")
    monkeypatch.setattr(ToyFactory, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert exit_code(*command(table, "--trace", str(tmp_path / target))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "specx: cannot write " in err
    assert str(tmp_path / target) in err


def test_a_run_that_cannot_start_spares_the_earlier_trace(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    earlier = '{"kind": "file"}\n'
    old.write_text(earlier)
    for path in (old, new):
        bad = ["run", "--backend", "toy", "-m", str(tmp_path / "no.toml"), "-p", "one"]
        assert exit_code(*bad, "--trace", str(path)) == 2
    assert old.read_text() == earlier
    assert not new.exists()
    assert exit_code(*command(table, "-n", "4", "--trace", str(old))) == 0
    assert len(read_trace(old).rounds) >= 1
    capsys.readouterr()


def test_an_interrupted_run_still_has_a_summary(
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(_: object, done: Round) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specx.cli.show.Writer.round", interrupted)
    assert exit_code(*command(table, "--trace", str(tmp_path / "a.jsonl"))) == 130
    summary = read_trace(tmp_path / "a.jsonl").summary
    assert summary is not None
    assert (summary.stop_reason, summary.rounds) == ("interrupted", 1)
    capsys.readouterr()


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_killed_run_loses_at_most_the_round_in_progress(table: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    args = command(table, "-n", "90000000", "--trace", str(path))
    with subprocess.Popen(
        [sys.executable, "-m", "specx", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        shown = process.stdout.read(3000)
        process.send_signal(signal.SIGKILL)
        shown += process.stdout.read()
    trace = read_trace(path)
    assert trace.summary is None
    assert trace.text.startswith(shown.decode())
    longest = max(len(piece) for piece in (" three", "one")) * 5
    assert len(trace.text) - len(shown) <= longest  # written to the trace, not yet shown
    assert trace.tally().n_tokens == sum(len(done.emitted) for done in trace.rounds)


def test_the_schema_is_made_of_the_types() -> None:
    assert trace_schema.PATH.read_text(encoding="utf-8") == trace_schema.written()
