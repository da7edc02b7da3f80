"""The page's comparisons are those that were measured, by commands that exist."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from types import ModuleType

import click
import pytest

from specx.cli import cli, main

ROOT = Path(__file__).parent.parent
TOY = ROOT / "models" / "toy"


@pytest.fixture
def page() -> ModuleType:
    path = ROOT / "scripts" / "benchmarks_compare.py"
    spec = importlib.util.spec_from_file_location("benchmarks_compare", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_commands_parse(page: ModuleType) -> None:
    command = cli.commands["compare"]
    assert isinstance(command, click.Command)
    for words in page.COMMANDS.values():
        command.make_context("compare", shlex.split(words), resilient_parsing=False)


def test_a_comparison_is_written_as_its_record_has_it(
    page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "abba"}\n')
    monkeypatch.setattr(page, "RECORDS", tmp_path)
    toys = ["--backend", "toy", "-m", f"{TOY}/verifier.toml", "-md", f"{TOY}/drafter.toml"]
    for name in page.COMMANDS:
        given = ["--against", f"{TOY}/drafter.toml", "-f", str(prompts), "-n", "20", "--ignore-eos"]
        with pytest.raises(SystemExit) as ended:
            main(["compare", *toys, *given, "-q", "-o", str(page.file_of(name))])
        assert ended.value.code == 0
    text = page.compare_tables()
    for name, words in page.COMMANDS.items():
        assert f"    specx compare {words}\n\nA is verifier, B is drafter; gamma 4." in text
        assert page.read_comparison(page.file_of(name))["verdict"]["words"] in text
    assert "```" not in text  # the provenance stays in the record
