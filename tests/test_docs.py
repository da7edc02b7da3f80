"""The documents hold what was generated for them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from specx.acceptance import RULES
from specx.cli.verify import verify
from specx.faults import FAULTS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def fault_table() -> ModuleType:
    path = ROOT / "scripts" / "fault_table.py"
    spec = importlib.util.spec_from_file_location("fault_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
