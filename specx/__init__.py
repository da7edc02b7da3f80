"""specx: speculative decoding that provably does not change the output."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it; importing it from typing takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    from specx.core.accept import accept, expected_accepted
    from specx.core.rules import RULES, Block, Rule, Verdict
    from specx.core.sampling import Distribution, SamplingParams, distribution
    from specx.errors import SpecxError
    from specx.runtime.backend import (
        LoadOptions,
        LogitsBackend,
        Tokenizer,
        get_backend,
        installed_backends,
    )
    from specx.session.decoding import Round, Stop
    from specx.session.generation import Observer
    from specx.session.loading import load
    from specx.session.pair import Pair
    from specx.session.result import Result
    from specx.session.session import Session
    from specx.session.settings import Settings
    from specx.session.tally import Tally

    __version__: str

__all__ = [
    "RULES",
    "Block",
    "Distribution",
    "LoadOptions",
    "LogitsBackend",
    "Observer",
    "Pair",
    "Result",
    "Round",
    "Rule",
    "SamplingParams",
    "Session",
    "Settings",
    "SpecxError",
    "Stop",
    "Tally",
    "Tokenizer",
    "Verdict",
    "__version__",
    "accept",
    "distribution",
    "expected_accepted",
    "get_backend",
    "installed_backends",
    "load",
]

# Imported on first use: `specx --help` needs none of these, and NumPy alone takes longer than it.
_EXPORTS = {
    "core.rules": ("RULES", "Block", "Rule", "Verdict"),
    "core.accept": ("accept", "expected_accepted"),
    "runtime.backend": (
        "LoadOptions",
        "LogitsBackend",
        "Tokenizer",
        "get_backend",
        "installed_backends",
    ),
    "session.decoding": ("Round", "Stop"),
    "errors": ("SpecxError",),
    "session.generation": ("Observer",),
    "session.loading": ("load",),
    "session.pair": ("Pair",),
    "session.result": ("Result",),
    "session.session": ("Session",),
    "session.settings": ("Settings",),
    "core.sampling": ("Distribution", "SamplingParams", "distribution"),
    "session.tally": ("Tally",),
}
_MODULES = {name: f"specx.{module}" for module, names in _EXPORTS.items() for name in names}


if not TYPE_CHECKING:  # else a misspelt name would pass as Any

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value = import_module("importlib.metadata").version("specx")
        elif name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module 'specx' has no attribute '{name}'")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
