"""The number of threads to compute with: one per physical core that this process may use."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

from specx.runtime.cgroups import MOUNT, OWN, cgroup_folders, read

__all__ = ["cgroup_cpus", "physical_cores"]

DEVICES = Path("/sys/devices")
TOPOLOGY = DEVICES / "system" / "cpu"

SLOW_FREQUENCY = 0.8
"""Of the fastest core's. Favoured cores of one kind differ by less than a tenth, dense ones
(Zen 4c, Zen 5c) reach two thirds."""
SLOW_CAPACITY = 0.5
"""Of the largest. Phones have one large core, some of three quarters and small ones of a third."""


def physical_cores() -> int:
    """Physical cores open to this process; of cores of two kinds, the fast ones.

    Matrix products gain nothing from a second thread on a core, and one slow core or one that a
    quota takes away holds up all the others at every barrier.
    """
    if sys.platform == "linux":
        cores = distinct_cores(fast_cpus(os.sched_getaffinity(0)))
        return max(1, min(cores, int(cgroup_cpus())))
    if sys.platform == "darwin":
        return performance_cores()
    if sys.platform == "win32":
        return most_efficient(processor_records()) or all_cores()
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


def fast_cpus(cpus: Collection[int], devices: Path = DEVICES) -> Collection[int]:
    """Those of the logical `cpus` that lie on fast cores; all of them where no kinds are known.

    Linux lists the fast cores of an Intel hybrid; elsewhere they are told by capacity (Arm) or by
    highest frequency (AMD's dense cores).
    """
    listed = _cpu_list(read(devices / "cpu_core" / "cpus")) & set(cpus)
    if listed:
        return listed
    for name, slow in (
        ("cpu_capacity", SLOW_CAPACITY),
        ("cpufreq/cpuinfo_max_freq", SLOW_FREQUENCY),
    ):
        texts = {cpu: read(devices / "system" / "cpu" / f"cpu{cpu}" / name) for cpu in cpus}
        if texts and all(text.isdecimal() for text in texts.values()):
            top = max(map(int, texts.values()))
            return [cpu for cpu, text in texts.items() if int(text) >= slow * top]
    return cpus


def _cpu_list(text: str) -> set[int]:
    """``0-3,8`` -> {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return found


def most_efficient(records: bytes) -> int:
    """Cores of the highest efficiency class (the fastest) among Windows' records of cores.

    Each begins with its kind and its size, 4 bytes each, flags and the class, a byte each.
    """
    classes = []
    while len(records) >= 10:
        size = int.from_bytes(records[4:8], "little")
        classes.append(records[9])
        records = records[max(size, 10) :]
    return classes.count(max(classes)) if classes else 0


def processor_records() -> bytes:
    """What Windows tells of its cores; empty where it tells nothing."""
    if sys.platform != "win32":
        return b""
    ask = ctypes.windll.kernel32.GetLogicalProcessorInformationEx
    cores, size = 0, ctypes.c_ulong(0)
    ask(cores, None, ctypes.byref(size))  # says how much room it needs
    buffer = ctypes.create_string_buffer(size.value)
    return buffer.raw if ask(cores, buffer, ctypes.byref(size)) else b""


def distinct_cores(cpus: Iterable[int], topology: Path = TOPOLOGY) -> int:
    """Cores behind the logical `cpus`: hyper-threads of one core list the same siblings."""
    siblings = (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list" for cpu in cpus)
    return len({read(path) or str(path) for path in siblings})


def cgroup_cpus(own: Path = OWN, mount: Path = MOUNT) -> float:
    """Processors' worth of time that the control groups above this process grant it."""
    quotas = map(_quota, cgroup_folders("cpu", own, mount))
    granted = [quota for quota in quotas if quota is not None]
    return min(granted, default=float(os.cpu_count() or 1))


def _quota(folder: Path) -> float | None:
    """Share of time in one folder: version 2's ``cpu.max``, else version 1's two files."""
    text = read(folder / "cpu.max") or (
        f"{read(folder / 'cpu.cfs_quota_us')} {read(folder / 'cpu.cfs_period_us')}"
    )
    quota, _, period = text.strip().partition(" ")
    if not (quota.isdigit() and period.strip().isdigit() and int(period)):
        return None  # no such files, or "max", or -1: no limit here
    return int(quota) / int(period)
