"""The transformers backend: what cannot be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_hf import complaint, load

pytest.importorskip("torch")


def test_wrong_paths(tmp_path: Path, tiny_llama: Path) -> None:
    assert "cannot read model" in complaint(tmp_path / "missing.gguf")
    assert "without a config.json" in complaint(tmp_path)
    (tmp_path / "model.gguf").write_text("no model")
    assert "not a GGUF file" in complaint(tmp_path / "model.gguf")
    assert f"such as '{tmp_path / 'model.gguf'}'" in complaint(tmp_path)


def test_a_folder_without_weights(tmp_path: Path, tiny_llama: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    assert "holds no weights" in complaint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "pickled weights only (pytorch_model.bin)" in complaint(tmp_path)


def test_a_damaged_folder(tmp_path: Path, tiny_llama: Path) -> None:
    for file in tiny_llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "download it again" in complaint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert str(tmp_path) in complaint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "of the future"}')
    assert "pip install -U transformers" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bert", "no decoder (bert)"),
        ("t5", "encoder-decoder model (t5)"),
        ("openai-gpt", "keeps no KV cache"),
    ],
)
def test_models_without_a_cache(
    tiny_folders: Callable[[str], Path], kind: str, reason: str
) -> None:
    assert reason in complaint(tiny_folders(kind))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, tiny_llama: Path) -> None:
    for file in tiny_llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny_llama / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(ran)!r}, 'w')\nclass Config: pass\n")
    assert str(tmp_path) in complaint(tmp_path)
    assert not ran.exists()


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_cut_gguf(tmp_path: Path, smollm2: Path, size: int) -> None:
    path = tmp_path / "cut.gguf"
    with smollm2.open("rb") as file:
        path.write_bytes(file.read(size))
    assert "download it again" in complaint(path)


@pytest.fixture
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hub's library with an empty cache."""
    import huggingface_hub
    import huggingface_hub.constants  # imported by nobody yet where this test runs alone

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return huggingface_hub


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_hub_id_offline(empty_hub: Any, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(empty_hub.HfApi, "model_info", refuse)
    monkeypatch.setattr(empty_hub.constants, "HF_HUB_OFFLINE", by == "environment")
    message = complaint("nobody/nothing", offline=True if by == "option" else None)
    assert "'nobody/nothing' is no file or folder" in message
    assert "the network is off" in message


def test_a_hub_id_with_the_network_away(empty_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, name: str, timeout: float) -> None:
        raise OSError("Name or service not known\nsecond line")

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("tried to download")

    download = empty_hub.snapshot_download
    monkeypatch.setattr(empty_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(
        empty_hub,
        "snapshot_download",
        lambda *a, **k: download(*a, **k) if k.get("local_files_only") else refuse(),
    )
    message = complaint("nobody/nothing")
    assert "cannot be downloaded (Name or service not known); check the name" in message


def test_a_cached_hub_id_needs_no_network(
    empty_hub: Any, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path, tmp_path: Path
) -> None:
    commit = "0" * 40
    repo = tmp_path / "models--some--model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    snapshot = repo / "snapshots" / commit
    snapshot.parent.mkdir()
    snapshot.symlink_to(tiny_llama, target_is_directory=True)
    monkeypatch.setattr(empty_hub.HfApi, "model_info", None)
    with load("some/model") as model:
        assert model.name == "hf:some/model"
        assert model.forward([5]).shape == (1, 320)
