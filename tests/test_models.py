"""Names of models, the list of them, and what other programs have downloaded."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import tiny_gguf

import specx
from cases.odd_gguf import split
from specx.cli import main
from specx.cli.files import Model
from specx.cli.naming import name_models
from specx.errors import ModelError, SpecxError, UsageError
from specx.library.hub import HubFile
from specx.library.names import Named, find, known_names, resolve
from specx.library.registry import registry
from specx.library.scan import scan

TABLE = """
vocabulary = ["<s>", "</s>", "one", " two"]
bos = "<s>"
eog = ["</s>"]
[[row]]
next = { one = 0.5, " two" = 0.5 }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without models, which is also the working folder."""
    for name in ("HOME", "USERPROFILE", "SPECX_CONFIG", "SPECX_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(args)
    return (exit_.value.code, *capsys.readouterr())


def cached(home: Path, file: HubFile, content: bytes = b"GGUF") -> Path:
    """Put a file into the hub's cache, as the hub's tools do."""
    folder = home / "hub" / f"models--{file.repo.replace('/', '--')}"
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "snapshots" / ("c" * 40) / file.file
    for place in (folder / "blobs", folder / "refs", path.parent):
        place.mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / digest).write_bytes(content)
    (folder / "refs" / "main").write_text("c" * 40)
    path.symlink_to(os.path.relpath(folder / "blobs" / digest, path.parent))
    return path


def aliased(home: Path, text: str) -> None:
    (home / "aliases.toml").write_text(text, encoding="utf-8")


# The registry


def test_the_registry_names_what_it_holds() -> None:
    known = registry()
    for name, model in known.models.items():
        assert model.hub_file.shards[0] == model.hub_file, name
        assert set(model.drafts) <= set(known.models) - {name}, name
        assert model.sha256 is None or len(model.sha256) == 64
        for draft in model.drafts:
            smaller = known.models[draft].bytes
            assert smaller is None or model.bytes is None or smaller < model.bytes
    for name, pair in known.pairs.items():
        assert pair.draft in known.models[pair.model].drafts, name
    assert not set(known.pairs) & set(known.models)


def test_families_of_laptop_size_are_known() -> None:
    for family in "qwen2.5- qwen2.5-coder- qwen3- llama-3 smollm2 smollm3 gemma-3".split():
        assert any(name.startswith(family) for name in registry().models), family


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_checksums_are_those_of_the_test_models(name: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue({"0": "qwen05", "1": "qwen15"}[name[-4]])
    known = registry().models[name]
    assert (path.name, path.stat().st_size) == (known.file, known.bytes)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    assert digest.hexdigest() == known.sha256


# Names


def test_what_exists_is_itself(home: Path) -> None:
    (home / "qwen3-4b").mkdir()
    assert resolve("qwen3-4b") == Named("qwen3-4b")


@pytest.mark.parametrize(
    "text",
    ["missing.gguf", "maker/model", "Qwen/Qwen3-4B", "a-model-of-mine", "", "x/qwen3-4", "\0"],
)
def test_unknown_names_are_left_to_the_backend(text: str) -> None:
    assert resolve(text) == Named(text)


def test_a_slip_is_told(home: Path) -> None:
    with pytest.raises(UsageError, match="no model is called 'qwen3-4'; did you mean 'qwen3-4b'"):
        resolve("qwen3-4")


def test_a_known_model_is_its_file_once_it_is_there(home: Path) -> None:
    with pytest.raises(
        ModelError, match=r"'qwen3-4b' is not .* \(2\.50 GB\): specx pull qwen3-4b$"
    ):
        resolve("qwen3-4b")
    path = cached(home, registry().models["qwen3-4b"].hub_file)
    assert resolve("qwen3-4b") == Named(str(path))
    with pytest.raises(ModelError, match="'qwen3' is not on this machine; .*: specx pull qwen3$"):
        resolve("qwen3")


def test_a_pair_gives_both(home: Path) -> None:
    known = registry()
    paths = [str(cached(home, known.models[name].hub_file)) for name in ("qwen3-8b", "qwen3-0.6b")]
    assert resolve("qwen3") == Named(*paths)


def test_a_model_in_several_files_is_there_when_all_are(home: Path) -> None:
    file = registry().models["qwen2.5-7b"].hub_file
    first, second = file.shards
    path = cached(home, first)
    with pytest.raises(ModelError, match="is not on this machine"):
        resolve("qwen2.5-7b")
    cached(home, second, b"GGUF2")
    assert resolve("qwen2.5-7b") == Named(str(path))


def test_aliases_stand_for_files_names_and_pairs(home: Path) -> None:
    aliased(home, """
        mine = "sub/mine.gguf"
        home = "~/own.gguf"
        hub = "hf:a/b:c.gguf"
        "qwen3-4b" = "qwen3-0.6b"
        both = { model = "mine.gguf", draft = "qwen3-0.6b" }
    """)  # fmt: skip
    small = registry().models["qwen3-0.6b"].hub_file
    assert resolve("mine") == Named(str(home / "sub" / "mine.gguf"))
    assert resolve("home") == Named(str(home / "own.gguf"))
    assert find("hub")[0].place == HubFile("a/b", "c.gguf")
    assert find("qwen3-4b")[0].place == small
    path = cached(home, small)
    assert resolve("both") == Named(str(home / "mine.gguf"), str(path))
    assert known_names()[:3] == ["mine", "home", "hub"]


@pytest.mark.parametrize("text", ["mine = 3", "mine", 'mine = { model = "x" }', "a = [" * 2000])
def test_a_damaged_alias_file_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    aliased(home, text)
    code, out, err = run(capsys, "run", "-m", "anything", "-p", "x")
    assert (code, out) == (2, "")
    assert "aliases.toml" in err
    assert 'NAME = "MODEL"' in err
    assert err.count("\n") == 1


def test_names_go_wherever_models_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "v.toml").write_text(TABLE)
    aliased(home, 'v = "v.toml"\nvd = { model = "v.toml", draft = "v.toml" }')
    (home / "p.jsonl").write_text('{"prompt": "one"}')
    toy, short = ["--backend", "toy"], ["-n", "3", "-s", "1"]
    code, out, err = run(capsys, "run", *toy, "-m", "vd", "-p", "one", *short, "--json")
    assert code == 0, err
    assert set(json.loads(out)["models"]) == {"verifier", "drafter"}
    for args in (
        ["run", "-m", "v", "-md", "v", "-p", "one", *short],
        ["run", "-m", "vd", "-p", "one", "--no-draft", *short],
        ["run", "-m", "vd", "-p", "one", "--draft", "lookup", *short],
        ["bench", "-m", "vd", "-p", "one", "--raw", "-r", "1", "--gamma", "2", *short],
        ["compare", "-m", "vd", "--against", "v", "-f", "p.jsonl", "--raw", "-r", "1", *short],
    ):
        code, _, err = run(capsys, *args, *toy, "-q")
        assert code == 0, (args, err)
    code, _, err = run(capsys, "run", *toy, "-m", "v", "-md", "vd", "-p", "one")
    assert code == 2
    assert "'vd' is a pair; name one of its models" in err
    code, _, err = run(capsys, "run", *toy, "-m", "v", "-p", "one", "--trace", "v.toml", "--force")
    assert code == 2
    assert "v.toml reads" in err
    with specx.load("vd", backend="toy") as session:
        assert session.pair.drafter is not None


def test_one_of_several_models_is_no_pair(home: Path) -> None:
    aliased(home, 'v = "v.toml"\nvd = { model = "v.toml", draft = "d.toml" }')
    files = [str(home / name) for name in ("v.toml", "d.toml")]
    several = [
        click.Option(["-m", "model"], type=Model()),
        click.Option(["-md", "model_draft"], type=Model(), multiple=True),
    ]
    params: dict[str, Any] = {"model": "x.gguf", "model_draft": ("v", "y.gguf")}
    name_models(params, several)
    assert params == {"model": "x.gguf", "model_draft": (files[0], "y.gguf")}
    params = {"model": "vd", "model_draft": ()}
    name_models(params, several)
    assert params == {"model": files[0], "model_draft": (files[1],)}
    with pytest.raises(UsageError, match="'vd' is a pair"):
        name_models({"model": "x.gguf", "model_draft": ("vd",)}, several)


# The lists


def test_models_lists_what_is_known_and_there(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cached(home, registry().models["qwen3-0.6b"].hub_file, b"12345")
    aliased(home, 'own = "x\\u001b[31m.gguf"')
    code, out, err = run(capsys, "models")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert rows["qwen3-0.6b"].endswith("yes")
    assert not rows["qwen3-4b"].endswith("yes")
    assert "2.50 GB" in rows["qwen3-4b"]
    assert "\x1b" not in out
    code, out, _ = run(capsys, "models", "--json")
    record = json.loads(out)
    here = {model["name"]: model["path"] for model in record["models"] if model["path"]}
    assert here == {"qwen3-0.6b": str(path)}
    assert [model["bytes"] for model in record["models"] if model["path"]] == [5]
    assert {"name": "qwen3", "model": "qwen3-8b", "draft": "qwen3-0.6b"} in record["pairs"]
    assert record["aliases"][0]["name"] == "own"


def ollama(home: Path, name: str, digest: Any, content: bytes | None = b"GGUF") -> Path:
    manifest = home / ".ollama" / "models" / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    blob = home / ".ollama" / "models" / "blobs" / str(digest).replace(":", "-")
    if content is not None:
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
    return blob


def lying(home: Path, *parts: str) -> Path:
    path = home.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def test_scan_finds_what_other_programs_have(home: Path) -> None:
    one, other = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    expected = [
        ("LM Studio", "maker/repo/m.gguf", lying(home, ".lmstudio/models/maker/repo/m.gguf")),
        ("LM Studio", "old/m.gguf", lying(home, ".cache/lm-studio/models/old/m.gguf")),
        ("Ollama", "llama3.2:1b", ollama(home, "registry.ollama.ai/library/llama3.2/1b", one)),
        ("Ollama", "me/mine:q4", ollama(home, "registry.ollama.ai/me/mine/q4", other)),
        ("hub", "hf:a/b:sub/c.gguf", cached(home, HubFile("a/b", "sub/c.gguf"))),
        ("llama.cpp", "a_b.gguf", lying(home, ".cache/llama.cpp/a_b.gguf")),
        ("llama.cpp", "mac.gguf", lying(home, "Library/Caches/llama.cpp/mac.gguf")),
    ]
    assert [(m.program, m.name, m.path) for m in scan()] == expected
    assert {model.bytes for model in scan()} == {4}


def test_other_folders_can_be_chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lying(home, ".cache/llama.cpp/left.gguf")
    path = lying(home, "elsewhere/m.gguf")
    monkeypatch.setenv("LLAMA_CACHE", str(path.parent))
    blob = ollama(home, "h/o/m/t", "sha256:" + "a" * 64)
    (home / ".ollama" / "models").rename(home / "olla")
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "olla"))
    assert [m.path for m in scan()] == [home / "olla" / "blobs" / blob.name, path]


def test_scan_counts_parts_as_one_model_and_leaves_out_what_is_none(home: Path) -> None:
    folder = home / ".lmstudio" / "models"
    folder.mkdir(parents=True)
    parts = split(tiny_gguf.write(home / "m.gguf"), folder)
    lying(home, ".lmstudio/models/mmproj-x.gguf")
    lying(home, ".lmstudio/models/readme.md")
    lying(home, ".lmstudio/models/lone-00002-of-00002.gguf")
    (folder / "dead.gguf").symlink_to("nowhere")
    (found,) = scan()
    assert found.path == parts[0]
    assert found.bytes == sum(part.stat().st_size for part in parts)


@pytest.mark.parametrize("digest", ["sha256:m", "sha256:" + "A" * 64, "sha256-", None, 3, ["x"]])
def test_odd_manifests_give_nothing(home: Path, digest: Any) -> None:
    ollama(home, "registry.ollama.ai/library/odd/1", digest)
    assert scan() == []


def test_a_manifest_without_its_file_gives_nothing(home: Path) -> None:
    ollama(home, "registry.ollama.ai/library/lone/1", "sha256:" + "c" * 64, content=None)
    assert scan() == []


@pytest.mark.parametrize("text", ["", "[", "[]", '{"layers": 3}', '{"layers": [[]]}', "[" * 10_000])
def test_damaged_manifests_give_nothing(home: Path, text: str) -> None:
    ollama(home, "registry.ollama.ai/library/odd/1", "sha256:" + "a" * 64)
    (home / ".ollama/models/manifests/registry.ollama.ai/library/odd/1").write_text(text)
    assert scan() == []


def test_names_are_shown_escaped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lying(home, ".lmstudio", "models", "\x1b[31mred\x07\x9b[bold]\nm.gguf")
    code, out, _ = run(capsys, "models", "--scan")
    assert code == 0
    assert "␛[31mred␇\ufffd[bold] m.gguf" in out
    assert not set(out) & {"\x1b", "\x07", "\x9b"}
    code, out, _ = run(capsys, "models", "--scan", "--json")
    assert json.loads(out)["found"][0]["name"] == "\x1b[31mred\x07\x9b[bold]\nm.gguf"
    assert out.isascii()


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    code, out, err = run(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert f"_SPECX_COMPLETE={shell}_complete" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("specx mod", {"plain,models"}),
        ("specx run -m qwen3-4", {"plain,qwen3-4b", "file,qwen3-4"}),
        ("specx run -hf own", {"plain,own-model"}),
        ("specx pull qwen2.5-coder-sm", {"plain,qwen2.5-coder-small"}),
        ("specx run --templ", {"plain,--template-arg", "plain,--template-date"}),
    ],
)
def test_words_are_completed(home: Path, words: str, expected: set[str]) -> None:
    aliased(home, 'own-model = "x.gguf"')
    asked = {
        "_SPECX_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = [sys.executable, "-m", "specx"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert set(done.stdout.split()) == expected, done.stderr


def test_completion_of_a_damaged_alias_file_is_silent(home: Path) -> None:
    from specx.cli.naming import names_like

    aliased(home, "[")
    with pytest.raises(SpecxError):
        known_names()
    assert names_like("") == []
