"""The number of threads: cores of two kinds, hyper-threads, quotas."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specx_backends import threads
from specx_backends.threads import fast_cpus, most_efficient

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
    monkeypatch.setattr(threads, "cgroup_cpus", lambda: 64.0)
    monkeypatch.setattr(fast_cpus, "__defaults__", (tmp_path,))
    monkeypatch.setattr(threads.distinct_cores, "__defaults__", (tmp_path / "system" / "cpu",))
    assert threads.physical_cores() == 8


def record(efficiency_class: int, size: int) -> bytes:
    """A core as Windows describes it."""
    return struct.pack("<IIBB", 0, size, 1, efficiency_class).ljust(size, b"\0")


def test_windows_fastest_class_is_counted() -> None:
    hybrid = b"".join([record(1, 48)] * 8 + [record(0, 48)] * 3 + [record(0, 64)])
    assert most_efficient(hybrid) == 8
    assert most_efficient(record(0, 48) * 6) == 6
    assert most_efficient(b"") == 0
    assert most_efficient(record(0, 48)[:9]) == 0


def test_hyper_threads_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,4", "1,5", "0,4", "1,5"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert threads.distinct_cores([0, 1, 2, 3], tmp_path) == 2
    assert threads.distinct_cores([0, 2], tmp_path) == 1
    assert threads.distinct_cores([7, 8, 9], tmp_path) == 3  # nothing known of them


@pytest.mark.parametrize(
    ("line", "files", "cpus"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/", {"cpu.max": "300000 100000"}, 3),
        (
            "3:cpuacct,cpu:/x",
            {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("2:cpuset:/", {"cpu/cpu.cfs_quota_us": "9", "cpu/cpu.cfs_period_us": "9"}, None),
    ],
)
def test_a_quota_limits_the_threads(
    tmp_path: Path, line: str, files: dict[str, str], cpus: float | None
) -> None:
    own = tmp_path / "own"
    own.write_text(line + "\n")
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    unlimited = threads.cgroup_cpus(tmp_path / "none", tmp_path / "none")
    assert threads.cgroup_cpus(own, tmp_path / "cgroup") == (cpus or unlimited)


def test_at_least_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cgroup_cpus", lambda: 0.5)
    assert threads.physical_cores() >= 1
