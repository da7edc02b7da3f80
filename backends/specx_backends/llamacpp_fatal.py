"""Ends of llama.cpp that cannot be returned from, turned into last words.

ggml reports an assertion to a callback before it aborts. An exception of C++ that nobody catches
ends in the handler of ``std::set_terminate``; which exception it was is asked of the C++ runtime.
Neither costs anything while all goes well. What can be foreseen is refused before
(`llamacpp_header`).
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from typing import Any

from specx.runtime.fatal import die

__all__ = ["guard"]

RUNTIMES = {"linux": "libstdc++.so.6", "darwin": "libc++abi.dylib"}
"""Where ``std::set_terminate`` lies; on Windows each thread has its own, and ggml's remains."""
SET_TERMINATE, CURRENT_TYPE = "_ZSt13set_terminatePFvvE", "__cxa_current_exception_type"
AbortCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
TerminateHandler = ctypes.CFUNCTYPE(None)

_kept: list[object] = []
"""Callbacks live as long as the process, which a collected one would end."""


def guard(set_abort_callback: Callable[[Any], object], said: Callable[[], str]) -> None:
    """From now on an end of the runtime is told to `specx.runtime.fatal.die`.

    Parameters
    ----------
    set_abort_callback
        ``ggml_set_abort_callback``.
    said
        The last error that the runtime's log holds, if any.
    """

    def aborted(message: bytes | None) -> None:
        die(f"llama.cpp gave up: {_assertion(message or b'')}; {REMEDY}")

    def terminated() -> None:
        reason = said() or f"a C++ exception ({_exception()})"
        die(f"llama.cpp gave up: {reason}; {REMEDY}")

    callback, handler = AbortCallback(aborted), TerminateHandler(terminated)
    _kept.extend([callback, handler])
    set_abort_callback(callback)
    set_terminate = _cpp_function(SET_TERMINATE)
    if set_terminate is not None:
        set_terminate.restype = ctypes.c_void_p
        set_terminate(handler)


REMEDY = "the model file may be damaged or of a kind it does not know; try another file"


def _assertion(message: bytes) -> str:
    """Ggml's message without the path of its source file."""
    text = message.decode("utf-8", "replace").strip()
    return re.sub(r"^\S*?([\w.-]+\.\w+:\d+: )", r"\1", text)


def _exception() -> str:
    """The name of the exception that is in flight, as the compiler spells it."""
    current = _cpp_function(CURRENT_TYPE)
    if current is None:
        return "of unknown type"
    current.restype = ctypes.POINTER(ctypes.c_void_p)
    found = current()
    if not found:
        return "of unknown type"
    name = ctypes.cast(found[1], ctypes.c_char_p).value or b""  # std::type_info: vtable, name
    words = re.findall(r"[A-Za-z_]{3,}", name.decode("ascii", "replace"))
    return "::".join(words) or "of unknown type"


def _cpp_function(name: str) -> Any:
    library = RUNTIMES.get(sys.platform)
    if library is None:
        return None
    try:
        return getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError):
        return None
