"""Results survive their file; a file that is none is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specx.bench import ArmRecord, Results, Run, read_results, results_record, summarise
from specx.codec import to_json
from specx.core.sampling import SamplingParams
from specx.errors import UsageError
from specx.schedule.costs.curve import Curve, Profile
from specx.session.decoding import Times
from specx.session.settings import Settings
from specx.session.tally import Tally

PLAIN = ArmRecord(
    backend="hf", draft_backend="llamacpp", temperature=0.3, top_k=5, top_p=0.9, min_p=0.1,
    gamma=0, rule="-",
).arm()  # fmt: skip
DRAFTED = ArmRecord(**{**PLAIN.record(), "gamma": 2, "rule": "token", "cached": False}).arm()


SETTINGS_OF_0_1_0 = (
    "backend", "draft_backend", "temperature", "top_k", "top_p", "min_p", "gamma", "rule", "cached",
)  # fmt: skip
BENCHMARKS = Path(__file__).parent.parent / "docs" / "benchmarks"


def run(repetition: int, **more: Any) -> Run:
    tally = Tally(rounds=2, n_tokens=3, times=Times(verify=1.25, core=0.125), total=1.5, **more)
    return Run(
        prompt="p|1 \u2028", kind="k", repetition=repetition, seed=2**32 - 1, n_prompt=7,
        prefill_s=0.25, stop_reason="eos", tally=tally,
    )  # fmt: skip


def curve(seconds: tuple[float, ...]) -> Curve:
    return Curve(
        model="hf:m", bytes=9, quantisation=None, threads=2, n_past=8, repeats=3, widths=(1, 3),
        seconds=seconds, low=seconds, high=seconds,
    )  # fmt: skip


def results() -> Results:
    drafted = run(
        0, proposed=4, tested=3, accepted=1, expected={"token": 1.5, "block": 1.75},
        by_position=[[2, 1], [1, 0]], lengths={0: 1, 1: 1}, after_full=1,
    )  # fmt: skip
    return Results(
        n=3,
        runs={PLAIN: [run(0), run(1)], DRAFTED: [drafted]},
        profiles={
            "hf+llamacpp": Profile(verifier=curve((1.0, 2.5)), drafter=curve((0.25, 0.5)), core=0.1)
        },
        timings={"hf+llamacpp": {"verifier": {1: [1.0, 1.5], 3: [2.5]}, "drafter": {1: [0.25]}}},
        provenance={"seeds": [1], "machine": {"cores": 2}},
        warnings=[{"text": "slow", "remedy": "wait"}],
        planned=2,
    )


def record() -> dict[str, Any]:
    """As it comes out of a file."""
    found = results()
    text = json.dumps(results_record(found, summarise(found)))
    whole: dict[str, Any] = json.loads(text)
    return whole


AUTO = ArmRecord(
    **{**PLAIN.record(), "gamma": "auto", "rule": "block", "draft": "model+lookup",
       "draft_temperature": 1.5, "entropy_stop": 0.5, "draft_p_min": 0.25}
).arm()  # fmt: skip


def test_an_arm_holds_the_settings_of_a_run() -> None:
    sampler = SamplingParams(temperature=0.3, top_k=5, top_p=0.9, min_p=0.1)
    assert AUTO.settings == Settings(
        sampling=sampler, gamma="auto", rule="block", draft=("model", "lookup"),
        draft_sampling=replace(sampler, temperature=1.5), entropy_stop=0.5, draft_p_min=0.25,
    )  # fmt: skip
    assert AUTO.baseline() == PLAIN
    assert ArmRecord(**AUTO.record()).arm() == AUTO
    assert (AUTO.needs_model, PLAIN.needs_model) == (True, False)
    lookup = replace(AUTO, settings=replace(AUTO.settings, draft=("lookup",)))
    assert not lookup.needs_model


@pytest.mark.parametrize(
    ("changes", "in_full"),
    [({}, True), ({"gamma": 0}, False), ({"gamma": "auto"}, False), ({"draft": "lookup"}, False),
     ({"entropy_stop": 0.5}, False), ({"draft_p_min": 0.5}, False),
     ({"draft_temperature": 1.0}, True)],
)  # fmt: skip
def test_formulas_are_for_a_fixed_number_of_a_models_tokens(
    changes: dict[str, Any], in_full: bool
) -> None:
    assert ArmRecord(**{**DRAFTED.record(), **changes}).arm().drafts_in_full is in_full


def test_what_0_1_0_did_not_write_has_the_value_that_it_had(tmp_path: Path) -> None:
    whole, path = record(), tmp_path / "a.json"
    for arm in whole["arms"]:
        arm["settings"] = {name: arm["settings"][name] for name in SETTINGS_OF_0_1_0}
        for run in arm["runs"]:
            del run["gammas"], run["text_crc"]
    path.write_text(json.dumps(whole))
    assert read_results(path) == results()


@pytest.mark.parametrize("name", ["gamma-f16", "temperature-q4_k_m", "cache-f16", "kind-f16"])
def test_the_documented_files_are_read(name: str) -> None:
    """specx 0.1.0 wrote them."""
    path = BENCHMARKS / f"{name}.json"
    given = json.loads(path.read_text())
    found = read_results(path)
    assert found.complete
    for arm, summary in zip(given["arms"], summarise(found), strict=True):
        new = {"draft": "model" if arm["settings"]["gamma"] else None}
        old = {name: summary["settings"][name] for name in (*SETTINGS_OF_0_1_0, *new)}
        assert old == {**arm["settings"], **new}
        assert summary["tok_s"] == arm["tok_s"]


def test_all_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(record()))
    found = read_results(path)
    assert found == results()
    assert json.loads(json.dumps(results_record(found, summarise(found)))) == record()


def test_new_kinds_of_arms_come_back_too(tmp_path: Path) -> None:
    found, path = results(), tmp_path / "a.json"
    found.runs[AUTO] = [replace(run(0), gammas={"lookup": {0: 3, 7: 1}}, text_crc=2**32 - 1)]
    path.write_text(json.dumps(results_record(found, summarise(found))))
    assert read_results(path) == found


def test_an_unfinished_sweep_comes_back_as_one() -> None:
    assert record()["complete"] is False
    assert [arm["n_runs"] for arm in record()["arms"]] == [2, 1]


def test_a_run_is_counted_once_under_its_key() -> None:
    found = results()
    again = run(1, after_full=9)
    found.add(PLAIN, again)
    assert [each.repetition for each in found.runs[PLAIN]] == [0, 1]
    assert found.runs[PLAIN][-1] is again


Damage = Callable[[dict[str, Any]], None]


def _set(*way: str | int, value: Any) -> Damage:
    def damage(whole: Any) -> None:
        for key in way[:-1]:
            whole = whole[key]
        whole[way[-1]] = value

    return damage


def _without(*way: str | int) -> Damage:
    def damage(whole: Any) -> None:
        for key in way[:-1]:
            whole = whole[key]
        del whole[way[-1]]

    return damage


RUN: tuple[str | int, ...] = ("arms", 1, "runs", 0)
KEYS = ("n", "planned", "arms", "profiles", "timings", "provenance", "warnings")
COUNTS = ("rounds", "proposed", "tested", "accepted", "after_full", "n_tokens", "total")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        *((_without(key), f"missing required field {key}") for key in KEYS),
        *((_without(*RUN, "tally", key), key) for key in (*COUNTS, "times", "by_position")),
        (_without(*RUN, "seed"), "seed"),
        (_without("arms", 0, "settings"), "settings"),
        (_without("arms", 0, "settings", "gamma"), "gamma"),
        (_without("arms", 0, "settings", "rule"), "rule"),
        (_without("arms", 0, "runs"), "runs"),
        (_set("arms", value=3), "field arms is 3: expected array, got int"),
        (
            _set("arms", 0, "settings", "top_p", value="x"),
            r"settings.top_p is \"x\": expected float",
        ),
        (_set("arms", 0, "settings", "top_p", value=2), "top-p is 2.0; it must lie in"),
        (_set("arms", 0, "settings", "cached", value=0), "settings.cached is 0: expected bool"),
        (_set("arms", 0, "settings", "gamma", value=2**32), "gamma is 4294967296: expected int <="),
        (_set("arms", 0, "settings", value=DRAFTED.record()), "an earlier arm has the same"),
        (_set("arms", 1, "settings", "gamma", value="often"), r"settings.gamma is \"often\": "),
        (_set("arms", 1, "settings", "rule", value="lucky"), "settings: unknown rule 'lucky'"),
        (_set("arms", 1, "settings", "draft", value="guess"), "settings: draft is 'guess'; give"),
        (_set("arms", 1, "settings", "draft", value="model+lookup"), "a fixed gamma takes one"),
        (_set("arms", 1, "settings", "draft_top_p", value=2), "the drafter's top-p is 2"),
        (_set("arms", 1, "settings", "draft_p_min", value=2), "draft_p_min is 2: expected float"),
        (_set(*RUN, "gammas", value={"model": {"x": 1}}), r"gammas.*\(of a key\)"),
        (_set(*RUN, "gammas", value={"model": {"1": -1}}), "gammas.*expected int >= 0"),
        (_set(*RUN, "text_crc", value=True), "text_crc is true: expected int"),
        (_set(*RUN, "tally", "rounds", value="x"), r"tally.rounds is \"x\": expected int, got str"),
        (_set(*RUN, "tally", "rounds", value=True), "tally.rounds is true: expected int, got bool"),
        (_set(*RUN, "tally", "rounds", value=-1), "tally.rounds is -1: expected int >= 0"),
        (_set(*RUN, "tally", "rounds", value=0), "tally.rounds: 0, but 4 tokens were proposed"),
        (_set(*RUN, "tally", "accepted", value=9), "tally.accepted: 9 of 3"),
        (_set(*RUN, "tally", "tested", value=9), "tally.tested: 9 of 4"),
        (_set(*RUN, "tally", "times", value={"draft": 1}), "times: .* field verify"),
        (_set(*RUN, "tally", "by_position", value=[[1]]), r"by_position\[0\]: expected array of"),
        (_set(*RUN, "tally", "by_position", value=[[0, 0]]), r"by_position\[0\]: 0 of 0 accepted"),
        (_set(*RUN, "tally", "lengths", value={"x": 1}), r"tally.lengths: .*\(of a key\)"),
        (_set(*RUN, "tally", "expected", value=None), "tally.expected is null: expected object"),
        (_set(*RUN, "prefill_s", value=float("inf")), "prefill_s is Infinity: expected a finite"),
        (_set(*RUN, "tally", "total", value=float("nan")), "tally.total is NaN: expected a finite"),
        (_set("planned", value=None), "planned is null: expected int"),
        (
            _set("profiles", "hf+llamacpp", "core", value=-1),
            r"profiles\[...\].core: expected float",
        ),
        (_set("profiles", "hf+llamacpp", "verifier", "low", value=[1]), "profile .* verifier.low"),
        (_set("timings", "hf+llamacpp", "verifier", value={"one": [1]}), "field timings.*of a key"),
        (_set("provenance", value=3), "field provenance is 3: expected object"),
        (_set("provenance", "peak_memory_mib", value="much"), "peak_memory_mib"),
        (_set("warnings", value=[{"text": "x"}]), "field remedy"),
        (_set("warnings", value="x"), "field warnings"),
    ],
)
def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path, damage: Damage, words: str) -> None:
    whole, path = record(), tmp_path / "a.json"
    damage(whole)
    path.write_text(json.dumps(whole))
    with pytest.raises(UsageError, match=words) as raised:
        read_results(path)
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).endswith("; specx bench -o FILE.json writes a result")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("way", [(), ("arms", 0), ("arms", 0, "settings"), RUN, (*RUN, "tally")])
def test_what_a_later_specx_may_add_is_passed_over(
    tmp_path: Path, way: tuple[str | int, ...]
) -> None:
    whole, path = record(), tmp_path / "a.json"
    _set(*way, "more", value=[1])(whole)
    path.write_text(json.dumps(whole))
    assert read_results(path) == results()


def test_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**record(), "specx_bench": 2}))
    with pytest.raises(UsageError, match="has format 2; this specx reads 1"):
        read_results(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is not JSON"), (b"{", "is not JSON"), (b"\xff", "is not UTF-8"),
     (b"[" * 100_000, "nested more than 32 levels"), (b"[]", "is not a result"),
     (b"3", "is not a result"), (b"9" * 5000, "holds a number that is too long"),
     (b'{"specx_profile": 1}', "is not a result")],
)  # fmt: skip
def test_what_is_no_result_is_refused_in_a_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=words) as raised:
        read_results(tmp_path / "a.json")
    assert "\n" not in str(raised.value)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match=f"cannot read the results from .{path}.: "):
            read_results(path)


def test_a_run_that_wrote_nothing_has_no_speed_on_its_kind_of_prompts() -> None:
    found = results()
    empty = run(2)
    empty.tally.n_tokens = 0
    found.add(PLAIN, empty)
    plain = summarise(found)[0]
    assert plain["by_kind"]["k"]["tok_s"] == plain["tok_s"] == 2.0
    found.runs[PLAIN] = [empty]
    assert summarise(found)[0]["by_kind"]["k"]["tok_s"] is None


def test_json_holds_null_for_what_is_not_finite() -> None:
    text = to_json({"a": [1.5, float("inf")], "b": (float("nan"), "é")})
    assert text == '{"a": [1.5, null], "b": [null, "é"]}'
