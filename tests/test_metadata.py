import contextlib
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specx.errors import ModelError
from specx.runtime.metadata import is_gguf, read_metadata


def write(path: Path, tensors: int = 2) -> Path:
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(3)
    writer.add_context_length(2048)
    writer.add_rope_freq_base(1e6)
    writer.add_token_list([f"token {i}" for i in range(5000)])
    writer.add_token_scores([0.5] * 5000)
    writer.add_head_count_kv([2, 0, 4])
    writer.add_add_bos_token(False)
    writer.add_name("naïve")
    for i in range(tensors):
        writer.add_tensor(f"tensor.{i}", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "small.gguf")


def test_reads_what_the_library_wrote(model: Path) -> None:
    metadata = read_metadata(model)
    assert metadata.architecture == "qwen2"
    assert metadata.size == model.stat().st_size
    assert metadata.number("block_count") == 3
    assert metadata.number("sliding_window") is None
    assert metadata.numbers("attention.head_count_kv", 3) == [2, 0, 4]
    assert metadata.numbers("context_length", 2) == [2048, 2048]
    assert metadata.values["general.name"] == "naïve"
    assert metadata.values["tokenizer.ggml.add_bos_token"] is False


def test_agrees_with_the_library_on_all_it_keeps(model: Path) -> None:
    metadata = read_metadata(model)
    fields = gguf.GGUFReader(model).fields
    kept = {key: fields[key].contents() for key in metadata.values}
    assert metadata.values == kept
    skipped = {key for key in fields if not key.startswith("GGUF.")} - set(kept)
    assert skipped == {"tokenizer.ggml.tokens", "tokenizer.ggml.scores"}


@pytest.mark.parametrize("key", ["general.name", "qwen2.attention.head_count_kv"])
def test_another_type_than_expected_is_one_line(model: Path, key: str) -> None:
    metadata = read_metadata(model)
    value = metadata.values[key]
    odd = type(metadata)(model, 0, {"general.architecture": "qwen2", "qwen2.block_count": value})
    with pytest.raises(ModelError, match=r"small\.gguf: metadata qwen2\.block_count is .+"):
        odd.number("block_count")


def test_fewer_values_than_layers_is_one_line(model: Path) -> None:
    with pytest.raises(ModelError, match="has 3 values for 4 layers"):
        read_metadata(model).numbers("attention.head_count_kv", 4)


def test_a_file_without_tensors_is_whole(tmp_path: Path) -> None:
    assert read_metadata(write(tmp_path / "vocabulary.gguf", tensors=0)).number("block_count") == 3


def test_not_a_model(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("Once upon a time")
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for path, reason in (
        (text, "is not a GGUF file"),
        (empty, "is not a GGUF file"),
        (tmp_path, "is not a GGUF file"),
        (tmp_path / "absent.gguf", "does not exist"),
    ):
        assert not is_gguf(path)
        with pytest.raises(ModelError, match=f"{path.name} {reason}"):
            read_metadata(path)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 0.95])
def test_a_file_cut_anywhere_is_one_line(model: Path, share: float) -> None:
    whole = model.read_bytes()
    model.write_bytes(whole[: max(8, int(len(whole) * share))])
    with pytest.raises(ModelError, match=r"damaged|cut short") as caught:
        read_metadata(model)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("intact") / "small.gguf", tensors=1)


@given(data=st.data())
def test_damage_never_raises_anything_else(intact: Path, data: st.DataObject) -> None:
    content = bytearray(intact.read_bytes())
    spots = st.integers(8, 400)
    for at in data.draw(st.lists(spots, min_size=1, max_size=4)):
        content[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    damaged = intact.with_name("damaged.gguf")
    damaged.write_bytes(content)
    with contextlib.suppress(ModelError):
        metadata = read_metadata(damaged)
        metadata.number("block_count")
        metadata.numbers("attention.head_count_kv", 3)
