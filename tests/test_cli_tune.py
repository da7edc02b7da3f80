"""`specx tune` and `specx profiles`, over toys and the demo pair."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from inprocess import specx
from rich.console import Console
from test_tune_measure import DRAFTER, VERIFIER

from specx.cli import tune_show, tuning
from specx.tune.surface import Surface
from specx_backends.llamacpp import LlamaCppModel

POOR = DRAFTER.replace("0.65", "1.0").replace("0.35", "0.0")
WHAT_IF = "draft=.12,verify-curve=1:1,2:1.8,4:2.0,8:3.1,alpha=.8"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two drafters and prompts, and a cache of its own."""
    (tmp_path / "v.toml").write_text(VERIFIER)
    (tmp_path / "d.toml").write_text(DRAFTER)
    (tmp_path / "poor.toml").write_text(POOR)
    prompts = [{"prompt": "a b", "kind": "code"}, {"prompt": "aa b", "kind": "pro[/]se\x1b[31m"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECX_CACHE", str(tmp_path / "cache"))
    return tmp_path


TOY = ["--backend", "toy", "-m", "v.toml"]
TUNE = [
    "tune",
    *TOY,
    "-f",
    "p.jsonl",
    "--budget",
    "8",
    "--temp",
    "1",
    "--top-p",
    "1",
    "--rule",
    "token",
]


def record_of(*args: str) -> Any:
    done = specx(*args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ids() -> list[str]:
    return sorted(path.stem for path in Path("cache/profiles").glob("*.json"))


def test_a_pair_is_measured_recommended_and_saved_and_the_next_run_uses_it() -> None:
    """The verifier costs 8 + 2 k ms, the drafter 2 ms, and .85 of the tokens stay: it pays."""
    done = specx(*TUNE, "-md", "d.toml")
    assert done.returncode == 0, done.stderr
    assert "v.toml: 100.0 tok/s alone" in done.stdout
    assert re.search(r"Use -md d.toml --gamma [234]: expect 1.[3-5]x on ", done.stdout)
    assert "\x1b" not in done.stdout
    assert len(ids()) == 2  # the pair's, and the verifier's alone
    run = ["run", *TOY, "-md", "d.toml", "-p", "a", "-n", "8", "-s", "1", "--gamma", "auto"]
    footer = specx(*run).stderr
    assert any(f"gamma by profile {name}" in footer for name in ids())
    assert specx("profiles", "--remove", "all").returncode == 0
    assert "gamma by the shipped table" in specx(*run).stderr


def test_the_record_agrees_with_known_truth(place: Path) -> None:
    found = record_of(*TUNE, "-md", "d.toml")
    (threads,) = found["threads"]
    assert threads["plain_tok_s"] == pytest.approx(100, rel=0.01)
    model, lookup = threads["candidates"]
    assert (model["name"], lookup["name"]) == ("d.toml", "lookup")
    for gamma, speedup in zip(model["gammas"], model["overall"], strict=True):
        tokens = sum(0.85**i for i in range(gamma + 1))
        full = 0.85**gamma
        seconds = gamma * 0.002 + full * 0.0005 + 0.008 + 0.002 * (gamma + 1)
        assert speedup == pytest.approx(tokens * 0.010 / seconds, rel=0.06), gamma
    assert found["recommended"]["gamma"] in (2, 3, 4)


def test_drafters_are_ranked_with_lookup() -> None:
    found = record_of(*TUNE, "-md", "poor.toml", "-md", "d.toml")
    names = [each["name"] for each in found["threads"][0]["candidates"]]
    assert names[0] == "d.toml"
    assert set(names[1:]) == {"poor.toml", "lookup"}
    assert found["recommended"]["drafter"] == "d.toml"
    assert len(found["profiles"]) == len(ids()) == 3


def test_a_verifier_alone_is_asked_about_lookup() -> None:
    found = record_of(*TUNE)
    assert [each["name"] for each in found["threads"][0]["candidates"]] == ["lookup"]
    assert len(ids()) == 1


def test_nothing_is_saved_where_that_is_asked_for() -> None:
    assert record_of(*TUNE, "-md", "d.toml", "--no-save")["profiles"]
    assert ids() == []


def test_a_folder_that_cannot_be_written_costs_the_profile_alone(place: Path) -> None:
    (place / "cache").write_text("a file")
    done = specx(*TUNE, "-md", "d.toml")
    assert done.returncode == 0
    assert "Use -md d.toml" in done.stdout
    assert "the costs were not saved: cannot make the folder" in done.stderr
    assert "Costs saved" not in done.stdout


def test_an_interrupt_leaves_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "agreement", interrupted)
    done = specx(*TUNE, "-md", "d.toml")
    assert done.returncode == 130
    assert done.stdout == ""
    assert not Path("cache").exists()


def test_threads_beyond_the_machine_s_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    assert tuning._thread_counts({"thread_counts": "1,2,4", "threads": None}) == (
        [1, 2],
        ["thread counts above the 2 cores of this machine were left out"],
    )
    assert tuning._thread_counts({"thread_counts": "8", "threads": None})[0] == [2]


def test_counts_of_threads_are_compared(demo_verifier: Path, demo_drafter: Path) -> None:
    args = ["-m", str(demo_verifier), "-md", str(demo_drafter), "--suite", "code:1,maths:1"]
    done = specx("tune", *args, "--threads", "1,2", "--budget", "6", "-q")
    assert done.returncode == 0, done.stderr
    assert "specx-demo-verifier.gguf with 1 thread:" in done.stdout
    assert "specx-demo-verifier.gguf with 2 threads:" in done.stdout
    assert "is the fastest." in done.stdout
    assert len(ids()) == 4


def test_threads_are_not_compared_where_layers_are_on_a_gpu(
    demo_verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = LlamaCppModel.describe
    monkeypatch.setattr(
        LlamaCppModel, "describe", lambda model: {**about(model), "n_gpu_layers": 9}
    )
    args = ["-m", str(demo_verifier), "--suite", "code:1", "--threads", "1,2", "--budget", "4"]
    done = specx("tune", *args, "-q")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tok/s alone") == 1
    assert "only the first count of --threads was measured" in done.stderr


def test_a_verifier_that_cannot_forget_is_refused(place: Path) -> None:
    (place / "v.toml").write_text('rollback = "none"\n' + VERIFIER)
    done = specx(*TUNE)
    assert done.returncode == 2
    assert "cannot forget tokens, which speculation needs" in done.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--budget", "0"], "0 is not from 1 to 86400 seconds"),
        (["--threads", "0"], "must begin at 1 or more"),
        (["--threads", "2", "-t", "1"], "--threads 2 and -t 1 were both given"),
        (["--what-if", WHAT_IF], "--what-if needs no models; leave out -m"),
    ],
)
def test_options_that_make_no_sense_are_refused(args: list[str], reason: str) -> None:
    done = specx(*TUNE, *args)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.count("\n") <= 3


def test_a_budget_that_loading_used_up_says_how_much_to_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter(range(0, 10**6, 50))
    with patch("specx.cli.tuning.time.monotonic", lambda: next(now)):
        done = specx(*TUNE, "-md", "d.toml")
    assert done.returncode == 2
    assert "raise it to 38 or more" in done.stderr


def test_a_drafter_without_a_verifier_is_refused() -> None:
    done = specx("tune", "-md", "d.toml")
    assert done.returncode == 2
    assert "needs a verifier" in done.stderr


# What if


def test_what_if_prints_its_assumptions_and_an_answer() -> None:
    done = specx("tune", "--what-if", WHAT_IF)
    assert done.returncode == 0
    assert "1 cost 1, 2 cost 1.8, 4 cost 2, 8 cost 3.1" in done.stdout
    assert "A draft step costs 0.12" in done.stdout
    assert done.stdout.endswith("alpha 0.8: gamma 3, 1.25x.\n")
    found = json.loads(specx("tune", "--what-if", WHAT_IF, "--json").stdout)
    assert found["speedups"]["alpha 0.8"][2] == pytest.approx(2.952 / (0.36 + 2.0), abs=0.001)


# The heat map


def shown(surface: Surface, **terminal: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, highlight=False, markup=False, width=100, **terminal)
    tune_show._print_surface(console, "d.gguf", surface, surface.speedups)
    return file.getvalue()


def test_the_map_is_coloured_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    surface = Surface(
        gammas=(1, 2), speedups={"code": (0.5, 1.6), "prose": (1.0, 0.9)}, needed=(0.4, None)
    )
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = shown(surface, force_terminal=True, color_system="256")
    assert "48;5;203" in coloured
    assert "48;5;77" in coloured
    plain = shown(surface)
    assert "\x1b" not in plain
    assert "*1.60" in plain  # the best of a column that gains, also without colour
    assert "*1.00" not in plain
    assert "never" in plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;5" not in shown(surface, force_terminal=True, color_system="256")


def test_names_of_kinds_reach_no_terminal_unescaped() -> None:
    assert "\x1b" not in specx(*TUNE, "-md", "d.toml").stdout


# Profiles


def test_profiles_are_listed_with_what_they_are_of() -> None:
    assert "no profiles in" in specx("profiles").stdout
    record_of(*TUNE, "-md", "d.toml")
    listed = specx("profiles").stdout
    for name in ids():
        assert name in listed
    assert "d.toml" in listed
    assert listed.count("good") == 2
    found = json.loads(specx("profiles", "--json").stdout)["profiles"]
    assert [each["id"] for each in found] == ids()
    assert {each["state"] for each in found} == {"good"}


def test_profiles_of_replaced_missing_and_broken_files_are_marked(place: Path) -> None:
    record_of(*TUNE, "-md", "d.toml")
    (place / "d.toml").write_text(DRAFTER + "# newer\n")
    assert "d.toml was replaced" in specx("profiles").stdout
    (place / "d.toml").unlink()
    assert "d.toml is no longer there" in specx("profiles").stdout
    (place / "cache" / "profiles" / f"{ids()[0]}.json").write_text("{\x1b")
    listed = specx("profiles")
    assert "ignored: " in listed.stdout
    assert "\x1b" not in listed.stdout
    assert listed.returncode == 0


def test_profiles_are_removed_one_by_one_or_all() -> None:
    record_of(*TUNE, "-md", "d.toml")
    first, second = ids()
    assert specx("profiles", "--remove", first[:8]).returncode == 0
    assert ids() == [second]
    done = specx("profiles", "--remove", "nothing")
    assert done.returncode == 2
    assert second in done.stderr
    assert specx("profiles", "--remove", "").returncode == 2  # which begins every name
    assert ids() == [second]
    assert specx("profiles", "--remove", "all").returncode == 0
    assert ids() == []


def test_a_name_cannot_leave_the_folder(place: Path) -> None:
    (place / "cache" / "profiles").mkdir(parents=True)
    (place / "cache" / "outside.json").write_text("{}")
    assert specx("profiles", "--remove", "../outside").returncode == 2
    assert (place / "cache" / "outside.json").exists()


def test_a_benchmark_names_the_costs_that_auto_started_from() -> None:
    record_of(*TUNE, "-md", "d.toml")
    bench = ["bench", *TOY, "-md", "d.toml", "-p", "a", "-n", "8", "-r", "1", "--gamma", "auto"]
    found = record_of(*bench)
    assert str(found["provenance"]["costs"]).startswith("profile ")


def test_the_documented_what_if_is_what_the_command_prints() -> None:
    text = (Path(__file__).parent.parent / "docs" / "tune.md").read_text(encoding="utf-8")
    block = re.search(r"```console\n\$ specx (tune --what-if \S+)\n(.*?)```", text, re.DOTALL)
    assert block is not None
    printed = specx(*block[1].split()).stdout
    assert [line.rstrip() for line in printed.splitlines()] == block[2].splitlines()
