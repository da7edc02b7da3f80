"""The transformers backend: what cannot be loaded."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_hf import complaint, load

from specx_backends import hf_weights

pytest.importorskip("torch")


def test_wrong_paths(tmp_path: Path, tiny_llama: Path) -> None:
    assert "cannot read the model" in complaint(tmp_path / "missing.gguf")
    assert "give the path of a file" in complaint(f"{tmp_path}/a\0b")
    assert "not a regular file" in complaint("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in complaint(tmp_path / "pipe")
    assert "without a config.json" in complaint(tmp_path)
    (tmp_path / "model.gguf").write_text("no model")
    assert "not a GGUF file" in complaint(tmp_path / "model.gguf")
    assert f"such as '{tmp_path / 'model.gguf'}'" in complaint(tmp_path)


def test_a_folder_without_weights(tmp_path: Path, tiny_llama: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    assert "holds no weights" in complaint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "pickled weights only (pytorch_model.bin)" in complaint(tmp_path)


def test_a_folder_with_a_part_of_its_weights(tmp_path: Path, tiny_llama: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (tmp_path / "model.safetensors").rename(tmp_path / shards[0])
    message = complaint(tmp_path)
    assert f"only {shards[0]} without model.safetensors.index.json; download it again" in message
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"one": shards[0], "other": shards[1]}}))
    assert f"lacks 1 of the 2 files that {index.name} names, such as {shards[1]}" in complaint(
        tmp_path
    )
    for damaged in ("{}", "[1]", '{"weight_map": {}}', "{", '{"weight_map": 1}'):
        index.write_text(damaged)
        assert index.name in complaint(tmp_path)
    index.unlink()
    os.mkfifo(index)
    assert "not a regular file" in complaint(tmp_path)


Change = Callable[[dict[str, Any], dict[str, Any]], object]
"""What is done to a sound model's tensors and configuration."""
WRONG: dict[str, tuple[Change, str]] = {
    "a tensor missing": (
        lambda tensors, config: tensors.pop("model.layers.1.mlp.up_proj.weight"),
        "lacks 1 of the 21 tensors of a llama model (model.layers.1.mlp.up_proj.weight)",
    ),
    "no tensors": (
        lambda tensors, config: tensors.clear(),
        "lacks 21 of the 21 tensors of a llama model (lm_head.weight, model.embed_tokens.weight, "
        "model.layers.0.input_layernorm.weight, ...)",
    ),
    "another model_type": (
        lambda tensors, config: config.update(model_type="mamba"),
        "lacks 22 of the 23 tensors of a mamba model",
    ),
    "no layers": (
        lambda tensors, config: config.update(num_hidden_layers=0),
        "has 0 layers by its configuration",
    ),
    "fewer layers": (
        lambda tensors, config: config.update(num_hidden_layers=1),
        "has 9 tensors that a llama model of its configuration has no place for",
    ),
    "biases that the configuration leaves out": (
        lambda tensors, config: tensors.update(
            {"model.layers.0.mlp.up_proj.bias": tensors["model.norm.weight"].repeat(2)}
        ),
        "no place for (model.layers.0.mlp.up_proj.bias)",
    ),
    "a vocabulary of another size": (
        lambda tensors, config: config.update(vocab_size=300),
        "has 2 tensors of another shape than its configuration says (lm_head.weight: [320, 32], "
        "not [300, 32])",
    ),
}


def change(folder: Path, edit: Change) -> None:
    """Rewrite the weights and the configuration of `folder`."""
    from safetensors.torch import load_file, save_file

    weights, settings = folder / "model.safetensors", folder / "config.json"
    tensors, config = load_file(weights), json.loads(settings.read_text())
    edit(tensors, config)
    save_file(tensors, weights, {"format": "pt"})
    settings.write_text(json.dumps(config))


@pytest.mark.parametrize("fault", WRONG)
def test_weights_that_are_not_the_configurations(
    tmp_path: Path, tiny_llama: Path, fault: str
) -> None:
    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    edit, words = WRONG[fault]
    change(tmp_path, edit)
    assert words in complaint(tmp_path)


def test_weights_that_a_model_shares_or_computes_may_be_missing_or_left_over(
    tmp_path: Path, tiny_llama: Path
) -> None:
    def share(tensors: dict[str, Any], config: dict[str, Any]) -> None:
        del tensors["lm_head.weight"]
        config["tie_word_embeddings"] = True
        extra = tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = extra.clone()
        tensors["vision_tower.layers.0.norm.weight"] = extra.clone()

    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    change(tmp_path, share)
    with load(tmp_path) as model:
        assert model.forward([5]).shape == (1, 320)


# Memory


def test_weights_that_exceed_the_memory(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def halve(tensors: dict[str, Any], config: dict[str, Any]) -> None:
        tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()})

    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    change(tmp_path, halve)
    with load(tmp_path) as model:
        weights = model.module.state_dict().values()  # type: ignore[attr-defined]
        needed = sum(weight.nbytes for weight in weights if weight.dtype == torch.float32)
    monkeypatch.setattr(hf_weights, "available_memory", lambda: needed)
    load(tmp_path).close()
    monkeypatch.setattr(hf_weights, "available_memory", lambda: needed - 1)
    message = complaint(tmp_path)
    assert f"the weights of '{tmp_path}' take" in message
    assert "in float32" in message
    assert "try --dtype bfloat16, or a smaller model" in message
    load(tmp_path, dtype="bfloat16").close()  # stays mapped from the file
    load(tiny_llama).close()


def test_a_number_that_float16_lacks_is_named_with_a_remedy(
    tmp_path: Path, tiny_llama: Path
) -> None:
    def grow(tensors: dict[str, Any], config: dict[str, Any]) -> None:
        tensors["lm_head.weight"] *= 1e5

    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    change(tmp_path, grow)
    with load(tmp_path) as model:
        assert np.isfinite(model.forward([5])).all()
    message = complaint(tmp_path, dtype="float16")
    assert "the logits hold nan or inf, as float16 ends at 65,504; try --dtype float32" in message


@pytest.mark.parametrize("kind", ["gpt2", "gptj"])
def test_a_table_of_positions_bounds_the_context(
    tiny_folders: Callable[[str], Path], kind: str
) -> None:
    folder = tiny_folders(kind)
    message = complaint(folder, n_ctx=65)
    assert f"n_ctx 65 exceeds the 64 positions that {folder.name} has a table of" in message
    for n_ctx in (64, None):
        with load(folder, n_ctx=n_ctx) as model:
            assert model.n_ctx == 64
            assert model.forward([5] * 64).shape == (1, 320)


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


@pytest.mark.parametrize("size", [10_000, 3_000_000])
def test_a_cut_gguf(tmp_path: Path, demo_verifier: Path, size: int) -> None:
    path = tmp_path / "cut.gguf"
    with demo_verifier.open("rb") as file:
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


COMMIT = "0" * 40
COPIES = ["original/model.safetensors", "onnx/model.onnx", "consolidated.safetensors", "big.bin"]


def cached(cache: Path, model: Path, name: str) -> Path:
    """Keep `model` as the hub's library keeps the newest commit of ``some/NAME``; its folder."""
    repo = cache / f"models--some--{name}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    snapshot = repo / "snapshots" / COMMIT
    shutil.copytree(model, snapshot)
    return snapshot


def listed(snapshot: Path, *more: str) -> None:
    """Beside a cached commit, the list of the repository's files that newer libraries keep."""
    names = [*(file.name for file in snapshot.iterdir()), *more]
    files = {name: {"size": 1, "blob_id": "0" * 40} for name in names}
    tree = snapshot.parent.parent / "trees" / f"{COMMIT}.json"
    tree.parent.mkdir()
    tree.write_text(json.dumps({"format_version": 1, "files": files}))


@pytest.mark.parametrize("lists", [False, True], ids=["without a list", "with a list of all files"])
@pytest.mark.parametrize("offline", [None, True])
def test_a_cached_hub_id_needs_no_network(
    empty_hub: Any,
    monkeypatch: pytest.MonkeyPatch,
    tiny_llama: Path,
    tmp_path: Path,
    lists: bool,
    offline: bool | None,
) -> None:
    name = f"model-{lists}-{offline}"  # the library remembers lists by path
    snapshot = cached(tmp_path, tiny_llama, name)
    if lists:
        listed(snapshot, *COPIES)
    monkeypatch.setattr(empty_hub.HfApi, "model_info", None)
    with load(f"some/{name}", offline=offline) as model:
        assert model.name == f"hf:some/{name}"
        assert model.forward([5]).shape == (1, 320)


def test_a_cache_that_lacks_weights_is_completed(
    empty_hub: Any, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path, tmp_path: Path
) -> None:
    """And only with what is loaded: not with copies of the weights for other programs."""
    snapshot = cached(tmp_path, tiny_llama, "torn")
    listed(snapshot, *COPIES)
    (snapshot / "model.safetensors").unlink()
    assert "no model of that name is cached" in complaint("some/torn", offline=True)
    asked: list[str] = []

    def fetch(repo: str, *, filename: str, **named: object) -> str:
        asked.append(filename)
        return str(shutil.copyfile(tiny_llama / filename, snapshot / filename))

    info = SimpleNamespace(sha=COMMIT)
    monkeypatch.setattr(empty_hub.HfApi, "model_info", lambda self, name, timeout: info)
    monkeypatch.setattr(empty_hub.HfApi, "repo_info", lambda self, **named: info)
    download = importlib.import_module("huggingface_hub._snapshot_download")
    monkeypatch.setattr(download, "hf_hub_download", fetch)
    with load("some/torn") as model:
        assert model.forward([5]).shape == (1, 320)
    assert sorted(asked) == sorted(file.name for file in tiny_llama.iterdir())
