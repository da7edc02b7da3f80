"""The command line over transformers: one line for what cannot be loaded, mixed pairs, no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inprocess import specx

INSTALL = "pip install 'specx[hf]'"
TOY = Path(__file__).parents[2] / "models" / "toy" / "verifier.toml"
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens, so a connection is refused
SHAPE: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "tokenizers", "safetensors", "gguf", "accelerate"):
    sys.modules[name] = None
from specx.cli import main
main()
"""


def python(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own; what does not end in time fails."""
    return subprocess.run(
        [sys.executable, *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env={**os.environ, **environment},
    )


def run(model: Path | str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where the libraries' own words would be seen."""
    return python("-m", "specx", *given(model, *args), **environment)


def here(model: Path | str, *args: str) -> subprocess.CompletedProcess[str]:
    return specx(*given(model, *args))


def given(model: Path | str, *args: str) -> list[str]:
    on_cpu = ["--backend", "hf", "--device", "cpu", "-t", "1"]
    return ["run", *on_cpu, "-m", str(model), "-p", "x", *args]


def without_torch(*args: str) -> subprocess.CompletedProcess[str]:
    return python("-c", WITHOUT_TORCH, *args)


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("specx: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


# What cannot be loaded


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[[str], Path]:
    """A tiny model's folder, without a tokenizer; made where it is asked for."""
    pytest.importorskip("torch")
    import transformers

    def folder(kind: str) -> Path:
        config = getattr(transformers, f"{kind}Config")(**SHAPE)
        model = {"Llama": "LlamaForCausalLM", "Bert": "BertForMaskedLM"}[kind]
        getattr(transformers, model)(config).save_pretrained(str(tmp_path))
        return tmp_path

    return folder


def test_a_wrong_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert_one_line(here(tmp_path), str(tmp_path), "without a config.json", "give a model's folder")
    assert_one_line(here(tmp_path / "no" / "such" / "folder"), "cannot read the model")


def test_a_folder_without_weights(tiny: Callable[[str], Path]) -> None:
    folder = tiny("Llama")
    (folder / "model.safetensors").unlink()
    assert_one_line(here(folder), str(folder), "holds no weights (model.safetensors)")


def test_a_folder_with_pickled_weights_only(tiny: Callable[[str], Path]) -> None:
    folder = tiny("Llama")
    (folder / "model.safetensors").unlink()
    ran = folder / "ran"
    (folder / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {ran}'\ntR.".encode())
    assert_one_line(here(folder), "pickled weights only (pytorch_model.bin)", "safetensors")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "the network is off"),
        ({"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": NOWHERE}, "specx pull hf:nobody/nothing"),
    ],
    ids=["switched off", "away"],
)
def test_a_hub_id_without_the_network(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    pytest.importorskip("torch")
    done = run("nobody/nothing", HF_HOME=str(tmp_path), HF_HUB_CACHE=str(tmp_path), **environment)
    assert_one_line(done, "'nobody/nothing' is no file or folder", words)


def test_a_type_that_the_device_cannot_compute_in(tiny: Callable[[str], Path]) -> None:
    done = here(tiny("Llama"), "--dtype", "float8_e4m3fn")
    assert_one_line(done, "device 'cpu' cannot compute in float8_e4m3fn", "try float32")


def test_a_device_that_is_not_here(tiny: Callable[[str], Path]) -> None:
    assert_one_line(here(tiny("Llama"), "--device", "tpu"), "device 'tpu' is not here", "cpu")


def test_a_model_without_a_cache(tiny: Callable[[str], Path]) -> None:
    assert_one_line(run(tiny("Bert")), "no decoder (bert)", "no KV cache")


# Mixed pairs


@pytest.mark.parametrize(("verifier", "drafter"), [("hf", "llamacpp"), ("llamacpp", "hf")])
def test_a_mixed_pair_writes_text(
    demo_verifier: Path, demo_drafter: Path, verifier: str, drafter: str
) -> None:
    pytest.importorskip("torch")
    sides = ["--backend", verifier, "--draft-backend", drafter]
    models = ["-m", str(demo_verifier), "-md", str(demo_drafter), "-t", "1"]
    asked = [
        "-p",
        "def read_file(path):",
        "-n",
        "24",
        "--gamma",
        "4",
        "--temp",
        "0",
        "--ignore-eos",
        "--json",
    ]
    done = specx("run", *sides, *models, *asked)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["text"].strip()
    assert result["n_tokens"] == 24
    assert result["rounds"] < 24
    assert result["models"]["verifier"]["backend"] == result["backend"] == verifier
    assert result["models"]["drafter"]["backend"] == drafter
    assert result["settings"]["draft_backend"] == drafter


@pytest.mark.parametrize(
    ("asked", "used"), [(["--dtyped", "bfloat16"], "bfloat16"), (["--dtype", "float32"], "float32")]
)
def test_a_drafter_may_compute_in_a_type_of_its_own(
    demo_verifier: Path, demo_drafter: Path, asked: list[str], used: str
) -> None:
    pytest.importorskip("torch")
    pair = ["--backend", "hf", "-m", str(demo_verifier), "-md", str(demo_drafter), "-t", "1"]
    task = ["-p", "def read_file(path):", "-n", "24", "--gamma", "4", "--temp", "0", "--json"]
    common = ["run", *pair, *task, "--ignore-eos", *asked]
    done, alone = specx(*common), specx(*common, "--no-draft")
    assert (done.returncode, alone.returncode) == (0, 0), done.stderr + alone.stderr
    result = json.loads(done.stdout)
    types = {role: model["dtype"] for role, model in result["models"].items()}
    assert types == {"verifier": "float32", "drafter": used}
    assert result["rounds"] < 24
    assert result["text"] == json.loads(alone.stdout)["text"]


def test_a_drafter_on_llama_cpp_has_the_type_of_its_file(
    demo_verifier: Path, demo_drafter: Path
) -> None:
    pytest.importorskip("torch")
    sides = ["--draft-backend", "llamacpp", "-md", str(demo_drafter), "--dtyped", "bfloat16"]
    assert_one_line(
        here(demo_verifier, *sides), "option --dtyped bfloat16 is not supported", "llamacpp"
    )


# Without torch


def test_the_base_install_runs_and_says_what_is_missing() -> None:
    devices = without_torch("--devices")
    assert devices.returncode == 0, devices.stderr
    lines = devices.stdout.splitlines()
    assert f"hf: torch is not installed; {INSTALL}" in lines
    assert [line for line in lines if line.startswith("llamacpp: llama")]
    assert [line for line in lines if line.startswith("toy: ")]
    assert devices.stderr == ""


def test_the_base_install_writes_text() -> None:
    done = without_torch(
        "run", "--backend", "toy", "-m", str(TOY), "-p", "", "-n", "5", "-q", "-s", "1"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_the_base_install_tells_how_to_add_transformers() -> None:
    done = without_torch("run", "--backend", "hf", "-m", str(TOY), "-p", "x")
    assert_one_line(done, f"torch is not installed; {INSTALL}\n")
