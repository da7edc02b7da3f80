"""What files say of models, against what the runtimes say once they have loaded them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from tiny_gguf import Kind, number, text

from specx.errors import SpecxError
from specx.runtime.backend import LoadOptions, LogitsBackend
from specx.runtime.inspection import Inspection
from specx_backends import hf_inspection, hf_weights
from specx_backends.gguf_inspection import FILE_TYPES
from specx_backends.hf import backend as hf
from specx_backends.llamacpp import backend as llamacpp
from specx_backends.llamacpp_library import library

WIDTH = 512


def assert_same_tokens(found: Inspection, model: LogitsBackend) -> None:
    mine, loaded = found.tokenizer, model.tokenizer
    assert found.n_vocab == model.n_vocab
    padding = set(loaded.padding_ids.tolist())
    assert set(mine.padding_ids.tolist()) == padding
    assert (mine.bos_id, mine.eos_id) == (loaded.bos_id, loaded.eos_id)
    assert mine.chat_template == loaded.chat_template
    for token in sorted(set(range(found.n_vocab)) - padding):
        data = loaded.token_bytes(token)
        assert mine.token_bytes(token) == data, token
        assert mine.token_text(token) == loaded.token_text(token), token
    assert_same_ends(found, model)


def assert_same_ends(found: Inspection, model: LogitsBackend) -> None:
    """BOS and EOS are put around a text where the files say so."""
    ids = model.tokenizer.encode("a", add_special=True, parse_special=False)
    bare = model.tokenizer.encode("a", add_special=False, parse_special=False)
    begin = [model.tokenizer.bos_id] if found.tokenizer.adds_bos else []
    end = [model.tokenizer.eos_id] if found.tokenizer.adds_eos else []
    assert ids == [*begin, *bare, *end]


def assert_same_model(path: Path, **options: Any) -> None:
    asked = LoadOptions(n_ctx=WIDTH, n_gpu_layers=0, **options)
    found = llamacpp.inspect(str(path), asked)
    with llamacpp.load(str(path), asked) as model:
        about = model.describe()
        assert (found.quantisation or "(guessed) all F32") == about["quantisation"]
        assert found.architecture == about["architecture"]
        assert found.n_params == about["n_params"]
        assert found.n_ctx_train == about["n_ctx_train"]
        assert found.n_bytes == about["bytes"]
        assert found.n_ctx == model.n_ctx
        assert_same_tokens(found, model)


@pytest.mark.parametrize("name", ["demo_verifier", "smollm2", "gemma", "qwen05"])
def test_a_file_and_llama_cpp_say_the_same(request: pytest.FixtureRequest, name: str) -> None:
    assert_same_model(request.getfixturevalue(name))


TOKENS = [*tiny_gguf.TOKENS[:-3], "<|im_end|>", "[PAD0]", "\N{LOWER ONE EIGHTH BLOCK}x"]
KINDS = [*tiny_gguf.KINDS[:-3], 1, 5, 4]
PUT: dict[str, dict[str, tiny_gguf.Field | None]] = {
    "as it is": {},
    "bos off": {"tokenizer.ggml.add_bos_token": (False, Kind.BOOL)},
    "eos on": {"tokenizer.ggml.add_eos_token": (True, Kind.BOOL)},
    "ends left out": {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.eos_token_id": None},
    "odd tokens": {
        "tokenizer.ggml.tokens": tiny_gguf.strings(TOKENS),
        "tokenizer.ggml.token_type": (KINDS, Kind.ARRAY, Kind.INT32),
        "tokenizer.ggml.eot_token_id": number(270),
    },
    "a template": {"tokenizer.chat_template": text("{{ messages[0].content }}")},
}


@pytest.mark.parametrize("put", PUT)
def test_odd_files_too(tmp_path: Path, put: str) -> None:
    assert_same_model(tiny_gguf.write(tmp_path / "m.gguf", put=PUT[put]))


@pytest.mark.parametrize("add", [True, False])
def test_a_byte_pair_vocabulary(tmp_path: Path, add: bool) -> None:
    fields = {**tiny_gguf.gpt2(), "tokenizer.ggml.add_bos_token": (add, Kind.BOOL)}
    path = tiny_gguf.write(tmp_path / "m.gguf", fields, tiny_gguf.gpt2_tensors())
    asked = LoadOptions(n_ctx=tiny_gguf.POSITIONS, n_gpu_layers=0)
    with llamacpp.load(str(path), asked) as model:
        assert_same_tokens(llamacpp.inspect(str(path), asked), model)
    with pytest.raises(SpecxError, match="has learned 64 positions"):
        llamacpp.inspect(str(path), LoadOptions(n_ctx=65))


@pytest.mark.parametrize("wrong", [number(999_999), text("x"), (True, Kind.BOOL)])
def test_special_ids_that_are_none_are_left_out(tmp_path: Path, wrong: tiny_gguf.Field) -> None:
    put: dict[str, tiny_gguf.Field | None] = {
        f"tokenizer.ggml.{name}_token_id": wrong for name in ("eot", "bos", "fim_pad")
    }
    found = llamacpp.inspect(str(tiny_gguf.write(tmp_path / "m.gguf", put=put)), LoadOptions())
    assert found.tokenizer.bos_id in (1, None)
    assert found.tokenizer.eos_id == 2


def test_the_names_of_file_types_are_llama_cpps() -> None:
    name = library().llama_ftype_name
    known = {kind: name(kind).decode() for kind in range(60)}
    new = {"Q1_0", "Q2_0", "NVFP4"}  # newer than the oldest llama.cpp that specx runs on
    assert {k: n for k, n in known.items() if "unknown" not in n and n not in new} == FILE_TYPES


# transformers


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_a_folder_and_transformers_say_the_same(
    tiny_folders: Callable[[str], Path], kind: str
) -> None:
    folder, asked = str(tiny_folders(kind)), LoadOptions(device="cpu")
    found = hf.inspect(folder, asked)
    with hf.load(folder, asked) as model:
        assert found.n_ctx == model.n_ctx
        assert found.n_params == sum(weight.numel() for weight in model.module.parameters())
        assert_same_tokens(found, model)
    assert bool(found.remarks) == (kind == "mamba")


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_folder_of_no_decoder(tiny_folders: Callable[[str], Path], kind: str) -> None:
    with pytest.raises(SpecxError, match="decode"):
        hf.inspect(str(tiny_folders(kind)), LoadOptions())


def test_what_a_folder_takes_of_memory(tiny_llama: Path) -> None:
    wide, narrow = (
        hf.inspect(str(tiny_llama), LoadOptions(dtype=dtype)) for dtype in ("float32", "float16")
    )
    assert (wide.weights, narrow.weights) == (4 * wide.n_params, 2 * wide.n_params)
    assert (wide.mapped, narrow.mapped) == (True, False)
    assert wide.cache is not None
    assert wide.cache.bytes_per_position == 2 * 2 * 2 * 8 * 4  # K, V; layers, heads, width, bytes


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def test_a_template_in_a_file_of_its_own_or_among_several(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    for template, found in (("s", "s"), (several, "d"), (None, None)):
        written = json.dumps({**settings, "chat_template": template})
        (folder / "tokenizer_config.json").write_text(written)
        assert hf.inspect(str(folder), LoadOptions()).tokenizer.chat_template == found
    (folder / "chat_template.jinja").write_text("f")
    assert hf.inspect(str(folder), LoadOptions()).tokenizer.chat_template == "f"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", "{", "is damaged"),
        ("config.json", "[]", "is damaged"),
        ("config.json", "{}", "no vocab_size"),
        ("tokenizer.json", "{", "is damaged"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("config.json", None, "without a config.json"),
        ("model.safetensors", None, "holds no weights"),
    ],
)
def test_a_spoilt_folder(folder: Path, file: str, content: str | None, words: str) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(SpecxError, match=words):
        hf.inspect(str(folder), LoadOptions())


def test_an_adapter_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SpecxError, match=r"an adapter \(LoRA\)"):
        hf.inspect(str(tmp_path), LoadOptions())


def test_a_file_on_transformers_is_dequantised(smollm2: Path) -> None:
    found = hf.inspect(str(smollm2), LoadOptions())
    assert (found.weights, found.mapped) == (4 * found.n_params, False)
    mapped = llamacpp.inspect(str(smollm2), LoadOptions())
    assert found.cache is not None
    assert mapped.cache is not None
    assert found.cache.bytes_per_position == 2 * mapped.cache.bytes_per_position


@pytest.mark.parametrize("model", ["tiny_llama", "demo_drafter"])
def test_converted_weights_that_do_not_fit(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    path, asked = str(request.getfixturevalue(model)), LoadOptions(device="cpu", dtype="float64")
    for module in (hf_inspection, hf_weights):
        monkeypatch.setattr(module, "available_memory", lambda: 1000)
    with pytest.raises(SpecxError, match="the weights of .* float64, 0.00 GB of memory") as loading:
        hf.load(path, asked)
    with pytest.raises(SpecxError) as checking:
        hf.inspect(path, asked)
    assert str(checking.value) == str(loading.value)
    monkeypatch.setattr(hf_inspection, "choose_device", lambda torch, _: torch.device("meta"))
    assert hf.inspect(path, asked).weights > 1000  # a GPU may hold them
