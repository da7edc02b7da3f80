"""The door to torch and transformers: imported on first use, silenced, devices listed.

What comes through the door is handed out as Any, here and nowhere else: both libraries are large,
and their types say little about what is used of them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from specx.errors import OptionError
from specx_backends.library import import_library

__all__ = [
    "INSTALL",
    "Remark",
    "choose_device",
    "describe_library",
    "quiet",
    "require",
    "synchronize",
    "versions",
]

INSTALL = "pip install 'specx[hf]'"
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "accelerate")


class Remark(UserWarning):
    """Something of ours to tell while transformers is kept quiet."""


def require(module: str) -> Any:
    """The module, imported.

    Raises
    ------
    BackendError
        If it is missing or does not load; the message holds the install line.
    """
    return import_library(module, INSTALL, f"{INSTALL} --force-reinstall")


@contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Keep transformers' bars, log and warnings off the terminal, unless `verbose`.

    The log's level stays for the life of the process: some models log at their first forward.
    """
    if verbose:
        yield
        return
    log = require("transformers.utils.logging")
    bars = log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield
    finally:
        if bars:
            log.enable_progress_bar()
    for warning in seen:
        if issubclass(warning.category, Remark):
            warnings.warn(warning.message, stacklevel=3)


def choose_device(torch: Any, name: str | None) -> Any:
    """The torch.device called `name`; by default the first of CUDA, MPS and CPU that is there.

    Raises
    ------
    OptionError
        If there is no such device here.
    """
    found = [str(device["name"]) for device in devices(torch)]
    if name is None or name == "auto":
        return torch.device(found[0])
    if f"{name}:0" not in found and name not in found:
        raise OptionError(f"device '{name}' is not here; here are: {', '.join(found)}")
    return torch.device(name)


def devices(torch: Any) -> list[dict[str, object]]:
    """What torch can compute on, the preferred first: name, description, memory in bytes."""
    found: list[dict[str, object]] = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            {
                "name": f"cuda:{index}",
                "description": torch.cuda.get_device_name(index),
                "memory_free": free,
                "memory_total": total,
            }
        )
    if torch.backends.mps.is_available():
        found.append({"name": "mps", "description": "Apple GPU"})
    return [*found, {"name": "cpu", "description": torch.backends.cpu.get_cpu_capability()}]


def synchronize(torch: Any, device: Any) -> None:
    """Wait until `device` has computed what it was given, or a clock measures nothing."""
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that a model's logits pass through."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def describe_library() -> dict[str, object]:
    """Versions and devices; loads no model."""
    torch = require("torch")
    require("transformers")
    return {
        **versions(),
        "cuda": torch.version.cuda,
        "devices": devices(torch),
        "threads": torch.get_num_threads(),
    }
