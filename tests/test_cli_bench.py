"""`specx bench` over toy tables: figures, files, interruption, resumption, and bad input."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import sys
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from inprocess import specx

from specx.bench.sweep import Bench
from specx.cli import main
from specx.errors import BackendError
from specx.runtime.backend import LoadOptions, get_backend
from specx.schedule.costs.curve import read_profile

MS = 1 / 1024
VERIFIER = """
vocabulary = ["<s>", "a", "b", "c"]
bos = "<s>"
[cost]
forward = [0.015625, 0.0166015625, 0.017578125, 0.0185546875, 0.01953125]  # 16 to 20 / 1024
[[row]]
next = { a = 1.0 }
[[row]]
after = ["a"]
next = { b = 1.0 }
[[row]]
after = ["b"]
next = { c = 1.0 }
[[row]]
after = ["c"]
next = { a = 1.0 }
"""
"""Always writes abcabc..."""
DRAFTER = VERIFIER.replace(
    "[0.015625, 0.0166015625, 0.017578125, 0.0185546875, 0.01953125]  # 16 to 20",
    "[0.001953125, 0.0029296875]  # 2 and 3",
).replace('after = ["c"]\nnext = { a = 1.0 }', 'after = ["c"]\nnext = { b = 1.0 }')
"""Is wrong after c, so that of four proposals after an a two are kept and the third is not."""
PROMPTS = [("p1", "short", "a"), ("p2", "short", "bca"), ("p3", "long", "cabcabca")]
MEASURE = ["--gamma", "4", "-n", "30", "-r", "1"]
LINES = 3


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """Options that name two tables and three prompts."""
    for name, text in (("v.toml", VERIFIER), ("d.toml", DRAFTER)):
        (tmp_path / name).write_text(text)
    lines = [json.dumps({"id": i, "kind": kind, "prompt": text}) for i, kind, text in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    files = [str(tmp_path / name) for name in ("v.toml", "d.toml", "prompts.jsonl")]
    return ["--backend", "toy", "-m", files[0], "-md", files[1], "-f", files[2]]


def bench(*args: str) -> int:
    """The exit code of the command, run within this process."""
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *args])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


Output = pytest.CaptureFixture[str]


def measured(capsys: Output, *args: str, code: int = 0) -> dict[str, Any]:
    """The object that --json prints, and nothing else on stdout."""
    assert bench(*args, "--json") == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    whole: dict[str, Any] = json.loads(out)
    return whole


def assert_one_line(capsys: Output, *words: str) -> None:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("specx: ")
    assert found.err.count("\n") == 1, found.err
    for word in words:
        assert word in found.err


def forbid_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, a test that loads a model fails."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    for module in ("bench", "curve"):
        monkeypatch.setattr(import_module(f"specx.cli.{module}"), "load_pair", load)


@pytest.fixture
def unloadable(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_loading(monkeypatch)


def interrupt(
    monkeypatch: pytest.MonkeyPatch, *, after: int, error: BaseException | None = None
) -> None:
    """Raise in the middle of a sweep, once `after` generations are done; by default as Ctrl-C."""
    original, done = Bench.run, [0]

    def run(self: Bench, *args: Any, **more: Any) -> Any:
        if done[0] == after:
            raise error or KeyboardInterrupt
        done[0] += 1
        return original(self, *args, **more)

    monkeypatch.setattr(Bench, "run", run)


WARM_UPS = 2


# What is measured


def test_json_holds_the_figures_that_follow_from_the_tables(
    pair: list[str], capsys: Output
) -> None:
    """As computed by hand in test_bench_sweep.py: 10 rounds, of which the last is shorter."""
    whole = measured(capsys, *pair, *MEASURE)
    plain, drafted = whole["arms"]
    assert whole["complete"] is True
    assert (plain["tok_s"], plain["speedup"], plain["alpha"], plain["tau"]) == (64, None, None, 1)
    seconds = (9 * (4 * 2 + 20) + (2 * 2 + 18)) * MS
    assert drafted["tok_s"] == 30 / seconds
    assert drafted["speedup"] == pytest.approx(480 / 274)
    assert drafted["speedup_low"] == drafted["speedup_high"] == drafted["speedup"]
    assert (drafted["alpha"], drafted["kept"], drafted["tau"]) == (20 / 29, 20 / 38, 3)
    assert drafted["alpha_by_position"] == [1, 1, 0]
    assert drafted["predicted"] == pytest.approx(3 * 16 / 28)
    alpha = 20 / 29
    assert drafted["predicted_textbook"] == pytest.approx((1 - alpha**5) / ((1 - alpha) * 1.5))
    assert set(drafted["time"]) == {"draft", "verify", "rollback", "core", "other", "total"}
    assert drafted["time"]["total"] == pytest.approx(3 * seconds)
    assert drafted["settings"] == {
        "backend": "toy", "draft_backend": "toy", "temperature": 0.7, "top_k": 0, "top_p": 0.9,
        "min_p": 0.0, "gamma": 4, "rule": "block", "cached": True, "draft": "model",
        "draft_temperature": None, "draft_top_k": None, "draft_top_p": None, "draft_min_p": None,
        "entropy_stop": None, "draft_p_min": None,
    }  # fmt: skip
    assert [run["prompt"] for run in drafted["runs"]] == ["p1", "p2", "p3"]
    assert set(drafted["by_kind"]) == {"short", "long"}


def test_json_says_what_ran_on_what(
    pair: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["specx", "bench", *pair, "-s", "5"])
    whole = measured(capsys, *pair, *MEASURE, "-s", "5")
    about = whole["provenance"]
    assert set(about["versions"]) == {"specx", "python", "numpy"}
    assert set(about["backends"]) == {"toy"}
    assert about["sweep"]["seed"] == 5
    assert about["argv"][:5] == ["bench", "--backend", "toy", "-m", "v.toml"]
    assert about["peak_memory_mib"] > 0
    assert {run["seed"] for run in whole["arms"][0]["runs"]} == {
        run["seed"] for run in whole["arms"][1]["runs"]}  # fmt: skip
    models = list(about["models"].values())
    for model, path in zip(models, (pair[3], pair[5]), strict=True):
        assert model["sha256"] == hashlib.sha256(Path(path).read_bytes()).hexdigest()
        assert (model["file"], model["quantisation"]) == (Path(path).name, None)
        assert model["devices"] == ["virtual"]


def test_a_terminal_gets_tables_and_standard_error_the_warnings(pair: list[str]) -> None:
    done = specx("bench", *pair, *MEASURE)
    assert done.returncode == 0
    speeds, rates, kinds, last = done.stdout.strip().split("\n\n")
    assert speeds.splitlines()[2].split() == [
        "gamma", "4", "112.12", "1.75x", "1.75", "to", "1.75", "1.71x", "1.81x"]  # fmt: skip
    assert rates.splitlines()[2].split()[2:5] == ["0.69", "0.53", "3.00"]
    assert [line.split()[0] for line in kinds.splitlines()] == [
        "kind", "short", "short", "long", "long"]  # fmt: skip
    assert last.startswith("peak memory: ")
    assert last.endswith(" MiB, model files included")
    assert done.stderr.startswith(
        "warning: 3 prompts: too few for an interval, so ranges are shown instead\n"
    )
    assert "  remedy: measure 5 prompts or more" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_sweep_has_an_arm_for_each_setting(pair: list[str], capsys: Output) -> None:
    sweep = ["--gamma", "2-4+2", "--temp", "0,0.5", "--top-p", "0.8,1", "--rule", "token,match"]
    whole = measured(capsys, *pair, *sweep, "-n", "4", "-r", "1")
    settings = [arm["settings"] for arm in whole["arms"]]
    found = [(s["temperature"], s["top_p"], s["gamma"], s["rule"]) for s in settings]
    assert found == [
        (temperature, top_p, gamma, rule)
        for temperature in (0, 0.5)
        for top_p in (0.8, 1)
        for gamma, rule in [
            (0, "-"),
            *((g, r) for g in (2, 4) for r in (["token", "match"] if temperature else ["greedy"])),
        ]
    ]


GRID = ["--gamma", "0,4,auto", "--draft", "model,lookup"]


def test_gammas_and_drafters_are_one_table_against_one_baseline(
    pair: list[str], capsys: Output
) -> None:
    whole = measured(capsys, *pair, *GRID, "-n", "60", "-r", "1")
    arms = whole["arms"]
    assert [(arm["settings"]["draft"], arm["settings"]["gamma"]) for arm in arms] == [
        (None, 0), ("model", 4), ("model", "auto"), ("lookup", 4), ("lookup", "auto")]  # fmt: skip
    assert {arm["n_runs"] for arm in arms} == {3}
    assert all(arm["speedup"] for arm in arms[1:])
    predicted = [arm["settings"]["draft"] for arm in arms if arm["predicted"] is not None]
    assert predicted == ["model"]  # of gamma 4
    assert bench(*pair, *GRID, "-n", "60", "-r", "1") == 0
    speeds, rates, *_ = capsys.readouterr().out.split("\n\n")
    labels = [
        "verifier alone", "gamma 4 model", "gamma auto model", "gamma 4 lookup",
        "gamma auto lookup",
    ]  # fmt: skip
    for table in (speeds, rates):
        assert [line[: len(labels[2])].strip() for line in table.splitlines()[1:]] == [
            label[: len(labels[2])] for label in labels
        ]


def test_a_combination_is_an_arm_of_auto_alone(pair: list[str], capsys: Output) -> None:
    whole = measured(
        capsys, *pair, "--gamma", "2,auto", "--draft", "model,model+lookup", "-n", "30", "-r", "1"
    )
    arms = [(arm["settings"]["draft"], arm["settings"]["gamma"]) for arm in whole["arms"]]
    assert arms == [(None, 0), ("model", 2), ("model", "auto"), ("model+lookup", "auto")]


@pytest.mark.parametrize("gamma", ["0", "auto", "4,auto"])
def test_a_verifier_alone_is_measured_with_lookup(
    pair: list[str], capsys: Output, gamma: str
) -> None:
    alone = [*pair[:4], *pair[6:]]
    whole = measured(capsys, *alone, "--gamma", gamma, "--draft", "lookup", "-n", "9", "-r", "1")
    assert len(whole["arms"]) == 1 + len([each for each in gamma.split(",") if each != "0"])
    assert list(whole["provenance"]["models"]) == ["toy:v.toml (verifier)"]


def test_the_demo_pairs_drafter_is_not_loaded_for_lookup(capsys: Output) -> None:
    pytest.importorskip("llama_cpp")
    words = ["-p", "def f(", "--gamma", "auto", "--draft", "lookup", "-n", "4", "-r", "1"]
    whole = measured(capsys, *words)
    (name,) = whole["provenance"]["models"]
    assert name.endswith("(verifier)")


def test_the_drafters_own_sampler_and_early_stops_are_settings_of_an_arm(
    pair: list[str], capsys: Output
) -> None:
    own = ["--draft-temp", "1.5", "--entropy-stop", "0.5", "--draft-p-min", "0.25"]
    plain, drafted = measured(capsys, *pair, *MEASURE, *own)["arms"]
    told = {name: value for name, value in drafted["settings"].items() if name[:5] in NEW}
    assert told == {
        "draft": "model", "draft_backend": "toy", "draft_temperature": 1.5, "draft_top_k": 0,
        "draft_top_p": 0.9, "draft_min_p": 0.0, "entropy_stop": 0.5, "draft_p_min": 0.25,
    }  # fmt: skip
    assert {plain["settings"][name] for name in told if name != "draft_backend"} == {None}
    assert drafted["predicted"] is None  # drafts end early


NEW = ("draft", "entro")


def test_prompts_are_typed_as_for_a_run(pair: list[str], capsys: Output) -> None:
    """A mark before a text and the line ends of an editor are not the prompt's."""
    words = ["-p", "\ufeffab", "-p", "cab", "-n", "6", "-r", "1"]
    whole = measured(capsys, *pair[:6], *words)
    runs = whole["arms"][0]["runs"]
    assert [(run["prompt"], run["kind"], run["n_prompt"]) for run in runs] == [
        ("own-1", "own", 3), ("own-2", "own", 4)]  # fmt: skip
    texts = [f"own-{i} {zlib.crc32(text):08x}" for i, text in ((1, b"ab"), (2, b"cab"))]
    assert whole["provenance"]["sweep"]["prompts"] == texts


def test_a_profile_is_what_auto_begins_with(
    pair: list[str], tmp_path: Path, capsys: Output
) -> None:
    profile = str(tmp_path / "c.json")
    assert bench(*pair, *CURVE, "-o", profile) == 0
    capsys.readouterr()
    sweep = [*pair, "--gamma", "auto", "-n", "60", "-r", "1"]
    cold, warm = measured(capsys, *sweep), measured(capsys, *sweep, "--profile", profile)
    assert warm["provenance"]["sweep"]["profile"] == "c.json"
    gammas = [[run["gammas"] for run in whole["arms"][1]["runs"]] for whole in (cold, warm)]
    assert gammas[0] != gammas[1]
    assert bench(*sweep, "--profile", profile, "-md", pair[3]) == 2
    assert_one_line(capsys, "the drafter of profile", "c.json is toy:d.toml, this run's is toy:v")


@pytest.mark.parametrize(("gamma", "widest"), [("2,6", 7), ("0,auto", 33), ("40,auto", 41)])
def test_a_context_has_room_for_the_widest_pass(
    pair: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch, gamma: str, widest: int
) -> None:
    needed: list[int] = []

    def load(sides: Any, need_ctx: Any, **_: Any) -> None:
        needed.append(need_ctx(get_backend("toy").load(pair[3], LoadOptions()).tokenizer))
        raise BackendError("enough")

    monkeypatch.setattr(import_module("specx.cli.bench"), "load_pair", load)
    assert bench(*pair, "--gamma", gamma, "-n", "30") == 2
    assert_one_line(capsys, "enough")
    assert needed == [1 + len("cabcabca") + 30 + widest]  # <s> before the longest prompt


def test_no_figure_is_infinite(pair: list[str], capsys: Output) -> None:
    assert bench(*pair, *GRID, "-n", "6", "-r", "1", "--json") == 0

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_caches_are_compared_in_one_sweep(pair: list[str], capsys: Output) -> None:
    whole = measured(capsys, *pair, *MEASURE, "--cache", "--no-cache")
    plain, cached, uncached = whole["arms"]
    assert [arm["settings"]["cached"] for arm in whole["arms"]] == [True, True, False]
    assert uncached["tok_s"] < cached["tok_s"]
    assert uncached["speedup"] == pytest.approx(uncached["tok_s"] / plain["tok_s"], rel=0.2)
    assert (uncached["alpha"], uncached["predicted"]) == (cached["alpha"], None)


def test_without_cache_alone_leaves_the_cached_arm_out(pair: list[str], capsys: Output) -> None:
    whole = measured(capsys, *pair, *MEASURE, "--no-cache")
    assert [(arm["settings"]["gamma"], arm["settings"]["cached"]) for arm in whole["arms"]] == [
        (0, True), (4, False)]  # fmt: skip


@pytest.mark.parametrize("rollback", ["native", "none"])
def test_a_verifier_is_measured_alone(pair: list[str], capsys: Output, rollback: str) -> None:
    Path(pair[3]).write_text(f'rollback = "{rollback}"\n{VERIFIER}')
    whole = measured(capsys, *pair[:4], *pair[6:], "-n", "30", "-r", "1")
    (plain,) = whole["arms"]
    assert (plain["tok_s"], plain["speedup"]) == (64, None)
    assert list(whole["provenance"]["models"]) == ["toy:v.toml (verifier)"]
    assert list(whole["profiles"]) == (["toy"] if rollback == "native" else [])


def test_two_runtimes_in_one_sweep(demo_verifier: Path, demo_drafter: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "p.jsonl").write_text('{"prompt": "import os"}')
    models = ["-m", str(demo_verifier), "-md", str(demo_drafter), "-f", str(tmp_path / "p.jsonl")]
    measure = ["--gamma", "2", "--temp", "0", "-n", "8", "-r", "1", "-t", "1", "--json"]
    done = specx("bench", "--backend", "llamacpp,hf", *models, *measure)
    assert done.returncode == 0, done.stderr
    whole = json.loads(done.stdout)
    arms = [(arm["settings"]["backend"], arm["settings"]["gamma"]) for arm in whole["arms"]]
    assert arms == [("llamacpp", 0), ("llamacpp", 2), ("hf", 0), ("hf", 2)]
    assert all(arm["n_tokens"] == 8 and arm["tok_s"] > 0 for arm in whole["arms"])
    for place in (1, 3):
        assert all(whole["arms"][place][key] is not None for key in ("speedup", "predicted"))
    assert list(whole["profiles"]) == ["llamacpp", "hf"]
    assert list(whole["provenance"]["backends"]) == ["llamacpp", "hf"]
    assert len(whole["provenance"]["models"]) == 4


# Files


def test_every_ending_writes_its_form(pair: list[str], tmp_path: Path, capsys: Output) -> None:
    for ending in (".json", ".jsonl", ".csv", ".md"):
        assert bench(*pair, *MEASURE, "-o", str(tmp_path / f"a{ending}")) == 0
        assert capsys.readouterr().err.endswith(f"written to {tmp_path / f'a{ending}'}\n")
    texts = {path.suffix: path.read_text() for path in tmp_path.glob("a.*")}
    rate = 30 / (274 * MS)
    assert json.loads(texts[".json"])["arms"][1]["tok_s"] == rate
    assert json.loads(texts[".jsonl"].splitlines()[1])["tok_s"] == rate
    assert [line["tok_s"] for line in csv.DictReader(texts[".csv"].splitlines())] == [
        "64.0", str(rate)]  # fmt: skip
    assert f"| gamma 4 | {rate:.2f} | 1.75x |" in texts[".md"]


@pytest.mark.parametrize("curve", [[], ["--curve"]])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("a.txt", ["has no supported extension", ".json"]),
        ("a", ["has no supported extension"]),
        ("no/such/a.json", ["cannot write -o", "No such file", "choose another path"]),
        ("folder.json", ["cannot write -o", "it is a directory"]),
        ("full.json", ["cannot write -o", "not a regular file"]),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_loaded(
    pair: list[str], tmp_path: Path, capsys: Output, unloadable: None, curve: list[str],
    place: str, words: list[str],
) -> None:  # fmt: skip
    if place == "full.json":
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        (tmp_path / place).symlink_to("/dev/full")
    (tmp_path / "folder.json").mkdir()
    assert bench(*pair, *curve, "-o", str(tmp_path / place)) == 2
    assert_one_line(capsys, *words)


def test_a_curve_is_written_as_json_only(
    pair: list[str], tmp_path: Path, capsys: Output, unloadable: None
) -> None:
    assert bench(*pair, "--curve", "-o", str(tmp_path / "a.md")) == 2
    assert_one_line(capsys, "a.md has no supported extension; use one of .json")


def full_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """The disk fills up once so many files were written, the trial included."""
    original, left = os.fsync, [writes]

    def fsync(handle: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_is_found_before_anything_is_loaded(
    pair: list[str], tmp_path: Path, capsys: Output, unloadable: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    full_after(monkeypatch, 0)
    assert bench(*pair, "-o", str(tmp_path / "a.json")) == 2
    assert_one_line(capsys, "a.json: No space left on device")


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_disk_that_fills_up_costs_nothing_that_was_measured(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch,
    as_json: list[str],
) -> None:  # fmt: skip
    """The trial and the first prompt still fit."""
    full_after(monkeypatch, 2)
    assert bench(*pair, *MEASURE, "-o", str(tmp_path / "a.json"), *as_json) == 2
    found = capsys.readouterr()
    assert found.err.splitlines()[-1].startswith("specx: cannot write -o")
    assert "Traceback" not in found.err
    if as_json:
        assert [arm["n_runs"] for arm in json.loads(found.out)["arms"]] == [2, 2]
    else:
        assert "112.12" in found.out
        assert f"incomplete: 2 of {LINES} runs of each arm" in found.out
    kept = json.loads((tmp_path / "a.json").read_text())
    assert [arm["n_runs"] for arm in kept["arms"]] == [1, 1]


@pytest.mark.parametrize("ending", [".md", ".csv", ".jsonl", ".json"])
def test_a_disk_that_is_full_at_the_end_leaves_the_tables_on_the_screen(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    full_after(monkeypatch, 1 + (LINES if ending == ".json" else 0))
    assert bench(*pair, *MEASURE, "-o", str(tmp_path / f"a{ending}")) == 2
    found = capsys.readouterr()
    assert "112.12" in found.out
    assert "incomplete" not in found.out
    assert "No space left" in found.err.splitlines()[-1]


def test_a_model_that_fails_later_on_costs_nothing_that_was_measured(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, after=WARM_UPS + 2, error=BackendError("the device is gone"))
    assert bench(*pair, *MEASURE, "-o", str(tmp_path / "a.csv")) == 2
    found = capsys.readouterr()
    assert f"incomplete: 1 of {LINES} runs of each arm" in found.out
    assert found.err.splitlines()[-1] == "specx: the device is gone"
    assert (tmp_path / "a.csv").read_text().count("\n") == 3


def test_a_model_that_fails_at_once_gets_one_line(
    pair: list[str], tmp_path: Path, capsys: Output
) -> None:
    Path(pair[3]).write_text(VERIFIER.replace("next = { b = 1.0 }", "next = { b = nan }"))
    assert bench(*pair, *MEASURE, "-o", str(tmp_path / "a.csv")) == 2
    assert_one_line(capsys, "v.toml", "nan")
    assert not (tmp_path / "a.csv").exists()


# Interruption and resumption


def test_ctrl_c_prints_the_complete_arms(
    pair: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, after=WARM_UPS + 2 * 2 + 1)
    assert bench(*pair, *MEASURE) == 130
    out = capsys.readouterr().out
    assert "112.12" in out
    assert f"incomplete: 2 of {LINES} runs of each arm" in out


@pytest.mark.parametrize(("after", "n_runs"), [(WARM_UPS + 2 * 2 + 1, 2), (0, 0)])
def test_ctrl_c_leaves_one_json_object(
    pair: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch, after: int, n_runs: int
) -> None:
    interrupt(monkeypatch, after=after)
    whole = measured(capsys, *pair, *MEASURE, code=130)
    assert whole["complete"] is False
    assert [arm["n_runs"] for arm in whole["arms"]] == [n_runs] * 2


def test_ctrl_c_before_the_first_prompt_is_done_says_so(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, after=WARM_UPS + 1)
    assert bench(*pair, *MEASURE, "-o", str(tmp_path / "a.md")) == 130
    assert_one_line(capsys, "interrupted before every arm had run once")
    assert not (tmp_path / "a.md").exists()


def test_an_interrupted_sweep_is_resumed_to_the_same_end(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["-o", str(tmp_path / "a.json")]
    whole = measured(capsys, *pair, *MEASURE)
    with monkeypatch.context() as patch:
        interrupt(patch, after=WARM_UPS + 3)
        assert bench(*pair, *MEASURE, *file, "--resume") == 130
    kept = json.loads((tmp_path / "a.json").read_text())
    assert [arm["n_runs"] for arm in kept["arms"]] == [1, 1]
    capsys.readouterr()
    resumed = measured(capsys, *pair, *MEASURE, *file, "--resume")
    assert resumed["arms"] == whole["arms"]
    assert resumed["complete"] is True
    assert json.loads((tmp_path / "a.json").read_text()) == resumed


def test_a_complete_sweep_is_shown_without_loading(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["-o", str(tmp_path / "a.json")]
    whole = measured(capsys, *pair, *MEASURE, *file)
    forbid_loading(monkeypatch)
    again = measured(capsys, *pair, *MEASURE, *file, "--resume")
    assert (again["arms"], again["profiles"]) == (whole["arms"], whole["profiles"])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["-n", "31"], "n: 30, now 31"),
        (["-r", "2"], "repetitions: 1, now 2"),
        (["-s", "1"], "seed: 0, now 1"),
        (["--gamma", "4,8"], "arms: none, now toy toy 0.7 0 0.9 0.0 8 block True"),
        (["--temp", "0.5"], "arms: toy toy 0.7"),
        (["--gamma", "4,auto"], "arms: none, now toy toy 0.7 0 0.9 0.0 auto block True)"),
        (["--draft", "lookup,model"], "now toy toy 0.7 0 0.9 0.0 4 block True draft=lookup)"),
        (["--draft-p-min", "0.5"], "now toy toy 0.7 0 0.9 0.0 4 block True draft_p_min=0.5)"),
        (["--raw"], "raw: False, now True"),
        (["--ignore-eos"], "ignore_eos: False, now True"),
        (["-c", "100"], "options: {}, now {'n_ctx': 100}"),
    ],
)
def test_a_sweep_is_not_resumed_with_other_options(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch,
    options: list[str], key: str,
) -> None:  # fmt: skip
    file = ["-o", str(tmp_path / "a.json")]
    assert bench(*pair, *MEASURE, *file) == 0
    before = (tmp_path / "a.json").read_text()
    forbid_loading(monkeypatch)
    capsys.readouterr()
    assert bench(*pair, *MEASURE, *options, *file, "--resume") == 2
    assert_one_line(capsys, "a.json holds another sweep", key, "choose another -o")
    assert (tmp_path / "a.json").read_text() == before


def test_a_sweep_of_0_1_0_is_resumed(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    file = ["-o", str(path), "--resume"]
    assert bench(*pair, *MEASURE, *file) == 0
    whole = json.loads(path.read_text())
    assert whole["provenance"]["sweep"]["arms"] == [
        "toy toy 0.7 0 0.9 0.0 0 - True", "toy toy 0.7 0 0.9 0.0 4 block True"]  # fmt: skip
    for arm in whole["arms"]:
        for name in [*list(arm["settings"])[9:]]:
            del arm["settings"][name]
        for run in arm["runs"]:
            del run["gammas"], run["text_crc"]
    path.write_text(json.dumps(whole))
    forbid_loading(monkeypatch)
    capsys.readouterr()
    again = measured(capsys, *pair, *MEASURE, *file)
    assert [arm["tok_s"] for arm in again["arms"]] == [arm["tok_s"] for arm in whole["arms"]]
    assert again["arms"][1]["settings"]["draft"] == "model"


def test_a_grid_is_resumed_as_it_is(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["-o", str(tmp_path / "a.json"), "--resume"]
    sweep = [*pair, *GRID, "--draft-temp", "1", "-n", "12", "-r", "1"]
    whole = measured(capsys, *sweep, *file)
    forbid_loading(monkeypatch)
    assert measured(capsys, *sweep, *file)["arms"] == whole["arms"]
    assert bench("--load", str(tmp_path / "a.json")) == 0
    assert "gamma auto lookup" in capsys.readouterr().out


def test_a_sweep_is_not_resumed_with_other_models_or_prompts(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["-o", str(tmp_path / "a.json"), "--resume"]
    assert bench(*pair, *MEASURE, *file) == 0
    forbid_loading(monkeypatch)
    capsys.readouterr()
    assert bench(*pair, *MEASURE, *file, "-md", pair[3]) == 2
    assert_one_line(capsys, "model_draft: d.toml, now v.toml")
    Path(pair[7]).write_text(Path(pair[7]).read_text().replace('"bca"', '"cab"'))
    assert bench(*pair, *MEASURE, *file) == 2
    assert_one_line(capsys, "prompts: p2 ")


@pytest.mark.parametrize("args", [[], ["-o", "a.md"], ["--curve", "-o", "a.json"]])
def test_only_a_sweeps_file_is_resumed(
    pair: list[str], capsys: Output, unloadable: None, args: list[str]
) -> None:
    assert bench(*pair, "--resume", *args) == 2
    assert_one_line(capsys, "--resume continues a sweep's file; add -o FILE.json")


def test_what_is_no_result_is_not_resumed(
    pair: list[str], tmp_path: Path, capsys: Output, unloadable: None
) -> None:
    (tmp_path / "a.json").write_text("[]")
    assert bench(*pair, "--resume", "-o", str(tmp_path / "a.json")) == 2
    assert_one_line(capsys, "a.json is not a result of specx bench")
    assert (tmp_path / "a.json").read_text() == "[]"


# Earlier files


@pytest.fixture
def two_files(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """Files of two sweeps; a pass of the second's verifier takes twice as long."""
    monkeypatch.chdir(tmp_path)  # short names, as a user's
    files = "a.json", "[b].json"
    assert bench(*pair, *MEASURE, "-o", files[0]) == 0
    costs = "[0.03125, 0.033203125, 0.03515625, 0.037109375, 0.0390625]"
    Path(pair[3]).write_text(
        VERIFIER.replace(VERIFIER.split("forward = ")[1].split("  #")[0], costs)
    )
    assert bench(*pair, *MEASURE, "-o", files[1]) == 0
    capsys.readouterr()
    forbid_loading(monkeypatch)
    return files


def test_an_earlier_file_is_shown_as_it_was(two_files: tuple[str, str], capsys: Output) -> None:
    assert bench("--load", two_files[0]) == 0
    found = capsys.readouterr()
    assert found.out.startswith("a.json\n\narm ")
    for words in ("112.12", "1.75x", "peak memory: "):
        assert words in found.out
    assert "last / first" not in found.out
    assert "warning: 3 prompts" in found.err


@pytest.mark.parametrize("flags", [["--load", "--load"], ["--load"]])
def test_earlier_files_are_compared(
    two_files: tuple[str, str], capsys: Output, flags: list[str]
) -> None:
    args = [flags[0], two_files[0], *flags[1:], two_files[1]]
    assert bench(*args) == 0
    out = capsys.readouterr().out
    table, note = out.split("\n\n")[-2:]
    header, *rows = table.splitlines()
    assert header.split()[-7:] == ["a.json", "tok/s", "[b].json", "tok/s", "last", "/", "first"]
    rates = 30 / (274 * MS), 30 / ((9 * (8 + 40) + 4 + 36) * MS)
    assert [row.split()[-3:] for row in rows] == [
        ["64.00", "32.00", "0.50x"],
        [f"{rates[0]:.2f}", f"{rates[1]:.2f}", f"{rates[1] / rates[0]:.2f}x"],
    ]
    assert note == (
        "The files were not measured in turns: ratios also reflect the machine's load.\n"
    )


def test_files_without_a_common_arm_are_not_compared(
    two_files: tuple[str, str], pair: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(Path(pair[3]).parent)
    assert bench(*pair, *MEASURE, "--temp", "0.1", "-o", "c.json") == 0
    assert bench("--load", "a.json", "c.json") == 0
    assert capsys.readouterr().out.endswith("these files have no arm in common\n")


def test_earlier_files_come_as_one_json_object(two_files: tuple[str, str], capsys: Output) -> None:
    whole = measured(capsys, "--load", *two_files)
    assert list(whole) == list(two_files)
    for file in two_files:
        written = json.loads(Path(file).read_text())
        assert whole[file] == written


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot read the results from 'a.json': no such file"), ("{", "a.json is not JSON"),
     ('{"specx_profile": 1}', "a.json is not a result of specx bench"),
     ('{"specx_bench": 9}', "a.json has format 9")],
)  # fmt: skip
def test_a_file_that_is_no_result_gets_one_line(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, content: str | None,
    words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("a.json").write_text(content)
    assert bench("--load", "a.json") == 2
    assert_one_line(capsys, words)


# The cost curve


CURVE = ["--curve", "--widths", "1-5"]


def test_a_curve_is_printed_and_written_as_a_profile(
    pair: list[str], tmp_path: Path, capsys: Output
) -> None:
    whole = measured(capsys, *pair, *CURVE, "-o", str(tmp_path / "c.json"))
    profile = read_profile(tmp_path / "c.json")
    assert profile.verifier.widths == (1, 2, 3, 4, 5)
    assert profile.verifier.seconds == tuple(n * MS for n in range(16, 21))
    assert profile.verifier.n_past == 256
    assert profile.drafter is not None
    assert (profile.drafter(1), profile.drafter(2)) == (2 * MS, 3 * MS)
    words = whole.pop("words")
    assert whole == json.loads((tmp_path / "c.json").read_text())
    assert words[0].startswith("Verifier: 15.6 ms for one token")


def test_a_curve_is_drawn_and_explained(pair: list[str], capsys: Output) -> None:
    assert bench(*pair, *CURVE) == 0
    out = capsys.readouterr().out
    for words in (
        "verifier: toy:v.toml, after 256 tokens", "drafter: toy:d.toml, after 256 tokens",
        "in units of one", "█", "Speculation pays off from an acceptance rate of",
        "At an acceptance rate of 0.9 the best gamma is 4",
    ):  # fmt: skip
        assert words in out


def test_a_curve_needs_no_drafter(pair: list[str], capsys: Output) -> None:
    whole = measured(capsys, *pair[:4], *pair[6:], *CURVE)
    assert "drafter" not in whole
    assert whole["words"][1].startswith("No drafter")


def test_a_full_disk_does_not_cost_a_curve(
    pair: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_after(monkeypatch, 1)
    assert bench(*pair, *CURVE, "-o", str(tmp_path / "c.json")) == 2
    found = capsys.readouterr()
    assert "Speculation pays" in found.out
    assert "c.json: No space left" in found.err
    assert not (tmp_path / "c.json").exists()


# Bad input


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gamma", "x"], ["--gamma x is not a list of numbers", "write 2,4,8"]),
        (["--gamma", "2,-4"], ["--gamma 2,-4"]),
        (["--gamma", "8-2"], ["--gamma 8-2"]),
        (["--gamma", ""], ["--gamma"]),
        (["--gamma", "4,often"], ["--gamma 4,often is not a list", "0,4,auto"]),
        (["--draft", "lokup"], ["--draft lokup: unknown 'lokup'; known: lookup, model"]),
        (["--draft", "model+lookup"], ["--draft model+lookup chooses", "--gamma 2,4,8,auto"]),
        (["--draft", "lookup"], ["d.toml is not used by --draft lookup", "--draft model,lookup"]),
        (["--draft-temp", "-1"], ["the drafter's temperature is -1"]),
        (["--profile", "c.json"], ["--profile c.json is used only by auto", "2,4,8,auto"]),
        (["--gamma", "auto", "--profile", "c.json"], ["cannot read the profile from 'c.json'"]),
        (["--gamma", "auto", "--profile", "c.json", "--backend", "toy,hf"], ["c.json covers one"]),
        (["-p", "a"], ["-p and -f were both given; leave one out"]),
        (["--temp", "hot"], ["--temp hot is not a list"]),
        (["--temp", "0.1-0.9"], ["--temp 0.1-0.9 is not a list"]),
        (["--temp", "nan"], ["--temp nan"]),
        (["--top-p", "0.5,1.5"], ["top-p is 1.5"]),
        (["--top-p", "0"], ["top-p is 0.0"]),
        (["--top-k", "-1"], ["top-k is -1"]),
        (["--min-p", "2"], ["min-p is 2.0"]),
        (["--rule", "block,lucky"], ["--rule block,lucky: unknown 'lucky'", "known: token, block"]),
        (["--backend", "toy,lama"], ["--backend toy,lama: unknown 'lama'", "known: hf, llamacpp"]),
        (["--draft-backend", "lama"], ["unknown backend 'lama'"]),
        (["-n", "0"], ["-n", "0"]),
        (["-r", "0"], ["-r", "0"]),
        (["-s", "-1"], ["-s", "-1"]),
        (["-f", "nosuch.jsonl"], ["cannot read the prompts from 'nosuch.jsonl'"]),
        (["-ngl", "1"], ["-ngl 1", "toy"]),
        (["--curve", "--widths", "0-4"], ["--widths 0-4 must begin at 1"]),
        (["--curve", "--widths", "x"], ["--widths x is not a list"]),
        (["a.json"], ["unexpected argument a.json; --load"]),
        (["--load", "a.json", "-o", "b.json"], ["-o b.json writes new measurements"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)  # fmt: skip
def test_bad_options_get_one_line_and_load_nothing(
    pair: list[str], capsys: Output, unloadable: None, args: list[str], words: list[str]
) -> None:
    assert bench(*pair, *args) == 2
    assert_one_line(capsys, *words)


@pytest.mark.parametrize(
    ("suite", "words"),
    [("nosuch", "unknown kind of prompt 'nosuch'"), ("all:99", "must be 1 to 7"),
     ("code,code", "names 'code' twice"), ("", "unknown kind of prompt ''")],
)  # fmt: skip
def test_a_suite_that_is_none_gets_one_line(
    pair: list[str], capsys: Output, unloadable: None, suite: str, words: str
) -> None:
    assert bench(*pair[:6], "--suite", suite) == 2
    assert_one_line(capsys, words)


def test_typed_prompts_are_not_a_suite(pair: list[str], capsys: Output, unloadable: None) -> None:
    assert bench(*pair[:6], "-p", "a", "--suite", "all:1") == 2
    assert_one_line(capsys, "-p and --suite were both given; leave one out")


def test_a_model_that_drafts_must_be_there(
    pair: list[str], capsys: Output, unloadable: None
) -> None:
    assert bench(*pair[:4], *GRID) == 2
    assert_one_line(capsys, "--draft model,lookup needs a drafter; add -md DRAFTER.gguf")


@pytest.mark.parametrize("option", [["--gamma", "4"], ["--gamma", "auto"], ["--rule", "token"]])
def test_what_needs_a_drafter_says_so(
    pair: list[str], capsys: Output, unloadable: None, option: list[str]
) -> None:
    assert bench(*pair[:4], *option) == 2
    assert_one_line(capsys, "--gamma and --rule need a drafter; add -md DRAFTER or --draft")


def test_a_drafter_alone_is_no_pair(pair: list[str], capsys: Output, unloadable: None) -> None:
    assert bench("--backend", "toy", "-md", pair[5]) == 2
    assert_one_line(capsys, "-md", "d.toml needs a verifier; add -m VERIFIER.gguf")


def test_a_pair_that_cannot_be_loaded_gets_one_line(pair: list[str], capsys: Output) -> None:
    assert bench(*pair, "-md", "nosuch.toml") == 2
    assert_one_line(capsys, "nosuch.toml")
    Path(pair[7]).write_text('{"prompt": "xyz"}')
    assert bench(*pair) == 2
    assert_one_line(capsys, "no token for 'x'")
