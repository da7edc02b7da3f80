"""Checks that a run fits into memory, before anything is loaded.

Only caches that a backend fills at load are counted, as it says itself (`memory_needed` of a
`specx.runtime.backend.BackendFactory`). A model's weights may be mapped from the file: pages that
the system takes back when it needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from specx.errors import ContextError
from specx.runtime.cgroups import MOUNT, OWN, cgroup_folders, read

__all__ = ["MemoryNeeded", "available_memory", "check_fits", "gigabytes"]

STEP = 256
"""The context that is said to fit is a multiple of this many positions."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeeded:
    """What the cache of a model that is about to be loaded takes of this machine's memory."""

    name: str
    """The model's, for messages."""
    n_ctx: int
    """Positions, at least."""
    bytes_per_position: float
    """At least: what does not fit by this number must not fit in truth."""

    def size(self, n_ctx: int) -> int:
        """Bytes at `n_ctx` positions, or at its own where those are fewer."""
        return int(min(n_ctx, self.n_ctx) * self.bytes_per_position)


def check_fits(models: Iterable[MemoryNeeded], *, available: int | None = None) -> None:
    """Raise ContextError if the caches of `models` cannot fit into memory together.

    Raises
    ------
    ContextError
        In one line: what is needed, what there is, and the context that would fit.
    """
    caches = list(models)
    free = available_memory() if available is None else available
    needed = sum(cache.size(cache.n_ctx) for cache in caches)
    if needed <= free:
        return
    names = " and ".join(f"{cache.name} at {cache.n_ctx:,} positions" for cache in caches)
    n_ctx = largest_context(caches, free)
    raise ContextError(
        f"the KV cache of {names} needs {gigabytes(needed)}, {gigabytes(free)} of memory are "
        f"available; {f'-c {n_ctx} would fit' if n_ctx else 'free some memory'}"
    )


def largest_context(caches: Sequence[MemoryNeeded], free: int) -> int:
    """Positions, in steps of `STEP`, at which all `caches` fit into `free` bytes together."""
    low, high = 0, max(cache.n_ctx for cache in caches) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        if sum(cache.size(middle * STEP) for cache in caches) <= free:
            low = middle
        else:
            high = middle - 1
    return low * STEP


def available_memory() -> int:
    """Bytes that this process can still take without swapping: the system's, or its cgroup's."""
    return min([psutil.virtual_memory().available, *cgroup_rooms()])


def cgroup_rooms(own: Path = OWN, mount: Path = MOUNT) -> list[int]:
    """Bytes left under each memory limit of this process's cgroups and of those above them."""
    rooms = (
        room(folder, *names)
        for folder in cgroup_folders("memory", own, mount)
        for names in (VERSION_2, VERSION_1)
    )
    return [found for found in rooms if found is not None]


VERSION_2 = ("memory.max", "memory.current", "inactive_file active_file slab_reclaimable")
VERSION_1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file total_active_file",
)
"""Files of the limit and of what is used, and names of the statistics of what gives way."""


def room(folder: Path, limit: str, usage: str, gives_way: str) -> int | None:
    """Bytes left under a group's limit; None if it has none.

    Cached files give way, so they do not count as used.
    """
    most, used = read(folder / limit), read(folder / usage)
    if not (most.isdigit() and used.isdigit()):
        return None  # no such files, or "max"
    pairs = (line.split() for line in read(folder / "memory.stat").splitlines())
    cached = (int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in gives_way.split())
    return max(0, int(most) - max(0, int(used) - sum(cached)))


def gigabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e9:,.2f} GB"
