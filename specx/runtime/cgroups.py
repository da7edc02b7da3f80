"""The control groups of Linux that limit this process: where their files lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["MOUNT", "OWN", "cgroup_folders", "read"]

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cgroup_folders(controller: str, own: Path, mount: Path) -> Iterator[Path]:
    """Folders of this process's groups and of all above them, whose limits hold as well.

    Version 1 has a tree for each controller, version 2 one for all. A container may see only the
    top of it.

    Parameters
    ----------
    controller
        What the limits are of: ``cpu`` or ``memory``.
    own
        Lists the process's groups, as lines of ``id:controllers:path``.
    """
    for line in read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = mount / controller if controllers else mount
        folder = tree / path.strip("/")
        yield from (folder, *(above for above in folder.parents if above.is_relative_to(tree)))


def read(path: Path) -> str:
    """The file's text without surrounding white space; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
