"""Caches that must fit into memory together, and what limits it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from specx.errors import ContextError
from specx.runtime import memory
from specx.runtime.memory import MemoryNeeded, check_fits

VERIFIER = MemoryNeeded(name="verifier.gguf", n_ctx=4096, bytes_per_position=23_040)
"""SmolLM2-135M's numbers at f16: 90 MiB."""
MIB = 1 << 20


def test_what_fits_passes() -> None:
    check_fits([], available=0)
    check_fits([VERIFIER], available=90 * MIB)
    with pytest.raises(ContextError):
        check_fits([VERIFIER], available=90 * MIB - 1)


def test_what_does_not_fit_is_one_line_with_numbers_and_a_remedy() -> None:
    with pytest.raises(ContextError) as caught:
        check_fits([replace(VERIFIER, n_ctx=1_000_000)], available=10**9)
    assert str(caught.value) == (
        "the KV cache of verifier.gguf at 1,000,000 positions needs 23.04 GB, "
        "1.00 GB of memory are available; -c 43264 would fit"
    )


def test_caches_that_fit_alone_may_not_fit_together() -> None:
    drafter = replace(VERIFIER, name="drafter.gguf", n_ctx=2048)
    with pytest.raises(ContextError, match=r"verifier.* 4,096 .* and drafter.* 2,048 "):
        check_fits([VERIFIER, drafter], available=100 * MIB)


@pytest.mark.parametrize("available", [10**8, 10**9, 5 * 10**9])
def test_the_remedy_fits_and_is_the_largest(available: int) -> None:
    drafter = MemoryNeeded(name="drafter.gguf", n_ctx=8192, bytes_per_position=12_240.5)
    models = [replace(VERIFIER, n_ctx=1_000_000), drafter]
    with pytest.raises(ContextError, match=r"-c (\d+) would fit") as caught:
        check_fits(models, available=available)
    n_ctx = int(str(caught.value).split("-c ")[1].split()[0])

    def at(n_ctx: int) -> list[MemoryNeeded]:
        return [replace(model, n_ctx=min(n_ctx, model.n_ctx)) for model in models]

    check_fits(at(n_ctx), available=available)
    with pytest.raises(ContextError):
        check_fits(at(n_ctx + memory.STEP), available=available)


def test_where_nothing_fits_there_is_no_smaller_context() -> None:
    with pytest.raises(ContextError, match="free some memory"):
        check_fits([VERIFIER], available=1000)


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
