"""What the README says is true: its commands parse, its Python runs, its folders exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from specx.cli import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.+?)(?:\s{2,}#.*)?$", README, re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 5
    assert any(command.startswith("scripts/run") for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_and_their_options_parse(command: str) -> None:
    program, *words = shlex.split(command, comments=True)
    if program in ("scripts/run", "specx"):
        name, words = ("run", words) if program == "scripts/run" else (words[0], words[1:])
        if name != "--version":
            found = cli.get_command(click.Context(cli), name)
            assert isinstance(found, click.Command)
            found.make_context(name, words, resilient_parsing=False)
    elif program.startswith(("scripts/", ".venv/")):
        script = words[0] if program.endswith("python") else program
        assert (ROOT / script).is_file()


def test_its_python_runs(
    demo_verifier: Path, demo_drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = (block for block in blocks("python") if "specx" in block)
    code = code.replace("verifier.gguf", str(demo_verifier))
    code = code.replace("drafter.gguf", str(demo_drafter))
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_its_folders_exist() -> None:
    folders = re.findall(r"^\| `([^`]+/)` \|", README, re.MULTILINE)
    assert len(folders) > 5
    assert all((ROOT / folder).is_dir() for folder in folders)
