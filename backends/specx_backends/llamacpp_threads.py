"""How many threads llama.cpp should compute with: one a physical core that we may use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

__all__ = ["cgroup_cpus", "physical_cores"]

TOPOLOGY = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def physical_cores() -> int:
    """Physical cores open to this process; on Apple Silicon the performance cores.

    Matrix products gain nothing from a second thread on a core, and one slow core or one that a
    quota takes away holds up all the others at every barrier.
    """
    if sys.platform == "linux":
        return max(1, min(distinct_cores(os.sched_getaffinity(0)), int(cgroup_cpus())))
    if sys.platform == "darwin":
        return performance_cores()
    return all_cores()


def all_cores() -> int:
    """Physical cores of the machine, hyper-threads counted once."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def performance_cores() -> int:
    """Performance cores of Apple Silicon; all cores of an Intel Mac."""
    command = ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]
    try:
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return all_cores()


def distinct_cores(cpus: Iterable[int], topology: Path = TOPOLOGY) -> int:
    """Cores behind the logical `cpus`: hyper-threads of one core list the same siblings."""
    siblings = (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list" for cpu in cpus)
    return len({read(path) or str(path) for path in siblings})


def cgroup_cpus(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> float:
    """Processors' worth of time that the control groups above this process grant it."""
    quotas = [
        quota
        for line in read(own).splitlines()
        for folder in _cgroup_folders(root, line)
        if (quota := _quota(folder)) is not None
    ]
    return min(quotas, default=float(os.cpu_count() or 1))


def _cgroup_folders(root: Path, line: str) -> list[Path]:
    """Folders of one line of /proc/self/cgroup (``id:controllers:path``), from it to the root."""
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return []
    mount = root / "cpu" if controllers else root  # version 1 has a tree for each controller
    folder = mount / path.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]


def _quota(folder: Path) -> float | None:
    """Share of time in one folder: version 2's ``cpu.max``, else version 1's two files."""
    text = read(folder / "cpu.max") or (
        f"{read(folder / 'cpu.cfs_quota_us')} {read(folder / 'cpu.cfs_period_us')}"
    )
    quota, _, period = text.strip().partition(" ")
    if not (quota.isdigit() and period.strip().isdigit() and int(period)):
        return None  # no such files, or "max", or -1: no limit here
    return int(quota) / int(period)


def read(path: Path) -> str:
    """The file's text without surrounding white space; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
