"""What a benchmark ran on, and what else the machine did meanwhile."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from specx.runtime.backend import LogitsBackend, get_backend

__all__ = ["Watch", "peak_memory_mib", "provenance"]

CHUNK = 16 * 2**20


def provenance(
    models: Mapping[str, LogitsBackend],
    backends: Sequence[str],
    argv: Sequence[str],
    report: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Versions, build, machine and models, as JSON values.

    Parameters
    ----------
    models
        By role.
    report
        Called with the share of the models' bytes that are hashed.
    """
    return {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": [Path(word).name if Path(word).is_absolute() else word for word in argv],
        "versions": {
            "specx": version("specx"),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "backends": {name: dict(get_backend(name).about()) for name in dict.fromkeys(backends)},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        },
        "models": _described(models, report),
    }


def _described(
    models: Mapping[str, LogitsBackend], report: Callable[[float], None]
) -> dict[str, dict[str, object]]:
    facts = {role: dict(model.describe()) for role, model in models.items()}
    files = {role: Path(str(about["file"])) for role, about in facts.items() if about.get("file")}
    unknown = [role for role, file in files.items() if not facts[role].get("sha256")]
    hashes = _hashes([files[role] for role in unknown if files[role].is_file()], report)
    for role, file in files.items():
        # The name says enough; a folder is nobody else's business in a file made to be shared.
        facts[role]["file"] = file.name
        if file in hashes:
            facts[role]["sha256"] = hashes[file]
    return facts


def _hashes(files: Sequence[Path], report: Callable[[float], None]) -> dict[Path, str]:
    """SHA-256 of each file; of one that is both models, once."""
    digests = {file: hashlib.sha256() for file in files}
    total, done = sum(file.stat().st_size for file in digests), 0
    for path, digest in digests.items():
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                done += len(chunk)
                report(done / total)
    return {path: digest.hexdigest() for path, digest in digests.items()}


def _processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def peak_memory_mib() -> float:
    """Most memory that this process has held, mapped model files included."""
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset) / 2**20
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


@dataclass
class Watch:
    """Looks at the machine when it is made, and says later what happened since."""

    def __post_init__(self) -> None:
        self._swapped = psutil.swap_memory().sout
        self._busy, self._idle = _seconds()
        self._own = _own_seconds()

    def swapped_mib(self) -> float:
        """Memory that the system moved to disk."""
        return float(psutil.swap_memory().sout - self._swapped) / 2**20

    def others(self) -> float:
        """Share of the processor that other programs took, 0 to 1."""
        busy, idle = _seconds()
        spent = busy - self._busy
        whole = spent + idle - self._idle
        return max(0.0, (spent - (_own_seconds() - self._own)) / whole) if whole > 0 else 0.0


def _seconds() -> tuple[float, float]:
    """Seconds that all cores were busy and idle, since the machine started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return sum(times[: 4 if os.name == "posix" else 3]) - times.idle + _irq(times), idle


def _irq(times: Any) -> float:
    return float(getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0))


def _own_seconds() -> float:
    mine = os.times()
    return mine.user + mine.system + mine.children_user + mine.children_system
