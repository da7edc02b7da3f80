"""The door to llama-cpp-python: imported on first use, its log tamed, its devices listed.

Everything behind the door is ctypes, so `library` hands it out as Any, here and nowhere else.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from specx_backends.library import import_library
from specx_backends.llamacpp_fatal import guard

__all__ = ["LOG", "describe_library", "devices", "ggml", "has_gpu", "library", "versions"]

INSTALL = "pip install llama-cpp-python"
DEVICE_TYPES = ("cpu", "gpu", "igpu", "accel", "meta")
ERROR, CONTINUED = 4, 5  # of ggml_log_level; those in llama-cpp-python's logger are old
BUFFER = re.compile(r"(\S+ +(?:model|KV|RS|compute|output)) buffer size = *([\d.]+) MiB")

LONGEST_LINE = 500
"""Of what is searched: the log repeats metadata of any length, and the pattern is quadratic."""


class Log:
    """What llama.cpp says: shown only when asked, remembered where it explains a failure."""

    def __init__(self) -> None:
        self.verbose = False
        self.buffers: dict[str, float] = {}
        """MiB of each buffer of the latest load, by device and purpose, as llama.cpp reports."""
        self._errors: deque[str] = deque(maxlen=8)
        self._level = 0
        self._line = ""

    def start(self, verbose: bool) -> None:
        """Forget what was said before a load."""
        self.verbose = verbose
        self.buffers = {}
        self._errors.clear()

    def reason(self, otherwise: str) -> str:
        """The first error since the last call or `start`, without the C function that said it."""
        said = self._errors[0] if self._errors else otherwise
        self._errors.clear()
        return re.sub(r"^(\w+: +)+", "", said)

    def write(self, level: int, text: bytes, _user: object) -> None:
        """Take a piece of the log; called by llama.cpp from any thread, so it never raises."""
        message = text.decode("utf-8", "replace")
        if self.verbose:
            sys.stderr.write(message)
        self._level = self._level if level == CONTINUED else level
        self._line += message
        if message.endswith("\n"):
            self._keep(self._line.strip())
            self._line = ""

    def _keep(self, line: str) -> None:
        if self._level == ERROR and line:
            self._errors.append(line)
        if " buffer size" in line and (found := BUFFER.search(line[-LONGEST_LINE:])):
            name = " ".join(found[1].split())
            self.buffers[name] = self.buffers.get(name, 0.0) + float(found[2])


LOG = Log()
_callbacks: list[object] = []
"""Keeps the log callback for the life of the process, which a collected one would end."""


@functools.cache
def library() -> Any:
    """The low-level bindings of llama.cpp, ready for use.

    Raises
    ------
    BackendError
        If llama-cpp-python is missing or cannot be loaded; the message holds the remedy.
    """
    reinstall = f"{INSTALL} --force-reinstall --no-cache-dir"
    lib = import_library("llama_cpp.llama_cpp", INSTALL, reinstall)
    guard(ggml(lib, "ggml_set_abort_callback", ctypes.c_void_p), lambda: LOG.reason(""))
    callback = lib.llama_log_callback(LOG.write)
    _callbacks.append(callback)
    lib.llama_log_set(callback, None)
    lib.llama_backend_init()
    return lib


def devices(lib: Any) -> list[dict[str, object]]:
    """What llama.cpp can compute on: name, description, type, free and total memory in bytes."""
    lib.llama_supports_gpu_offload()  # registers the devices, where those are loaded on demand
    count = ggml(lib, "ggml_backend_dev_count", ctypes.c_size_t)
    get = ggml(lib, "ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [_device(lib, get(i)) for i in range(count())]


def _device(lib: Any, handle: int) -> dict[str, object]:
    size_p = ctypes.POINTER(ctypes.c_size_t)
    text = functools.partial(ggml, lib, restype=ctypes.c_char_p)
    memory = ggml(lib, "ggml_backend_dev_memory", None, ctypes.c_void_p, size_p, size_p)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    memory(handle, ctypes.byref(free), ctypes.byref(total))
    kind = ggml(lib, "ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)(handle)
    return {
        "name": text("ggml_backend_dev_name")(ctypes.c_void_p(handle)).decode(),
        "description": text("ggml_backend_dev_description")(ctypes.c_void_p(handle)).decode(),
        "type": DEVICE_TYPES[kind] if kind < len(DEVICE_TYPES) else str(kind),
        "memory_free": free.value,
        "memory_total": total.value,
    }


def ggml(lib: Any, name: str, restype: Any, *argtypes: Any) -> Any:
    """A function of ggml, which llama-cpp-python ships and does not bind."""
    function = next(f for f in (getattr(h, name, None) for h in _handles(lib)) if f is not None)
    function.restype = restype
    function.argtypes = argtypes or None
    return function


def _handles(lib: Any) -> Iterator[Any]:
    """The shared libraries in which ggml's functions may lie.

    llama.cpp's own comes first: the system looks a name up in what it was linked with as well. A
    wheel holds each library under several names, and opening another one would load a second copy
    of ggml, with its own list of devices and its own abort callback.
    """
    yield lib._lib
    for name in ("ggml-base", "ggml"):  # Windows looks names up in one library only
        try:
            yield lib.load_shared_library(name, lib._base_path)
        except FileNotFoundError:
            continue


def has_gpu(found: list[dict[str, object]]) -> bool:
    """Whether layers can be offloaded.

    `llama_supports_gpu_offload` says yes wherever RPC was compiled in, with no GPU at all.
    """
    return any(device["type"] in ("gpu", "igpu") for device in found)


def versions(lib: Any) -> dict[str, str]:
    """Versions of the bindings and of the llama.cpp inside."""
    commit = ggml(lib, "ggml_commit", ctypes.c_char_p)().decode()
    ggml_version = ggml(lib, "ggml_version", ctypes.c_char_p)().decode()
    return {
        "llama-cpp-python": version("llama-cpp-python"),
        "llama.cpp": lib.llama_version().decode(),
        "ggml": ggml_version if commit in ("", "unknown") else f"{ggml_version} ({commit})",
    }


def describe_library() -> dict[str, object]:
    """Versions, build flags and devices; loads no model."""
    lib = library()
    found = devices(lib)
    return {
        **versions(lib),
        "system_info": lib.llama_print_system_info().decode().strip(" |"),
        "devices": found,
        "gpu_offload": has_gpu(found),
        "rpc": bool(lib.llama_supports_rpc()),
    }
