from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from specx.errors import ContextError, ModelError
from specx.runtime import memory
from specx.runtime.backend import LoadOptions, get_backend
from specx.runtime.memory import Planned, cache_bytes, cache_shape, check_fits
from specx.runtime.metadata import Metadata, Value, read_metadata

MIB = 1 << 20

LLAMA: dict[str, Value] = {
    "block_count": 30,
    "embedding_length": 576,
    "attention.head_count": 9,
    "attention.head_count_kv": 3,
    "context_length": 8192,
}
"""SmolLM2-135M's numbers."""


def described(architecture: str = "llama", *, without: str = "", **more: Value) -> Metadata:
    keys = {key.replace("__", "."): value for key, value in more.items()}
    own = {f"{architecture}.{k}": v for k, v in {**LLAMA, **keys}.items() if k != without}
    return Metadata(Path("model.gguf"), 1, {"general.architecture": architecture, **own})


def size(metadata: Metadata, n_ctx: int = 4096, **types: str) -> int:
    shape = cache_shape(metadata)
    assert shape is not None
    return cache_bytes(shape, n_ctx, **types)


@pytest.mark.parametrize(
    ("kind", "mib"),
    [("f32", 180), ("f16", 90), ("bf16", 90), ("q8_0", 47.8125), ("q4_0", 25.3125)],
)
def test_the_cache_is_what_llama_cpp_logs(kind: str, mib: float) -> None:
    # "KV buffer size = 90.00 MiB" of SmolLM2 at 4,096 positions, f16.
    assert size(described(), type_k=kind, type_v=kind) == mib * MIB


def test_keys_and_values_may_be_stored_in_different_types() -> None:
    assert size(described(), type_k="f32", type_v="q8_0") == 90 * MIB + 90 * MIB * 34 // 128
    assert size(described(), type_k="unheard-of") == 45 * MIB


def test_without_its_own_key_every_head_is_a_kv_head() -> None:
    assert size(described(without="attention.head_count_kv")) == 3 * size(described())


def test_key_and_value_lengths_and_heads_per_layer() -> None:
    odd = described(
        block_count=2,
        attention__head_count_kv=[4, 0],
        attention__key_length=128,
        attention__value_length=64,
    )
    assert cache_shape(odd) == memory.CacheShape((512, 0), (256, 0))
    assert size(odd, n_ctx=10) == 10 * 2 * (512 + 256)


@pytest.mark.parametrize("architecture", ["phi3", "gemma2", "gemma3"])
def test_layers_with_a_sliding_window_count_in_full_as_they_are_allocated(
    architecture: str,
) -> None:
    sliding = described(architecture, attention__sliding_window=512)
    assert size(sliding) == size(described())


def test_a_sliding_model_takes_what_llama_cpp_logs(gemma: Path) -> None:
    with get_backend("llamacpp").load(str(gemma), LoadOptions(n_ctx=2048)) as model:
        allocated = model.describe()["buffers_mib"]
    assert isinstance(allocated, dict)
    shape = cache_shape(read_metadata(gemma))
    assert shape is not None
    assert cache_bytes(shape, 2048) / MIB == pytest.approx(
        sum(mib for name, mib in allocated.items() if "KV" in name)
    )


@pytest.mark.parametrize(
    "metadata",
    [
        described("mamba"),
        described("qwen35"),
        described("some-architecture-to-come"),
        described(attention__key_length_mla=192),
        described(block_count=0),
        described(block_count=10**9),
        described(without="embedding_length"),
        described(without="attention.head_count"),
        Metadata(Path("model.gguf"), 1, {}),
    ],
)
def test_what_cannot_be_told_is_not_guessed(metadata: Metadata) -> None:
    assert cache_shape(metadata) is None


def test_metadata_of_another_type_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"model\.gguf: metadata llama\.block_count is 'many'"):
        cache_shape(described(block_count="many"))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that says of itself what `described()` says: 23,040 bytes a position at f16."""
    monkeypatch.setattr(memory, "is_gguf", lambda path: path.suffix == ".gguf")
    monkeypatch.setattr(memory, "read_metadata", lambda path: described())
    return tmp_path / "verifier.gguf"


def test_what_fits_passes(model: Path) -> None:
    check_fits([])
    check_fits([Planned(model, 4096)], available=90 * MIB)
    check_fits([Planned(model)], available=90 * MIB)
    check_fits([Planned(model.with_suffix(".toml"), 10**9)], available=0)


def test_what_does_not_fit_is_one_line_with_numbers_and_a_remedy(model: Path) -> None:
    with pytest.raises(ContextError) as caught:
        check_fits([Planned(model, 1_000_000)], available=10**9)
    assert str(caught.value) == (
        "the KV cache of verifier.gguf at 1,000,000 positions needs 23.04 GB, "
        "1.00 GB of memory are available; -c 43264 would fit"
    )


@pytest.mark.parametrize("available", [10**8, 10**9, 5 * 10**9])
def test_the_remedy_fits_and_is_the_largest(model: Path, available: int) -> None:
    models = [Planned(model, 1_000_000), Planned(model, 8192, "q8_0", "q8_0")]
    with pytest.raises(ContextError, match=r"-c (\d+) would fit") as caught:
        check_fits(models, available=available)
    n_ctx = int(str(caught.value).split("-c ")[1].split()[0])
    smaller = [Planned(m.path, min(n_ctx, m.n_ctx or 0), m.type_k, m.type_v) for m in models]
    check_fits(smaller, available=available)
    larger = [
        Planned(m.path, min(n_ctx + memory.STEP, m.n_ctx or 0), m.type_k, m.type_v) for m in models
    ]
    with pytest.raises(ContextError):
        check_fits(larger, available=available)


def test_where_nothing_fits_there_is_no_smaller_context(model: Path) -> None:
    with pytest.raises(ContextError, match="free some memory"):
        check_fits([Planned(model, 4096)], available=1000)


def test_available_memory_is_a_positive_number_within_the_machine() -> None:
    assert 0 < memory.available_memory() <= psutil.virtual_memory().total


def groups(root: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_version_2_limits_are_read_up_the_tree_and_cached_files_give_way(tmp_path: Path) -> None:
    mount = groups(
        tmp_path / "cgroup",
        {
            "a/memory.max": "1000\n",
            "a/memory.current": "900\n",
            "a/memory.stat": "anon 200\ninactive_file 300\nactive_file 100\nslab_reclaimable 50\n",
            "a/b/memory.max": "max\n",
            "a/b/memory.current": "10\n",
            "memory.max": "5000\n",
        },
    )
    membership = groups(tmp_path, {"self": "0::/a/b\n"}) / "self"
    assert memory.cgroup_rooms(membership, mount) == [550]


def test_version_1_limits(tmp_path: Path) -> None:
    mount = groups(
        tmp_path / "cgroup",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "100\n",
            "memory/job/memory.limit_in_bytes": "1000\n",
            "memory/job/memory.usage_in_bytes": "700\n",
            "memory/job/memory.stat": "total_inactive_file 100\ntotal_active_file 100\n",
        },
    )
    membership = groups(tmp_path, {"self": "3:cpu:/job\n4:memory:/job\n0::/\n"}) / "self"
    assert memory.cgroup_rooms(membership, mount) == [500, 9223372036854771612]


def test_a_container_that_sees_only_the_top_of_its_tree(tmp_path: Path) -> None:
    mount = groups(tmp_path / "cgroup", {"memory.max": "1000\n", "memory.current": "100\n"})
    membership = groups(tmp_path, {"self": "0::/machine/of/the/host\n"}) / "self"
    assert memory.cgroup_rooms(membership, mount) == [900]


def test_a_system_without_cgroups(tmp_path: Path) -> None:
    assert memory.cgroup_rooms(tmp_path / "absent", tmp_path) == []


def test_a_real_model(smollm2: Path) -> None:
    assert size(read_metadata(smollm2)) == 90 * MIB
    with pytest.raises(
        ContextError, match=r"SmolLM2.* at 100,000,000 positions needs 2,304\.00 GB"
    ):
        check_fits([Planned(smollm2, 100_000_000)], available=10**12)
