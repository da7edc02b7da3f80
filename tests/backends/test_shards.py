"""A model in several GGUF files is one model, on both runtimes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_gguf

from cases.odd_gguf import split
from specx.errors import ModelError
from specx.runtime.backend import BackendFactory, LoadOptions, get_backend
from specx.runtime.shards import require_shards, shard_names, shards_of

OPTIONS = LoadOptions(n_ctx=64)
TOKENS = [1, 260, 261, 262, 263, 264]


@pytest.fixture(params=["llamacpp", "hf"])
def backend(request: pytest.FixtureRequest) -> BackendFactory:
    if request.param == "hf":
        pytest.importorskip("torch")
    return get_backend(request.param)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A model whose output layer, which tells that it is not tied, is in the last part."""
    weights = tiny_gguf.llama_tensors()
    output = np.random.default_rng(1).normal(size=weights["token_embd.weight"].shape)
    weights["output.weight"] = output.astype(np.float32)
    return tiny_gguf.write(tmp_path / "whole.gguf", None, weights)


def test_parts_give_the_logits_of_the_whole(backend: BackendFactory, whole: Path) -> None:
    parts = split(whole, whole.parent)
    assert "output.weight" in [tensor.name for tensor in gguf.GGUFReader(parts[-1]).tensors]
    with backend.load(str(whole), OPTIONS) as one, backend.load(str(parts[0]), OPTIONS) as several:
        assert np.array_equal(one.forward(TOKENS, 6), several.forward(TOKENS, 6))
        assert several.describe()["bytes"] == sum(part.stat().st_size for part in parts)


def test_quantised_parts_give_the_logits_of_the_whole(
    backend: BackendFactory, smollm2: Path, tmp_path: Path
) -> None:
    parts = split(smollm2, tmp_path)
    with backend.load(str(smollm2), OPTIONS) as one:
        expected = one.forward(TOKENS, 6)
    with backend.load(str(parts[0]), OPTIONS) as several:
        assert np.array_equal(expected, several.forward(TOKENS, 6))


def test_every_reader_of_transformers_reads_all_parts(whole: Path) -> None:
    """Two of them serve only architectures that the tests above have no model of."""
    pytest.importorskip("torch")
    from specx_backends.hf_shards import whole_model_readers

    read = {name: reader for (_, name), reader in whole_model_readers().items()}
    first = str(split(whole, whole.parent)[0])
    metadata, names = read["read_gguf_metadata"](first)
    assert metadata["general.architecture"] == "llama"
    assert names == read["read_gguf_metadata"](str(whole))[1]
    several, one = read["from_file"](first), read["from_file"](str(whole))
    assert several.ggml_types == one.ggml_types
    assert [(t.name, t.shape, t.nbytes) for t in several.tensors] == [
        (t.name, t.shape, t.nbytes) for t in one.tensors
    ]
    weights = read["load_gguf_state_dict"](several)
    for name, tensor in read["load_gguf_state_dict"](one).items():
        assert weights[name][:].equal(tensor[:]), name


def test_a_missing_part_is_named(backend: BackendFactory, whole: Path) -> None:
    parts = split(whole, whole.parent)
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"1 is missing, .* 'split-00002-of-00003\.gguf'; put it"):
        backend.load(str(parts[0]), OPTIONS)
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"2 are missing, beginning with 'split-00002-of-00003"):
        backend.load(str(parts[0]), OPTIONS)


def test_a_later_part_names_the_first(backend: BackendFactory, whole: Path) -> None:
    parts = split(whole, whole.parent)
    with pytest.raises(ModelError, match=r"a later shard .*; name the first, 'split-00001-of-0000"):
        backend.load(str(parts[1]), OPTIONS)


def test_dequantised_weights_follow_every_part(whole: Path) -> None:
    pytest.importorskip("torch")
    from specx_backends.hf_loading import cache_key

    parts = split(whole, whole.parent)
    before = cache_key(parts[0], "float32")
    with parts[2].open("ab") as file:
        file.write(b"more")
    assert cache_key(parts[0], "float32") != before


@pytest.mark.parametrize(
    "name",
    [
        "m.gguf", "m-00001-of-00002.bin", "m-1-of-2.gguf", "m-00003-of-00002.gguf",
        "m-00000-of-00002.gguf", "m-00001-of-99999.gguf", "-00001-of-00002.gguf",
    ],
)  # fmt: skip
def test_other_names_are_models_in_one_file(name: str) -> None:
    assert shard_names(name) == [name]
    require_shards(Path(name))


def test_names_of_parts() -> None:
    names = ["a-00001-of-00003-00001-of-00002.gguf", "a-00001-of-00003-00002-of-00002.gguf"]
    assert shard_names(names[1]) == names
    assert shards_of(Path("x/m-00002-of-00002.gguf")) == [
        Path("x/m-00001-of-00002.gguf"), Path("x/m-00002-of-00002.gguf"),
    ]  # fmt: skip
