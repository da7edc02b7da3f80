"""Memory that llama.cpp's KV cache takes, told from a file and compared with what it allocates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf

from specx.errors import ModelError, OptionError
from specx.runtime.backend import LoadOptions
from specx.runtime.memory import MemoryNeeded
from specx.runtime.metadata import Metadata, Tensor, Value
from specx_backends import llamacpp_loading
from specx_backends.llamacpp import backend
from specx_backends.llamacpp_memory import cached_elements

MIB = 1 << 20


def needed(path: Path, **options: Any) -> MemoryNeeded:
    found = backend.memory_needed(str(path), LoadOptions(**options))
    assert found is not None
    return found


def allocated(path: Path, **options: Any) -> float:
    """MiB of KV cache, as llama.cpp logs it."""
    with backend.load(str(path), LoadOptions(n_gpu_layers=0, **options)) as model:
        buffers = model.describe()["buffers_mib"]
    assert isinstance(buffers, dict)
    return float(sum(mib for name, mib in buffers.items() if "KV" in name))


# As llama.cpp allocates


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q5_1", "q4_0", "iq4_nl"])
def test_every_type_of_element(smollm2: Path, kind: str) -> None:
    options = {"n_ctx": 512, "cache_type_k": kind, "cache_type_v": kind}
    expected = pytest.approx(allocated(smollm2, **options), abs=0.01)
    assert needed(smollm2, **options).size(512) / MIB == expected


def test_keys_and_values_may_be_of_different_types(smollm2: Path) -> None:
    one = needed(smollm2, cache_type_k="f32", cache_type_v="q8_0")
    assert one.size(4096) == 90 * MIB + 90 * MIB * 34 // 128


def test_a_context_by_default(smollm2: Path) -> None:
    assert (needed(smollm2).n_ctx, needed(smollm2).size(4096)) == (4096, 90 * MIB)
    assert needed(smollm2, n_ctx=100).n_ctx == 100


def test_a_window_is_allocated_whole(gemma: Path) -> None:
    expected = pytest.approx(allocated(gemma, n_ctx=2048), abs=0.01)
    assert needed(gemma, n_ctx=2048).size(2048) / MIB == expected


def test_grouped_heads_with_biases(qwen05: Path) -> None:
    expected = pytest.approx(allocated(qwen05, n_ctx=512), abs=0.01)
    assert needed(qwen05, n_ctx=512).size(512) / MIB == expected


def test_keys_and_values_in_one_tensor(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "gpt2.gguf", tiny_gguf.gpt2(), tiny_gguf.gpt2_tensors())
    found = needed(path, n_ctx=64)
    # It allocates 256 positions for these 64, and logs two decimals.
    assert 4 * found.size(64) / MIB == pytest.approx(allocated(path, n_ctx=64), abs=0.005)
    assert found.bytes_per_position == 2 * 2 * tiny_gguf.WIDTH


# From the tensors

WIDE, KV = 64, 16
SPLIT = {"attn_q": (WIDE, WIDE), "attn_k": (WIDE, KV), "attn_v": (WIDE, KV)}
FUSED = {"attn_qkv": (WIDE, WIDE + 2 * KV), "attn_output": (WIDE, WIDE)}
RECURRENT = {"ssm_conv1d": (4, WIDE), "attn_qkv": (WIDE, WIDE), "attn_output": (WIDE, WIDE)}
LATENT = {"attn_kv_a_mqa": (WIDE, 40), "attn_k_b": (8, 32, 2), "attn_v_b": (32, 8, 2)}


def described(*layers: Mapping[str, tuple[int, ...]], **more: Value) -> Metadata:
    tensors = {
        f"blk.{place}.{name}.weight": Tensor(shape, 0)
        for place, layer in enumerate(layers)
        for name, shape in layer.items()
    }
    tensors["token_embd.weight"] = Tensor((WIDE, 300), 0)
    own = {f"new.{key.replace('__', '.')}": value for key, value in more.items()}
    return Metadata(Path("model.gguf"), 1, {"general.architecture": "new", **own}, {}, tensors)


@pytest.mark.parametrize(
    ("layers", "elements"),
    [
        ([SPLIT, SPLIT], (2 * KV, 2 * KV)),
        ([FUSED, FUSED], (2 * KV, 2 * KV)),
        ([RECURRENT, SPLIT], (KV, KV)),
        ([SPLIT, {**SPLIT, "nextn.eh_proj": (2 * WIDE, WIDE)}], (KV, KV)),
        ([{**SPLIT, "attn_k": (WIDE, 48)}], (48, KV)),
        ([{"attn_k": (WIDE, KV)}], (KV, 0)),  # values that are the keys
        ([{**SPLIT, "ssm_in": (WIDE, WIDE)}], (0, 0)),
        ([LATENT], (0, 0)),
        ([{"attn_qkv": (WIDE, 3 * WIDE)}], (0, 0)),  # no telling what of it is queries
        ([{"attn_qkv": (WIDE, 8), "attn_output": (WIDE, WIDE)}], (0, 0)),
        ([{"attn_k": (KV,)}], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_layers_count_by_their_tensors(
    layers: list[dict[str, tuple[int, ...]]], elements: tuple[int, int]
) -> None:
    assert cached_elements(described(*layers)) == elements


def test_layers_that_share_the_cache_of_others_do_not_count() -> None:
    shared = described(SPLIT, SPLIT, SPLIT, attention__shared_kv_layers=2)
    assert cached_elements(shared) == (KV, KV)


def test_all_files_of_a_model_count(tmp_path: Path) -> None:
    weights = tiny_gguf.llama_tensors()
    later = {name.replace("blk.0", "blk.1"): w for name, w in weights.items() if "blk.0" in name}
    first = tiny_gguf.write(tmp_path / "m-00001-of-00003.gguf", None, weights)
    alone = needed(first).bytes_per_position
    tiny_gguf.write(tmp_path / "m-00003-of-00003.gguf", None, later)
    assert needed(first).bytes_per_position == 2 * alone == 2 * 4 * tiny_gguf.WIDTH


# What cannot be told, and mistakes


def test_what_is_no_gguf_file_is_left_to_the_load(tmp_path: Path) -> None:
    assert backend.memory_needed(str(tmp_path / "none.gguf"), LoadOptions()) is None
    (tmp_path / "text.gguf").write_text("text")
    assert backend.memory_needed(str(tmp_path / "text.gguf"), LoadOptions()) is None


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ModelError, match=r"cut\.gguf is (cut short|damaged)"):
        needed(path)


def test_an_unknown_type_is_refused_as_by_a_load(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cache_type_k 'q9' is unknown"):
        needed(tiny_gguf.write(tmp_path / "model.gguf"), cache_type_k="q9")


@pytest.mark.parametrize(("layers", "counts"), [(None, False), (3, False), (0, True)])
def test_a_cache_on_a_gpu_takes_nothing_of_this_machines_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int | None, counts: bool
) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    monkeypatch.setattr(llamacpp_loading, "devices", lambda lib: [{"type": "gpu"}])
    found = backend.memory_needed(str(path), LoadOptions(n_gpu_layers=layers))
    assert (found is not None) == counts
