"""The cores llama.cpp computes on where a machine has two kinds of them."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specx_backends import llamacpp_threads
from specx_backends.llamacpp_threads import fast_cpus, most_efficient

ALL = range(12)


def tree(folder: Path, name: str, values: Sequence[object]) -> Path:
    """A file of each processor."""
    for cpu, value in enumerate(values):
        path = folder / "system" / "cpu" / f"cpu{cpu}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return folder


def listed(folder: Path, fast: str, slow: str) -> Path:
    """Linux' two lists on an Intel hybrid."""
    for name, cpus in (("cpu_core", fast), ("cpu_atom", slow)):
        (folder / name).mkdir()
        (folder / name / "cpus").write_text(cpus + "\n")
    return folder


def test_the_listed_fast_cores_are_taken(tmp_path: Path) -> None:
    tree(listed(tmp_path, "0-3,8-11", "4-7"), "cpufreq/cpuinfo_max_freq", [5_000_000] * 12)
    assert sorted(fast_cpus(ALL, tmp_path)) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert sorted(fast_cpus([2, 3, 4], tmp_path)) == [2, 3]
    assert sorted(fast_cpus([4, 5], tmp_path)) == [4, 5]  # bound to slow ones: better than none


@pytest.mark.parametrize(
    ("name", "values", "fast"),
    [
        ("cpufreq/cpuinfo_max_freq", [5_100_000] * 8 + [3_300_000] * 4, 8),
        ("cpufreq/cpuinfo_max_freq", [5_700_000] * 2 + [5_200_000] * 10, 12),  # favoured cores
        ("cpu_capacity", [1024] * 8 + [446] * 4, 8),
        ("cpu_capacity", [1024] + [790] * 3 + [330] * 8, 4),
        ("cpu_capacity", [1024] * 12, 12),
        ("cpu_capacity", ["?"] * 12, 12),
        ("cpu_capacity", [1024] * 3, 12),  # known of some only
        ("nothing", [1] * 12, 12),
    ],
)
def test_slow_cores_are_left_out(
    tmp_path: Path, name: str, values: Sequence[object], fast: int
) -> None:
    assert sorted(fast_cpus(ALL, tree(tmp_path, name, values))) == list(range(fast))


def test_eight_fast_and_four_slow_cores_have_eight_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen hyper-threads on the fast ones."""
    listed(tmp_path, "0-15", "16-19")
    tree(tmp_path, "topology/thread_siblings_list", [f"{c & ~1}-{c | 1}" for c in range(16)])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(20)), raising=False)
    monkeypatch.setattr(llamacpp_threads, "cgroup_cpus", lambda: 64.0)
    monkeypatch.setattr(fast_cpus, "__defaults__", (tmp_path,))
    monkeypatch.setattr(
        llamacpp_threads.distinct_cores, "__defaults__", (tmp_path / "system" / "cpu",)
    )
    assert llamacpp_threads.physical_cores() == 8


def record(efficiency_class: int, size: int) -> bytes:
    """A core as Windows describes it."""
    return struct.pack("<IIBB", 0, size, 1, efficiency_class).ljust(size, b"\0")


def test_windows_fastest_class_is_counted() -> None:
    hybrid = b"".join([record(1, 48)] * 8 + [record(0, 48)] * 3 + [record(0, 64)])
    assert most_efficient(hybrid) == 8
    assert most_efficient(record(0, 48) * 6) == 6
    assert most_efficient(b"") == 0
    assert most_efficient(record(0, 48)[:9]) == 0
