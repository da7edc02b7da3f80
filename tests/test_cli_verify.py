"""`specx verify` on the command line: exit codes, `--json`, faults, and models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inprocess import specx

from specx.cli import main
from specx.verify import rules
from specx.verify.faults import FAULTS

TOY = Path(__file__).parent.parent / "models" / "toy"
MODELS = ["--backend", "toy", "-m", str(TOY / "verifier.toml"), "-md", str(TOY / "drafter.toml")]
SEED = ["-s", "11"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the draws, the smaller tables: enough for the command's own ways."""
    monkeypatch.setattr(rules, "SIZES", [s for s in rules.SIZES if s[0] <= 3 and s[1] <= 2])
    monkeypatch.setattr(rules, "SAMPLER_DRAWS", 20_000)
    monkeypatch.setattr(rules, "LOOP_TRIALS", 2000)


def verify(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["verify", *SEED, *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = verify("--json", *args)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result: dict[str, Any] = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    return code, result


def test_a_user_sees_what_was_shown_of_a_rule() -> None:
    done = specx("verify", "--rule", "match", *SEED)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("holds")] == [
        "holds    enumeration: rule match",
        "holds    sampler: rule match",
        "holds    loop: rule match on a table",
    ]
    assert "error 0 in fractions" in done.stdout
    assert "262,144 first tokens" in done.stdout
    assert "with probability 0.99, false alarms 1e-06" in done.stdout
    assert lines[-1] == "all hold; false alarms of the whole run 2e-06  (seed 11)"


@pytest.mark.usefixtures("quick")
def test_all_rules_are_checked_and_told_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = as_json(capsys)
    assert (code, result["holds"], result["planted"], result["seed"]) == (0, True, None, 11)
    assert [(check["name"], check["subject"].split()[1]) for check in result["checks"]] == [
        (name, rule)
        for rule in ("token", "block", "match")
        for name in ("enumeration", "sampler", "loop")
    ]
    assert result["false_positive"] == pytest.approx(6e-6)
    assert (result["models"], result["prompt"]) == ([], None)
    assert result["checks"][1]["figures"]["trials"] == 20_000


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ("one-hot-residual", ["enumeration", "sampler", "loop"]),
        ("residual-by-place", ["enumeration"]),
        ("drop-after-draw", ["loop"]),
        ("softmax-residual", ["enumeration", "sampler", "loop"]),
    ],
)
def test_a_planted_fault_is_refuted(
    fault: str, caught: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = as_json(capsys, "--plant", fault, "--rule", "block")
    assert (code, result["holds"], result["planted"]) == (1, False, fault)
    assert [check["name"] for check in result["checks"] if not check["holds"]] == caught


@pytest.mark.usefixtures("quick")
def test_the_refuted_line_says_what_and_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--plant", "block-with-token-residual") == 1
    out = capsys.readouterr().out
    assert "REFUTED  enumeration: rule block\n         error 0.0" in out
    assert "rule token" not in out  # a fault of block alone
    assert "1 of 3 refuted, with the fault block-with-token-residual planted" in out


@pytest.mark.usefixtures("quick")
def test_toy_models_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = as_json(capsys, *MODELS, "-p", "abbab", "--rule", "token", "--trials", "1000")
    assert code == 0
    assert [check["name"] for check in result["checks"]] == [
        *["batch against single", "cache audit"] * 2,
        "round",
        *["enumeration", "sampler", "loop"],
    ]
    assert [model["file"] for model in result["models"]] == [MODELS[3], MODELS[5]]
    assert result["prompt"] == "abbab"
    assert result["checks"][4]["figures"]["trials"] == 1000
    assert "rule token" in result["checks"][4]["subject"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", ["cache-one-too-long", "shifted-rows"])
def test_a_fault_of_a_model_is_refuted(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = as_json(capsys, *MODELS, "-p", "abbab", "--plant", fault, "--rule", "token")
    assert code == 1
    refuted = {check["name"] for check in result["checks"] if not check["holds"]}
    assert refuted & {"cache audit", "batch against single"}
    assert "loop" in refuted


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["-m", "x.toml"], "a test of models needs both: -m VERIFIER and -md DRAFTER"),
        (["-md", "x.toml"], "a test of models needs both: -m VERIFIER and -md DRAFTER"),
        (
            ["--plant", "keyed-by-position", "--rule", "token"],
            "--plant keyed-by-position is a fault of rule block, not of token",
        ),
        ([*MODELS, "-p", "ab"], "the prompt has 3 tokens, 3 of them distinct; give one of"),
        ([*MODELS, "-p", "aaaaaaa"], "the prompt has 8 tokens, 2 of them distinct; give one of"),
        ([*MODELS], "has no token for"),
        (["--plant", "typo"], "Invalid value for '--plant'"),
        (["--rule", "best"], "Invalid value for '--rule'"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(*args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("specx: ")
    assert err.count("\n") == 1
    assert line in err


def test_the_help_lists_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    for fault in FAULTS.values():
        assert f"{fault.name}: {fault.summary}" in out
    assert "met again in the next round (block only)" in out
