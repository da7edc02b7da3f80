"""GGUF files on transformers: the same ids, and nearly the same logits, as on llama.cpp."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_hf import complaint, encode, load

from specx.runtime.backend import LoadOptions, LogitsBackend, Tokenizer
from specx.session.chat import encode_chat, render_chat
from specx_backends import hf_loading, hf_weights
from specx_backends.hf_tokenizer import gguf_tokenizer
from specx_backends.llamacpp import backend as llamacpp

pytest.importorskip("torch")


# Text, and logits, of the same GGUF file on two runtimes

AWKWARD = {
    "empty": "",
    "space": " ",
    "words": "plain words, and 3.14; don't, I'LL, it's",
    "digits": "year 2024, 12345678901 x10 1,000,000 ½²③",
    "white": "tab\tand\n\n  \n newlines\r\n  two  spaces   \n",
    "spaces": " " * 300 + "x",
    "emoji": "😀 👨‍👩‍👧 👍🏽",
    "right to left": "شكرا שלום",
    "scripts": "हिन्दी ไทย 日本語 한국어 Ελλάδα",
    "forms": "cafe\u0301 caf\u00e9 ﬁ Å \u212b \ufffd\u00a0\u2003",
    "control": "<|im_start|>user\nhi<|im_end|>\n<|endoftext|></s> <s>",
    "tags": "<repo_name>x<reponame> <|fim_prefix|>a<|fim_suffix|><tool_call> [PAD151936]<think>",
    "bytes": "\x00\x01\x7f",
    "one letter": "a" * 10_000,
    "code": "def f(x):\n\treturn {'a': [1, 2]}  # 100%\n",
}
Pair = tuple[LogitsBackend, LogitsBackend]
Tokenizers = tuple[Tokenizer, Tokenizer, int]


@pytest.fixture(scope="module", params=["smollm2", "qwen05", "qwen15"])
def tokenizers(request: pytest.FixtureRequest) -> Iterator[Tokenizers]:
    """Of the same file on transformers, without its weights, and on llama.cpp; their size."""
    path: Path = request.getfixturevalue(request.param)
    metadata = hf_loading.read_gguf(path)
    n_vocab = len(metadata["tokenizer.ggml.tokens"])
    ours = gguf_tokenizer(path, metadata, n_vocab)
    with llamacpp.load(str(path), LoadOptions(n_ctx=8, n_gpu_layers=0)) as theirs:
        assert theirs.n_vocab == n_vocab
        yield ours, theirs.tokenizer, n_vocab


@pytest.fixture(scope="module", params=["smollm2", "qwen05"])
def pair(request: pytest.FixtureRequest, weights_cache: str) -> Iterator[Pair]:
    """The same file on transformers and on llama.cpp."""
    path: Path = request.getfixturevalue(request.param)
    options = LoadOptions(n_ctx=256, n_gpu_layers=0)
    dequantised = load(path, n_ctx=256, weights_cache=weights_cache)
    with dequantised as ours, llamacpp.load(str(path), options) as theirs:
        yield ours, theirs


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("add_special", [False, True])
@pytest.mark.parametrize("parse_special", [False, True])
def test_the_same_ids_as_llamacpp(
    tokenizers: Tokenizers, name: str, add_special: bool, parse_special: bool
) -> None:
    ours, theirs = (
        tokenizer.encode(AWKWARD[name], add_special=add_special, parse_special=parse_special)
        for tokenizer in tokenizers[:2]
    )
    assert ours == theirs


def test_the_same_vocabulary_as_llamacpp(tokenizers: Tokenizers) -> None:
    ours, theirs, n_vocab = tokenizers
    assert spelling(ours, n_vocab) == spelling(theirs, n_vocab)
    assert ours.eog_ids == theirs.eog_ids
    np.testing.assert_array_equal(ours.padding_ids, theirs.padding_ids)
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_id, theirs.eos_id)
    assert ours.chat_template == theirs.chat_template


@pytest.mark.parametrize("name", AWKWARD)
def test_the_same_chat_as_llamacpp(tokenizers: Tokenizers, name: str) -> None:
    ours, theirs, _ = tokenizers
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi\n"},
        {"role": "assistant", "content": "<|im_start|> hello "},
        {"role": "user", "content": AWKWARD[name]},
    ]
    text = rendered(ours, messages)
    assert AWKWARD[name] in text
    assert text == rendered(theirs, messages)
    assert encode_chat(ours, messages) == encode_chat(theirs, messages)


def rendered(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    assert tokenizer.chat_template is not None
    bos, eos = (
        "" if token is None else tokenizer.token_text(token)
        for token in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return render_chat(tokenizer.chat_template, messages, bos=bos, eos=eos)


def spelling(tokenizer: Tokenizer, n_vocab: int) -> list[tuple[bytes, str]]:
    return [(tokenizer.token_bytes(i), tokenizer.token_text(i)) for i in range(n_vocab)]


def test_nearly_the_same_logits_as_llamacpp(pair: Pair) -> None:
    """llama.cpp rounds activations to 8 bits before it multiplies them with quantised weights."""
    ids = encode(pair[1], AWKWARD["code"] * 4)[:64]
    ours, theirs = (model.forward(ids, len(ids)) for model in pair)
    apart = np.abs(softmax(ours) - softmax(theirs)).sum(axis=1) / 2
    print(f"{pair[0].name}: total variation {apart.mean():.3f} mean, {apart.max():.3f} at most")
    assert apart.mean() < 0.05
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() > 0.9


def softmax(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return probabilities


# Loading GGUF files


def test_dequantised_weights_are_kept(
    demo_verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    shares: list[float] = []
    options = {"weights_cache": str(tmp_path), "threads": 1}
    with load(demo_verifier, **options, progress=shares.append) as model:
        rows = model.forward([5, 6, 7], 3)
        assert model.describe()["quantisation"] == "F16"
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 40
    assert len(list(tmp_path.iterdir())) == 1  # nothing partial stays behind
    monkeypatch.setattr(hf_loading, "dequantise", None)
    with load(demo_verifier, **options) as model:
        np.testing.assert_array_equal(model.forward([5, 6, 7], 3), rows)
    assert capfd.readouterr() == ("", "")


def test_a_failed_store_leaves_nothing(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unwritable:
        class config:
            quantization_config = None

        def save_pretrained(self, folder: str) -> None:
            Path(folder, "model.safetensors").write_bytes(b"part")
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_loading, "dequantise", lambda *given: Unwritable())
    assert "cannot be written (No space left on device)" in complaint(
        smollm2, weights_cache=str(tmp_path)
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "removed", "emptied", "another's", "configuration"])
def test_a_damaged_store_is_made_again(
    demo_drafter: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    options = {"weights_cache": str(tmp_path), "threads": 1}
    with load(demo_drafter, **options) as model:
        rows = model.forward([5, 6, 7], 3)
    (folder,) = tmp_path.iterdir()
    weights = folder / "model.safetensors"
    if damage == "cut":
        os.truncate(weights, weights.stat().st_size // 2)
    elif damage == "removed":
        weights.unlink()
    elif damage == "emptied":
        save_file({}, weights, {"format": "pt"})
    elif damage == "another's":
        save_file({"a": torch_ones()}, weights, {"format": "pt"})
    else:
        (folder / "config.json").write_text("{")
    with pytest.warns(UserWarning, match=f"'{folder}' is damaged .*; it is made again") as told:
        model = load(demo_drafter, **options)
    assert len(told) == 1
    np.testing.assert_array_equal(model.forward([5, 6, 7], 3), rows)
    model.close()
    monkeypatch.setattr(hf_loading, "dequantise", None)
    load(demo_drafter, **options).close()  # from what was made again


def torch_ones() -> Any:
    import torch

    return torch.ones(2)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of a file's size")
def test_a_store_without_room_is_named_and_leaves_nothing(
    demo_drafter: Path, tmp_path: Path
) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        message = complaint(demo_drafter, weights_cache=str(tmp_path), threads=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert message.startswith(f"weights_cache '{tmp_path}' cannot be written (")
    assert list(tmp_path.iterdir()) == []


# GGUF files that are not a whole model

Rewrite = dict[str, Any]
U16, U32, TEXT = (gguf.GGUFValueType[name] for name in ("UINT16", "UINT32", "STRING"))


def rewritten(
    source: Path, path: Path, put: Rewrite, keep: Callable[[str], bool] = lambda name: True
) -> Path:
    """A copy of `source` with other values `put`, and only the tensors to `keep`."""
    reader = gguf.GGUFReader(source)
    values = {
        key: (field.contents(), field.types[0], field.types[-1])
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    values |= {key: (value, kind, kind) for key, (value, kind) in put.items()}
    writer = gguf.GGUFWriter(path, values.pop("general.architecture")[0])
    for key, (value, kind, of) in values.items():
        sub = of if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kind, sub_type=sub)
    for tensor in reader.tensors:
        if keep(tensor.name):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


NOT_WHOLE: dict[str, tuple[Rewrite, Callable[[str], bool], str]] = {
    "the first of three": (
        {"split.no": (0, U16), "split.count": (3, U16)},
        lambda name: "blk.0" in name,
        "is part 1 of a model in 3 files and does not have a part's name; rename the parts",
    ),
    "the last of three": (
        {"split.no": (2, U16), "split.count": (3, U16)},
        lambda name: "blk.1" in name,
        "is part 3 of a model in 3 files",
    ),
    "a projector": (
        {"general.architecture": ("clip", TEXT)},
        lambda name: True,
        "is the vision part of a model (mmproj)",
    ),
    "an adapter": ({"general.type": ("adapter", TEXT)}, lambda name: True, "is an adapter (LoRA)"),
    "a tensor missing": (
        {},
        lambda name: name != "blk.1.ffn_up.weight",
        " tensors of a llama model (model.layers.1.mlp.up_proj.weight); download it again",
    ),
    "no tensors": ({}, lambda name: False, "is a vocabulary without weights; it holds no tensors"),
    "no layers": ({}, lambda name: "blk" not in name, " layers, and holds 0; download it again"),
    "no layers by its metadata": (
        {"llama.block_count": (0, U32)},
        lambda name: True,
        "says that it has 0 layers, and holds ",
    ),
    "a layer more by its metadata": (
        {"llama.block_count": (9, U32)},
        lambda name: True,
        "says that it has 9 layers, and holds ",
    ),
}


@pytest.mark.parametrize("kind", NOT_WHOLE)
def test_a_file_that_is_not_a_whole_model(demo_drafter: Path, tmp_path: Path, kind: str) -> None:
    put, keep, words = NOT_WHOLE[kind]
    path = rewritten(demo_drafter, tmp_path / "model.gguf", put, keep)
    message = complaint(path, threads=1)
    assert message.startswith(f"'{path}' ")
    assert words in message


def test_a_rewritten_file_loads(demo_drafter: Path, tmp_path: Path) -> None:
    """Else the files above might be refused for another reason."""
    path = rewritten(demo_drafter, tmp_path / "model.gguf", {"general.type": ("model", TEXT)})
    with load(path, threads=1) as ours, load(demo_drafter, threads=1) as theirs:
        np.testing.assert_array_equal(ours.forward([5, 6], 2), theirs.forward([5, 6], 2))


def test_dequantised_weights_that_exceed_the_memory(
    demo_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(demo_drafter, threads=1) as model:
        n_params = model.describe()["n_params"]
    assert isinstance(n_params, int)
    monkeypatch.setattr(hf_weights, "available_memory", lambda: 4 * n_params)
    load(demo_drafter, threads=1).close()
    monkeypatch.setattr(hf_weights, "available_memory", lambda: 4 * n_params - 1)
    message = complaint(demo_drafter, threads=1)
    assert "of memory are available; try --dtype bfloat16, or a smaller model" in message
    load(demo_drafter, threads=1, dtype="bfloat16").close()


def test_libraries_are_left_as_they_were(smollm2: Path) -> None:
    gguf = importlib.import_module("gguf")
    loader = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    before = (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm)
    with hf_loading.parsed_once(LoadOptions()):
        assert gguf.GGUFReader is not before[0]
    assert (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm) == before
