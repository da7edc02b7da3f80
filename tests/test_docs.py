"""The documents hold what was generated for them."""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from inprocess import specx

from demo_pair.card import render
from specx.cli.bench import bench
from specx.cli.check import check
from specx.cli.verify import verify
from specx.core.rules import RULES
from specx.verify.faults import FAULTS

ROOT = Path(__file__).parent.parent


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fault_table() -> ModuleType:
    return script("fault_table")


@pytest.fixture(scope="module")
def benchmarks() -> ModuleType:
    return script("benchmarks")


def test_the_table_of_faults_is_the_one_that_was_found(fault_table: ModuleType) -> None:
    table = fault_table.table(fault_table.read_record())
    assert table.count("\n") == 2 + len(FAULTS)
    assert table in fault_table.page()
    assert fault_table.with_table(fault_table.page(), fault_table.read_record()) == (
        fault_table.page()
    )


def test_every_fault_is_refuted_and_a_sound_decoder_by_nothing(fault_table: ModuleType) -> None:
    found = fault_table.read_record()["faults"]
    assert not any(found.pop("none").values())
    assert list(found) == list(FAULTS)
    for name, checks in found.items():
        assert list(checks) == list(fault_table.CHECKS)
        caught = {rule for rules in checks.values() for rule in rules}
        assert caught, f"nothing refutes {name}"
        assert caught <= set(FAULTS[name].rules) <= set(RULES)
        without_models = [checks[check] for check in ("enumeration", "sampler", "loop")]
        assert any(without_models), f"specx verify alone does not refute {name}"


def test_the_commands_shown_have_only_options_that_exist(fault_table: ModuleType) -> None:
    lines = [
        line for line in fault_table.page().splitlines() if line.startswith("    specx verify")
    ]
    known = {name for option in verify.params for name in option.opts}
    used = {word for line in lines for word in line.split("#")[0].split() if word[0] == "-"}
    assert len(lines) >= 4
    assert used <= known
    planted = [line.split("--plant ")[1].split()[0] for line in lines if "--plant" in line]
    assert planted
    assert set(planted) <= FAULTS.keys()


def test_a_table_that_is_out_of_date_is_told(
    fault_table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fault_table.py", "--check"])
    assert fault_table.main() == 0
    stale = tmp_path / "exactness.md"
    stale.write_text(fault_table.page().replace("| all |", "| - |", 1), encoding="utf-8")
    monkeypatch.setattr(fault_table, "PAGE", stale)
    assert fault_table.main() == 1


def test_the_benchmarks_are_those_of_the_records(benchmarks: ModuleType) -> None:
    text = benchmarks.PAGE.read_text(encoding="utf-8")
    assert benchmarks.with_tables(text) == text
    for name, table in benchmarks.TABLES.items():
        assert f"<!-- {name} -->\n{table()}<!-- end -->" in text
        assert len(table()) > 100


def test_a_benchmark_that_is_out_of_date_is_told(
    benchmarks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert benchmarks.write_page(check=True) == 0
    stale = tmp_path / "benchmarks.md"
    text = benchmarks.PAGE.read_text(encoding="utf-8").replace("x (", "y (", 1)
    stale.write_text(text, encoding="utf-8")
    monkeypatch.setattr(benchmarks, "PAGE", stale)
    assert benchmarks.write_page(check=True) == 1


def test_the_commands_of_the_benchmarks_have_only_options_that_exist(
    benchmarks: ModuleType,
) -> None:
    known = {name for option in bench.params for name in option.opts}
    for command in benchmarks.COMMANDS.values():
        assert {word for word in command.split() if word.startswith("-")} <= known


@pytest.fixture(scope="module")
def check_pairs() -> ModuleType:
    return script("check_pairs")


def test_the_checked_pairs_are_those_of_the_record(check_pairs: ModuleType) -> None:
    pairs = check_pairs.read_record()
    names = list(product(check_pairs.MODELS, repeat=2))
    assert [(pair["verifier"], pair["drafter"]) for pair in pairs] == names
    assert check_pairs.table(pairs) in check_pairs.PAGE.read_text(encoding="utf-8")
    assert max(pair["cpu_s"] for pair in pairs) < 2
    assert max(pair["peak_mib"] for pair in pairs) < 300


def test_a_table_of_checks_that_is_out_of_date_is_told(
    check_pairs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_pairs.write_page(check=True) == 0
    stale = tmp_path / "check.md"
    text = check_pairs.PAGE.read_text(encoding="utf-8").replace("another tokenizer:", "no:", 1)
    stale.write_text(text, encoding="utf-8")
    monkeypatch.setattr(check_pairs, "PAGE", stale)
    assert check_pairs.write_page(check=True) == 1


def test_the_checks_shown_have_only_options_that_exist(check_pairs: ModuleType) -> None:
    lines = check_pairs.PAGE.read_text(encoding="utf-8").splitlines()
    shown = [line.split("#")[0].split() for line in lines if line.startswith("    specx check")]
    known = {name for option in check.params for name in option.opts}
    assert len(shown) >= 4
    assert {word for line in shown for word in line if word.startswith("-")} <= known


@pytest.mark.parametrize("verifier", ["smollm2", "gemma", "qwen05", "qwen15", "qwen15_f16"])
def test_the_test_models_are_judged_as_recorded(
    check_pairs: ModuleType, request: pytest.FixtureRequest, verifier: str
) -> None:
    path = request.getfixturevalue(verifier)
    pairs = [p for p in check_pairs.read_record() if check_pairs.MODELS[p["verifier"]] == path.name]
    files = [path.parent / check_pairs.MODELS[pair["drafter"]] for pair in pairs]
    here = [(file, pair) for file, pair in zip(files, pairs, strict=True) if file.is_file()]
    assert here
    for file, pair in here:
        done = specx("check", "--json", "-m", str(path), "-md", str(file))
        found = json.loads(done.stdout)
        told = ("verdict", "faults", "limits")
        assert {key: found[key] for key in told} == {key: pair[key] for key in told}


def test_the_study_is_that_of_its_record() -> None:
    study_doc, docs = script("study_doc"), ROOT / "docs"
    record = json.loads((docs / "study" / "qwen.json").read_text(encoding="utf-8"))
    words = (docs / "study" / "words.md").read_text(encoding="utf-8")
    assert (docs / "study.md").read_text(encoding="utf-8") == study_doc.study_page(words, record)
    assert record["n_prompts"] >= 50


def test_ratios_on_a_busy_machine_are_of_one_repetition(tmp_path: Path) -> None:
    """Twice and four times as fast in two repetitions."""
    busy = script("measure_busy")
    speeds = {("300000", 0): 10.0, ("500", 0): 20.0, ("300000", 1): 5.0, ("500", 1): 20.0}
    runs = [
        {"backend": "llamacpp", "model": "m.gguf", "load": load, "spins": spins,
         "repetition": repetition, "tok_s": tok_s}
        for load in busy.LOADS for (spins, repetition), tok_s in speeds.items()
    ]  # fmt: skip
    table = busy.table({"settings": {"spins": ["300000", "500"]}, "runs": runs})
    assert "| m.gguf, llamacpp | nothing | 7.5 | 20.0 | 3.00x (2.00 to 4.00) |" in table
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(SystemExit, match="is not a record of"):
        busy.read(other)


def test_the_demo_pairs_page_is_that_of_its_card() -> None:
    folder = ROOT / "models" / "demo"
    record = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert (folder / "README.md").read_text(encoding="utf-8") == render(record)
